"""The way from one set of processes of a model to another: the new ones serve before the old ones go."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import Enum

from mqinfer.cloud_worker.child import Child, Phase
from mqinfer.cloud_worker.process import ProcessSpec

__all__ = ["Rollout", "Step"]


class Step(Enum):
    """What a rollout needs next."""

    WAIT = "for processes to start, or to end"
    SWITCH = "the old processes can go"
    UNDO = "a new process failed"
    DONE = "nothing"


@dataclass(slots=True, eq=False)
class Rollout:
    """One load or unload of a model.

    Attributes:
        model: Whose processes.
        wanted: What is to run.
        new: Processes that were started for it.
        kept: Processes that stay.
        old: Processes that are to go.
        futures: Who waits for the end.
        switched: Whether the old processes were told to go.
    """

    model: str
    wanted: Sequence[ProcessSpec]
    new: list[Child] = field(default_factory=list)
    kept: list[Child] = field(default_factory=list)
    old: list[Child] = field(default_factory=list)
    futures: list[Future[None]] = field(default_factory=list)
    switched: bool = False

    @property
    def next_step(self) -> Step:
        """What is to be done now, by the phases of the processes."""
        if self.switched:
            return Step.DONE if all(child.is_over for child in self.old) else Step.WAIT
        awaited = [*self.new, *self.kept]
        if any(map(_has_failed, awaited)):
            return Step.UNDO
        return Step.SWITCH if all(child.phase is Phase.READY for child in awaited) else Step.WAIT

    @property
    def failure(self) -> str:
        """Why it has to be undone."""
        return "; ".join(f"{child.title}: {child.reason}" for child in [*self.new, *self.kept] if _has_failed(child))


def _has_failed(child: Child) -> bool:
    """A crash before it ever served is a failure too: who waits is not to wait for one restart after another."""
    return child.is_over or (child.phase is Phase.WAITING and bool(child.reason) and child.card is None)

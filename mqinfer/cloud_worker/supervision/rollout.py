"""The way from one set of processes of a model to another: the new ones serve before the old ones go."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import Enum

from mqinfer.cloud_worker.supervision.child import Child, Phase
from mqinfer.cloud_worker.supervision.planning import reconcile
from mqinfer.cloud_worker.supervision.process import Order, ProcessSpec

__all__ = ["Rollout", "Step", "begin"]


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

    def switch(self, kill_at: float) -> None:
        """Tell the old processes to go."""
        self.switched = True
        for child in self.old:
            child.drain(kill_at)

    def undo(self, kill_at: float, *, may_leave_new: bool) -> None:
        """Give it up: what served before serves on.

        Args:
            kill_at: When to kill a new process that does not stop.
            may_leave_new: Whether what came up may stay where nothing served before.
        """
        before = [*self.old, *self.kept]
        if before or not may_leave_new:
            for child in self.new:
                child.give_up(kill_at)
        for child in before:
            if child.phase is Phase.READY:
                child.order(Order.ANNOUNCE)  # the retained card may be that of a process that goes


def begin(model: str, specs: Sequence[ProcessSpec], name: str, children: list[Child]) -> Rollout:
    """Enter new processes among the children, and take out those of the model that don't run.

    Args:
        model: Whose processes.
        specs: What is to run.
        name: Of the server; its processes' names begin with it.
        children: All that the supervisor has; changed.
    """
    mine = [child for child in children if child.spec.model == model]
    running = {child.name: child for child in mine if child.phase in {Phase.STARTING, Phase.READY}}
    for child in mine:  # what failed, or waits for its next start
        if child.name not in running and child.phase is not Phase.DRAINING:
            children.remove(child)
    taken = [child.name for child in children if child.name not in running]
    changes = reconcile([child.spec for child in running.values()], specs, name, taken)
    new = [Child(spec) for spec in changes.start]
    children += new
    kept, old = [running[worker] for worker in changes.keep], [running[worker] for worker in changes.drain]
    return Rollout(model, specs, new, kept, old)


def _has_failed(child: Child) -> bool:
    """A crash before it ever served is a failure too: who waits is not to wait for one restart after another."""
    return child.is_over or (child.phase is Phase.WAITING and bool(child.reason) and child.card is None)

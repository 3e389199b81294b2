"""A rollout replaces the processes of a model: the new ones serve before the old ones drain."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import Enum

from mqinfer.cloud_worker.supervision.child import Child, Phase
from mqinfer.cloud_worker.supervision.planning import reconcile
from mqinfer.cloud_worker.supervision.process import Command, ProcessSpec


class RolloutStep(Enum):
    """Next step of a rollout."""

    WAIT = "wait for processes to start or to end"
    SWITCH = "drain the old processes"
    UNDO = "keep the old processes: a new one failed"
    DONE = "complete the futures"


@dataclass(slots=True, eq=False)
class Rollout:
    """One load or unload of a model.

    Attributes:
        model: Model name.
        wanted: Processes that run at its end.
        new: Processes started for it.
        kept: Processes that stay.
        old: Processes that it drains.
        leaving: Processes that an earlier rollout ends; this one ends after them.
        futures: Completed at its end.
        switched: Whether the old processes are draining.
    """

    model: str
    wanted: Sequence[ProcessSpec]
    new: list[Child] = field(default_factory=list)
    kept: list[Child] = field(default_factory=list)
    old: list[Child] = field(default_factory=list)
    leaving: list[Child] = field(default_factory=list)
    futures: list[Future[None]] = field(default_factory=list)
    switched: bool = False

    @property
    def next_step(self) -> RolloutStep:
        """Next step, from the phases of the processes."""
        awaited = [*self.new, *self.kept]
        if self.switched:
            is_over = all(child.is_over for child in [*self.old, *self.leaving])
            return (
                RolloutStep.DONE if is_over and not any(child.is_assigning for child in awaited) else RolloutStep.WAIT
            )
        if any(map(_has_failed, awaited)):
            return RolloutStep.UNDO
        return RolloutStep.SWITCH if all(child.phase is Phase.READY for child in awaited) else RolloutStep.WAIT

    @property
    def failure(self) -> str:
        """Why it is undone: the reasons of the failed processes."""
        return "; ".join(
            f"{child.spec.title}: {child.reason}" for child in [*self.new, *self.kept] if _has_failed(child)
        )

    def switch(self, kill_at: float) -> None:
        """Drain the old processes; the others publish the labels that were wanted last."""
        self.switched = True
        for spec in self.wanted:
            for child in (*self.new, *self.kept):
                if spec.found and child.spec.version == spec.version:
                    child.assign(spec.found.traffic)
        for child in self.old:
            child.drain(kill_at)

    def undo(self, kill_at: float, *, may_leave_new: bool) -> None:
        """End the new processes and keep the old ones serving.

        Args:
            kill_at: When to kill a new process that does not stop.
            may_leave_new: Whether new processes may stay if nothing served before.
        """
        before = [*self.old, *self.kept]
        if before or not may_leave_new:
            for child in self.new:
                child.abandon(kill_at)
        for child in before:
            if child.phase is Phase.READY:
                child.send(Command.ANNOUNCE)  # the retained card may be that of a new process


def begin(model: str, specs: Sequence[ProcessSpec], name: str, children: list[Child]) -> Rollout:
    """Add new processes to all children of the supervisor, in place, and remove those of the model that do not run.

    The other arguments are those of `Supervisor.roll_out`.
    """
    mine = [child for child in children if child.spec.model == model]
    running = {child.name: child for child in mine if child.phase in {Phase.STARTING, Phase.READY}}
    for child in mine:
        if child.phase not in {Phase.STARTING, Phase.READY, Phase.DRAINING}:  # failed, or waiting for a start
            children.remove(child)
    taken = [child.name for child in children if child.name not in running]
    changes = reconcile([child.spec for child in running.values()], specs, name, taken)
    new = [Child(spec) for spec in changes.start]
    children += new
    kept, old = map(running.__getitem__, changes.keep), map(running.__getitem__, changes.drain)
    leaving = [child for child in mine if child.phase is Phase.DRAINING]
    return Rollout(model, specs, new, list(kept), list(old), leaving)


def _has_failed(child: Child) -> bool:
    """Whether a process failed, or crashed before it served: callers do not wait for restarts.

    One that another model has ended, which shares it, starts again.
    """
    is_innocent = child.crashed != 0 and child.spec.share_with > 1
    has_ended = child.phase is Phase.WAITING and bool(child.reason) and not is_innocent
    return child.is_over or (has_ended and child.card is None)

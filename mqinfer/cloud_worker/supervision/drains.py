"""An operator's order to drain worker processes, or to have drained ones serve again."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from mqinfer.cloud_worker.supervision.child import Child, Phase
from mqinfer.cloud_worker.supervision.process import Command
from mqinfer.protocol.errors import Unanswered


@dataclass(slots=True, eq=False)
class DrainOrder:
    """One order.

    Attributes:
        children: Processes that serve or start, and are to drain or to serve again.
        on: Whether they drain.
        future: Completed when all have; receives the names of the processes.
    """

    children: Sequence[Child]
    on: bool
    future: Future[list[str]] = field(default_factory=Future)

    def begin(self) -> None:
        """Send the order to the processes that serve; one that starts receives it from `advance`."""
        for child in self.children:
            child.draining, child.drain_report = self.on, None
            if child.phase is Phase.READY:
                self._send(child)

    def started(self, child: Child) -> None:
        """Send the order to a process that has begun to serve."""
        if child in self.children and child.draining and self.on:
            self._send(child)

    @property
    def is_over(self) -> bool:
        """Whether every process has done it, has failed to, or has ended."""
        return not any(map(self._is_awaited, self.children))

    def finish(self) -> None:
        """Complete the future, with an error if a process has failed to do it."""
        problems = [f"{child.name}: {problem}" for child in self.children if (problem := self._problem(child))]
        if problems:
            self.future.set_exception(Unanswered("; ".join(problems)))
        else:
            self.future.set_result([child.name for child in self.children])

    def _send(self, child: Child) -> None:
        child.send(Command.DRAIN if self.on else Command.UNDRAIN)

    def _is_awaited(self, child: Child) -> bool:
        if child.phase is Phase.READY:
            return child.drain_report is None
        if child.phase is Phase.STARTING:
            return child.draining  # else it is a new process of one that crashed
        return child.phase is Phase.DRAINING

    def _problem(self, child: Child) -> str:
        if child.drain_report is not None:
            return child.drain_report.error
        if self.on and not child.draining and child.phase is not Phase.GONE:
            return "it crashed while it drained; its new process takes requests"
        return ""

"""A question to several processes at once that waits for none of them longer than agreed."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field

from mqinfer.cloud_worker.supervision.child import Child
from mqinfer.protocol.control import ModelStatistics

__all__ = ["Inquiry", "ServerStatistics"]


@dataclass(frozen=True, slots=True)
class ServerStatistics:
    """What the processes of a server have done.

    Attributes:
        models: By model and version, over all their processes.
        unanswered: Names of the processes that did not answer in time.
    """

    models: dict[tuple[str, int], ModelStatistics]
    unanswered: tuple[str, ...] = ()


@dataclass(slots=True, eq=False)
class Inquiry:
    """Statistics on their way.

    Attributes:
        deadline: Until when, by the supervisor's clock.
        waiting: Processes that have not answered.
        future: Gets the sum.
    """

    deadline: float
    waiting: list[Child]
    future: Future[ServerStatistics] = field(default_factory=Future)
    _models: dict[tuple[str, int], ModelStatistics] = field(default_factory=dict)

    def take(self, child: Child, said: ModelStatistics) -> None:
        """Take a process's answer."""
        if child not in self.waiting:
            return
        self.waiting.remove(child)
        key = child.spec.model, child.spec.version
        self._models[key] = self._models.get(key, ModelStatistics()) + said

    def is_over(self, now: float) -> bool:
        """Whether nothing more is to be waited for."""
        return now >= self.deadline or all(child.process is None for child in self.waiting)

    def conclude(self) -> None:
        """Hand over what there is."""
        self.future.set_result(ServerStatistics(self._models, tuple(child.name for child in self.waiting)))

"""Rules of the product taken away one by one: the simulation must notice each.

Each is a context manager that replaces one function or constant of the product.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest.mock import patch

from mqinfer.client import requester
from mqinfer.client.dispatch import blame, dispatcher
from mqinfer.client.dispatch.blame import Blame
from mqinfer.client.dispatch.dispatcher import Dispatcher
from mqinfer.client.dispatch.lane import Quarantine
from mqinfer.client.dispatch.pending import PendingRequest, PendingTable, RetryBudget
from mqinfer.cloud_worker.serving import incoming, service
from mqinfer.cloud_worker.serving.replies import ReplyMemory, Seen
from mqinfer.protocol.states import WorkerState, WorkerStatus
from mqinfer.protocol.types import InferResponse, Outcome

__all__ = ["RULES"]

Patch = AbstractContextManager[Any]
_UPDATE = Dispatcher.update
_SETTLE = Dispatcher.settle
_CONNECTION = Dispatcher.connection
_SPLIT = service._split


def _as_crash(self: Dispatcher, state: WorkerState | str, now: float) -> None:
    if not isinstance(state, str):
        status = WorkerStatus.CRASHED if state.status is WorkerStatus.LOST else state.status
        state = WorkerState(state.worker, status, state.incarnation, state.models, state.capacity)
    _UPDATE(self, state, now)


def _keep(self: Dispatcher, request_id: str, outcome: Outcome, *, is_reply: bool = True) -> PendingRequest | None:
    if not is_reply:
        return _SETTLE(self, request_id, outcome, is_reply=is_reply)
    entry = self.table.entries.get(request_id)
    if entry is not None:
        self._outcomes[outcome] += 1
    return entry


@contextmanager
def _settle_again() -> Iterator[None]:
    ended: dict[str, PendingRequest] = {}

    def replied(self: Dispatcher, response: InferResponse, *arguments: Any) -> bool:
        return bool(original(self, response, *arguments)) or response.id in ended

    def settle(self: Dispatcher, request_id: str, outcome: Outcome, *, is_reply: bool = True) -> PendingRequest | None:
        entry = _SETTLE(self, request_id, outcome, is_reply=is_reply)
        if entry is not None:
            ended[request_id] = entry
        return ended.get(request_id)

    original = Dispatcher.replied
    with patch.object(Dispatcher, "replied", replied), patch.object(Dispatcher, "settle", settle):
        yield


def _forget_cancel(
    self: Dispatcher, request_id: str, outcome: Outcome, *, is_reply: bool = True
) -> PendingRequest | None:
    return _SETTLE(self, request_id, outcome) if is_reply else self.table.entries.get(request_id)


def _ignore_loss(self: Dispatcher, is_up: bool, now: float) -> int:  # noqa: FBT001  as the link reports it
    if is_up:
        return _CONNECTION(self, is_up, now)
    self._was_lost = True
    return 0


def _count_no_loss(self: Blame, lane: object, recalled: object, now: float) -> None:
    """Count no loss."""


def _no_one_expires(self: PendingTable, now: float) -> list[PendingRequest]:
    deadlines = {entry.request.id: entry.deadline for entry in self.entries.values()}
    for entry in self.entries.values():
        entry.deadline = math.inf
    due = wake(self, now)
    for entry in self.entries.values():
        entry.deadline = deadlines[entry.request.id]
    return due


wake = PendingTable.wake


def _quarantine_for_good(self: Quarantine, now: float, silence: object) -> None:
    del now, silence
    self.until = math.inf


def _always_new(self: ReplyMemory, key: object) -> Seen:
    del self, key
    return Seen.NEW


def _mix_up(outputs: dict[str, Any], rows: Sequence[int]) -> list[dict[str, Any]]:
    return _SPLIT(outputs, rows)[::-1]


def _verify_nothing(payload: object, properties: object) -> None:
    """Accept any payload."""


RULES: dict[str, Callable[[], Patch]] = {
    "a reply removes its request": lambda: patch.object(Dispatcher, "settle", _keep),
    "a second reply is dropped": _settle_again,
    "a cancelled request is removed": lambda: patch.object(Dispatcher, "settle", _forget_cancel),
    "a request expires at its deadline": lambda: patch.object(PendingTable, "wake", _no_one_expires),
    "no more is in flight than the window": lambda: patch.object(
        dispatcher, "PendingTable", lambda _: PendingTable(1 << 30)
    ),
    "retries have a budget": lambda: patch.object(RetryBudget, "spend", lambda _: True),
    "a lost worker has not crashed": lambda: patch.object(Dispatcher, "update", _as_crash),
    "a worker that is lost may have crashed": lambda: patch.object(Blame, "lost", _count_no_loss),
    "two crashes are enough": lambda: patch.object(blame, "_MOST_CRASHES", 1000),
    "a lost connection recalls what is in flight": lambda: patch.object(Dispatcher, "connection", _ignore_loss),
    "a quarantine ends": lambda: patch.object(Quarantine, "begin", _quarantine_for_good),
    "a worker runs a request once": lambda: patch.object(ReplyMemory, "begin", _always_new),
    "a client verifies checksums": lambda: patch.object(requester, "verify", _verify_nothing),
    "a worker verifies checksums": lambda: patch.object(incoming, "verify", _verify_nothing),
    "each gets its own rows of a batch": lambda: patch.object(service, "_split", _mix_up),
}
"""By the rule that is removed: makes the context in which it is."""

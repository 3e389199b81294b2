from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

import pytest

from mqinfer.client.result import InferResult
from mqinfer.client.window import DelayWindow, StreamWindow
from mqinfer.edge_agent.frames.retries import Again, Retries
from mqinfer.edge_agent.frames.table import FrameTable, PendingFrame, Reach
from tests.simulation.frames import simulate_frames

_RUNS, _ENOUGH = 600, 300
_ON_CONNECTION, _WHY_NOT, _ENDED = Reach.on_connection, Reach.why_not, Reach.ended


def _put_behind(self: StreamWindow[PendingFrame], frame: PendingFrame) -> None:
    self._queue.append(frame)


def _forget(self: Reach, *, is_connected: bool) -> None:
    _ON_CONNECTION(self, is_connected=is_connected)
    if is_connected:
        self.silence = None


def _everybody_tries(self: Reach, number: int) -> Any:
    self._probe = None
    return _WHY_NOT(self, number)


def _nobody_queues(self: StreamWindow[PendingFrame], frame: PendingFrame) -> PendingFrame:
    """Let the frame that comes give way, in place of the one that waits."""
    del self
    return frame


def _never_ended(self: Reach, number: int, result: InferResult) -> Any:
    probe = self._probe
    found = _ENDED(self, number, result)
    self._probe = probe
    return found


def _held(self: FrameTable, frame: PendingFrame, number: int) -> None:
    del self
    frame.spooled_as = number


def _silent_for_ever(self: Reach, number: int, result: InferResult) -> Any:
    silence = self.silence
    found = _ENDED(self, number, result)
    self.silence = silence or self.silence
    return found


RULES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "the newest frame takes the place of the one that waits": lambda: patch.object(StreamWindow, "put", _put_behind),
    "a frame waits in its queue": lambda: patch.object(StreamWindow, "put", _nobody_queues),
    "no more is in flight than the window": lambda: patch.object(
        DelayWindow, "limit", new=property(lambda _: 1 << 30, lambda *_: None), create=True
    ),
    "a frame that ended leaves the window": lambda: patch.object(FrameTable, "leave", lambda *_: None),
    "a frame that ended leaves the table": lambda: patch.object(FrameTable, "settle", lambda *_: None),
    "a frame whose worker lost what it needs is sent again": lambda: patch.object(Retries, "again", lambda *_: None),
    "it is sent again once": lambda: patch.object(Retries, "again", lambda *_: Again.WHOLE),
    "a silence outlasts the reconnect": lambda: patch.object(Reach, "on_connection", _forget),
    "one frame at a time tries a silent model": lambda: patch.object(Reach, "why_not", _everybody_tries),
    "another one tries after it": lambda: patch.object(Reach, "ended", _never_ended),
    "a reply ends the silence": lambda: patch.object(Reach, "ended", _silent_for_ever),
    "what waits is stored when the connection is lost": lambda: patch.object(FrameTable, "withdraw", lambda _: []),
    "a frame on the disk is not in memory": lambda: patch.object(FrameTable, "keep", _held),
    "what was sent is known when the connection is lost": lambda: patch.object(FrameTable, "sent", lambda _: []),
}
"""By the rule that is removed: makes the context in which it is."""


def test_no_promise_is_broken() -> None:
    """Whatever is lost, late or cut: each frame ends once, in the window's bounds, and at the edge in a silence."""
    broken = [found for seed in range(_RUNS) for found in simulate_frames(seed).violations]
    assert not broken


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_that_is_removed_is_missed(rule: str) -> None:
    """Without the rule some run breaks a promise."""
    with RULES[rule]():
        assert any(simulate_frames(seed).violations for seed in range(_ENOUGH))


def test_a_seed_replays() -> None:
    """The same seed is the same run."""
    assert [simulate_frames(seed).ended for seed in range(5)] == [simulate_frames(seed).ended for seed in range(5)]

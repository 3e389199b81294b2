"""The frames of a stream: each one that is put in has exactly one outcome, and they come out in the order of putting.

A frame enters the stream's window, or is queued: with `latest` in place of the one queued before, which ends as
`superseded`, or of one that was sent and that no worker works on; with `all` behind the others. A result that nobody
has read yet keeps its place in the window, so that a slow reader gets fresh results (`latest`), or slows the source
down (`all`), and nothing piles up.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from msgspec.structs import replace

from mqinfer.client.callbacks import Notifier
from mqinfer.client.closing import Members
from mqinfer.client.options import check_timeout
from mqinfer.client.request import InferOptions, Input, make_request
from mqinfer.client.requester import Requester
from mqinfer.client.result import InferResult
from mqinfer.client.window import NEWER_FRAME, Policy, StreamWindow
from mqinfer.protocol.errors import Cancelled, ConfigError, MqinferError, Rejected, Superseded
from mqinfer.protocol.types import Capture, ErrorInfo, InferRequest, Outcome

_MOST_UNREAD = 1024
"""Outcomes of a `latest` stream that may wait for their reader; most of them are superseded frames, which are small."""


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """How the frames of one stream are sent.

    Attributes:
        model: Name of the model.
        policy: What happens to a frame that finds the window full: `latest` or `all`.
        window: Upper bound of the frames in flight.
        timeout: Of each frame from when it is sent, in seconds.
        options: Of each request.

    Raises:
        ConfigError: The policy is unknown, or a number is out of range.
        TypeError: There is no such option.
    """

    model: str
    policy: str
    window: int
    timeout: float
    options: InferOptions

    def __post_init__(self) -> None:
        if self.policy not in list(Policy):
            raise ConfigError(f"policy={self.policy!r}: expected {' or '.join(repr(str(each)) for each in Policy)}")
        if not self.window >= 1:  # also catches NaN
            raise ConfigError(f"window={self.window}: expected 1 or more")
        check_timeout(self.timeout)
        make_request(self.model, {}, self.options)  # so that a wrong option is an error here and not with each frame

    def request(self, inputs: Mapping[str, Input], capture: Capture | None) -> InferRequest:
        """Return the request of a frame.

        Args:
            inputs: Arrays by input name.
            capture: Where the frame came from; None for that of the options.
        """
        return make_request(self.model, inputs, {**self.options, "capture": capture} if capture else self.options)


@dataclass(slots=True, eq=False)
class _Frame:
    """A frame that was put in and not yet read.

    Attributes:
        request: Without an id; without inputs once there is an outcome, so that their memory is freed.
        request_id: While it is in flight.
        result: Its outcome, once there is one.
        is_in_window: Whether its result keeps a place in the window until it is read.
    """

    request: InferRequest
    request_id: str = ""
    result: InferResult | None = None
    is_in_window: bool = False


class Feed(Notifier):
    """The frames of one stream until their outcomes are read. Thread-safe.

    Who waits is woken when there is room, an outcome, or the end.

    Attributes:
        settings: How the frames are sent.
        maker: The process that may use it.
    """

    def __init__(self, requester: Requester, settings: StreamSettings) -> None:
        """Start without frames.

        Args:
            requester: Connected.
            settings: How the frames are sent.
        """
        super().__init__()
        self.settings = settings
        self.maker = requester.maker
        self._requester = requester
        policy = Policy(settings.policy)
        self._window: StreamWindow[_Frame] = StreamWindow(policy, settings.window, settings.options.get("priority", 0))
        self._frames: deque[_Frame] = deque()  # in the order of putting; bounded by `has_room`
        self._most = _MOST_UNREAD if policy is Policy.LATEST else 2 * settings.window
        self._number = 0  # of the next frame
        self._outcomes: Counter[Outcome] = Counter()
        self._closed = False
        self._cancelled = False

    @property
    def has_room(self) -> bool:
        """Whether another frame is accepted now; a closed stream has room, since `put` raises at once."""
        return self._closed or len(self._frames) < self._most

    @property
    def is_ready(self) -> bool:
        """Whether the next outcome, or the end, can be read now."""
        return self._frames[0].result is not None if self._frames else self._closed

    def outcomes(self) -> dict[Outcome, int]:
        """Return how many frames ended with each outcome."""
        with self.changed:
            return {outcome: self._outcomes[outcome] for outcome in Outcome}

    def put(self, request: InferRequest) -> None:
        """Accept a frame.

        Raises:
            Cancelled: The stream is closed.
            Rejected: There is no room.
            LinkError: There will be no connection any more.
        """
        with self.changed:
            if self._closed:
                raise self._requester.failure or Cancelled("the stream is closed; open another one")
            if not self.has_room:
                raise Rejected(f"{self._most} outcomes are unread; iterate over the stream in another thread or task")
            if request.capture.sequence is None:
                request = replace(request, capture=replace(request.capture, sequence=self._number))
            self._number += 1
            frame = _Frame(request)
            self._frames.append(frame)
            if lost := self._window.put(frame):
                self._end(lost, self._failed(lost, Superseded(NEWER_FRAME)))
            entered = self._window.take()
            replaced = [each.request_id for each in self._unanswered()] if self._window.wants_room else []
        if lost:
            self.notify()
        self._send(entered)
        if replaced:
            self._requester.supersede(replaced)

    def read(self) -> InferResult | None:
        """Return the next outcome; None at the end. Call it when `is_ready`.

        Raises:
            LinkError: The connection has ended for good, and everything is read.
        """
        with self.changed:
            if not self._frames:
                if self._requester.failure:
                    raise self._requester.failure
                return None
            frame = self._frames.popleft()
            if frame.is_in_window:
                self._window.leave()
            entered = self._window.take()
        self.notify()
        self._send(entered)
        return frame.result

    def end(self, *, cancel: bool = False) -> None:
        """Accept no more frames.

        Args:
            cancel: Whether frames without an outcome end as `cancelled`; otherwise they keep their time.
        """
        with self.changed:
            self._closed = True
            self._cancelled |= cancel
            pending = [frame.request_id for frame in self._unanswered()]
        self.notify()
        if cancel:
            for request_id in pending:
                self._requester.cancel(request_id)

    def _unanswered(self) -> Iterator[_Frame]:
        return (frame for frame in self._frames if frame.request_id and not frame.result)

    def _send(self, frames: list[_Frame]) -> None:
        while frames:
            frame = frames.pop(0)
            try:
                if self._cancelled:
                    raise Cancelled("the stream was closed before the frame was sent")
                frame.request_id = self._requester.submit(
                    frame.request, self.settings.timeout, partial(self._settle, frame), waits=False
                )
            except MqinferError as error:
                frames += self._conclude(frame, self._failed(frame, error))

    def _settle(self, frame: _Frame, result: InferResult) -> None:
        self._send(self._conclude(frame, result))

    def _conclude(self, frame: _Frame, result: InferResult) -> list[_Frame]:
        """Set a frame's outcome, and return the frames that enter the window in its place."""
        with self.changed:
            self._window.finish(result, time.monotonic())
            if result.outcome is Outcome.OK:
                frame.is_in_window = True
                self._window.enter()
            self._end(frame, result)
            entered = self._window.take()
        self.notify()
        return entered

    def _end(self, frame: _Frame, result: InferResult) -> None:
        frame.request, frame.result = replace(frame.request, inputs=()), result
        self._outcomes[result.outcome] += 1

    def _failed(self, frame: _Frame, why: MqinferError) -> InferResult:
        error = ErrorInfo(why.code, str(why))
        return InferResult("", why.outcome, self.settings.model, error=error, capture=frame.request.capture)


class Feeds(Members[Feed]):
    """The streams of one client, which end with it."""

    def __init__(self, requester: Requester) -> None:
        """Start with none.

        Args:
            requester: Of the client.
        """
        super().__init__(Feed.end)
        self._requester = requester
        requester.watch(self._on_change)

    def open(self, model: str, policy: str, window: int, timeout: float | None, options: InferOptions) -> Feed:
        """Return a new one.

        Args:
            model: Name of the model.
            policy: `latest` or `all`.
            window: Upper bound of the frames in flight.
            timeout: Of each frame, in seconds; None for that of the client.
            options: Of each request.

        Raises:
            ConfigError: The policy is unknown, or a number is out of range.
            TypeError: There is no such option.
            Cancelled: The client is closed.
            LinkError: There will be no connection any more.
        """
        self._requester.maker.check()  # before the lock, which another thread may have held at the fork
        seconds = self._requester.options.timeout if timeout is None else timeout
        feed = Feed(self._requester, StreamSettings(model, policy, window, seconds, options))
        return self.add(feed, self._requester.failure)

    def _on_change(self) -> None:
        if self._requester.failure:
            self.end()

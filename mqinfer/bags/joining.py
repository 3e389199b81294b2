"""Join frames that were taken at the same time: those of several topics, or each with the one before it.

Two frames go together if each is the other's nearest by capture stamp and they are no further apart than the tolerance:
with 0 the rule of ROS's `message_filters.TimeSynchronizer`, otherwise the purpose of its `ApproximateTimeSynchronizer`.
The result depends on the stamps alone, not on the order in which topics take turns. Every frame that is left out is
counted by topic and reason.

Samples, such as those of an IMU, are no frames of their own: each frame of the main topic gets the last ones until its
stamp, once a sample of that stamp or a later one shows that no more come.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from operator import itemgetter

from mqinfer.bags.frame import Frame, FrameSource, StreamInfo
from mqinfer.bags.points import is_sample
from mqinfer.protocol.errors import ConfigError, SourceError

PREVIOUS = "previous"
"""In place of a topic: the frame before, of the same stream."""
MOST_WAITING = 32
MOST_WAITING_BYTES = 512 << 20
"""Frames of one topic that wait for those of the others, and bytes of their pictures; the oldest are left out."""
MOST_SAMPLES = 4096
"""Samples of one topic that are kept."""
NO_PARTNER = "no frame within the tolerance"
INCOMPLETE = "not every other topic has a frame within the tolerance"
STOPPED = "another topic stopped"
FIRST = "no frame before it"

Miss = tuple[str, str]
"""A topic, and why a frame of it was left out."""


@dataclass(frozen=True, slots=True)
class Join:
    """Where the pictures of one request come from.

    Attributes:
        topics: The main picture's first, others of pictures, points or samples; or empty, where each frame goes with
            the one before it.
        inputs: The model's inputs in the same order, of the frame itself and of the one before it; empty for the
            order of the model's card.
        tolerance: How far apart frames may be that go together, in seconds.
    """

    topics: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    tolerance: float = 0.0

    @classmethod
    def parse(cls, options: Sequence[str], tolerance: float = 0.0) -> Join:
        """Read `/left,/right`, `left=/camera/left` for each input, `previous`, or `before=previous`.

        Raises:
            ConfigError: It is none of these, or the tolerance is no number of seconds.
        """
        if not 0 <= tolerance < math.inf:
            raise ConfigError(f"--tolerance {tolerance}: expected seconds, 0 or more, such as 0.02")
        given = [part.rpartition("=") for option in options for part in option.split(",")]
        inputs, topics = tuple(part[0] for part in given), tuple(part[2] for part in given)
        wrong = f"--join {' --join '.join(options)}: "
        named = inputs if any(inputs) else ()
        _check_names(wrong, topics, named)
        if PREVIOUS in topics:
            _check_previous(wrong, topics, tolerance)
            return cls((), ("", *named) if named else ())
        if len(topics) < 2:
            raise ConfigError(f"{wrong}expected two topics or more, such as --join /left,/right")
        return cls(topics, named, tolerance)

    @property
    def frames(self) -> int:
        """How many frames one request has."""
        return len(self.topics) or 2


def _check_names(wrong: str, topics: Sequence[str], inputs: Sequence[str]) -> None:
    if not all(topics) or len(set(topics)) != len(topics):
        raise ConfigError(f"{wrong}expected different topics, such as --join /left,/right")
    if len(set(inputs)) != len(inputs) or (not all(inputs) and PREVIOUS not in topics):
        raise ConfigError(f"{wrong}name an input for each topic, such as --join left=/camera/left, or for none")


def _check_previous(wrong: str, topics: Sequence[str], tolerance: float) -> None:
    if len(topics) > 1:
        raise ConfigError(f"{wrong}`{PREVIOUS}` is the frame before, and goes without topics; use --topic")
    if tolerance:
        raise ConfigError(f"{wrong}`{PREVIOUS}` needs no --tolerance; leave it out")


@dataclass(slots=True)
class _Topic:
    """Frames of one topic that wait, and the stamp of the one that left last; or its last samples."""

    frames: deque[Frame] = field(default_factory=deque)
    before: int | None = None

    @property
    def has_samples(self) -> bool:
        return bool(self.frames) and is_sample(self.frames[0].points)

    @property
    def is_too_large(self) -> bool:
        if self.has_samples:
            return len(self.frames) > MOST_SAMPLES
        size = sum(memoryview(each.image.data).nbytes for each in self.frames)
        return len(self.frames) > (MOST_WAITING if size <= MOST_WAITING_BYTES else 1)

    def pop(self) -> Frame:
        frame = self.frames.popleft()
        self.before = frame.capture_time_ns
        return frame


class TimeJoin:
    """Joins the frames of two topics or more. Pure; not thread-safe.

    Each topic's frames come in the order of their stamps. One that steps back starts anew, as a recorder's clock does
    that was set.
    """

    def __init__(self, topics: Sequence[str], tolerance: float = 0.0) -> None:
        """Start with no frame.

        Args:
            topics: The main picture's first; each joined frame is one of it, with those of the others.
            tolerance: How far apart frames may be, in seconds.
        """
        self.missed: Counter[Miss] = Counter()
        """Frames that were left out."""
        self._main, *self._others = topics
        self._tolerance = round(tolerance * 1e9)
        self._topics = {topic: _Topic() for topic in topics}

    def add(self, frame: Frame) -> list[Frame]:
        """Add a frame, and return those that are complete now, in their order."""
        topic = self._topics[frame.source]
        newest = topic.frames[-1].capture_time_ns if topic.frames else topic.before
        found = []
        if newest is not None and frame.capture_time_ns <= newest - is_sample(frame.points):  # these may be equal
            found = self.flush()
            self._topics = {name: _Topic() for name in self._topics}
            topic = self._topics[frame.source]
        topic.frames.append(frame)
        found += self._take(is_ended=False)
        while topic.is_too_large:
            self._miss(topic.pop(), STOPPED)
            found += self._take(is_ended=False)
        return found

    def flush(self) -> list[Frame]:
        """Return what is complete once no more frames come; the others are left out."""
        found = self._take(is_ended=True)
        for topic in self._topics.values():
            while topic.frames:
                self._miss(topic.pop(), NO_PARTNER)
        return found

    def _take(self, *, is_ended: bool) -> list[Frame]:
        found = []
        main = self._topics[self._main]
        while main.frames:
            sought = (self._partner(self._topics[name], main, is_ended=is_ended) for name in self._others)
            partners = list(takewhile(itemgetter(1), sought))  # samples are many, and wait for others at each message
            if len(partners) < len(self._others):
                break
            found += self._joined(main.pop(), [partner for partner, _ in partners])
        return found

    def _joined(self, frame: Frame, partners: Sequence[Frame | None]) -> list[Frame]:
        """Return a main frame with its partners, one a topic; nothing where one lacks, and count what is left out."""
        for name, partner in zip(self._others, partners, strict=True):
            self._forget(name, partner, frame)
        joined = tuple(self._with_earlier(partner) for partner in partners if partner is not None)
        if len(joined) == len(self._others):
            return [replace(frame, joined=joined)]
        self._miss(frame, NO_PARTNER if len(self._others) == 1 or not joined else INCOMPLETE)
        for partner in joined:
            self._miss(partner, INCOMPLETE)
        return []

    def _partner(self, topic: _Topic, main: _Topic, *, is_ended: bool) -> tuple[Frame | None, bool]:
        """Return which frame goes with the oldest of the main topic, and whether that is known by now."""
        if topic.has_samples:
            last, is_known = _last_sample(topic.frames, main.frames[0].capture_time_ns)
            return last, is_known or is_ended
        return self._nearest(topic, main, is_ended=is_ended)

    def _nearest(self, topic: _Topic, main: _Topic, *, is_ended: bool) -> tuple[Frame | None, bool]:
        stamp = main.frames[0].capture_time_ns
        before, after = _around(topic.frames, stamp)
        is_known = is_ended or after is not None or _stamp_of(before) == stamp
        nearest = min(filter(None, (before, after)), key=lambda each: _apart(each, stamp), default=None)
        if nearest is None or _apart(nearest, stamp) > self._tolerance:
            return None, is_known
        if not is_known:
            return None, False
        if nearest is after and len(main.frames) == 1:  # the next main frame may be nearer to it
            return nearest, is_ended
        rival = main.frames[1].capture_time_ns if nearest is after else main.before
        return (nearest if _is_nearest(nearest, stamp, rival, is_later=nearest is after) else None), True

    def _forget(self, name: str, partner: Frame | None, main: Frame) -> None:
        """Remove a partner with all before it, or, without one, what is too early for any later main frame."""
        topic = self._topics[name]
        if topic.has_samples:
            return
        earliest = main.capture_time_ns - self._tolerance
        while topic.frames:
            first = topic.frames[0]
            if first is partner:
                topic.pop()
                return
            if partner is None and first.capture_time_ns >= earliest:
                return
            self._miss(topic.pop(), NO_PARTNER)

    def _with_earlier(self, frame: Frame) -> Frame:
        """Return a sample with all those before it, and other frames as they are."""
        if not is_sample(frame.points):
            return frame
        until = (each for each in self._topics[frame.source].frames if each.capture_time_ns <= frame.capture_time_ns)
        return replace(frame, points=tuple(each.points[0] for each in until))

    def _miss(self, frame: Frame, why: str) -> None:
        if not is_sample(frame.points):
            self.missed[frame.source, why] += 1


def _around(frames: Iterable[Frame], stamp: int) -> tuple[Frame | None, Frame | None]:
    """Return the last frame until a stamp, and the first one after it."""
    before = None
    for frame in frames:
        if frame.capture_time_ns > stamp:
            return before, frame
        before = frame
    return before, None


def _last_sample(frames: Sequence[Frame], stamp: int) -> tuple[Frame | None, bool]:
    """Return the last sample until a stamp, None where there is none, and whether it is known that no more come."""
    if frames[-1].capture_time_ns < stamp:
        return None, False
    return next((each for each in reversed(frames) if each.capture_time_ns <= stamp), None), True


def _stamp_of(frame: Frame | None) -> int | None:
    return frame.capture_time_ns if frame else None


def _is_nearest(frame: Frame, stamp: int, rival: int | None, *, is_later: bool) -> bool:
    """Return whether a stamp is nearer to a frame than another one; of two as near the earlier one is."""
    if rival is None:
        return True
    own, other = _apart(frame, stamp), _apart(frame, rival)
    return own <= other if is_later else own < other


def _apart(frame: Frame, stamp: int) -> int:
    return abs(frame.capture_time_ns - stamp)


class PreviousJoin:
    """Joins each frame with the one before it, of the same stream. Pure; not thread-safe."""

    def __init__(self) -> None:
        self.missed: Counter[Miss] = Counter()
        """The first frame of each stream."""
        self._before: dict[str, Frame] = {}

    def add(self, frame: Frame) -> list[Frame]:
        """Add a frame, and return it with the one before it."""
        before = self._before.get(frame.source)
        self._before[frame.source] = frame
        if before is None:
            self.missed[frame.source, FIRST] += 1
            return []
        return [replace(frame, joined=(before,))]

    def flush(self) -> list[Frame]:
        """Return nothing: no frame waits."""
        return []


class JoinedSource:
    """The joined frames of a source.

    Attributes:
        missed: Frames that were left out so far.
    """

    def __init__(self, source: FrameSource, join: Join) -> None:
        """Wrap a source.

        Args:
            source: Where the frames come from.
            join: Which go together.
        """
        self.missed: Counter[Miss] = Counter()
        self._source = source
        self._join = join
        self._untold: Counter[Miss] = Counter()

    def streams(self) -> tuple[StreamInfo, ...]:
        """List the main topic, or all of them where each frame goes with the one before; their counts are unknown."""
        topics = self._join.topics[:1]
        return tuple(
            replace(each, count=None) for each in self._source.streams() if not topics or each.source in topics
        )

    def frames(self) -> Iterator[Frame]:
        """Yield joined frames; where the source breaks off, first those that are complete.

        Raises:
            SourceError: The source broke off.
        """
        topics = self._join.topics
        joining = TimeJoin(topics, self._join.tolerance) if topics else PreviousJoin()
        broke_off = None
        try:
            for frame in self._source.frames():
                joining.missed.update(frame.missed)  # what the source itself lost
                yield from self._with_missed(joining.add(frame), joining.missed)
        except SourceError as error:
            broke_off = error
        yield from self._with_missed(joining.flush(), joining.missed)
        if broke_off is not None:
            raise broke_off

    def _with_missed(self, found: list[Frame], missed: Counter[Miss]) -> Iterator[Frame]:
        """Yield frames, the first with what was left out since the one before."""
        self.missed.update(missed)
        self._untold.update(missed)
        missed.clear()
        for frame in found:
            yield replace(frame, missed=dict(self._untold)) if self._untold else frame
            self._untold = Counter()

    def close(self) -> None:
        """Close the source."""
        self._source.close()

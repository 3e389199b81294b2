"""Open a source, whose kind follows from its name, or several as one."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path

from mqinfer.bags.extent.remote import is_remote, path_of
from mqinfer.bags.folder_source import PICTURE_SUFFIXES, FolderSource
from mqinfer.bags.frame import WHOLE, Frame, FrameSource, StreamInfo, TimeRange
from mqinfer.bags.live.camera import CameraSource
from mqinfer.bags.live.rclpy_source import RclpySource
from mqinfer.bags.live.returning import ReturningSource
from mqinfer.bags.ros2.source import Ros2Source
from mqinfer.bags.rosbag import Rosbag, is_bag
from mqinfer.bags.rosbag_source import RosbagSource
from mqinfer.bags.several import LiveSources, MergedSources, NamedSource
from mqinfer.bags.videos.source import VIDEO_SUFFIXES, VideoSource
from mqinfer.logs import without_logins
from mqinfer.protocol.errors import ConfigError, SourceError

_LIVE = re.compile(r"(camera:[0-9]{1,9}|(ros2|rclpy):.+|(rtsps?|https?|rtmp|udp|tcp)://.+)")
_NAMED = re.compile(r"([A-Za-z0-9][A-Za-z0-9_.-]*)=(.+)")


def is_live(spec: str) -> bool:
    """Return whether a source is a camera, a network stream or a topic of ROS 2, and no file."""
    source = _name_and_source(spec)[1]
    return _LIVE.fullmatch(source) is not None and not is_remote(source)


def open_source(
    spec: str,
    *,
    topics: Sequence[str] = (),
    start: float = 0.0,
    duration: float | None = None,
    depth: bool = True,
) -> FrameSource:
    """Open one source, all of it or a part.

    Args:
        spec: As for `open_sources`.
        topics: As for `open_sources`.
        start: Where to start, in seconds after the first frame.
        duration: How much to read, in seconds; None for all.
        depth: As for `open_sources`.

    Raises:
        SourceError, ConfigError, MissingExtra: As for `open_sources`.
    """
    return open_sources([spec], topics, TimeRange(start, duration), depth=depth)


def open_sources(  # noqa: PLR0913 - what may be said of sources
    specs: Sequence[str],
    topics: Sequence[str] = (),
    span: TimeRange = WHOLE,
    *,
    depth: bool = True,
    points: bool = False,
    is_stopped: Callable[[], bool] = lambda: False,
    waits: bool = False,
) -> FrameSource:
    """Open one or several sources, as one.

    Args:
        specs: Bags, videos, folders of pictures and pictures, by paths, MCAP files by URLs; or live sources:
            `camera:0`, URLs of cameras, `ros2:TOPIC`, `rclpy:TOPIC`. With `NAME=` before it a source's stream has that
            name, or, where there are several, names below it. Bags may be the files of one recording; see `recordings`.
        topics: Image topics of bags; empty for all.
        span: What to read of each recording.
        depth: Whether a bag's depth pictures are read where no topics are named.
        points: Whether topics of bags may be of points, too.
        is_stopped: Asked by live sources before each frame, and while they are away; True ends the frames.
        waits: Whether live sources may be away at the start, too.

    Raises:
        SourceError: One does not exist, is not readable, or has no such images; the message lists what it has.
        ConfigError: A negative start, a duration that is not positive, recordings and live sources together, or two
            streams of the same name.
        MissingExtra: rosbags, OpenCV, cyclonedds or rclpy is not installed.
    """
    if not all(specs):  # which would be the folder that the command runs in
        raise ConfigError("a source without a name; expected a recording or a camera, or . for this folder")
    live = [spec for spec in specs if is_live(spec)]
    if live:
        _refuse_topics(live[0], topics)
    if not live:
        opened = _open_recordings(specs, partial(_recording, topics=topics, span=span, depth=depth, points=points))
        return _SomeFrames(opened, specs, span, lambda: False)
    if len(live) < len(specs):
        named = without_logins(", ".join(specs))
        raise ConfigError(f"{named}: live sources and recordings have different clocks; replay them apart")
    with ExitStack() as rollback:
        found = []
        for spec in specs:
            found.append(_live(spec, span, is_stopped, waits=waits))
            rollback.callback(found[-1].close)
        source = found[0] if len(found) == 1 else LiveSources(found)
        rollback.pop_all()
    return _SomeFrames(source, specs, span, is_stopped)


class _SomeFrames:
    """A source of which at least one frame has to come, of whatever kind it is: without one its end is an error.

    Args:
        source: The source.
        specs: What it was opened by.
        span: What is read of it.
        is_stopped: Whether its frames were ended from outside.
    """

    def __init__(
        self, source: FrameSource, specs: Sequence[str], span: TimeRange, is_stopped: Callable[[], bool]
    ) -> None:
        self._source, self._span, self._is_stopped = source, span, is_stopped
        self._name = ", ".join(map(without_logins, specs))

    def streams(self) -> tuple[StreamInfo, ...]:
        """List its streams."""
        return self._source.streams()

    def frames(self) -> Iterator[Frame]:
        """Return its frames.

        Raises:
            ConfigError: There is none from the start on that was asked for.
            SourceError: There is none, or the source broke off.
        """
        return chain.from_iterable(self._first_and_others())

    def _first_and_others(self) -> Iterator[Iterable[Frame]]:
        frames = self._source.frames()
        if (first := next(frames, None)) is not None:
            yield (first,)
            yield frames
        elif self._is_stopped():
            return
        elif self._span.start:
            raise ConfigError(
                f"{self._name}: there is no frame from {self._span.start:g} s on; choose an earlier start"
            )
        else:
            raise SourceError(f"{self._name}: no frame came of it; look what it holds: mqinfer bag info SOURCE")

    def close(self) -> None:
        """Close it."""
        self._source.close()


@dataclass(frozen=True, slots=True)
class Extent:
    """What tells whether a bag is of the same recording as another one.

    Attributes:
        kind: Its format in words.
        topics: All its topics.
        times: Log times of its first and its last message, in nanoseconds.
    """

    kind: str
    topics: frozenset[str]
    times: tuple[int, int]

    def is_of(self, other: Extent) -> bool:
        """Return whether both are of one kind and have a topic in common."""
        return self.kind == other.kind and not self.topics.isdisjoint(other.topics)

    def overlaps(self, other: Extent) -> bool:
        """Return whether their times overlap by more than an instant."""
        return self.times[0] < other.times[1] and other.times[0] < self.times[1]


@dataclass(frozen=True, slots=True)
class Recording:
    """A recording among sources.

    Attributes:
        name: That was given to it; empty for none.
        files: Paths: a bag may have several.
        extents: Of each of them, where that is asked for.
    """

    name: str
    files: list[str]
    extents: list[Extent] = field(default_factory=list)

    def goes_on(self, name: str, extent: Extent) -> bool:
        """Return whether a bag of this name is another file of it."""
        is_own = name == self.name and any(map(extent.is_of, self.extents))
        return is_own and not any(map(extent.overlaps, self.extents))


def recordings(specs: Sequence[str]) -> list[Recording]:
    """Return the recordings that sources are.

    Bags of one kind are files of one recording if they have a topic in common, their times do not overlap,
    and no other names were given to them.

    Raises:
        SourceError: One does not exist, or is a bag that can't be read.
    """
    found: list[Recording] = []
    pairs = list(map(_name_and_source, specs))
    extents = _extents(pairs) if len(pairs) > 1 else {}
    for name, file in pairs:
        extent = extents.get((name, file))
        own = next((each for each in found if extent and each.goes_on(name, extent)), None)
        if own is None:
            own = Recording(name, [])
            found.append(own)
        own.files.append(file)
        own.extents.extend([extent] if extent else [])
    return found


def _extents(pairs: Sequence[tuple[str, str]]) -> dict[tuple[str, str], Extent]:
    """Look into the bags beside which there is another one of that name."""
    bags = dict.fromkeys(pair for pair in pairs if not is_live(pair[1]) and is_bag(path_of(pair[1])))
    names = Counter(name for name, _ in bags)
    return {pair: _extent(path_of(pair[1])) for pair in bags if names[pair[0]] > 1}


def _extent(path: Path) -> Extent:
    with closing(Rosbag(path)) as bag:
        return Extent(bag.kind, frozenset(each.topic for each in bag.connections), bag.times() or (0, 0))


def _open_recordings(specs: Sequence[str], open_one: Callable[[Sequence[str]], FrameSource]) -> FrameSource:
    with ExitStack() as rollback:
        opened: list[FrameSource] = []
        for recording in recordings(specs):
            name, source = recording.name, open_one(recording.files)
            rollback.callback(source.close)
            opened.append(NamedSource(name, source) if name else source)
        together = opened[0] if len(opened) == 1 else MergedSources(opened)
        rollback.pop_all()
    return together


def _recording(
    files: Sequence[str], topics: Sequence[str], span: TimeRange, *, depth: bool, points: bool
) -> FrameSource:
    path, spec = path_of(files[0]), files[0]
    if is_bag(path):
        return RosbagSource(*map(path_of, files), topics=topics, span=span, depth=depth, points=points)
    _refuse_topics(spec, topics)
    if path.is_dir() or path.suffix.lower() in PICTURE_SUFFIXES:
        return FolderSource(path, span=span)
    if path.suffix.lower() in VIDEO_SUFFIXES:
        return VideoSource(path, span=span)
    raise SourceError(
        f"{spec}: neither a bag (.bag, .mcap, .db3) nor a video ({', '.join(VIDEO_SUFFIXES)}) nor a picture"
    )


def _live(spec: str, span: TimeRange, is_stopped: Callable[[], bool], *, waits: bool) -> ReturningSource:
    name, source = _name_and_source(spec)
    kind, _, topic = source.partition(":")
    if kind in {"ros2", "rclpy"}:
        topics = Ros2Source if kind == "ros2" else RclpySource
        reopen: Callable[[], FrameSource] = partial(topics, topic, is_stopped=is_stopped)
    else:
        reopen = partial(CameraSource, source)
    return ReturningSource(name or without_logins(source), reopen, span=span, is_stopped=is_stopped, waits=waits)


def _name_and_source(spec: str) -> tuple[str, str]:
    """Split NAME=SOURCE; a file of that very name comes first."""
    found = _NAMED.fullmatch(spec)
    return (found[1], found[2]) if found and ("://" in spec or not Path(spec).exists()) else ("", spec)


def _refuse_topics(spec: str, topics: Sequence[str]) -> None:
    if topics:
        raise SourceError(f"{spec}: only bags have topics; leave out {', '.join(topics)}")

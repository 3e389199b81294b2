"""Open sinks by name, and combine them into one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from pathlib import Path

from mqinfer.bags.frame import Frame
from mqinfer.client.result import InferResult
from mqinfer.edge_agent.frames.view import FrameView
from mqinfer.edge_agent.output_files import writing
from mqinfer.edge_agent.sinks.csv_sink import CsvSink
from mqinfer.edge_agent.sinks.drawing.picture_sink import PictureSink
from mqinfer.edge_agent.sinks.drawing.video_sink import VideoSink
from mqinfer.edge_agent.sinks.foxglove.mcap_sink import McapSink
from mqinfer.edge_agent.sinks.jsonl_sink import JsonlSink
from mqinfer.edge_agent.sinks.npz_sink import NpzSink
from mqinfer.edge_agent.sinks.parquet_sink import ParquetSink
from mqinfer.edge_agent.sinks.ros.rosbag_sink import RosbagSink
from mqinfer.edge_agent.sinks.sink import Earlier, Sink
from mqinfer.logs import log_dropped
from mqinfer.protocol.card import ModelCard
from mqinfer.protocol.errors import ConfigError, MqinferError

log = logging.getLogger("mqinfer.edge_agent")

_OPENERS: dict[str, Callable[[Path, ModelCard, int, Earlier | None], Sink]] = {
    "csv": lambda directory, *_: CsvSink(directory),
    "jsonl": lambda directory, _card, _, done: JsonlSink(
        directory, goes_on_with=None if done is None else done.model_hash
    ),
    "mcap": lambda directory, card, *_: McapSink(directory, card),
    "npz": lambda directory, _card, _, done: NpzSink(directory, goes_on=done is not None),
    "parquet": lambda directory, _card, _, done: ParquetSink(
        directory, goes_on_at=None if done is None else done.count
    ),
    "pictures": lambda directory, _card, every, _: PictureSink(directory, every),
    "rosbag": lambda directory, card, *_: RosbagSink(directory, card),
    "video": lambda directory, *_: VideoSink(directory),
}

ON_LINK = ("homeassistant", "mqtt")
"""The kinds of sinks that publish on the broker: they need a connection in place of a folder."""

ROS2 = "ros2"
"""The kind that publishes into a ROS 2 system."""

WITHOUT_FILES = (*ON_LINK, ROS2)
"""The kinds that publish, and write no files."""

SINK_KINDS: tuple[str, ...] = tuple(sorted((*_OPENERS, *WITHOUT_FILES)))
"""Names of the kinds of sinks."""

DEFAULT_SINKS = ("jsonl", "mcap", "pictures", "video")
"""Those that a replay writes where it is not asked for others."""


class SinkSet:
    """Several sinks in one, a `Sink` itself. One that fails is closed and left out; the others go on.

    One that lacks the memory for a result is left without that result.
    """

    def __init__(self, sinks: Iterable[Sink]) -> None:
        self._sinks = list(sinks)
        self._files: list[Path] = []
        self._failures: list[MqinferError] = []
        self._missed = self._too_large = 0

    @property
    def failure(self) -> MqinferError | None:
        """Why the first sink failed, and how many kinds of files and results are concerned; None if none failed."""
        if not self._failures and self._too_large:
            return MqinferError(f"no memory was left to write some results into some files: {self._too_large} in all")
        if not self._failures:
            return None
        first = self._failures[0]
        results = f", by up to {self._missed} results" if self._missed else ""
        return type(first)(f"{first}; kinds of files that are incomplete: {len(self._failures)}{results}")

    def add(self, sink: Sink) -> None:
        """Add a sink before the first result."""
        self._sinks.append(sink)

    def adopt(self, other: SinkSet) -> None:
        """Add the sinks of another set before the first result, in front of those that are here."""
        self._sinks = [*other._sinks, *self._sinks]

    def write(self, frame: Frame, view: FrameView, result: InferResult) -> None:
        """Write one result to every sink, in their order.

        Raises:
            MqinferError: The last sink failed.
        """
        for sink in tuple(self._sinks):
            try:
                sink.write(frame, view, result)
            except MqinferError as error:
                self._sinks.remove(sink)
                self._failures.append(error)
                log.warning("%s; the run goes on with %d other kinds of files", error, len(self._sinks))
                self._close(sink)
            except MemoryError:
                self._too_large += 1
                what = f"{frame.source}, frame {frame.sequence}, from the files of a {type(sink).__name__}"
                log_dropped(log, what, "no memory", self._too_large)
        self._missed += bool(self._failures)
        if self._failures and not self._sinks:
            raise self._failures[-1]

    def close(self) -> tuple[Path, ...]:
        """Close every sink, even if one of them fails, and return all the paths; `failure` holds what failed."""
        while self._sinks:
            if error := self._close(self._sinks.pop(0)):
                self._failures.append(error)
        return tuple(self._files)

    def _close(self, sink: Sink) -> MqinferError | None:
        try:
            self._files += sink.close()
        except MqinferError as error:
            return error
        return None


def check_kinds(kinds: Iterable[str]) -> list[str]:
    """Return each kind of sinks once.

    Raises:
        ConfigError: One is unknown.
    """
    wanted = list(dict.fromkeys(kinds))
    if unknown := [kind for kind in wanted if kind not in SINK_KINDS]:
        raise ConfigError(f"unknown sink {', '.join(map(repr, unknown))}; expected {', '.join(SINK_KINDS)}")
    return wanted


def open_sinks(
    directory: Path,
    card: ModelCard,
    kinds: Iterable[str] = DEFAULT_SINKS,
    *,
    picture_every: int = 10,
    goes_on_with: Earlier | None = None,
) -> SinkSet:
    """Open sinks by name, and create their directory.

    Args:
        directory: For all files.
        card: The model's card: what the MCAP file and the bag say of it.
        kinds: Some of `SINK_KINDS`; repeated names count once, and those without files not at all.
        picture_every: Write an overlay picture every N frames with a result, for each stream.
        goes_on_with: Go on with the JSON lines, NumPy and Parquet files that are there; files of other kinds are set
            aside as always. None sets all of them aside.

    Raises:
        ConfigError: A kind is unknown, `picture_every` is below 1, or a file cannot be written.
        MissingExtra: A package that a sink needs is not installed.
    """
    wanted = [kind for kind in check_kinds(kinds) if kind not in WITHOUT_FILES]
    if picture_every < 1:
        raise ConfigError(f"picture_every is {picture_every}; expected 1 or more")
    with writing(directory):
        directory.mkdir(parents=True, exist_ok=True)
    opened: list[Sink] = []
    try:
        opened.extend(_OPENERS[kind](directory, card, picture_every, goes_on_with) for kind in wanted)
    except MqinferError:
        SinkSet(opened).close()
        raise
    return SinkSet(opened)

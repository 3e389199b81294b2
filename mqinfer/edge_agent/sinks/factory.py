"""Open sinks by name, and combine them into one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from pathlib import Path

from mqinfer.bags.frame import Frame
from mqinfer.client.result import InferResult
from mqinfer.edge_agent.sinks.jsonl_sink import JsonlSink
from mqinfer.edge_agent.sinks.mcap_sink import McapSink
from mqinfer.edge_agent.sinks.picture_sink import PictureSink
from mqinfer.edge_agent.sinks.sink import Sink, writing
from mqinfer.edge_agent.sinks.video_sink import VideoSink
from mqinfer.edge_agent.sinks.view import View
from mqinfer.protocol.card import ModelCard
from mqinfer.protocol.errors import ConfigError, MqinferError

__all__ = ["SINK_KINDS", "SinkSet", "open_sinks"]

log = logging.getLogger("mqinfer.edge_agent")

_OPENERS: dict[str, Callable[[Path, ModelCard, int], Sink]] = {
    "jsonl": lambda directory, card, _: JsonlSink(directory, card.classes),
    "mcap": lambda directory, card, _: McapSink(directory, card),
    "pictures": lambda directory, card, every: PictureSink(directory, card.classes, every),
    "video": lambda directory, card, _: VideoSink(directory, card.classes),
}

SINK_KINDS: tuple[str, ...] = tuple(_OPENERS)
"""Names of the kinds of sinks."""


class SinkSet:
    """Several sinks in one, a `Sink` itself. One that fails is closed and left out; the others go on."""

    def __init__(self, sinks: Iterable[Sink]) -> None:
        self._sinks = list(sinks)
        self._files: list[Path] = []
        self._failures: list[MqinferError] = []
        self._missed = 0

    @property
    def failure(self) -> MqinferError | None:
        """Why the first sink failed, and how many kinds of files and results are concerned; None if none failed."""
        if not self._failures:
            return None
        first = self._failures[0]
        results = f", by up to {self._missed} results" if self._missed else ""
        return type(first)(f"{first}; kinds of files that are incomplete: {len(self._failures)}{results}")

    def write(self, frame: Frame, view: View, result: InferResult) -> None:
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
        self._missed += bool(self._failures)
        if self._failures and not self._sinks:
            raise self._failures[-1]

    def close(self) -> tuple[Path, ...]:
        """Close every sink, even if one of them fails, and return all the paths; `failure` holds what failed."""
        for sink in self._sinks:
            error = self._close(sink)
            if error:
                self._failures.append(error)
        self._sinks.clear()
        return tuple(self._files)

    def _close(self, sink: Sink) -> MqinferError | None:
        try:
            self._files += sink.close()
        except MqinferError as error:
            return error
        return None


def open_sinks(
    directory: Path, card: ModelCard, kinds: Iterable[str] = SINK_KINDS, *, picture_every: int = 10
) -> SinkSet:
    """Open sinks by name, and create their directory.

    Args:
        directory: For all files.
        card: The model's card: its classes and colours, and the name in the MCAP file.
        kinds: Some of `SINK_KINDS`; repeated names count once.
        picture_every: Write an overlay picture every N frames with a result, for each stream.

    Raises:
        ConfigError: A kind is unknown, `picture_every` is below 1, or a file cannot be written.
        MissingExtra: A package that a sink needs is not installed.
    """
    wanted = list(dict.fromkeys(kinds))
    unknown = [kind for kind in wanted if kind not in _OPENERS]
    if unknown:
        raise ConfigError(f"unknown sink {', '.join(map(repr, unknown))}; expected {', '.join(SINK_KINDS)}")
    if picture_every < 1:
        raise ConfigError(f"picture_every is {picture_every}; expected 1 or more")
    with writing(directory):
        directory.mkdir(parents=True, exist_ok=True)
    opened: list[Sink] = []
    try:
        opened.extend(_OPENERS[kind](directory, card, picture_every) for kind in wanted)
    except MqinferError:
        SinkSet(opened).close()
        raise
    return SinkSet(opened)

"""Sinks by name, and several of them as one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from mqinfer.bags.frame import Frame
from mqinfer.client.result import InferResult
from mqinfer.edge_agent.sinks.jsonl_sink import JsonlSink
from mqinfer.edge_agent.sinks.mcap_sink import McapSink
from mqinfer.edge_agent.sinks.picture_sink import PictureSink
from mqinfer.edge_agent.sinks.sink import Picture, Sink, writing
from mqinfer.edge_agent.sinks.video_sink import VideoSink
from mqinfer.protocol.card import ModelCard
from mqinfer.protocol.errors import ConfigError, MqinferError

__all__ = ["SINK_KINDS", "SinkSet", "open_sinks"]

_OPENERS: dict[str, Callable[[Path, ModelCard, int], Sink]] = {
    "jsonl": lambda directory, card, _: JsonlSink(directory, card.classes),
    "mcap": lambda directory, card, _: McapSink(directory, card),
    "pictures": lambda directory, card, every: PictureSink(directory, card.classes, every),
    "video": lambda directory, card, _: VideoSink(directory, card.classes),
}

SINK_KINDS: tuple[str, ...] = tuple(_OPENERS)
"""Names that `open_sinks` knows."""


class SinkSet:
    """Several sinks that are written and closed as one; a `Sink` itself."""

    def __init__(self, sinks: Iterable[Sink]) -> None:
        self._sinks = tuple(sinks)

    def write(self, frame: Frame, picture: Picture, result: InferResult) -> None:
        """Give one result to every sink, in their order.

        Raises:
            MqinferError: A sink could not keep it; the sinks after that one did not get it.
        """
        for sink in self._sinks:
            sink.write(frame, picture, result)

    def close(self) -> tuple[Path, ...]:
        """Close every sink, also when one of them fails, and name all the files.

        Raises:
            MqinferError: The first failure, after all are closed.
        """
        files: list[Path] = []
        failures: list[MqinferError] = []
        for sink in self._sinks:
            try:
                files += sink.close()
            except MqinferError as error:
                failures.append(error)
        if failures:
            raise failures[0]
        return tuple(files)


def open_sinks(
    directory: Path, card: ModelCard, kinds: Iterable[str] = SINK_KINDS, *, picture_every: int = 10
) -> SinkSet:
    """Open sinks by name; the directory is made if need be.

    Args:
        directory: Where all files go.
        card: The model's card: its classes and colours, and what the MCAP file says of the model.
        kinds: Of `SINK_KINDS`; a name that comes twice counts once.
        picture_every: A picture of the first answered frame of each stream and of every so-manieth after it.

    Raises:
        ConfigError: A kind is unknown, `picture_every` is below 1, or the directory or a file can't be written.
        MissingExtra: A package that a sink needs is not installed.
    """
    wanted = list(dict.fromkeys(kinds))
    unknown = [kind for kind in wanted if kind not in _OPENERS]
    if unknown:
        raise ConfigError(f"no sink is called {', '.join(map(repr, unknown))}; there are {', '.join(SINK_KINDS)}")
    if picture_every < 1:
        raise ConfigError(f"a picture of every {picture_every}th frame is not possible; give 1 or more")
    with writing(directory):
        directory.mkdir(parents=True, exist_ok=True)
    opened: list[Sink] = []
    try:
        opened.extend(_OPENERS[kind](directory, card, picture_every) for kind in wanted)
    except MqinferError:
        SinkSet(opened).close()
        raise
    return SinkSet(opened)

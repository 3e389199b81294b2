"""Write results as an MCAP file that opens in Foxglove beside the recording."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mqinfer.bags.frame import Frame
from mqinfer.bags.repair import is_unfinished, repair
from mqinfer.client.result import InferResult
from mqinfer.edge_agent.sinks import foxglove
from mqinfer.edge_agent.sinks.jsonl_sink import describe_result
from mqinfer.edge_agent.sinks.outputs import DetectedBox, Mask, find_mask, in_frame, label
from mqinfer.edge_agent.sinks.overlay import caption, colour_mask, draw_overlay, encode_picture, palette
from mqinfer.edge_agent.sinks.sink import Picture, set_aside, writing
from mqinfer.protocol.card import ModelCard
from mqinfer.protocol.errors import ConfigError, MissingExtra, SourceError
from mqinfer.protocol.types import Outcome

__all__ = ["RESULT_SCHEMA", "McapSink"]

log = logging.getLogger("mqinfer.edge_agent")

RESULT_SCHEMA = "mqinfer.Result"
"""Schema name of the topic `<source>/mqinfer/result`, which carries the objects of `results.jsonl`."""


_CHUNK_S = 1.0


class McapSink:
    """Writes `results.mcap`: JSON messages, logged at the frames' log times, stamped with their capture stamps.

    Topics of each stream:

    - `<source>/mqinfer/annotations`: `foxglove.ImageAnnotations`, whatever the outcome: the caption, and boxes in
      pixels of the recorded frame, so that they fit the recording's own topic;
    - `<source>/mqinfer/result`: `mqinfer.Result`, whatever the outcome;
    - `<source>/mqinfer/mask`: `foxglove.CompressedImage`, PNG, each class in its colour;
    - `<source>/mqinfer/classes`: `foxglove.RawImage`, mono8, the class numbers;
    - `<source>/mqinfer/overlay`: `foxglove.CompressedImage`, JPEG.

    A chunk ends after a second or a megabyte, so a process that is killed loses at most the last second; the file is
    then without its index until `mqinfer bag repair` or the next run into the same folder repairs it.

    Args:
        directory: For the file.
        card: The model's card; its name and hash become the file's metadata record `mqinfer`.

    Raises:
        ConfigError: The file cannot be created.
        MissingExtra: The `mcap` package is not installed.
    """

    def __init__(self, directory: Path, card: ModelCard) -> None:
        try:
            from mcap.writer import CompressionType, Writer
        except ImportError as error:
            raise MissingExtra.of("mcap", "edge") from error
        self._path = directory / "results.mcap"
        self._classes = card.classes
        self._colours = palette(card.classes).tolist()
        self._schemas: dict[str, int] = {}
        self._channels: dict[str, int] = {}
        self._flushed = time.monotonic()
        self._is_broken = False
        with writing(self._path):
            _keep_earlier(self._path)
            self._file = self._path.open("wb")
            self._mcap: Any = Writer(self._file, compression=CompressionType.LZ4)
            self._mcap.start(library="mqinfer")
            model = {"model_name": card.name, "model_version": card.version, "model_hash": card.model_hash}
            self._mcap.add_metadata("mqinfer", model)
            self._mcap.flush()

    def write(self, frame: Frame, picture: Picture, result: InferResult) -> None:
        """Append the messages of a result.

        Raises:
            ConfigError: The file cannot be written.
            MissingExtra: There is a mask to draw, and OpenCV is not installed.
        """
        metadata = {"id": result.id, "outcome": result.outcome.value, "worker": result.worker, "stage": result.stage}
        boxes = self._boxes(in_frame(frame, picture, result))
        note = foxglove.image_annotations(frame.capture_time_ns, caption(frame, result), metadata, boxes)
        self._add(frame, "annotations", "foxglove.ImageAnnotations", note)
        self._add(frame, "result", RESULT_SCHEMA, describe_result(frame, picture, result, self._classes))
        found = find_mask(result.outputs) if result.outcome is Outcome.OK else None
        if found:
            self._add_mask(frame, picture, found[1])
        if time.monotonic() - self._flushed >= _CHUNK_S:
            with self._writing():
                self._mcap.flush()
            self._flushed = time.monotonic()

    def close(self) -> tuple[Path, ...]:
        """Finish the file, and return its path.

        Raises:
            ConfigError: The file cannot be written.
        """
        with self._writing(), self._file:
            if not self._is_broken:  # an index behind half a chunk would be wrong; without one the file can be repaired
                self._mcap.finish()
        return (self._path,)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            with writing(self._path):
                yield
        except ConfigError:
            self._is_broken = True
            raise

    def _boxes(self, found: Sequence[DetectedBox]) -> list[foxglove.Box]:
        return [
            foxglove.Box(each.box, label(each, self._classes), tuple(self._colours[(each.number or 0) % 256]))
            for each in found
        ]

    def _add_mask(self, frame: Frame, picture: Picture, mask: Mask) -> None:
        stamp, frame_id = frame.capture_time_ns, frame.frame_id
        coloured = encode_picture(colour_mask(mask, self._classes), ".png")
        overlay = encode_picture(draw_overlay(picture, mask, self._classes), ".jpg")
        image = "foxglove.CompressedImage"
        self._add(frame, "mask", image, foxglove.compressed_image(stamp, frame_id, coloured, "png"))
        self._add(frame, "classes", "foxglove.RawImage", foxglove.raw_image(stamp, frame_id, mask))
        self._add(frame, "overlay", image, foxglove.compressed_image(stamp, frame_id, overlay, "jpeg"))

    def _add(self, frame: Frame, kind: str, schema: str, body: dict[str, object]) -> None:
        data = json.dumps(body, allow_nan=False, separators=(",", ":")).encode()
        with self._writing():
            channel = self._channel(f"{frame.source.rstrip('/')}/mqinfer/{kind}", schema)
            self._mcap.add_message(
                channel,
                log_time=frame.log_time_ns,
                publish_time=frame.log_time_ns,
                sequence=frame.sequence,
                data=data,
            )

    def _channel(self, topic: str, schema: str) -> int:
        if topic not in self._channels:
            self._channels[topic] = self._mcap.register_channel(topic, "json", self._schema(schema))
        return self._channels[topic]

    def _schema(self, name: str) -> int:
        if name not in self._schemas:
            self._schemas[name] = self._mcap.register_schema(name, "jsonschema", foxglove.schema(name))
        return self._schemas[name]


def _keep_earlier(path: Path) -> None:
    """Set the file of an earlier run aside, and repair it if that run was killed."""
    earlier = set_aside(path)
    if earlier is None or not is_unfinished(earlier):
        return
    repaired = earlier.with_suffix(".new.mcap")
    try:
        repaired.unlink(missing_ok=True)
        found = repair(earlier, repaired)
    except SourceError as error:
        repaired.unlink(missing_ok=True)
        log.warning("%s of a run that was killed stays as it is: %s", earlier, error)
        return
    if found.damaged_chunks:  # more than a cut: nothing of the original may be lost
        repaired.unlink()
        log.warning("%s stays as it is: %d chunks are damaged; run: mqinfer bag repair", earlier, found.damaged_chunks)
        return
    repaired.replace(earlier)
    log.warning("%s of a run that was killed is repaired: %d messages", earlier, found.messages)

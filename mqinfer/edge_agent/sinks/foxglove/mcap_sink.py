"""Write results as an MCAP file that opens in Foxglove beside the recording."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from msgspec.structs import asdict

from mqinfer.answers.keypoints import drawn_keypoints
from mqinfer.answers.outputs import (
    SMALL_OUTPUT,
    DetectedBox,
    Mask,
    Picture,
    find_mask,
    label,
    top_label,
)
from mqinfer.answers.words import elements
from mqinfer.bags.frame import Frame
from mqinfer.client.result import InferResult
from mqinfer.edge_agent.frames.view import FrameView
from mqinfer.edge_agent.output_files import set_aside, writing
from mqinfer.edge_agent.sinks.drawing.overlay import (
    caption,
    draw_areas,
    encode_mask,
    encode_picture,
    palette,
    visible,
)
from mqinfer.edge_agent.sinks.foxglove import messages as foxglove
from mqinfer.edge_agent.sinks.foxglove.layout import LAYOUT_FILE, make_layout, result_topic
from mqinfer.edge_agent.sinks.jsonl_sink import describe_result, describe_times
from mqinfer.edge_agent.sinks.sink import repair_earlier
from mqinfer.extras import import_extra
from mqinfer.logs import reason
from mqinfer.protocol.card import ModelCard
from mqinfer.protocol.datatypes import datatype_of
from mqinfer.protocol.errors import ConfigError
from mqinfer.protocol.types import Buffer

_CHUNK_S = 1.0
_LARGEST_SEQUENCE = 0xFFFFFFFF
"""The header of a message has 32 bits for it; the object in `mqinfer.Result` has all of it."""


class McapSink:
    """Writes `results.mcap`: JSON messages, logged at the frames' log times, stamped with their capture stamps.

    Topics of each stream, all in pixels of the recorded frame:

    - `<source>/mqinfer/image`: `foxglove.CompressedImage`, JPEG, of each frame that was decoded; a recorded JPEG as it
      is, or the one that was sent if it has the frame's size;
    - `<source>/mqinfer/annotations`: `foxglove.ImageAnnotations`, whatever the outcome: the caption, the best
      classes of a classifier, and boxes with their key points;
    - `<source>/mqinfer/result`: `mqinfer.Result`, whatever the outcome;
    - `<source>/mqinfer/mask`: `foxglove.CompressedImage`, PNG, each class in its colour;
    - `<source>/mqinfer/classes`: `foxglove.RawImage`, mono8, the class numbers;
    - `<source>/mqinfer/overlay`: `foxglove.CompressedImage`, JPEG, the mask, the depth with its scale, or the masks of
      objects, over the frame;
    - `<source>/mqinfer/outputs`: `mqinfer.Outputs`, all elements of the outputs that `mqinfer.Result` has no values of,
      but for the class mask, as the model returned them.

    A chunk ends after a second or a megabyte, so a process that is killed loses at most the last second; the file is
    then without its index until `mqinfer bag repair` or the next run into the same folder repairs it.

    Beside it stands `foxglove-layout.json`, a layout that shows these topics.

    Args:
        directory: For the files.
        card: The model's card; its name and hash become the file's metadata record `mqinfer`.

    Raises:
        ConfigError: The file cannot be created.
        MissingExtra: The `mcap` package is not installed.
    """

    def __init__(self, directory: Path, card: ModelCard) -> None:
        mcap = import_extra("mcap.writer", "edge")
        self._path = directory / "results.mcap"
        self._layout = directory / LAYOUT_FILE
        self._card = card
        self._classes = card.classes
        self._colours = palette(visible(tuple(card.classes))).tolist()
        self._schemas: dict[str, int] = {}
        self._channels: dict[str, int] = {}
        self._streams: dict[str, bool] = {}
        self._flushed = time.monotonic()
        self._is_broken = False
        with writing(self._path):
            if earlier := set_aside(self._path):
                repair_earlier(earlier)
            set_aside(self._layout)
            self._file = self._path.open("wb")
            # Zstandard takes back the third that base64 adds to pictures.
            self._mcap = mcap.Writer(self._file, compression=mcap.CompressionType.ZSTD)
            self._mcap.start(library="mqinfer")
            model = {"model_name": card.name, "model_version": card.version, "model_hash": card.parameters.model_hash}
            self._mcap.add_metadata("mqinfer", model)
            self._mcap.flush()

    def write(self, frame: Frame, view: FrameView, result: InferResult) -> None:
        """Append the messages of a result.

        Raises:
            ConfigError: The file cannot be written.
            MissingExtra: There is a picture to encode, and OpenCV is not installed.
        """
        metadata = {"id": result.id, "outcome": result.outcome.value, "worker": result.worker, "stage": result.stage}
        boxes, width = self._boxes(view.answer.boxes), view.placement.frame[0]
        lines = [caption(frame, result), *map(top_label, view.answer.top)]
        note = foxglove.image_annotations(frame.capture_time_ns, lines, metadata, boxes, width=width)
        error = {"error": asdict(result.error) if result.error else None}
        described = describe_result(frame, view, result) | describe_times(frame, view, result) | error
        if view.pixels.size:
            self._add_image(frame, "image", view.jpeg(frame.image) or encode_picture(view.pixels, ".jpg"), "jpeg")
        self._add(frame, "annotations", "foxglove.ImageAnnotations", note)
        self._add(frame, "result", foxglove.RESULT, _without_nulls(described))
        if view.answer.mask is not None:
            self._add_mask(frame, view, view.answer.mask)
        self._add_outputs(frame, view)
        overlay = self._overlay(view)
        if overlay is not None:
            self._add_image(frame, "overlay", encode_picture(overlay, ".jpg"), "jpeg")
        self._keep_layout(frame.source, has_masks=overlay is not None)
        self.flush()

    def flush(self) -> None:
        """End the chunk if it is older than a second, so that a kill loses no more; `write` does so, too.

        Raises:
            ConfigError: The file cannot be written.
        """
        if time.monotonic() - self._flushed >= _CHUNK_S:
            with self._writing():
                self._mcap.flush()
            self._flushed = time.monotonic()

    def close(self) -> tuple[Path, ...]:
        """Finish the file, and return its path and that of its layout.

        Raises:
            ConfigError: The file cannot be written.
        """
        with self._writing(), self._file:
            if not self._is_broken:  # an index behind half a chunk would be wrong; without one the file can be repaired
                self._mcap.finish()
        return (self._path, self._layout) if self._streams else (self._path,)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            with writing(self._path):
                yield
        except Exception as error:  # of Zstandard, say, without memory: half a record may be there
            self._is_broken = True
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(f"cannot write {self._path}: {reason(error)}") from error

    def _boxes(self, found: Sequence[DetectedBox]) -> list[foxglove.Box]:
        return [
            foxglove.Box(
                each.box,
                label(each, self._classes),
                tuple(self._colours[(each.number or 0) % 256]),
                *drawn_keypoints(each, self._classes),
            )
            for each in found
        ]

    def _add_mask(self, frame: Frame, view: FrameView, mask: Mask) -> None:
        self._add_image(frame, "mask", encode_mask(mask, self._classes, is_partial=view.answer.seen is not None), "png")
        numbers = foxglove.raw_image(frame.capture_time_ns, frame.frame_id, mask)
        self._add(frame, "classes", "foxglove.RawImage", numbers)

    def _add_outputs(self, frame: Frame, view: FrameView) -> None:
        mask = find_mask(view.outputs, view.placement.picture)
        large = {
            name: {"datatype": datatype_of(output.dtype).value, "shape": list(output.shape), **elements(output)}
            for name, output in view.outputs.items()
            if output.size > SMALL_OUTPUT and (mask is None or mask[0] != name)
        }
        if large:
            stamp = foxglove.time(frame.capture_time_ns)
            self._add(frame, "outputs", foxglove.OUTPUTS, {"timestamp": stamp, "outputs": large})

    def _overlay(self, view: FrameView) -> Picture | None:
        """Return the frame under its mask, its depth, or the masks of its objects; None if there is none."""
        if not view.pixels.size:
            return None
        drawn = draw_areas(view)
        return None if drawn is view.pixels else drawn

    def _add_image(self, frame: Frame, kind: str, data: Buffer, image_format: str) -> None:
        image = foxglove.compressed_image(frame.capture_time_ns, frame.frame_id, data, image_format)
        self._add(frame, kind, "foxglove.CompressedImage", image)

    def _add(self, frame: Frame, kind: str, schema: str, body: dict[str, object]) -> None:
        data = json.dumps(body, allow_nan=False, separators=(",", ":")).encode()
        with self._writing():
            channel = self._channel(result_topic(frame.source, kind), schema)
            self._mcap.add_message(
                channel,
                log_time=frame.log_time_ns,
                publish_time=frame.log_time_ns,
                sequence=frame.sequence & _LARGEST_SEQUENCE,
                data=data,
            )

    def _channel(self, topic: str, schema: str) -> int:
        if topic not in self._channels:
            self._channels[topic] = self._mcap.register_channel(topic, "json", self._schema(schema))
        return self._channels[topic]

    def _schema(self, name: str) -> int:
        if name not in self._schemas:
            schema = foxglove.result_schema(self._card) if name == foxglove.RESULT else foxglove.schema(name)
            self._schemas[name] = self._mcap.register_schema(name, "jsonschema", schema)
        return self._schemas[name]

    def _keep_layout(self, source: str, *, has_masks: bool) -> None:
        """Write the layout whenever there is more to show, so that it is there after a kill too."""
        if has_masks <= self._streams.get(source, -1):
            return
        self._streams[source] = has_masks
        with writing(self._layout):
            self._layout.write_text(json.dumps(make_layout(self._streams), indent=1), encoding="utf-8")


def _without_nulls(value: Any) -> Any:
    """Leave out what has no value: viewers know no schema of a field that may be null."""
    if isinstance(value, dict):
        return {key: _without_nulls(each) for key, each in value.items() if each is not None}
    return [_without_nulls(each) for each in value] if isinstance(value, list) else value

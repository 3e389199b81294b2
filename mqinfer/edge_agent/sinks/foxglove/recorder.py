"""Record results of other clients, with previews of their frames, as the MCAP files that a replay writes of its own."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mqinfer.answers.outputs import Picture, find_mask
from mqinfer.bags.frame import Frame
from mqinfer.client.result import InferResult
from mqinfer.client.watching import SeenPreview, SeenResult
from mqinfer.edge_agent.frames.view import NO_VIEW, FrameView
from mqinfer.edge_agent.output_files import writing
from mqinfer.edge_agent.sinks.foxglove.mcap_sink import McapSink
from mqinfer.edge_agent.sinks.foxglove.pairing import Pairing
from mqinfer.edge_agent.sinks.sink import StreamNames
from mqinfer.images.picture import CompressedImage
from mqinfer.images.placement import Placement
from mqinfer.logs import printable
from mqinfer.protocol.card import CardParameters, ModelCard
from mqinfer.protocol.errors import BadEncoding, InvalidRequest
from mqinfer.protocol.types import Capture, Outcome

_MOST_MODELS = 64
_MOST_STREAMS = 1024
_LONGEST_SOURCE = 200
_MOST_PIXELS = 4 << 20
"""Pixels of a mask of a stream without previews; a larger one is stretched to fewer."""
_LATEST_NS = 1 << 62


@dataclass(slots=True)
class _Stream:
    """One source of one client.

    Attributes:
        name: Begins the names of its topics.
        number: Of its next result, where results have no sequence number.
        placement: Where its newest preview lies in the picture that the model got; None before the first one.
    """

    name: str
    number: int = 0
    placement: Placement | None = None


class Recorder:
    """Writes `results.mcap` and its layout; of several models one folder each. Not thread-safe.

    Everything is in pixels of the previews, and stamped with the frames' capture stamps; messages are logged at the
    time at which the result came. The topics of one source of one client begin with `/CLIENT/SOURCE`.

    Attributes:
        results: Results that were written.
        pictures: Those of them with the picture of their frame.

    Args:
        directory: For the files.
        find_card: Returns a model's card, or None where there is none.
        model: The model whose results are recorded; None for several.
        clock: In seconds.

    Raises:
        ConfigError: The directory cannot be created.
    """

    def __init__(
        self,
        directory: Path,
        find_card: Callable[[str], ModelCard | None],
        model: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.results = self.pictures = 0
        self._directory, self._find_card, self._model = directory, find_card, model
        self._pairing = Pairing(clock)
        self._dropped: Counter[str] = Counter()
        self._sinks: dict[str, McapSink] = {}
        self._streams: dict[tuple[str, str], _Stream] = {}
        self._names = StreamNames(_topic_of)
        with writing(directory):
            directory.mkdir(parents=True, exist_ok=True)

    def add(self, seen: SeenResult | SeenPreview) -> None:
        """Record a result or a preview; a result may wait a moment for its preview.

        Raises:
            ConfigError: A file cannot be written.
            MissingExtra: A package is not installed.
        """
        if isinstance(seen, SeenPreview):
            self._write_all(self._pairing.add_preview(seen))
        else:
            self._write_all(self._pairing.add_result(seen))

    def flush(self) -> None:
        """Write what has waited long enough, so that a kill loses no more than the last seconds; errors as of `add`."""
        self._write_all(self._pairing.due())
        for sink in self._sinks.values():
            sink.flush()

    def close(self) -> tuple[Path, ...]:
        """Write what waits, finish the files, all of them also where one fails, and return their paths.

        Raises:
            ConfigError: A file cannot be written.
            MissingExtra: A package is not installed.
        """
        files: list[Path] = []
        with ExitStack() as closing:
            for sink in reversed(self._sinks.values()):
                closing.callback(_close, sink, files)
            self._write_all(self._pairing.rest())
        self._sinks.clear()
        return tuple(files)

    def dropped(self) -> dict[str, int]:
        """Return what was not recorded, by reason.

        `duplicate` results, previews that are `preview_unpaired` or `preview_unreadable`, and results of models and
        streams above the bounds: `models`, `streams`.
        """
        return dict(self._pairing.dropped + self._dropped)

    def _write_all(self, pairs: Iterable[tuple[SeenResult, SeenPreview | None]]) -> None:
        for result, preview in pairs:
            self._write(result, preview)

    def _write(self, seen: SeenResult, preview: SeenPreview | None) -> None:
        sink, stream = self._sink_of(seen), self._stream_of(seen)
        if sink is None or stream is None:
            return
        result = seen.decode()
        outputs = result.outputs if result.outcome is Outcome.OK else {}
        pixels = NO_VIEW.pixels if preview is None else self._pixels_of(preview)
        if preview is not None and pixels.size:
            stream.placement = Placement.of((pixels.shape[1], pixels.shape[0]), preview.picture)
        card = self._card_of(seen)
        placement = stream.placement or _placement_of(result, card)
        data = preview.tensor.data if preview is not None and pixels.size else b""
        frame = _frame_of(stream, seen, CompressedImage("jpeg", data))
        sink.write(frame, FrameView(pixels, placement, outputs, classes=card.classes), result)
        self.results += 1
        self.pictures += bool(pixels.size)

    def _sink_of(self, seen: SeenResult) -> McapSink | None:
        model = seen.response.model_name
        if model not in self._sinks:
            if len(self._sinks) >= _MOST_MODELS:
                self._dropped["models"] += 1
                return None
            directory = self._directory if self._model is not None else self._directory / model
            with writing(directory):
                directory.mkdir(exist_ok=True)
            self._sinks[model] = McapSink(directory, self._card_of(seen))
        return self._sinks[model]

    def _card_of(self, seen: SeenResult) -> ModelCard:
        """Return the model's card, or what a result says of a model without one here."""
        reply = seen.response
        known = CardParameters(version=reply.model_version, model_hash=reply.model_hash)
        return self._find_card(reply.model_name) or ModelCard(name=reply.model_name, platform="", parameters=known)

    def _stream_of(self, seen: SeenResult) -> _Stream | None:
        key = seen.client, seen.response.capture.source
        if key not in self._streams:
            if len(self._streams) >= _MOST_STREAMS:
                self._dropped["streams"] += 1
                return None
            self._streams[key] = _Stream(self._names.of("/".join(key)))
        return self._streams[key]

    def _pixels_of(self, preview: SeenPreview) -> Picture:
        try:
            return preview.decode().astype(np.uint8, copy=False)
        except (BadEncoding, InvalidRequest):
            self._dropped["preview_unreadable"] += 1
            return NO_VIEW.pixels


def _close(sink: McapSink, files: list[Path]) -> None:
    files += sink.close()


def _topic_of(key: str) -> str:
    """Return the begin of a stream's topics: `/car-1/camera/image_raw` of `car-1` and `/camera/image_raw`."""
    client, _, source = key.partition("/")
    return printable(f"/{client}/{source.lstrip('/')}".rstrip("/"))[:_LONGEST_SOURCE]


def _frame_of(stream: _Stream, seen: SeenResult, image: CompressedImage) -> Frame:
    capture: Capture = seen.response.capture
    stamp = capture.capture_time_ns
    if stamp is None or not 0 <= stamp < _LATEST_NS:  # without a clock at the camera, or with a wrong one
        stamp = seen.received_ns
    sequence = stream.number if capture.sequence is None else capture.sequence
    stream.number = sequence + 1
    return Frame(stream.name, sequence, stamp, seen.received_ns, capture.frame_id, image)


def _placement_of(result: InferResult, card: ModelCard) -> Placement:
    """Return the placement of a stream without previews: everything stays in pixels of the model's picture."""
    mask = find_mask(result.outputs)
    if mask is not None:
        height, width = mask[1].shape
    elif card.image is not None and card.image.width and card.image.height:
        width, height = card.image.width, card.image.height
    else:
        width = height = 1 << 10
    shrunk = max(1.0, (width * height / _MOST_PIXELS) ** 0.5)
    return Placement.of((max(1, int(width / shrunk)), max(1, int(height / shrunk))), (width, height))

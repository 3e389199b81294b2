"""Fill what a detector on this machine finds with grey, before anything else of the edge gets the frame.

A frame that can't be redacted is left out and counted: what is not known to be safe is not sent.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import ceil, floor
from pathlib import Path

import numpy as np

from mqinfer.answers.outputs import Picture, placed_boxes
from mqinfer.bags.frame import Frame, FrameSource, StreamInfo
from mqinfer.bags.joining import Miss
from mqinfer.codecs.opencv import opencv
from mqinfer.edge_agent.reporting.report import Redacted
from mqinfer.edge_agent.settings import PreparingSettings
from mqinfer.images.decode import as_image, is_depth, to_rgb
from mqinfer.images.placement import Placement, to_model_input
from mqinfer.logs import is_logged
from mqinfer.models.loading import LoadedModel, load_model
from mqinfer.models.postprocess.stage import Postprocessed, network_of, with_postprocessing
from mqinfer.models.repository import Repository
from mqinfer.protocol.card import ColourOrder, ImageContract, Resize
from mqinfer.protocol.datatypes import Array
from mqinfer.protocol.errors import BadImage, ConfigError, ModelFailed, MqinferError

DEPTH = "depth can't be redacted"
NOT_DECODED = "not decoded, so not redacted"
FAILED = "the detector failed, so not redacted"
GREY = 128
MARGIN_SHARE, LEAST_MARGIN = 0.1, 8
"""A box grows on each side by the largest of this share of its size, so many pixels, and a pixel of the detector's."""
_ANY_SIDE = 64
"""Side of the first picture for a detector that takes any, in pixels."""
_log = logging.getLogger("mqinfer.edge_agent")


class Redactor:
    """A detector whose boxes are filled; it is tried on a black picture first. One thread at a time.

    Args:
        model: Its folder in a model repository, or that of one of its versions.

    Raises:
        ConfigError: It is no detector, or does not see whole pictures.
        ModelNotLoadable: It is not there, or can't be loaded.
        MissingExtra: OpenCV or the engine is not installed.
    """

    def __init__(self, model: Path) -> None:
        opencv()
        folder, version = (model.parent, int(model.name)) if model.name.isdecimal() else (model, None)
        self._loaded = load_model(Repository(folder.absolute().parent).find(folder.name, version))
        try:
            self._contract = _contract_of(self._loaded)
            network = network_of(self._loaded.backend)
            self._backend = with_postprocessing(network, self._loaded.config, self._contract, strict=True)
            sides = self._contract.height or _ANY_SIDE, self._contract.width or _ANY_SIDE
            self.redact(np.zeros((*sides, 3), np.uint8))
        except MqinferError as error:
            self.close()
            raise ConfigError(f"--redact {model}: {error}") from error

    def redact(self, pixels: Picture) -> tuple[Picture, int]:
        """Return a picture in which every box is filled, and how many there are; the same picture if there is none.

        Raises:
            MqinferError: The detector failed, or its answer may lack a box.
        """
        height, width = pixels.shape[:2]
        placement = Placement.in_model(self._contract, width, height)
        found = _boxes(self._run(pixels), placement, self._loaded)
        if not found:
            return pixels, 0
        filled = pixels.copy()
        least = max(LEAST_MARGIN, width / placement.width, height / placement.height)
        for left, top, right, bottom in found:
            across, down = (max(least, MARGIN_SHARE * side) for side in (right - left, bottom - top))
            rows = slice(max(0, floor(top - down)), ceil(bottom + down))
            filled[rows, max(0, floor(left - across)) : ceil(right + across)] = GREY
        return filled, len(found)

    def _run(self, pixels: Picture) -> Mapping[str, Array]:
        """Return the detector's outputs; NaN is a failure, since post-processing drops such rows."""
        spec, backend = self._loaded.card.inputs[0], self._backend
        array = to_model_input(pixels, "rgb8", self._contract, spec.datatype)
        outputs = network_of(backend).infer({spec.name: array})
        for name, output in outputs.items():
            if output.dtype.kind == "f" and np.isnan(output).any():
                raise ModelFailed(f"output {name!r} has NaN")
        return backend.finish(outputs) if isinstance(backend, Postprocessed) else outputs

    def close(self) -> None:
        """Release the detector."""
        self._loaded.backend.close()


def _contract_of(loaded: LoadedModel) -> ImageContract:
    card, detection = loaded.card, loaded.config.pictures.detection
    if loaded.config.ensemble_scheduling:
        raise ConfigError("expected one model: an ensemble's steps may drop boxes, of which its outputs tell nothing")
    if card.image is None or len(card.inputs) != 1 or card.image.colour is ColourOrder.DEPTH:
        raise ConfigError("expected a detector that takes one picture in colours or grey")
    if card.image.resize is Resize.CROP:
        raise ConfigError('resize = "crop" hides the picture\'s sides from it; choose letterbox')
    if detection and detection.masks:
        raise ConfigError("masks bound how many boxes are found; remove masks from [detection]")
    return card.image


def _boxes(
    outputs: Mapping[str, Array], placement: Placement, loaded: LoadedModel
) -> list[tuple[float, float, float, float]]:
    """Return every box, in pixels of the frame.

    Raises:
        ModelFailed: There are no boxes and scores, one can't be read, or there may be more of them.
    """
    none = np.zeros(1)  # fits no number of boxes
    boxes, scores = outputs.get("boxes", none), outputs.get("scores", none)
    if boxes.size != 4 * scores.size:
        raise ModelFailed(f"outputs {', '.join(outputs)}: expected boxes [n, 4] and scores [n]; see [detection]")
    found = placed_boxes(outputs, placement, most=None)
    rows = min([scores.size, *outputs.get("count", none[:0]).astype(int).ravel().tolist()])
    if len(found) != rows:
        raise ModelFailed(f"{len(found)} of {rows} boxes can be read; others are not finite, or end before they begin")
    detection = loaded.config.pictures.detection
    if detection and rows >= detection.max_detections:
        raise ModelFailed(f"{rows} boxes, and there may be more: raise max_detections in [detection]")
    return [each.box for each in found]


class RedactedSource:
    """The frames of a source as RGB, with what the detector found filled.

    Attributes:
        missed: Frames that were left out since the last one that it yielded; each frame carries those before it.

    Args:
        source: Where the frames come from.
        redactor: Fills the boxes.
        preparing: How mosaics and samples of 16 bits become RGB.
    """

    def __init__(self, source: FrameSource, redactor: Redactor, preparing: PreparingSettings) -> None:
        self.missed: Counter[Miss] = Counter()
        self._source, self._redactor, self._preparing = source, redactor, preparing
        self._frames = self._boxes = self._failures = 0

    def counts(self) -> Redacted:
        """Return how many frames had boxes, and how many boxes there were."""
        return Redacted(self._frames, self._boxes)

    def streams(self) -> tuple[StreamInfo, ...]:
        """List the streams of the source."""
        return self._source.streams()

    def frames(self) -> Iterator[Frame]:
        """Yield the frames that could be redacted.

        Raises:
            SourceError: The source broke off.
        """
        for frame in self._source.frames():
            self.missed.update(frame.missed)
            pixels = self._pixels(frame)
            if pixels is not None:
                missed, self.missed = dict(self.missed), Counter()
                yield replace(frame, image=as_image(pixels, "rgb8"), missed=missed)

    def _pixels(self, frame: Frame) -> Picture | None:
        why = NOT_DECODED
        try:
            if is_depth(frame.image):
                why = DEPTH
                raise BadImage("it has distances; choose other topics with --topic")
            bits = self._preparing.bit_depths.of(frame)
            pixels = to_rgb(frame.image, method=self._preparing.demosaic, bit_depth=bits)
            why = FAILED
            pixels, boxes = self._redactor.redact(pixels)
        except MqinferError as error:
            self.missed[frame.source, why] += 1
            self._failures += 1
            if is_logged(self._failures):
                _log.warning("%s, frame %d is not sent: %s: %s", frame.source, frame.sequence, why, error)
            return None
        self._frames += bool(boxes)
        self._boxes += boxes
        return pixels

    def close(self) -> None:
        """Close the source."""
        self._source.close()

"""From a recorded frame to the tensor that travels."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from numpy.typing import NDArray

from mqinfer.answers.outputs import Picture
from mqinfer.bags.frame import Frame
from mqinfer.broker.packets import buffer_size
from mqinfer.client.result import InferResult
from mqinfer.edge_agent.frames.encoding import FrameEncoding
from mqinfer.edge_agent.frames.table import PreparedFrame
from mqinfer.edge_agent.frames.times import EdgeStage
from mqinfer.edge_agent.preparing.encoding import COLOURS, FrameEncoder
from mqinfer.edge_agent.preparing.framing import BitDepths, Framing
from mqinfer.edge_agent.preparing.points import PointsPreparer
from mqinfer.edge_agent.preparing.quality_ladder import FULL_QUALITY, QualityStep
from mqinfer.images.decode import as_image, depth_name, is_depth, is_mosaic, to_depth, to_mosaic, to_rgb
from mqinfer.images.picture import CompressedImage
from mqinfer.images.pixel_format import Demosaic
from mqinfer.images.placement import Placement, fit, place
from mqinfer.protocol.card import ColourOrder, ImageContract
from mqinfer.protocol.errors import BadImage
from mqinfer.protocol.header import BIT_DEPTH, DEMOSAIC
from mqinfer.protocol.types import Scalar

RecordStage = Callable[[EdgeStage, int], None]
"""Receives a stage and its duration in nanoseconds."""
Tap = Callable[[Callable[[], Picture]], None]
"""Receives what returns the picture that the model gets, as RGB, for a preview."""


@dataclass(frozen=True, slots=True)
class Preparer:
    """Turns frames into the image input of one model. Thread-safe.

    Attributes:
        contract: Size and name of the input.
        encoding: Codec, such as `jpeg:90`.
        demosaic: For Bayer mosaics.
        bit_depths: True bits of 16-bit samples, by source.
        framing: What of a frame the model gets.
        others: Prepare the frames that go with it, for the model's further inputs.
    """

    contract: ImageContract
    encoding: str
    demosaic: Demosaic = Demosaic.BILINEAR
    bit_depths: BitDepths = field(default_factory=BitDepths)
    framing: Framing = field(default_factory=Framing)
    others: tuple[Preparer | PointsPreparer, ...] = ()
    encoder: FrameEncoder = field(init=False)
    """Made of `encoding`; it keeps what it needs of each stream."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "encoder", FrameEncoder(self.encoding))

    def prepare(
        self,
        frame: Frame,
        record: RecordStage,
        step: QualityStep = FULL_QUALITY,
        *,
        whole: bool = False,
        tap: Tap | None = None,
    ) -> PreparedFrame:
        """Demosaic, rectify, cut, resize and encode; a JPEG that fits passes untouched, and depth stays depth.

        Args:
            frame: As recorded.
            record: Called with the duration of each stage.
            step: JPEG quality and size to send; the worker resizes a smaller picture to the model's size.
            whole: Whether any worker must be able to decode the frame on its own.
            tap: Receives the main picture, for a preview; None for none.

        Raises:
            BadImage: The frame cannot be decoded, holds distances where the model takes colours, or the reverse, or its
                calibration or its region does not suit it.
            BadEncoding: The codec cannot encode pictures.
        """
        is_whole = self.framing.is_whole(frame)
        can_be_mosaic = is_whole and step.scale == 1.0 and self.contract.colour is not ColourOrder.DEPTH
        how = self.encoder.choose(frame.source, is_mosaic=can_be_mosaic and is_mosaic(frame.image))
        main = self._pass_through(how, frame, step, tap) if is_whole else None
        if main is None and how.is_mosaic and can_be_mosaic:
            main = self._mosaic(how, frame, record, tap, whole=whole)
        main = main or self._converted(how, frame, record, step, tap, whole=whole)
        return self._with_others(main, frame, record, step, whole=whole) if self.others else main

    def _with_others(
        self, main: PreparedFrame, frame: Frame, record: RecordStage, step: QualityStep, *, whole: bool
    ) -> PreparedFrame:
        """Prepare the frames that go with one, for the same request."""
        if len(frame.joined) != len(self.others):
            raise BadImage(f"{frame.source}: {1 + len(frame.joined)} frames; the model takes {1 + len(self.others)}")
        parts: list[PreparedFrame] = []
        for preparer, each in zip(self.others, frame.joined, strict=True):
            try:
                if isinstance(preparer, PointsPreparer):
                    parts.append(preparer.prepare(each, main, record))
                    continue
                part = preparer.prepare(each, record, step, whole=whole)
                if part.worker != main.worker:  # the other picture needs another worker
                    part = preparer.prepare(each, record, step, whole=True)
            except BadImage as error:
                raise BadImage(f"{each.source}, frame {each.sequence}, which goes with it: {error}") from error
            parts.append(part)
        tensors = [tensor for part in (main, *parts) for tensor in part.tensors]
        size = main.bytes_raw + sum(part.bytes_raw for part in parts)
        return replace(main, tensors=tuple(tensors), bytes_raw=size, joined=tuple(parts))

    def _converted(  # noqa: PLR0913 - what a frame is, and how it is sent
        self, how: FrameEncoding, frame: Frame, record: RecordStage, step: QualityStep, tap: Tap | None, *, whole: bool
    ) -> PreparedFrame:
        """Decode a frame, bring it to the model's size, and encode it."""
        started = time.perf_counter_ns()
        pixels, kind = self._decode(frame)
        decoded = time.perf_counter_ns()
        picture = place(self.framing.apply(frame, pixels), self.contract)
        if tap is not None:
            tap(partial(_coloured, picture, kind))
        height, width = picture.shape[:2]
        sent = fit(picture, max(1, round(width * step.scale)), max(1, round(height * step.scale)))
        resized = time.perf_counter_ns()
        tensor, worker = self.encoder.encode(how, self.contract.input, frame.source, sent, kind, step=step, whole=whole)
        ended = time.perf_counter_ns()
        record(EdgeStage.DEMOSAIC, decoded - started)
        record(EdgeStage.RESIZE, resized - decoded)
        record(EdgeStage.ENCODE, ended - resized)
        if step is FULL_QUALITY:
            self.encoder.encoded(frame.source, how, (buffer_size(tensor.data), picture.nbytes), (ended - started) / 1e9)
        is_shown = picture is pixels and kind == COLOURS
        recorded = (lambda: pixels) if is_shown else partial(self._shown, frame)
        placement = self._placed(frame, (pixels.shape[1], pixels.shape[0]), (sent.shape[1], sent.shape[0]))
        return PreparedFrame(
            (tensor,), placement, recorded, picture.nbytes, worker, how if step.quality is None else None
        )

    def on_result(self, frame: Frame, prepared: PreparedFrame | None, result: InferResult) -> None:
        """Hand the outcome of a frame to the encoders that depend on it; called on any thread."""
        if prepared is None:
            return
        parts = zip((self, *self.others), (frame, *frame.joined), (prepared, *prepared.joined), strict=False)
        for preparer, each, part in parts:
            if part.encoding and isinstance(preparer, Preparer):
                preparer.encoder.on_result(each.source, part.encoding, part.tensors[:1], result)

    def placement(self, width: int, height: int) -> Placement:
        """Return where a picture of a size, in pixels, lies in what the model sees."""
        return Placement.in_model(self.contract, width, height)

    def _placed(self, frame: Frame, size: tuple[int, int], sent: tuple[int, int]) -> Placement:
        """Return where a frame lies in what the model sees, which has the size that is sent where it takes any."""
        picture = self.contract.width or sent[0], self.contract.height or sent[1]
        region, camera = self.framing.region(frame), self.framing.camera(frame)
        return Placement.of(size, picture, self.contract.resize, region, camera)

    def _decode(self, frame: Frame) -> tuple[NDArray[Any], str]:
        """Return a frame as the model takes it, colours or distances, and the encoding's name."""
        depth = is_depth(frame.image)
        is_kept = depth and not self.contract.input  # until the card is there
        if self.contract.colour is ColourOrder.DEPTH or is_kept:
            distances = to_depth(frame.image)
            return distances, depth_name(distances)
        if depth:
            raise BadImage(
                f"{frame.source} has depth pictures, and the model takes colours; "
                'if it does take depth, its model.toml needs colour = "depth" under [image]'
            )
        return to_rgb(frame.image, method=self.demosaic, bit_depth=self.bit_depths.of(frame)), COLOURS

    def _mosaic(
        self, how: FrameEncoding, frame: Frame, record: RecordStage, tap: Tap | None, *, whole: bool
    ) -> PreparedFrame | None:
        """Return a Bayer mosaic as recorded, for the worker to demosaic; None for a frame of another kind."""
        found = to_mosaic(frame.image)
        if found is None:
            return None
        if tap is not None:
            tap(partial(self._placed_mosaic, frame))
        pixels, kind = found
        started = time.perf_counter_ns()
        further: dict[str, Scalar] = {} if self.demosaic is Demosaic.BILINEAR else {DEMOSAIC: self.demosaic.value}
        bits = self.bit_depths.of(frame)
        if bits is not None and pixels.itemsize > 1:
            further[BIT_DEPTH] = bits
        name = self.contract.input
        tensor, worker = self.encoder.encode(how, name, frame.source, pixels, kind, further=further, whole=whole)
        took = time.perf_counter_ns() - started
        record(EdgeStage.ENCODE, took)
        self.encoder.encoded(frame.source, how, (buffer_size(tensor.data), 3 * pixels.size), took / 1e9)
        placement = self.placement(pixels.shape[1], pixels.shape[0])
        return PreparedFrame((tensor,), placement, partial(self._shown, frame), pixels.nbytes, worker, how)

    def _placed_mosaic(self, frame: Frame) -> Picture:
        """Return what the worker makes of a mosaic."""
        pixels, kind = self._decode(frame)
        return _coloured(place(pixels, self.contract), kind)

    def _shown(self, frame: Frame) -> Picture:
        return to_rgb(as_image(*self._decode(frame)))

    def _pass_through(
        self, how: FrameEncoding, frame: Frame, step: QualityStep, tap: Tap | None
    ) -> PreparedFrame | None:
        """Return the recorded JPEG bytes if their size fits and JPEG is the codec asked for, else None."""
        image, contract = frame.image, self.contract
        if not isinstance(image, CompressedImage) or step is not FULL_QUALITY:
            return None
        tensor = self.encoder.untouched(how, contract.input, image, (contract.width, contract.height))
        if tensor is None:
            return None
        if tap is not None:
            tap(partial(to_rgb, image))
        height, width = tensor.shape[1:3]
        placement = self.placement(width, height)
        return PreparedFrame((tensor,), placement, lambda: to_rgb(image), width * height * 3, encoding=how)


def _coloured(picture: NDArray[Any], kind: str) -> Picture:
    """Return a picture as RGB: distances in colours, as the sinks show them."""
    return picture if kind == COLOURS else to_rgb(as_image(picture, kind))

"""What sinks show of a frame: its recorded pixels, and the outputs of its result brought back to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from mqinfer.answers.answer import PictureAnswer
from mqinfer.answers.outputs import Mask, Picture
from mqinfer.answers.words import describe_answer, describe_outputs
from mqinfer.codecs import probe_image
from mqinfer.edge_agent.frames.times import NO_TIMES, FrameTimes
from mqinfer.images.compressed import parse_format
from mqinfer.images.picture import CompressedImage, RawImage
from mqinfer.images.placement import Placement
from mqinfer.protocol.card import ClassInfo
from mqinfer.protocol.datatypes import Array
from mqinfer.protocol.errors import BadEncoding
from mqinfer.protocol.states import ServedModel
from mqinfer.protocol.types import Buffer, EncodedTensor

_HEADER = 4096
"""An orientation in a JPEG stands within this many bytes of its start."""


@dataclass(frozen=True, eq=False)
class FrameView:
    """One frame as all sinks show it; what is computed from it is computed once.

    Attributes:
        pixels: The recorded frame as RGB at its own size; `[0, 0, 3]` if it was never decoded, or cannot be.
        placement: Where the frame lies in what the model saw.
        outputs: Of the result; empty unless its outcome is `ok`.
        sent: What was sent of the frame, its main picture; None if nothing was.
        times: Where its time went.
        served: What the worker that replied serves, with precision, engine and device; None where that is not known.
        classes: Names and colours from the model's card.
    """

    pixels: Picture
    placement: Placement
    outputs: Mapping[str, Array] = field(default_factory=dict)
    sent: EncodedTensor | None = None
    times: FrameTimes = NO_TIMES
    served: ServedModel | None = None
    classes: Sequence[ClassInfo] = ()

    @cached_property
    def answer(self) -> PictureAnswer:
        """What the outputs mean, in pixels of the frame."""
        return PictureAnswer(self.outputs, self.placement, self.classes)

    @cached_property
    def depth_levels(self) -> Mask | None:
        """Its numbers as levels in the frame's size, as `Depth.levels` returns them; None if there is none."""
        depth = self.answer.depth
        return None if depth is None else depth.levels(self.placement)

    @cached_property
    def words(self) -> Mapping[str, Any]:
        """The answer as `describe_answer` returns it."""
        return describe_answer(self.answer)

    @cached_property
    def outputs_in_words(self) -> Mapping[str, Mapping[str, Any]]:
        """The outputs as `describe_outputs` returns them."""
        return describe_outputs(self.outputs, self.classes, self.answer.shares, self.placement.picture)

    @property
    def engine(self) -> dict[str, str | None]:
        """Precision, back end and device of the worker that replied, each None where its state does not name it."""
        return {key: getattr(self.served, key, None) or None for key in ("precision", "backend", "device")}

    def jpeg(self, image: RawImage | CompressedImage) -> Buffer | None:
        """Return the frame as a JPEG that viewers show as it is, without encoding it; None if there is none.

        Args:
            image: As it was recorded; its own bytes come before those that were sent.
        """
        if isinstance(image, CompressedImage) and _is_plain_jpeg(image):
            return image.data
        sent = self.sent
        is_whole = sent is not None and sent.shape[1:3] == self.pixels.shape[:2] and self.placement.is_whole
        return sent.data if sent and is_whole and sent.encoding.startswith("jpeg") else None


NO_VIEW = FrameView(np.zeros((0, 0, 3), np.uint8), Placement.of((1, 1), (1, 1)))
"""View of a frame that never became a request."""


def _is_plain_jpeg(image: CompressedImage) -> bool:
    """Return whether viewers decode a picture to the pixels that the model saw.

    A mosaic has no colours yet, the channels of `compressed rgb8` are swapped, and viewers turn a picture by its Exif
    orientation.
    """
    declared = parse_format(image.format)
    if declared.original.startswith("bayer") or declared.is_swapped or declared.is_depth:
        return False
    try:
        info = probe_image(image.data)
    except BadEncoding:
        return False
    return info.format == "jpeg" and info.channels in (1, 3) and b"Exif\0\0" not in bytes(image.data[:_HEADER])

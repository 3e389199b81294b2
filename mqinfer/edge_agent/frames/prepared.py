"""A frame as it will be sent."""

from __future__ import annotations

from collections.abc import Callable

from mqinfer.answers.outputs import Picture
from mqinfer.edge_agent.frames.encoding import FrameEncoding
from mqinfer.images.placement import Placement
from mqinfer.protocol.types import EncodedTensor
from mqinfer.value_object import value_object

__all__ = ["PreparedFrame"]


@value_object(eq=False)
class PreparedFrame:
    """A frame as it will be sent.

    Attributes:
        tensors: The model's image inputs, which one request carries; the first is the main picture.
        placement: Where the recorded frame lies in what the model will see.
        picture: Returns the recorded frame as RGB, for the sinks. One that was resized is decoded again by this call,
            so that waiting frames take no memory for their pixels; so is an untouched JPEG.
        bytes_raw: Size of the pixels before encoding.
        worker: The one that has what the tensors are encoded against; empty where any can decode them.
        encoding: How they were encoded; None where the quality ladder, or an earlier run, chose that.
        joined: The parts of it that the frames are which go with it.
    """

    tensors: tuple[EncodedTensor, ...]
    placement: Placement
    picture: Callable[[], Picture]
    bytes_raw: int
    worker: str = ""
    encoding: FrameEncoding | None = None
    joined: tuple[PreparedFrame, ...] = ()

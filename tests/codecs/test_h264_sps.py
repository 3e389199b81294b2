"""The pictures that a stream makes its decoder keep, read from sets that an encoder wrote and from bad ones."""

from __future__ import annotations

from fractions import Fraction

import av
import numpy as np
import pytest

from mqinfer.codecs.h264 import H264Decoder
from mqinfer.codecs.h264_sps import MOST_REFERENCES, references
from mqinfer.protocol.datatypes import Datatype
from mqinfer.protocol.types import EncodedTensor

SIDE = 64


def key_frame(count: int, pixels: str = "yuv420p", more: str = "") -> bytes:
    """Encode a picture of a stream that makes its decoder keep so many."""
    context = av.CodecContext.create("libx264", "w")
    context.width, context.height, context.pix_fmt = SIDE, SIDE, pixels
    context.time_base = Fraction(1, 30)
    context.options = {"tune": "zerolatency", "x264-params": f"ref={count}:level=6.2:log-level=none{more}"}
    context.open()
    frame = av.VideoFrame.from_ndarray(np.zeros((SIDE, SIDE, 3), np.uint8), format="rgb24").reformat(format=pixels)
    frame.pts = 0
    return b"".join(bytes(packet) for packet in context.encode(frame))


@pytest.mark.parametrize("more", ["", ":cqm=jvt"])
@pytest.mark.parametrize("pixels", ["yuv420p", "yuv444p", "yuv444p10le"])
@pytest.mark.parametrize("count", [1, 4, 16])
def test_the_number_is_what_the_encoder_was_told(count: int, pixels: str, more: str) -> None:
    """In each format of colours, with scaling matrices and without; and the decoder counts memory for so many."""
    data = key_frame(count, pixels, more)
    assert references(data) == count
    decoder = H264Decoder(SIDE, SIDE)
    decoder.decode(EncodedTensor("x", Datatype.UINT8, (SIDE, SIDE, 3), "h264", data))
    samples = {"yuv420p": 1.5, "yuv444p": 3, "yuv444p10le": 6}[pixels]
    assert decoder.nbytes > SIDE * SIDE * samples * (count + 1)


def test_several_sets_count_as_the_largest_and_none_as_none() -> None:
    """The last one must not hide one before it; a picture behind a key frame has none."""
    assert references(key_frame(4) + key_frame(1)) == 4
    assert references(key_frame(1) + key_frame(4)) == 4
    assert references(b"\0\0\1\x41\x9a") == references(b"") == 0


def test_what_cannot_be_read_counts_as_the_most() -> None:
    """Sets that are cut, empty, without end or too many: little time, and never less than they may ask for."""
    whole = key_frame(1)
    begin = whole.index(b"\0\0\1") + 3
    assert references(whole[: begin + 5]) == MOST_REFERENCES
    for data in (b"", b"\0" * 600, b"\xff" * 3, bytes(3) + b"\x80" + bytes(5000)):
        assert references(b"\0\0\1\x67" + data) == MOST_REFERENCES
    assert references(whole * 5) == MOST_REFERENCES

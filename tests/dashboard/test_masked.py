"""The reader before aiohttp's, which lets no unmasked frame through."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqinfer.web.connections import MaskedReader


class Reader:
    """Keeps what it is fed with."""

    def __init__(self) -> None:
        self.fed = b""

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        """Take bytes."""
        self.fed += data
        return False, b""

    def feed_eof(self) -> None:
        """Take the end."""


def frame(size: int, mask: int = 0x80) -> bytes:
    """Return a frame with a payload of so many bytes."""
    longer = struct.pack("!BH", mask | 126, size) if size < 1 << 16 else struct.pack("!BQ", mask | 127, size)
    return b"\x82" + (bytes((mask | size,)) if size < 126 else longer) + b"mask"[: mask >> 5] + b"\x01" * size


def feed(data: bytes, sizes: list[int]) -> bytes:
    """Feed bytes in pieces of these sizes, then the rest; return what went on."""
    reader = Reader()
    masked, at = MaskedReader(reader), 0
    for size in [*sizes, len(data)]:
        masked.feed_data(data[at : at + size])
        at += size
    return reader.fed


@given(
    st.lists(st.sampled_from([0, 1, 125, 126, 300, 65535, 65536]), max_size=5),
    st.lists(st.integers(1, 12), max_size=40),
)
def test_masked_frames_pass_however_they_are_cut(frames: list[int], sizes: list[int]) -> None:
    """Not a byte is changed or kept back."""
    data = b"".join(map(frame, frames))
    assert feed(data, sizes) == data


@given(st.lists(st.sampled_from([0, 125, 126, 300]), max_size=3), st.lists(st.integers(1, 12), max_size=40))
@pytest.mark.parametrize("size", [0, 2, 126, 65536])
def test_an_unmasked_frame_is_one_that_is_refused(size: int, before: list[int], sizes: list[int]) -> None:
    """It gets the reserved bits, wherever it begins and however it is cut."""
    data = b"".join(map(frame, before))
    fed = feed(data + frame(size, 0)[:2], sizes)
    assert fed[: len(data) + 1] == data + b"\xff"

"""H.264: pictures and unbroken chains, through the real encoder and decoder; bad bytes of all kinds."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import av
import numpy as np
import pytest
from msgspec.structs import replace
from numpy.typing import NDArray

from mqinfer.codecs import decode_tensor, encode_tensor
from mqinfer.codecs.chain import ChainDecoder, sealed
from mqinfer.codecs.h264 import H264Decoder, H264Encoder
from mqinfer.lab.drives.synthetic import SyntheticDrive
from mqinfer.protocol.datatypes import Array, Datatype
from mqinfer.protocol.errors import BadEncoding, BadTensor, LimitExceeded, ReferenceLost
from mqinfer.protocol.header import CHAIN, POSITION
from mqinfer.protocol.limits import Limits
from mqinfer.protocol.types import EncodedTensor

HEIGHT, WIDTH = 61, 97  # odd: colours have half the resolution


@cache
def pictures(count: int) -> Sequence[NDArray[np.uint8]]:
    """Render a drive."""
    drive = SyntheticDrive(1, WIDTH, HEIGHT)
    return [drive.scene(number).picture for number in range(count)]


@cache
def chain(count: int, number: int = 7, level: int = 23) -> Sequence[EncodedTensor]:
    """Encode a drive as one chain."""
    encoder = H264Encoder(HEIGHT, WIDTH, level)
    return [
        tensor_of(encoder.encode(picture, key=position == 0), number, position)
        for position, picture in enumerate(pictures(count))
    ]


def tensor_of(data: bytes, number: int, position: int) -> EncodedTensor:
    """Return a picture of a chain as it travels."""
    encoded = sealed(data, {CHAIN: number, POSITION: position})
    return EncodedTensor("image", Datatype.UINT8, (1, HEIGHT, WIDTH, 3), "h264", data, encoded.parameters)


def psnr(picture: Array, original: NDArray[np.uint8]) -> float:
    """Return the peak signal-to-noise ratio in decibels."""
    difference = picture.reshape(original.shape).astype(float) - original
    return float(10 * np.log10(255**2 / np.mean(difference**2)))


def test_a_chain_comes_back_picture_by_picture() -> None:
    """Each is there at once, of its own size, like the one that was encoded; those behind a key frame are small."""
    decoder, sent = ChainDecoder(H264Decoder), chain(6)
    for tensor, original in zip(sent, pictures(6), strict=True):
        found = decoder.decode(tensor)
        assert found.shape == (1, HEIGHT, WIDTH, 3)
        assert psnr(found, original) > 27
    assert max(len(tensor.data) for tensor in sent[1:]) < len(sent[0].data) / 2


def test_a_picture_alone_is_a_codec_like_others() -> None:
    """By its level a picture is better or smaller; shapes without a batch axis work as well."""
    original = pictures(1)[0]
    good, small = (encode_tensor("image", original, f"h264:{level}") for level in (10, 40))
    assert decode_tensor(good).shape == original.shape
    assert psnr(decode_tensor(good), original) > psnr(decode_tensor(small), original) + 5
    assert len(good.data) > 2 * len(small.data)


def test_kbits_are_kept() -> None:
    """Levels from 52 on are kbit/s for 30 pictures a second: a tenth of the rate makes far fewer bytes."""
    sizes = []
    drive = SyntheticDrive(1, 194, 122)
    scenes = [drive.scene(4 * number).picture for number in range(9)]
    for level in (2000, 200):
        encoder = H264Encoder(122, 194, level)
        data = [encoder.encode(scenes[number % 9], key=number == 0) for number in range(45)]
        sizes.append(sum(map(len, data[15:])))  # the first second may be spent on the key frame
    assert sizes[1] * 8 < 1.5 * 200_000
    assert sizes[1] < sizes[0] / 3


@pytest.mark.parametrize(
    "array", [np.zeros((4, 4, 3), np.uint16), np.zeros((4, 4), np.uint8), np.zeros((2, 4, 4, 3), np.uint8)]
)
def test_other_arrays_are_refused(array: NDArray[np.uint8]) -> None:
    """Depth, masks and batches: the message says what it takes, and what to use."""
    with pytest.raises(BadEncoding, match=r"takes 8-bit RGB .* use lz4 or raw"):
        encode_tensor("image", array, "h264")


def test_a_gap_loses_what_is_behind_it_until_a_key_frame() -> None:
    """Nothing is decoded without the picture before it, and a later chain is decoded as ever."""
    decoder, sent = ChainDecoder(H264Decoder, ahead_s=0), chain(5)
    for position in (0, 1):
        decoder.decode(sent[position])
    for position in (3, 4, 1):
        with pytest.raises(ReferenceLost, match=f"picture {position} of chain 7 can't be decoded"):
            decoder.decode(sent[position])
    for tensor, original in zip(chain(3, number=8), pictures(3), strict=True):
        assert psnr(decoder.decode(tensor), original) > 27
    with pytest.raises(ReferenceLost):
        decoder.decode(sent[2])


def test_a_late_key_frame_does_not_break_the_chain_behind_it() -> None:
    """It is decoded for the frame that it is, beside the newer chain."""
    decoder, old, new = ChainDecoder(H264Decoder, ahead_s=0), chain(2), chain(2, number=8)
    decoder.decode(new[0])
    assert psnr(decoder.decode(old[0]), pictures(1)[0]) > 27
    assert psnr(decoder.decode(new[1]), pictures(2)[1]) > 27


def test_a_picture_waits_for_those_that_other_threads_decode() -> None:
    """Threads get the pictures behind a key frame in reverse: each waits for those before it, and all are right."""
    decoder, sent, right = ChainDecoder(H264Decoder, ahead_s=60), chain(4), ChainDecoder(H264Decoder)
    expected = [right.decode(tensor) for tensor in sent]
    found: dict[int, Array] = {0: decoder.decode(sent[0])}

    def decode(position: int) -> None:
        found[position] = decoder.decode(sent[position])

    threads = [threading.Thread(target=decode, args=(position,)) for position in (3, 2, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for position, picture in enumerate(expected):
        np.testing.assert_array_equal(found[position], picture)


def test_truncated_and_foreign_bytes_have_a_code_and_the_next_key_frame_heals() -> None:
    """A part of an access unit, with its digest or without; nothing at all; a JPEG; a broken parameter."""
    sent = chain(3)
    jpeg = encode_tensor("image", pictures(1)[0], "jpeg").data
    half = sent[1].data[: len(sent[1].data) // 2]
    bad = [
        replace(sent[1], data=half),
        replace(sent[1], data=bytes(sent[1].data)[:-1]),
        *(tensor_of(bytes(data), 7, 1) for data in (b"", b"\0\0\1", jpeg)),
        replace(sent[1], parameters={CHAIN: 7, POSITION: "1"}),
        replace(sent[1], parameters={CHAIN: True, POSITION: 1}),
    ]
    for tensor in bad:
        decoder = ChainDecoder(H264Decoder, ahead_s=0)
        decoder.decode(sent[0])
        with pytest.raises(BadEncoding, match="tensor 'image': "):
            decoder.decode(tensor)
        if tensor.parameters.get(POSITION) == 1 and tensor.parameters[CHAIN] is not True:
            with pytest.raises(ReferenceLost):  # what is behind it would be broken
                decoder.decode(sent[2])
        decoder.decode(chain(1, number=8)[0])
    with pytest.raises(BadEncoding, match="truncated or corrupt: its digest is another"):
        ChainDecoder(H264Decoder).decode(replace(sent[0], data=bytes(sent[0].data)[:-1]))


def test_a_chain_begins_with_a_key_frame() -> None:
    """A picture that is none and claims to be the first has a code; so has a key frame without its parameter sets."""
    with pytest.raises(BadEncoding):
        ChainDecoder(H264Decoder).decode(tensor_of(bytes(chain(2)[1].data), 9, 0))


def test_sizes_are_checked_before_memory_is_taken() -> None:
    """By the declared shape, and by the stream itself, which may claim more than is declared."""
    huge = H264Encoder(1024, 1024, 51).encode(np.zeros((1024, 1024, 3), np.uint8), key=True)
    with pytest.raises(BadEncoding, match="corrupt, or claims another size"):
        ChainDecoder(H264Decoder).decode(tensor_of(huge, 1, 0))
    tensor = replace(tensor_of(huge, 1, 0), shape=(1, 1024, 1024, 3))
    with pytest.raises(LimitExceeded, match="1024x1024 pixels"):
        ChainDecoder(H264Decoder).decode(tensor, Limits(image_pixels=1 << 19))
    with pytest.raises((LimitExceeded, BadTensor)):
        ChainDecoder(H264Decoder).decode(replace(tensor, shape=(1, 1 << 20, 1 << 20, 3)))
    assert ChainDecoder(H264Decoder).decode(tensor).shape == tensor.shape
    smaller = replace(tensor_of(bytes(chain(1)[0].data), 1, 0), shape=(1, 60, 96, 3))
    with pytest.raises(BadEncoding, match=r"98x62 pixels; 96x60 are declared|claims another size"):
        ChainDecoder(H264Decoder).decode(smaller)


_FUZZ = """
import random, sys
import numpy as np
from mqinfer.codecs.chain import ChainDecoder
from mqinfer.codecs.h264 import H264Decoder, H264Encoder
from mqinfer.protocol.datatypes import Datatype
from mqinfer.protocol.errors import InvalidRequest, ReferenceLost
from mqinfer.protocol.types import EncodedTensor

count = int(sys.argv[1])
chance, pixels = random.Random(5), np.random.default_rng(5)
encoder = H264Encoder(48, 64, 30)
scene = pixels.integers(0, 255, (48, 64, 3), np.uint8)
sent = [encoder.encode(np.roll(scene, number, 1), key=number == 0) for number in range(4)]
refused = 0
for round in range(count // 4):
    decoder = ChainDecoder(H264Decoder, ahead_s=0)
    for position, data in enumerate(sent):
        mutated = bytearray(data)
        if position or round % 4 == 0:
            for _ in range(chance.choice((1, 1, 2, 8))):
                at = chance.randrange(max(1, len(mutated) - 1))
                kind = chance.randrange(4)
                if kind == 0:
                    mutated[at : at + 1] = bytes([chance.randrange(256)])
                elif kind == 1:
                    mutated[at:at] = chance.randbytes(chance.randrange(1, 9))
                elif kind == 2:
                    del mutated[at : at + chance.randrange(1, 9)]
                else:
                    del mutated[at + 1 :]
        parameters = dict(chain=1, position=position)
        tensor = EncodedTensor("x", Datatype.UINT8, (48, 64, 3), "h264", bytes(mutated), parameters)
        try:
            assert decoder.decode(tensor).shape == (48, 64, 3)
        except (InvalidRequest, ReferenceLost):
            refused += 1
print(refused)
"""


def test_the_library_logs_nothing() -> None:
    """With a log level, closing the decoder of a damaged video can deadlock: its threads want the closer's lock."""
    H264Encoder(48, 64, None).encode(np.zeros((48, 64, 3), np.uint8), key=True)
    assert av.logging.get_level() is None


def test_mutated_packets_crash_no_process() -> None:
    """1,200 without their digest: each has a picture of its size or a code, and the process lives."""
    arguments = [sys.executable, "-c", _FUZZ, "1200"]
    ended = subprocess.run(arguments, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert int(ended.stdout) > 100


@pytest.mark.parametrize("unit", [b"\0\0\1\x0c", b"\0\0\1\x09\x10", b"\0\0\1\x06\x05\x01\x00\x80", b"\0\0\1"])
def test_units_are_counted_before_memory_is_taken(unit: bytes) -> None:
    """300,000 of them before a picture would take 4 KiB each; as many as encoders make are decoded, and counted."""
    picture = bytes(chain(1)[0].data)
    with pytest.raises(BadEncoding, match=r"has 30000. NAL units; at most 1024 are accepted: use fewer slices"):
        ChainDecoder(H264Decoder).decode(tensor_of(unit * 300_000 + picture, 1, 0))
    decoder = ChainDecoder(H264Decoder)
    few = b"\0\0\1\x09\x10" * 1000
    assert decoder.decode(tensor_of(few + picture, 1, 0)).shape == (1, HEIGHT, WIDTH, 3)
    assert decoder.nbytes > 4 << 20


def test_colours_that_can_not_be_converted_have_a_code() -> None:
    """A parameter set may claim any matrix of colours, also one that nobody defined."""
    stream = (Path(__file__).parents[1] / "fuzz/crashes/video-colours-that-can-not-be-converted").read_bytes()
    data = stream.split(b"next picture")[0][1:]
    with pytest.raises(BadEncoding, match="has colours that can't be converted to RGB"):
        decode_tensor(EncodedTensor("image", Datatype.UINT8, (1, 1, 3), "h264", data))


def test_a_chain_that_goes_on_with_another_size_has_a_code() -> None:
    """Of a declared size that the chain did not begin with nothing is decoded, and the chain goes on as it was."""
    decoder, sent = ChainDecoder(H264Decoder), chain(3)
    decoder.decode(sent[0])
    for shape in ((1, 64, WIDTH, 3), (1, WIDTH, HEIGHT, 3), (1, 1, 1, 3)):
        with pytest.raises(BadEncoding, match="but the chain began with 97x61; begin another chain with a key frame"):
            decoder.decode(replace(sent[1], shape=shape))
    assert decoder.decode(replace(sent[1], shape=(HEIGHT, WIDTH, 3))).shape == (HEIGHT, WIDTH, 3)
    assert psnr(decoder.decode(sent[2]), pictures(3)[2]) > 27


def test_a_decoder_that_failed_counts_no_memory() -> None:
    """Nothing of it is kept: what it took is free for other streams."""
    decoder = ChainDecoder(H264Decoder)
    decoder.decode(chain(1)[0])
    assert decoder.nbytes > 0
    with pytest.raises(BadEncoding):
        decoder.decode(tensor_of(b"\0\0\1", 7, 1))
    assert decoder.nbytes == 0

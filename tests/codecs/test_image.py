from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import Any

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from msgspec.structs import replace

from mqinfer.codecs import ImageInfo, decode_tensor, encode_tensor, encoded_image, probe_image
from mqinfer.codecs.image import check_complete
from mqinfer.protocol.datatypes import Array, Datatype
from mqinfer.protocol.errors import BadEncoding, InvalidRequest, LimitExceeded
from mqinfer.protocol.limits import Limits
from mqinfer.protocol.types import EncodedTensor

Bound = Callable[[int], AbstractContextManager[None]]
BARS = [(255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 0), (255, 255, 255), (0, 0, 0)]
heights = st.integers(1, 40)
pictures = st.tuples(
    st.sampled_from([np.uint8, np.uint16]), heights, heights, st.sampled_from([(), (1,), (3,)]), st.booleans()
).flatmap(lambda kind: hnp.arrays(kind[0], ((1,) if kind[4] else ()) + kind[1:3] + kind[3]))


def bars(width: int = 32) -> Array:
    """Make vertical bars of known colours, in RGB order."""
    return np.repeat(np.array([BARS], np.uint8), width, axis=1).repeat(64, axis=0)


def data_of(array: Array, encoding: str) -> bytes:
    """Make the bytes of a picture."""
    return bytes(encode_tensor("x", array, encoding).data)


def chunk(kind: bytes, data: bytes) -> bytes:
    """Make a PNG chunk with a right checksum."""
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width: int, height: int, pixels: bytes, *, bits: int = 8, colour: int = 0, extra: bytes = b"") -> bytes:
    """Make a PNG of one's own: a reference that no library has written."""
    header = struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, 0)
    parts = (
        b"\x89PNG\r\n\x1a\n",
        chunk(b"IHDR", header),
        extra,
        chunk(b"IDAT", zlib.compress(pixels)),
        chunk(b"IEND", b""),
    )
    return b"".join(parts)


def scanlines(array: Array) -> bytes:
    """Make unfiltered PNG scanlines."""
    return b"".join(b"\0" + row.astype(array.dtype.newbyteorder(">")).tobytes() for row in array)


def tensor(encoding: str, shape: tuple[int, ...], data: bytes, datatype: Datatype = Datatype.UINT8) -> EncodedTensor:
    """Make a tensor of whatever is claimed."""
    return EncodedTensor("x", datatype, shape, encoding, data)


@given(pictures)
@settings(max_examples=60)
def test_png_loses_nothing(array: Array) -> None:
    """Grey and colour, 8 and 16 bits, with and without batch axis, come back as they were."""
    found = decode_tensor(encode_tensor("x", array, "png"))
    assert found.dtype == array.dtype
    assert np.array_equal(found, array)


@pytest.mark.parametrize("encoding", ["png", "png:9", "jpeg", "jpeg:100", "jpeg:75"])
@pytest.mark.parametrize("batch", [False, True])
def test_colours_keep_their_order(encoding: str, batch: bool) -> None:  # noqa: FBT001 -- a column of the table
    """Red stays red: the middle of each bar has its known colour, within what JPEG changes."""
    array = bars()[None] if batch else bars()
    found = decode_tensor(encode_tensor("x", array, encoding))
    middle = found.reshape(64, -1, 3)[32, 16::32].astype(int)
    assert found.shape == array.shape
    assert np.abs(middle - np.array(BARS)).max() <= (0 if encoding.startswith("png") else 4)


def test_a_foreign_png_is_read_in_rgb_order() -> None:
    """A PNG made byte by byte here, whose file format is RGB, gives its pixels."""
    found = decode_tensor(tensor("png", (1, 64, 192, 3), png(192, 64, scanlines(bars()), colour=2)))
    assert np.array_equal(found[0], bars())


def test_an_encoded_png_holds_rgb() -> None:
    """The first pixel in our file is red by the PNG specification, not by the library that wrote it."""
    data = data_of(np.full((1, 1, 3), (255, 0, 9), np.uint8), "png")
    at = data.index(b"IDAT")
    (size,) = struct.unpack(">I", data[at - 4 : at])
    assert zlib.decompress(data[at + 4 : at + 4 + size])[1:] == bytes((255, 0, 9))


def test_16_bits_stay_16_bits() -> None:
    """A 12-bit camera's samples survive in a 16-bit PNG, from our encoder and from a foreign one."""
    array = np.arange(4000, dtype=np.uint16).reshape(40, 100)
    for data in (data_of(array, "png"), png(100, 40, scanlines(array), bits=16)):
        assert np.array_equal(decode_tensor(tensor("png", (40, 100), data, Datatype.UINT16)), array)


def test_views_and_other_byte_orders_are_pictures_too() -> None:
    """A mirrored crop, and big-endian samples."""
    crop = bars()[::-1, 10:50]
    assert np.array_equal(decode_tensor(encode_tensor("x", crop, "png")), crop)
    wide = np.arange(100, dtype=">u2").reshape(10, 10)
    assert np.array_equal(decode_tensor(encode_tensor("x", wide, "png")), wide)


def with_exif(jpeg: bytes, orientation: int) -> bytes:
    """Put an EXIF orientation into a JPEG."""
    entry = struct.pack("<HHIHH", 0x0112, 3, 1, orientation, 0)
    exif = b"Exif\0\0II*\0\x08\0\0\0\x01\0" + entry + bytes(4)
    return jpeg[:2] + b"\xff\xe1" + struct.pack(">H", len(exif) + 2) + exif + jpeg[2:]


def test_exif_orientation_is_ignored() -> None:
    """A picture keeps the shape in which its pixels are stored."""
    data = with_exif(data_of(bars(), "jpeg:95"), 6)
    found = decode_tensor(encoded_image("x", data))
    assert found.shape == (1, 64, 192, 3)
    assert found[0, 32, 16].tolist()[0] > 250


@pytest.mark.parametrize(
    ("array", "encoding"),
    [
        (np.zeros((4, 4), np.uint16), "jpeg"),
        (np.zeros((4, 4), np.float32), "jpeg"),
        (np.zeros((4, 4), np.float32), "png"),
        (np.zeros((4, 4), np.int8), "png"),
        (np.zeros((4, 4), bool), "png"),
        (np.zeros((4,), np.uint8), "png"),
        (np.zeros((4, 4, 2), np.uint8), "png"),
        (np.zeros((4, 4, 4), np.uint8), "png"),
        (np.zeros((2, 4, 4, 3), np.uint8), "jpeg"),
        (np.zeros((1, 1, 4, 4, 3), np.uint8), "jpeg"),
        (np.zeros((0, 4), np.uint8), "png"),
        (np.zeros((), np.uint8), "png"),
        (np.array(["a"]), "png"),
        (np.zeros((1, 70_000), np.uint8), "jpeg"),
    ],
)
def test_arrays_that_are_no_pictures_are_refused(array: Array, encoding: str) -> None:
    """The message names the tensor, and mostly what would do."""
    with pytest.raises(BadEncoding, match="'x'"):
        encode_tensor("x", array, encoding)


GREY = np.arange(64 * 48, dtype=np.uint8).reshape(48, 64)
JPEG = data_of(bars(), "jpeg")
PROGRESSIVE = cv2.imencode(".jpg", bars()[..., ::-1].astype(np.uint8), [cv2.IMWRITE_JPEG_PROGRESSIVE, 1])[1].tobytes()
PNG = data_of(GREY, "png")


def test_headers_are_read_without_decoding() -> None:
    """Format, size and channels."""
    assert probe_image(JPEG) == ImageInfo("jpeg", 64, 192, 3, progressive=False)
    assert probe_image(PNG) == ImageInfo("png", 48, 64, 1, progressive=False)
    assert probe_image(png(5, 6, b"", bits=16, colour=2)) == ImageInfo("png", 6, 5, 3, progressive=False, bits=16)
    assert probe_image(data_of(GREY, "jpeg")).channels == 1
    assert probe_image(PROGRESSIVE) == ImageInfo("jpeg", 64, 192, 3, progressive=True)


def test_an_ordinary_progressive_jpeg_is_decoded() -> None:
    """Some ten scans are no attack."""
    found = decode_tensor(tensor("jpeg", (64, 192, 3), PROGRESSIVE))
    assert found[32, 16].tolist()[0] > 250


def test_pictures_pass_through_untouched() -> None:
    """The bytes of a file go as they are, and say their shape themselves."""
    colour, grey = encoded_image("x", JPEG, {"image_encoding": "rgb8"}), encoded_image("x", memoryview(PNG))
    assert (colour.encoding, colour.shape, colour.datatype, colour.data) == ("jpeg", (1, 64, 192, 3), "UINT8", JPEG)
    assert (grey.encoding, grey.shape, grey.parameters) == ("png", (1, 48, 64), {})
    assert np.array_equal(decode_tensor(grey)[0], GREY)


def jpeg_header(width: int, height: int, channels: int = 3, marker: int = 0xC0, bits: int = 8) -> bytes:
    """Make a JPEG that ends behind its frame header."""
    frame = struct.pack(">BHHB", bits, height, width, channels) + bytes(3 * channels)
    return b"\xff\xd8\xff" + bytes((marker,)) + struct.pack(">H", len(frame) + 2) + frame


def bomb(width: int, height: int) -> bytes:
    """Take a real JPEG and change its size in the header: 691 bytes once made a decoder take 5 GB."""
    at = JPEG.index(b"\xff\xc0") + 5
    return JPEG[:at] + struct.pack(">HH", height, width) + JPEG[at + 4 :]


BAD_PICTURES: dict[str, tuple[EncodedTensor, str]] = {
    "ten bytes": (tensor("jpeg", (4, 4), b"\xff\xd8\xff\xe0\0\x10JFIF"), "header"),
    "two bytes": (tensor("jpeg", (4, 4), b"\xff\xd8"), "header"),
    "empty": (tensor("jpeg", (4, 4), b""), "neither JPEG nor PNG"),
    "no picture": (tensor("jpeg", (4, 4), b"hello world, how are you"), "neither JPEG nor PNG"),
    "not fetched": (tensor("png", (4, 4), b"version https://git-lfs.github.com/spec/v1\noid"), "run `git lfs pull`"),
    "another format": (tensor("jpeg", (48, 64), PNG), "bytes are png"),
    "another size": (tensor("png", (64, 48), PNG), "48 rows, 64 columns"),
    "colour declared": (tensor("png", (48, 64, 3), PNG), "1 channels"),
    "two in a batch": (tensor("png", (2, 48, 64), PNG), "48 rows"),
    "16 bits declared": (tensor("png", (48, 64), PNG, Datatype.UINT16), "8 bits"),
    "floats declared": (tensor("png", (48, 64), PNG, Datatype.FP32), "8 bits"),
    "no frame": (tensor("jpeg", (4, 4), b"\xff\xd8\xff\xda" + bytes(20)), "frame"),
    "no marker": (tensor("jpeg", (4, 4), b"\xff\xd8" + bytes(20)), "marker"),
    "segments without end": (tensor("jpeg", (4, 4), b"\xff\xd8" + b"\xff\xe0\0\2" * 5000), "frame"),
    "size 0": (tensor("jpeg", (0, 4), jpeg_header(4, 0)), "may be 0"),
    "lossless JPEG": (tensor("jpeg", (4, 4, 3), jpeg_header(4, 4, marker=0xC3)), "0xC3"),
    "CMYK": (tensor("jpeg", (4, 4, 4), jpeg_header(4, 4, 4)), "4 channels"),
    "12 bits": (tensor("jpeg", (4, 4, 3), jpeg_header(4, 4, bits=12)), "12 bits"),
    "JPEG without its end": (tensor("jpeg", (64, 192, 3), JPEG[:-2]), "truncated"),
    "half a JPEG": (tensor("jpeg", (64, 192, 3), JPEG[: len(JPEG) // 2]), "truncated"),
    "only a header": (tensor("jpeg", (8, 8, 3), jpeg_header(8, 8)), "truncated"),
    "many scans": (tensor("jpeg", (64, 192, 3), PROGRESSIVE[:-2] + b"\xff\xda\0\2" * 40 + b"\xff\xd9"), "scans"),
    "half a PNG": (tensor("png", (48, 64), PNG[: len(PNG) // 2]), "truncated"),
    "PNG without its end": (tensor("png", (48, 64), PNG[:-12]), "truncated"),
    "PNG with a flipped bit": (tensor("png", (48, 64), PNG[:60] + bytes((PNG[60] ^ 1,)) + PNG[61:]), "checksum"),
    "PNG without pixels": (tensor("png", (48, 64), png(64, 48, b"")), "corrupt|can't"),
    "PNG with alpha": (tensor("png", (4, 4, 4), png(4, 4, bytes(68), colour=6)), "4 channels"),
    "PNG of no colour type": (tensor("png", (4, 4), png(4, 4, b"", colour=5)), "colour type 5"),
    "PNG of size 0": (tensor("png", (0, 4), png(4, 0, b"")), "above 0"),
    "animation": (tensor("png", (4, 4), png(4, 4, bytes(20), extra=chunk(b"acTL", bytes(8)))), "animations"),
}


@pytest.mark.parametrize("case", BAD_PICTURES)
def test_bad_pictures_are_refused_with_the_reason(case: str) -> None:
    """Nothing is decoded halfway: a decoder's grey picture without an error is not an answer."""
    found, message = BAD_PICTURES[case]
    with pytest.raises(BadEncoding, match=message):
        decode_tensor(found)


@pytest.mark.parametrize(
    "found",
    [
        tensor("jpeg", (30_000, 30_000), bomb(30_000, 30_000)),
        tensor("jpeg", (1, 9_000, 9_000, 3), bomb(9_000, 9_000)),
        tensor("jpeg", (1, 8_000, 8_000, 3), bomb(8_000, 8_000)),
        tensor("png", (9_000, 9_000), png(9_000, 9_000, bytes(100))),
        tensor("png", (8_000, 8_000), png(8_000, 8_000, bytes(1000))),
        tensor("png", (1 << 31,), png(2**31 - 1, 1, b"")),
    ],
)
def test_bombs_are_refused_before_anything_is_decoded(
    found: EncodedTensor, monkeypatch: pytest.MonkeyPatch, takes_at_most: Bound
) -> None:
    """A header that claims the earth costs a typed error and less than 1 MiB; OpenCV is not even asked."""
    monkeypatch.setattr(cv2, "imdecode", lambda *_: pytest.fail("the bomb was decoded"))
    with takes_at_most(1 << 20), pytest.raises(InvalidRequest):
        decode_tensor(found)


def test_a_png_of_more_bytes_than_its_pixels_is_refused() -> None:
    """Of a user's own file, too: it would be inflated to the end, of 4 GiB in a minute."""
    found = png(64, 64, bytes(32 << 20))
    with pytest.raises(BadEncoding, match=r"^PNG with \d+ bytes of pixels holds more than 64x64: a bomb$"):
        check_complete(found, probe_image(found), trusted=True)
    noise = np.random.default_rng(1).integers(0, 256, (64, 64), np.uint8)
    stored = png(64, 64, scanlines(noise))
    assert check_complete(stored, probe_image(stored), trusted=True) is not None


def test_a_frame_hidden_behind_ff_00_is_found() -> None:
    """What looks like a segment to whoever counts FF 00 as a marker is to a decoder the real, and larger, picture."""
    inner = data_of(np.zeros((256, 256), np.uint8), "jpeg")[2:]
    hidden = (
        b"\xff\xd8\xff\x00"
        + struct.pack(">H", len(inner) + 2)
        + inner
        + data_of(np.zeros((16, 16), np.uint8), "jpeg")[2:]
    )
    with pytest.raises(BadEncoding, match="no marker at byte 2"):
        decode_tensor(tensor("jpeg", (16, 16), hidden))


def test_a_png_that_inflates_to_more_than_its_pixels_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """64 MiB behind a picture of 256x256: OpenCV would read them to the end, at a second for each 300 KB."""
    monkeypatch.setattr(cv2, "imdecode", lambda *_: pytest.fail("the bomb was decoded"))
    pixels = scanlines(np.zeros((256, 256), np.uint8)) + bytes(64 << 20)
    with pytest.raises(BadEncoding, match="inflates to more"):
        decode_tensor(tensor("png", (256, 256), png(256, 256, pixels)))


@pytest.mark.parametrize("level", [0, 1, 9])
@pytest.mark.parametrize("bits", [8, 16])
def test_a_png_that_compresses_badly_is_decoded(level: int, bits: int) -> None:
    """Noise takes as much as its pixels and more."""
    array = np.random.default_rng(1).integers(0, 1 << bits, (300, 200, 3), f"u{bits // 8}")
    assert np.array_equal(decode_tensor(encode_tensor("x", array, f"png:{level}")), array)


def test_corrupt_pixels_of_a_large_png_are_refused() -> None:
    """Checksums are right, the deflated data are not."""
    data = png(300, 300, b"")[:33] + chunk(b"IDAT", b"\x78\x01" + bytes(range(256)) * 200) + chunk(b"IEND", b"")
    with pytest.raises(BadEncoding, match="corrupt pixels"):
        decode_tensor(tensor("png", (300, 300), data))


def test_texts_and_profiles_of_a_png_do_not_reach_the_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    """They may inflate to gigabytes (2 MB took 17 s); the pixels are the same without them."""
    text, seen = zlib.compress(bytes(1 << 20)), list[int]()
    real = cv2.imdecode

    def watched(data: Any, flags: int) -> object:
        seen.append(data.size)
        return real(data, flags)

    monkeypatch.setattr(cv2, "imdecode", watched)
    kinds = (b"zTXt", b"iTXt", b"iCCP", b"tEXt", b"eXIf", b"gAMA")
    extra = b"".join(chunk(kind, b"k\0\0" + text) for kind in kinds for _ in range(20))
    found = decode_tensor(tensor("png", (1, 64, 192, 3), png(192, 64, scanlines(bars()), colour=2, extra=extra)))
    assert np.array_equal(found[0], bars())
    assert seen == [len(png(192, 64, scanlines(bars()), colour=2))]


def test_the_pixel_limit_is_the_receivers() -> None:
    """A limit of pixels is kept to the pixel."""
    whole = tensor("png", (48, 64), PNG)
    assert decode_tensor(whole, Limits(image_pixels=48 * 64)).shape == (48, 64)
    with pytest.raises(LimitExceeded, match="64x48"):
        decode_tensor(whole, Limits(image_pixels=48 * 64 - 1))


@given(st.sampled_from(["JPEG", "PNG"]), st.data())
@settings(max_examples=150)
def test_mutated_pictures_give_an_array_or_a_typed_error(kind: str, data: st.DataObject) -> None:
    """Flipped bytes, cut ends and doubled parts: the declared array, or one of our errors."""
    original, shape = (JPEG, (64, 192, 3)) if kind == "JPEG" else (PNG, (48, 64))
    changed = bytearray(original)
    for _ in range(data.draw(st.integers(1, 4))):
        changed[data.draw(st.integers(0, len(original) - 1))] = data.draw(st.integers(0, 255))
    end = data.draw(st.sampled_from([len(changed), data.draw(st.integers(0, len(changed)))]))
    found = replace(tensor(kind.lower(), shape, b""), data=bytes(changed[:end]))
    with suppress(InvalidRequest):
        assert decode_tensor(found).shape == shape

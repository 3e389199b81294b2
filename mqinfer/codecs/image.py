"""`jpeg` and `png`: pictures of 8 bits (PNG also 16), decoded to grey or RGB, through OpenCV.

The header is read and compared with the declared shape and the limits before anything is decoded: a JPEG of 691 bytes
once made OpenCV allocate 5 GB. ICC profiles and EXIF orientation are ignored: the pixels are returned as stored.

Headers of JPEG: ITU-T T.81, annex B; of PNG: https://www.w3.org/TR/png-3/. Every loop is bounded by a number of
segments.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from struct import Struct

import numpy as np

from mqinfer.codecs.codec import Encoded, Traits
from mqinfer.codecs.opencv import opencv
from mqinfer.protocol.datatypes import Array, Datatype
from mqinfer.protocol.errors import BadEncoding, LimitExceeded
from mqinfer.protocol.limits import Limits
from mqinfer.protocol.types import Buffer, EncodedTensor, Scalar

_SOI, _EOI, _SOS = b"\xff\xd8", b"\xff\xd9", b"\xff\xda"
_LFS_POINTER = b"version https://git-lfs"
_PNG = b"\x89PNG\r\n\x1a\n"
_FRAMES = {0xC0: False, 0xC1: False, 0xC2: True}
"""Start-of-frame markers that are read: baseline and extended sequential (not progressive), and progressive."""
_OTHER_FRAMES = frozenset(range(0xC3, 0xD0)) - {0xC4, 0xC8, 0xCC}
_BARE = frozenset((0x01, *range(0xD0, 0xD9)))
"""Markers that no segment follows."""
_MAX_SEGMENTS = 1024
_MAX_CHUNKS = 1 << 16
_MAX_SCANS = 32
_PIXELS_PER_JPEG_BYTE = 512
"""The first scan spends at least one bit on each 8x8 block, whatever its Huffman codes."""
_MAX_DEFLATE_RATIO = 1032
"""A byte of deflate inflates to at most this many (https://zlib.net/zlib_tech.html)."""
_HARMLESS = 1 << 14
"""Bytes of deflate that inflate to at most 16 MiB; longer data are inflated to check that they end with the picture."""
_INFLATED = 1 << 16
"""Bytes inflated at a time for that check."""
_PIXEL_CHUNKS = frozenset((b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND"))
_SEGMENT = Struct(">BBH")
_FRAME = Struct(">BHHB")
_IHDR = Struct(">II4sIIBBBBB")
_CHUNK = Struct(">I4s")
_UINT32 = Struct(">I")
_PNG_CHANNELS = {0: 1, 2: 3, 3: 3, 4: 2, 6: 4}


@dataclass(frozen=True, slots=True)
class ImageInfo:
    """Format and size of an encoded picture.

    Attributes:
        format: `jpeg` or `png`.
        height: Rows, at least 1.
        width: Columns, at least 1.
        channels: 1 grey, 2 grey with alpha, 3 colour (a palette too), 4 colour with alpha or CMYK.
        progressive: Whether it is a progressive JPEG or an interlaced PNG.
        bits: Bits of one sample after decoding, 8 or 16 (12 in JPEGs that are refused later).
    """

    format: str
    height: int
    width: int
    channels: int
    progressive: bool
    bits: int = 8

    @property
    def decoded(self) -> tuple[int, ...]:
        """Shape of its pixels: grey or RGB, since alpha is left out and CMYK is converted."""
        return (self.height, self.width) if self.channels == 1 else (self.height, self.width, 3)


def probe_image(data: Buffer) -> ImageInfo:
    """Return format and size from the header; takes microseconds for any size.

    Raises:
        BadEncoding: It is neither JPEG nor PNG, or its header is corrupt.
    """
    view = memoryview(data)
    try:
        if view[:2] == _SOI:
            return _jpeg_header(view)
        if view[:8] == _PNG:
            return _png_header(view)
    except struct.error as error:
        raise BadEncoding(f"image of {len(view)} bytes ends within its header") from error
    if pointer := lfs_pointer(view, "the picture"):
        raise BadEncoding(pointer)
    raise BadEncoding(f"image of {len(view)} bytes begins with {bytes(view[:4])!r}: neither JPEG nor PNG")


def lfs_pointer(head: Buffer, what: str) -> str:
    """Return what is wrong, and what to do, where a file's first bytes are a Git LFS pointer; else an empty string.

    Args:
        head: At least 32 bytes, or all there are.
        what: The thing that should be there.
    """
    if bytes(memoryview(head)[: len(_LFS_POINTER)]) != _LFS_POINTER:
        return ""
    return f"a Git LFS pointer and not {what}; run `git lfs pull` where it came from, and copy it again"


def check_complete(data: Buffer, info: ImageInfo, *, trusted: bool = False) -> Buffer:
    """Raise for pictures that decoders accept silently or take too long for: truncated, bombs, JPEGs of many scans.

    Args:
        data: The picture.
        info: Its format and size.
        trusted: Skip the check that a PNG does not inflate to more than its pixels, which takes half as long as
            decoding it; for the user's own files.

    Returns:
        The bytes to decode: the picture; for a PNG only the chunks of its pixels, since decoders inflate its texts and
        profiles too, and a few bytes of those can take minutes.

    Raises:
        BadEncoding: The picture is truncated, or claims more than its bytes can hold.
    """
    try:
        if info.format == "jpeg":
            _check_jpeg(memoryview(data), info)
            return data
        return _plain_png(memoryview(data), info, trusted=trusted)
    except struct.error as error:
        raise BadEncoding(f"{info.format} of {len(data)} bytes is truncated") from error


def _segments(view: memoryview) -> Iterator[tuple[int, int]]:
    """Yield each marker of a JPEG up to the first scan, and where its content begins."""
    position = 2
    for _ in range(_MAX_SEGMENTS):
        prefix, marker, length = _SEGMENT.unpack_from(view, position)
        if prefix != 0xFF or not marker:  # behind FF 00, decoders look for the next marker within what seems a segment
            raise BadEncoding(f"JPEG: no marker at byte {position}")
        if marker == 0xFF or marker in _BARE:
            position += 1 if marker == 0xFF else 2
            continue
        yield marker, position + 4
        if marker in (_SOS[1], _EOI[1]) or length < 2:
            return
        position += 2 + length


def _jpeg_header(view: memoryview) -> ImageInfo:
    for marker, content in _segments(view):
        if marker in _FRAMES:
            bits, height, width, channels = _FRAME.unpack_from(view, content)
            if not height or not width or not channels:
                raise BadEncoding(f"JPEG: {width}x{height} with {channels} components; none may be 0")
            return ImageInfo("jpeg", height, width, channels, _FRAMES[marker], bits)
        if marker in _OTHER_FRAMES:
            raise BadEncoding(
                f"JPEG: coding process 0x{marker:02X} (lossless, hierarchical or arithmetic) is not supported"
            )
    raise BadEncoding("JPEG: no frame header before the pixels")


def _check_jpeg(view: memoryview, info: ImageInfo) -> None:
    if info.height * info.width > len(view) * _PIXELS_PER_JPEG_BYTE:
        raise BadEncoding(
            f"JPEG of {len(view)} bytes can't hold {info.width}x{info.height} pixels: truncated, or a bomb"
        )
    start = next((content for marker, content in _segments(view) if marker == _SOS[1]), len(view))
    scan = bytes(view[start:])
    if scan.rfind(_EOI) < 0:
        raise BadEncoding(f"JPEG of {len(view)} bytes has no end-of-image marker: truncated")
    if scan[0] == info.channels and not info.progressive:
        return  # one scan holds all components: the decoder stops behind it
    scans = 1 + scan.count(_SOS)
    if scans > _MAX_SCANS:
        raise BadEncoding(f"JPEG has {scans} scans; at most {_MAX_SCANS} are accepted: save it as baseline JPEG")


def _png_header(view: memoryview) -> ImageInfo:
    _, _, kind, width, height, bits, colour, _, _, interlace = _IHDR.unpack_from(view, 4)
    if kind != b"IHDR" or not 0 < width < 1 << 31 or not 0 < height < 1 << 31:
        raise BadEncoding(f"PNG: first chunk {kind!r}, {width}x{height}; IHDR with a size above 0 must be the first")
    if colour not in _PNG_CHANNELS or bits not in (1, 2, 4, 8, 16):
        raise BadEncoding(f"PNG: colour type {colour} with {bits} bits a sample does not exist")
    return ImageInfo("png", height, width, _PNG_CHANNELS[colour], bool(interlace), 16 if bits == 16 else 8)


def _plain_png(view: memoryview, info: ImageInfo, *, trusted: bool) -> Buffer:
    kept, pixels, others = [view[: len(_PNG)]], list[memoryview](), False
    for kind, start, end in _chunks(view):
        if kind == b"acTL":
            raise BadEncoding("PNG: animations are not supported; send one picture")
        if kind == b"IDAT":
            pixels.append(view[start + 8 : end - 4])
        if kind in _PIXEL_CHUNKS:
            kept.append(view[start:end])
        else:
            others = True
    compressed = sum(map(len, pixels))
    least = info.height * (1 + (info.width + 7) // 8)
    if least > compressed * _MAX_DEFLATE_RATIO:
        raise BadEncoding(f"PNG with {compressed} bytes of pixels can't hold {info.width}x{info.height}: a bomb")
    most = _most_bytes(info)
    if compressed > most + most // 8 + _HARMLESS:
        raise BadEncoding(f"PNG with {compressed} bytes of pixels holds more than {info.width}x{info.height}: a bomb")
    if compressed > _HARMLESS and not trusted:
        _check_end(pixels, info)
    return b"".join(kept) if others else view


def _chunks(view: memoryview) -> Iterator[tuple[bytes, int, int]]:
    """Yield kind, begin and end of each chunk of a PNG up to IEND, after checking its checksum."""
    position = len(_PNG)
    for _ in range(_MAX_CHUNKS):
        length, kind = _CHUNK.unpack_from(view, position)
        end = position + 8 + length
        (stored,) = _UINT32.unpack_from(view, end)
        if zlib.crc32(view[position + 4 : end]) != stored:
            raise BadEncoding(f"PNG: checksum of chunk {kind!r} at byte {position} is wrong")
        yield kind, position, end + 4
        if kind == b"IEND":
            return
        position = end + 4
    raise BadEncoding(f"PNG has more than {_MAX_CHUNKS} chunks")


def _most_bytes(info: ImageInfo) -> int:
    """Return how many bytes of pixels there are at most: those of a palette or of bits of less than 8 take less."""
    return info.height * (info.width * info.channels * info.bits // 8 + 3) + 64  # Adam7 begins more rows


def _check_end(pixels: Sequence[memoryview], info: ImageInfo) -> None:
    """Raise where the deflated pixels go on behind the picture: OpenCV would inflate them to the end."""
    left = _most_bytes(info)
    inflating = zlib.decompressobj()
    for piece in pixels:
        rest: Buffer = piece
        while rest and not inflating.eof:
            try:
                left -= len(inflating.decompress(rest, _INFLATED))
            except zlib.error as error:
                raise BadEncoding(f"PNG: corrupt pixels: {error}") from error
            if left < 0:
                raise BadEncoding(f"PNG inflates to more than its {info.width}x{info.height} pixels: a bomb")
            rest = inflating.unconsumed_tail


ReadPicture = Callable[[Buffer, ImageInfo], Array | None]
"""Decodes a picture with a checked header to [H, W] or [H, W, channels], in RGB order; None if it is corrupt."""

_DATATYPES = {8: Datatype.UINT8, 16: Datatype.UINT16}
_TRAITS = {
    "jpeg": Traits(range(1, 101), default_level=90, is_lossy=True, share=0.06, package="cv2", auto_colours=True),
    "png": Traits(range(10), default_level=1, share=0.5, package="cv2", auto_colours=True),
}
_DTYPES = {"jpeg": (np.uint8,), "png": (np.uint8, np.uint16)}
_RULE = {"jpeg": "UINT8", "png": "UINT8 or UINT16"}


def encoded_image(name: str, data: Buffer, parameters: Mapping[str, Scalar] | None = None) -> EncodedTensor:
    """Return a JPEG or PNG file as a tensor, without decoding it.

    Args:
        name: Name of the model's input.
        data: The whole file.
        parameters: Further parameters of the tensor.

    Returns:
        A tensor of shape [1, H, W, 3], or [1, H, W] for grey.

    Raises:
        BadEncoding: It is neither JPEG nor PNG, or of a kind that receivers refuse (12 bits).
    """
    info = probe_image(data)
    _check_kind(name, info)
    return EncodedTensor(name, _DATATYPES[info.bits], (1, *info.decoded), info.format, data, parameters or {})


def read_with_opencv(data: Buffer, info: ImageInfo) -> Array | None:
    """Decode a picture on the CPU; the default `ReadPicture`.

    Raises:
        MissingExtra: OpenCV is not installed.
    """
    cv2 = opencv()
    colour = cv2.IMREAD_GRAYSCALE if info.channels == 1 else cv2.IMREAD_COLOR_RGB
    flags = colour | cv2.IMREAD_ANYDEPTH | cv2.IMREAD_IGNORE_ORIENTATION
    try:
        picture: Array | None = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
    except cv2.error:
        return None
    return picture


@dataclass(frozen=True, slots=True)
class ImageCodec:
    """The codecs `jpeg` and `png`, for [H, W], [H, W, 1] or [H, W, 3] in RGB order, with an optional leading axis of 1.

    Attributes:
        format: `jpeg` (levels are its quality, 1 to 100) or `png` (levels are zlib's, 0 to 9).
        read: The decoder.
    """

    format: str
    read: ReadPicture = read_with_opencv

    @property
    def traits(self) -> Traits:
        """Levels are the quality of a JPEG, or the compression of a PNG."""
        return _TRAITS[self.format]

    def encode(self, name: str, array: Array, level: int | None) -> Encoded:
        """Encode a picture."""
        cv2 = opencv()
        picture = self._picture(name, array)
        wanted = self.traits.default_level if level is None else level
        option = cv2.IMWRITE_JPEG_QUALITY if self.format == "jpeg" else cv2.IMWRITE_PNG_COMPRESSION
        try:
            stored = cv2.cvtColor(picture, cv2.COLOR_RGB2BGR) if picture.ndim == 3 else picture
            done, data = cv2.imencode("." + self.format, stored, [option, wanted])
        except cv2.error as error:
            raise BadEncoding(f"tensor {name!r}: OpenCV can't encode it as {self.format}: {error}") from error
        if not done:
            raise BadEncoding(f"tensor {name!r}: OpenCV can't encode it as {self.format}")
        return Encoded(data.reshape(-1).data)

    def decode(self, tensor: EncodedTensor, limits: Limits) -> Array:
        """Decode a picture."""
        info = probe_image(tensor.data)
        self._check_declared(tensor, info)
        if info.height * info.width > limits.image_pixels:
            raise LimitExceeded(
                f"tensor {tensor.name!r}: {info.width}x{info.height} pixels; at most {limits.image_pixels} are accepted"
            )
        picture = self.read(check_complete(tensor.data, info), info)
        if picture is None or picture.size * picture.itemsize != prod(info.decoded) * info.bits // 8:
            raise BadEncoding(f"tensor {tensor.name!r}: the {info.format} of {len(tensor.data)} bytes is corrupt")
        return picture.reshape(tensor.shape)

    def _picture(self, name: str, array: Array) -> Array:
        """Return the array without the batch axis and without the axis of a single channel."""
        shape = array.shape[1:] if _is_batch_of_one(array.shape) else array.shape
        grey = len(shape) == 2 or (len(shape) == 3 and shape[2] == 1)
        if not (grey or (len(shape) == 3 and shape[2] == 3)) or 0 in shape or array.dtype not in _DTYPES[self.format]:
            raise BadEncoding(
                f"tensor {name!r}: {self.format} takes {_RULE[self.format]} of shape [H, W], [H, W, 1] or [H, W, 3],"
                f" with an optional leading 1, not {array.dtype} of {list(array.shape)}; use lz4 or raw"
            )
        return np.ascontiguousarray(array).reshape(shape[:2] if grey else shape)

    def _check_declared(self, tensor: EncodedTensor, info: ImageInfo) -> None:
        if info.format != self.format:
            raise BadEncoding(f"tensor {tensor.name!r}: encoding is {self.format}, but the bytes are {info.format}")
        _check_kind(tensor.name, info)
        size = info.decoded
        frames = (size, (*size, 1)) if len(size) == 2 else (size,)
        if tensor.shape not in (*frames, *((1, *frame) for frame in frames)):
            raise BadEncoding(
                f"tensor {tensor.name!r}: shape {list(tensor.shape)} is declared, but the {info.format} has"
                f" {info.height} rows, {info.width} columns and {info.channels} channels"
            )
        if tensor.datatype is not _DATATYPES[info.bits]:
            raise BadEncoding(
                f"tensor {tensor.name!r}: {tensor.datatype} is declared, but samples have {info.bits} bits"
            )


def _is_batch_of_one(shape: tuple[int, ...]) -> bool:
    """Return whether the first axis is a batch axis; [1, W, 3] is one row of colour rather than a grey picture."""
    return shape[:1] == (1,) and (len(shape) == 4 or (len(shape) == 3 and shape[2] not in (1, 3)))


def _check_kind(name: str, info: ImageInfo) -> None:
    if not 1 <= info.channels <= 4 or info.bits not in _DATATYPES:
        raise BadEncoding(
            f"tensor {name!r}: {info.format} with {info.channels} channels of {info.bits} bits is not supported;"
            " save it as 8-bit grey or RGB"
        )

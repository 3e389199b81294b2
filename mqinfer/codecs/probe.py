"""The headers of JPEG and PNG files, read before anything is decoded.

JPEG: ITU-T T.81, annex B. PNG: https://www.w3.org/TR/png-3/. Every loop is bounded by a number of segments.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from struct import Struct

from mqinfer.protocol.errors import BadEncoding
from mqinfer.protocol.types import Buffer

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


def _check_end(pixels: Sequence[memoryview], info: ImageInfo) -> None:
    """Raise where the deflated pixels go on behind the picture: OpenCV would inflate them to the end."""
    # A palette and bits of less than 8 take less than this; Adam7 begins at most two rows and a bit for each one.
    left = info.height * (info.width * info.channels * info.bits // 8 + 3) + 64
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

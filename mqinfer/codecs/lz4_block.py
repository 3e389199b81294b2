"""`lz4`, `shuffle-lz4` and `mask`: one LZ4 block, without a stored size.

The block format is https://github.com/lz4/lz4/blob/dev/doc/lz4_Block_format.md. The size of what is in it is that of
datatype and shape (for BYTES: the parameter `raw_size`; for masks: that of the runs), never one that the block claims:
fourteen bytes can claim 2 GiB.

`lz4` and `shuffle-lz4` have the raw form in the block. `mask` has class masks, as run lengths or as packed pixels: the
first eight bytes state which of the two it is; docs/reference/protocol.md, section 6, has the format byte by byte.
Masks of segmentation networks become runs: a quarter of the bytes of `lz4`, and less than half of a PNG, which takes
twenty times as long. Noise and pictures are packed, which takes little more than `lz4`.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct

import lz4.block
import numpy as np
import numpy.typing as npt

from mqinfer.codecs.codec import Encoded, Traits
from mqinfer.protocol.datatypes import Array, Datatype, dtype_of, from_raw, nbytes, raw_bytes
from mqinfer.protocol.errors import BadEncoding, LimitExceeded
from mqinfer.protocol.header import RAW_SIZE
from mqinfer.protocol.limits import Limits
from mqinfer.protocol.types import Buffer, EncodedTensor

_PLAIN = Traits(range(1, 13), auto_colours=True, auto_depth=True)
_SHUFFLED = Traits(range(1, 13), auto_depth=True)
_MAX_RATIO = 255
"""A block of n bytes decompresses to at most 255 * n bytes, since the length of a run grows by 255 with each byte."""


@dataclass(frozen=True, slots=True)
class Lz4Codec:
    """The codecs `lz4` and `shuffle-lz4`, which groups bytes of equal significance so that floats compress better.

    Levels 1 to 12 select LZ4's high-compression mode; without a level it is the fast mode. Receivers need not know.
    """

    shuffle: bool = False

    @property
    def traits(self) -> Traits:
        """LZ4 HC's levels. Samples of one byte, as colours have, gain nothing by being grouped."""
        return _SHUFFLED if self.shuffle else _PLAIN

    def encode(self, name: str, array: Array, level: int | None) -> Encoded:
        """Encode an array."""
        data = raw_bytes(name, array)
        size = memoryview(data).nbytes
        if self.shuffle and array.dtype.kind != "O":
            data = _transpose(data, (-1, array.itemsize))
        parameters = {RAW_SIZE: size} if array.dtype.kind == "O" else {}
        return Encoded(compress_block(data, level) if size else b"", parameters)

    def decode(self, tensor: EncodedTensor, limits: Limits) -> Array:
        """Decode an array; exactly the declared size is allocated."""
        raw: Buffer = decompress_block(tensor.name, tensor.data, _raw_size(tensor, limits))
        if self.shuffle and tensor.datatype is not Datatype.BYTES:
            raw = _transpose(raw, (dtype_of(tensor.datatype).itemsize, -1))
        return from_raw(tensor.name, tensor.datatype, tensor.shape, raw)


def compress_block(data: Buffer, level: int | None) -> bytes:
    """Compress to one LZ4 block, in the fast mode unless a level of the high-compression mode is given."""
    mode = "default" if level is None else "high_compression"
    packed: bytes = lz4.block.compress(data, mode=mode, compression=level or 9, store_size=False)
    return packed


def _raw_size(tensor: EncodedTensor, limits: Limits) -> int:
    if tensor.datatype is not Datatype.BYTES:
        return nbytes(tensor.datatype, tensor.shape)
    size = tensor.parameters.get(RAW_SIZE)
    if type(size) is not int or size < 0:
        raise BadEncoding(f"tensor {tensor.name!r}: LZ4 of a BYTES tensor needs the parameter {RAW_SIZE!r}, in bytes")
    if size > limits.tensor_bytes:
        raise LimitExceeded(f"tensor {tensor.name!r}: {RAW_SIZE} is {size}; at most {limits.tensor_bytes} are accepted")
    return size


def decompress_block(name: str, packed: Buffer, size: int) -> bytes:
    """Decompress one LZ4 block to exactly `size` bytes; no more is allocated.

    Args:
        name: Name of the tensor, for messages.
        packed: The block; empty for no bytes.
        size: Bytes that it must decompress to.

    Raises:
        BadEncoding: It is corrupt, or decompresses to more or less.
    """
    length = memoryview(packed).nbytes
    if size > length * _MAX_RATIO or (length and not size):
        raise BadEncoding(f"tensor {name!r}: {length} bytes of LZ4 can't hold the {size} bytes that are declared")
    if not size:
        return b""
    try:
        raw: bytes = lz4.block.decompress(packed, uncompressed_size=size)
    except lz4.block.LZ4BlockError as error:
        raise BadEncoding(
            f"tensor {name!r}: LZ4 block of {length} bytes is corrupt, or holds more than the {size} declared"
        ) from error
    if len(raw) != size:
        raise BadEncoding(f"tensor {name!r}: LZ4 block holds {len(raw)} bytes, but {size} are declared")
    return raw


def _transpose(data: Buffer, rows: tuple[int, int]) -> Buffer:
    table = np.frombuffer(data, np.uint8)
    return np.ascontiguousarray(table.reshape(rows).T).reshape(-1).data if table.size else b""


Pixels = npt.NDArray[np.uint8]

_HEAD = Struct("<II")
"""Bits of a packed pixel, or 0 for runs; number of runs."""
_RUNS = 0
_BITS = (1, 2, 4, 8)
_LONGEST = (1 << 16) - 1
_PIXELS_PER_RUN = 8
"""Least number of pixels a run, on average; shorter runs take several times the memory of the pixels to expand."""
_BYTES_PER_RUN = 3


class MaskCodec:
    """The codec of that name, for UINT8 and BOOL of any shape; levels are those of `lz4`."""

    traits = Traits(range(1, 13), is_lossy=True)

    def encode(self, name: str, array: Array, level: int | None) -> Encoded:
        """Encode a mask: as runs if they are long enough, else with as few bits a pixel as its largest number needs."""
        if array.dtype not in (np.uint8, np.bool_):
            raise BadEncoding(f"tensor {name!r}: mask takes UINT8 or BOOL, not {array.dtype}; use lz4 or raw")
        if not array.size:
            return Encoded(b"")
        pixels = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        bounds = _bounds(pixels)
        most = bounds.size + pixels.size // _LONGEST  # runs that are too long are split
        if most * _PIXELS_PER_RUN <= pixels.size:
            content = _write_runs(pixels, bounds)
            head = _HEAD.pack(_RUNS, content.size // _BYTES_PER_RUN)
        else:
            bits = next(bits for bits in _BITS if pixels.max() < 1 << bits)
            content, head = _pack(pixels, bits), _HEAD.pack(bits, 0)
        return Encoded(head + compress_block(content.data, level))

    def decode(self, tensor: EncodedTensor, _limits: Limits) -> Array:
        """Decode a mask."""
        if tensor.datatype not in (Datatype.UINT8, Datatype.BOOL):
            raise BadEncoding(f"tensor {tensor.name!r}: mask holds UINT8 or BOOL, not {tensor.datatype}")
        pixels = _read(tensor.name, memoryview(tensor.data), nbytes(tensor.datatype, tensor.shape))
        if tensor.datatype is Datatype.BOOL and pixels.max(initial=0) > 1:
            raise BadEncoding(f"tensor {tensor.name!r}: a BOOL must be 0 or 1")
        mask: Array = pixels.view(dtype_of(tensor.datatype)).reshape(tensor.shape)
        return mask


def _read(name: str, data: memoryview, size: int) -> Pixels:
    if not size and not data:
        return np.zeros(0, np.uint8)
    if not size or len(data) < _HEAD.size:
        raise BadEncoding(f"tensor {name!r}: a mask of {size} pixels can't have {len(data)} bytes")
    bits, runs = _HEAD.unpack_from(data)
    block = data[_HEAD.size :]
    if bits == _RUNS and 0 < runs * _PIXELS_PER_RUN <= size:
        return _read_runs(name, decompress_block(name, block, runs * _BYTES_PER_RUN), size)
    if bits in _BITS and not runs:
        return _unpack(decompress_block(name, block, -(-size * bits // 8)), bits, size)
    raise BadEncoding(
        f"tensor {name!r}: a mask of {size} pixels can't have {runs} runs and {bits} bits a pixel; it has either 1, 2,"
        f" 4 or 8 bits and no runs, or 0 bits and runs of {_PIXELS_PER_RUN} pixels on average"
    )


def _bounds(pixels: Pixels) -> npt.NDArray[np.intp]:
    """Return where runs begin, and where the last one ends."""
    changes = np.flatnonzero(pixels[1:] != pixels[:-1])
    bounds = np.empty(changes.size + 2, np.intp)
    bounds[0], bounds[-1] = 0, pixels.size
    np.add(changes, 1, out=bounds[1:-1])
    return bounds


def _write_runs(pixels: Pixels, bounds: npt.NDArray[np.intp]) -> Pixels:
    """Return three planes: the runs' class numbers, the low bytes of their lengths, the high bytes."""
    values, lengths = pixels[bounds[:-1]], bounds[1:] - bounds[:-1]
    if lengths.max() > _LONGEST:
        values, lengths = _split(values, lengths)
    planes = np.empty((_BYTES_PER_RUN, values.size), np.uint8)
    planes[0] = values
    planes[1:] = lengths.astype("<u2").view(np.uint8).reshape(-1, 2).T
    return planes.reshape(-1)


def _split(values: Pixels, lengths: npt.NDArray[np.intp]) -> tuple[Pixels, npt.NDArray[np.intp]]:
    """Split runs that are too long for 16 bits into several of the same class."""
    parts = -(-lengths // _LONGEST)
    pieces = np.full(parts.sum(), _LONGEST)
    pieces[np.cumsum(parts) - 1] = lengths - (parts - 1) * _LONGEST
    return np.repeat(values, parts), pieces


def _read_runs(name: str, content: Buffer, size: int) -> Pixels:
    planes = np.frombuffer(content, np.uint8).reshape(_BYTES_PER_RUN, -1)
    lengths = np.ascontiguousarray(planes[1:].T).view("<u2")[:, 0]
    total = int(lengths.sum(dtype=np.int64))
    if total != size:
        raise BadEncoding(f"tensor {name!r}: the mask's runs have {total} pixels, but {size} are declared")
    return np.repeat(planes[0], lengths)


def _pack(pixels: Pixels, bits: int) -> Pixels:
    """Pack as many pixels as fit into each byte, the first one in the lowest bits."""
    if bits == 8:
        return pixels
    count = 8 // bits
    padded = np.zeros((-(-pixels.size // count), count), np.uint8)
    padded.reshape(-1)[: pixels.size] = pixels
    packed = padded[:, 0].copy()
    for place in range(1, count):
        packed |= padded[:, place] << np.uint8(bits * place)
    return packed


def _unpack(content: Buffer, bits: int, size: int) -> Pixels:
    packed = np.frombuffer(content, np.uint8)
    if bits == 8:
        return packed
    count = 8 // bits
    pixels = np.empty((packed.size, count), np.uint8)
    for place in range(count):
        pixels[:, place] = packed >> bits * place & (1 << bits) - 1
    return pixels.reshape(-1)[:size]

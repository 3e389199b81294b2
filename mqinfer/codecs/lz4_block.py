"""`lz4` and `shuffle-lz4`: the raw form in one LZ4 block, without a stored size.

The block format is https://github.com/lz4/lz4/blob/dev/doc/lz4_Block_format.md. The size of the raw form
is that of datatype and shape (for BYTES: the parameter `raw_size`), never one that the block claims: fourteen bytes can
claim 2 GiB.
"""

from __future__ import annotations

from dataclasses import dataclass

import lz4.block
import numpy as np

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

"""Codecs by name: arrays to encoded tensors and back."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from mqinfer.codecs.codec import Codec, Encoded, Traits
from mqinfer.codecs.gpu_jpeg import jpeg_reader
from mqinfer.codecs.h264 import H264Codec
from mqinfer.codecs.image import ImageCodec
from mqinfer.codecs.lz4_block import Lz4Codec, MaskCodec
from mqinfer.extras import is_installed
from mqinfer.protocol.datatypes import Array, array_bytes, datatype_of, from_raw, little_endian, raw_bytes
from mqinfer.protocol.errors import BadEncoding, LimitExceeded, MqinferError
from mqinfer.protocol.limits import DEFAULT_LIMITS, Limits
from mqinfer.protocol.types import EncodedTensor, InferResponse, Scalar

Codecs = Mapping[str, Codec]
"""Codecs by name."""


class _RawCodec:
    """The codec `raw`: an array's own bytes, without a copy either way."""

    traits = Traits(auto_colours=True, auto_depth=True)

    def encode(self, name: str, array: Array, _level: int | None) -> Encoded:
        """Encode an array; a contiguous one is not copied."""
        return Encoded(raw_bytes(name, array))

    def decode(self, tensor: EncodedTensor, _limits: Limits) -> Array:
        """Decode an array as a read-only view."""
        return from_raw(tensor.name, tensor.datatype, tensor.shape, tensor.data)


_CODECS: Codecs = {
    "raw": _RawCodec(),
    "lz4": Lz4Codec(),
    "shuffle-lz4": Lz4Codec(shuffle=True),
    "mask": MaskCodec(),
    "jpeg": ImageCodec("jpeg"),
    "png": ImageCodec("png"),
    "h264": H264Codec(),
}
"""All encodings; one more is a file of its own and a line here."""
ENCODINGS = frozenset(_CODECS)
"""Their names."""
LOSSY = frozenset(name for name, codec in _CODECS.items() if codec.traits.is_lossy)
"""Encodings that carry no distances, and no mosaic of a sensor."""
STATEFUL = frozenset(name for name, codec in _CODECS.items() if codec.traits.stream)
"""Encodings that may need a stream's earlier pictures."""
_LEVEL = re.compile("[0-9]{1,6}")


@dataclass(frozen=True, slots=True)
class Encoding:
    """The name of a codec, and the requested level (None for its default)."""

    name: str
    level: int | None = None


def available_encodings() -> tuple[str, ...]:
    """Return the names of the codecs that work here: `jpeg` and `png` need OpenCV, `h264` PyAV."""
    packages = {codec.traits.package for codec in _CODECS.values()} - {""}
    missing = {package for package in packages if not is_installed(package)}
    return tuple(name for name, codec in _CODECS.items() if codec.traits.package not in missing)


def traits_of(text: str) -> Traits:
    """Return the traits of an encoding such as `jpeg:90`.

    Raises:
        BadEncoding: There is no such codec, or it has no such level.
    """
    return _CODECS[parse_encoding(text).name].traits


def codecs_for(device: str) -> Codecs:
    """Return the codecs for a process whose model runs on `device`; on `cuda:N` that GPU decodes JPEGs if it can."""
    return {**_CODECS, "jpeg": ImageCodec("jpeg", jpeg_reader(device))}


@lru_cache(maxsize=64)
def parse_encoding(text: str) -> Encoding:
    """Parse an encoding such as `raw`, `jpeg:90` or `lz4:9`.

    Raises:
        BadEncoding: There is no such codec, or it has no such level.
    """
    name, colon, level = text.partition(":")
    codec = _CODECS.get(name)
    if codec is None:
        raise BadEncoding(f"unknown encoding {text[:60]!r}; known are {', '.join(_CODECS)}")
    if not colon:
        return Encoding(name)
    levels = codec.traits.levels
    if not (_LEVEL.fullmatch(level) and int(level) in levels):
        known = f"{levels[0]} to {levels[-1]}" if levels else "none"
        raise BadEncoding(f"encoding {text[:60]!r} has no such level; levels of {name}: {known}")
    return Encoding(name, int(level))


def encode_tensor(
    name: str, array: Array, encoding: str = "raw", parameters: Mapping[str, Scalar] | None = None
) -> EncodedTensor:
    """Encode an array as it will travel.

    Args:
        name: Name of the model's input or output.
        array: Any shape and strides, either byte order; strings become BYTES.
        encoding: The name of a codec, optionally with a level, such as `jpeg:90`.
        parameters: Further parameters of the tensor.

    Returns:
        The tensor. With `raw` and a contiguous array, `data` is a view: don't change the array until it has been sent.

    Raises:
        BadEncoding: The codec is unknown or can't encode such an array.
        BadTensor: The protocol has no datatype for the array.
        MissingExtra: The codec needs OpenCV.
    """
    wanted = parse_encoding(encoding)
    encoded = _CODECS[wanted.name].encode(name, little_endian(array), wanted.level)
    further = {**(parameters or {}), **encoded.parameters}
    return EncodedTensor(name, datatype_of(array.dtype), array.shape, wanted.name, encoded.data, further)


def decode_tensor(tensor: EncodedTensor, limits: Limits = DEFAULT_LIMITS, codecs: Codecs = _CODECS) -> Array:
    """Decode an array; its declared size is checked before memory is allocated for it.

    Args:
        tensor: As received.
        limits: Limits of this receiver.
        codecs: The codecs of this process; from `codecs_for` where a GPU may decode.

    Returns:
        The array, little-endian. With `raw` it is a read-only view of the payload; BYTES is an object array of `bytes`.

    Raises:
        BadEncoding: The codec is unknown, or the bytes are not those of the declared array.
        BadTensor: The shape or the raw bytes are wrong.
        LimitExceeded: Something is larger than `limits`.
        MissingExtra: The codec needs OpenCV.
    """
    codec = codecs.get(tensor.encoding)
    if codec is None:
        known = ", ".join(_CODECS)
        raise BadEncoding(f"tensor {tensor.name!r}: unknown encoding {tensor.encoding[:60]!r}; known are {known}")
    array_bytes(tensor.name, tensor.datatype, tensor.shape, limits)
    return codec.decode(tensor, limits)


def decode_outputs(response: InferResponse, limits: Limits) -> tuple[dict[str, Array], MqinferError | None]:
    """Decode a reply's tensors; return the error instead of raising it, since it decides the outcome."""
    try:
        if len(response.outputs) > 1:
            _check_together(response.outputs, limits)
        return {tensor.name: decode_tensor(tensor, limits) for tensor in response.outputs}, None
    except MqinferError as error:
        return {}, BadEncoding(f"the reply can't be decoded: {error}")
    except MemoryError:
        return {}, MqinferError("the reply can't be decoded: no memory is left for its outputs")


def _check_together(outputs: Sequence[EncodedTensor], limits: Limits) -> None:
    """Check that several outputs take no more memory than one may."""
    size = sum(array_bytes(each.name, each.datatype, each.shape, limits) for each in outputs)
    if size > limits.tensor_bytes:
        raise LimitExceeded(f"its {len(outputs)} outputs take {size} bytes; at most {limits.tensor_bytes} are accepted")

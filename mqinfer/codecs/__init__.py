"""Codecs: arrays to the bytes that travel, and back; declared sizes are checked before memory is allocated for them."""

from mqinfer.codecs.image import ImageInfo, encoded_image, probe_image
from mqinfer.codecs.registry import (
    ENCODINGS,
    LOSSY,
    STATEFUL,
    Codecs,
    Encoding,
    available_encodings,
    codecs_for,
    decode_outputs,
    decode_tensor,
    encode_tensor,
    parse_encoding,
    traits_of,
)

__all__ = [
    "ENCODINGS",
    "LOSSY",
    "STATEFUL",
    "Codecs",
    "Encoding",
    "ImageInfo",
    "available_encodings",
    "codecs_for",
    "decode_outputs",
    "decode_tensor",
    "encode_tensor",
    "encoded_image",
    "parse_encoding",
    "probe_image",
    "traits_of",
]

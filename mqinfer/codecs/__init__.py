"""Codecs: arrays to the bytes that travel, and back; declared sizes are checked before memory is allocated for them."""

from mqinfer.codecs.image import encoded_image
from mqinfer.codecs.probe import ImageInfo, probe_image
from mqinfer.codecs.registry import (
    Codecs,
    Encoding,
    available_encodings,
    codecs_for,
    decode_tensor,
    encode_tensor,
    parse_encoding,
)

__all__ = [
    "Codecs",
    "Encoding",
    "ImageInfo",
    "available_encodings",
    "codecs_for",
    "decode_tensor",
    "encode_tensor",
    "encoded_image",
    "parse_encoding",
    "probe_image",
]

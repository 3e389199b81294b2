"""Codecs: arrays to the bytes that travel, and back; every declared size is checked before memory is taken for it."""

from mqinfer.codecs.image import encoded_image
from mqinfer.codecs.probe import ImageInfo, probe_image
from mqinfer.codecs.registry import Encoding, available_encodings, decode_tensor, encode_tensor, parse_encoding

__all__ = [
    "Encoding",
    "ImageInfo",
    "available_encodings",
    "decode_tensor",
    "encode_tensor",
    "encoded_image",
    "parse_encoding",
    "probe_image",
]

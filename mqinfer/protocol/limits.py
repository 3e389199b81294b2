"""Bounds that are checked before memory is taken for anything a message claims."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["DEFAULT_LIMITS", "Limits"]

_PACKET_HEAD_BYTES = 64 << 10
"""Of a PUBLISH, for what stands before its payload: the topic and the properties."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The largest of everything that a decoder accepts.

    Attributes:
        payload_bytes: A whole message.
        header_bytes: The MessagePack header.
        tensors: Inputs or outputs of one message.
        dimensions: Axes of one tensor.
        tensor_bytes: One tensor after decoding.
        image_pixels: Width times height of a JPEG or PNG.
        string_bytes: One string within the header.
    """

    payload_bytes: int = 64 << 20
    header_bytes: int = 64 << 10
    tensors: int = 64
    dimensions: int = 16
    tensor_bytes: int = 256 << 20
    image_pixels: int = 64 << 20
    string_bytes: int = 4096

    @property
    def packet_bytes(self) -> int:
        """The MQTT packet that a message of the largest payload needs; a link's Maximum Packet Size."""
        return self.payload_bytes + _PACKET_HEAD_BYTES


DEFAULT_LIMITS = Limits()

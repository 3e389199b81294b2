"""Limits that a decoder checks before it allocates memory for what a message claims."""

from __future__ import annotations

from dataclasses import dataclass

PACKET_HEAD_BYTES = 64 << 10
"""Room for the topic and the properties of a PUBLISH, which stand before its payload; of larger ones none is read."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The largest of everything that a decoder accepts, in bytes unless the name has another unit.

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
        """Size of the MQTT packet with the largest payload; the Maximum Packet Size of a link."""
        return self.payload_bytes + PACKET_HEAD_BYTES


DEFAULT_LIMITS = Limits()

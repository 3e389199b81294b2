"""The checksum that travels beside a payload, so that bits flipped on a link without TLS are noticed.

TCP's own checksum has 16 bits, and ends at every proxy, bridge or broker on the way; this one is made by the sender and
verified by the receiver. It covers the payload, which names its request by `id`, so a reply need not repeat its
request's: a worker runs only what was verified, and a reply to any sending of a request is as good.

XXH3 with 64 bits (https://github.com/Cyan4973/xxHash) misses one damage in 2 ** 64, and reads memory as fast as a copy
does; CRC-32 of zlib would cost a fifth of the messages a second at 100 kB and above (measured). It does not protect
from people: TLS does.
"""

from __future__ import annotations

from collections.abc import Iterable

from xxhash import xxh3_64, xxh3_64_hexdigest

from mqinfer.protocol.errors import ConfigError, Corrupted
from mqinfer.protocol.types import Buffer

CHECKSUM = "xxh3"
"""Name of the MQTT user property."""


def checksum(pieces: Iterable[Buffer]) -> tuple[str, str]:
    """Return the user property for a payload.

    Args:
        pieces: The payload as it lies on the wire, in any number of pieces.

    Returns:
        The property's name, and sixteen lower-case hex digits.

    Raises:
        ConfigError: A piece is a view whose bytes don't follow one another in memory.
    """
    found = xxh3_64()
    try:
        for piece in pieces:
            found.update(piece)
    except (BufferError, ValueError) as error:
        raise ConfigError("a payload's memory must be contiguous; copy the array first") from error
    return CHECKSUM, found.hexdigest()


def verify(payload: Buffer, properties: Iterable[tuple[str, str]]) -> None:
    """Compare a received payload with the checksum that its sender stated; without one it passes.

    Args:
        payload: All of it, in one piece.
        properties: The message's user properties.

    Raises:
        Corrupted: The checksums differ.
    """
    found = ""
    for name, stated in properties:
        if name != CHECKSUM:
            continue
        found = found or xxh3_64_hexdigest(payload)
        if stated != found:
            raise Corrupted(
                f"payload of {memoryview(payload).nbytes} bytes has the checksum {found}, but was sent with"
                f" {stated[:16]!r}: bits flipped on the way; send it again. If this happens often, use mqtts://"
            )

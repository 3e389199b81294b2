"""The CONNECT packet of a browser, with the relay's login in it (MQTT 5 and 3.1.1, section 3.1)."""

from __future__ import annotations

import struct

from mqinfer.broker.packets import decode_variable_integer, encode_variable_integer
from mqinfer.protocol.errors import BadEnvelope

CONNECT = 0x10

_CLEAN_START, _WILL, _PASSWORD, _USER = 0x02, 0x04, 0x40, 0x80
_RESERVED = 0x01
_VERSION5, _VERSIONS = 5, (4, 5)
_SESSION_EXPIRY, _USER_PROPERTY = 0x11, 0x26
_SIZES = {_SESSION_EXPIRY: 4, 0x21: 2, 0x27: 4, 0x22: 2, 0x19: 1, 0x17: 1}
"""Bytes of each property that a browser may state: session expiry, receive maximum, maximum packet size, topic alias
maximum, request response information, request problem information."""


def with_login(body: bytes, client_id: str, username: str | None, password: str | None) -> bytes:
    """Return a whole CONNECT packet that logs in as someone else, and whose session ends with the connection.

    Args:
        body: Of the browser's packet, behind its fixed header.
        client_id: Takes the place of the browser's, so that it ends nobody's connection.
        username: Of the login; None for none, where a certificate is the login.
        password: Of the login.

    Raises:
        BadEnvelope: It is malformed, or has a will, a session that outlives the connection or a further way to log in.
    """
    try:
        version, flags, keep_alive, properties = _decode(body)
    except (struct.error, IndexError) as error:
        raise BadEnvelope(f"malformed CONNECT: {error}") from error
    if flags & _WILL:
        raise BadEnvelope("CONNECT has a will; who only watches may leave none")
    flags = _CLEAN_START
    payload = _text(client_id)
    if username is not None:
        flags |= _USER
        payload += _text(username)
        if password is not None:
            flags |= _PASSWORD
            payload += _text(password)
    head = _text("MQTT") + bytes((version, flags)) + keep_alive
    if version == _VERSION5:
        head += encode_variable_integer(len(properties)) + properties
    whole = head + payload
    return bytes((CONNECT,)) + encode_variable_integer(len(whole)) + whole


def _decode(body: bytes) -> tuple[int, int, bytes, bytes]:
    """Return protocol version, flags, keep alive and properties; check that the fields behind them are whole."""
    if body[:6] != _text("MQTT") or body[6] not in _VERSIONS:
        raise BadEnvelope("CONNECT of another protocol than MQTT 5 or 3.1.1")
    version, flags, keep_alive = body[6], body[7], body[8:10]
    if flags & _RESERVED or len(keep_alive) != 2:
        raise BadEnvelope("CONNECT with a reserved flag, or that ends too early")
    at, properties = 10, b""
    if version == _VERSION5:
        length, at = decode_variable_integer(body, at)
        properties = body[at : at + length]
        at += length
        _check_properties(properties, length)
    if not flags & _WILL:
        fields = 1 + bool(flags & _USER) + bool(flags & _PASSWORD)
        for _ in range(fields):
            at += 2 + struct.unpack_from("!H", body, at)[0]
        if at != len(body):
            raise BadEnvelope("CONNECT ends within a field, or goes on behind the last one")
    return version, flags, keep_alive, properties


def _check_properties(properties: bytes, length: int) -> None:
    if len(properties) != length:
        raise BadEnvelope("CONNECT ends within its properties")
    at = 0
    while at < length:
        identifier = properties[at]
        at += 1
        if identifier == _USER_PROPERTY:
            for _ in range(2):
                at += 2 + struct.unpack_from("!H", properties, at)[0]
        elif identifier in _SIZES:
            if identifier == _SESSION_EXPIRY and any(properties[at : at + 4]):
                raise BadEnvelope("CONNECT asks for a session that outlives the connection")
            at += _SIZES[identifier]
        else:
            raise BadEnvelope(f"CONNECT has a property 0x{identifier:02x} that may not be there")
    if at > length:
        raise BadEnvelope("CONNECT has a property that goes on behind the end of its properties")


def _text(value: str) -> bytes:
    encoded = value.encode()
    return struct.pack("!H", len(encoded)) + encoded

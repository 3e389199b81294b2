"""paho's client with its reading and writing replaced, for the packets that carry the load.

Measured with one process publishing to another through Mosquitto: paho itself reads a fixed header with a system call a
byte, appends each piece of a body to the last, slices a payload three times to take it apart, copies what is left of a
packet each time a socket takes only a part of it, and makes several objects with locks for each message. Here

- `_packet_read` receives into a `PacketReader`, which copies a payload at most once;
- `_packet_write` sends many packets with one system call, and a large payload from the caller's own memory;
- PUBACKs wait for the next message that goes out, a millisecond at most: in a dialogue they cost no system call;
- `send` bypasses `publish`; paho never learns of these messages, so it can't send them a second time either;
- `write_at_once` lets the thread that publishes write to the socket itself while the link's thread sleeps.

Connecting, TLS, subscribing, keep-alive and DISCONNECT stay paho's. All methods with a leading underscore are paho's
private names: `fits` checks that this version has them, and `PlainClient` does the work where it has not.
"""

from __future__ import annotations

import logging
import ssl
from collections import deque
from collections.abc import Callable, Container
from contextlib import suppress
from functools import cache
from itertools import islice
from time import monotonic
from typing import Any

from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode
from paho.mqtt.exception import MalformedPacket

from mqinfer.broker.address import BrokerAddress
from mqinfer.broker.link import Message
from mqinfer.broker.packets import PUBACK, Head, buffer_size, decode_puback, encode_puback
from mqinfer.broker.paho.client import Identity, client_arguments, has_buffered
from mqinfer.broker.paho.packet_reader import OtherPacket, PacketReader, ReceivedMessage
from mqinfer.protocol.errors import BadEnvelope
from mqinfer.protocol.limits import DEFAULT_LIMITS
from mqinfer.protocol.types import Buffer

__all__ = ["FastClient", "fits"]

_log = logging.getLogger("mqinfer.broker")

_PRIVATE_NAMES = ("_packet_read", "_packet_write", "_packet_handle", "_mid_generate")
_PRIVATE_FIELDS = ("_sock", "_in_packet", "_out_packet", "_last_bytes_received", "_last_msg_out")
_READS = 64  # system calls in a row, so that a flood doesn't keep the link from sending
_JOINED = 1 << 14  # pieces up to this size are copied behind what comes before: cheaper than one more buffer to gather
_MOST_HELD = 16  # PUBACKs; Mosquitto's default window is 20 messages
_BUFFERS = 256  # what one sendmsg may gather; Linux allows 1024


def fits(address: BrokerAddress) -> bool:
    """Whether `FastClient` can be used: on TCP and TLS, with a paho whose private names are the known ones."""
    # paho's websockets wrapper has its own framing and neither recv_into nor partial writes.
    return address.transport == "tcp" and _is_known_paho()


@cache
def _is_known_paho() -> bool:
    specimen = Client(CallbackAPIVersion.VERSION2)
    return all(hasattr(specimen, name) for name in (*_PRIVATE_NAMES, *_PRIVATE_FIELDS))


class FastClient(Client):
    """paho's client with reading and writing replaced.

    Attributes:
        deliver: Gets each message that comes in.
        acked: Gets packet identifier and reason code of each PUBACK.
        failure: What broke the connection, as far as the socket told.
    """

    deliver: Callable[[Message], None]
    acked: Callable[[int, int], None]
    failure: OSError | None = None

    def __init__(self, identity: Identity, *, version5: bool) -> None:
        super().__init__(**client_arguments(identity, version5=version5))
        # MQTT 3.1.1 has no way to say what is too large, and a broker could not know why it loses the connection.
        largest = {"max_packet_size": DEFAULT_LIMITS.packet_bytes} if version5 else {}
        self._reader = PacketReader(version5=version5, **largest)
        self._buffers: deque[Buffer] = deque()
        self._pubacks: deque[bytes] = deque()  # filled by the link's thread, emptied by whichever thread writes
        self._is_tls = identity.tls is not None

    def send(self, message: Message, head: Head, taken: Container[int]) -> int:
        """Queue a PUBLISH; returns its packet identifier, which is none of those taken."""
        data, identifier = head.data, 0
        if head.identifier_at:
            identifier = self._mid_generate()
            while identifier in taken:
                identifier = self._mid_generate()
            data[head.identifier_at : head.identifier_at + 2] = identifier.to_bytes(2, "big")
        for piece in (message.payload, *message.tail):
            if buffer_size(piece) <= _JOINED:
                data += piece
            else:
                self._buffers.extend(filter(len, (data, memoryview(piece).cast("B"))))  # an empty one is never sent
                data = bytearray()
        if data:
            self._buffers.append(data)
        return identifier

    @property
    def holds_acks(self) -> bool:
        """Whether PUBACKs wait for something that they can travel with."""
        return bool(self._pubacks)

    def want_write(self) -> bool:
        """Whether bytes wait for the socket; a few PUBACKs alone are no reason to write."""
        return bool(self._buffers) or len(self._pubacks) >= _MOST_HELD or super().want_write()

    def write_at_once(self) -> None:
        """Send what is queued here as far as the socket takes it; the link's thread finds out about errors."""
        if self._out_packet:
            return
        self._gather_pubacks()
        with suppress(OSError):  # full or broken: the link's thread goes on from there
            while self._buffers and self._sock is not None:
                self._forget(self._transmit(self._sock))

    def read(self) -> MQTTErrorCode:
        """Read what has come, with TLS also what the socket no longer tells `select` of."""
        code = self.loop_read()
        while self._is_tls and not code and has_buffered(self.socket()):
            code = self.loop_read()
        return code

    def _packet_read(self) -> MQTTErrorCode:
        try:
            for _ in range(_READS):
                if self._sock is None:  # closed by what the last read brought
                    break
                space = self._reader.space()
                count = self._receive(self._sock, space)
                if count == 0:
                    return MQTTErrorCode.MQTT_ERR_CONN_LOST
                self._reader.advance(count)
                code = self._handle_packets()
                # With TLS a short read means the end of a record, not that nothing more has come.
                if code or (count < len(space) and not self._is_tls):
                    return code
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            pass
        except OSError as error:
            self.failure = error
            return MQTTErrorCode.MQTT_ERR_CONN_LOST
        except (BadEnvelope, MalformedPacket) as error:
            _log.error("the broker sent what is not MQTT: %s", error)
            return MQTTErrorCode.MQTT_ERR_PROTOCOL
        return MQTTErrorCode.MQTT_ERR_SUCCESS

    @staticmethod
    def _receive(sock: Any, space: memoryview) -> int:
        count: int = sock.recv_into(space)
        return count

    def _handle_packets(self) -> MQTTErrorCode:
        self._last_bytes_received = monotonic()
        for packet in self._reader.packets():
            if isinstance(packet, ReceivedMessage):
                self.deliver(packet.message)
                if packet.identifier:
                    self._pubacks.append(encode_puback(packet.identifier))
            elif packet.command == PUBACK:
                self.acked(*decode_puback(packet.body))
            else:
                code = self._leave_to_paho(packet)
                if code:
                    return code
        return MQTTErrorCode.MQTT_ERR_SUCCESS

    def _leave_to_paho(self, packet: OtherPacket) -> MQTTErrorCode:
        self._in_packet["command"] = packet.command
        self._in_packet["packet"] = bytearray(packet.body)
        self._in_packet["remaining_length"] = len(packet.body)
        return self._packet_handle()

    def _packet_write(self) -> MQTTErrorCode:
        code = self._write_packets()
        if code == MQTTErrorCode.MQTT_ERR_CONN_LOST and self._is_tls and self._sock is not None:
            try:  # a broker that refuses a certificate says why before it closes, and nobody has read that yet
                self._sock.recv(1)
            except (BlockingIOError, ssl.SSLWantReadError):
                pass
            except OSError as error:
                self.failure = error
        return code

    def _write_packets(self) -> MQTTErrorCode:
        """Send what is queued here, then paho's own packets; whichever was sent in part goes on first."""
        self._last_msg_out = monotonic()
        self._gather_pubacks()
        if self._out_packet and self._out_packet[0]["pos"]:
            code = super()._packet_write()
            if code or self._out_packet:
                return code
        try:
            while self._buffers and self._sock is not None:
                self._forget(self._transmit(self._sock))
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return MQTTErrorCode.MQTT_ERR_AGAIN
        except OSError:
            return MQTTErrorCode.MQTT_ERR_CONN_LOST
        return super()._packet_write() if self._out_packet else MQTTErrorCode.MQTT_ERR_SUCCESS

    def _gather_pubacks(self) -> None:
        if self._pubacks:
            held = [self._pubacks.popleft() for _ in range(len(self._pubacks))]
            self._buffers.append(b"".join(held))

    def _transmit(self, sock: Any) -> int:
        if self._is_tls or len(self._buffers) == 1:  # TLS sockets can't gather
            sent: int = sock.send(self._buffers[0])
        else:
            sent = sock.sendmsg(islice(self._buffers, _BUFFERS))
        return sent

    def _forget(self, sent: int) -> None:
        """Take what was sent from the queue."""
        while sent:
            first = self._buffers[0]
            if sent < len(first):
                self._buffers[0] = memoryview(first)[sent:]
                return
            sent -= len(first)
            self._buffers.popleft()

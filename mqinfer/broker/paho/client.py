"""paho's client with its reading and writing replaced, for the packets that carry the load.

Measured with one process publishing to another through Mosquitto: paho itself reads a fixed header with a system call a
byte, appends each piece of a body to the last, slices a payload three times to take it apart, copies what is left of a
packet each time a socket accepts only a part of it, and makes several objects with locks for each message. Here

- `_packet_read` receives into a `PacketReader`, which copies a payload at most once;
- `_packet_write` sends many packets with one system call, and a large payload from the caller's own memory;
- PUBACKs wait for the next message that goes out, a millisecond at most: in a dialogue they cost no system call;
- `send` bypasses `publish`; paho never receives these messages, so it can't send them a second time either.

Against paho alone that is a quarter of the CPU time a small message and a third of it a frame.
Connecting, TLS, websockets, subscribing and DISCONNECT stay paho's. All methods with a leading underscore
are paho's private names, which `check_paho` checks for.
"""

from __future__ import annotations

import logging
import ssl
from collections import deque
from collections.abc import Callable, Container
from contextlib import suppress
from importlib.metadata import version
from itertools import islice
from time import monotonic
from typing import Any

from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode
from paho.mqtt.exception import MalformedPacket

from mqinfer.broker.link import Message
from mqinfer.broker.packets import PUBACK, Head, buffer_size, decode_puback, encode_puback
from mqinfer.broker.paho.connecting import Identity, client_arguments, configure
from mqinfer.broker.paho.packet_reader import OtherPacket, PacketReader
from mqinfer.broker.process import abandon_in_children
from mqinfer.protocol.errors import BadEnvelope, ConfigError
from mqinfer.protocol.limits import DEFAULT_LIMITS
from mqinfer.protocol.types import Buffer

_log = logging.getLogger("mqinfer.broker")

_PRIVATE_NAMES = ("_packet_read", "_packet_write", "_packet_handle", "_mid_generate", "_send_pingreq")
_PRIVATE_FIELDS = ("_sock", "_in_packet", "_out_packet", "_last_bytes_received", "_last_msg_out", "_ping_t")
_READS = 64  # system calls in a row, so that a flood doesn't keep the link from sending
_JOINED = 1 << 14  # pieces up to this size are copied behind what comes before: cheaper than one more buffer to gather
_MOST_HELD = 16  # PUBACKs; Mosquitto's default window is 20 messages
_BUFFERS = 256  # what one sendmsg may gather; Linux allows 1024


def check_paho() -> None:
    """Check that this paho has the private names that are replaced.

    Raises:
        ConfigError: It lacks some.
    """
    specimen = Client(CallbackAPIVersion.VERSION2)
    missing = [name for name in (*_PRIVATE_NAMES, *_PRIVATE_FIELDS) if not hasattr(specimen, name)]
    if missing:
        raise ConfigError(
            f"paho-mqtt {version('paho-mqtt')} lacks {', '.join(missing)}, which mqinfer replaces; install 2.2.0"
        )


class LinkClient(Client):
    """paho's client with reading and writing replaced.

    Args:
        identity: Who connects where.
        version5: Whether to speak MQTT 5, or 3.1.1.
        deliver: Called with each message that is received.
        acked: Called with packet identifier and reason code of each PUBACK.

    Attributes:
        failure: What broke the connection, as far as the socket reported it.
        buffered: Bytes that wait for the socket to accept them.
    """

    failure: OSError | None = None

    def __init__(
        self,
        identity: Identity,
        *,
        version5: bool,
        deliver: Callable[[Message], None],
        acked: Callable[[int, int], None],
    ) -> None:
        super().__init__(**client_arguments(identity, version5=version5))
        abandon_in_children(self)
        configure(self, identity)
        self._deliver = deliver
        self._acked = acked
        # MQTT 3.1.1 has no field for the largest packet, so a broker could not know why it loses the connection.
        largest = {"max_packet_size": DEFAULT_LIMITS.packet_bytes} if version5 else {}
        self._reader = PacketReader(version5=version5, **largest)
        self._buffers: deque[Buffer] = deque()
        self.buffered = 0
        self._pubacks: list[bytes] = []
        self._paho_waits = False
        self._is_tls = identity.tls is not None
        self._is_websocket = identity.address.transport == "websockets"

    def abandon(self) -> None:
        """Close a child's copy of the socket; unlike `shutdown` that sends nothing, with TLS and websockets neither."""
        sock, self._sock = self._sock, None
        if sock is not None:
            with suppress(OSError):
                sock.close()

    def send(self, message: Message, head: Head, taken: Container[int]) -> int:
        """Queue a PUBLISH; return its packet identifier, which is none of those taken."""
        data, identifier = head.data, 0
        if head.identifier_at:
            identifier = self._mid_generate()
            while identifier in taken:
                identifier = self._mid_generate()
            data[head.identifier_at : head.identifier_at + 2] = identifier.to_bytes(2, "big")
        if head.size - len(data) <= _JOINED and not message.tail:
            data += message.payload
        elif self._is_websocket:  # a frame of its own for each piece would only cost
            data += message.joined().payload
        else:
            data = self._queue_pieces(data, message)
        if data:
            self._buffers.append(data)
        self.buffered += head.size
        return identifier

    def _queue_pieces(self, data: bytearray, message: Message) -> bytearray:
        """Queue what is too large to be copied; return the small pieces behind it."""
        queued: list[Buffer] = []
        for piece in (message.payload, *message.tail):
            if buffer_size(piece) <= _JOINED:
                data += piece
            else:
                queued += (data, memoryview(piece).cast("B"))
                data = bytearray()
        self._buffers.extend(filter(len, queued))  # all pieces or none; an empty one is never sent
        return data

    @property
    def heard_at(self) -> float:
        """When something was last received, in monotonic seconds."""
        return self._last_bytes_received

    @property
    def sent_at(self) -> float:
        """When the link's thread last wrote, in monotonic seconds."""
        return self._last_msg_out

    @property
    def awaits_pong(self) -> bool:
        """Whether a PINGREQ is not answered yet."""
        return self._ping_t > 0

    def ping(self) -> None:
        """Send a PINGREQ."""
        self._send_pingreq()

    @property
    def holds_acks(self) -> bool:
        """Whether PUBACKs wait for something that they can travel with."""
        return bool(self._pubacks)

    def want_write(self) -> bool:
        """Whether bytes wait for the socket; a few PUBACKs alone are no reason to write."""
        return bool(self._buffers or self._out_packet) or len(self._pubacks) >= _MOST_HELD

    def read(self) -> MQTTErrorCode:
        """Read what has come, with TLS also what the socket no longer reports to `select`."""
        code = self.loop_read()
        while self._is_tls and not code and self._has_decrypted(self._sock):
            code = self.loop_read()
        return code

    @staticmethod
    def _has_decrypted(sock: Any) -> bool:
        return sock is not None and sock.pending() > 0

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

    def _receive(self, sock: Any, space: memoryview) -> int:
        if self._is_websocket:
            data = sock.recv(len(space))
            space[: len(data)] = data
            return len(data)
        count: int = sock.recv_into(space)
        return count

    def _handle_packets(self) -> MQTTErrorCode:
        self._last_bytes_received = monotonic()
        for packet in self._reader.packets():
            if self._sock is None:  # closed by what the last packet brought
                break
            if not isinstance(packet, OtherPacket):
                self._deliver(packet.message)
                if packet.identifier:
                    self._pubacks.append(encode_puback(packet.identifier))
            elif packet.command == PUBACK:
                self._acked(*decode_puback(packet.body))
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
        """Send what is queued here, then paho's own packets; whichever was sent in part goes on first."""
        self._last_msg_out = monotonic()
        self._gather_pubacks()
        code = MQTTErrorCode.MQTT_ERR_SUCCESS
        if self._paho_waits:
            code = self._write_pahos()
        if not code:
            code = self._write_own()
        if not code and self._out_packet:
            code = self._write_pahos()
        if code == MQTTErrorCode.MQTT_ERR_CONN_LOST and self._is_tls and self._sock is not None:
            try:  # a broker that refuses a certificate sends the reason before it closes, and nobody has read that yet
                self._sock.recv(1)
            except (BlockingIOError, ssl.SSLWantReadError):
                pass
            except OSError as error:
                self.failure = error
        return code

    def _write_pahos(self) -> MQTTErrorCode:
        code = super()._packet_write()
        self._paho_waits = bool(self._out_packet)
        return code

    def _write_own(self) -> MQTTErrorCode:
        try:
            while self._buffers and self._sock is not None:
                self._forget(self._transmit(self._sock))
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return MQTTErrorCode.MQTT_ERR_AGAIN
        except OSError:
            return MQTTErrorCode.MQTT_ERR_CONN_LOST
        return MQTTErrorCode.MQTT_ERR_SUCCESS

    def _gather_pubacks(self) -> None:
        if self._pubacks:
            together = b"".join(self._pubacks)
            self._buffers.append(together)
            self.buffered += len(together)
            self._pubacks.clear()

    def _transmit(self, sock: Any) -> int:
        if len(self._buffers) > 1 and not self._is_tls and not self._is_websocket:
            sent: int = sock.sendmsg(islice(self._buffers, _BUFFERS))
        else:
            sent = sock.send(self._buffers[0])
            if not sent:  # paho's websockets: a part of the frame was sent, and the same data is wanted again
                raise BlockingIOError
        return sent

    def _forget(self, sent: int) -> None:
        """Remove what was sent from the queue."""
        self.buffered -= sent
        while sent:
            first = self._buffers[0]
            if sent < len(first):
                self._buffers[0] = memoryview(first)[sent:]
                return
            sent -= len(first)
            self._buffers.popleft()

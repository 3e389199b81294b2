"""The socket floor: what MQTT through the same broker costs at least in Python, without any library.

A request is the bytes of the model's one input, a reply those of its first output. There are no names, no shapes, no
deadlines and no numbers: broker and worker keep the order, so the client knows whose reply comes next.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from mqinfer.bench.processes import Program, say
from mqinfer.bench.workloads import Workload, fixed_shape, numpy_dtype, open_session
from mqinfer.broker.packets import encode_variable_integer
from mqinfer.lab.load import Drive, Stopwatch
from mqinfer.protocol.datatypes import Array

_REQUESTS, _REPLIES = b"floor/requests", b"floor/replies"
_CONNECT, _PUBLISH, _PUBACK, _SUBSCRIBE = 0x10, 0x30, 0x40, 0x82
_JOIN_BELOW = 64 << 10
"""Smaller payloads are copied behind their header, so that one call sends both."""


class SocketFloor:
    """Bare sockets in this process and in a worker process, QoS 1 both ways.

    Args:
        workload: What to ask.
        port: Of the broker, on this machine.
        broker_pid: The broker's process, whose time counts too.
    """

    name = "socket floor"

    def __init__(self, workload: Workload, port: int, broker_pid: int) -> None:
        self._workload = workload
        self._broker_pid = broker_pid
        with ExitStack() as stack:
            self._worker = Program(serve, port, workload.path)
            stack.callback(self._worker.close)
            self._connection = _Connection(port, b"floor-client", _REPLIES)
            stack.callback(self._connection.close)
            self._stack = stack.pop_all()

    def infer(self) -> Mapping[str, Array]:
        """Ask once."""
        connection = self._connection
        connection.publish(_REQUESTS, self._workload.array.tobytes())
        payload, acknowledgement = connection.receive()
        connection.send(acknowledgement)
        return {self._workload.output: self._decode(payload)}

    def drive(self, callers: int, seconds: float) -> Drive:
        """Keep as many requests in flight; a reply's PUBACK leaves with the next request."""
        connection, array = self._connection, self._workload.array
        watch = Stopwatch(seconds)
        started: deque[int] = deque()
        acknowledgement = b""
        while not watch.is_over():
            while len(started) < callers:
                started.append(time.perf_counter_ns())
                connection.publish(_REQUESTS, array.tobytes(), acknowledgement)
                acknowledgement = b""
            payload, acknowledgement = connection.receive()
            self._decode(payload)
            watch.lap(started.popleft())
        while started:
            connection.send(acknowledgement)
            payload, acknowledgement = connection.receive()
            watch.lap(started.popleft())
        connection.send(acknowledgement)
        return watch.drive()

    def pids(self) -> Mapping[str, int]:
        """The worker and the broker."""
        return {"broker": self._broker_pid, "server": self._worker.pid}

    def close(self) -> None:
        """Disconnect and stop the worker."""
        self._stack.close()

    def _decode(self, payload: memoryview) -> Array:
        array: Array = np.frombuffer(payload, self._workload.expected.dtype).reshape(self._workload.expected.shape)
        return array


def serve(port: str, path: str) -> None:
    """Run the worker: answer every request until standard input ends."""
    threading.Thread(target=_end_with_input, name="mqinfer-bench-floor-end", daemon=True).start()
    connection = _Connection(int(port), b"floor-worker", _REQUESTS)
    session = open_session(Path(path))
    source, target = session.get_inputs()[0], session.get_outputs()[0]
    dtype, shape = numpy_dtype(source.type), fixed_shape(source.shape)
    say("ready")
    while True:
        request, acknowledgement = connection.receive()
        (output,) = session.run([target.name], {source.name: np.frombuffer(request, dtype).reshape(shape)})
        connection.publish(_REPLIES, output.tobytes(), acknowledgement)


def _end_with_input() -> None:
    sys.stdin.read()
    os._exit(0)  # there is nothing to clean up, and the main thread waits for its socket


class _Connection:
    """One MQTT connection that has subscribed to one topic.

    Args:
        port: Of the broker, on this machine.
        name: Client identifier.
        topic: To subscribe to.
    """

    def __init__(self, port: int, name: bytes, topic: bytes) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = self._socket.makefile("rb", 1 << 16)
        self._number = 0
        self._socket.sendall(_packet(_CONNECT, b"\x00\x04MQTT\x04\x02\x00\x00", _string(name)))  # a clean session
        self._read()
        self._socket.sendall(_packet(_SUBSCRIBE, b"\x00\x01", _string(topic), b"\x01"))
        self._read()

    def publish(self, topic: bytes, payload: bytes, head: bytes = b"") -> None:
        """Send a PUBLISH, behind another packet where `head` is one."""
        self._number = self._number % 0xFFFF + 1
        fixed = [_string(topic), self._number.to_bytes(2)]
        head += bytes([_PUBLISH | 2]) + encode_variable_integer(sum(map(len, fixed)) + len(payload)) + b"".join(fixed)
        if len(payload) < _JOIN_BELOW:
            self._socket.sendall(head + payload)
        else:
            self._socket.sendall(head)
            self._socket.sendall(payload)

    def receive(self) -> tuple[memoryview, bytes]:
        """Wait for the next message; return its payload and the PUBACK that the caller is to send."""
        kind, body = self._read()
        while kind & 0xF0 != _PUBLISH:
            kind, body = self._read()
        end = 2 + int.from_bytes(body[:2])
        return memoryview(body)[end + 2 :], _packet(_PUBACK, body[end : end + 2])

    def send(self, packet: bytes) -> None:
        """Send a packet by itself."""
        self._socket.sendall(packet)

    def close(self) -> None:
        """End the connection; a thread in `receive` gets `EOFError`."""
        self._socket.shutdown(socket.SHUT_RDWR)
        self._reader.close()  # as long as it is open, so is the socket
        self._socket.close()

    def _read(self) -> tuple[int, bytes]:
        head = self._reader.read(2)
        if len(head) < 2:
            raise EOFError
        size, digit, shift = head[1] & 0x7F, head[1], 7
        while digit & 0x80:
            digit = self._reader.read(1)[0]
            size |= (digit & 0x7F) << shift
            shift += 7
        return head[0], self._reader.read(size)


def _packet(kind: int, *parts: bytes) -> bytes:
    body = b"".join(parts)
    return bytes([kind]) + encode_variable_integer(len(body)) + body


def _string(text: bytes) -> bytes:
    return len(text).to_bytes(2) + text

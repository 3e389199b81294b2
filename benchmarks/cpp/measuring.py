"""The C++ client beside the other ways to the same model; its load programs are contestants.

The worker of the floor is MQTT 3.1.1 with QoS 1 on a bare socket around the model, and nothing else.
"""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

import numpy as np

from mqinfer.bench.contestants.site import CONTESTANTS, Contestant, Pids, Site
from mqinfer.bench.contestants.ways import Target
from mqinfer.bench.processes import Program, say
from mqinfer.bench.workloads import Workload
from mqinfer.broker.packets import decode_variable_integer, encode_variable_integer
from mqinfer.protocol.datatypes import datatype_of
from mqinfer.protocol.errors import MissingExtra

_CONNECT = b"\x10\x11\x00\x04MQTT\x04\x02\x00\x00\x00\x05floor"
_SUBSCRIBE = b"\x82\x15\x00\x01\x00\x10floor/requests/+\x01"
_ACKS = 4 + 5
"""Bytes of CONNACK and SUBACK."""
_BUFFER = 1 << 22
"""Room for the packets of two frames."""


def cpp_contestants(programs: Path) -> list[Contestant]:
    """Return the floor, both clients of mqinfer and both of Triton.

    Args:
        programs: Folder of the programs that benchmarks/cpp builds with CMake.
    """
    return [
        Contestant("floor", partial(_by, programs / "load-floor", _floor)),
        CONTESTANTS["mqtt"],
        Contestant("mqtt-cpp", partial(_by, programs / "load-mqinfer", lambda site: site.mqtt)),
        CONTESTANTS["triton"],
        Contestant("triton-cpp", partial(_by, programs / "load-triton", lambda site: site.triton)),
    ]


def _floor(site: Site) -> tuple[Target, Pids]:
    worker = site.use(closing(Program(serve, site.broker.port, site.folder)))
    return Target("floor", site.broker.port), {"broker": [site.broker.pid], "worker": [worker.pid]}


def _by(program: Path, start: Callable[[Site], tuple[Target, Pids]], site: Site) -> tuple[Target, Pids]:
    """Start what a program asks; it finds the arrays in the site's folder.

    Raises:
        MissingExtra: The program isn't built.
    """
    if not program.is_file():
        raise MissingExtra(f"there is no {program.name} in {program.parent}; benchmarks/cpp/CMakeLists.txt builds it")
    asked = site.workload
    asked.array.tofile(site.folder / "array")
    asked.expected.tofile(site.folder / "expected")
    shape = ",".join(map(str, asked.array.shape))
    words = (asked.model, asked.input, str(datatype_of(asked.array.dtype)), shape, asked.output)
    target, pids = start(site)
    return Target("program", target.port, command=(str(program.absolute()), *words)), pids


def serve(port: str, folder: str) -> None:
    """Answer requests to a saved workload's model until standard input ends."""
    workload = Workload.load(Path(folder))
    run, like = workload.open_model(), workload.array

    def answer(packet: memoryview) -> tuple[bytes, memoryview]:
        """Return the reply to a request with the acknowledgement of it, and the reply's payload."""
        at = 2 + int.from_bytes(packet[:2])
        client, number, request = bytes(packet[2 + len("floor/requests/") : at]), packet[at : at + 2], packet[at + 2 :]
        output = run(np.frombuffer(request[2:], like.dtype).reshape(like.shape))
        topic = b"floor/replies/" + client
        body = len(topic).to_bytes(2) + topic + bytes(number) + bytes(request[:2])
        size = encode_variable_integer(len(body) + output.nbytes)
        return b"\x40\x02" + bytes(number) + b"\x32" + size + body, output.data.cast("B")

    with socket.create_connection(("127.0.0.1", int(port))) as link:
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link.sendall(_CONNECT + _SUBSCRIBE)
        link.recv(_ACKS, socket.MSG_WAITALL)
        threading.Thread(target=_answer, args=(link, answer), daemon=True).start()
        say("ready")
        sys.stdin.read()


def _answer(link: socket.socket, answer: Callable[[memoryview], tuple[bytes, memoryview]]) -> None:
    buffer, filled = memoryview(bytearray(_BUFFER)), 0
    while read := link.recv_into(buffer[filled:]):
        filled, taken, out = filled + read, 0, list[bytes | memoryview]()
        while place := _find_body(buffer[taken:filled]):
            if buffer[taken] >> 4 == 3:
                out += answer(buffer[taken:filled][place])
            taken += place.stop
        link.sendall(b"".join(out))
        filled -= taken
        if taken:
            buffer[:filled] = buffer[taken : taken + filled]


def _find_body(packets: memoryview) -> slice | None:
    """Return where the first packet's body is; None where it isn't whole."""
    try:
        size, start = decode_variable_integer(packets, 1)
    except IndexError:
        return None
    return slice(start, start + size) if start + size <= len(packets) else None

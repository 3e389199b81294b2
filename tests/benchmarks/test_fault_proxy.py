"""The parts that the fault-injection suite is made of, on their own."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.faults.fault_proxy import PUBACK, PUBLISH, FaultProxy, PacketFilter
from benchmarks.faults.soak import Figure, as_markdown
from tests.patience import PATIENCE_S


def packet(kind: int, size: int) -> bytes:
    """Make an MQTT packet with a body of this size."""
    head, left = bytearray([kind << 4]), size
    while True:
        left, digit = left >> 7, left & 0x7F
        head.append(digit | (0x80 if left else 0))
        if not left:
            return bytes(head) + bytes([kind]) * size


@given(
    st.lists(st.tuples(st.integers(1, 15), st.sampled_from([0, 1, 2, 127, 128, 300, 20_000])), max_size=8),
    st.lists(st.integers(1, 400), min_size=1),
)
def test_packets_of_a_type_vanish_wherever_the_stream_is_split(kinds: list[tuple[int, int]], cuts: list[int]) -> None:
    """What is left is exactly the other packets."""
    stream = b"".join(packet(*each) for each in kinds)
    sieve, passed, place, turn = PacketFilter(), b"", 0, 0
    while place < len(stream):
        size = cuts[turn % len(cuts)]
        passed += sieve.feed(stream[place : place + size], frozenset({PUBACK}))
        place, turn = place + size, turn + 1
    assert passed == b"".join(packet(*each) for each in kinds if each[0] != PUBACK)
    assert sieve.dropped == sum(kind == PUBACK for kind, _ in kinds)


@pytest.fixture
def echo() -> Iterator[int]:
    """Run a TCP server that sends everything back; its port."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            while data := connection.recv(65_536):
                connection.sendall(data)

    def accept() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    yield server.getsockname()[1]
    server.shutdown(socket.SHUT_RDWR)
    server.close()
    thread.join()


def exchange(connection: socket.socket, data: bytes) -> bytes:
    """Send bytes, and read as many."""
    connection.sendall(data)
    back = b""
    while len(back) < len(data):
        if not (piece := connection.recv(65_536)):
            raise EOFError
        back += piece
    return back


def test_the_proxy_passes_everything_on(echo: int) -> None:
    """Without a fault each byte arrives, in order."""
    with FaultProxy(echo) as proxy, socket.create_connection(("127.0.0.1", proxy.port), timeout=PATIENCE_S) as client:
        data = packet(PUBLISH, 300_000)
        assert exchange(client, data) == data
    # Bytes are counted once they are passed on: the last ones may not be before the proxy's threads are joined.
    assert (*proxy.passed, proxy.connections) == (len(data), len(data), 1)


def test_delay_and_bandwidth_take_their_time(echo: int) -> None:
    """A delay of 0.1 s, and 20 kB at 100 kB/s, can't take less."""
    with FaultProxy(echo) as proxy, socket.create_connection(("127.0.0.1", proxy.port), timeout=PATIENCE_S) as client:
        proxy.up(delay_s=0.1)
        start = time.monotonic()
        exchange(client, packet(PUBLISH, 10))
        assert time.monotonic() - start >= 0.1
        proxy.up(bytes_per_s=100_000)
        start = time.monotonic()
        exchange(client, packet(PUBLISH, 20_000))
        assert time.monotonic() - start >= 0.1


@pytest.mark.parametrize("reset", [True, False])
def test_a_cut_ends_connections(echo: int, reset: bool) -> None:  # noqa: FBT001  a parameter of the test
    """By RST the reader gets an error, by FIN the end of the stream; a new connection stands."""
    with FaultProxy(echo) as proxy:
        with socket.create_connection(("127.0.0.1", proxy.port), timeout=PATIENCE_S) as client:
            exchange(client, packet(PUBLISH, 10))
            assert proxy.cut(reset=reset) == 1
            with pytest.raises(ConnectionResetError if reset else EOFError):
                exchange(client, packet(PUBLISH, 10)) if reset else _read(client)
        with socket.create_connection(("127.0.0.1", proxy.port), timeout=PATIENCE_S) as client:
            exchange(client, packet(PUBLISH, 10))


def _read(client: socket.socket) -> None:
    if not client.recv(10):
        raise EOFError


def test_what_is_swallowed_is_gone(echo: int) -> None:
    """Nothing arrives, and no side is notified."""
    with FaultProxy(echo) as proxy, socket.create_connection(("127.0.0.1", proxy.port), timeout=0.2) as client:
        proxy.down(swallow=True)
        with pytest.raises(TimeoutError):
            exchange(client, packet(PUBLISH, 10))
        proxy.both()
        client.settimeout(PATIENCE_S)
        assert exchange(client, packet(PUBLISH, 20)) == packet(PUBLISH, 20)


def test_the_same_seed_flips_the_same_bits(echo: int) -> None:
    """A run can be repeated."""
    seen = []
    for _ in range(2):
        with (
            FaultProxy(echo, seed=4) as proxy,
            socket.create_connection(("127.0.0.1", proxy.port), timeout=PATIENCE_S) as each,
        ):
            proxy.up(flip_every=50)
            seen.append(exchange(each, packet(PUBLISH, 100)))
    assert seen[0] == seen[1] != packet(PUBLISH, 100)


def test_a_table_names_each_fault_once() -> None:
    """Its further figures stand below it."""
    table = as_markdown([Figure("kill", "lost", "0", "0", passed=True), Figure("kill", "late", "3")])
    assert table.splitlines()[2:] == ["| kill | lost | 0 | 0 | pass |", "|  | late | 3 |  | stated |"]

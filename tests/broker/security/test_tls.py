"""TLS by real handshakes: which versions and suites the broker's listeners take, and what a client accepts."""

from __future__ import annotations

import socket
import ssl
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mqinfer.broker.mosquitto import BrokerFolder, Ports, Role
from mqinfer.broker.mosquitto.serving import secured as secured_server
from mqinfer.protocol.errors import BrokerUnreachable
from tests.broker.attempts import PATIENCE, error_of, pretending
from tests.ports import free_port
from tests.programs import find_program

pytestmark = [
    pytest.mark.broker,
    pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1:DeprecationWarning"),  # they are what is tried
]

OLD = [ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1]
NEW = [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3]
LISTENERS = ["certificates", "passwords", "websockets"]
SUITES = {"ECDHE-ECDSA-AES256-GCM-SHA384", "ECDHE-ECDSA-AES128-GCM-SHA256", "ECDHE-ECDSA-CHACHA20-POLY1305"}
# What an administrator may have set for the whole machine, for the sake of some old device.
WEAK = """\
openssl_conf = all
[all]
ssl_conf = ssl
[ssl]
system_default = weak
[weak]
MinProtocol = TLSv1
CipherString = ALL:@SECLEVEL=0
"""


@pytest.fixture(scope="module")
def weak(open_place: Path) -> Iterator[tuple[BrokerFolder, dict[str, int]]]:
    """A secured broker, and its ports, on a machine whose TLS library allows everything that it knows."""
    allowing = open_place / "weak.cnf"
    allowing.write_text(WEAK)
    passwords, websockets = free_port(), free_port()
    folder = BrokerFolder(open_place / "weak")
    folder.init(ports=Ports(1, passwords, websockets, "127.0.0.1"))
    folder.add(Role.VEHICLE, "car-1")
    server = secured_server(folder, 0)
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("OPENSSL_CONF", str(allowing))
        server.start()
    yield folder, dict(zip(LISTENERS, (server.port, passwords, websockets), strict=True))
    server.stop()


def context_of(folder: BrokerFolder, *versions: ssl.TLSVersion, suites: str = "ALL") -> ssl.SSLContext:
    """A client that would take anything."""
    context = ssl.create_default_context(cafile=folder.path / "ca.crt")
    context.load_cert_chain(folder.path / "clients" / "car-1.crt", folder.path / "clients" / "car-1.key")
    context.set_ciphers(f"{suites}:@SECLEVEL=0")
    context.minimum_version, context.maximum_version = min(versions), max(versions)
    return context


def shake_hands(context: ssl.SSLContext, port: int) -> tuple[str | None, str, str | None]:
    """Connect; returns version, suite and compression."""
    with (
        socket.create_connection(("127.0.0.1", port), PATIENCE) as raw,
        context.wrap_socket(raw, server_hostname="localhost") as connection,
    ):
        suite = connection.cipher()
        assert suite
        return connection.version(), suite[0], connection.compression()


@pytest.mark.parametrize("listener", LISTENERS)
@pytest.mark.parametrize("version", OLD)
def test_old_versions_are_refused(weak: Any, listener: str, version: ssl.TLSVersion) -> None:
    """TLS 1.0 and 1.1, offered by a client that has nothing better, on each listener."""
    folder, ports = weak
    with pytest.raises(ssl.SSLError, match=r"ALERT"):
        shake_hands(context_of(folder, version), ports[listener])


@pytest.mark.parametrize("listener", LISTENERS)
@pytest.mark.parametrize("version", NEW)
def test_versions_that_are_taken(weak: Any, listener: str, version: ssl.TLSVersion) -> None:
    """TLS 1.2 and 1.3, without compression; whoever offers all versions gets 1.3."""
    folder, ports = weak
    found, suite, compression = shake_hands(context_of(folder, version), ports[listener])
    assert (found, compression) == (version.name.replace("v1_", "v1."), None)
    assert (suite in SUITES) == (version is ssl.TLSVersion.TLSv1_2)
    assert shake_hands(context_of(folder, *OLD, *NEW), ports[listener])[0] == "TLSv1.3"


@pytest.mark.parametrize("listener", LISTENERS)
def test_suites(weak: Any, listener: str) -> None:
    """Of all suites of TLS 1.2 that this TLS library has, each offered alone, the broker takes three."""
    folder, ports = weak
    everything = context_of(folder, ssl.TLSVersion.TLSv1_2, suites="ALL:COMPLEMENTOFALL").get_ciphers()
    names = {each["name"] for each in everything if each["protocol"] != "TLSv1.3"}
    assert len(names) > 50
    taken = set()
    for name in names:
        try:
            taken.add(shake_hands(context_of(folder, ssl.TLSVersion.TLSv1_2, suites=name), ports[listener])[1])
        except ssl.SSLError:
            continue
    assert taken == SUITES


@pytest.mark.parametrize("listener", LISTENERS)
def test_renegotiation(weak: Any, listener: str) -> None:
    """Renegotiation, which costs the broker far more than its client, is refused."""
    folder, ports = weak
    pair = ["-cert", folder.path / "clients" / "car-1.crt", "-key", folder.path / "clients" / "car-1.key"]
    process = subprocess.Popen(
        [find_program("openssl"), "s_client", "-tls1_2", "-connect", f"127.0.0.1:{ports[listener]}", *map(str, pair)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    with process:
        assert process.stdin
        assert process.stdout
        lines = iter(process.stdout)
        assert any("Verify return code" in line for line in lines)
        process.stdin.write("R\n")
        process.stdin.flush()
        assert any("no renegotiation" in line for line in lines)
        process.kill()


@pytest.mark.parametrize("version", OLD)
def test_a_client_takes_no_old_version(secured: Any, unique: Callable[[str], str], version: ssl.TLSVersion) -> None:
    """A broker, or whoever stands before it, that has nothing newer is refused, although its certificate is right."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = context.maximum_version = version
    context.load_cert_chain(secured.folder.path / "broker.crt", secured.folder.path / "broker.key")

    def serve(connection: socket.socket) -> None:
        with pytest.raises(OSError, match=r"SSL|TLS|EOF|reset"):
            context.wrap_socket(connection, server_side=True).recv(1)

    with pretending(serve) as port:
        error = error_of(replace(secured.address("car-1"), port=port), unique("c"))
    assert isinstance(error, BrokerUnreachable)
    assert "TLS failed" in str(error)


def test_a_client_never_falls_back_to_plain_text(secured: Any, unique: Callable[[str], str]) -> None:
    """Whoever answers `mqtts://` without TLS receives a TLS greeting, and no byte of MQTT."""
    received = bytearray()

    def serve(connection: socket.socket) -> None:
        received.extend(connection.recv(4096))
        connection.sendall(b"\x20\x03\x00\x00\x00")  # CONNACK
        while more := connection.recv(4096):
            received.extend(more)

    with pretending(serve) as port:
        error = error_of(replace(secured.address("car-1"), port=port), unique("c"))
    assert isinstance(error, BrokerUnreachable)
    assert received[:1] == b"\x16"  # a TLS handshake record
    assert b"MQTT" not in received

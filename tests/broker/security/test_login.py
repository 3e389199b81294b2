"""Who gets in at all, and what those are told who don't: at once, by name, and without trying again for ever."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from mqinfer.broker.address import BrokerAddress, Transport
from mqinfer.broker.link import Message
from mqinfer.broker.mosquitto import BrokerFolder, Ports, Role
from mqinfer.broker.mosquitto.certificates import Authority, Pair
from mqinfer.broker.mosquitto.folder import Login
from mqinfer.broker.mosquitto.serving import secured as secured_server
from mqinfer.broker.paho.link import PahoLink
from mqinfer.protocol.errors import BrokerUnreachable, NotAuthorized
from tests.broker.attempts import NOT_AUTHORIZED, PATIENCE, ROOT, error_of, kept_current, pretending, publish
from tests.patience import wait_until
from tests.ports import free_port

pytestmark = pytest.mark.broker

Unique = Callable[[str], str]


def save(folder: Path, name: str, pair: Pair) -> tuple[Path, Path]:
    """Write a certificate and its key."""
    files = folder / f"{name}.crt", folder / f"{name}.key"
    files[0].write_bytes(pair.certificate)
    files[1].write_bytes(pair.key)
    return files


def authority_of(folder: Path) -> Authority:
    """The broker's own authority."""
    return Authority(Pair((folder / "ca.crt").read_bytes(), (folder / "ca.key").read_bytes()))


@pytest.fixture(scope="module")
def foreign(secured: Any, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, tuple[Path, Path]]:
    """Certificates that the broker must not take, all in the name of a vehicle that it knows."""
    folder = tmp_path_factory.mktemp("foreign")
    stranger = Authority.make()
    own = authority_of(secured.folder.path)
    return {
        "authority": save(folder, "authority", stranger),
        "another authority": save(folder, "stranger", Authority(stranger).client("car-1", 10)),
        "expired": save(folder, "expired", own.client("car-1", 0)),
        "the broker's": (secured.folder.path / "broker.crt", secured.folder.path / "broker.key"),
        "signed by a client": save(folder, "child", _signed_by_a_client(secured.logins["car-2"])),
    }


def _signed_by_a_client(login: Login) -> Pair:
    """A vehicle plays the authority with its own certificate."""
    assert login.cert_file
    assert login.key_file
    return Authority(Pair(login.cert_file.read_bytes(), login.key_file.read_bytes())).client("car-1", 10)


@pytest.mark.parametrize(
    ("whose", "said"),
    [
        ("another authority", "unknown ca"),
        ("expired", "certificate expired"),
        ("the broker's", "unsupported certificate"),
        ("signed by a client", "unknown ca"),
    ],
)
def test_certificates_that_are_refused(
    secured: Any, foreign: Mapping[str, tuple[Path, Path]], unique: Unique, whose: str, said: str
) -> None:
    """The error names the file and repeats what the broker had against it; ten times, since TLS 1.3 makes it a race."""
    login = secured.logins["car-1"]
    cert_file, key_file = foreign[whose]
    for _ in range(10):
        error = error_of(secured.address(replace(login, cert_file=cert_file, key_file=key_file)), unique("c"))
        assert isinstance(error, NotAuthorized)
        assert said in str(error)
        assert str(cert_file) in str(error)


@pytest.mark.parametrize("username", [None, "op"])
def test_no_certificate(secured: Any, unique: Unique, username: str | None) -> None:
    """Without a certificate nobody gets in, whatever user name CONNECT says."""
    login = replace(secured.logins["car-1"], cert_file=None, key_file=None)
    for _ in range(10):
        error = error_of(secured.address(login, username=username), unique("c"))
        assert isinstance(error, NotAuthorized)
        assert "wants a client certificate" in str(error)
        assert "--cert-file" in str(error)


def test_a_broker_of_another_authority(secured: Any, foreign: Mapping[str, tuple[Path, Path]], unique: Unique) -> None:
    """A client does not talk to a broker whose authority it does not trust."""
    login = replace(secured.logins["car-1"], ca_file=foreign["authority"][0])
    error = error_of(secured.address(login), unique("c"))
    assert isinstance(error, BrokerUnreachable)
    assert "not trusted" in str(error)


def test_a_broker_under_another_name(secured: Any, unique: Unique) -> None:
    """Nor to one whose certificate is for another host."""
    error = error_of(secured.address("car-1", host="127.1"), unique("c"))
    assert isinstance(error, BrokerUnreachable)
    assert "not trusted" in str(error)


def test_a_client_that_poses_as_the_broker(secured: Any, unique: Unique) -> None:
    """A vehicle's certificate is none for a broker, although the broker's authority has signed it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(secured.logins["car-2"].cert_file, secured.logins["car-2"].key_file)

    def serve(connection: socket.socket) -> None:
        with pytest.raises(OSError, match=r"SSL|TLS|alert"):
            context.wrap_socket(connection, server_side=True).recv(1)

    with pretending(serve) as port:
        error = error_of(replace(secured.address("car-1"), port=port), unique("c"))
    assert isinstance(error, BrokerUnreachable)
    assert "not trusted" in str(error)


def test_the_certificate_beats_the_user_name(secured: Any, unique: Unique) -> None:
    """A vehicle that says in CONNECT that it is the operator has a vehicle's rights, its own."""
    link = PahoLink(secured.address("car-1", username="op"), client_id=unique("c"))
    link.open(PATIENCE)
    order, request = "mqinfer/v1/control/all/op/repository/index", "mqinfer/v1/models/m/infer/car-1"
    assert publish(link, order) == NOT_AUTHORIZED
    assert publish(link, request) != NOT_AUTHORIZED
    link.close()


@pytest.mark.parametrize(
    ("user", "password"), [("pass-car", "wrong"), ("pass-car", None), ("nobody", "x"), ("op", "x"), (None, None)]
)
def test_passwords_that_are_refused(secured: Any, unique: Unique, user: str | None, password: str | None) -> None:
    """A wrong password, none, an unknown user, one who has a certificate only, and nobody at all."""
    login = replace(secured.logins["pass-car"], name=user or "", password=password)
    address = replace(secured.address(login), port=secured.password_port, username=user, password=password)
    client_id = unique("c")
    error = error_of(address, client_id)
    assert isinstance(error, NotAuthorized)
    assert "refused the login" in str(error)
    assert "wrong" not in str(error)
    assert (f"no user {user!r} with this password" if user else "it wants a login") in str(error)
    assert secured.server.log().count(client_id) <= 1, "it tried again"


@pytest.mark.parametrize("transport", ["tcp", "websockets"])
def test_a_password(secured: Any, unique: Unique, transport: Transport) -> None:
    """`mqtts://user:password@` and `wss://` get in with the rights of their user; only the password's hash is kept."""
    address = secured.address("pass-car")
    if transport == "websockets":
        address = replace(address, transport=transport, port=secured.websockets_port)
    link = PahoLink(address, client_id=unique("c"))
    link.open(PATIENCE)
    assert publish(link, "mqinfer/v1/models/m/infer/pass-car") != NOT_AUTHORIZED
    assert publish(link, "mqinfer/v1/models/m/infer/car-1") == NOT_AUTHORIZED
    link.close()
    lines = (secured.folder.path / "passwords").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith("pass-car:")]
    assert line.startswith("pass-car:$7$")
    assert secured.logins["pass-car"].password not in line


def test_mosquitto_has_nothing_against_the_configuration(open_place: Path) -> None:
    """It starts and reads everything again without a warning, with every kind of listener, also from root."""
    folder = BrokerFolder(open_place / "quiet")
    passwords, websockets = free_port(), free_port()
    folder.init(ports=Ports(1, passwords, websockets, "127.0.0.1"))
    with secured_server(folder, 0) as server:
        server.reload()
        wait_until(lambda: "Reloading" in server.log())
        _certificate_at(folder.path, passwords)  # by its end the broker has read all again
        log = server.log()
    assert "Reloading config" in log
    assert not any(word in log.lower() for word in ("warning", "error:", "deprecated", "unknown option"))


def test_speaking_no_tls(secured: Any, unique: Unique) -> None:
    """A client that does not encrypt gets no answer, and the error asks about it."""
    error = error_of(BrokerAddress("127.0.0.1", secured.server.port), unique("c"), timeout=8.0)
    assert isinstance(error, BrokerUnreachable)
    assert "mqtts" in str(error)


def test_tls_where_there_is_none(mosquitto: Any, secured: Any, unique: Unique) -> None:
    """TLS to a broker that does not speak it is an error that says so."""
    error = error_of(replace(secured.address("car-1"), port=mosquitto.port), unique("c"), timeout=8.0)
    assert isinstance(error, BrokerUnreachable)


def test_a_will_outside_the_rules(secured: Any, links: Mapping[str, PahoLink], unique: Unique) -> None:
    """Nobody has the broker say that another's worker is lost: Mosquitto takes such a will and never publishes it."""
    got: list[bytes] = []
    came = threading.Event()

    def handle(message: Message) -> None:
        got.append(bytes(message.payload))
        if message.payload == b"last":
            came.set()

    topics = ("mqinfer/v1/workers/v.1/state", "mqinfer/v1/workers/w.1/state")
    for topic in topics:
        links["witness"].subscribe(topic, handle)
    for topic, payload in zip(topics, (b"forged", b"last"), strict=True):
        states: SimpleQueue[bool] = SimpleQueue()
        link = PahoLink(
            secured.address("w"), client_id=unique("c"), will=Message(topic, payload), on_connection=states.put
        )
        link.open(PATIENCE)
        link.cut()
        assert [states.get(timeout=PATIENCE) for _ in range(2)] == [True, False]
        link.close()
    assert came.wait(PATIENCE)
    for topic in topics:
        links["witness"].unsubscribe(topic)
    assert got == [b"last"]


def test_adding_and_removing_while_it_runs(secured: Any, unique: Unique) -> None:
    """A broker that runs takes notice of a new client, and of one that was removed."""
    name = unique("car")
    with kept_current(secured):
        login = secured.folder.add(Role.VEHICLE, name)
        _until(secured, login, allowed=True)
        assert secured.folder.clients()[name] == Role.VEHICLE
        secured.folder.remove(name)
        _until(secured, login, allowed=False)
        assert name not in secured.folder.clients()


def test_a_new_certificate_of_the_broker(secured: Any) -> None:
    """A broker that runs shows it to the next client."""
    with kept_current(secured):
        secured.folder.init()
        wanted = ssl.PEM_cert_to_DER_cert((secured.folder.path / "broker.crt").read_text())
        wait_until(lambda: _certificate_at(secured.folder.path, secured.password_port) == wanted)


def _certificate_at(folder: Path, port: int) -> bytes | None:
    context = ssl.create_default_context(cafile=folder / "ca.crt")
    with (
        socket.create_connection(("127.0.0.1", port)) as raw,
        context.wrap_socket(raw, server_hostname="localhost") as connection,
    ):
        return connection.getpeercert(binary_form=True)


def _until(secured: Any, login: Login, *, allowed: bool) -> None:
    """Publish until the broker's answer is the one that is hoped for."""
    link = PahoLink(secured.address(login), client_id=login.name)
    link.open(PATIENCE)
    topic = f"{ROOT}/models/m/infer/{login.name}"
    wait_until(lambda: (publish(link, topic) != NOT_AUTHORIZED) == allowed)
    link.close()

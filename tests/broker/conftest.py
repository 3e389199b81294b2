"""Links that are closed with their test, and a broker with certificates, passwords and access rules."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory
from urllib.parse import quote

import pytest

from mqinfer.broker.address import BrokerAddress
from mqinfer.broker.link import Message
from mqinfer.broker.mosquitto import BrokerFolder, Login, Ports, Role
from mqinfer.broker.mosquitto.access import without_section
from mqinfer.broker.mosquitto.files import put_password
from mqinfer.broker.mosquitto.server import MosquittoServer
from mqinfer.broker.mosquitto.serving import secured as secured_server
from mqinfer.broker.paho.link import PahoLink
from mqinfer.broker.roles import access_rules
from mqinfer.protocol.topics import Topics
from tests.ports import free_port

PATIENCE = 60.0
CLIENTS = {
    "car-1": Role.VEHICLE,
    "car-2": Role.VEHICLE,
    "dash": Role.DASHBOARD,
    "op": Role.OPERATOR,
    "gw": Role.GATEWAY,
    "br": Role.BRIDGE,
    "st": Role.SITE,
}
_WITNESS = "\nuser witness\ntopic readwrite #\ntopic read $SYS/#\n"


@dataclass(frozen=True, slots=True)
class Secured:
    """A broker that lets nobody in unasked."""

    folder: BrokerFolder
    server: MosquittoServer
    logins: dict[str, Login]
    passwords: dict[str, Login]
    password_port: int
    websockets_port: int

    def address(self, login: Login | str, *, host: str = "127.0.0.1", username: str | None = None) -> BrokerAddress:
        """Where a client connects to, with what it has got."""
        if isinstance(login, str):
            login = self.logins[login]
        user, port = (f"{username}:x@" if username else ""), self.server.port
        if login.password:
            user, port = f"{login.name}:{quote(login.password, safe='')}@", self.password_port
        return BrokerAddress.parse(
            f"mqtts://{user}{host}:{port}",
            ca_file=login.ca_file,
            cert_file=login.cert_file,
            key_file=login.key_file,
        )

    def browser(self, name: str) -> BrokerAddress:
        """Where a browser connects to, with a password."""
        login = self.passwords[name]
        return BrokerAddress.parse(
            f"wss://{name}:{login.password}@127.0.0.1:{self.websockets_port}", ca_file=login.ca_file
        )


def write_section(folder: BrokerFolder, text: str) -> None:
    """Add to the access rules by hand."""
    with (folder.path / "acl").open("a") as file:
        file.write(text)


@pytest.fixture(scope="session")
def open_place() -> Iterator[Path]:
    """A folder that the account which Mosquitto takes on under root can enter; pytest closes its own to others."""
    with TemporaryDirectory(prefix="mqinfer-secured-") as place:
        Path(place).chmod(0o755)
        yield Path(place)


@pytest.fixture(scope="session")
def secured(open_place: Path) -> Iterator[Secured]:
    """One client of each role and more, one of them with a password, and a witness who may do anything."""
    password_port, websockets_port = free_port(), free_port()
    folder = BrokerFolder(open_place / "broker")
    folder.init(ports=Ports(1, password_port, websockets_port, "127.0.0.1"))
    logins = {name: folder.add(role, name) for name, role in CLIENTS.items()}
    logins |= {name: folder.add(Role.WORKER, name, processes=2) for name in ("w", "v", "blind", "witness")}
    login = folder.add(Role.VEHICLE, "pass-car", by_password=True)
    logins["pass-car"] = replace(login, password="s3cret/ä:@")  # noqa: S106 - one that a URL has to encode
    lines = folder.path / "passwords"
    lines.write_text(put_password(lines.read_text(), "pass-car", "s3cret/ä:@"))
    passwords = {name: folder.add(role, name, by_password=True) for name, role in CLIENTS.items()}
    passwords |= {name: folder.add(Role.WORKER, name, processes=2, by_password=True) for name in ("w", "witness")}
    acl = folder.path / "acl"  # by hand, for `remove` would revoke their certificates
    acl.write_text(without_section(without_section(acl.read_text(), "witness"), "blind"))
    deaf = [rule for rule in access_rules(Role.WORKER, "blind", Topics(), 2) if not rule.endswith("/infer/+")]
    write_section(folder, _WITNESS + "\nuser blind\n" + "".join(f"topic {rule}\n" for rule in deaf))
    with secured_server(folder, 0) as server:
        yield Secured(folder, server, logins, passwords, password_port, websockets_port)


@pytest.fixture
def small(open_place: Path, unique: Callable[[str], str]) -> Iterator[Secured]:
    """A broker with a 64th of the memory of others, two vehicles and one client of each other role."""
    password_port, websockets_port = free_port(), free_port()
    folder = BrokerFolder(open_place / unique("small"))
    folder.init(ports=Ports(1, password_port, websockets_port, "127.0.0.1"))
    text = folder.configuration()
    for name, size in (("memory_limit", 2 << 30), ("max_queued_bytes", 128 << 20), ("max_inflight_bytes", 64 << 20)):
        assert f"\n{name} {size}\n" in text
        text = text.replace(f"\n{name} {size}\n", f"\n{name} {size // 64}\n")
    folder.configuration_file.write_text(text)
    roles = CLIENTS | {"w": Role.WORKER}
    logins = {name: folder.add(role, name) for name, role in roles.items()}
    with secured_server(folder, 0) as server:
        yield Secured(folder, server, logins, {}, password_port, websockets_port)


@pytest.fixture(scope="module")
def links(secured: Secured) -> Iterator[Mapping[str, PahoLink]]:
    """One open link a client, by name."""
    opened = {name: PahoLink(secured.address(name), client_id=f"link-{name}") for name in secured.logins}
    for link in opened.values():
        link.open(PATIENCE)
    yield opened
    for link in opened.values():
        link.close()


@pytest.fixture
def closing() -> Iterator[Callable[[PahoLink], PahoLink]]:
    """Closes links when the test ends."""
    links: list[PahoLink] = []

    def keep(link: PahoLink) -> PahoLink:
        links.append(link)
        return link

    yield keep
    for link in links:
        link.close()


@pytest.fixture
def roundtrip() -> Callable[..., Message]:
    """Publish to oneself, and get what arrives: `roundtrip(link, topic, b"payload")`."""

    def publish(link: PahoLink, topic: str, payload: bytes = b"x") -> Message:
        got: SimpleQueue[Message] = SimpleQueue()
        link.subscribe(topic, got.put)
        link.publish(Message(topic, payload, content_type="a/b"))
        return got.get(timeout=PATIENCE)

    return publish

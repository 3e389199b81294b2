"""Files of a broker that runs, while they are half copied, damaged or gone: what they said before holds."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from mqinfer.broker.address import BrokerAddress
from mqinfer.broker.mosquitto import BrokerFolder, Login, Ports, Role
from mqinfer.broker.mosquitto.copies import Copies
from mqinfer.broker.mosquitto.server import MosquittoServer
from mqinfer.broker.mosquitto.serving import guarded
from mqinfer.broker.paho.link import PahoLink
from tests.broker.attempts import NOT_AUTHORIZED, error_of, publish
from tests.broker.attempts import ROOT as R
from tests.patience import wait_until
from tests.ports import free_port

FILES = ("acl", "passwords", "revoked.pem", "broker.crt", "broker.key", "ca.crt")


class Watched:
    """A folder, the copies of its files, and a clock that a test sets."""

    def __init__(self, place: Path) -> None:
        self.now = 0.0
        self.folder = BrokerFolder(place / "broker")
        self.folder.init(ports=Ports(8883, 8884))
        for name in ("car-1", "car-2"):
            self.folder.add(Role.VEHICLE, name)
            self.folder.add(Role.VEHICLE, name, by_password=True)
        (place / "copies").mkdir()
        self._copies = Copies(place / "copies", lambda: self.now)
        text = self.folder.configuration()
        for name in FILES:
            text = text.replace(f" {name}\n", f" {self.folder.path / name}\n")
        adapted = self._copies.adapt(text, {})
        self.copies = {name: next((place / "copies").glob(f"*-{name}")) for name in FILES}
        assert all(f" {copy}\n" in adapted for copy in self.copies.values())
        assert f" {self.folder.path}" not in adapted

    def write(self, name: str, content: bytes) -> None:
        """Write a file in place, as `cp` and `scp` do."""
        with (self.folder.path / name).open("r+b") as file:
            file.truncate()
            file.write(content)

    def after(self, seconds: float) -> bool:
        """Look twice: at once, and so much later; returns whether anything was taken."""
        is_new = self._copies.take()
        self.now += seconds
        return self._copies.take() or is_new

    def read(self, name: str) -> bytes:
        """What Mosquitto would read."""
        return self.copies[name].read_bytes()


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    """Two vehicles, each with a certificate and a password."""
    return Watched(tmp_path)


@pytest.mark.parametrize("name", FILES)
def test_half_a_file_is_not_taken(watched: Watched, name: str, caplog: pytest.LogCaptureFixture) -> None:
    """Wherever a copy broke off; one warning says which file it is, and the whole one is taken once it is there."""
    whole = watched.read(name)
    for part in range(1, 10):
        half = whole[: len(whole) * part // 10]
        watched.write(name, half if not half.endswith(b"\n") else half[:-1])
        assert not watched.after(2.0)
        assert not watched.after(100.0)
        assert watched.read(name) == whole
        assert caplog.text.count(f"{name}: ") + caplog.text.count("broker.crt: ") * (name == "broker.key") == part
    watched.write(name, whole + b"\n")
    watched.after(2.0)
    assert watched.read(name) == whole + b"\n"


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("content", [b"", b"\0" * 5000, b"what is this\n", b"\xff\xfe" * 100])
def test_damage_is_not_taken(watched: Watched, name: str, content: bytes) -> None:
    """An empty file, what a disk made of it, and another file's content."""
    whole = watched.read(name)
    watched.write(name, content)
    assert not watched.after(2.0)
    if name != "passwords" or content:
        assert not watched.after(100.0)
    (watched.folder.path / name).unlink()
    assert not watched.after(100.0)
    assert watched.read(name) == whole


@pytest.mark.parametrize("line", ["topic reed a", "topic read a/b+/c", "topic read #/a", "usr car-1", "\ttopic"])
def test_a_mistake_in_the_rules(watched: Watched, line: str, caplog: pytest.LogCaptureFixture) -> None:
    """Mosquitto would give nobody any right: the line is named, and what held goes on."""
    lines = watched.read("acl").decode().splitlines()
    watched.write("acl", "\n".join([*lines[:3], line, *lines[3:], ""]).encode())
    assert not watched.after(2.0)
    assert "acl: line 4 " in caplog.text


def test_a_copy_that_stands_still_between_two_lines(watched: Watched) -> None:
    """It is a file as any other, but clients are missing: so it has to stay as it is for ten seconds."""
    whole = watched.read("acl")
    watched.write("acl", whole[: whole.index(b"# --- vehicle car-2")])
    assert not watched.after(9.0)
    watched.write("acl", whole[: whole.index(b"user car-1")])
    assert not watched.after(9.0)
    assert not watched.after(100.0)  # nobody would be left
    watched.write("acl", whole[: whole.index(b"# --- vehicle car-2")])
    assert watched.after(10.0)
    assert b"user car-2" not in watched.read("acl")


def test_what_is_replaced_as_a_whole_is_taken_at_once(watched: Watched) -> None:
    """As `mqinfer broker` writes its files: a removed client has no rights at the next look."""
    watched.folder.remove("car-2")
    assert watched.after(0.0)
    assert b"user car-2" not in watched.read("acl")
    assert b"car-2:" not in watched.read("passwords")
    assert not watched.after(100.0)


def test_a_certificate_and_its_key_come_together(watched: Watched) -> None:
    """Between the two they don't belong together, and Mosquitto could serve nobody."""
    before, key = watched.read("broker.crt"), watched.read("broker.key")
    path = watched.folder.path / "broker.crt"
    watched.folder.renew(["broker"])
    new = path.read_bytes()
    watched.write("broker.crt", before)
    assert not watched.after(100.0)
    assert (watched.read("broker.crt"), watched.read("broker.key")) == (before, key)
    watched.write("broker.crt", new)
    assert watched.after(1.0)
    assert (watched.read("broker.crt"), watched.read("broker.key") == key) == (new, False)


@pytest.mark.broker
@pytest.mark.parametrize("name", ["revoked.pem", "acl", "passwords"])
def test_vehicles_go_on(
    open_place: Path, unique: Callable[[str], str], caplog: pytest.LogCaptureFixture, name: str
) -> None:
    """While a file is half copied vehicles come in and may send; when it is whole, what is new in it holds."""
    passwords = free_port()
    folder = BrokerFolder(open_place / unique("half"))
    folder.init(ports=Ports(free_port(), passwords, bind="127.0.0.1"))
    by_password = name == "passwords"
    logins = [folder.add(Role.VEHICLE, "car-1", by_password=by_password)]
    with guarded(folder) as server, caplog.at_level(logging.WARNING, "mqinfer.broker"):
        where = [address(server, passwords, logins[0])]
        whole = (folder.path / name).read_bytes()
        (folder.path / name).write_bytes(whole[: len(whole) // 2])
        wait_until(lambda: "until then what it said before holds" in caplog.text)
        server.reload()
        assert error_of(where[0], unique("c")) is None
        assert may_send(where[0], unique("c"))
        (folder.path / name).write_bytes(whole)
        folder.add(Role.VEHICLE, "car-2", by_password=by_password)
        if name == "revoked.pem":
            folder.remove("car-1")
            wait_until(lambda: error_of(where[0], unique("c")) is not None)


def may_send(address: BrokerAddress, client_id: str) -> bool:
    """Whether car-1 may."""
    link = PahoLink(address, client_id=client_id)
    link.open(60.0)
    try:
        return publish(link, f"{R}/models/m/infer/car-1") != NOT_AUTHORIZED
    finally:
        link.close()


def address(server: MosquittoServer, passwords: int, login: Login) -> BrokerAddress:
    """Where a vehicle connects."""
    user, port = (f"{login.name}:{login.password}@", passwords) if login.password else ("", server.port)
    return BrokerAddress.parse(
        f"mqtts://{user}127.0.0.1:{port}", ca_file=login.ca_file, cert_file=login.cert_file, key_file=login.key_file
    )

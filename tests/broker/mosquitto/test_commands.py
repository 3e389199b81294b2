"""`mqinfer broker` as its owner uses it: what the subcommands print and change, and what a refusal leaves behind."""

from __future__ import annotations

import logging
import os
import shutil
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mqinfer.broker.address import BrokerAddress
from mqinfer.broker.certificate import OwnCertificate
from mqinfer.broker.mosquitto import BrokerFolder, Ports, Role
from mqinfer.broker.mosquitto.certificates import hosts_of
from mqinfer.broker.mosquitto.configuration import with_port
from mqinfer.broker.mosquitto.expiry import entries, warnings
from mqinfer.broker.mosquitto.server import find_mosquitto
from mqinfer.broker.mosquitto.serving import keep_current, secured
from mqinfer.broker.paho.link import PahoLink
from mqinfer.cli import broker as commands
from mqinfer.cli.app import app
from mqinfer.cli.exit_codes import exit_code
from mqinfer.protocol.errors import ConfigError, MqinferError
from tests.patience import PATIENCE_S
from tests.ports import free_port

Unique = Callable[[str], str]


@pytest.fixture
def place(open_place: Path, unique: Unique) -> Path:
    """A folder that is not there yet, where Mosquitto can enter it."""
    return open_place / unique("commands")


def run(command: str, place: Path, *arguments: str) -> tuple[int, str]:
    """Run a subcommand of `mqinfer broker` as the program does."""
    result = CliRunner().invoke(app, ["broker", command, str(place), *arguments])
    if isinstance(result.exception, MqinferError):
        return exit_code(result.exception), str(result.exception)
    return result.exit_code, result.output


def files(place: Path) -> dict[str, bytes]:
    """Return what a folder holds."""
    return {str(path.relative_to(place)): path.read_bytes() for path in place.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("arguments", "url"),
    [
        (("--host", "broker.example.org"), "mqtts://broker.example.org:8883"),
        (("--host", "10.0.0.5", "--host", "broker.example.org", "--port", "18883"), "mqtts://10.0.0.5:18883"),
        (("--host", "fd00::5"), "'mqtts://[fd00::5]:8883'"),
    ],
)
def test_the_host_that_was_asked_for(place: Path, arguments: tuple[str, ...], url: str) -> None:
    """Options for clients name it, also those that are added later or after a second `init` without it."""
    code, output = run("init", place, *arguments, "--client", "vehicle:car-1")
    assert (code, url in output) == (0, True), output
    assert run("init", place)[0] == 0
    assert url in run("add", place, "vehicle", "car-2")[1]
    assert {"localhost", "127.0.0.1", "::1", *arguments[1::2]} - {"18883"} <= set(
        hosts_of((place / "broker.crt").read_bytes())
    )


def test_what_the_commands_print(place: Path) -> None:
    """A worker's options hold the group, a renewal explains the old certificate, and `remove` counts them."""
    code, output = run("init", place, "--client", "worker:w", "--client", "vehicle:car-1")
    group = f"--group {BrokerFolder(place).group()}"
    assert (code, output.count(group)) == (0, 1)
    assert "earlier" not in output
    code, output = run("add", place, "worker", "w")
    assert (code, group in output, "remove w and add it again" in output) == (0, True, True)
    assert run("remove", place, "w") == (0, "removed w; revoked certificates: 2\n")
    (place / "ca.key").unlink()
    assert run("remove", place, "car-1")[0] == 2
    code, output = run("list", place)
    assert (code, [line.split()[0] for line in output.splitlines()]) == (0, ["broker", "authority"])
    assert run("remove", place, "nobody")[0] == 2


def connects(folder: BrokerFolder, port: int, name: str) -> None:
    """Log in with the certificate of a client."""
    stem = folder.path / "clients" / name
    address = BrokerAddress.parse(
        f"mqtts://127.0.0.1:{port}", ca_file=folder.path / "ca.crt", cert_file=f"{stem}.crt", key_file=f"{stem}.key"
    )
    link = PahoLink(address, client_id=f"{name}-{port}")
    link.open(PATIENCE_S)
    link.close()


@pytest.mark.broker
def test_a_folder_that_was_moved(place: Path, unique: Unique) -> None:
    """It serves where it is now: by `mqinfer broker --config`, and by Mosquitto that is started in it."""
    before = BrokerFolder(place)
    before.init(ports=Ports(1, bind="127.0.0.1"), clients=[(Role.VEHICLE, "car-1")])
    assert str(place) not in before.configuration()
    moved = BrokerFolder(place.with_name(unique("moved place")))
    shutil.move(place, moved.path)
    with secured(moved, 0) as server:
        connects(moved, server.port, "car-1")
    port = free_port()
    moved.configuration_file.write_text(with_port(moved.configuration(), port))
    command = [find_mosquitto(), "-c", "mosquitto.conf"]
    process = subprocess.Popen(command, cwd=moved.path, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr
        assert next(line for line in process.stderr if "running" in line or "Error" in line).endswith("running\n")
        connects(moved, port, "car-1")
    finally:
        process.kill()
        process.communicate()


def test_other_ports(place: Path) -> None:
    """A second `init` changes those that it states; a configuration that was changed by hand stays, with words."""
    code, output = run("init", place, "--bind", "127.0.0.1")
    assert (code, "keeps its ports" in output) == (0, False)
    code, output = run("init", place, "--port", "18883", "--password-port", "18884")
    assert (code, "keeps its ports until it is started again" in output) == (0, True)
    folder = BrokerFolder(place)
    assert folder.ports() == Ports(18883, 18884, None, "127.0.0.1")
    assert "keeps its ports" not in run("init", place)[1]
    assert folder.ports() == Ports(18883, 18884, None, "127.0.0.1")
    folder.configuration_file.write_text(folder.configuration() + "# mine\n")
    before = files(place)
    code, output = run("init", place, "--port", "28883")
    assert (code, "was changed by hand" in output) == (2, True)
    assert files(place) == before
    assert run("init", place, "--port", "18883")[0] == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ("--client", "vehicle:car-1", "--client", "vehicle:Car 2"),
        ("--client", "vehicle:car-1", "--client", "worker:all"),
        ("--client", "vehicle:car-1", "--client", "worker:car-1"),
        ("--client", "vehicle:car-1", "--client", "vehicle:car-1.rear"),
        ("--client", "vehicle:car-1.rear", "--client", "vehicle:car-1"),
        ("--client", "pilot:car-1"),
        ("--client", "operator:broker"),
        ("--host", "not a host"),
        ("--root", "a/#", "--client", "vehicle:car-1"),
    ],
)
def test_a_rejected_name_leaves_nothing_behind(place: Path, arguments: tuple[str, ...]) -> None:
    """Everything is checked before the first file is written, in a new folder and in one that is there."""
    assert run("init", place, *arguments)[0] == 2
    assert not place.exists()
    assert run("init", place)[0] == 0
    before = files(place)
    assert run("init", place, *arguments)[0] == 2
    assert files(place) == before


def test_sub_names_belong_to_one_vehicle(place: Path) -> None:
    """A name that a vehicle may use as a sub-name is nobody else's, with its own sub-names too."""
    assert run("init", place, "--client", "vehicle:car-1")[0] == 0
    code, output = run("add", place, "vehicle", "car-1.rear")
    assert (code, output.partition(";")[0]) == (2, "client 'car-1' may use the name 'car-1.rear'")
    assert run("add", place, "vehicle", "car-2", "--sub", "roof")[0] == 0
    rules = (place / "acl").read_text()
    assert {f"{name}.{sub}/state" in rules for name, sub in (("car-2", "roof"), ("car-2", "rear"))} == {True}
    assert run("add", place, "vehicle", "car-3", "--sub", "a.b")[0] == 2
    assert run("add", place, "worker", "w", "--sub", "roof")[0] == 2


def test_no_password_on_a_command_line(place: Path) -> None:
    """It is written to a file that its owner alone may read, and the options that are printed name that file."""
    assert run("init", place, "--host", "broker.example.org", "--password-port", "8884")[0] == 0
    code, output = run("add", place, "dashboard", "wall", "--password")
    file = place / "clients" / "wall.password"
    password = file.read_text().strip()
    assert code == 0
    assert len(password) == 32
    assert password not in output
    assert f"mqtts://wall@broker.example.org:8884 --ca-file {place}/ca.crt --password-file {file}" in output
    assert file.stat().st_mode & 0o777 == 0o600
    assert run("remove", place, "wall")[0] == 0
    assert not file.exists()


def test_list_and_renew(place: Path) -> None:
    """`list` shows each role and end, and warns; `renew` makes new certificates and changes nothing else."""
    clients = ("--client", "vehicle:car-1", "--client", "worker:w")
    assert (
        run("init", place, "--days", "12", "--host", "broker.example.org", "--password-port", "8884", *clients)[0] == 0
    )
    assert run("add", place, "dashboard", "wall", "--password")[0] == 0
    ends = f"{datetime.now(UTC) + timedelta(days=12):%Y-%m-%d}"
    code, output = run("list", place)
    assert code == 0
    listed = [line for line in output.splitlines() if not line.startswith("warning")]
    assert [line.split() for line in listed if "authority" not in line] == [
        ["broker", "certificate", "until", ends],
        ["vehicle", "car-1", "certificate", "until", ends],
        ["worker", "w", "certificate", "until", ends],
        ["dashboard", "wall", "password"],
    ]
    warned = [line for line in output.splitlines() if line.startswith("warning")]
    assert len(warned) == 3
    assert (
        f"the certificate of vehicle car-1 ends in 11 days, on {ends}; renew it with: mqinfer broker renew" in warned[1]
    )
    before = files(place)
    assert run("renew", place, "car-1")[0] == 0
    changed = {name for name, content in files(place).items() if before.get(name) != content}
    assert changed == {"clients/car-1.crt", "clients/car-1.key", "certificates"}
    assert run("renew", place, "--all", "--days", "100")[0] == 0
    assert warnings(BrokerFolder(place)) == []
    assert hosts_of((place / "broker.crt").read_bytes())[0] == "broker.example.org"
    assert OwnCertificate.read(place / "broker.crt").end - datetime.now(UTC) > timedelta(days=99)
    before = files(place)
    for arguments in ((), ("nobody",), ("car-1", "nobody"), ("wall",), ("car-1", "--all")):
        assert run("renew", place, *arguments)[0] == 2
    assert files(place) == before


def test_a_client_whose_certificate_is_gone(place: Path) -> None:
    """It stands in the list with a warning, and gets a new one."""
    folder = BrokerFolder(place)
    folder.init(clients=[(Role.VEHICLE, "car-1")])
    (place / "certificates").write_text("")
    (place / "clients" / "car-1.crt").unlink()
    assert [entry.end for entry in entries(folder) if entry.name] == [None]
    assert warnings(folder) == [
        "vehicle car-1 has no certificate and no password; make one with: mqinfer broker renew DIR car-1"
    ]
    folder.renew(["car-1"])
    assert warnings(folder) == []


def test_a_broker_that_runs_warns_every_day(place: Path, caplog: pytest.LogCaptureFixture) -> None:
    """At its start, and again a day later, not each half second; what is renewed is not warned of any more."""
    folder = BrokerFolder(place)
    folder.init(days=40, clients=[(Role.VEHICLE, "car-1")])
    stop, looks = threading.Event(), 0
    start = datetime.now(UTC) + timedelta(days=20)

    def now() -> datetime:
        nonlocal looks
        looks += 1
        if looks == 8:
            folder.renew(["car-1"], 400)
        if looks == 12:
            stop.set()
        return start + timedelta(hours=4 * looks)

    class Server:
        reloads = 0

        def reload(self) -> None:
            self.reloads += 1

    with caplog.at_level(logging.WARNING, "mqinfer.broker"):
        keep_current(Server(), folder, stop, now, every_s=0.0)  # type: ignore[arg-type]  # reload is all that it calls
    warned = [record.getMessage().partition(" ends")[0] for record in caplog.records]
    assert warned == [
        "the certificate of broker",
        "the certificate of vehicle car-1",
        "the certificate of broker",
    ]


def test_a_name_that_nobody_has(place: Path) -> None:
    """Without a folder each command names the way to make one."""
    for command, *rest in (("list",), ("renew", "--all"), ("remove", "car-1"), ("add", "vehicle", "car-1")):
        code, output = run(command, place, *rest)
        assert (code, "mqinfer broker init" in output) == (2, True)
    with pytest.raises(ConfigError, match="mqinfer broker init"):
        BrokerFolder(place).host()


@pytest.mark.broker
def test_the_log_of_mosquitto_is_shown(place: Path) -> None:
    """`-v` prints each line of it as it comes; where it listens is said for each listener."""
    folder, passwords = BrokerFolder(place), free_port()
    folder.init(ports=Ports(1, passwords, bind="127.0.0.1"), clients=[(Role.VEHICLE, "car-1")])
    command = [sys.executable, "-u", "-m", "mqinfer", "broker", "-v", "--config", str(place), "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout
        assert process.stderr
        listening = next(line for line in process.stdout if "listening on" in line)
        port = int(next(line for line in process.stdout if "broker ready" in line).rpartition(":")[2])
        assert (
            listening == f"listening on 127.0.0.1 port {port} (certificates), 127.0.0.1 port {passwords} (passwords)\n"
        )
        connects(folder, port, "car-1")
        assert next(line for line in process.stderr if "New client connected" in line and "car-1" in line)
    finally:
        process.terminate()
        process.communicate(timeout=30)
    assert process.returncode == 0


def test_no_line_of_the_log_is_an_order_to_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """What a client has put into its id is printed without control characters."""
    commands._show("client \x1b[2J\x07car\n")
    assert capsys.readouterr().err == "client \\x1b[2J\\x07car\n"


OTHER = "daemon"
"""An account that every Debian has, in place of the one that a unit runs as."""


def refusal(place: Path, *command: str) -> str:
    """Run a program as the other user; return what it printed where it failed, or nothing."""
    words = ["setpriv", f"--reuid={OTHER}", "--regid=nogroup", "--clear-groups", *command]
    done = subprocess.run(words, cwd=place.parent, capture_output=True, text=True, check=False, timeout=60)
    return done.stderr if done.returncode else ""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files to another user")
def test_a_folder_that_root_makes_for_a_user(place: Path) -> None:
    """What the broker reads is the user's, also after a change by root, and no other secret is."""
    assert run("init", place, "--host", "localhost", "--client", "worker:gpu-1")[0] == 0
    reads = ["mosquitto.conf", "ca.crt", "broker.crt", "broker.key", "acl", "passwords", "certificates", "revoked.pem"]
    assert "Permission denied" in refusal(place, "cat", str(place / "acl"))
    for change in (["init", "--user", OTHER], ["init"], ["add", "vehicle", "car-1"], ["remove", "car-1"]):
        command, *arguments = change
        assert run(command, place, *arguments)[0] == 0, change
        assert refusal(place, "cat", *(str(place / name) for name in reads)) == "", change
    for secret in ("ca.key", "group", "clients/gpu-1.key"):
        assert "Permission denied" in refusal(place, "cat", str(place / secret))
    for name in ("broker.key", "acl", "passwords", "certificates"):
        assert stat.S_IMODE((place / name).stat().st_mode) == 0o600


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_folder_that_the_broker_can_not_read(place: Path) -> None:
    """The error of `mqinfer broker --config` names the user and the cure, and `init` a folder that can't be entered."""
    assert run("init", place, "--host", "localhost")[0] == 0
    command = (sys.executable, "-m", "mqinfer", "broker", "--config", str(place), "--port", "0")
    said = refusal(place, *command)
    assert f"can't be read by user {OTHER}" in said
    assert f"mqinfer broker init {place} --user {OTHER}" in said
    place.chmod(0o700)
    code, message = run("init", place, "--user", OTHER)
    assert (code, message) == (2, f"{OTHER} can't enter {place}; run: chmod a+x {place}")


def test_a_user_who_can_not_be(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that does not exist, and one whom only root may give files to: nothing is written."""
    code, message = run("init", place, "--user", "no-such-user")
    assert (code, "useradd --system no-such-user" in message) == (2, True)
    monkeypatch.setattr("os.geteuid", lambda: 12345)
    code, message = run("init", place, "--user", OTHER)
    assert code == 2
    assert message == f"only root may give files to {OTHER}; run it with sudo, or as {OTHER} without --user"
    assert not place.exists()

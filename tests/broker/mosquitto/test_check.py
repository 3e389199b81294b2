"""`mqinfer broker check`: what a login can do on a Mosquitto with mqinfer's rules, and on one without any."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from mqinfer.broker.connect import make_link
from mqinfer.broker.link import Message
from mqinfer.broker.mosquitto.check import Checker, Finding, enter_without_login
from mqinfer.broker.mosquitto.server import MosquittoServer
from mqinfer.broker.presence import make_client_id
from mqinfer.cli.app import app
from mqinfer.cloud_worker.serving.worker import Worker
from mqinfer.protocol.topics import Topics
from tests.patience import PATIENCE_S, wait_until

pytestmark = pytest.mark.broker

Serve = Callable[..., Worker]
WriteEcho = Callable[..., Path]
TURNS = "take the turns of workers"
ALL = {
    "read other clients' requests",
    "send requests in another's name",
    "cancel another's requests",
    "answer in a worker's place",
    "publish a worker's state",
    "publish a model card",
    "give orders to servers",
    TURNS,
}


def check(address: Any, name: str, **options: Any) -> dict[str, Finding]:
    """Try everything with a login, each by what was tried."""
    with closing(make_link(address, client_id=make_client_id(name))) as link:
        link.open()
        return {each.attempt: each for each in Checker(link, Topics(), name, **options).run()}


def worked(findings: dict[str, Finding], result: bool | None = True) -> set[str]:  # noqa: FBT001, FBT002 - three values
    """Return what worked, or did not, or is not known."""
    return {attempt for attempt, finding in findings.items() if finding.result.worked is result}


def test_a_vehicle_behind_the_rules(secured: Any, serve: Serve, write_echo: WriteEcho) -> None:
    """Everything is refused; with workers in the usual group it takes their turns, with a secret one it does not."""
    address, repository = secured.address("car-1"), write_echo("echo")
    findings = check(address, "car-1", patience_s=0.5)
    assert (worked(findings, False), worked(findings, None)) == (ALL - {TURNS}, {TURNS})
    with_secret = serve(secured.address("w"), repository, name="w.0", group="a-secret")
    wait_until(lambda: worked(check(address, "car-1"), False) == ALL)  # workers of a busy machine may answer too late
    with_secret.stop()
    serve(secured.address("w"), repository, name="w.1")

    def half_is_taken() -> bool:
        findings = check(address, "car-1", patience_s=1.0)
        half = "32 of 64 requests were not answered" in findings[TURNS].result.words
        return half and worked(findings) == {TURNS} and "mqinfer worker --group" in findings[TURNS].advice

    wait_until(half_is_taken)


def test_a_worker_behind_the_rules(secured: Any) -> None:
    """The attempts are no formality: a worker's login may read requests, answer them and publish cards."""
    findings = check(secured.address("w"), "w.0", patience_s=0.5)
    assert worked(findings) >= {"read other clients' requests", "answer in a worker's place", "publish a model card"}


def test_a_broker_without_rules(serve: Serve, write_echo: WriteEcho) -> None:
    """Everything works, which the command reports with what to do; nothing stays in the broker."""
    with MosquittoServer() as server:
        serve(server.url, write_echo("echo"))
        ran = CliRunner().invoke(app, ["broker", "check", "--broker", server.url, "--name", "car-1"])
        assert ran.exit_code == 1
        lines = ran.output.splitlines()
        assert {line[9:].partition(":")[0] for line in lines if line.startswith("PROBLEM")} == {
            *ALL,
            "connect without a login",
        }
        assert [line for line in lines if line.startswith("to do: give each client the rules of its role")]
        retained: list[str] = []
        last = threading.Event()
        with closing(make_link(server.url, client_id="reader")) as link:
            link.open()
            link.subscribe("mqinfer/#", lambda message: retained.append(message.topic))
            link.subscribe("marker", lambda _: last.set())
            link.publish(Message("marker", b""))  # comes behind everything that is retained
            assert last.wait(PATIENCE_S)
        assert not [topic for topic in retained if "check-" in topic]


def test_the_command_behind_the_rules(secured: Any, serve: Serve, write_echo: WriteEcho) -> None:
    """It takes the name of the certificate, prints a line for each attempt, and ends with 0."""
    serve(secured.address("w"), write_echo("echo"), name="w.0", group="a-secret")
    login = secured.logins["car-1"]
    files = ["--ca-file", login.ca_file, "--cert-file", login.cert_file, "--key-file", login.key_file]
    url = f"mqtts://127.0.0.1:{secured.server.port}"

    def is_as_it_should_be() -> bool:
        """Whether nothing was found out wrong, and nothing could not be found out: a busy machine may be too slow."""
        ran = CliRunner().invoke(app, ["broker", "check", "--broker", url, *map(str, files)])
        assert "PROBLEM" not in ran.output
        assert "a process has the name" not in ran.output
        return ran.exit_code == 0 and sum(line.startswith("ok ") for line in ran.output.splitlines()) == 20

    wait_until(is_as_it_should_be)


def test_without_a_login(secured: Any) -> None:
    """The listener for certificates and the one for passwords let nobody in."""
    for address in (secured.address("car-1"), secured.address(secured.passwords["car-1"])):
        assert enter_without_login(address).result.worked is False

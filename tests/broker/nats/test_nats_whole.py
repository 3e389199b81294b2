"""All of mqinfer over a nats-server, by its commands."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from mqinfer.broker.abilities import Abilities
from mqinfer.broker.address import BrokerAddress
from mqinfer.cli.exit_codes import ExitCode
from mqinfer.protocol.topics import Topics
from tests.broker.nats.server import NatsServer
from tests.commands import command, mqinfer

pytestmark = pytest.mark.slow


def test_a_replay(tmp_path: Path) -> None:
    """Every frame of a bag is answered `ok` by a worker of `mqinfer worker`, which is gone once it was stopped."""
    models, bag, results = tmp_path / "models", tmp_path / "drive.bag", tmp_path / "results"
    assert mqinfer("models", "build", models, "--model", "drive_segmentation_onnx").returncode == 0
    size = ("--width", "128", "--height", "64")
    assert mqinfer("bag", "synth", bag, "--ros", "1", "--frames", "40", *size).returncode == 0
    with NatsServer() as server:
        serving = command("worker", "--repository", models, "--broker", server.url)
        with subprocess.Popen(serving, stderr=subprocess.PIPE, text=True) as worker:
            assert worker.stderr is not None
            try:
                assert any(" ready: drive_segmentation_onnx" in line for line in worker.stderr)
                options = (
                    "--topic",
                    "/camera/image_raw",
                    "--model",
                    "drive_segmentation_onnx",
                    "--broker",
                    server.url,
                    "--output",
                    results,
                )
                ran = mqinfer("replay", bag, *options)
                assert ran.returncode == 0, ran.stderr
            finally:
                worker.terminate()
                worker.stderr.read()
        shown = mqinfer("status", "--broker", server.url)
    lines = [json.loads(line) for line in (results / "results.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [line["outcome"] for line in lines] == ["ok"] * 40
    assert "workers: none" in shown.stdout


def test_a_private_cluster(tmp_path: Path) -> None:
    """`mqinfer broker --engine nats --nodes 3` runs a folder, and `mqinfer broker check` finds no fault."""
    made = mqinfer(
        "broker", "init", tmp_path / "b", "--engine", "nats", "--bind", "127.0.0.1", "--client", "vehicle:car"
    )
    assert made.returncode == 0, made.stderr
    assert f"start it with: mqinfer broker --config {tmp_path / 'b'} --engine nats" in made.stdout
    assert "--broker tls://" in made.stdout
    running = command("broker", "--engine", "nats", "--nodes", "3", "--port", "0", "--config", tmp_path / "b")
    with subprocess.Popen(running, stdout=subprocess.PIPE, text=True) as broker:
        assert broker.stdout is not None
        try:
            words, _, url = broker.stdout.readline().strip().rpartition(" ")
            assert (words, url[:6], url.count(",")) == ("broker ready at", "tls://", 2)
            files = ("--ca-file", tmp_path / "b/ca.crt", "--cert-file", tmp_path / "b/clients/car.crt")
            found = mqinfer("broker", "check", "--broker", url, *files, "--key-file", tmp_path / "b/clients/car.key")
            assert found.returncode == 0, found.stdout + found.stderr
            assert "PROBLEM" not in found.stdout
        finally:
            broker.terminate()
        assert broker.wait() == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--nodes", "3"), "--nodes is for --engine nats"),
        (("--engine", "nats", "--websockets-port", "9001"), "--websockets-port is Mosquitto's"),
    ],
)
def test_options_of_the_other_engine(options: tuple[str, ...], words: str) -> None:
    """An option that the engine has no use for is refused."""
    refused = mqinfer("broker", *options)
    assert refused.returncode == ExitCode.USAGE
    assert words in refused.stderr


def test_what_the_check_finds() -> None:
    """`mqinfer broker check` finds that the server does all that mqinfer needs."""
    with NatsServer() as server:
        found = Abilities(BrokerAddress.parse(server.url), Topics(), "checker").run()
    assert [each for each in found if each.holds is not True] == []

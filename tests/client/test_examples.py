"""The scripts of examples/, run as a user runs them: with a broker, a worker, and the environment's variables."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.client.conftest import Serve, WriteEcho

EXAMPLES = Path(__file__).parents[2] / "examples"
pytestmark = pytest.mark.broker


def run(example: str, model: str, broker_url: str) -> list[str]:
    """Run a script, and return the lines that it prints."""
    found = subprocess.run(
        [sys.executable, EXAMPLES / example, model],
        env={**os.environ, "MQINFER_BROKER": broker_url},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    assert not found.stderr
    return found.stdout.splitlines()


@pytest.fixture
def model(broker_url: str, serve: Serve, write_echo: WriteEcho, unique: Callable[[str], str]) -> str:
    """The name of a model that is served; its card says what to send."""
    name = unique("echo")
    serve(broker_url, write_echo(name, ("x", "FP32", [-1, 4]), delay_ms=15), name)
    return name


def test_blocking(broker_url: str, model: str) -> None:
    """One request, and twenty at once."""
    first, *_, last = run("blocking.py", model, broker_url)
    assert first.startswith("x: float32 (1, 4) from ")
    assert last == "20 of 20 answered"


def test_asyncio(broker_url: str, model: str) -> None:
    """Twenty tasks, each with its result."""
    lines = run("asyncio_client.py", model, broker_url)
    assert [line.split()[1] for line in lines] == ["ok"] * 20


def test_stream(broker_url: str, model: str) -> None:
    """A hundred frames, each with its outcome; the model is slower than the source, and no frame fails."""
    *frames, counts = run("stream.py", model, broker_url)
    found = {outcome: int(count) for count, outcome in (part.split() for part in counts.split(", "))}
    assert sum(found.values()) == 100
    assert found["ok"] == len(frames)
    assert set(found) <= {"ok", "superseded"}

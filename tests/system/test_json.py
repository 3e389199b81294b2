"""`--json` is one thing: one document on standard output, or one a line where results come one after another."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.main import get_command
from typer.testing import CliRunner

from mqinfer import Client
from mqinfer.cli.app import app
from mqinfer.cli.settings import commands_of
from mqinfer.lab.drives.recording import write_drive

pytestmark = [pytest.mark.broker, pytest.mark.slow]
EYE = ("image", "UINT8", [-1, 32, 48, 3])
OF_ONE_SERVER = (
    ("models ready", "echo"),
    ("models traffic", "echo"),
    ("models traffic", "echo", "--stable", "1"),
    ("models traffic", "echo", "--stable", "2"),
    ("models rollback", "echo"),
    ("models load", "echo"),
    ("status",),
    ("status", "--watch", "--count", "2"),
    ("watch", "--count", "2"),
    ("models unload", "echo"),
)


def test_each_command_that_has_it(
    write_echo: Callable[..., Path],
    managed: Callable[..., Any],
    broker_url: str,
    unique: Callable[[str], str],
    tmp_path: Path,
) -> None:
    """What is printed is JSON as a whole; of two pictures or results each line is."""
    write_echo("eye", EYE)
    write_echo("echo", version=1)
    repository = write_echo("echo", version=2)
    server = managed(repository)
    assert {server.events.get(timeout=60).kind for _ in range(2)} == {"ready"}
    drive = write_drive(tmp_path / "drive.bag", ros=1, frames=2, seed=1, width=96, height=64)
    of_bench = ("bench codecs", str(drive), "--model", "eye", "--repository", str(repository), "--encoding", "png")
    where = "--broker", broker_url, "--root", server.topics.root
    ended, tried = threading.Event(), set()

    def ask() -> None:
        with Client(broker_url, root=server.topics.root) as client:
            while not ended.is_set():
                client.submit("echo", {"x": np.zeros((1, 4), np.float32)}).exception(60)

    asking = threading.Thread(target=ask, name="asking")
    asking.start()
    try:
        of_broker = ("broker check", "--broker", broker_url, "--name", unique("check"))
        for name, *options in (*((*each, *where) for each in OF_ONE_SERVER), of_broker, of_bench):
            tried.add(name)
            done = CliRunner().invoke(app, [*name.split(), *options, "--json"])
            assert done.exit_code == (name == "broker check"), (name, done.output)  # this broker has no access rules
            if "--count" in options:
                assert [type(json.loads(line)) for line in done.stdout.splitlines()] == [dict, dict]
            else:
                assert json.loads(done.stdout)
    finally:
        ended.set()
        asking.join()
    having = {" ".join(path) for path, each in commands_of(get_command(app)) if _is_flag(each)}
    assert tried == {"bench codecs" if name.startswith("bench ") else name for name in having}  # they print by one rule


def _is_flag(command: Any) -> bool:
    """Return whether a command has the option, which takes no value anywhere."""
    (found,) = [each for each in command.params if "--json" in each.opts] or [None]
    assert found is None or found.is_flag
    return found is not None

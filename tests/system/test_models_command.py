from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from mqinfer.cli.app import app
from mqinfer.client.control import ControlClient
from tests.commands import command, mqinfer

pytestmark = [pytest.mark.broker, pytest.mark.slow]


def test_models_are_managed_by_command(
    write_echo: Callable[..., Path], managed: Callable[..., Any], broker_url: str
) -> None:
    """Load, ready, card and unload; earlier names of the one view name it."""
    write_echo("other")
    server = managed(write_echo("echo", version=2), load=False)

    def models(*arguments: str) -> tuple[int, str]:
        line = ["models", *arguments, "--broker", broker_url, "--root", server.topics.root]
        done = CliRunner().invoke(app, line, env={"COLUMNS": "160"})
        return done.exit_code, done.stdout

    assert models("ready", "echo") == (1, f"{server.name}: not ready\n")
    assert models("load", "echo") == (0, f"{server.name}: loaded echo version 2\n")
    assert models("ready", "echo", "--version", "2") == (0, f"{server.name}: ready\n")
    for old in ("list", "stats"):
        asked = CliRunner().invoke(app, ["models", old, "--json"])
        assert (asked.exit_code, f"mqinfer models {old} is now mqinfer status." in asked.stderr) == (2, True)
    code, text = models("card", "echo")
    assert (code, json.loads(text)["parameters"]["version"]) == (0, "2")
    line = ["models", "ready", "ecko", "--broker", broker_url, "--root", server.topics.root]
    asked = CliRunner().invoke(app, line)
    assert asked.exit_code == 1
    assert "no repository has a model 'ecko'; models there: echo, other; did you mean 'echo'?" in asked.stderr
    assert models("unload", "echo") == (0, f"{server.name}: unloaded echo\n")


def test_a_load_that_fails_is_one_message(
    write_echo: Callable[..., Path], managed: Callable[..., Any], broker_url: str
) -> None:
    """Exit code 1, and the server and the reason on standard error."""
    repository = write_echo("bad")
    (repository / "bad" / "1" / "model.echo").write_text("no toml at all", encoding="utf-8")
    server = managed(repository, load=False)
    done = mqinfer("models", "load", "bad", "--broker", broker_url, "--root", server.topics.root)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"error: server {server.name}: bad version 1: model_not_loadable: ")
    assert "Traceback" not in done.stderr


def test_a_server_without_models_waits_for_requests(
    write_echo: Callable[..., Path], broker_url: str, unique: Callable[[str], str]
) -> None:
    """`mqinfer worker --no-load` runs without models and exits with 0 on SIGTERM; it excludes `--poll`."""
    root = unique("test")
    options = "--repository", write_echo("echo"), "--no-load", "--broker", broker_url, "--root", root, "--name", root
    wrong = mqinfer("worker", *options, "--poll", "1")
    assert (wrong.returncode, "not both" in wrong.stderr) == (2, True)
    with subprocess.Popen(command("worker", *options), stderr=subprocess.PIPE, text=True) as worker:
        try:
            with ControlClient(broker_url, root=root) as control:
                control.wait_for(root, timeout=60)
                control.load("echo")
                control.unload("echo")
                control.load("echo")
        finally:
            worker.terminate()
        _, output = worker.communicate(timeout=60)
    assert worker.returncode == 0
    events = [line.split(": ")[1].split()[1] for line in output.splitlines()]
    assert [event for event in events if event != "call"] == ["ready", "stopped", "ready", "stopped"]

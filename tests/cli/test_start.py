"""What a subcommand imports, how its help is divided, and what a shell completes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from mqinfer.cli import main
from mqinfer.cli.app import app
from mqinfer.cli.settings import commands_of
from mqinfer.lab.drives.recording import write_drive

IMPLEMENTATIONS = {"bags", "bench", "broker", "client", "cloud_worker", "dashboard", "edge_agent", "gateway", "lab"}
OF_THE_WHOLE = {"mqinfer.cli.app", "mqinfer.cli.exit_codes", "mqinfer.cli.settings"}
SCRIPT = """
import atexit, sys
atexit.register(lambda: print("\\n=", *sorted(sys.modules)))
sys.argv[0] = "mqinfer"
from mqinfer.cli import main
main()
"""
COMMANDS = dict(commands_of(get_command(app)))


def imported(*arguments: str) -> set[str]:
    """Return the modules that a command has imported by its end."""
    line = [sys.executable, "-c", SCRIPT, *arguments]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=True)
    return set(done.stdout.rpartition("\n= ")[2].split())


@pytest.mark.parametrize("option", ["--version", "--help"])
def test_the_command_as_a_whole_imports_no_subcommand(option: str) -> None:
    """Nor what takes long: arrays, MQTT, tables."""
    found = imported(option)
    assert not found & {"numpy", "paho", "rich", "asyncio", "ssl"}
    ours = {each for each in found if each.startswith("mqinfer.cli.")}
    assert ours == OF_THE_WHOLE


@pytest.mark.parametrize(
    ("name", "needed"),
    [
        ("status", {"broker", "client"}),
        ("bag info", set()),
        ("worker", {"broker", "client", "cloud_worker"}),
        ("replay", {"bags", "broker", "client", "cloud_worker", "edge_agent"}),
        ("gateway", {"broker", "gateway"}),
        ("broker", {"broker"}),
    ],
)
def test_a_subcommand_imports_what_it_needs(name: str, needed: set[str]) -> None:
    """Not the parts of mqinfer that other subcommands run."""
    parts = {each.split(".")[1] for each in imported(*name.split(), "--help") if each.startswith("mqinfer.")}
    assert parts & IMPLEMENTATIONS == needed


def test_completing_a_name_imports_no_subcommand() -> None:
    """A shell asks for all of them with each press of the key."""
    given = {"_MQINFER_COMPLETE": "complete_bash", "COMP_WORDS": "mqinfer ", "COMP_CWORD": "1"}
    line, environment = [sys.executable, "-c", SCRIPT], {**os.environ, **given}
    done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=True, env=environment)
    names, _, modules = done.stdout.rpartition("\n= ")
    assert set(names.split()) == {path[0] for path in COMMANDS if len(path) == 1}
    assert {each for each in modules.split() if each.startswith("mqinfer.cli.")} == OF_THE_WHOLE


def sections(*arguments: str) -> dict[str, str]:
    """Return the parts of a help by their headings."""
    shown = CliRunner().invoke(app, [*arguments, "--help"], env={"COLUMNS": "200"}).output
    parts = re.split(r"^(\w[\w ]*):\n", shown, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_the_help_groups_the_subcommands() -> None:
    """Each stands once, with a sentence that fits on its line."""
    shown = sections()
    assert list(shown)[1:] == ["Run", "Watch", "Recordings", "Models", "Site", "Measure"]
    line = re.compile(r"^  ([\w-]+)  +(.*)$", re.MULTILINE)
    rows = [row for heading in list(shown)[1:] for row in line.findall(shown[heading])]
    assert sorted(name for name, _ in rows) == sorted(path[0] for path in COMMANDS if len(path) == 1)
    assert all(re.fullmatch(r"[A-Z].{,68}\.", summary) for _, summary in rows)


@pytest.mark.parametrize(
    "path", [path for path, each in COMMANDS.items() if any(p.name == "broker" for p in each.params)]
)
def test_the_connection_stands_behind_one_heading(path: tuple[str, ...]) -> None:
    """Of each subcommand that connects, and its options of logging behind another."""
    shown = sections(*path)
    of_connection = ["--broker", "--name", "--root", "--ca-file", "--cert-file", "--key-file", "--password-file"]
    assert re.findall(r"^  (--[a-z-]+)", shown["Connection options"], re.MULTILINE) == of_connection
    assert "--log-level" in shown["Logging options"]
    assert "--broker" not in shown["Options"]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("mqinfer mod", {"models"}),
        ("mqinfer models un", {"undrain", "unload"}),
        ("mqinfer replay --po", {"--policy"}),
        ("mqinfer replay --policy a", {"all"}),
    ],
)
def test_a_shell_completes(line: str, expected: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Subcommands, options and their values; what the environment names is no matter."""
    words = line.split()
    given = {"_MQINFER_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    for name, value in (given | {"MQINFER_CONFIG": "/nowhere", "MQINFER_BROKR": "x"}).items():
        monkeypatch.setenv(name, value)
    start = "import sys; sys.argv = ['mqinfer']; from mqinfer.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", start], capture_output=True, text=True, timeout=60, check=False)
    assert (set(done.stdout.split()), done.stderr) == (expected, "")


def test_an_interrupt_while_modules_are_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends the command as one later does, without a traceback."""

    class Importing:
        def __getattr__(self, name: str) -> object:
            raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "mqinfer.cli.app", Importing())
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 130


REFUSED = """
import sys, threading
refused, *sys.argv[1:] = sys.argv[1:]
start = threading.Thread.start
def start_or_not(thread):
    if thread.name.startswith(refused):
        raise RuntimeError("can't start new thread")
    start(thread)
threading.Thread.start = start_or_not
sys.argv[0] = "mqinfer"
from mqinfer.cli import main
main()
"""


@pytest.mark.broker
@pytest.mark.parametrize("refused", ["mqinfer-link", "mqinfer-replay-sinks", "mqinfer-replay-prepare_1"])
def test_a_thread_that_the_system_refuses(
    refused: str, broker_url: str, write_echo: Callable[..., Path], tmp_path: Path
) -> None:
    """The command ends with one line; frames would wait for ever for a thread that is missing."""
    drive = write_drive(tmp_path / "drive.bag", ros=1, frames=3, seed=1, width=48, height=32, truth_topic=False)
    repository = write_echo("echo", ("image", "UINT8", [-1, -1, -1, 3]))
    options = ["--local", "--repository", repository, "--model", "echo", "--output", tmp_path / "out"]
    if refused == "mqinfer-link":
        options = ["--broker", broker_url, "--model", "echo"]
    line = [sys.executable, "-c", REFUSED, refused, "replay", drive, *options]
    done = subprocess.run(list(map(str, line)), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("error: can't start new thread; give it more memory or processes")
    assert "Traceback" not in done.stderr

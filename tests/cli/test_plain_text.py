"""Text from files, messages and users is printed as it is: no markup, no pictures, nothing that changes a terminal."""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from mqinfer.bags.frame import StreamInfo
from mqinfer.bags.info import BagInfo
from mqinfer.broker.link import Message
from mqinfer.cli import infer, options
from mqinfer.cli.app import app
from mqinfer.cli.exit_codes import print_error
from mqinfer.cli.options import plain_console, table_console
from mqinfer.client.control import read_reply
from mqinfer.edge_agent.reporting.report import RunExtent, progress
from mqinfer.edge_agent.reporting.statistics import ReplayStatistics
from mqinfer.lab.profiling.report import ModelProfile
from mqinfer.lab.profiling.report import as_grids as profile_grids
from mqinfer.lab.profiling.results import Profile
from mqinfer.lab.reports import print_grid
from mqinfer.protocol.errors import ConfigError, error_from_code

NAMES = ["[/x]", "[red]x[/red]", "[[input]]", "[link=file:///x]x", ":warning:", "\\[bold]", "a\\"]


@pytest.mark.parametrize("name", NAMES)
def test_errors(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each line of a message is as it was raised."""
    print_error(ConfigError(f"model {name!r}:\n  no such {name}"))
    assert capsys.readouterr().err == f"error: model {name!r}:\n  no such {name}\n"


def test_an_error_does_not_change_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """Control characters of a file's text are shown as what they are."""
    print_error(ConfigError("no node '\x1b[2J\x07' here"))
    assert capsys.readouterr().err == "error: no node '\\x1b[2J\\x07' here\n"


def test_an_error_of_a_peer_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """A worker's or a server's message adds no line that looks like another message."""
    text = b'{"error": "no such file\\nerror: all is well\\u2028!", "code": "model_failed"}'
    replied = read_reply(Message("any", text, user_properties=(("server", "one"),))).error
    assert replied is not None
    for error in (replied, error_from_code("internal", "server one: no such file\nerror: all is well\u2028!")):
        print_error(error)
        line = "error: server one: no such file\\nerror: all is well\\u2028!\n"
        assert capsys.readouterr().err == line


@pytest.mark.parametrize("name", [*NAMES, "\x1b[2J"])
def test_bag_info(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Topics, types, encodings and the path."""
    stream = StreamInfo(name, name, name, 2, 2, 1, None)
    found = BagInfo(name, "a bag", 1, None, None, 1, (stream,))
    monkeypatch.setattr("mqinfer.bags.info.describe", lambda *_: found)
    printed = CliRunner().invoke(app, ["bag", "info", "any"]).stdout
    shown = name.replace("\x1b", "\\x1b")
    assert printed.splitlines()[0].startswith(f"{shown}: a bag")
    (row,) = [line for line in printed.splitlines() if "2x2" in line]
    assert [cell.strip() for cell in row.split("│")][1:4] == [shown] * 3


@pytest.mark.parametrize("name", NAMES)
def test_top_classes(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The model's name, its outputs' and its labels."""
    entries = np.array([[f"0.5:3:{name}".encode()]], object)
    timings = SimpleNamespace(total=1_000_000)
    result = SimpleNamespace(outputs={name: entries}, model_name=name, model_version="1", timings=timings)
    table_console().print(infer._table(result))  # type: ignore[arg-type] # what it reads of a result
    lines = capsys.readouterr().out.splitlines()
    assert f"{name} 1, 1.0 ms" in lines[0]
    assert lines[4].split() == [name, "0", "1", "0.5", "3", name]


@pytest.mark.parametrize("name", NAMES)
def test_progress(name: str) -> None:
    """Source and model in a title, the topics below."""
    shown, statistics = StringIO(), ReplayStatistics()
    console = Console(file=shown, force_terminal=True, width=200, color_system=None)
    statistics.frame_read(name)
    statistics.frame_read("other")
    goal = RunExtent(1, f"{name} -> {name}")
    with progress([(statistics, goal), (statistics, goal)], console):
        pass
    assert f"{name} -> {name}" in shown.getvalue()


@pytest.mark.parametrize("name", NAMES)
def test_profiles_and_products(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Names of models and back ends, and why one could not run."""
    profile = Profile(name, problem=f"no {name} here")
    print_grid(profile_grids(ModelProfile(name, 1, (profile,), {}))[0], table_console())
    printed = capsys.readouterr().out
    assert f"{name} version 1" in printed
    assert f"no {name} here" in printed


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "arguments",
    [
        ["NAME"],
        ["bag", "NAME"],
        ["bag", "info", "NAME"],
        ["models", "profile", "NAME", "any"],
        ["replay", "--no-NAME"],
    ],
)
def test_the_command_line(name: str, arguments: list[str]) -> None:
    """What a user typed is in the message as it was typed."""
    done = CliRunner().invoke(app, [each.replace("NAME", name) for each in arguments])
    assert done.exit_code != 0
    said = f"{done.output} {done.exception}"
    assert name.partition("=")[0] in said or repr(name) in said  # an option ends at its =


def test_every_console_of_the_command_is_plain() -> None:
    """A console with markup is made nowhere in the subcommands."""
    made = [path.name for path in Path(options.__file__).parent.rglob("*.py") if "Console(" in path.read_text()]
    assert made == ["options.py"]
    console = plain_console()
    with console.capture() as captured:
        console.print("[red]:cat:[/x]")
    assert captured.get() == "[red]:cat:[/x]\n"

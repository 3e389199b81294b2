"""Options by environment and file, for all subcommands; the repository of `mqinfer worker` shows what was taken."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.main import get_command
from typer.testing import CliRunner

from mqinfer.cli.app import app
from mqinfer.cli.edge.sending import Sending
from mqinfer.cli.options import make_group, options_of
from mqinfer.cli.settings import _options, _Settings, commands_of
from mqinfer.errors import ConfigError

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable of the machine's plays a part."""
    for name in [each for each in os.environ if each.startswith("MQINFER_")]:
        monkeypatch.delenv(name)


def error(*arguments: object, env: Mapping[str, str] | None = None) -> str:
    """Run a command that ends in an error before it does anything; return the error."""
    result = CliRunner().invoke(app, list(map(str, arguments)), env=env)
    assert result.exit_code != 0
    return str(result.exception) if isinstance(result.exception, ConfigError) else result.output


def repository(*arguments: object, env: Mapping[str, str] | None = None) -> str:
    """Return the repository that `mqinfer worker` opens; there is none."""
    found = re.fullmatch(r"model repository (\S+): there is no such folder.*", error(*arguments, env=env))
    assert found
    return found[1]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file that names a repository."""
    path = tmp_path / "mqinfer.toml"
    path.write_text('[worker]\nrepository = "/of-the-file"\nrun_timeout = 3\n')
    return path


def test_the_order(file: Path) -> None:
    """Command line, environment, the subcommand's table, the common one; an empty variable counts as none."""
    of_env = {"MQINFER_WORKER_REPOSITORY": "/of-the-environment"}
    assert repository("worker", "--config", file, "--repository", "/of-the-line", env=of_env) == "/of-the-line"
    assert repository("worker", "--config", file, env=of_env) == "/of-the-environment"
    assert repository("worker", "--config", file, env={"MQINFER_WORKER_REPOSITORY": ""}) == "/of-the-file"
    common = '[common]\nrepository = "/common"\n'
    file.write_text(common + file.read_text())
    assert repository("worker", "--config", file) == "/of-the-file"
    file.write_text(common)
    assert repository("worker", "--config", file) == "/common"


def test_where_the_file_is_named(file: Path, tmp_path: Path) -> None:
    """Behind the subcommand, before it, or by a variable: the first of these counts."""
    other = tmp_path / "other.toml"
    other.write_text('[worker]\nrepository = "/other"\n')
    by_env = {"MQINFER_CONFIG": str(other)}
    assert repository("worker", env=by_env) == "/other"
    assert repository("--config", file, "worker", env=by_env) == "/of-the-file"
    assert repository("--config", other, "worker", "--config", file) == "/of-the-file"


def test_an_option_has_a_variable_of_its_own_before_the_shared_one(file: Path) -> None:
    """`MQINFER_WORKER_BROKER` comes before `MQINFER_BROKER`."""
    by_env = {"MQINFER_BROKER": "shared://host"}
    assert "scheme 'shared'" in error("worker", "--config", file, env=by_env)
    assert "scheme 'own'" in error("worker", "--config", file, env=by_env | {"MQINFER_WORKER_BROKER": "own://host"})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[worker]\ncapasity = 3", "line 2, [worker] capasity: there is no such option; did you mean 'capacity'?"),
        ("[wroker]\n", "line 1, [wroker]: there is no such table; did you mean 'worker'?"),
        ("broker = 'x'", "line 1, [broker]"),
        ("[common]\nbrokre = 'x'", "line 2, [common] brokre: there is no such option; did you mean 'broker'?"),
        ("[models.laod]\n", "line 1, [models] laod: there is no such table; did you mean 'load'?"),
        ("[worker]\n\n capacity = 0", "line 3, [worker] capacity"),
        ("[common]\ncapacity = 'many'", "line 2, [common] capacity"),
        ("[worker]\nload = 'no'", "line 2, [worker] load = 'no': expected true or false"),
        ("[worker]\nmodel = 'seg'", "line 2, [worker] model = 'seg': expected an array"),
        ("[worker]\nname = ['a']", "line 2, [worker] name = ['a']: expected text or a number"),
        ("[worker]\nlog-level = 'loud'", "line 2, [worker] log-level"),
        ("worker = { capacity = 0 }", "[worker] capacity"),
        ("[worker]\nx = \n", "not valid TOML: Invalid value (at line 2"),
        ("common = 3", "common = 3: expected a table"),
    ],
)
def test_a_wrong_file(tmp_path: Path, text: str, words: str) -> None:
    """File, line, key and, for a name, the nearest known one; tables of other subcommands are checked too."""
    path = tmp_path / "wrong.toml"
    path.write_text(text)
    said = error("worker", "--repository", "/nowhere", "--config", path)
    assert str(path) in said
    assert words in said


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    """It is an error, and nothing starts."""
    assert f"--config {tmp_path / 'none'}: can't be read" in error("status", "--config", tmp_path / "none")


def test_a_wrong_variable(caplog: pytest.LogCaptureFixture) -> None:
    """A wrong value is an error with the variable's name; a name that resembles a known one is a warning."""
    said = error("worker", "--repository", "/nowhere", env={"MQINFER_WORKER_CAPACITY": "many"})
    assert said.startswith("environment variable MQINFER_WORKER_CAPACITY = 'many': ")
    assert repository("worker", "--repository", "/nowhere", env={"MQINFER_WORKER_CAPASITY": "3"}) == "/nowhere"
    assert "MQINFER_WORKER_CAPASITY is not known; did you mean MQINFER_WORKER_CAPACITY?" in caplog.text


def test_a_wrong_value_of_the_command_line_names_no_other_source(file: Path) -> None:
    """It is an error of usage, as it is without a file."""
    assert "--capacity" in error("worker", "--config", file, "--capacity", 0)


def test_every_option_has_a_variable_and_a_key() -> None:
    """Of all subcommands, each under a name that no other option has."""
    command: Any = get_command(app)
    named = [(path, option) for path, each in commands_of(command, ()) for option in _options(each)]
    variables = [option.envvar[0] for _, option in named]
    assert len(named) > 200
    assert len(variables) == len(set(variables))
    assert {"MQINFER_MODELS_LOAD_TIMEOUT", "MQINFER_STATUS_JSON", "MQINFER_BROKER_CONFIG"} <= set(variables)
    assert all(
        path and option.envvar[0].startswith("MQINFER_" + path[0].upper().replace("-", "_")) for path, option in named
    )


def test_the_examples_are_right() -> None:
    """All its tables and keys exist, and its values are of the right kind."""
    values = _Settings(EXAMPLES / "mqinfer.toml", get_command(app))
    assert values.of(["worker"])["capacity"] == "32"
    assert values.of(["worker"])["broker"] == values.of(["gateway"])["broker"] == "mqtts://broker.example.org:8883"
    assert values.of(["models", "load"])["timeout"] == "600"
    assert values.of(["broker"])["config"] == "/etc/mqinfer/broker"
    edge = _Settings(EXAMPLES / "edge.toml", get_command(app)).of(["edge"])
    assert edge["source"] == ["front=camera:0", "rear=rtsp://10.0.0.12/stream1"]
    assert "preview" not in edge


def test_a_rate_of_previews_in_a_file(tmp_path: Path) -> None:
    """`preview` is a key of `[edge]` and `[replay]`, as the option is."""
    path = tmp_path / "edge.toml"
    path.write_text("[edge]\npreview = 0.5\n[replay]\npreview = 2\n", encoding="utf-8")
    values = _Settings(path, get_command(app))
    assert (values.of(["edge"])["preview"], values.of(["replay"])["preview"]) == ("0.5", "2")


def test_a_group_of_groups() -> None:
    """Each option goes to the group that has it, also where a group has the name of an option."""
    given = {name: default for name, (_, default) in options_of(Sending).items()}
    assert make_group(Sending, given).spool.spool is None
    sending = make_group(Sending, given | {"spool": Path("spool"), "model": ["seg"], "take_over": True})
    assert (sending.spool.spool, sending.models.models, sending.process.take_over) == (Path("spool"), ["seg"], True)


@pytest.mark.parametrize("number", [str(10**30), "1" + 400 * "0", "-" + str(10**30), "1e30", "inf", "nan"])
def test_a_number_that_is_none_for_the_system(file: Path, number: str) -> None:
    """Of a file, the environment and the command line, of an option without bounds of its own: an error says so."""
    file.write_text(f"[replay]\nduration = {number}\n")
    arguments = "drive.bag", "--model", "any", "--topic", "any"
    expected = "expected a number|less than or equal|valid"
    assert re.search(rf"line 2, \[replay\] duration: .*({expected})", error("replay", *arguments, "--config", file))
    assert re.search(expected, error("replay", *arguments, env={"MQINFER_REPLAY_DURATION": number}))
    assert re.search(expected, error("replay", *arguments, "--duration", number))


def test_every_number_has_bounds() -> None:
    """None of them reaches a call of the system that can't take it."""
    for _, command in commands_of(get_command(app), ()):
        for option in _options(command):
            for number in (10**30, 1e30, float("nan")):
                with pytest.raises(typer.BadParameter, match="expected a number"):
                    option.callback(typer.Context(command), option, number)

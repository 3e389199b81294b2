"""The help of each command: sentences, the exit codes at the end, and environment variables that documents name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import typer

from mqinfer.cli.app import app
from mqinfer.cli.exit_codes import EXIT_CODES, ExitCode
from mqinfer.cli.settings import SOURCES
from tests.docs.blocks import DOCUMENTS

NOT_OF_THE_COMMAND = {
    "MQINFER_FAULTS",  # of the test suite
    "MQINFER_PASSWORD",  # read with the broker's URL
    "MQINFER_SAMPLES",  # of the test suite
}


def every_command(command: Any, name: str = "mqinfer") -> Iterator[tuple[str, Any]]:
    """Yield each command, group and subcommand with its name."""
    yield name, command
    for part, child in getattr(command, "commands", {}).items():
        yield from every_command(child, f"{name} {part}")


COMMANDS = dict(every_command(typer.main.get_command(app)))


@pytest.mark.parametrize("name", COMMANDS)
def test_sources_and_exit_codes_end_the_help(name: str) -> None:
    """Also that of a subcommand: a newcomer asks `mqinfer replay --help`."""
    assert COMMANDS[name].epilog == f"{SOURCES}\n\n{EXIT_CODES}"


def test_each_exit_code_is_named() -> None:
    """With its number."""
    assert {int(number) for number in re.findall(r"\b\d+\b", EXIT_CODES)} == set(ExitCode)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_is_written_in_sentences(name: str) -> None:
    """Each command and each option has a text that begins with a capital and ends with a full stop."""
    command = COMMANDS[name]
    texts = {name: command.help, **{part.name: getattr(part, "help", None) for part in command.params}}
    texts.pop("help", None)
    for part, text in texts.items():
        assert text, part
        assert text[0].isupper(), (part, text)
        assert text.endswith("."), (part, text)


def test_environment_variables_exist() -> None:
    """Those that a document names are read by an option; each that several options share is documented."""
    listed = [part.envvar or [] for command in COMMANDS.values() for part in command.params]
    listed = [[each] if isinstance(each, str) else each for each in listed]
    shared = {each[-1] for each in listed if len(each) > 1} | {"MQINFER_CONFIG"}
    written = {
        name for path in DOCUMENTS.values() for name in re.findall(r"\bMQINFER_[A-Z_]+\b", path.read_text("utf-8"))
    }
    assert written - NOT_OF_THE_COMMAND <= {name for each in listed for name in each}
    assert {name for name in shared if name.startswith("MQINFER_")} <= written

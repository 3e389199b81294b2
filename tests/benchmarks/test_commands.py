"""The commands of `python -m benchmarks`, and those that documents name."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import pytest
import typer

from benchmarks.commands import app
from tests.docs.blocks import DOCUMENTS

COMMAND: Any = typer.main.get_command(app)
WRITTEN = {
    words
    for path in DOCUMENTS.values()
    for words in re.findall(r"python -m benchmarks ([a-z]+(?:\s--[a-z-]+(?: [\w./]+)?)*)", path.read_text("utf-8"))
}


def test_commands_that_documents_name_exist() -> None:
    """With their options; all commands are named somewhere."""
    assert {words.split()[0] for words in WRITTEN} == set(COMMAND.commands)
    for words in WRITTEN:
        name, *rest = words.split()
        known = {each for part in COMMAND.commands[name].params for each in (*part.opts, *part.secondary_opts)}
        assert {word for word in rest if word.startswith("-")} <= known, words


@pytest.mark.parametrize("name", COMMAND.commands)
def test_help_is_written_in_sentences(name: str) -> None:
    """Each command and each option has a text that begins with a capital and ends with a full stop."""
    command = COMMAND.commands[name]
    for text in (command.help, *(part.help for part in command.params if part.name != "help")):
        assert text[0].isupper()
        assert text.endswith(".")


@pytest.mark.slow
def test_an_error_is_one_message() -> None:
    """As that of `mqinfer`, with its exit code, before anything starts."""
    command = [sys.executable, "-m", "benchmarks", "batching", "--workload", "none"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("error: no workload is called 'none'; expected one of small")

"""Every code block of README.md and docs/: commands and programs are run, data is read by mqinfer's own readers."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer

from mqinfer.cli.app import app
from mqinfer.edge_agent.sinks.presence import PresenceSettings
from mqinfer.judging.settings import read_settings
from mqinfer.models.repository.config_files import read_layer
from mqinfer.models.repository.tables import read_toml, table_of
from mqinfer.protocol.states import WorkerState
from mqinfer.protocol.topics import Topics
from tests.docs.blocks import DOCUMENTS, NEWCOMERS, PARTS, SCRIPTS, Block, blocks, part_of, run_as_newcomer, running

BLOCKS = [block for document in DOCUMENTS for block in blocks(document)]
HERE = Path(__file__).parent
ELSEWHERE = {
    "hex": "tests/protocol/test_specification.py",
    "js": "tests/clients/test_js_client.py",
    "sql": "tests/edge_agent/test_sinks_parquet.py",
    "text": "no code: output, a tree or a synopsis",
}
IN_SHELL = re.compile(r"(?:^|[;&|(=] *|bin/)mqinfer ([^;&#|)\n]*)", re.MULTILINE)
IN_A_SENTENCE = re.compile(r"(?<!`)`mqinfer ([^`]*)`(?!`)")
NOT_RUN = 16
"""Blocks that no test can run: measurements of minutes, root's own commands, and the suite itself."""


def of_language(language: str) -> list[Any]:
    """Return the blocks of a language, each with its place as its name."""
    return [pytest.param(block, id=str(block)) for block in BLOCKS if block.language == language]


def commands(document: str) -> list[list[str]]:
    """Return the words of each `mqinfer …` command of a document, in its blocks and within its sentences."""
    shell = [block.text.replace("\\\n", " ") for block in blocks(document) if block.language in {"sh", "text", "ini"}]
    found = [words for text in shell for words in IN_SHELL.findall(text)]
    found += IN_A_SENTENCE.findall(DOCUMENTS[document].read_text(encoding="utf-8"))
    return [words.split() for words in found]


def unknown(words: list[str]) -> list[str]:
    """Return the subcommand or the options of a command that don't exist. `load|unload` stands for two commands."""
    command: Any = typer.main.get_command(app)
    rest = list(words)
    while hasattr(command, "commands") and rest and re.fullmatch(r"[a-z|]+", rest[0]):
        names = rest.pop(0).split("|")
        missing = [name for name in names if name not in command.commands]
        if missing:
            return missing
        command = command.commands[names[0]]
    known = {option for parameter in command.params for option in [*parameter.opts, *parameter.secondary_opts]}
    options = {word.strip("[]().,").split("=")[0] for word in rest if word.strip("[(").startswith("-")}
    return sorted(options - known - {"--help", "-", "--"})


def test_each_block_is_run_read_or_marked() -> None:
    """A block has one of the known languages, and few are marked as not run; no Python."""
    rules = [
        block for block in BLOCKS if block.text.startswith("user ")
    ]  # tests/broker/security/test_docs.py reads them
    assert {block.language for block in BLOCKS if block not in rules} <= {*SCRIPTS, *ELSEWHERE, "toml", "json", "ini"}
    marked = [str(block) for block in BLOCKS if block.not_run]
    assert len(marked) <= NOT_RUN, marked
    assert not any(block.not_run for block in BLOCKS if block.language == "python")


@pytest.mark.parametrize("document", DOCUMENTS)
def test_commands_and_options_exist(document: str) -> None:
    """Each `mqinfer …` in a document, also within a sentence and in blocks that are not run."""
    for words in commands(document):
        assert unknown(words) == [], f"{document}: mqinfer {' '.join(words)}"


def test_a_wrong_option_is_found() -> None:
    """The check above can fail."""
    assert unknown(["replay", "x.bag", "--modle", "seg"]) == ["--modle"]
    assert unknown(["models", "load|lode"]) == ["lode"]
    assert sum(map(len, map(commands, DOCUMENTS))) > 80


@pytest.mark.parametrize("block", of_language("toml"))
def test_toml(block: Block, tmp_path: Path) -> None:
    """A `model.toml`, read as a repository does, or the file of a cascade or of presence, read as an edge does."""
    path = tmp_path / "model.toml"
    path.write_text(block.text, encoding="utf-8")
    if "[zones" in block.text:
        assert read_toml(path, table_of(PresenceSettings))
    else:
        assert read_settings(path) if "[reference]" in block.text else read_layer(path)
    assert tomllib.loads(block.text)


@pytest.mark.parametrize("block", of_language("json"))
def test_json(block: Block) -> None:
    """A worker's state, as a client reads it; each other one is JSON."""
    content = json.loads(block.text)
    if "boot" in content:
        topic = Topics("mqinfer/v1").worker_state(content["worker"])
        assert WorkerState.read(Topics("mqinfer/v1"), topic, block.text.encode())


def test_each_document_is_run() -> None:
    """By one of the files `test_run_….py`, or below."""
    run = [NEWCOMERS[0]] + [str(parameters.values[0]) for part in range(PARTS) for parameters in part_of(part)]
    assert sorted(run) == sorted(document for document in DOCUMENTS if running(document))
    assert sorted(path.name for path in HERE.glob("test_run_*.py")) == [f"test_run_{part}.py" for part in range(PARTS)]


@pytest.mark.broker
@pytest.mark.slow
@pytest.mark.timeout(2000)
@pytest.mark.parametrize("document", [NEWCOMERS[0], pytest.param(NEWCOMERS[1], marks=pytest.mark.full)])
def test_in_a_clean_environment(document: str, record_property: Callable[[str, object], None]) -> None:
    """What a newcomer reads first, with exactly its own install lines and no others; needs the package registry."""
    printed = run_as_newcomer(document)
    assert "does not provide the extra" not in printed
    record_property("steps", re.findall("^== .*", printed, re.MULTILINE))  # with how long each took

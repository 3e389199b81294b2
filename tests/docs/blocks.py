"""The code blocks of README.md and docs/, and a shell that runs those of one document in a folder of its own.

A comment directly above a block, invisible where the document is rendered, is for these tests:

    <!-- not run: REASON -->        the block is only checked for commands and options that exist
    <!-- run first: COMMANDS -->    shell commands that make what the reader has by now: a recording, a running worker
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from _pytest.mark import ParameterSet

from mqinfer.broker.mosquitto.server import find_mosquitto
from tests.ports import free_port

__all__ = [
    "DOCUMENTS",
    "NEWCOMERS",
    "PARTS",
    "ROOT",
    "SCRIPTS",
    "Block",
    "blocks",
    "part_of",
    "run_as_newcomer",
    "run_document",
    "running",
]

ROOT = Path(__file__).parents[2]
DOCUMENTS = {str(path.relative_to(ROOT)): path for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]}

NEWCOMERS = "README.md", "docs/tutorial.md"
"""Documents that install all that they use. The first is run where nothing is installed; the second here, too."""
PARTS = 4
"""The other documents are run by so many test files, each of which a process of its own may take."""
SCRIPTS = {"sh", "python"}
"""Languages whose blocks are run."""
_BLOCK = re.compile(
    r"(?P<comments>(?:^<!--(?:(?!-->).)*-->\n)*)^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)
_COMMENT = re.compile(r"<!-- (not run|run first):\s*(.*?) *-->", re.DOTALL)
_INSTALL = re.compile(r"^(python3 -m venv|pip install|scripts/build-page)\b.*$", re.MULTILINE)
_GATEWAY_PORTS = {"HTTP": "8000", "GRPC": "8001", "METRICS": "8002", "TFS_GRPC": "8500", "TFS_REST": "8501"}
_PORTS = ("1883", "1884", "8883", "8884", "9443", "8443", "9201", "8080", *_GATEWAY_PORTS.values())
_GUARDED = """{ read -r; kill -KILL 0; } <&0 & exec bash "$0" </dev/null"""
"""Runs a script whose processes end with the one that holds the other end of its input, even if that is killed."""
_PRELUDE = """\
set -eu
wait_for() {
  local end=$((SECONDS + 240))
  until [ "$(grep -c -- "$1" "$LOG")" -ge "${2:-1}" ]; do [ $SECONDS -lt $end ] || return 1; sleep 0.05; done
}
"""
_MOST_S = 500.0
"""Of one document, on a machine that is busy with other things."""
_TO_END_S = 40.0


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, and what the comments above it say."""

    document: str
    line: int
    language: str
    text: str
    not_run: str
    run_first: str

    def __str__(self) -> str:
        return f"{self.document}:{self.line}"


def blocks(document: str) -> list[Block]:
    """Return the code blocks of a document, in their order."""
    text = DOCUMENTS[document].read_text(encoding="utf-8")
    found = []
    for match in _BLOCK.finditer(text):
        comments = dict(_COMMENT.findall(match["comments"]))
        line = text.count("\n", 0, match.end("comments")) + 1
        marks = comments.get("not run", ""), comments.get("run first", "")
        found.append(Block(document, line, match["language"], match["text"], *marks))
    return found


def running(document: str) -> list[Block]:
    """Return what is run of a document."""
    return [block for block in blocks(document) if block.language in SCRIPTS and not block.not_run]


def part_of(number: int) -> list[ParameterSet]:
    """Return the documents that one of the test files runs: those with most commands are dealt out first.

    The reference is marked as long.
    """
    others = [document for document in DOCUMENTS if document != NEWCOMERS[0]]
    lines = {document: sum(block.text.count("\n") for block in running(document)) for document in others}
    found = sorted((document for document in lines if lines[document]), key=lambda each: -lines[each])[number::PARTS]
    return [pytest.param(each, marks=[pytest.mark.full] * ("reference" in each)) for each in found]


def run_document(document: str) -> None:
    """Run all that can be run of a document, in one shell from top to bottom."""
    find_mosquitto()
    with TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)  # started by root, Mosquitto reads its files as another user
        run(running(document), Path(folder))


def run_as_newcomer(document: str) -> str:
    """Run a document in a fresh clone without an environment: also the lines that install packages.

    The clone has what is not committed yet, too.
    """
    find_mosquitto()
    with TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        clone = Path(folder) / "mqinfer"
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
        listed = ["git", "ls-files", "-z", "--modified", "--others", "--exclude-standard"]
        changed = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout
        for name in filter(None, changed.split("\0")):
            (clone / name).unlink(missing_ok=True)
            if (ROOT / name).is_file():
                (clone / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / name, clone / name)
        return run(running(document), Path(folder), clone=clone)


def run(script: list[Block], folder: Path, *, clone: Path | None = None) -> str:
    """Run the blocks one after another in one shell, as a reader would paste them; return what they printed.

    The programs that they start in the background are ended. The ports of MQTT and of a gateway are free ones here, and
    the broker's machine is this one.

    Args:
        script: The blocks.
        folder: For what they write.
        clone: Where a newcomer begins, with nothing installed; None leaves out the lines that install packages.

    Raises:
        AssertionError: A block failed or took too long; the message is what was printed, each block after its place.
    """
    ports = {port: str(free_port()) for port in _PORTS}
    lines = [_PRELUDE]
    for block in script:
        lines += [f'echo "== {block}: after $SECONDS s"', block.run_first, _shell(block, installs=clone is not None)]
    text = "\n".join(lines)
    for port, free in ports.items():
        text = re.sub(rf"\b{port}\b", free, text)
    text = text.replace("broker.example.org", "localhost")
    (folder / "script.sh").write_text(text, encoding="utf-8")
    common = _ports_as_defaults(folder, ports)
    if clone is None:
        return _run_to_its_end(folder, folder, _of_this_suite(folder) | common, _MOST_S)
    return _run_to_its_end(folder, clone, _of_a_newcomer() | common, _MOST_S * 3)


def _shell(block: Block, *, installs: bool) -> str:
    if block.language == "sh":
        return block.text if installs else _INSTALL.sub("", block.text)
    name = f"line_{block.line}.py"
    return f"cat >{name} <<'PYTHON'\n{block.text}PYTHON\npython {name}\n"


def _ports_as_defaults(folder: Path, ports: Mapping[str, str]) -> dict[str, str]:
    """Return variables by which `mqinfer` and Mosquitto's tools mean the free ports where none are named."""
    port = ports["1883"]
    (folder / ".config").mkdir()
    for tool in ("mosquitto_pub", "mosquitto_sub", "mosquitto_rr"):
        (folder / ".config" / tool).write_text(f"-p {port}\n", encoding="utf-8")
    gateway = {f"MQINFER_GATEWAY_{name}_PORT": ports[usual] for name, usual in _GATEWAY_PORTS.items()}
    return gateway | {
        "MQINFER_DASHBOARD_PORT": ports["8080"],
        "XDG_CONFIG_HOME": str(folder / ".config"),
        "MQINFER_BROKER": f"mqtt://127.0.0.1:{port}",
        "LOG": str(folder / "log"),
    }


def _of_this_suite(folder: Path) -> dict[str, str]:
    """Return an environment in which `mqinfer` is this tree."""
    (folder / "bin").mkdir()
    command = folder / "bin" / "mqinfer"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m mqinfer "$@"\n', encoding="utf-8")
    command.chmod(0o755)
    (folder / "examples").symlink_to(ROOT / "examples")
    path = f"{folder / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}:/usr/sbin"
    return os.environ | {"PATH": path, "PYTHONPATH": str(ROOT)}


def _of_a_newcomer() -> dict[str, str]:
    """Return an environment without this suite's: a Python that has no packages, and versions that are known to do."""
    strange = ("PYTHON", "VIRTUAL_ENV", "MQINFER")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(strange)}
    own = Path(sys.prefix)
    path = [each for each in os.environ["PATH"].split(":") if not Path(each).is_relative_to(own)]
    python = str(Path(sys._base_executable).resolve().parent)  # type: ignore[attr-defined]
    return kept | {
        "PATH": ":".join([python, *path, "/usr/sbin"]),
        "PIP_CONSTRAINT": str(ROOT / "constraints.txt"),
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_COMPILE": "0",  # modules are compiled when they are first imported: few are of all that is installed
        "PIP_QUIET": "1",
    }


def _run_to_its_end(folder: Path, place: Path, environment: dict[str, str], most_s: float) -> str:
    log = folder / "log"
    with (
        log.open("w", encoding="utf-8") as output,
        subprocess.Popen(
            ["bash", "-c", _GUARDED, str(folder / "script.sh")],
            cwd=place,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as shell,
    ):
        try:
            code = shell.wait(most_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _end_group(shell)
    printed = log.read_text(encoding="utf-8")
    assert code == 0, f"{'took too long' if code is None else f'exit code {code}'}\n{printed[-4000:]}"
    return printed


def _end_group(shell: subprocess.Popen[bytes]) -> None:
    """End whatever a shell has started, by force where SIGTERM does not help."""
    _signal_group(shell.pid, signal.SIGTERM)
    deadline = time.monotonic() + _TO_END_S
    while _signal_group(shell.pid, 0):
        shell.poll()
        time.sleep(0.02)
        if time.monotonic() > deadline:
            _signal_group(shell.pid, signal.SIGKILL)
            break  # what keeps an entry is dead: the first process of some containers reaps nobody
    shell.wait()


def _signal_group(group: int, number: int) -> bool:
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    return True

"""The fuzzer itself, shortly: all targets, a fixed seed, a fixed number of inputs, nothing found."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def fuzz(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `python -m tests.fuzz`."""
    return subprocess.run(
        [sys.executable, "-m", "tests.fuzz", *arguments],
        cwd=ROOT,
        env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "2"} | environment,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )


@pytest.mark.full
@pytest.mark.slow
def test_a_short_run_finds_nothing(tmp_path: Path) -> None:
    """Each target gets its share, reaches code, and breaks no rule; what once was found is tried again."""
    done = fuzz("--runs", "20000", "--seed", "1", "--work", str(tmp_path))
    stories = [path.read_text() for path in tmp_path.glob("*/findings/*.txt")]
    assert done.returncode == 0, done.stdout + done.stderr + "\n".join(stories)
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert len(figures) >= 20
    assert sum(each["inputs"] for each in figures) >= 19_900
    assert all(each["edges"] > 10 for each in figures), done.stdout


@pytest.mark.full
@pytest.mark.slow
def test_a_finding_is_kept_and_told(tmp_path: Path) -> None:
    """A decoder that raises what it must not fails the run, and leaves the input and the traceback."""
    broken = tmp_path / "sitecustomize.py"
    broken.write_text(
        "from mqinfer.protocol import topics\n"
        "real = topics.TopicKind.parse\n"
        "def parse_kind(self, topic):\n"
        "    return {**real(self, topic), **({}[0] if self.what == 'model card' else {})}\n"
        "topics.TopicKind.parse = parse_kind\n"
    )
    paths = os.pathsep.join((str(tmp_path), str(ROOT)))
    done = fuzz("--runs", "300", "--work", str(tmp_path / "work"), "topics", PYTHONPATH=paths)
    assert done.returncode == 1, done.stdout + done.stderr
    (story,) = (tmp_path / "work" / "topics" / "findings").glob("KeyError-*.txt")
    assert "parse_kind" in story.read_text()
    assert story.with_suffix("").read_bytes() == b"mqinfer/v1/models/seg/card"


def test_without_atheris_the_hypothesis_tests_run(tmp_path: Path) -> None:
    """It is said in one line, and the same decoders are tested."""
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.util as util\n"
        "find = util.find_spec\n"
        "util.find_spec = lambda name, *more: None if name == 'atheris' else find(name, *more)\n"
    )
    paths = os.pathsep.join((str(tmp_path), str(ROOT)))
    done = fuzz(PYTHONPATH=paths, PYTEST_ADDOPTS="--collect-only -p no:cacheprovider")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("atheris is not installed")
    assert "test_mutated_envelopes_raise_nothing_but_typed_errors" in done.stdout

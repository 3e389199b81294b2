"""A user's script as editors and type checkers see it: outside of a clone that was installed with `pip install -e`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

CLONE = Path(__file__).parents[2]
pytestmark = pytest.mark.slow  # an installation, and type checkers that read all of NumPy's types
WRONG = """
import numpy as np
from mqinfer import Client, ClientOptions
client = Client("mqtt://127.0.0.1", options=ClientOptions(timeout=1.0))
client.infer("seg", {"input": np.zeros(3)}, tiemout=5)
client.infer("seg", {"input": np.zeros(3)}, priority="high")
client.submit("seg", [np.zeros(3)])
client.stream("seg", policy="newest")
Client("mqtt://127.0.0.1", tls="ca.crt")
ClientOptions(windwo=3)
"""
MISTAKES = range(5, 11)


def run(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a command that finds nothing of the tree but what is installed."""
    environment = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "MYPYPATH"}}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=170, check=False)


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment in which a clone is installed with `pip install -e`."""
    clone, environment = tmp_path_factory.mktemp("clone"), tmp_path_factory.mktemp("environment")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(CLONE / name, clone)
    shutil.copytree(CLONE / "mqinfer", clone / "mqinfer", ignore=shutil.ignore_patterns("__pycache__"))
    run(sys.executable, "-m", "venv", "--without-pip", environment, cwd=clone)
    made = environment / "bin" / "python"
    [packages] = environment.glob("lib/python3*/site-packages")
    (packages / "others.pth").write_text(sysconfig.get_path("purelib"))  # what mqinfer needs is there already
    install = ("-m", "pip", "--python", made, "install", "--no-deps", "--no-index", "--no-build-isolation")
    installed = run(sys.executable, *install, "--editable", clone, cwd=clone)
    assert installed.returncode == 0, installed.stderr
    found = run(made, "-c", "import mqinfer; print(mqinfer.__file__)", cwd=environment)
    assert found.stdout.strip() == str(clone / "mqinfer" / "__init__.py"), found.stderr
    return made


@pytest.fixture
def check(python: Path, tmp_path: Path) -> Callable[[str, str], list[tuple[int, str]]]:
    """Check a script in strict mode, and return the lines with errors, and the errors."""
    cache = python.parent / "mypy-cache"

    def mypy(script: Path) -> list[tuple[int, str]]:
        options = ("--strict", "--no-error-summary", "--output", "json", "--python-executable", python)
        found = run(sys.executable, "-m", "mypy", *options, "--cache-dir", cache, script, cwd=tmp_path)
        assert found.returncode in {0, 1}, found.stderr + found.stdout
        return [(error["line"], error["message"]) for error in map(json.loads, filter(None, found.stdout.splitlines()))]

    def pyright(script: Path) -> list[tuple[int, str]]:
        program = shutil.which("basedpyright", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
        if program is None:
            pytest.skip("basedpyright is not installed; run: pip install -e '.[dev]'")
        settings: dict[str, Any] = {"typeCheckingMode": "strict", "pythonVersion": "3.11"}
        (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
        options = ("--outputjson", "--pythonpath", python)
        found = run(program, *options, script, cwd=tmp_path)
        assert found.returncode in {0, 1}, found.stderr + found.stdout
        report = json.loads(found.stdout)
        assert report["summary"]["filesAnalyzed"] == 1
        return [(each["range"]["start"]["line"] + 1, each["message"]) for each in report["generalDiagnostics"]]

    def checked(checker: str, text: str) -> list[tuple[int, str]]:
        script = tmp_path / "script.py"
        script.write_text(text)
        return {"mypy": mypy, "pyright": pyright}[checker](script)

    return checked


@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_a_script_without_mistakes(checker: str, check: Callable[[str, str], list[tuple[int, str]]]) -> None:
    """All names of mqinfer are found, are no private ones, and have known types."""
    assert check(checker, (Path(__file__).parent / "user_script.py").read_text()) == []


@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_mistakes_are_found(checker: str, check: Callable[[str, str], list[tuple[int, str]]]) -> None:
    """A wrong name or value of an argument is an error in its line, and nothing else is one."""
    assert sorted({line for line, _ in check(checker, WRONG)}) == list(MISTAKES)

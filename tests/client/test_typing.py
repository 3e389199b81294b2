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

import pytest

from tests.programs import find_program

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


Errors = list[tuple[str, int, str]]
"""Script, line and message."""


def by_mypy(python: Path, scripts: list[Path]) -> Errors:
    """Check scripts in mypy's strict mode."""
    folder = scripts[0].parent
    options = ("--strict", "--no-error-summary", "--output", "json", "--cache-dir", folder / "cache")
    found = run(sys.executable, "-m", "mypy", *options, "--python-executable", python, *scripts, cwd=folder)
    assert found.returncode in {0, 1}, found.stderr + found.stdout
    errors = map(json.loads, filter(None, found.stdout.splitlines()))
    return [(Path(error["file"]).name, error["line"], error["message"]) for error in errors]


def by_pyright(python: Path, scripts: list[Path]) -> Errors:
    """Check scripts in pyright's strict mode, with the build of it that comes as one wheel."""
    folder = scripts[0].parent
    (folder / "pyrightconfig.json").write_text('{"typeCheckingMode": "strict", "pythonVersion": "3.11"}')
    found = run(find_program("basedpyright"), "--outputjson", "--pythonpath", python, *scripts, cwd=folder)
    assert found.returncode in {0, 1}, found.stderr + found.stdout
    report = json.loads(found.stdout)
    assert report["summary"]["filesAnalyzed"] == len(scripts)
    errors = report["generalDiagnostics"]
    return [(Path(each["file"]).name, each["range"]["start"]["line"] + 1, each["message"]) for each in errors]


@pytest.mark.parametrize("check", [by_mypy, by_pyright])
def test_scripts_of_users(check: Callable[[Path, list[Path]], Errors], python: Path, tmp_path: Path) -> None:
    """All names are found, are public and have known types; a wrong name or value of an argument is an error there."""
    right, wrong = tmp_path / "right.py", tmp_path / "wrong.py"
    shutil.copy(Path(__file__).parent / "user_script.py", right)
    wrong.write_text(WRONG)
    errors = check(python, [right, wrong])
    assert [error for error in errors if error[0] == right.name] == []
    assert sorted({line for _, line, _ in errors}) == list(MISTAKES)

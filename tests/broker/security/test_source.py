"""No code comes from a message or a file: what could run some is not used anywhere in mqinfer."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import mqinfer

SOURCE = Path(mqinfer.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))
MODULES = {"pickle", "cPickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "jsonpickle", "yaml"}
SAFE = {"yaml": {"CSafeLoader", "YAMLError", "parse"}}
"""What of these may be imported by its name: it makes nothing but numbers, texts, lists and maps."""
NAMES = {"eval", "exec", "compile", "__import__"}
CALLS = {
    "torch.load",
    "torch.package.PackageImporter",
    "torch.ops.load_library",
    "tf.load_op_library",
    "tf.load_library",
    "os.system",
    "os.popen",
    "pickle.loads",
    "keras.config.enable_unsafe_deserialization",
    "multiprocessing.connection.Listener",
    "multiprocessing.connection.Client",
}
TRUSTING = {"allow_pickle": True, "safe_mode": False, "weights_only": False, "shell": True}
STARTS_PROGRAMS = {
    "bench/contestants/triton.py",  # the server that the user named
    "bench/processes.py",  # this Python, with a function of ours
    "bench/seeds/noscope/headline.py",  # this Python, on one core, with a command of ours
    "broker/mosquitto/server.py",  # Mosquitto
    "logs.py",  # this Python, which filters lines of stderr
    "bench/seeds/on_gpu.py",  # nvidia-smi
    "lab/profiling/memory.py",  # nvidia-smi
    "lab/conversion.py",  # this Python, with the model's path
    "cli/demo.py",  # this Python
    "cli/support.py",  # journalctl
}


def findings(source: str) -> Iterator[str]:
    """What a text uses that could run foreign code."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from _imports(node)
        elif isinstance(node, ast.Call):
            yield from _calls(node)


def _imports(node: ast.Import | ast.ImportFrom) -> Iterator[str]:
    if isinstance(node, ast.ImportFrom) and {each.name for each in node.names} <= SAFE.get(node.module or "", set()):
        return
    names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
    yield from (f"import {name}" for name in names if name.split(".")[0] in MODULES)
    if isinstance(node, ast.ImportFrom):
        whole = {f"{node.module}.{alias.name}" for alias in node.names}
        yield from (f"import {name}" for name in whole & CALLS)


def _calls(node: ast.Call) -> Iterator[str]:
    called = ast.unparse(node.func)
    if called in NAMES | CALLS:
        yield f"{called}(...)"
    for keyword in node.keywords:
        if keyword.arg in TRUSTING and not _is(keyword.value, not TRUSTING[keyword.arg]):
            yield f"{called}({keyword.arg}=...)"
    if called.endswith("register_custom_ops_library"):
        yield f"{called}(...)"


def _is(node: ast.expr, value: bool) -> bool:  # noqa: FBT001 - a constant's
    return isinstance(node, ast.Constant) and node.value is value


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_nothing_runs_foreign_code(path: Path) -> None:
    """No pickle, no eval, no loader that trusts its file, no library of operators."""
    assert list(findings(path.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from pickle import loads",
        "import joblib.externals",
        "eval('1')",
        "compile(text, '', 'exec')",
        "torch.load(path)",
        "np.load(path, allow_pickle=True)",
        "np.load(path, allow_pickle=trust)",
        "keras.saving.load_model(path, safe_mode=False)",
        "subprocess.run(line, shell=True)",
        "from multiprocessing.connection import Listener",
        "options.register_custom_ops_library(path)",
    ],
)
def test_the_search_finds_what_it_looks_for(source: str) -> None:
    """Each forbidden thing is found."""
    assert list(findings(source))


def test_who_starts_programs() -> None:
    """Few files start a program, none of them with words of a message."""
    found = {str(path.relative_to(SOURCE)) for path in FILES if "import subprocess" in path.read_text(encoding="utf-8")}
    assert found <= STARTS_PROGRAMS, "name it here, and say what it starts"

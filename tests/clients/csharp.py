"""The C# client and its programs, compiled by Mono's compiler into a folder of the tests."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.clients.pages import ROOT

CLIENT = ROOT / "clients" / "csharp"
_COMPILER = ["mcs", "-langversion:7.2", "-warnaserror", "-debug", "-d:MONO"]
_REFERENCES = ["-r:System.dll", "-r:System.Core.dll", "-r:Mono.Security.dll"]
_LIBRARY = "Mqinfer.Client.dll"
_TIMEOUT_S = 300
_RUN = """#!/bin/sh
exec mono --debug "$0.exe" "$@"
"""


def built(folder: Path, mqttnet: Path | None = None) -> Path:
    """Compile the library, its tests and the examples into a folder; a warning is an error.

    With `mqttnet`, an `MQTTnet.dll`, that carries the messages.

    What is public needs a comment, or the compiler warns. Each program is a script that runs it in Mono.
    """
    if lacking := [program for program in ("mcs", "mono") if shutil.which(program) is None]:
        pytest.skip(f"the C# client needs {' and '.join(lacking)}: apt-get install mono-mcs")
    source = sorted((CLIENT / "src").rglob("*.cs"))
    chosen = [] if mqttnet is None else ["-d:MQTTNET", f"-r:{shutil.copy(mqttnet, folder)}"]
    _compile(folder / _LIBRARY, source, "-target:library", f"-doc:{folder / 'documentation.xml'}", *chosen)
    _compile(folder / "tests.exe", source + sorted((CLIENT / "tests").glob("*.cs")), *chosen)
    for example in sorted((CLIENT / "examples").glob("*.cs")):
        _compile(folder / f"{example.stem.lower()}.exe", [example], f"-r:{folder / _LIBRARY}")
    for program in folder.glob("*.exe"):
        program.with_suffix("").write_text(_RUN, encoding="utf-8")
        program.with_suffix("").chmod(0o755)
    return folder


def _compile(to: Path, source: list[Path], *options: str) -> None:
    command = [*_COMPILER, *_REFERENCES, f"-out:{to}", *options, *map(str, source)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]

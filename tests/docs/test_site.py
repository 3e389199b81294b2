"""The secure site of docs/reference/settings.md: its commands run as root, and the units' commands as another user."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from mqinfer.broker.mosquitto.server import find_mosquitto
from mqinfer.dashboard.page import PAGE
from tests.docs.blocks import ROOT, Block, blocks, run
from tests.docs.test_units import values

DOCUMENT = "docs/reference/settings.md"
OTHER = "daemon"
"""An account that every Debian has, in place of `mqinfer`."""

pytestmark = [
    pytest.mark.broker,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files for another user and become one"),
]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A root of its own in place of /etc, /opt and /srv, which the other user can enter."""
    find_mosquitto()
    with TemporaryDirectory(prefix="mqinfer-site-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def commands() -> list[str]:
    """Return the blocks of the section, as they stand."""
    text = (ROOT / DOCUMENT).read_text(encoding="utf-8")
    first = text.count("\n", 0, text.index("## A secure site")) + 1
    last = text.count("\n", 0, text.index("## Configuration")) + 1
    return [block.text for block in blocks(DOCUMENT) if first < block.line < last]


def unit(name: str, folder: Path) -> str:
    """Return what systemd would run of a unit: its command with its environment, as the other user."""
    (command,) = values(f"mqinfer-{name}.service", "ExecStart")
    files = values(f"mqinfer-{name}.service", "EnvironmentFile")
    reads = "".join(f"set -a; . {file}; set +a; " for file in files)
    become = f"setpriv --reuid={OTHER} --regid=nogroup --clear-groups"
    return f"( {reads}cd {folder}; exec {become} {command} ) &"


def test_as_another_user(folder: Path) -> None:
    """Broker, worker, gateway and dashboard start and answer; a client that root adds later is let in."""
    if not (PAGE / "index.html").is_file():
        pytest.skip("the dashboard's page is not built (scripts/build-page)")
    first, look = commands()
    prepare, _, start = first.partition("sudo systemctl enable --now ")
    started = [unit(name.removeprefix("mqinfer-"), folder) for name in start.split()]
    ready = ["broker ready", "ready.*small_16", "gw-1: ready", "dashboard: ready"]
    waits = [f"until grep -q {shlex.quote(each)} $LOG; do kill -0 $!; sleep 0.05; done" for each in ready]
    lines = [
        "mqinfer models build models --model small_16",
        prepare,
        "sed -i 's|=/e[t]c/|=/etc/|; s/8[8]83/8883/' /etc/mqinfer/*.env",  # where this test has them
        "export MQINFER_DASHBOARD_PORT=8080",
        *(f"{command}\n{wait}" for command, wait in zip(started, waits, strict=True)),
        look,
        "key=$(sed -n 's/^key = \"\\(.*\\)\"/\\1/p' /etc/mqinfer/keys.toml)",
        'curl -sf --cacert /etc/mqinfer/page.crt -H "Authorization: Bearer $key" https://localhost:8000/v2/models/small_16',
        "curl -sf --cacert /etc/mqinfer/page.crt https://localhost:8080/healthz",
        "/opt/mqinfer/bin/mqinfer broker add /etc/mqinfer/broker operator bob",
        "bob='--ca-file /etc/mqinfer/ca.crt --cert-file '$clients'/bob.crt --key-file '$clients'/bob.key'",
        "until /opt/mqinfer/bin/mqinfer models ready small_16 --broker mqtts://$site:8883 $bob; do sleep 0.2; done",
    ]
    printed = run([Block(DOCUMENT, 1, "sh", adapted("\n".join(lines), folder), "", "")], folder)
    assert "can't be read" not in printed
    for secret in ("broker/ca.key", "broker/group", "broker/clients/ann.key", "worker.env"):
        path = folder / "etc" / "mqinfer" / secret
        refused = ["setpriv", f"--reuid={OTHER}", "--regid=nogroup", "--clear-groups", "cat", str(path)]
        assert subprocess.run(refused, capture_output=True, check=False).returncode != 0, secret


def adapted(text: str, folder: Path) -> str:
    """Return commands that write below a folder, to this tree's `mqinfer`, for the other user."""
    text = re.sub(r"(?<![\w/.])/(etc|opt|srv)/(?!hosts)", rf"{folder}/\1/", text)
    text = text.replace("broker.example.org", "localhost").replace("sudo ", "")
    text = re.sub(r"(--user|-o|chown) mqinfer\b", rf"\1 {OTHER}", text)
    program = folder / "opt" / "mqinfer" / "bin" / "mqinfer"
    for place in (program.parent, folder / "srv", folder / "etc" / "systemd" / "system"):
        place.mkdir(parents=True, exist_ok=True)
    program.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m mqinfer "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    return text

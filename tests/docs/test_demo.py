"""`mqinfer demo`: the first thing that README.md tells a newcomer to run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from mqinfer.broker.mosquitto.server import find_mosquitto


def demo(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run it in a process of its own."""
    command = [sys.executable, "-m", "mqinfer", "demo", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.broker
@pytest.mark.slow
@pytest.mark.timeout(600)  # some 25 s of processor time, with a busy machine's share of it
def test_the_demo(tmp_path: Path) -> None:
    """Each frame of both drives has a result, masks are right, and what was written is named at the end."""
    find_mosquitto()
    done = demo(tmp_path / "demo")
    assert done.returncode == 0, done.stdout + done.stderr
    for drive in ("ros1", "ros2"):
        folder = tmp_path / "demo" / drive
        assert json.loads((folder / "summary.json").read_text("utf-8"))["outcomes"]["ok"] == 40
        assert str(folder / "results.mcap") in done.stdout


def test_a_folder_that_exists_is_kept(tmp_path: Path) -> None:
    """It is replaced by --overwrite only."""
    done = demo(tmp_path)
    assert (done.returncode, "already exists" in done.stderr) == (2, True)

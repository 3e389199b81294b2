from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from mqinfer import Client
from mqinfer.client.control import ControlClient
from mqinfer.protocol.control import Call, Operation

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.full, pytest.mark.shared_data]
CYCLES = int(os.environ.get("MQINFER_TEST_CYCLES", "3"))
"""Each cycle starts TensorFlow, some four seconds; `MQINFER_TEST_CYCLES=20` with `--log-cli-level=INFO` for figures."""
log = logging.getLogger("tests.memory")


def kib(path: Path, key: str) -> int:
    """Read a line such as `Pss:   1234 kB`."""
    return next(int(line.split()[1]) for line in path.read_text().splitlines() if line.startswith(f"{key}:"))


def tree(pid: int) -> list[int]:
    """Return a process and its descendants."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(descendant for child in children for descendant in tree(int(child)))]


def used(pid: int) -> tuple[int, int]:
    """Return the resident memory of a process and the proportional memory of its tree, in KiB."""
    proportional = sum(kib(Path(f"/proc/{each}/smaps_rollup"), "Pss") for each in tree(pid))
    return kib(Path(f"/proc/{pid}/status"), "VmRSS"), proportional


def test_loading_and_unloading_leaves_no_memory_behind(
    tmp_path: Path, shared_data: Path, broker_url: str, unique: Callable[[str], str]
) -> None:
    """Loading, using and unloading a SavedModel repeatedly leaves the supervisor's memory as it was."""
    shutil.copytree(shared_data / "models" / "half_plus_two_2_versions", tmp_path / "half_plus_two")
    root = unique("test")
    command = [sys.executable, "-m", "mqinfer", "worker", "--repository", str(tmp_path), "--no-load", "--root", root]
    server = subprocess.Popen([*command, "--broker", broker_url, "--name", root], stderr=subprocess.PIPE, text=True)
    figures = []
    try:
        with ControlClient(broker_url, root=root) as control, Client(broker_url, root=root) as client:
            control.wait_for(root, timeout=60)
            for _ in range(1 + CYCLES):  # the first one warms up
                control.load("half_plus_two", timeout=120)
                loaded = sum(kib(Path(f"/proc/{pid}/smaps_rollup"), "Pss") for pid in tree(server.pid))
                assert client.infer("half_plus_two", {"x": np.ones((1, 1), np.float32)}).model_version == "124"
                control.unload("half_plus_two")
                figures.append((*used(server.pid), loaded))
            (index,) = control.ask(Call(Operation.INDEX))
        assert [(entry["version"], entry["state"]) for entry in index.content] == [("124", "UNAVAILABLE")]
        assert len(tree(server.pid)) <= 2  # itself and multiprocessing's resource tracker
    finally:
        server.terminate()
        _, output = server.communicate(timeout=60)
    (resident, proportional, loaded), (last_resident, last_proportional, _) = figures[0], figures[-1]
    log.info("resident, proportional, proportional while loaded, in KiB: %s", figures)
    assert server.returncode == 0, output
    assert last_resident <= 1.05 * resident
    assert last_proportional <= 1.05 * proportional
    assert loaded > 2 * proportional  # what came back is most of it

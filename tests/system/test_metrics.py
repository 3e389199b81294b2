"""The metrics of a server whose processes come and go."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mqinfer import Client
from mqinfer.cloud_worker.supervision.metrics import _add_usage
from mqinfer.metrics.process_usage import usage
from mqinfer.metrics.samples import Samples
from mqinfer.protocol.control import ModelStatistics
from tests.patience import PATIENT, wait_until

pytestmark = [pytest.mark.broker, pytest.mark.slow]  # real processes
ROWS = {"x": np.zeros((1, 4), np.float32)}


def test_what_a_process_uses(write_echo: Callable[..., Path], managed: Callable[..., Any]) -> None:
    """CPU time and memory of each process, from outside; nothing of one that has ended."""
    server = managed(write_echo("echo"))
    while server.events.get(timeout=120).kind != "ready":
        pass
    pids, samples = server.supervisor.pids, Samples()
    (used,) = usage(pids).values()
    assert used.pid == pids[f"{server.name}.0"]
    assert used.cpu_s > 0
    assert 1 << 20 < used.memory_bytes < 1 << 40
    _add_usage(samples, server.supervisor.processes, pids)
    found = {each.name: each.labels for family in samples.families() for each in family.samples}
    assert found["mqinfer_worker_process_cpu_seconds_total"] == {
        "process": f"{server.name}.0",
        "model": "echo",
        "version": "1",
    }
    server.control.unload("echo")
    assert usage(pids) == {}


def test_counters_never_go_back(write_echo: Callable[..., Path], managed: Callable[..., Any], broker_url: str) -> None:
    """A process is killed, a version is loaded anew: each request that was read once stays counted."""
    server = managed(write_echo("echo"))

    def totals() -> ModelStatistics:
        found: ModelStatistics = server.supervisor.statistics().result(60).totals["echo", 1]
        return found

    def wait_for(kind: str) -> None:
        while server.events.get(timeout=120).kind != kind:
            pass

    wait_for("ready")
    with Client(broker_url, root=server.topics.root, options=PATIENT) as client:
        for _ in range(5):
            client.infer("echo", ROWS, timeout=120)
        wait_until(lambda: (found := totals()).counters.get("ok") == 5 and not found.depth)  # which follow the reply
        assert totals().capacity == 64
        os.kill(next(iter(server.supervisor.pids.values())), signal.SIGKILL)
        wait_for("crashed")
        assert totals().counters["ok"] == 5
        wait_for("ready")
        for _ in range(3):
            client.infer("echo", ROWS, timeout=120)
        wait_until(lambda: totals().counters["ok"] == 8)
        second = totals()
        assert (second.counters["ok"], second.inference_count, sum(second.histograms["success"])) == (8, 8, 8)
        assert server.supervisor.statistics().result(60).crashes == {("echo", 1): 1}
        for _ in range(2):  # after the last reading: what a process counts until its orderly end is not lost
            client.infer("echo", ROWS, timeout=120)
        (server.template.repository / "echo" / "model.toml").write_text("[parameters]\n")
        server.control.load("echo", timeout=120)
        third = totals()
        assert (third.counters["ok"], third.capacity) == (10, 64)
        server.control.unload("echo")
    assert server.supervisor.statistics().result(60).totals == {}

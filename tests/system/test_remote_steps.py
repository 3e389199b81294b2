"""A pipeline over machines: each step in a worker of its own, which may be killed, or start late."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from concurrent.futures import wait
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mqinfer import Client
from mqinfer.protocol.topics import Topics
from mqinfer.protocol.types import Outcome
from tests.faults.conftest import FULL
from tests.models.test_ensemble import pictures, write_pipeline
from tests.patience import PATIENT

pytestmark = [pytest.mark.broker, pytest.mark.slow]

KILLS = 10 if FULL else 2
STEPS = ("scale", "net", "most")


@pytest.fixture
def apart(tmp_path: Path) -> dict[str, Path]:
    """The pipeline `seeing` and its three steps, each in a repository of its own."""
    whole = tmp_path / "seeing"
    write_pipeline(whole)
    for step in STEPS:
        (tmp_path / step).mkdir()
        (whole / step).rename(tmp_path / step / step)
    (whole / "seeing" / "model.toml").write_text(f'[parameters]\nremote_steps = "{", ".join(STEPS)}"\n')
    return {name: tmp_path / name for name in ("seeing", *STEPS)}


def test_killed_steps(apart: dict[str, Path], managed: Callable[..., Any], broker_url: str, unique: Any) -> None:
    """The worker of a step is killed again and again under load: each request has one outcome, and the right answer."""
    topics = Topics(unique("test"))
    servers = {name: managed(apart[name], topics) for name in (*STEPS, "seeing")}
    images = pictures(4)
    with Client(broker_url, root=topics.root, options=PATIENT) as client:
        client.card("seeing", timeout=60)
        futures = []
        for _ in range(KILLS):
            (network,) = servers["net"].supervisor.processes
            sent = [client.submit("seeing", {"IMAGE": images}, timeout=120) for _ in range(60)]
            wait(sent[:10])
            os.kill(network.pid, signal.SIGKILL)
            kinds: list[str] = []
            while kinds[-1:] != ["ready"] or "crashed" not in kinds:
                kinds.append(servers["net"].events.get(timeout=60).kind)
            futures += sent
        for future in futures:
            assert np.array_equal(future.result(120).outputs["MASK"], images[:, ::2, ::2].argmax(axis=3))
        counters = client.counters()
    assert counters.outcomes[Outcome.OK] == counters.submitted == 60 * KILLS


def test_steps_that_start_late(
    apart: dict[str, Path], managed: Callable[..., Any], broker_url: str, unique: Any
) -> None:
    """A pipeline whose server starts first is served once its steps are there."""
    topics = Topics(unique("test"))
    managed(apart["seeing"], topics)
    for step in STEPS:
        managed(apart[step], topics)
    with Client(broker_url, root=topics.root, options=PATIENT) as client:
        client.card("seeing", timeout=60)
        assert client.infer("seeing", {"IMAGE": pictures(1)}, timeout=60).outcome is Outcome.OK

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mqinfer.client import Client, ClientOptions
from mqinfer.cloud_worker.supervision.child import Phase
from mqinfer.metrics import scaling
from mqinfer.metrics.scaling import Scaler, ScalingRule
from mqinfer.protocol.types import Outcome
from tests.patience import PATIENCE_S, wait_until

X = {"x": np.ones(4, np.float32)}


@pytest.mark.broker
def test_processes_follow_what_waits(
    managed: Callable[..., Any],
    write_echo: Callable[..., Path],
    broker_url: str,
    unique: Callable[[str], str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Up with what waits, down to none behind it, and from none with the next request; no request is lost."""
    monkeypatch.setattr(scaling, "Scaler", partial(Scaler, ScalingRule(drain_s=1, hold_s=1)))
    server = managed(write_echo("echo", ("x", "FP32", [4]), delay_ms=100), autoscale="0..3")
    at_work = {Phase.WAITING, Phase.STARTING, Phase.READY}

    def count() -> int:
        return sum(view.phase in at_work for view in server.supervisor.processes)

    options = ClientOptions(timeout=10 * PATIENCE_S, patience=PATIENCE_S)
    with Client(broker_url, name=unique("car"), root=server.topics.root, options=options, announce="load") as client:
        assert client.infer("echo", X).outcome is Outcome.OK
        wait_until(lambda: count() == 0)
        assert client.infer("echo", X).outcome is Outcome.OK
        outcomes: list[Outcome] = []
        futures = [client.submit("echo", X) for _ in range(200)]
        reader = threading.Thread(target=lambda: outcomes.extend(each.result().outcome for each in futures))
        reader.start()
        wait_until(lambda: count() > 1)
        reader.join()
        wait_until(lambda: count() == 0)
    assert set(outcomes) == {Outcome.OK}


@pytest.mark.broker
def test_a_canary_that_fails_is_taken_back(
    managed: Callable[..., Any], write_echo: Callable[..., Path], broker_url: str
) -> None:
    """The order ends with its reply, and the server goes on watching; then all requests succeed, as without it."""
    tensor = ("x", "FP32", [4])
    write_echo("echo", tensor)
    server = managed(write_echo("echo", tensor, version=2, fail_every=2), load=False)
    (reply,) = server.control.load("echo")
    assert reply.content["versions"] == ["2"]
    server.control.traffic("echo", stable=1)
    (reply,) = server.control.traffic("echo", canary=2, share=50, watch=True)
    assert reply.content["watch"] is True
    failed = 0
    with Client(broker_url, root=server.topics.root) as client:

        def is_back() -> bool:
            nonlocal failed
            failed += client.submit("echo", X).exception() is not None
            return "canary" not in client.card("echo").parameters.labels

        wait_until(is_back)
        assert failed
        wait_until(lambda: all(client.submit("echo", X).exception() is None for _ in range(10)))

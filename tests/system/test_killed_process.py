from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mqinfer import Client
from mqinfer.client.result import InferResult
from mqinfer.protocol.types import Outcome

pytestmark = [pytest.mark.broker, pytest.mark.slow]
X = np.zeros((1, 4), np.float32)


def send_requests(client: Client, model: str, stop: threading.Event, futures: list[Future[InferResult]]) -> None:
    """Keep eight requests in flight until the event is set."""
    window = threading.Semaphore(8)
    while not stop.is_set():
        window.acquire()
        future = client.submit(model, {"x": X}, timeout=3)
        future.add_done_callback(lambda _: window.release())
        futures.append(future)


def test_a_killed_process_restarts_and_affects_no_other_model(
    write_echo: Callable[..., Path], managed: Callable[..., Any], broker_url: str
) -> None:
    """A process killed under load is restarted; all requests to another model succeed at the first attempt."""
    write_echo("killed", delay_ms=1)
    server = managed(write_echo("other", delay_ms=1))
    server.control.load("killed")
    server.control.load("other")
    (pid,) = (view.pid for view in server.supervisor.processes if view.spec.model == "killed")
    stop = threading.Event()
    futures: dict[str, list[Future[InferResult]]] = {"killed": [], "other": []}
    with ExitStack() as stack:
        clients = {name: stack.enter_context(Client(broker_url, root=server.topics.root)) for name in futures}
        threads = [
            threading.Thread(target=send_requests, args=(clients[name], name, stop, futures[name])) for name in futures
        ]
        for thread in threads:
            thread.start()
        try:
            wait([clients["killed"].submit("killed", {"x": X}, timeout=30)])
            os.kill(pid, signal.SIGKILL)
            kinds: list[str] = []
            while kinds[-1:] != ["ready"] or "crashed" not in kinds:
                kinds.append(server.events.get(timeout=60).kind)
            served = clients["killed"].infer("killed", {"x": X}, timeout=30)
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        wait([future for asked in futures.values() for future in asked], timeout=30)
        counters = {name: client.counters() for name, client in clients.items()}

    assert served.outcome is Outcome.OK
    assert all(future.result().attempts == 1 for future in futures["other"])
    assert counters["other"].outcomes[Outcome.OK] == counters["other"].submitted == len(futures["other"])
    assert all(future.done() for future in futures["killed"])
    assert sum(counters["killed"].outcomes.values()) == counters["killed"].submitted == len(futures["killed"]) + 2
    assert (counters["killed"].pending, counters["killed"].outcomes[Outcome.CANCELLED]) == (0, 0)

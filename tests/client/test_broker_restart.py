from __future__ import annotations

import os
import signal
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import wait
from typing import Any

import numpy as np
import pytest

from mqinfer import ClientOptions, Outcome
from mqinfer.broker.mosquitto.server import MosquittoServer
from mqinfer.errors import NoWorker
from tests.client.conftest import MakeClient, Serve, WriteEcho
from tests.patience import wait_until

pytestmark = pytest.mark.broker


def test_nobody_serves_the_model(broker_url: str, make_client: MakeClient, unique: Callable[[str], str]) -> None:
    """Mosquitto's PUBACK says that nobody subscribes, and the client says so when its patience is over."""
    client, model = make_client(broker_url, options=ClientOptions(patience=0.05, backoff=0.01)), unique("nobody")
    with pytest.raises(NoWorker, match=f"model '{model}'.*start one, or check the model's name"):
        client.infer(model, {"x": np.zeros(1, np.float32)}, timeout=30)
    assert client.counters().retries >= 1


def test_a_wrong_name_is_told_with_what_there_is(
    make_client: MakeClient, serve: Serve, write_echo: WriteEcho, unique: Callable[[str], str]
) -> None:
    """The models that workers serve, the nearest name, and for a wrong version those that there are."""
    url = f"memory://{unique('broker')}"
    serve(url, write_echo("segment"), "segment")
    client, x = make_client(url, options=ClientOptions(patience=0.05, backoff=0.01)), {"x": np.zeros(1, np.float32)}
    with pytest.raises(NoWorker, match="models that workers serve here: segment; did you mean 'segment'"):
        client.infer("segmnet", x, timeout=30)
    with pytest.raises(NoWorker, match="versions of it: 1"):
        client.infer("segment", x, version="7", timeout=30)


def test_a_broker_that_is_killed_and_comes_back_loses_no_request(
    make_client: MakeClient, serve: Serve, write_echo: WriteEcho
) -> None:
    """Mosquitto is killed under load and started again on the same port: every request ends as ok, exactly once."""
    server = MosquittoServer()
    server.start()
    try:
        serve(server.url, write_echo(delay_ms=2))
        client = make_client(server.url, options=ClientOptions(window=8))
        half = threading.Semaphore(0)
        futures = [client.submit("echo", {"x": np.full((1, 4), n, np.float32)}, timeout=90) for n in range(400)]
        for future in futures:
            future.add_done_callback(lambda _: half.release())
        for _ in range(100):
            half.acquire()
        server.kill()
        server.start()
        for number, future in enumerate(futures):
            assert future.result(90).outputs["x"][0, 0] == number
        counters = client.counters()
        assert counters.outcomes[Outcome.OK] == counters.submitted == 400
    finally:
        client.close()
        server.stop()


@pytest.mark.parametrize("end", ["cancel", "deadline"])
def test_a_request_that_has_ended_keeps_no_memory_though_the_broker_reads_nothing(
    make_client: MakeClient, serve: Serve, write_echo: WriteEcho, end: str
) -> None:
    """Of sixteen requests of 8 MB it is what the socket has half taken; the next ones are answered all the same."""
    with MosquittoServer() as server:
        serve(server.url, write_echo())
        client = make_client(server.url, options=ClientOptions(window=16))
        small = {"x": np.ones((1, 4), np.float32)}
        client.infer("echo", small, timeout=60)
        os.kill(server.pid, signal.SIGSTOP)
        try:
            arrays: list[weakref.ref[Any]] = []
            futures = []
            for _ in range(16):
                array = np.ones((1, 2 << 20), np.float32)
                arrays.append(weakref.ref(array))
                futures.append(client.submit("echo", {"x": array}, timeout=1.0 if end == "deadline" else 60.0))
                del array
            for future in futures:
                if end == "cancel":
                    future.cancel()
            wait(futures)
            wait_until(lambda: sum(array() is not None for array in arrays) <= 1)
        finally:
            os.kill(server.pid, signal.SIGCONT)
        assert client.infer("echo", small, timeout=60).outcome is Outcome.OK

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest

from mqinfer import ClientOptions, Outcome
from mqinfer.broker.mosquitto.server import MosquittoServer
from mqinfer.errors import NoWorker
from tests.client.conftest import MakeClient, Serve, WriteEcho

pytestmark = pytest.mark.broker


def test_a_result_over_mosquitto(
    broker_url: str, make_client: MakeClient, serve: Serve, write_echo: WriteEcho, unique: Callable[[str], str]
) -> None:
    """The same request as in memory, over a real broker, through a window smaller than the load."""
    model = unique("echo")
    serve(broker_url, write_echo(model), model)
    client = make_client(broker_url, options=ClientOptions(window=4))
    assert client.card(model).name == model
    futures = [client.submit(model, {"x": np.full((1, 4), n, np.float32)}, timeout=60) for n in range(100)]
    for number, future in enumerate(futures):
        assert future.result(60).outputs["x"][0, 0] == number
    assert client.counters().outcomes[Outcome.OK] == 100


def test_nobody_serves_the_model(broker_url: str, make_client: MakeClient, unique: Callable[[str], str]) -> None:
    """Mosquitto's PUBACK says that nobody subscribes, and the client says so when its patience is over."""
    client = make_client(broker_url)
    with pytest.raises(NoWorker):
        client.infer(unique("nobody"), {"x": np.zeros(1, np.float32)}, timeout=30)


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

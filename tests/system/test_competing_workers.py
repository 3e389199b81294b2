from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from mqinfer import Client
from mqinfer.broker.address import BrokerAddress
from mqinfer.cloud_worker.serving.options import WorkerOptions
from mqinfer.cloud_worker.supervision.planning import plan
from mqinfer.cloud_worker.supervision.process import ProcessSpec
from mqinfer.cloud_worker.supervision.supervisor import Event, Supervisor
from mqinfer.models.repository import Repository
from mqinfer.protocol.topics import Topics
from mqinfer.protocol.types import Outcome
from tests.patience import PATIENT

pytestmark = [pytest.mark.broker, pytest.mark.slow]


def test_four_workers_share_a_thousand_requests(tmp_path: Path, broker_url: str, unique: Callable[[str], str]) -> None:
    """Each of four processes answers its part; every request gets one result, with its own numbers."""
    (tmp_path / "echo" / "1").mkdir(parents=True)
    (tmp_path / "echo" / "1" / "model.echo").write_text(
        'delay_ms = 10\n[[input]]\nname = "x"\ndatatype = "INT64"\nshape = [-1, 1]\n'
    )
    topics = Topics(unique("test"))
    options = WorkerOptions(unique("worker"), topics)
    template = ProcessSpec(tmp_path, "", 0, BrokerAddress.parse(broker_url), options)
    ready = threading.Semaphore(0)

    def on_event(event: Event) -> None:
        if event.kind == "ready":
            ready.release()

    supervisor = Supervisor(plan(Repository(tmp_path), template, instances=4), on_event)
    thread = threading.Thread(target=supervisor.run, name="supervisor")
    thread.start()
    try:
        assert all(ready.acquire(timeout=60) for _ in range(4))
        with Client(broker_url, root=topics.root, options=PATIENT) as client:
            futures = [client.submit("echo", {"x": np.array([[n]])}, timeout=120) for n in range(1000)]
            results = [future.result() for future in futures]
            counters = client.counters()
    finally:
        supervisor.stop()
        thread.join()

    shares = Counter(result.worker for result in results)
    assert list(range(1000)) == [int(result.outputs["x"][0, 0]) for result in results]
    assert (counters.outcomes[Outcome.OK], counters.pending + counters.late) == (1000, 0)
    assert len(shares) == 4
    assert min(shares.values()) >= 100, "an idle machine gives each between 200 and 300"

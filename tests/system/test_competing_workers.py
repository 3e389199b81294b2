from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mqinfer import Client
from mqinfer.protocol.types import Outcome
from tests.patience import PATIENT

pytestmark = [pytest.mark.broker, pytest.mark.slow]


def test_four_workers_share_a_thousand_requests(
    write_echo: Callable[..., Path], managed: Callable[..., Any], broker_url: str
) -> None:
    """Each of four processes answers its part; every request gets one result, with its own numbers."""
    server = managed(write_echo("echo", ("x", "INT64", [-1, 1]), delay_ms=10), instances=4)
    assert {server.events.get(timeout=60).kind for _ in range(4)} == {"ready"}
    with Client(broker_url, root=server.topics.root, options=PATIENT) as client:
        futures = [client.submit("echo", {"x": np.array([[n]])}, timeout=120) for n in range(1000)]
        results = [future.result() for future in futures]
        counters = client.counters()

    shares = Counter(result.worker for result in results)
    assert list(range(1000)) == [int(result.outputs["x"][0, 0]) for result in results]
    assert (counters.outcomes[Outcome.OK], counters.pending + counters.late) == (1000, 0)
    assert len(shares) == 4
    assert min(shares.values()) >= 100, "an idle machine gives each between 200 and 300"

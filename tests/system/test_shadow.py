"""Shadow traffic with real processes: copies of requests go to another version, and callers never notice."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mqinfer import Client
from mqinfer.metrics.inference import add_inference
from mqinfer.metrics.samples import Samples
from mqinfer.models.repository.traffic import Shadow, Traffic, read_traffic
from mqinfer.protocol.shadow import ShadowCounts, read_shadows
from tests.patience import PATIENT, wait_until
from tests.system.conftest import Server
from tests.system.load import X

pytestmark = [pytest.mark.broker, pytest.mark.slow]


def counted(server: Server) -> ShadowCounts:
    """Return what the stable version's processes have counted of the shadow."""
    totals = server.supervisor.statistics().result(60).totals["echo", 1]
    return read_shadows(totals.counters).get("2", ShadowCounts())


def has_seen(server: Server, count: int) -> bool:
    """Return whether so many copies have come to an end, or were not made."""
    found = counted(server)
    return found.requests + sum(found.dropped.values()) == count


def test_a_shadow_from_its_first_copy_to_its_end(
    write_echo: Callable[..., Path], managed: Callable[..., Any], broker_url: str
) -> None:
    """Every third copy fails and all callers get the stable version's answer; the counts stand in the metrics."""
    repository = write_echo("echo")
    server = managed(repository)
    server.control.load("echo")
    write_echo("echo", version=2, fail_every=3)
    with Client(broker_url, root=server.topics.root, options=PATIENT) as client:
        (reply,) = server.control.traffic("echo", shadow=2, shadow_share=100)
        assert reply.content["labels"] == {"stable": "1", "shadow": "2"}
        assert reply.content["shadow"] == {"version": 2, "share": 100, "tolerance": 0.01}
        assert read_traffic(repository / "echo") == Traffic(1, shadow=Shadow(2, 100))
        for count in range(1, 31):
            assert client.infer("echo", {"x": X}).model_version == "1"
            wait_until(partial(has_seen, server, count))
        found = counted(server)
        assert found.differed == 0
        assert found.failed["model_failed"] > 0
        assert found.agreed > found.failed["model_failed"]
        assert found.own_ns > 0
        assert found.beside_ns > 0
        server.control.traffic("echo", shadow_share=0)
        assert read_traffic(repository / "echo") == Traffic(1)
        before = counted(server)
        for _ in range(5):
            client.infer("echo", {"x": X})
        assert counted(server) == before
    samples = Samples()
    totals = server.supervisor.statistics().result(60).totals
    add_inference(samples, {(name, str(version)): each for (name, version), each in totals.items()})
    values = {
        each.labels["outcome"]: each.value
        for family in samples.families()
        for each in family.samples
        if each.name == "mqinfer_shadow_requests_total"
    }
    assert values == {"agreed": found.agreed, "differed": 0, **found.failed}

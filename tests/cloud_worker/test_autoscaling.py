from __future__ import annotations

import pytest

from mqinfer.client.registry import Registry
from mqinfer.cloud_worker.supervision.autoscaling import Autoscaler, Bounds
from mqinfer.protocol.card import ModelCard
from mqinfer.protocol.errors import ConfigError
from mqinfer.protocol.states import ClientState, PendingRequests, ProcessStatus, ServedModel, WorkerState, WorkerStatus


class Counts:
    """What `Management` is to the scaler: counts by model, which `scale` changes."""

    def __init__(self, **counts: int) -> None:
        self.counts = counts

    def scale(self, model: str, instances: int) -> None:
        """Set a count."""
        self.counts[model] = instances


def site(*workers: str) -> Registry:
    """Make a site with workers that are ready, and a client that waits for a result of `m`."""
    known = Registry(lambda: 0.0)
    for name in workers:
        known.put_worker(name, WorkerState(name, WorkerStatus.READY, 1, (ServedModel("m"),), 64, 0, 1000))
    known.put_client("car", ClientState("car", ProcessStatus.READY, 1, pending=(PendingRequests("m", 1, 0, 0),)))
    known.put_card("m", ModelCard(name="m", versions=("1",), platform="mqinfer_echo"))
    known.finish()
    return known


@pytest.mark.parametrize("text", ["", "1", "1..", "..8", "2..1", "0..0", "1..1001", "-1..3", "1...3", "a..b", "1..٣"])
def test_bounds_that_are_refused(text: str) -> None:
    """Two numbers in order, of which the second is no 0; anything else names the option and an example."""
    with pytest.raises(ConfigError, match=r"--autoscale .*1\.\.8"):
        Bounds.parse(text)


@pytest.mark.parametrize(
    ("wanted", "own", "others", "count"),
    [(5, 1, 0, 5), (9, 1, 0, 8), (0, 3, 0, 1), (6, 1, 1, 3), (6, 3, 3, 3), (2, 4, 4, 1), (1, 0, 1, 1), (10, 1, 4, 2)],
)
def test_servers_share_what_the_site_needs(wanted: int, own: int, others: int, count: int) -> None:
    """A server has its part of the site's need, by its part of the site's processes, within its bounds."""
    assert Bounds.parse("1..8").share(wanted, own, others) == count


def test_from_zero_and_back() -> None:
    """A request starts the first process of a model that has none; one that another server can answer starts none."""
    counts = Counts(m=0)
    Autoscaler(Bounds.parse("0..8"), "w", counts, site()).look()  # type: ignore[arg-type]
    assert counts.counts == {"m": 1}
    counts = Counts(m=0)
    Autoscaler(Bounds.parse("0..8"), "w", counts, site("other.0")).look()  # type: ignore[arg-type]
    assert counts.counts == {"m": 0}
    counts = Counts(m=3)
    Autoscaler(Bounds.parse("0..8"), "w", counts, site("w.0", "w.1", "w.2")).look()  # type: ignore[arg-type]
    assert counts.counts == {"m": 1}


def test_a_model_that_has_never_served_keeps_its_processes() -> None:
    """While the first one starts nothing waits yet; clients learn from its card what the model is."""
    counts, known = Counts(m=1), site()
    known.put_card("m", None)
    known.put_client("car", None)
    Autoscaler(Bounds.parse("0..8"), "w", counts, known).look()  # type: ignore[arg-type]
    assert counts.counts == {"m": 1}


def test_without_a_connection_nothing_is_scaled() -> None:
    """What waits is not known then, and nothing is not zero."""
    counts, known = Counts(m=3), site()
    known.begin()
    Autoscaler(Bounds.parse("0..8"), "w", counts, known).look()  # type: ignore[arg-type]
    assert counts.counts == {"m": 3}

"""The bench of how many vehicles one broker carries."""

from __future__ import annotations

import pytest

from benchmarks.scale import ScaleOptions, measure_scale, measure_states
from mqinfer.protocol.errors import ConfigError


@pytest.mark.broker
@pytest.mark.slow
def test_two_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each request of each vehicle is answered, also where vehicles are in several processes."""
    said: list[str] = []
    monkeypatch.setattr("mqinfer.bench.contestants.clients._EACH", 2)
    report = measure_scale(ScaleOptions("1,5", rate=2, seconds=2), said.append)
    few, many = (dict(zip(report.grid.headings, row, strict=True)) for row in report.grid.rows)
    assert (few["vehicles"], many["vehicles"]) == (1, 5)
    assert few["failed"] == many["failed"] == 0
    assert float(few["results/s"] or 0) < float(many["results/s"] or 0)
    assert 0 < float(many["p50 ms"] or 0) <= float(many["p99 ms"] or 0)
    assert float(many["broker MiB"] or 0) > 1
    assert len(said) == 2


@pytest.mark.broker
def test_retained_states() -> None:
    """All of them come."""
    assert measure_states(3000).startswith("3000 retained states of 342 bytes: ")


def test_a_broker_without_its_process() -> None:
    """Nothing could be said of its processor time."""
    with pytest.raises(ConfigError, match="--pid"):
        measure_scale(ScaleOptions(broker="mqtt://127.0.0.1:1"))

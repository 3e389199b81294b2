"""The bench of how many vehicles one broker carries."""

from __future__ import annotations

import pytest

from benchmarks.scale import measure_states, one_broker, scale_workload
from mqinfer.bench.comparing import CompareOptions, compare
from mqinfer.bench.contestants.driving import Load


@pytest.mark.full
@pytest.mark.broker
@pytest.mark.slow
def test_two_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each request of each vehicle is answered, also where vehicles are in several processes."""
    said: list[str] = []
    monkeypatch.setattr("mqinfer.bench.contestants.clients._EACH", 2)
    options = CompareOptions((1, 5), load=Load(seconds=2, rate=2), callers=(1024,), rounds=1)
    with scale_workload(1000) as workload:
        report = compare([workload], [one_broker(0)], options, said.append)
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

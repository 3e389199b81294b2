"""The bench of how many vehicles one broker carries."""

from __future__ import annotations

import pytest

from benchmarks.scale import ScaleOptions, measure_scale, measure_states, scale_grid
from mqinfer.protocol.errors import ConfigError


@pytest.mark.broker
@pytest.mark.slow
def test_two_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each request of each vehicle is answered, also where vehicles are in several processes."""
    said: list[str] = []
    monkeypatch.setattr("benchmarks.scale._EACH", 2)
    options = ScaleOptions((1, 5), rate=2, seconds=2)
    few, many = measure_scale(options, said.append)
    assert (few.vehicles, many.vehicles) == (1, 5)
    assert few.failed == many.failed == 0
    assert few.answered < many.answered
    assert 0 < many.p50 <= many.p99
    assert many.broker_bytes > 1 << 20
    assert len(said) == len(scale_grid(options, [few, many]).rows) == 2


@pytest.mark.broker
def test_retained_states() -> None:
    """All of them come."""
    assert measure_states(3000).startswith("3000 retained states of 342 bytes: ")


def test_a_broker_without_its_process() -> None:
    """Nothing could be said of its processor time."""
    with pytest.raises(ConfigError, match="--pid"):
        measure_scale(ScaleOptions(url="mqtt://127.0.0.1:1"))

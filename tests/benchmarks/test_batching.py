import pytest

from benchmarks.batching import ADAPTIVE, ALONE, BatchingOptions, measure_batching
from mqinfer.protocol.errors import ConfigError


@pytest.mark.parametrize(
    "options", [{"rounds": 0}, {"seconds": 0.0}, {"callers": ()}, {"callers": (0,)}, {"sizes": (1,)}]
)
def test_settings_that_measure_nothing_are_refused(options: dict[str, object]) -> None:
    """No rounds, no time, nobody who asks, or no batch."""
    with pytest.raises(ConfigError, match="measure nothing"):
        BatchingOptions(**options)  # type: ignore[arg-type]


@pytest.mark.broker
@pytest.mark.slow
def test_all_settings_are_measured() -> None:
    """Two short rounds over real processes: each setting serves, answers at each load, and stands beside no batches."""
    report = measure_batching(BatchingOptions("small", 2, 0.05, callers=(1, 4), sizes=(4,)), lambda _: None)
    rows = [dict(zip(report.grid.headings, row, strict=True)) for row in report.grid.rows]
    assert [(row["contestant"], row["callers"]) for row in rows] == [
        (setting, callers) for callers in (1, 4) for setting in (ALONE, "fixed 4", ADAPTIVE)
    ]
    assert all(float(row["least"] or 0) > 0 and row["failed"] == 0 for row in rows)
    assert all(row["times max 1"] == 1 for row in rows if row["contestant"] == ALONE)

import pytest

from benchmarks.batching import ADAPTIVE, ALONE, BatchingOptions, measure_batching


@pytest.mark.broker
@pytest.mark.slow
def test_all_settings_are_measured() -> None:
    """Two short rounds over real processes: each setting serves, answers at each load, and stands beside no batches."""
    report = measure_batching(BatchingOptions("small", 2, 0.05, "1,4"), lambda _: None, sizes=(4,))
    rows = [dict(zip(report.grid.headings, row, strict=True)) for row in report.grid.rows]
    assert [(row["contestant"], row["callers"]) for row in rows] == [
        (setting, callers) for callers in (1, 4) for setting in (ALONE, "fixed 4", ADAPTIVE)
    ]
    assert all(float(row["least"] or 0) > 0 and row["failed"] == 0 for row in rows)
    assert all(row["times max 1"] == 1 for row in rows if row["contestant"] == ALONE)

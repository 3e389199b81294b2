import pytest

from benchmarks.batching import ADAPTIVE, ALONE, batching_settings
from mqinfer.bench.comparing import CompareOptions, compare
from mqinfer.bench.contestants.driving import Load
from mqinfer.bench.workloads import built_workloads


@pytest.mark.full
@pytest.mark.broker
@pytest.mark.slow
def test_all_settings_are_measured() -> None:
    """Two short rounds over real processes: each setting serves, answers at each load, and stands beside no batches."""
    options = CompareOptions(load=Load(seconds=0.05), callers=(1, 4), rounds=2)
    with built_workloads(["small"]) as workloads:
        report = compare(workloads, batching_settings(sizes=(4,)), options, lambda _: None)
    rows = [dict(zip(report.grid.headings, row, strict=True)) for row in report.grid.rows]
    assert [(row["contestant"], row["callers"]) for row in rows] == [
        (setting, callers) for callers in (1, 4) for setting in (ALONE, "fixed 4", ADAPTIVE)
    ]
    assert all(float(row["least"] or 0) > 0 and row["failed"] == 0 for row in rows)
    assert all(row["times max 1"] == 1 for row in rows if row["contestant"] == ALONE)

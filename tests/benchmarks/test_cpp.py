"""The C++ client's measurements: a short run of each, with programs that are built for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.cpp.measuring import cpp_contestants
from benchmarks.faults import soak
from benchmarks.faults.soak import SoakOptions
from mqinfer.bench.comparing import CompareOptions, compare
from mqinfer.bench.contestants.driving import Load
from mqinfer.bench.workloads import built_workloads
from mqinfer.protocol.errors import MqinferError
from tests.clients.cpp import built, missing, run
from tests.clients.pages import ROOT

pytestmark = [pytest.mark.full, pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(1200)]


def test_floor_and_client_take_turns(tmp_path: Path) -> None:
    """Both are measured; what isn't there is a row with the reason."""
    if lacking := missing():
        pytest.skip(f"the programs need {' '.join(lacking)}")
    run("cmake", "-S", ROOT / "benchmarks" / "cpp", "-B", tmp_path)
    run("cmake", "--build", tmp_path, "--parallel", "2", "--target", "load-floor", "load-mqinfer")
    options = CompareOptions(load=Load(seconds=0.2), rounds=1, triton=tmp_path)
    with built_workloads(["small", "frame"]) as workloads:
        grid = compare(workloads, cpp_contestants(tmp_path), options, lambda _: None).grid
    rows: list[dict[str, Any]] = [dict(zip(grid.headings, row, strict=True)) for row in grid.rows]
    assert [row["contestant"] for row in rows] == ["floor", "mqtt", "mqtt-cpp", "triton", "triton-cpp"] * 4
    for row in rows:
        if row["contestant"] in {"floor", "mqtt", "mqtt-cpp"}:
            assert (row["failed"], row["why not"]) == (0, "")
            assert row["p50 ms"] > 0
            assert row["kB up"] > 0
    reasons = {row["contestant"]: row["why not"] for row in rows}
    assert reasons["triton"].startswith("there is no nvidia-pytriton in ")
    assert reasons["triton-cpp"] == f"there is no load-triton in {tmp_path}; benchmarks/cpp/CMakeLists.txt builds it"


def test_a_short_soak_of_the_cpp_client() -> None:
    """Its program has an outcome for every request, each once; one that fails ends the soak."""
    short = SoakOptions(minutes=0.1, every=1.0, rate=30.0, program=built("", "live") / "live")
    figures = {each.what: each.figure for each in soak.soak(short)}
    assert figures["ok, each once and with its own numbers"] == "180/180"
    with pytest.raises(MqinferError, match="/bin/false ended with exit code 1"):
        soak.soak(SoakOptions(minutes=0.1, program=Path("/bin/false")))

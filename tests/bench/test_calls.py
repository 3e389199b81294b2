from __future__ import annotations

import io
import json
import threading
from collections import Counter
from pathlib import Path

import pytest
from rich.console import Console

from mqinfer.bench import run_calls
from mqinfer.bench.calls import CallCounter, Passage, Side, Tally, calls_grid, side_of
from mqinfer.bench.workloads import fixed_shape


def test_calls_of_all_threads_are_counted() -> None:
    """Python and C functions, with file, name and thread; nothing after the end."""
    counter = CallCounter()
    counter.install()
    thread = threading.Thread(target=fixed_shape, args=([1, None],), name="counted")
    thread.start()
    thread.join()
    fixed_shape([2])
    counter.uninstall()
    fixed_shape([3])
    tally = counter.tally()
    assert tally["call", "bench/workloads.py", "fixed_shape", "counted"] == 1
    assert tally["call", "bench/workloads.py", "fixed_shape", threading.current_thread().name] == 1
    assert tally["c_call", "bench/workloads.py", "fixed_shape.<locals>.<genexpr>", "counted"] == 2  # isinstance


def test_what_happens_now_and_then_does_not_belong_to_a_request() -> None:
    """A function counts from every second request on; classes, files and threads follow from the functions."""
    tally: Tally = Counter(
        {
            ("call", "client/client.py", "Client.infer", "main"): 10,
            ("c_call", "client/client.py", "Client.infer", "main"): 30,
            ("call", "client/client.py", "Client.infer.<locals>.<lambda>", "main"): 10,
            ("c_call", "broker/link.py", "run", "link"): 10,  # a loop that was entered before
            ("call", "client/timer.py", "beat", "timer"): 4,
            ("call", "/usr/lib/queue.py", "SimpleQueue.get", "other"): 5,
        }
    )
    assert side_of(tally, 10) == Side(
        own=2.0,
        python=2.5,
        c=4.0,
        files=frozenset({"client/client.py", "broker/link.py"}),
        classes=frozenset({"client/client.py:Client"}),
        functions=frozenset({"client/client.py:Client.infer", "broker/link.py:run"}),
        threads=frozenset({"main", "link"}),
    )


def test_both_sides_stand_in_the_table_together() -> None:
    """Calls are added; a file that both pass through counts once."""

    def side(*files: str) -> Side:
        return Side(1, 2, 3, frozenset(files), frozenset(), frozenset(), frozenset({"link"}))

    grid = calls_grid([Passage("small", {"client": side("a", "b"), "worker": side("b", "c")})])
    assert [list(row) for row in grid.rows] == [
        ["small", "client", "1", "2", "3", "2", "0", "0", "1"],
        ["small", "worker", "1", "2", "3", "2", "0", "0", "1"],
        ["small", "together", "2", "4", "6", "3", "0", "0", "2"],
    ]


@pytest.mark.broker
@pytest.mark.slow
def test_a_request_and_a_frame_are_counted(tmp_path: Path) -> None:
    """Over real processes: the files that everybody passes through are found, and those of sinks only with sinks."""
    passages = run_calls(output=tmp_path, console=Console(file=io.StringIO()))
    one, many, frame, kept = (passage.sides for passage in passages)
    assert "client/client.py" in one["client"].files & many["client"].files
    assert not any(file.startswith("client/") for file in one["worker"].files)
    assert "models/backends/onnx.py" in one["worker"].files & frame["worker"].files
    assert "edge_agent/replay.py" in frame["edge"].files & kept["edge"].files
    assert "edge_agent/sinks/jsonl_sink.py" in kept["edge"].files - frame["edge"].files
    assert all(0 < side.own <= side.python for passage in passages for side in passage.sides.values())
    assert json.loads((tmp_path / "calls.json").read_text())[0]["sides"]["client"]["files"] == sorted(
        one["client"].files
    )

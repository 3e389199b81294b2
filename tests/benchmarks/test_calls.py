from __future__ import annotations

import json
import threading
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.calls import (
    CallCounter,
    CountedCalls,
    Side,
    Tally,
    count_calls,
    count_gateway,
    count_requests,
    differences,
    figures_of,
    read_golden,
    report_calls,
    side_of,
)
from mqinfer.bench.contestants.driving import rotated
from mqinfer.bench.workloads import WORKLOADS, load_workloads
from mqinfer.broker.mosquitto.server import MosquittoServer
from mqinfer.lab.reports import as_json
from mqinfer.lab.zoo import build

ROTATED_FILE = "bench/contestants/driving.py"


def test_calls_of_all_threads_are_counted() -> None:
    """With file and name; nothing after the end."""
    counter = CallCounter()
    counter.install()
    thread = threading.Thread(target=rotated, args=([1, 2], 1), name="counted")
    thread.start()
    thread.join()
    rotated([1], 0)
    counter.uninstall()
    rotated([1], 1)
    tally = counter.tally()
    assert tally[ROTATED_FILE, "rotated"] == 2


def test_what_happens_now_and_then_does_not_belong_to_a_request() -> None:
    """A function counts from every second request on; files follow from the functions."""
    tally: Tally = Counter(
        {
            ("client/client.py", "Client.infer"): 10,
            ("client/client.py", "Client.infer.<locals>.<lambda>"): 10,
            ("broker/link.py", "run"): 5,
            ("client/timer.py", "beat"): 4,
            ("/usr/lib/queue.py", "SimpleQueue.get"): 5,
        }
    )
    assert side_of(tally, 10) == Side(own=2.5, broker=0.5, files=frozenset({"client/client.py", "broker/link.py"}))


def test_both_sides_stand_in_the_table_together() -> None:
    """Calls are added; a file that both pass through counts once."""

    def side(*files: str) -> Side:
        return Side(1, 1, frozenset(files))

    grid = report_calls([CountedCalls("small", {"client": side("a", "b"), "worker": side("b", "c")})]).grid
    assert [list(row) for row in grid.rows] == [
        ["small", "client", 1, 2],
        ["small", "worker", 1, 2],
        ["small", "together", 2, 3],
    ]


def test_a_golden_figure_may_be_exceeded_by_three_per_cent() -> None:
    """What is counted for the first time or no more differs too; fewer calls are no fault."""
    golden = {"small": {"calls": 100, "files": 20}}
    assert not differences({"small": {"calls": 103, "files": 20}}, golden)
    assert not differences({"small": {"calls": 90, "files": 20}}, golden)
    assert set(differences({"small": {"calls": 104, "files": 21}}, golden)) == {("small", "calls"), ("small", "files")}
    assert set(differences({"frame": {"calls": 1}}, golden)) == {
        ("small", "calls"),
        ("small", "files"),
        ("frame", "calls"),
    }


def test_wake_ups_have_a_wider_bound() -> None:
    """Of the calls in the room `broker`, some happen by chance."""

    def figures(broker: float) -> dict[str, dict[str, int]]:
        side = Side(100 + broker, broker, frozenset("a"))
        return figures_of([CountedCalls("small", {"client": side}), CountedCalls("small, 8 callers", {"client": side})])

    assert figures(80) == {
        "small": {
            "calls in broker/, both sides": 80,
            "other calls, both sides": 100,
            "other calls of the client": 100,
            "files": 1,
        }
    }
    assert not differences(figures(89), figures(80))
    assert differences(figures(90), figures(80))


@pytest.mark.broker
@pytest.mark.slow
def test_a_request_takes_its_golden_number_of_calls(tmp_path: Path) -> None:
    """Over MQTT, and through the gateway; as below a figure is wrong if it is in each of three counts."""
    build(tmp_path, [WORKLOADS["small"]])
    (small,) = load_workloads(tmp_path, ["small"])

    def too_many() -> dict[tuple[str, str], str]:
        with MosquittoServer() as broker:
            counted = [*count_requests(small, broker.url, [1]), count_gateway(small)]
        figures = figures_of(counted)
        return differences(figures, {what: read_golden()[what] for what in figures})

    wrong = too_many()
    for _ in range(2):
        wrong = {key: text for key, text in too_many().items() if key in wrong} if wrong else wrong
    assert not wrong, "\n".join([*wrong.values(), "if it is meant: python -m benchmarks calls --write"])


@pytest.mark.full
@pytest.mark.broker
@pytest.mark.slow
def test_a_request_and_a_frame_take_their_golden_number_of_calls(tmp_path: Path) -> None:
    """Over real processes; `python -m benchmarks calls --write` makes what holds now the golden figures.

    The files that everybody passes through are found, and those of sinks only with sinks. A busy machine now and then
    wakes a thread once more for a frame, so a figure is wrong if it is in each of three counts.
    """
    build(tmp_path, [WORKLOADS["small"], WORKLOADS["frame"]])
    workloads = load_workloads(tmp_path, ["small", "frame"])
    passages = count_calls(*workloads)
    one, many, small, large, frame, kept = (passage.sides for passage in passages)
    assert "client/client.py" in one["client"].files & many["client"].files
    assert not any(file.startswith("client/") for file in one["worker"].files)
    assert "gateway/grpc/infer.py" in small["gateway"].files & large["gateway"].files
    assert "models/backends/onnx.py" in one["worker"].files & frame["worker"].files
    assert any(file.startswith("edge_agent/") for file in frame["edge"].files & kept["edge"].files)
    assert "edge_agent/sinks/jsonl_sink.py" in kept["edge"].files - frame["edge"].files
    assert all(side.own > 0 for passage in passages for side in passage.sides.values())
    assert json.loads(as_json(passages))[0]["sides"]["client"]["files"] == sorted(one["client"].files)
    wrong = differences(figures_of(passages), read_golden())
    for _ in range(2):
        again = differences(figures_of(count_calls(*workloads)), read_golden()) if wrong else {}
        wrong = {key: text for key, text in again.items() if key in wrong}
    assert not wrong, "\n".join([*wrong.values(), "if it is meant: python -m benchmarks calls --write"])

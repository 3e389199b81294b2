"""One answer of many servers' replies."""

from __future__ import annotations

from typing import Any

import pytest

from mqinfer.client.control import ControlReply
from mqinfer.client.control.merging import merge_index, merge_statistics, without_server
from mqinfer.protocol.control import BatchStatistics, Duration, ModelState, ModelStatistics, StageTimes
from mqinfer.protocol.errors import BadEnvelope, InvalidRequest


def statistics(count: int, last: int, *times: int, size: int = 1) -> ModelStatistics:
    """Make the counts of some requests."""
    spent = Duration(count, 10 * count)
    batches = {size: BatchStatistics(spent, spent, spent)}
    return ModelStatistics(
        last, count, count, StageTimes(spent, Duration(), spent, spent, spent, spent), batches, 1000, times
    )


def entry(name: str, version: str, state: ModelState, reason: str = "") -> dict[str, str]:
    """Make an entry of an index."""
    return {"name": name, "version": version, "state": state.value, "reason": reason, "server": "s"}


def test_a_record_can_be_read_back() -> None:
    """Everything but the single response times survives; their median does."""
    made = statistics(3, 5, 10, 20, 30)
    key, found = ModelStatistics.from_record(made.to_record("m", "2") | {"server": "s"})
    assert key == ("m", "2")
    assert found.to_record("m", "2") == made.to_record("m", "2")


def test_statistics_are_summed_over_servers() -> None:
    """Counts, times, batches and memory are added, the last result is the latest; versions stay apart."""
    one = {"model_stats": [statistics(3, 5, 10, 10).to_record("m", "10")], "server": "one"}
    two = {"model_stats": [statistics(4, 9, 30, size=2).to_record("m", v) for v in ("10", "9")], "server": "two"}
    nine, ten = merge_statistics([ControlReply("one", one), ControlReply("two", two)])
    assert (nine["version"], ten["version"]) == ("9", "10")
    assert (ten["inference_count"], ten["execution_count"], ten["last_inference"]) == (7, 7, 9)
    assert ten["inference_stats"]["success"] == {"count": 7, "ns": 70}
    assert [(each["batch_size"], each["compute_infer"]["count"]) for each in ten["batch_stats"]] == [(1, 3), (2, 4)]
    assert ten["memory_usage"][0]["byte_size"] == 2000
    assert ten["response_time"] == {"count": 3, "p50_ns": 10}
    assert "server" not in ten


def test_what_one_server_serves_is_served() -> None:
    """READY wins over the other states; a folder without versions is named where no server has any."""
    ready, loading, gone = ModelState.READY, ModelState.LOADING, ModelState.UNAVAILABLE
    one = [entry("m", "2", gone, "not loaded"), entry("m", "10", loading), entry("broken", "", gone, "no file")]
    two = [entry("m", "2", ready), entry("m", "10", gone), entry("m", "", gone, "empty"), entry("broken", "", gone)]
    index = merge_index([ControlReply("one", one), ControlReply("two", two)])
    assert [(each.name, each.version, each.state) for each in index] == [
        ("broken", "", gone),
        ("m", "2", ready),
        ("m", "10", loading),
    ]
    assert index[0].reason == "no file"


@pytest.mark.parametrize("content", [None, {}, [], "x", {"model_stats": {}}, {"model_stats": [{"name": "m"}]}])
def test_replies_that_are_none_are_errors(content: Any) -> None:
    """A server's reply is checked before anything of it is passed on."""
    with pytest.raises(InvalidRequest):
        merge_statistics([ControlReply("one", content)])
    if not isinstance(content, list):
        with pytest.raises(BadEnvelope):
            merge_index([ControlReply("one", content)])
    with pytest.raises(InvalidRequest):
        merge_index([ControlReply("one", [{"name": "m", "version": "1", "state": "?"}])])
    if not isinstance(content, dict):
        with pytest.raises(BadEnvelope):
            without_server(content)

"""Precision, back end and device in each result: of the worker that replied, not of the card."""

from __future__ import annotations

from mqinfer.client.result import InferResult
from mqinfer.edge_agent.frames.view import NO_VIEW, FrameView
from mqinfer.edge_agent.results import Engines
from mqinfer.protocol.states import ServedModel
from mqinfer.protocol.types import Outcome

Key = tuple[str, str, str]


def result(worker: str, version: str = "1") -> InferResult:
    """Make a result of a worker."""
    return InferResult("1", Outcome.OK, "m", version, worker=worker)


def served(precision: str) -> ServedModel:
    """Make what a worker states."""
    return ServedModel("m", "1", precision=precision, backend="onnxruntime 1", device="cpu")


def test_each_result_has_the_engine_of_its_worker() -> None:
    """Two workers of one version may compute in two precisions; an edge's own result has no worker."""
    states = {("a", "m", "1"): served("fp32"), ("b", "m", "1"): served("int8")}
    engines = Engines(lambda *key: states.get(key))
    assert [engines.of(result(worker)) for worker in ("a", "b", "c", "")] == [
        served("fp32"),
        served("int8"),
        None,
        None,
    ]
    assert engines.of(result("a", "2")) is None


def test_a_worker_that_ended_since_is_remembered() -> None:
    """Its state is removed at once, while its last results are still on their way to the sinks."""
    states: dict[Key, ServedModel] = {("a", "m", "1"): served("fp32")}
    engines = Engines(lambda *key: states.get(key))
    engines.of(result("a"))
    states.clear()
    assert engines.of(result("a")) == served("fp32")
    states["a", "m", "1"] = served("int8")  # another process of its name
    assert engines.of(result("a")) == served("int8")


def test_what_is_remembered_is_bounded() -> None:
    """Names come from messages."""
    states: dict[Key, ServedModel] = {(f"w{number}", "m", "1"): served("fp32") for number in range(2000)}
    engines = Engines(lambda *key: states.get(key))
    found = [engines.of(result(f"w{number}")) for number in range(2000)]
    states.clear()
    assert all(found)
    assert engines.of(result("w0")) is None
    assert engines.of(result("w1999")) == served("fp32")


def test_an_older_worker_states_no_engine() -> None:
    """What is not stated is null, and never taken from the card, which may be another worker's."""
    nothing = {"precision": None, "backend": None, "device": None}
    assert (
        NO_VIEW.engine == FrameView(NO_VIEW.pixels, NO_VIEW.placement, served=ServedModel("m", "1")).engine == nothing
    )

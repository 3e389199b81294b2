from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqinfer.protocol.errors import BadEnvelope, BadTopic, LimitExceeded
from mqinfer.protocol.states import (
    AnyState,
    ClientState,
    PendingRequests,
    ProcessStatus,
    ServedModel,
    ServerState,
    StreamState,
    WorkerState,
    WorkerStatus,
    fitting_streams,
    read_any_state,
)
from mqinfer.protocol.topics import Topics

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=10)
names = st.from_regex(r"[a-z0-9][a-z0-9_.-]{0,63}", fullmatch=True)
bad_names = ["", "A", "a/b", "a+", "#", "no/such\0#", "a\n", "-a", "a" * 65, "\u00e9", "a b"]
whole = st.integers(0, 2**63 - 1)
served = st.builds(ServedModel, names, texts, st.booleans(), st.integers(0, 100), texts, texts, texts)
states = st.builds(
    WorkerState,
    worker=names,
    status=st.sampled_from(WorkerStatus),
    incarnation=whole,
    models=st.lists(served, max_size=3).map(tuple),
    capacity=whole,
    depth=whole,
    service_time_us=whole,
    counters=st.dictionaries(texts, whole, max_size=3),
)


@given(states | st.builds(ServerState, names, st.sampled_from(ProcessStatus), st.integers(0, 2**32)))
def test_round_trip(state: WorkerState | ServerState) -> None:
    """A state loses nothing."""
    assert type(state).from_json(state.to_json()) == state


def test_a_served_model_states_its_engine_only_where_it_is_known() -> None:
    """Absent fields keep a state as older workers write it; readers of either kind read both."""
    plain = WorkerState("w", WorkerStatus.READY, 1, (ServedModel("m", "1"),))
    assert json.loads(plain.to_json())["models"] == [{"name": "m", "version": "1", "default": True}]
    stated = WorkerState("w", WorkerStatus.READY, 1, (ServedModel("m", "1", True, 0, "int8", "openvino 2026", "cpu"),))
    engine = {"precision": "int8", "backend": "openvino 2026", "device": "cpu"}
    assert json.loads(stated.to_json())["models"] == [{"name": "m", "version": "1", "default": True, **engine}]
    assert WorkerState.from_json(stated.to_json()) == stated


@pytest.mark.parametrize(
    "changes",
    [
        {"worker": None},
        {"status": "asleep"},
        {"status": None},
        {"boot": None},
        {"boot": "1"},
        {"models": ["m"]},
        {"models": [{"version": "1"}]},
        {"capacity": -1},
        {"depth": 1.5},
        {"service_time_us": True},
        {"counters": {"ok": "1"}},
        {"counters": []},
    ],
)
def test_nonsense_is_refused_by_the_fields_name(changes: dict[str, Any]) -> None:
    """What is missing or of the wrong type is named."""
    fields = {"worker": "w", "status": "ready", "boot": 1} | changes
    with pytest.raises(BadEnvelope, match=next(iter(changes))):
        WorkerState.from_json(json.dumps(fields).encode())


@pytest.mark.parametrize("name", bad_names)
def test_a_name_outside_the_rules_is_refused(name: str) -> None:
    """It would get into topics and onto screens."""
    for fields in ({"worker": name}, {"worker": "w", "models": [{"name": name}]}):
        if "models" in fields and name == "A":
            continue  # models may have capitals
        with pytest.raises(BadEnvelope, match="name" if "models" in fields else "worker"):
            WorkerState.from_json(json.dumps(fields | {"status": "ready", "boot": 1}).encode())
    with pytest.raises(BadEnvelope, match="server"):
        ServerState.from_json(json.dumps({"server": name, "status": "ready", "boot": 1}).encode())


def test_a_state_belongs_to_the_name_of_its_topic() -> None:
    """Access rules bind the topic alone, so no other name is believed; an empty payload is a state that was removed."""
    topics = Topics()
    worker = WorkerState("w-1", WorkerStatus.READY, 17)
    assert WorkerState.read(topics, topics.worker_state("w-1"), worker.to_json()) == ("w-1", worker)
    assert WorkerState.read(topics, topics.worker_state("w-1"), b"") == ("w-1", None)
    with pytest.raises(BadTopic, match=r"'w-2'.*'w-1'"):
        WorkerState.read(topics, topics.worker_state("w-2"), worker.to_json())
    server = ServerState("s-1", ProcessStatus.READY, 17)
    assert ServerState.read(topics, topics.control_state("s-1"), server.to_json()) == ("s-1", server)
    assert ServerState.read(topics, topics.control_state("s-1"), b"") == ("s-1", None)
    with pytest.raises(BadTopic, match=r"'s-2'.*'s-1'"):
        ServerState.read(topics, topics.control_state("s-2"), server.to_json())


def test_a_huge_state_is_refused_unread() -> None:
    """A message of megabytes is no state."""
    with pytest.raises(LimitExceeded):
        WorkerState.from_json(b" " * (1 << 20))


@pytest.mark.parametrize("payload", [b"", b"[]", b"{}", b'{"server":"s","status":"busy","boot":1}', b'{"server":1}'])
def test_other_states_are_refused(payload: bytes) -> None:
    """What is missing or unknown is said."""
    with pytest.raises(BadEnvelope):
        ServerState.from_json(payload)


@pytest.mark.parametrize(
    "state",
    [
        WorkerState("w", WorkerStatus.READY, 17),
        ServerState("s", ProcessStatus.READY, 17),
        ClientState("c", ProcessStatus.READY, 17),
    ],
)
def test_every_state_names_its_incarnation_alike(state: WorkerState | ServerState | ClientState) -> None:
    """Two processes of one name find each other by it, whatever they are."""
    assert read_any_state(state.to_json()) == AnyState(17, "ready")


@pytest.mark.parametrize("payload", [b"", b"{}", b'{"boot": 1}', b'{"boot": "1", "status": "ready"}'])
def test_a_state_without_incarnation_or_status_is_refused(payload: bytes) -> None:
    """Both are required."""
    with pytest.raises(BadEnvelope):
        read_any_state(payload)


def test_a_crash_names_requests() -> None:
    """Only where it has any, and only ids that follow the rule."""
    bare = WorkerState("w", WorkerStatus.CRASHED, 1)
    assert b"running" not in bare.to_json()
    named = WorkerState("w", WorkerStatus.CRASHED, 1, running=("00" * 16, "a.b"))
    assert WorkerState.from_json(named.to_json()) == named
    for bad in ("", "a/b", "x" * 65, "a\n"):
        with pytest.raises(BadEnvelope):
            WorkerState.from_json(WorkerState("w", WorkerStatus.CRASHED, 1, running=(bad,)).to_json())


def test_a_clients_state_is_read_back() -> None:
    """With what waits, without it, and from a client of before there was such a field."""
    topics = Topics()
    pending = (PendingRequests("seg", 3, 16, 812), PendingRequests("det"))
    for state in (
        ClientState("c", ProcessStatus.READY, 17, "drive.bag", "seg,det", 8, pending=pending),
        ClientState("c", ProcessStatus.READY, 17, pending=()),
        ClientState("c", ProcessStatus.LOST, 17),
    ):
        assert ClientState.read(topics, topics.client_state("c"), state.to_json()) == ("c", state)
    assert b"pending" not in ClientState("c", ProcessStatus.LOST, 17).to_json()
    assert ClientState.read(topics, topics.client_state("c"), b"") == ("c", None)
    with pytest.raises(BadTopic, match=r"'c-2'.*'c'"):
        ClientState.read(topics, topics.client_state("c-2"), ClientState("c", ProcessStatus.READY, 1).to_json())


@pytest.mark.parametrize(
    ("field", "figures"),
    [
        ("pending", {}),
        ("pending", [{}]),
        ("pending", [{"model": "a/b"}]),
        ("pending", [{"model": "m", "queued": -1}]),
        ("pending", [None]),
        ("streams", "seg"),
        ("streams", [{}]),
        ("streams", [{"source": 3}]),
        ("streams", [{"source": "a", "rate": -1}]),
        ("streams", [{"source": "a", "outcomes": {"ok": -1}}]),
    ],
)
def test_wrong_figures_of_a_client_are_refused(field: str, figures: object) -> None:
    """They would get into sums and onto screens."""
    with pytest.raises(BadEnvelope, match=field):
        ClientState.from_json(json.dumps({"client": "c", "status": "ready", "boot": 1, field: figures}).encode())


def test_the_state_of_a_client_of_many_models_fits() -> None:
    """128 models with names of 64 characters and the largest figures are less than a state may be long."""
    pending = tuple(PendingRequests("m" * 64, 10**9, 10**9, 10**12) for _ in range(128))
    state = ClientState("c" * 64, ProcessStatus.READY, 1 << 60, pending=pending)
    assert ClientState.from_json(state.to_json()) == state


def test_streams_of_a_client_are_read_back() -> None:
    """With all figures, with the source alone, and with a later field; a state without streams has no such field."""
    full = StreamState("/cam/front", "seg", 19.5, 8, 2, 3, {"ok": 41, "expired": 1}, {"expired": 1}, 7, 30, 2)
    state = ClientState("c", ProcessStatus.READY, 1, streams=(full, StreamState("/cam/rear")))
    assert ClientState.from_json(state.to_json()) == state
    assert b"streams" not in ClientState("c", ProcessStatus.READY, 1).to_json()
    fields = {"client": "c", "status": "ready", "boot": 1, "streams": [{"source": "a", "rate": 3, "later": [{}]}]}
    assert ClientState.from_json(json.dumps(fields).encode()).streams == (StreamState("a", rate=3.0),)


def test_the_state_of_a_client_of_many_streams_fits() -> None:
    """At most 32, and of those with long names as many as leave room for what is pending."""
    usual = [StreamState(f"/camera/{number}/image_raw", "seg") for number in range(40)]
    assert fitting_streams(usual) == tuple(usual[:32])
    pending = tuple(PendingRequests("m" * 64, 10**9, 10**9, 10**12) for _ in range(128))
    kept = fitting_streams(StreamState("\0" * 1000, "m" * 64) for _ in range(40))
    assert 0 < len(kept) < 32
    state = ClientState("c" * 64, ProcessStatus.READY, 1 << 60, pending=pending, streams=kept)
    assert ClientState.from_json(state.to_json()) == state

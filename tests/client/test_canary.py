"""Requests without a version are split between the default version and the canary."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqinfer.client.dispatch.dispatcher import Dispatcher
from mqinfer.client.dispatch.pending import PendingRequest
from mqinfer.client.options import ClientOptions
from mqinfer.client.request import names_label, with_labelled_version
from mqinfer.errors import ModelNotFound
from mqinfer.protocol.card import CardParameters, ModelCard, card_from_json, card_to_json
from mqinfer.protocol.states import ServedModel, WorkerState, WorkerStatus, is_for_canary
from mqinfer.protocol.types import InferRequest, InferResponse, Outcome, WorkerLoad

IDS = [f"{number:032x}" for number in range(2000)]


def state(worker: str, version: str, share: int = 0, status: WorkerStatus = WorkerStatus.READY) -> WorkerState:
    """Return the state of a worker of version 2, the default one, or of another one."""
    return WorkerState(worker, status, 1, (ServedModel("m", version, version == "2", share),), 64, 0, 1000)


def dispatcher(share: int, window: int = 64) -> Dispatcher:
    """Make a dispatcher that knows a worker of each version."""
    made = Dispatcher("car-1", ClientOptions(window=window, max_pending=4096))
    for each in (state("stable", "2"), state("canary", "3", share)):
        made.update(each, 0.0)
    return made


def send(to: Dispatcher, name: str, now: float = 0.0, version: str | None = None) -> PendingRequest:
    """Submit a request, and see it sent."""
    to.submit(PendingRequest(InferRequest(name, "m", (), version), lambda _: None, now, now + 100))
    entry = to.take(now).send
    assert entry is not None
    return entry


def answer(to: Dispatcher, entry: PendingRequest, now: float = 0.0) -> str:
    """Answer a request; return the worker that had it."""
    worker = entry.lane.worker if entry.lane else ""
    version = {"stable": "2", "canary": "3"}[worker]
    reply = InferResponse(entry.request.id, "m", version, worker=worker, load=WorkerLoad(1, 1000, 8))
    assert to.replied(reply, now)
    assert to.settle(entry.request.id, Outcome.OK) is entry
    return worker


@given(st.text(max_size=40), st.integers(0, 100), st.integers(0, 100))
def test_a_larger_share_keeps_what_a_smaller_one_had(request_id: str, one: int, other: int) -> None:
    """Nobody is the canary's at 0, all are at 100, and a request changes sides once at most."""
    assert not is_for_canary(request_id, 0)
    assert is_for_canary(request_id, 100)
    assert is_for_canary(request_id, max(one, other)) >= is_for_canary(request_id, min(one, other))


@pytest.mark.parametrize("share", [1, 10, 50, 90])
def test_the_share_of_all_requests(share: int) -> None:
    """Of 20,000 ids within four standard deviations; the ids are fixed, so the count is the same in each run."""
    count = sum(is_for_canary(f"{number:032x}", share) for number in range(20_000))
    deviation = (20_000 * share / 100 * (1 - share / 100)) ** 0.5
    assert abs(count - 200 * share) <= 4 * deviation


@pytest.mark.parametrize("share", [0, 10, 100])
def test_requests_go_where_their_id_says(share: int) -> None:
    """One without a version by its id; one with a version to that one."""
    client = dispatcher(share)
    for request_id in IDS[:300]:
        assert answer(client, send(client, request_id)) == ("canary" if is_for_canary(request_id, share) else "stable")
        assert answer(client, send(client, f"v{request_id}", version="2")) == "stable"
        assert answer(client, send(client, f"w{request_id}", version="3")) == "canary"
    assert client.counters().retries == 0


def test_a_new_share_holds_for_the_next_request() -> None:
    """A rollback ends the split at once, also for what is queued."""
    client = dispatcher(100, window=1)
    first = send(client, "1")
    client.submit(PendingRequest(InferRequest("2", "m", ()), lambda _: None, 0.0, 100.0))
    client.update(state("canary", "3"), 0.0)
    assert answer(client, first) == "canary"
    second = client.take(0.0).send
    assert second is not None
    assert answer(client, second) == "stable"
    assert answer(client, send(client, "3")) == "stable"


def test_a_canary_that_is_lost_fails_nothing() -> None:
    """What it had is sent to the default version; so is what comes later."""
    client = dispatcher(100)
    first = send(client, "1")
    assert first.lane is not None
    assert first.lane.worker == "canary"
    client.update(state("canary", "3", 100, WorkerStatus.LOST), 1.0)
    second = send(client, "2", 10.0)
    assert second.request.id == "1"
    assert answer(client, second, 10.0) == "stable"


def test_a_canary_that_is_silent_or_full_is_passed_over() -> None:
    """Nothing waits for one that does not answer; of a crowd it gets what it takes at a time, and as much again."""
    client = dispatcher(100)
    for number in range(3):
        client.submit(PendingRequest(InferRequest(str(number), "m", ()), lambda _: None, 0.0, 100.0))
    lanes = [entry.lane.worker for entry in iter(lambda: client.take(0.0).send, None) if entry.lane]
    assert lanes == ["canary", "stable"]  # one may be in flight at each before the first reply, and one waits
    silent = dispatcher(100)
    assert answer(silent, send(silent, "1")) == "canary"
    send(silent, "2")
    late = send(silent, "3", 0.9)
    assert late.lane is not None
    assert late.lane.worker == "stable"


SPLIT = CardParameters(version="2", labels={"stable": "2", "canary": "3"}, traffic={"2": 90, "3": 10})
CARD = ModelCard(name="m", versions=("2", "3"), platform="", parameters=SPLIT)


def test_a_label_stands_for_a_version() -> None:
    """The card resolves it; it travels with the card; a label that nothing has is an error."""
    assert card_from_json(card_to_json(CARD)) == CARD
    request = InferRequest("1", "m", (), "canary")
    assert names_label(request)
    assert with_labelled_version(request, CARD).model_version == "3"
    assert not any(names_label(InferRequest("1", "m", (), version)) for version in (None, "3", "01", "a/b", ""))
    with pytest.raises(ModelNotFound, match=r"no version labelled 'next' \(labels: canary, stable\)"):
        with_labelled_version(InferRequest("1", "m", (), "next"), CARD)

"""Copies for a shadow version: nobody waits for them, they are bounded, and what becomes of each is counted."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mqinfer import Client
from mqinfer.client import ClientOptions
from mqinfer.cloud_worker.serving.incoming import IncomingRequest, ReplyPath
from mqinfer.cloud_worker.serving.load import LoadMeter
from mqinfer.cloud_worker.serving.shadow import Shadowing, agree
from mqinfer.cloud_worker.serving.worker import Worker
from mqinfer.models.loading import LoadedModel, load_model
from mqinfer.models.repository import Repository
from mqinfer.models.repository.traffic import Shadow, Traffic, write_traffic
from mqinfer.protocol.errors import NotConnected
from mqinfer.protocol.shadow import ShadowCounts, read_shadows
from mqinfer.protocol.types import InferRequest, InferResponse
from tests.cloud_worker.conftest import GatedEcho, X
from tests.cloud_worker.test_worker_video import HEIGHT, WIDTH, chain, send
from tests.patience import PATIENT, wait_until

Serve = Callable[..., Worker]
Beside = Callable[..., tuple[Worker, GatedEcho | None]]


def counts(worker: Worker) -> ShadowCounts:
    """Return what a worker has counted of its shadow."""
    return read_shadows(worker.statistics().counters).get("2", ShadowCounts())


def seen(worker: Worker) -> int:
    """Return how many copies have come to an end, or were not made."""
    found = counts(worker)
    return found.requests + sum(found.dropped.values())


@pytest.fixture
def beside(url: str, serve: Serve, write_echo: Callable[..., Path], request: pytest.FixtureRequest) -> Beside:
    """Serve version 1 with a shadow of version 2, which has a gate: `beside(("x", …), of_shadow=("x", …))`."""

    def start(
        *model: Any, of_shadow: Any = None, is_there: bool = True, shadow: Shadow | None = None
    ) -> tuple[Worker, GatedEcho | None]:
        shadow = shadow or Shadow(2, 100)
        repository = write_echo("echo", *model)
        write_echo("echo", *(model if of_shadow is None else (of_shadow,)), version=2)
        write_traffic(repository / "echo", Traffic(1, shadow=shadow))
        backend = None
        if is_there:
            (version,) = (each for each in Repository(repository).models() if each.version == 2)
            loaded = load_model(version, device="cpu")
            assert not version.is_default
            backend = GatedEcho(loaded.backend)  # type: ignore[arg-type]  # an echo
            request.addfinalizer(backend.gate.set)
            serve(url, LoadedModel(backend, loaded.card, loaded.config), version=2)
        client = partial(Client, url, name="stable", options=ClientOptions(patience=0.1))
        return serve(url, repository, version=1, name="stable", shadow=shadow, connect_shadow=client), backend

    return start


def test_nobody_waits_for_a_shadow(url: str, beside: Beside) -> None:
    """While the shadow hangs, callers get their answers; copies without room are dropped, the others compared."""
    worker, backend = beside()
    assert backend
    backend.gate.clear()
    with Client(url, options=PATIENT) as client:
        for _ in range(12):
            assert client.infer("echo", {"x": X}).model_version == "1"
        wait_until(lambda: counts(worker).dropped.get("full", 0) > 0)
        backend.gate.set()
        wait_until(lambda: seen(worker) == 12)
        assert counts(worker).agreed > 0
        assert client.counters().late == 0
        assert client.infer("echo", {"x": X}, version=1).model_version == "1"  # whoever names a version gets no copy
    assert seen(worker) == 12


def test_a_stop_waits_for_no_copy(url: str, beside: Beside) -> None:
    """Copies that are under way are given up with the order that ends the shadow."""
    worker, backend = beside()
    assert backend
    backend.gate.clear()
    with Client(url, options=PATIENT) as client:
        client.infer("echo", {"x": X})
        assert backend.entered.acquire(timeout=60)
        worker.assign({"stable": "1"}, {}, 0)
        assert counts(worker).dropped == {"cancelled": 1}
        client.infer("echo", {"x": X})
    assert seen(worker) == 1


@pytest.mark.parametrize(
    ("changes", "failed", "dropped"),
    [
        ({"is_there": False}, {}, {"no_worker": 1}),
        ({"of_shadow": ("y", "FP32", [-1, 4])}, {"bad_tensor": 1}, {}),
    ],
)
def test_a_shadow_that_can_not_answer(
    url: str, beside: Beside, changes: Any, failed: dict[str, int], dropped: dict[str, int]
) -> None:
    """An absent one drops copies, one with other inputs fails; callers get their answers."""
    worker, _ = beside(**changes)
    with Client(url, options=PATIENT) as client:
        client.infer("echo", {"x": X})
    wait_until(lambda: seen(worker) == 1)
    assert (counts(worker).failed, counts(worker).dropped) == (failed, dropped)


def test_frames_of_a_video(url: str, beside: Beside) -> None:
    """What is encoded against earlier frames is copied as the tensor made of it: the shadow has no such stream."""
    worker, _ = beside(("x", "UINT8", [-1, HEIGHT, WIDTH, 3]))
    with Client(url, options=PATIENT) as client:
        assert [send(client, each)[0] for each in chain(1, 3)] == 3 * ["ok"]
    wait_until(lambda: seen(worker) == 3)
    assert counts(worker).agreed == 3


def test_classes_are_compared_without_their_scores(url: str, beside: Beside) -> None:
    """The copy asks for the same top classes."""
    worker, _ = beside()
    with Client(url, options=PATIENT) as client:
        client.infer("echo", {"x": X}, classification={"x": 2})
    wait_until(lambda: seen(worker) == 1)
    assert counts(worker).agreed == 1


def test_a_busy_model_has_no_copies() -> None:
    """Over a second in which the model ran for more than nine tenths: each copy is dropped, until it is less."""
    now = [0.0]

    def connect() -> Client:
        raise NotConnected("the broker is away")

    meter = LoadMeter(service_s=0.1)
    shadowing = Shadowing(Shadow(2, 100), meter, connect, lambda: now[0])

    def reply(count: int, every: float) -> None:
        for _ in range(count):
            now[0] += every
            request = InferRequest("1", "m", ())
            incoming = IncomingRequest(request, "c", ReplyPath("t", None, is_json=True), None, now[0], 1e9, 10)
            shadowing.offer(incoming, {}, InferResponse("1", "m"), {})

    def dropped() -> dict[str, int]:
        found = read_shadows(meter.counters()).get("2", ShadowCounts())
        return found.dropped

    try:
        reply(20, 0.1)  # busy from the first look, after a second, on
        busy = dropped()["busy"]
        assert 9 <= busy <= 11
        reply(20, 0.5)
        wait_until(lambda: dropped().get("not_connected", 0) > 0)
        assert dropped()["busy"] <= busy + 2
    finally:
        shadowing.close()


@pytest.mark.parametrize(
    ("one", "other", "tolerance", "alike"),
    [
        ([1.0, 100.0], [1.009, 100.9], 0.01, True),
        ([1.0, 100.0], [1.0, 103.0], 0.01, False),
        ([0.0, np.nan], [0.0, np.nan], 0.0, True),
        ([1.0], [1.0, 1.0], 1.0, False),
        ([1, 2, 3, 4], [1, 2, 3, 5], 0.25, True),
        ([1, 2, 3, 4], [1, 2, 4, 5], 0.25, False),
        ([True], [1], 1.0, False),
        ([], [], 0.0, True),
        ([b"0.9:7:cat", b"0.1:2"], [b"0.8:7:cat", b"0.2:2"], 0.0, True),
        ([b"0.9:7:cat"], [b"0.9:8:dog"], 0.5, False),
        ([b"a:b"], [b"c:b"], 0.0, False),
    ],
)
def test_what_agrees(one: list[Any], other: list[Any], tolerance: float, alike: bool) -> None:  # noqa: FBT001
    """Fractions within the tolerance, that part of whole numbers and texts; other shapes and types never."""
    arrays = [np.array(each, object if each and isinstance(each[0], bytes) else None) for each in (one, other)]
    assert agree({"y": arrays[0]}, {"y": arrays[1]}, tolerance) is alike
    assert not agree({"y": arrays[0]}, {"z": arrays[1]}, 1.0)


def test_counters_of_strangers_end_nothing() -> None:
    """States come from others: a name that is none of a shadow's counters is left out."""
    assert read_shadows({"shadow_": 1, "shadow_2_": 2, "shadow_3_agreed": 3, "ok": 4})["3"].agreed == 3

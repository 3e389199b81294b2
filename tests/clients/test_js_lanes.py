"""The JavaScript client's dispatcher beside Python's: after each of many random events both do the same."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from msgspec import to_builtins

from mqinfer.broker.link import ReasonCode
from mqinfer.client.dispatch.dispatcher import Dispatcher
from mqinfer.client.dispatch.pending import PendingRequest
from mqinfer.client.options import ClientOptions
from mqinfer.client.result import InferResult
from mqinfer.client.window import DelayWindow
from mqinfer.protocol.errors import MessageTooLarge, NotConnected
from mqinfer.protocol.states import ServedModel, WorkerState, WorkerStatus
from mqinfer.protocol.types import ErrorInfo, InferRequest, InferResponse, Outcome, Timings, WorkerLoad
from tests.clients.live import output
from tests.clients.node import compiled, node

pytestmark = pytest.mark.slow
WORKERS = ("a", "b", "c", "d")
STATUSES = [*[WorkerStatus.READY] * 8, *WorkerStatus, WorkerStatus.CRASHED]


@pytest.fixture(scope="module")
def programs() -> Iterator[Path]:
    """Folder of the compiled programs."""
    with compiled() as folder:
        yield folder


def ignore(result: InferResult) -> None:
    """Take no notice of an outcome."""


class Drive:
    """Random events, reported to Python's dispatcher, as a program in JavaScript can report them again."""

    def __init__(self, seed: int, steps: int) -> None:
        self.random = Random(seed)  # noqa: S311 - a seed, no secret
        self.dispatcher = Dispatcher("car", ClientOptions(window=12))
        self.all: dict[str, PendingRequest] = {}
        self.now, self.connected = 0.0, True
        self.boots = dict.fromkeys(WORKERS, 1)
        self.events: list[dict[str, Any]] = []
        self.done: list[dict[str, Any]] = []
        events = [self.add, self.reply, self.ack, self.state, self.unsent, self.corrupted, self.cancel, self.connection]
        weights = [8, 9, 9, 2, 0.3, 0.3, 0.5, 0.1] if seed % 2 else [5, 5, 5, 4, 1, 1, 1, 0.3]
        for event in self.random.choices(events, weights, k=steps):
            is_quick = self.random.random() < (0.998 if seed % 2 else 0.97)
            self.now += self.random.expovariate(1 / 10) if is_quick else self.random.uniform(0, 3000)
            told = event()
            pending = sorted(self.dispatcher.table.entries)
            ids = self.random.sample(pending, min(3, len(pending)))
            self.events.append({"now": self.now, "ids": ids, **told})
            self.take(ids)

    @property
    def seconds(self) -> float:
        """The time of the dispatcher."""
        return self.now / 1e3

    def take(self, ids: list[str]) -> None:
        """Record what the dispatcher does now."""
        sent, ended = [], []
        while True:
            step = self.dispatcher.take(self.seconds, connected=self.connected)
            ended += [[entry.request.id, why.code] for entry, why in step.ended]
            if step.send is None:
                break
            lane = step.send.lane
            sent.append([step.send.request.id, lane.worker if lane else "", step.send.attempts])
        replaced = self.dispatcher.table.replaceable(ids, self.seconds, connected=self.connected)
        self.done.append({"send": sent, "ended": sorted(ended), "replaced": replaced})

    def entry(self) -> PendingRequest | None:
        """Return a request: most often one that is in flight."""
        pending = list(self.dispatcher.table.in_flight.values())
        known = pending if pending and self.random.random() < 0.95 else list(self.all.values())[-20:]
        return self.random.choice(known) if known else None

    def wait(self) -> dict[str, Any]:
        """Let the time pass."""
        return {"what": "wait"}

    def add(self) -> dict[str, Any]:
        """Submit a request."""
        name = f"{self.random.getrandbits(128):032x}"
        model, version = self.random.choice(("seg", "seg", "box")), self.random.choice((None, None, None, "1", "2"))
        timeout = self.random.choice((500, 60_000)) * self.random.uniform(0.5, 1)
        request = InferRequest(name, model, (), version, response_topic=f"r/{name}")
        self.all[name] = PendingRequest(request, ignore, self.seconds, (self.now + timeout) / 1e3)
        self.dispatcher.submit(self.all[name])
        told = {"id": name, "model": model, "timeoutMs": timeout, "topic": f"r/{name}"}
        return {"what": "add", **told, **({} if version is None else {"version": version})}

    def ack(self) -> dict[str, Any]:
        """Acknowledge an attempt."""
        if (entry := self.entry()) is None or not entry.attempts:
            return self.wait()
        codes = [*[ReasonCode.SUCCESS] * 20, ReasonCode.NO_MATCHING_SUBSCRIBERS, ReasonCode.NOT_AUTHORIZED, 0x97]
        code, attempt = int(self.random.choice(codes)), self.random.randint(max(1, entry.attempts - 1), entry.attempts)
        self.dispatcher.acked(entry, attempt, code, self.seconds)
        return {"what": "ack", "id": entry.request.id, "attempt": attempt, "code": code}

    def unsent(self) -> dict[str, Any]:
        """Fail to publish an attempt."""
        if (entry := self.entry()) is None or not entry.attempts:
            return self.wait()
        why = self.random.choice((NotConnected, NotConnected, MessageTooLarge))("no")
        self.dispatcher.unsent(entry, entry.attempts, why, self.seconds)
        return {"what": "unsent", "id": entry.request.id, "attempt": entry.attempts, "error": why.code}

    def reply(self) -> dict[str, Any]:
        """Reply to a request, as the worker that has it or as another one."""
        if (entry := self.entry()) is None or not entry.attempts:
            return self.wait()
        worker = entry.lane.worker if entry.lane else self.random.choice(WORKERS)
        if self.random.random() < 0.1:
            worker = self.random.choice(WORKERS)
        outcome = self.random.choice((*[Outcome.OK] * 12, Outcome.ERROR, Outcome.REJECTED))
        code = self.random.choice(("corrupted", "rejected")) if outcome is Outcome.REJECTED else "model_failed"
        stated = {"retry_after": self.random.choice((2_000, 300_000))} if entry.lane and code == "rejected" else {}
        response = InferResponse(
            entry.request.id,
            self.random.choice((*[entry.request.model_name] * 20, "other")),
            model_version=self.random.choice((*[entry.request.model_version or "1"] * 20, "7")),
            outcome=outcome,
            error=None if outcome is Outcome.OK else ErrorInfo(code, "no"),
            worker=worker,
            attempt=self.random.randint(1, entry.attempts),
            load=WorkerLoad(self.random.randint(0, 6), self.random.randint(0, 90_000), self.random.randint(0, 8)),
            timings=Timings(inference=self.random.randint(0, 90_000_000), server_queue=self.random.randint(0, 10**7)),
            parameters=stated,
        )
        topic = self.random.choice((*[entry.request.response_topic] * 20, "r/other"))
        if self.dispatcher.replied(response, self.seconds, topic):
            self.dispatcher.settle(response.id, outcome)
        load, timings = response.load, response.timings
        no_time = dict.fromkeys(("decode", "preprocess", "postprocess", "encode"), 0)
        told = {
            "id": response.id,
            "modelName": response.model_name,
            "modelVersion": response.model_version,
            "outcome": str(outcome),
            "worker": worker,
            "attempt": response.attempt,
            "load": {"depth": load.depth, "serviceTimeUs": load.service_time_us, "window": load.window},
            "timings": no_time | {"inference": timings.inference, "serverQueue": timings.server_queue},
            "parameters": stated,
            **({"error": to_builtins(response.error)} if response.error else {}),
        }
        return {"what": "reply", "reply": told, "topic": topic}

    def state(self) -> dict[str, Any]:
        """Publish or remove a worker's state; a worker may be an old one, started anew, or a canary."""
        worker, status = self.random.choice(WORKERS), self.random.choice(STATUSES)
        if self.random.random() < 0.1:
            self.boots[worker] += 1
        if self.random.random() < 0.05:
            self.dispatcher.update(worker, self.seconds)
            return {"what": "state", "worker": worker}
        canary = worker == "d"
        models = (
            ServedModel("seg", "2" if canary else "1", default=not canary, share=30 if canary else 0),
            *(() if worker == "a" else (ServedModel("box", "1"),)),
        )
        pending = sorted(self.dispatcher.table.entries)
        running = tuple(self.random.sample(pending, min(2, len(pending)))) if self.random.random() < 0.5 else ()
        boot = self.boots[worker] - (self.random.random() < 0.1)
        state = WorkerState(worker, status, boot, models, 8, 0, self.random.randint(0, 90_000), running=running)
        self.dispatcher.update(state, self.seconds)
        served = [{"name": m.name, "version": m.version, "isDefault": m.default, "share": m.share} for m in models]
        told = {"worker": worker, "status": str(status), "boot": boot, "models": served, "running": running}
        return {"what": "state", "worker": worker, "state": {**told, "serviceTimeUs": state.service_time_us}}

    def corrupted(self) -> dict[str, Any]:
        """Damage a request."""
        if (entry := self.entry()) is None:
            return self.wait()
        self.dispatcher.corrupted(entry.request.id)
        return {"what": "corrupted", "id": entry.request.id}

    def cancel(self) -> dict[str, Any]:
        """Cancel a request."""
        if (entry := self.entry()) is None:
            return self.wait()
        self.dispatcher.settle(entry.request.id, Outcome.CANCELLED, is_reply=False)
        return {"what": "cancel", "id": entry.request.id}

    def connection(self) -> dict[str, Any]:
        """Lose the connection, or have it again."""
        self.connected = not self.connected
        self.dispatcher.connection(self.connected, self.seconds)
        return {"what": "connected" if self.connected else "disconnected"}


@pytest.mark.parametrize("seed", range(8))
def test_the_dispatcher_does_what_pythons_does(programs: Path, tmp_path: Path, seed: int) -> None:
    """After each of 3,000 events the same requests go to the same workers, the same ones end."""
    drive = Drive(seed, 3_000)
    (tmp_path / "events.json").write_text(json.dumps(drive.events))
    found = json.loads(output(*node(programs / "test" / "live" / "dispatching.js", str(tmp_path / "events.json"))))
    for number, (one, other) in enumerate(zip(found["done"], drive.done, strict=True)):
        about = drive.events[max(0, number - 3) : number + 1]
        assert one == other, (number, about)
    counters = drive.dispatcher.counters()
    assert found["counters"]["outcomes"] == {str(outcome): count for outcome, count in counters.outcomes.items()}
    names = {name: name for name in ("retries", "withheld", "late", "mismatched")} | {"inFlight": "in_flight"}
    counted = {name: getattr(counters, of_python) for name, of_python in names.items()}
    assert {name: found["counters"][name] for name in names} == counted
    assert counters.retries > 50


@pytest.mark.parametrize("share", [0.5, 1])
def test_a_streams_window_is_that_of_python(programs: Path, tmp_path: Path, share: float) -> None:
    """After each of 2,000 random replies and time-outs as many frames may be in flight."""
    random, window, now = Random(5), DelayWindow(32, share), 0.0  # noqa: S311 - a seed, no secret
    events: list[dict[str, Any]] = []
    limits = []
    for number in range(2_000):
        now += random.expovariate(1 / 30)
        event: dict[str, Any] = {"now": now}
        if random.random() < 0.01:
            window.on_timeout()
        else:
            waits = 4e7 if number // 100 % 2 else 1e5
            means = {"client_queue": 5e5, "transmission": 2e6, "server_queue": waits, "inference": 3e7}
            timings = Timings(**{part: round(random.expovariate(1 / mean)) for part, mean in means.items()})
            window.on_reply(timings, now / 1e3)
            event["timings"] = {
                names[0] + "".join(map(str.title, names[1:])): value for names, value in _parts(timings)
            }
        events.append(event)
        limits.append(window.limit)
    (tmp_path / "replies.json").write_text(json.dumps(events))
    command = node(programs / "test" / "live" / "windowing.js", str(share), str(tmp_path / "replies.json"))
    assert json.loads(output(*command)) == limits
    assert len(set(limits)) > 3


def _parts(timings: Timings) -> list[tuple[list[str], int]]:
    return [(part.split("_"), getattr(timings, part)) for part in timings.__struct_fields__]

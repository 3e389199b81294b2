"""A back end that waits to be let go, and a bare MQTT client that speaks to workers."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from mqinfer.broker import make_link
from mqinfer.broker.link import Link, Message
from mqinfer.cloud_worker.serving.worker import Worker
from mqinfer.codecs import encode_tensor
from mqinfer.models.backends.echo import EchoBackend
from mqinfer.models.loading import LoadedModel, load_model
from mqinfer.models.repository import Repository
from mqinfer.protocol.datatypes import Array
from mqinfer.protocol.envelope import CONTENT_TYPE, decode_response, encode_request
from mqinfer.protocol.topics import Topics
from mqinfer.protocol.types import InferRequest, InferResponse

Infer = Callable[[Mapping[str, Array], Sequence[str]], dict[str, Array]]
TOPICS = Topics()
X = np.arange(4, dtype=np.float32).reshape(1, 4)


class GatedEcho(EchoBackend):
    """An echo that can be held, and that notes the rows of every run.

    Attributes:
        gate: Runs wait while this is not set; it is set at first.
        entered: Released once a run.
        runs: Rows of each run.
        threads: Names of the threads on which they ran.
        fails: Decides by the inputs whether a run raises, and what.
    """

    def __init__(self, echo: EchoBackend) -> None:
        super().__init__(echo.inputs)
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Semaphore(0)
        self.runs: list[int] = []
        self.threads: list[str] = []
        self.fails: Callable[[Mapping[str, Array]], Exception | None] = lambda _: None

    def infer(self, inputs: Mapping[str, Array], outputs: Sequence[str] = ()) -> dict[str, Array]:
        """Give the inputs back once the gate is open."""
        array = next(iter(inputs.values()))
        self.runs.append(len(array) if array.ndim else 1)
        self.threads.append(threading.current_thread().name)
        self.entered.release()
        if not self.gate.wait(120):
            raise TimeoutError("nobody opened the gate")
        if error := self.fails(inputs):
            raise error
        return super().infer(inputs, outputs)


@pytest.fixture
def gated(write_echo: Callable[..., Path]) -> Iterator[Callable[..., tuple[LoadedModel, GatedEcho]]]:
    """Load an echo model (arguments as for `write_echo`) with a gate in it, which opens at the test's end."""
    backends: list[GatedEcho] = []

    def load(
        model: str = "echo", *inputs: tuple[str, str, list[int]], config: str = ""
    ) -> tuple[LoadedModel, GatedEcho]:
        repository = write_echo(model, *inputs, config=config)
        (version,) = (each for each in Repository(repository).models() if each.name == model)
        loaded = load_model(version, device="cpu")
        assert isinstance(loaded.backend, EchoBackend)
        backends.append(GatedEcho(loaded.backend))
        return LoadedModel(backends[-1], loaded.card, loaded.config), backends[-1]

    yield load
    for backend in backends:
        backend.gate.set()


@pytest.fixture
def gated_worker(
    url: str, gated: Callable[..., tuple[LoadedModel, GatedEcho]], serve: Callable[..., Worker]
) -> Callable[..., tuple[Worker, GatedEcho]]:
    """Serve a model with a gate on this test's own broker: `gated_worker("echo", ("x", …), config=…, threads=2)`."""

    def start(*model: Any, config: str = "", **options: Any) -> tuple[Worker, GatedEcho]:
        loaded, backend = gated(*model, config=config)
        return serve(url, loaded, **options), backend

    return start


class Bare:
    """A client of the bare protocol: publishes what it is told and collects what comes back."""

    def __init__(self, link: Link, name: str) -> None:
        self.link, self.name = link, name
        self.replies: queue.SimpleQueue[Message] = queue.SimpleQueue()
        link.subscribe(TOPICS.result.filter(client=name), self.replies.put)

    def next(self) -> Message:
        """Wait for the next reply."""
        return self.replies.get(timeout=60)

    def read(self) -> InferResponse:
        """Wait for the next reply and read it, in the binary form."""
        return decode_response(self.next().payload)

    def ask(self, message: Message) -> InferResponse:
        """Send a message and wait for the reply."""
        self.link.publish(message)
        return self.read()

    def hold(self, backend: GatedEcho, request_id: str = "ab" * 16, **changes: Any) -> None:
        """Close a back end's gate, send a request, and wait until it is held there."""
        backend.gate.clear()
        self.link.publish(self.binary(request_id, **changes))
        assert backend.entered.acquire(timeout=60)

    def binary(self, request_id: str = "ab" * 16, *, model: str = "echo", **changes: Any) -> Message:
        """Make a request in the binary form, as mqinfer's own clients send it."""
        tensors = changes.pop("inputs", (encode_tensor("x", X),))
        response_topic = TOPICS.result(model, self.name, request_id)
        request = replace(InferRequest(request_id, model, tensors, response_topic=response_topic), **changes)
        return Message(
            TOPICS.infer(model, self.name),
            encode_request(request),
            content_type=CONTENT_TYPE,
            response_topic=request.response_topic,
            correlation_data=bytes.fromhex(request_id),
        )

    def text(self, body: str, request_id: str = "1", **changes: Any) -> Message:
        """Make a request in JSON, as `mosquitto_pub` would."""
        topic, response_topic = TOPICS.infer("echo", self.name), TOPICS.result("echo", self.name, request_id)
        return replace(Message(topic, body.encode(), response_topic=response_topic), **changes)


@pytest.fixture
def bare(url: str, unique: Callable[[str], str]) -> Iterator[Bare]:
    """A bare client on this test's broker."""
    name = unique("bare")
    link = make_link(url, client_id=name)
    link.open()
    yield Bare(link, name)
    link.close()


@pytest.fixture
def bare_on() -> Callable[[Link, str], Bare]:
    """Make a bare client of an open link."""
    return Bare

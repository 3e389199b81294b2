"""A back end that waits to be let go, and a bare MQTT client that speaks to workers."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from mqinfer.broker import make_link
from mqinfer.broker.link import Link, Message
from mqinfer.models.echo import EchoBackend
from mqinfer.models.loading import LoadedModel, load_model
from mqinfer.models.repository import Repository
from mqinfer.protocol.datatypes import Array
from mqinfer.protocol.topics import Topics

Infer = Callable[[Mapping[str, Array], Sequence[str]], dict[str, Array]]


class GatedEcho(EchoBackend):
    """An echo that can be held, and that notes the rows of every run.

    Attributes:
        gate: Runs wait while this is not set; it is set at first.
        entered: Released once a run.
        runs: Rows of each run.
        fails: Decides by the inputs whether a run raises, and what.
    """

    def __init__(self, echo: EchoBackend) -> None:
        super().__init__(echo.inputs)
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Semaphore(0)
        self.runs: list[int] = []
        self.fails: Callable[[Mapping[str, Array]], Exception | None] = lambda _: None

    def infer(self, inputs: Mapping[str, Array], outputs: Sequence[str] = ()) -> dict[str, Array]:
        """Give the inputs back once the gate is open."""
        array = next(iter(inputs.values()))
        self.runs.append(len(array) if array.ndim else 1)
        self.entered.release()
        if not self.gate.wait(20):
            raise TimeoutError("nobody opened the gate")
        if error := self.fails(inputs):
            raise error
        return super().infer(inputs, outputs)


@pytest.fixture
def gated(write_echo: Callable[..., Path]) -> Callable[..., tuple[LoadedModel, GatedEcho]]:
    """Load an echo model (arguments as for `write_echo`) with a gate in it."""

    def load(
        model: str = "echo", *inputs: tuple[str, str, list[int]], config: str = ""
    ) -> tuple[LoadedModel, GatedEcho]:
        repository = write_echo(model, *inputs, config=config)
        (version,) = (each for each in Repository(repository).models() if each.name == model)
        loaded = load_model(version, device="cpu")
        assert isinstance(loaded.backend, EchoBackend)
        backend = GatedEcho(loaded.backend)
        return LoadedModel(backend, loaded.card, loaded.config), backend

    return load


@pytest.fixture
def url(unique: Callable[[str], str]) -> str:
    """URL of an in-memory broker of this test's own."""
    return f"memory://{unique('broker')}"


class Bare:
    """A client of the bare protocol: publishes what it is told and collects what comes back."""

    def __init__(self, link: Link, name: str) -> None:
        self.link, self.name = link, name
        self.replies: queue.SimpleQueue[Message] = queue.SimpleQueue()
        link.subscribe(Topics().results_of_client(name), self.replies.put)

    def next(self) -> Message:
        """Wait for the next reply."""
        return self.replies.get(timeout=10)


@pytest.fixture
def bare(url: str, unique: Callable[[str], str]) -> Iterator[Bare]:
    """A bare client on this test's broker."""
    name = unique("bare")
    link = make_link(url, client_id=name)
    link.open()
    yield Bare(link, name)
    link.close()

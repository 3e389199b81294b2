"""Clients whose books are checked when the test ends, and a hand that answers like a worker."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from mqinfer.broker import make_link
from mqinfer.broker.link import Link, Message
from mqinfer.client import Client
from mqinfer.client.options import ClientOptions
from mqinfer.client.result import Counters
from mqinfer.cloud_worker.serving.worker import Worker
from mqinfer.codecs import encode_tensor
from mqinfer.protocol.checksum import verify
from mqinfer.protocol.datatypes import Array
from mqinfer.protocol.envelope import decode_request, encode_response
from mqinfer.protocol.errors import MqinferError
from mqinfer.protocol.topics import Topics
from mqinfer.protocol.types import ErrorInfo, InferRequest, InferResponse, Outcome
from tests.patience import LONG_SILENCE

MakeClient = Callable[..., Client]
Serve = Callable[..., Worker]
WriteEcho = Callable[..., Path]


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have clients send nothing again only because the machine stands still: a hand would get it twice."""
    *others, _, shed = ClientOptions.__init__.__defaults__ or ()
    monkeypatch.setattr(ClientOptions.__init__, "__defaults__", (*others, LONG_SILENCE, shed))


@pytest.fixture
def check_books() -> Callable[[Counters], None]:
    """Check a client's counters: every request that was accepted has one outcome, and nothing is left in the table."""
    return _check_books


def _check_books(counters: Counters) -> None:
    assert counters.pending == counters.in_flight == 0
    assert counters.submitted == sum(counters.outcomes.values())


@pytest.fixture
def make_client(unique: Callable[[str], str]) -> Iterator[Callable[..., Client]]:
    """Connect clients; at the end they are closed, and each request must have had exactly one outcome."""
    clients: list[Client] = []

    def make(url: str, **options: Any) -> Client:
        client = Client(url, name=unique("client"), **options)
        clients.append(client)
        return client

    yield make
    for client in clients:
        client.close()
        _check_books(client.counters())


@pytest.fixture
def client(make_client: Callable[..., Client], url: str) -> Client:
    """A client on this test's own broker."""
    return make_client(url)


@pytest.fixture
def echo(url: str, serve: Serve, write_echo: WriteEcho) -> Worker:
    """A worker on this test's own broker that serves the model `echo`."""
    return serve(url, write_echo())


class Hand:
    """Takes requests off the shared channel of one model and answers them when and as it is told."""

    def __init__(self, link: Link, model: str) -> None:
        self.link = link
        self.requests: queue.SimpleQueue[InferRequest] = queue.SimpleQueue()
        link.subscribe(Topics().infer_filter(model), self._take, share="workers")

    def _take(self, message: Message) -> None:
        verify(message.payload, message.user_properties)
        self.requests.put(decode_request(message.payload))

    def next(self) -> InferRequest:
        """Wait for the next request."""
        return self.requests.get(timeout=60)

    def answer(
        self, request: InferRequest, outputs: Mapping[str, Array], encoding: str = "raw", worker: str = "hand"
    ) -> None:
        """Answer with outputs."""
        tensors = tuple(encode_tensor(name, array, encoding) for name, array in outputs.items())
        self.reply(request, InferResponse(request.id, request.model_name, outputs=tensors, worker=worker))

    def refuse(self, request: InferRequest, error: MqinferError, outcome: Outcome = Outcome.REJECTED) -> None:
        """Answer with an error."""
        info = ErrorInfo(error.code, str(error))
        self.reply(request, InferResponse(request.id, request.model_name, outcome=outcome, error=info))

    def reply(self, request: InferRequest, response: InferResponse) -> None:
        """Send a response."""
        self.send(request, encode_response(response))

    def send(self, request: InferRequest, payload: bytes, **properties: Any) -> None:
        """Send any bytes as the reply, with any properties."""
        assert request.response_topic
        self.link.publish(Message(request.response_topic, payload, **properties))


@pytest.fixture
def hand(url: str, unique: Callable[[str], str]) -> Iterator[Hand]:
    """A hand at the model `manual`."""
    with ExitStack() as stack:
        link = make_link(url, client_id=unique("hand"))
        link.open()
        stack.callback(link.close)
        yield Hand(link, "manual")

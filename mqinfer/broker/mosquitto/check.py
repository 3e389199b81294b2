"""Try, with one client's login, what the access rules of a broker should refuse: `mqinfer broker check`.

What it publishes is empty or asks a model that is not there, in names that nobody has, so nobody notices. Only the
workers' group has to be tried on a model that is served: for a moment the login takes its turn there, as an attacker
would, and requests of others that it gets are sent again by their clients.
"""

from __future__ import annotations

import secrets
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from mqinfer.broker.address import BrokerAddress, TlsOptions
from mqinfer.broker.connect import make_link
from mqinfer.broker.link import Link, Message, MessageHandler, ReasonCode
from mqinfer.broker.tls import make_tls_context
from mqinfer.protocol.card import read_card
from mqinfer.protocol.errors import MqinferError, NotAuthorized, NotConnected
from mqinfer.protocol.topics import Topics

_TIMEOUT_S = 10.0
_PATIENCE_S = 2.0
"""How long to wait for a message that may not come, where no later one shows that it will not."""
_TURNS = 64
"""Requests with which the workers' group is tried: one of so many members gets at least one of them."""
_RULES = "give each client the rules of its role: mqinfer broker add, docs/reference/security.md"
_GROUP = (
    "start all workers with a group that nobody can guess (mqinfer worker --group, MQINFER_GROUP; `mqinfer broker add` "
    "prints one), or refuse the subscription with Mosquitto's dynamic-security plugin (docs/reference/security.md)"
)

_CERTIFICATE = (
    "make the broker's certificate, or its authority's, anew before a client is updated to Python 3.13 or later, which "
    "refuses it: docs/reference/security.md, Certificates of your own"
)


class Result(NamedTuple):
    """What an attempt came to, in words, and whether it worked; None where that could not be found out."""

    worked: bool | None
    words: str


@dataclass(frozen=True, slots=True)
class Finding:
    """An attempt.

    Attributes:
        attempt: What was tried.
        result: What came of it.
        advice: What to do where it worked.
    """

    attempt: str
    result: Result
    advice: str = _RULES


def enter_without_login(address: BrokerAddress) -> Finding:
    """Try to connect to a broker with neither certificate nor password.

    Args:
        address: With the login that is left out.

    Raises:
        BrokerUnreachable: No broker answers.
    """
    tls = address.tls and TlsOptions(address.tls.ca_file)
    link = make_link(replace(address, username=None, password=None, tls=tls), client_id=f"check~{secrets.token_hex(8)}")
    try:
        link.open(_TIMEOUT_S)
    except NotAuthorized:
        result = Result(False, "refused")
    else:
        result = Result(True, "possible")
    finally:
        link.close()
    return Finding(
        "connect without a login", result, "let nobody in without a certificate or password: docs/reference/security.md"
    )


def check_certificate(address: BrokerAddress) -> Finding:
    """Look whether a broker's certificate fails the strict check (RFC 5280), which Python 3.13 has made its default.

    Args:
        address: With TLS, and the CA file to check against.

    Raises:
        ConfigError: A TLS file is missing or is no certificate or key.
    """
    context = make_tls_context(address.tls or TlsOptions())
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | ssl.VERIFY_X509_STRICT
    result = Result(False, "it passes")
    try:
        with (
            socket.create_connection((address.host, address.port), _TIMEOUT_S) as plain,
            _shaken(context, plain, address),
        ):
            pass
    except ssl.SSLCertVerificationError as error:
        result = Result(True, f"it does not pass: {error.verify_message}")
    except OSError as error:
        result = Result(None, f"not known: {error}")
    return Finding("fail the strict check of certificates", result, _CERTIFICATE)


def _shaken(context: ssl.SSLContext, plain: socket.socket, address: BrokerAddress) -> ssl.SSLSocket:
    """Return a connection with TLS; NATS states first, without it, that it speaks it."""
    if address.transport == "nats":
        with plain.makefile("rb", buffering=0) as lines:
            lines.readline(65_536)
    return context.wrap_socket(plain, server_hostname=address.host)


@dataclass(slots=True)
class Checker:
    """Tries what a login may do.

    Args:
        link: Open, with the login.
        topics: The site's.
        name: The login's name in topics.
        group: Name of the workers' group that an attacker would try.
        patience_s: How long to wait for a message that may not come.
    """

    link: Link
    topics: Topics
    name: str
    group: str = "workers"
    patience_s: float = _PATIENCE_S
    _nobody: str = field(default_factory=lambda: f"check-{secrets.token_hex(6)}")

    def run(self) -> list[Finding]:
        """Try everything, one after the other.

        Raises:
            NotConnected: The connection was lost.
        """
        topics, nobody = self.topics, self._nobody
        return [
            Finding("read other clients' requests", self._reads(topics.infer_filter(nobody))),
            Finding("send requests in another's name", self._writes(topics.infer(nobody, nobody))),
            Finding("cancel another's requests", self._writes(topics.cancel(nobody, nobody))),
            Finding("answer in a worker's place", self._writes(topics.result(nobody, nobody, nobody))),
            Finding("publish a worker's state", self._writes(topics.worker_state(nobody))),
            Finding("publish a model card", self._writes(topics.card(nobody))),
            Finding("give orders to servers", self._writes(topics.control(nobody, self.name, "server"))),
            Finding("take the turns of workers", self._takes_turns(), _GROUP),
        ]

    def _writes(self, topic: str) -> Result:
        code = self._publish(Message(topic, b""))
        return (
            Result(False, "refused") if code >= ReasonCode.UNSPECIFIED else Result(True, f"possible, such as {topic}")
        )

    def _reads(self, topic_filter: str) -> Result:
        """Send a request in the own name, and look whether a filter for everybody's shows it."""
        came = threading.Event()
        try:
            with self._listening(topic_filter, lambda _: came.set()):
                code = self._publish(Message(self.topics.infer(self._nobody, self.name), b""))
                if code >= ReasonCode.UNSPECIFIED:
                    return Result(None, f"not known: the login may not send requests as {self.name}")
                self._await_all(came)
        except NotAuthorized:
            return Result(False, "refused")
        return Result(True, f"possible, by {topic_filter}") if came.is_set() else Result(False, "nothing arrives")

    def _await_all(self, came: threading.Event) -> None:
        """Wait until what was published before has arrived: a message on the own state topic comes behind it."""
        topic, came_back = self.topics.client_state(self.name), threading.Event()
        with self._listening(topic, lambda message: None if message.retain else came_back.set()):
            if self._publish(Message(topic, b"")) < ReasonCode.UNSPECIFIED:
                came_back.wait(self.patience_s)
            else:
                came.wait(self.patience_s)

    def _takes_turns(self) -> Result:
        models = self._models()
        if not models:
            return Result(None, "not known: no worker has published a model card; try again while workers serve")
        alone = self._replies(models[0])
        if alone < _TURNS:
            return Result(None, f"not known: workers answered {alone} of {_TURNS} requests; try again later")
        try:
            with self._listening(self.topics.infer_filter(models[0]), lambda _: None, self.group):
                beside = self._replies(models[0])
        except NotAuthorized:
            return Result(False, "refused")
        if beside == _TURNS:
            return Result(False, f"workers have another group than {self.group!r}, or the broker refuses it")
        lost = f"{_TURNS - beside} of {_TURNS} requests were not answered"
        return Result(True, f"possible: in the group {self.group!r}, {lost}")

    def _models(self) -> list[str]:
        """Return the models of which the broker keeps cards."""
        found: list[str] = []
        first = threading.Event()

        def keep(message: Message) -> None:
            try:
                model, card = read_card(self.topics, message.topic, message.payload)
            except MqinferError:
                return
            if card is not None:
                found.append(model)
                first.set()

        try:
            with self._listening(self.topics.card.filter(), keep):
                first.wait(self.patience_s)
        except NotAuthorized:
            return []
        return sorted(found)

    def _replies(self, model: str) -> int:
        """Return how many requests are answered; they are no requests of any sense, so that no model runs."""
        answered, done = set[str](), threading.Event()

        def count(message: Message) -> None:
            answered.add(message.topic)
            if len(answered) == _TURNS:
                done.set()

        prefix = secrets.token_hex(6)
        replies = [self.topics.result(model, self.name, f"{prefix}-{number}") for number in range(_TURNS)]
        with self._listening(self.topics.result.filter(client=self.name), count):
            for topic in replies:
                request = Message(self.topics.infer(model, self.name), b"{}", response_topic=topic, expiry_s=5)
                self.link.publish(request)
            done.wait(self.patience_s)
        return len(answered.intersection(replies))

    def _publish(self, message: Message) -> int:
        """Publish and return the PUBACK's reason code.

        Raises:
            NotConnected: No PUBACK came.
        """
        acked, codes = threading.Event(), list[int]()

        def receive(code: int) -> None:
            codes.append(code)
            acked.set()

        self.link.publish(message, receive)
        if not acked.wait(max(self.patience_s, _PATIENCE_S)):
            raise NotConnected(f"the broker did not acknowledge a message on {message.topic}")
        return codes[0]

    @contextmanager
    def _listening(self, topic_filter: str, handler: MessageHandler, share: str | None = None) -> Iterator[None]:
        self.link.subscribe(topic_filter, handler, share=share)
        try:
            yield
        finally:
            self.link.unsubscribe(topic_filter, share=share)

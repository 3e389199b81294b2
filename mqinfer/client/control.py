"""Lists, loads and unloads models on servers, and reads their status: an operator's side of `{root}/control/...`."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from mqinfer.broker.address import BrokerAddress, TlsOptions
from mqinfer.broker.connect import make_link, resolve
from mqinfer.broker.link import Message, ReasonCode
from mqinfer.broker.presence import make_client_id
from mqinfer.broker.process import Maker
from mqinfer.client.callbacks import check_may_wait
from mqinfer.client.connection import address_of, default_name, read_environment
from mqinfer.client.options import NAME_HINT, check_timeout
from mqinfer.client.result import Ignored
from mqinfer.protocol.control import Call, Operation
from mqinfer.protocol.decoding import parse_json, write_json
from mqinfer.protocol.errors import (
    BadEnvelope,
    Expired,
    ModelNotFound,
    MqinferError,
    NotAuthorized,
    NoWorker,
    error_from_code,
)
from mqinfer.protocol.states import ServerStatus, WorkerState, WorkerStatus, read_server_state, read_worker_state
from mqinfer.protocol.topics import DEFAULT_ROOT, EVERY_SERVER, Topics, check_name, check_same

__all__ = ["ControlClient", "ControlReply", "check_replies", "read_reply"]


@dataclass(frozen=True, slots=True)
class ControlReply:
    """What one server answered.

    Attributes:
        server: Its name.
        content: The reply's JSON; None where there is an error.
        error: Why it failed, or None.
    """

    server: str
    content: Any = None
    error: MqinferError | None = None


class ControlClient:
    """Manages servers through a broker; one call at a time, from any thread.

    Example:
        >>> with ControlClient("mqtt://127.0.0.1:1883") as control:  # doctest: +SKIP
        ...     control.load("seg")
        ...     control.ask(Call(Operation.INDEX))
    """

    def __init__(
        self,
        url: str | BrokerAddress,
        *,
        name: str | None = None,
        tls: TlsOptions | None = None,
        root: str = DEFAULT_ROOT,
        connect_timeout: float = 10.0,
    ) -> None:
        """Connect.

        Args:
            url: The broker.
            name: The client's name in its topics; None for that of its certificate or login, else a random one.
            tls: Files of the certificates, as for `Client`.
            root: Topic root.
            connect_timeout: In seconds.

        Raises:
            BrokerUnreachable: No broker answers at the address.
            NotAuthorized: The broker refused the credentials.
            ConfigError: The address is wrong.
            BadTopic: The name or the root breaks the naming rules.
        """
        address = resolve(address_of(url, tls))
        check_timeout(connect_timeout)
        self._name = check_name("client", name or default_name(address))
        self._maker = Maker(f"the control client {self._name!r}")
        self._topics = Topics(root)
        self._asking = threading.Lock()
        self._changed = threading.Condition()
        self._servers: dict[str, ServerStatus] = {}
        self._replies: dict[str, ControlReply] = {}
        self._refusal: int | None = None
        self._request = b""
        self._server: str | None = None
        self._workers: dict[str, WorkerState] = {}
        self._ignored_states = Ignored("a server's state")
        self._ignored_workers = Ignored("a worker's state")
        self._ignored_replies = Ignored("a server's reply")
        self._link = make_link(address, client_id=make_client_id(self._name))
        try:
            self._link.open(connect_timeout)
            self._link.subscribe(self._topics.control_results(self._name), self._on_reply, retained=False)
            self._link.subscribe(self._topics.control_states(), self._on_state)
        except BaseException:
            self._link.close()
            raise

    @classmethod
    def from_env(cls, *, root: str = DEFAULT_ROOT, connect_timeout: float = 10.0) -> Self:
        """Connect to where the environment says, as `Client.from_env`.

        Raises:
            ConfigError: `MQINFER_BROKER` is not set, or a variable is wrong.
            LinkError: As for `ControlClient(...)`.
        """
        address, name = read_environment()
        return cls(address, name=name, root=root, connect_timeout=connect_timeout)

    @property
    def servers(self) -> dict[str, ServerStatus]:
        """The servers by name: those that are ready, and those that were lost."""
        with self._changed:
            return {name: status for name, status in self._servers.items() if status is not ServerStatus.STOPPED}

    @property
    def workers(self) -> dict[str, WorkerState]:
        """The last states of the workers by name, as far as they have come since `watch_workers`."""
        with self._changed:
            return dict(self._workers)

    def watch_workers(self) -> None:
        """Receive the states of the workers from now on; the broker keeps the last one of each.

        Raises:
            LinkError: The link is down, or the broker refuses the subscription.
        """
        self._maker.check()
        self._link.subscribe(self._topics.worker_states(), self._on_worker)

    def ask(
        self, call: Call, body: Mapping[str, Any] | None = None, *, server: str | None = None, timeout: float = 10.0
    ) -> list[ControlReply]:
        """Send a call to one server, or to all, and wait for the replies.

        Args:
            call: What the servers do.
            body: The call's JSON.
            server: Name of the server; None for all.
            timeout: In seconds; a server that has not replied by then is among the replies with an error.

        Returns:
            Sorted by the servers' names; at least one.

        Raises:
            NoWorker: There is no such server, or none at all.
            NotAuthorized: The broker does not allow this client to control servers.
            LinkError: Nothing could be sent.
        """
        self._maker.check()
        check_may_wait("a call of a control client")
        check_timeout(timeout)
        with self._asking:
            self._request, self._server = os.urandom(16), server
            self._replies, self._refusal = {}, None
            self._link.publish(self._message(call, body, server, timeout), self._on_ack)
            with self._changed:
                self._changed.wait_for(lambda: self._is_complete(server), timeout)
                return self._outcome(server, timeout)

    def wait_for(self, server: str, timeout: float = 30.0) -> None:
        """Wait until a server is ready.

        Args:
            server: Its name.
            timeout: In seconds.

        Raises:
            NoWorker: It was not ready in time.
        """
        self._maker.check()
        check_may_wait("wait_for()")
        check_timeout(timeout)
        with self._changed:
            if not self._changed.wait_for(lambda: self._servers.get(server) is ServerStatus.READY, timeout):
                raise NoWorker(f"server {server!r} was not ready within {timeout:g} s")

    def load(self, model: str, *, server: str | None = None, timeout: float = 300.0) -> list[ControlReply]:
        """Load a model, or what has changed of it; when this returns, the version of before is no longer served.

        Args:
            model: Its folder in the servers' repositories.
            server: Name of the server; None for all that have the model.
            timeout: In seconds.

        Raises:
            MqinferError: A server failed; its name and the reason are in the message.
        """
        return check_replies(self.ask(Call(Operation.LOAD, model), server=server, timeout=timeout))

    def unload(self, model: str, *, server: str | None = None, timeout: float = 60.0) -> list[ControlReply]:
        """Unload a model; when this returns, its processes have ended. Arguments and errors as for `load`."""
        return check_replies(self.ask(Call(Operation.UNLOAD, model), server=server, timeout=timeout))

    def drain(self, worker: str, *, on: bool = True, timeout: float = 60.0) -> list[str]:
        """Have worker processes accept nothing more, and wait until they have answered what they have.

        They stay connected, and `on=False` has them serve again. A process that is started anew serves.

        Args:
            worker: A server, for all its processes, or one process, such as `gpu-1.0`.
            on: Whether they drain.
            timeout: In seconds; after it they drain on, and another call waits further.

        Returns:
            Names of the processes.

        Raises:
            NoWorker: There is no such server or process.
            MqinferError: It failed; the reason is in the message.
        """
        call = Call(Operation.DRAIN if on else Operation.UNDRAIN, worker=worker)
        server, _, number = worker.rpartition(".")
        try:
            replies = self.ask(call, server=worker, timeout=timeout)
        except NoWorker:
            if not number.isdecimal() or not server:
                raise
            replies = self.ask(call, server=server, timeout=timeout)
        (reply,) = check_replies(replies)
        return list(reply.content["workers"])

    def close(self) -> None:
        """Disconnect."""
        self._link.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._maker.may_close(kind):
            self.close()

    def _message(self, call: Call, body: Mapping[str, Any] | None, server: str | None, timeout: float) -> Message:
        return Message(
            topic=self._topics.control(server or EVERY_SERVER, self._name, call.path),
            payload=write_json(dict(body or {}), "control request"),
            content_type="application/json",
            response_topic=self._topics.control_result(self._name, self._request.hex()),
            correlation_data=self._request,
            expiry_s=max(1, math.ceil(timeout)),  # a call that nobody waits for any more is not carried out
        )

    def _is_complete(self, server: str | None) -> bool:
        if self._refusal is not None:
            return True
        if server is not None:
            return server in self._replies or self._servers.get(server, ServerStatus.READY) is not ServerStatus.READY
        # The states are retained: they came before the first reply could.
        return bool(self._replies) and self._missing() <= self._replies.keys()

    def _missing(self) -> set[str]:
        ready = {name for name, status in self._servers.items() if status is ServerStatus.READY}
        return ready - self._replies.keys()

    def _outcome(self, server: str | None, timeout: float) -> list[ControlReply]:
        if self._refusal == ReasonCode.NOT_AUTHORIZED:
            raise NotAuthorized(f"the broker does not allow client {self._name!r} to control servers; {NAME_HINT}")
        known = ", ".join(sorted(name for name, status in self._servers.items() if status is ServerStatus.READY))
        missing = {server} - self._replies.keys() if server else self._missing()
        if not self._replies and (not missing or self._refusal is not None or server not in {None, *self._servers}):
            whom = f"no server {server!r}" if server else "no server"
            raise NoWorker(f"{whom} is ready on this broker (ready: {known or 'none'}); start: mqinfer worker")
        late = [ControlReply(name, error=self._silence(name, timeout)) for name in missing]
        return sorted([*self._replies.values(), *late], key=lambda reply: reply.server)

    def _silence(self, server: str, timeout: float) -> MqinferError:
        status = self._servers.get(server, ServerStatus.READY)
        if status is not ServerStatus.READY:
            return NoWorker(f"server {server} is {status}")
        return Expired(f"server {server} has not replied within {timeout:g} s")

    def _on_ack(self, code: int) -> None:
        if code != ReasonCode.SUCCESS:
            with self._changed:
                self._refusal = code
                self._changed.notify_all()

    def _on_state(self, message: Message) -> None:
        try:
            server, state = read_server_state(self._topics, message.topic, message.payload)
        except MqinferError as error:
            self._ignored_states.add(message.topic, error)
            return
        if state is not None and state.status is ServerStatus.CLAIMING:
            return  # a question to the one that has the name
        with self._changed:
            self._servers[server] = state.status if state else ServerStatus.STOPPED
            self._changed.notify_all()

    def _on_worker(self, message: Message) -> None:
        try:
            worker, state = read_worker_state(self._topics, message.topic, message.payload)
        except MqinferError as error:
            self._ignored_workers.add(message.topic, error)
            return
        with self._changed:
            if state is None or state.status in {WorkerStatus.STOPPED, WorkerStatus.CRASHED}:
                self._workers.pop(worker, None)
            elif state.status in {WorkerStatus.READY, WorkerStatus.DRAINING, WorkerStatus.LOST}:
                self._workers[worker] = state

    def _on_reply(self, message: Message) -> None:
        request, server = self._request, self._server
        if message.topic.rpartition("/")[2] != request.hex() or message.correlation_data not in {None, request}:
            return  # to a call whose time is over
        try:
            reply = read_reply(message)
            if server:
                check_same("server", server, reply.server)
        except MqinferError as error:
            self._ignored_replies.add(message.topic, error)
            return
        with self._changed:
            self._replies[reply.server] = reply
            self._changed.notify_all()


def read_reply(message: Message) -> ControlReply:
    """Decode a server's reply to a call.

    Raises:
        BadEnvelope: It is not JSON, was kept by the broker, or names no server or several ones.
        BadTopic: The server's name breaks the naming rules.
        LimitExceeded: It is longer than 8 MiB.
    """
    if message.retain:
        raise BadEnvelope("the broker had kept it; replies are never retained")
    content = parse_json(message.payload, "control reply")
    fields = content if isinstance(content, dict) else {}
    objects = content if isinstance(content, list) else [content]
    named = {value for key, value in message.user_properties if key == "server"}
    named |= {str(each["server"]) for each in objects if isinstance(each, dict) and "server" in each}
    if len(named) != 1:
        raise BadEnvelope(f"control reply: {len(named)} servers are named; it must name the one that sent it")
    server = check_name("server", named.pop())
    if "error" not in fields:
        return ControlReply(server, content)
    why = error_from_code(str(fields.get("code", "")), f"server {server}: {fields['error']}")
    return ControlReply(server, error=why)


def check_replies(replies: list[ControlReply]) -> list[ControlReply]:
    """Return the replies of the servers that succeeded.

    A server that does not have the model is left out, as long as another one has it.

    Raises:
        MqinferError: Of the first server that failed; the message names every one, with its reason.
    """
    done = [reply for reply in replies if reply.error is None]
    failed = [reply.error for reply in replies if reply.error is not None]
    serious = [error for error in failed if not (done and isinstance(error, ModelNotFound))]
    if serious:
        raise type(serious[0])("; ".join(map(str, serious)))
    return done

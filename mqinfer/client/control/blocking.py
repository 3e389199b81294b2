"""The blocking control client."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Self, TypedDict, Unpack

from msgspec import Struct

from mqinfer.broker.address import BrokerAddress, TlsOptions
from mqinfer.broker.connect import make_link, resolve
from mqinfer.broker.link import Message
from mqinfer.broker.presence import make_client_id
from mqinfer.broker.process import Maker
from mqinfer.client.callbacks import check_may_wait
from mqinfer.client.closing import WithBlock
from mqinfer.client.connection import address_of, default_name, read_environment
from mqinfer.client.control.question import ControlReply, Question, check_replies
from mqinfer.client.options import check_timeout
from mqinfer.client.registry import Registry
from mqinfer.client.result import Ignored
from mqinfer.protocol.control import OF_EDGES, Call, Operation
from mqinfer.protocol.errors import LinkError, MqinferError, NoWorker
from mqinfer.protocol.states import ProcessStatus, ServerState
from mqinfer.protocol.topics import DEFAULT_ROOT, Topics, check_name


class TrafficOrder(TypedDict, total=False):
    """What an operator sets of a model's versions.

    Attributes:
        stable: The default version; if it was the canary, there is none any more.
        canary: The version that gets a share of the requests that name none.
        share: That share, in per cent.
        watch: Whether the canary is taken back by itself when it does worse than the stable version.
        shadow: The version that gets copies of requests, and whose answers are only compared.
        shadow_share: The share of the requests without a version that it gets copies of, in per cent; 0 ends it.
        tolerance: By how much an answer that agrees may differ, 0 to 1.
    """

    stable: int
    canary: int
    share: int
    watch: bool
    shadow: int
    shadow_share: int
    tolerance: float


class _Drained(Struct, frozen=True):
    workers: list[str]


class ControlClient(WithBlock):
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
        self._known = Registry(time.monotonic)  # of it the servers alone
        self._question: Question | None = None
        self._ignored_states = Ignored("a server's state")
        self._ignored_replies = Ignored("a server's reply")
        self._link = make_link(address, client_id=make_client_id(self._name))
        try:
            self._link.open(connect_timeout)
            self._link.subscribe(self._topics.control_result.filter(client=self._name), self._on_reply, retained=False)
            self._link.subscribe(self._topics.control_state.filter(), self._on_state)
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
    def servers(self) -> dict[str, ProcessStatus]:
        """The servers by name: those that are ready, and those that were lost."""
        with self._changed:
            return {name: state.status for name, state in self._known.servers.items()}

    def ask(
        self, call: Call, body: Mapping[str, Any] | None = None, *, server: str | None = None, timeout: float = 10.0
    ) -> list[ControlReply]:
        """Send a call to one server, or to all, and wait for the replies.

        Args:
            call: What the servers do.
            body: The call's JSON.
            server: Name of the server, or of the edge for `OF_EDGES`; None for all servers.
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
        with self._asking, self._listening(call, server):
            question = self._question = Question(server, timeout)
            self._link.publish(
                question.message(self._topics, self._name, call, body), lambda code: self._on_ack(question, code)
            )
            ends_at = time.monotonic() + timeout
            while not self._wait(question, ends_at - time.monotonic()) and time.monotonic() < ends_at:
                for message in question.again(self._topics, self._name, self._known.servers):
                    with suppress(LinkError):
                        self._link.publish(message)
            with self._changed:
                return question.outcome(self._known.servers, self._name)

    def _wait(self, question: Question, timeout: float) -> bool:
        """Wait for the replies until it is time to ask for them again."""
        with self._changed:
            limit = min(timeout, question.again_s)
            return bool(self._changed.wait_for(lambda: question.is_complete(self._known.servers), limit))

    @contextmanager
    def _listening(self, call: Call, server: str | None) -> Iterator[None]:
        """Receive the replies of an edge, which are published below its own name, while the body runs."""
        if call.operation not in OF_EDGES or server is None:
            yield
            return
        replies = self._topics.edge_reply.filter(client=server)
        self._link.subscribe(replies, self._on_reply, retained=False)
        try:
            yield
        finally:
            with suppress(LinkError):
                self._link.unsubscribe(replies)

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
            if not self._changed.wait_for(lambda: self.servers.get(server) is ProcessStatus.READY, timeout):
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
        return reply.read(_Drained).workers

    def traffic(
        self,
        model: str,
        *,
        server: str | None = None,
        timeout: float = 300.0,
        **order: Unpack[TrafficOrder],
    ) -> list[ControlReply]:
        """Label versions of a model and set the canary's share. When this returns, it holds.

        Args:
            model: Its folder in the servers' repositories.
            server: Name of the server; None for all that have the model.
            timeout: In seconds.
            **order: `stable`, `canary`, `shadow` and the others of `TrafficOrder`; what is left out stays.

        Raises:
            MqinferError: A server failed; its name and the reason are in the message.
        """
        return check_replies(
            self.ask(Call(Operation.TRAFFIC, model), {"parameters": order}, server=server, timeout=timeout)
        )

    def rollback(self, model: str, *, server: str | None = None, timeout: float = 300.0) -> list[ControlReply]:
        """Remove the canary or, where there is none, make the stable version of before the default one again."""
        return check_replies(self.ask(Call(Operation.ROLLBACK, model), server=server, timeout=timeout))

    def close(self) -> None:
        """Disconnect."""
        self._link.close()

    _leave = close

    def _on_ack(self, question: Question, code: int) -> None:
        with self._changed:
            question.acked(code, self._known.servers)
            self._changed.notify_all()

    def _on_state(self, message: Message) -> None:
        found = self._ignored_states.read(ServerState.read, self._topics, message)
        if found is None:
            return
        server, state = found
        with self._changed:
            self._known.put_server(server, state)
            if state and message.retain and self._question:
                self._question.was_ready(state)
            self._changed.notify_all()

    def _on_reply(self, message: Message) -> None:
        with self._changed:
            question = self._question
            try:
                if question and question.replied(message):  # else to a call whose time is over
                    self._changed.notify_all()
            except MqinferError as error:
                self._ignored_replies.add(message.topic, error)

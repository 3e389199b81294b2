"""The supervisor on the broker: announces itself, takes orders and questions, answers each.

The link's thread only hands messages over; one thread reads the repository and answers. What takes long (a model that
loads) is waited for by nobody: the reply goes out when it is through.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from queue import Empty, Full, Queue
from typing import Any

from mqinfer.broker.link import Message, ignore_ack
from mqinfer.broker.presence import Presence
from mqinfer.cloud_worker.serving.options import WorkerOptions
from mqinfer.cloud_worker.serving.worker import LinkMaker
from mqinfer.cloud_worker.supervision.management import Management
from mqinfer.protocol.control import Call, Operation, read_body, read_path
from mqinfer.protocol.errors import BadTopic, LinkError, MqinferError, NotConnected, Rejected
from mqinfer.protocol.states import ServerState, ServerStatus, WorkerState, WorkerStatus
from mqinfer.protocol.topics import EVERY_SERVER, check_name, may_answer

__all__ = ["ControlServer"]

log = logging.getLogger("mqinfer.cloud_worker")
_MOST_WAITING = 256
_JSON = "application/json"


class ControlServer:
    """One server's side of `{root}/control/...`."""

    def __init__(  # noqa: PLR0913 - its parts, and what to do
        self,
        options: WorkerOptions,
        make_link: LinkMaker,
        management: Management,
        *,
        poll: float | None = None,
        models: Sequence[str] = (),
        on_failure: Callable[[], None] = lambda: None,
    ) -> None:
        """Prepare; `start` connects.

        Args:
            options: The server's name, unique on the broker, and its topics.
            make_link: How to reach the broker.
            management: Answers.
            poll: Seconds between two looks at the repository for changes; None for never.
            models: What to look at; empty for all.
            on_failure: Called on the link's thread when there is a `failure`.

        Raises:
            BadTopic: The name breaks the rules, or is the reserved `all`.
        """
        self._name = name = check_name("server", options.name)
        if name == EVERY_SERVER:
            raise BadTopic(f"a server can't be called {name!r}: in topics it stands for every server")
        self._topics = options.topics
        self._management = management
        self._poll = poll
        self._models = models
        self._on_failure = on_failure
        self._presence = Presence(name, self._topics.control_state(name), self._encode_state)
        self._others: dict[str, frozenset[str]] = {}  # the models of other servers' workers
        self._inbox: Queue[Message | None] = Queue(_MOST_WAITING)
        self._thread = threading.Thread(target=self._run, name=f"mqinfer-control-{name}", daemon=True)
        self._link = make_link(self._presence.client_id, self._presence.will, self._on_connection)
        self._presence.attach(self._link, lambda _: on_failure())

    @property
    def failure(self) -> LinkError | None:
        """Why nobody reaches it: its name is another's, or its connection has given up; None while all is well."""
        return self._presence.failure or self._link.failure

    def start(self, timeout: float = 10.0) -> None:
        """Connect, say `ready`, and take orders.

        Raises:
            BrokerUnreachable: No broker answers.
            NotAuthorized: The broker refused the credentials or a subscription.
        """
        try:
            self._link.open(timeout)
            self._link.subscribe(self._topics.worker_states(), self._on_worker)
            for name in (self._name, EVERY_SERVER):
                self._link.subscribe(self._topics.control_filter(name), self._receive)
        except BaseException:
            self._link.close()
            raise
        self._presence.publish(ServerStatus.READY)
        self._thread.start()

    def stop(self) -> None:
        """Say `stopped` and disconnect; what still waits is answered first."""
        self._inbox.put(None)
        self._thread.join()
        self._presence.publish(ServerStatus.STOPPED)
        self._link.close()

    def _on_connection(self, connected: bool) -> None:  # noqa: FBT001  the link's signature
        if connected:
            self._presence.publish()
        elif self._link.failure:
            self._on_failure()

    def _encode_state(self, status: str, incarnation: int) -> bytes:
        return ServerState(self._name, ServerStatus(status), incarnation).to_json()

    def _publish(self, message: Message) -> None:
        try:
            self._link.publish(message, ignore_ack)
        except NotConnected:
            log.info("not connected; nothing is said on %s", message.topic)
        except LinkError as error:
            log.warning("%s", error)

    def _on_worker(self, message: Message) -> None:
        """Note which models other servers serve: their cards are not this one's to take back."""
        try:
            worker = self._topics.parse_worker_state(message.topic)
            state = WorkerState.from_json(message.payload) if message.payload else None
        except MqinferError as error:
            log.info("ignored the state on %s: %s", message.topic, error)
            return
        if state and state.status in {WorkerStatus.READY, WorkerStatus.DRAINING} and not self._is_mine(worker):
            self._others[worker] = frozenset(model.name for model in state.models)
        else:
            self._others.pop(worker, None)

    def _is_mine(self, worker: str) -> bool:
        name, _, number = worker.rpartition(".")
        return name == self._name and number.isdecimal()

    def _receive(self, message: Message) -> None:
        if message.topic == self._topics.control_state(self._name):
            self._presence.receive(message)  # it lies below the same filter
            return
        try:
            self._inbox.put_nowait(message)
        except Full:
            self._fail(message, Rejected(f"server {self._name} has {_MOST_WAITING} requests to answer"))

    # What follows runs on the control thread; replies also on the supervisor's.

    def _run(self) -> None:
        look = None if self._poll is None else time.monotonic()
        while True:
            try:
                message = self._inbox.get(timeout=None if look is None else max(0.0, look - time.monotonic()))
            except Empty:
                self._guarded(self._look)
                look = time.monotonic() + (self._poll or 0.0)
                continue
            if message is None:
                return
            self._guarded(lambda order=message: self._handle(order))  # type: ignore[misc]  # bound now

    def _guarded(self, job: Callable[[], None]) -> None:
        try:
            job()
        except Exception:  # a defect; the next request is answered all the same
            log.exception("server %s could not answer, and goes on", self._name)

    def _look(self) -> None:
        try:
            changed = self._management.poll(self._models)
        except MqinferError as error:
            log.warning("%s", error)
            return
        for model, done in changed.items():
            done.add_done_callback(lambda future, name=model: self._after(name, future))  # type: ignore[misc]

    def _after(self, model: str, done: Future[Any]) -> None:
        """Once a model has changed: say what failed, and take the card back of one that nobody serves any more."""
        if error := done.exception():
            log.warning("model %s: %s", model, error)
        elif not self._management.serves(model) and not any(model in models for models in self._others.values()):
            self._publish(Message(self._topics.card(model), b"", retain=True))

    def _handle(self, message: Message) -> None:
        try:
            call = self._call(message)
            reply = self._management.answer(call, read_body(message.payload))
        except MqinferError as error:
            self._fail(message, error)
            return
        reply.add_done_callback(lambda done: self._finish(message, call, done))

    def _call(self, message: Message) -> Call:
        return read_path(self._topics.parse_control(message.topic).path)

    def _finish(self, message: Message, call: Call, done: Future[Any]) -> None:
        if call.operation is Operation.UNLOAD:
            self._after(call.model, done)
        error = done.exception()
        if error is None:
            self._reply(message, done.result())
        else:
            self._fail(message, error if isinstance(error, MqinferError) else MqinferError(repr(error)))

    def _fail(self, message: Message, error: MqinferError) -> None:
        self._reply(message, {"error": str(error)[:4000], "code": error.code})

    def _reply(self, message: Message, reply: Any) -> None:
        """Answer below the sender's own results, or not at all; every object says which server it is from."""
        try:
            topic = self._reply_topic(message)
        except MqinferError as error:
            log.warning("server %s does not answer a message on %s: %s", self._name, message.topic, error)
            return
        entries = reply if isinstance(reply, list) else [reply]
        marked: Any = [{**entry, "server": self._name} for entry in entries]
        payload = json.dumps(marked if isinstance(reply, list) else marked[0], separators=(",", ":")).encode()
        self._publish(
            Message(
                topic,
                payload,
                content_type=_JSON,
                correlation_data=message.correlation_data,
                user_properties=(("server", self._name),),
            )
        )

    def _reply_topic(self, message: Message) -> str:
        client = self._topics.parse_control(message.topic).client
        topic = message.response_topic or read_body(message.payload).response_topic
        if not isinstance(topic, str) or not may_answer(self._topics, topic, client):
            own = self._topics.control_result(client, "ID")
            raise BadTopic(f"its Response Topic is {str(topic)[:200]!r}; it is to be like {own!r}")
        return topic

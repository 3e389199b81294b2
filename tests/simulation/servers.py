"""Worker processes and the servers that start them again: the product's `Worker` on a model of numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from mqinfer.broker.link import ConnectionHandler, Message
from mqinfer.cloud_worker.serving.options import WorkerOptions
from mqinfer.cloud_worker.serving.pipeline import RunningRequests
from mqinfer.cloud_worker.serving.worker import Worker
from mqinfer.models.loading import LoadedModel
from mqinfer.models.repository.config import DynamicBatching, ModelConfig
from mqinfer.protocol.card import CardParameters, ModelCard
from mqinfer.protocol.datatypes import Array, Datatype
from mqinfer.protocol.errors import ModelFailed, MqinferError, NameTaken, NotConnected
from mqinfer.protocol.states import WorkerState, WorkerStatus, read_any_state
from mqinfer.protocol.topics import Topics
from mqinfer.protocol.types import TensorSpec
from tests.simulation.broker import Broker
from tests.simulation.link import SimulatedLink
from tests.simulation.world import Node, World

__all__ = ["FACTORS", "Flavour", "Process", "Server", "Slot", "answer"]

FACTORS = {"m": 3, "k": 5}
"""Models by name, and what each multiplies with."""
_SPECS = (TensorSpec("x", Datatype.INT64, (-1, 3)),)
_RESTART_S, _LONGEST_RESTART_S = 0.1, 3.0


class Flavour:
    """What a request does to a model: its third number."""

    PLAIN, SLOW, POISON, ENDLESS, FAILING = range(5)


def answer(model: str, version: str, client: int, number: int) -> list[int]:
    """Return what a model answers to a request."""
    return [client, number, FACTORS[model] * number + int(version)]


@dataclass(slots=True)
class Ledger:
    """What really happened to requests, each a client's number and its own.

    Attributes:
        runs: By request and process, how often the model ran it.
        crashes: By request, processes that it ended itself.
        crashed: Links of processes that ended by themselves.
        innocent: Requests that were called poison, since others' crashes fell on them twice.
    """

    runs: Counter[tuple[tuple[int, int], int]] = field(default_factory=Counter)
    crashes: dict[tuple[int, int], set[int]] = field(default_factory=dict)
    crashed: list[SimulatedLink] = field(default_factory=list)
    innocent: int = 0


class NumberModel:
    """A back end whose outputs follow from its inputs; some inputs crash it, some never end."""

    platform, engine, device, precision, concurrency = "simulated", "simulated", "cpu", "fp32", 1

    def __init__(self, process: Process, model: str, version: str, seconds: float) -> None:
        self.inputs = self.outputs = _SPECS
        self._process, self._name, self._version, self._seconds = process, model, version, seconds

    def infer(self, inputs: Mapping[str, Array], outputs: Sequence[str] = ()) -> dict[str, Array]:
        """Run a batch."""
        del outputs
        rows = [(int(client), int(number), int(flavour)) for client, number, flavour in inputs["x"]]
        flavours = {flavour for _, _, flavour in rows}
        process = self._process
        process.began([(client, number) for client, number, _ in rows])
        if Flavour.POISON in flavours:
            process.crash([(client, number) for client, number, flavour in rows if flavour == Flavour.POISON])
        elif Flavour.ENDLESS in flavours:
            process.hang([(client, number) for client, number, flavour in rows if flavour == Flavour.ENDLESS])
        elif Flavour.FAILING in flavours:
            raise ModelFailed("a number that it does not like")
        else:
            process.node.lead += self._seconds * (0.8 + 0.2 * len(rows)) * (20 if Flavour.SLOW in flavours else 1)
            for client, number, _ in rows:
                process.server.ledger.runs[(client, number), process.number] += 1
        found = [answer(self._name, self._version, client, number) for client, number, _ in rows]
        return {"x": np.array(found, np.int64)}

    def close(self) -> None:
        """Do nothing: nothing is held."""


@dataclass(slots=True, eq=False)
class Slot:
    """A worker's name, what it serves, and its process.

    Attributes:
        name: The worker's.
        model: What it serves.
        version: Of it.
        seconds: Of a request.
        rows: Of a batch.
        capacity: Requests at a time.
        batching: As configured.
        process: The one that runs; None while none does.
        delay: Seconds until the next start after a crash.
    """

    name: str
    model: str
    version: str
    seconds: float
    rows: int
    capacity: int
    batching: DynamicBatching | None
    process: Process | None = None
    delay: float = _RESTART_S


class Process:
    """One worker process from its start to its end."""

    def __init__(self, server: Server, slot: Slot, number: int) -> None:
        self.server, self.slot, self.number = server, slot, number
        world = server.world
        self.node = Node(world, f"{slot.name}#{number}", offset=server.node.offset, rate=server.node.rate)
        self.node.leap, self.node.wall = server.node.leap, server.node.wall
        self.incarnation = 0
        self.serves = False
        self.link: SimulatedLink | None = None
        self.running = RunningRequests()
        self.named: tuple[str, ...] = ()  # what it worked on when it ended
        self._worker: Worker | None = None

    def start(self) -> None:
        """Load, connect and serve."""
        slot, name = self.slot, self.slot.model
        backend = NumberModel(self, name, slot.version, slot.seconds)
        card = ModelCard(
            name=name,
            versions=(slot.version,),
            platform=backend.platform,
            inputs=_SPECS,
            outputs=_SPECS,
            parameters=CardParameters(max_batch_size=slot.rows),
        )
        model = LoadedModel(backend, card, ModelConfig(dynamic_batching=slot.batching))
        options = WorkerOptions(slot.name, capacity=slot.capacity, memory_bytes=1 << 16)
        known = slot.seconds if self.server.world.random.random() < 0.7 else 0.0
        worker = self._worker = Worker(
            model, self._connect, options, service_s=known, clock=self.node.clock, running=self.running
        )
        try:
            worker.start()
        except MqinferError as error:
            self.server.world.note(self.node.name, "does not start", error.code)
            is_last = self.slot.process is self
            self.end()
            if is_last:
                self.server.restart(self.slot)
            return
        self.serves = True
        self.server.world.note(self.node.name, "serves", slot.model)
        self._look()

    def _connect(self, client_id: str, will: Message, on_connection: ConnectionHandler) -> SimulatedLink:
        self.incarnation = read_any_state(will.payload).incarnation
        self.link = SimulatedLink(self.server.broker, self.node, client_id, will, on_connection)
        self.link.on_message = self._watch
        return self.link

    def _watch(self, message: Message) -> None:
        """Look soon whether the name is taken, as the process's main thread does twice a second."""
        if message.topic.endswith("/state"):
            self.node.after(0.25, self._look)

    def _look(self) -> None:
        if self._worker is not None and self._worker.failure:
            self.stop(0.0)

    @property
    def is_taken(self) -> bool:
        """Whether it has given its name up."""
        return self._worker is not None and isinstance(self._worker.failure, NameTaken)

    def stop(self, timeout: float = 30.0) -> None:
        """Drain, and start again where nobody else has the name."""
        if self._worker is None or not self.serves:
            return
        self.serves = False
        is_taken = self.is_taken
        self.server.world.note(self.node.name, "drains")
        self._worker.stop(timeout)
        self.server.world.note(self.node.name, "has stopped")
        # Disconnecting needs the process for a moment; then it is gone.
        self.server.world.after(0.2, self.end)
        # The server of the process that took the name starts that one again if it crashed meanwhile.
        if not is_taken or not self.server.has_another(self):
            self.server.restart(self.slot, self.server.world.random.uniform(0, 1))

    def began(self, requests: Sequence[tuple[int, int]]) -> None:
        """See the model run."""
        self.server.world.note(self.node.name, "runs", *requests)

    def crash(self, culprits: Sequence[tuple[int, int]] = ()) -> None:
        """End now, by itself; the server reports it and starts another."""
        if self.node.dead:
            return
        self.named = self.named or self.running.read()
        self._blame(culprits)
        is_taken = self.is_taken
        self.end()
        self._disconnect()
        self.server.report(self)
        if not is_taken:
            self.server.restart(self.slot)

    def hang(self, culprits: Sequence[tuple[int, int]]) -> None:
        """Stand still until the watchdog ends the process."""
        world, self.node.is_stuck = self.server.world, True
        self.named = self.running.read()  # no thread goes on from here, though here the call returns
        world.note(self.node.name, "hangs")
        world.after(world.random.uniform(1, 6), self.crash, culprits)

    def vanish(self) -> None:
        """End with the machine: nobody reports it, and no connection is closed."""
        self._blame(())
        self.end()

    def _blame(self, culprits: Sequence[tuple[int, int]]) -> None:
        ledger, world = self.server.ledger, self.server.world
        world.note(self.node.name, "crashes", *culprits)
        for request in culprits:
            ledger.crashes.setdefault(request, set()).add(self.number)
        if self.link:
            ledger.crashed.append(self.link)

    def _disconnect(self) -> None:
        """Let the system close the socket: what was sent arrives first."""
        if self.link is not None and self.link.socket is not None:
            broker = self.server.broker
            broker.up(self.link.socket, broker.drop, self.link.socket)

    def end(self) -> None:
        """Do nothing from now on."""
        self.node.dead = True
        if self.slot.process is self:
            self.slot.process = None


class Server:
    """A machine with worker processes; it starts them again, and reports those that crashed."""

    def __init__(self, world: World, broker: Broker, name: str, ledger: Ledger, numbers: Counter[str]) -> None:
        self.world, self.broker, self.name, self.ledger = world, broker, name, ledger
        self.node = Node(world, name)
        self.slots: list[Slot] = []
        self.processes: list[Process] = []
        self.report_s: tuple[float, float] = (0.0, 0.05)
        self.unreported = 0.0
        self._numbers = numbers
        self.link = SimulatedLink(broker, self.node, f"{name}~server")

    def start(self) -> None:
        """Connect, and start the processes."""
        self.node.call(self.link.open)
        for slot in self.slots:
            self.launch(slot)

    def launch(self, slot: Slot) -> None:
        """Start a process in a slot, beside one that may still run there."""
        if self.node.dead:
            return
        self._numbers["process"] += 1
        process = slot.process = Process(self, slot, self._numbers["process"])
        self.processes.append(process)
        process.node.call(process.start)

    def has_another(self, process: Process) -> bool:
        """Return whether another process of the same name runs."""
        others = (each for each in self.processes if each is not process and not each.node.dead)
        return any(each.slot is process.slot for each in others)

    def restart(self, slot: Slot, delay: float | None = None) -> None:
        """Start a process in a slot some time later; after crashes later and later."""
        if delay is None:
            delay, slot.delay = slot.delay, min(2 * slot.delay, _LONGEST_RESTART_S)
        loading = self.world.random.uniform(0.05, 0.5)
        self.world.after(delay + loading, self._restart, slot)

    def _restart(self, slot: Slot) -> None:
        if slot.process is None or slot.process.node.dead or not slot.process.serves:
            self.launch(slot)

    def report(self, process: Process) -> None:
        """Publish that a process crashed, some time later, or never."""
        if self.world.random.random() >= self.unreported and process.incarnation:
            self.node.after(self.world.random.uniform(*self.report_s), self._publish, process, 20)

    def _publish(self, process: Process, tries: int) -> None:
        topics = Topics()
        state = WorkerState(process.slot.name, WorkerStatus.CRASHED, process.incarnation, running=process.named)
        try:
            self.link.publish(Message(topics.worker_state(process.slot.name), state.to_json()))
        except NotConnected:
            if tries:
                self.node.after(0.5, self._publish, process, tries - 1)

    def leap(self, seconds: float) -> None:
        """Let the machine's monotonic clock leap forward."""
        for node in self.nodes():
            node.let_leap(seconds)

    def jump(self, seconds: float) -> None:
        """Let the machine's wall clock jump."""
        for node in self.nodes():
            node.wall += seconds

    def nodes(self) -> list[Node]:
        """Return what runs on the machine."""
        return [self.node, *(process.node for process in self.processes if not process.node.dead)]

    def lose_power(self) -> None:
        """End everything; the machine starts again."""
        self.world.note(self.name, "loses power")
        for process in self.processes:
            if not process.node.dead:
                self._hang_up(process.link)
                process.vanish()
        self.node.halted_until = self.world.now + self.world.random.uniform(1, 8)
        for slot in self.slots:
            self.restart(slot, self.node.halted_until - self.world.now + 0.1)

    def _hang_up(self, link: SimulatedLink | None) -> None:
        """Let the broker notice by its keepalive."""
        if link is not None and link.socket is not None:
            wire = link.socket
            wire.is_cut = True
            self.world.after(self.world.random.uniform(5, 15), self.broker.drop, wire)

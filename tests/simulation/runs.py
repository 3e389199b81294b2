"""One run: a world made from a seed, its faults, the quiet time after them, and what must hold at the end."""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from random import Random

from mqinfer.protocol.types import Outcome
from tests.simulation.broker import Broker, Noise
from tests.simulation.clients import Asked, SimulatedClient
from tests.simulation.faults import Faults
from tests.simulation.parts import simulated_parts
from tests.simulation.plan import MILD, Plan, Question, make_plan
from tests.simulation.servers import Flavour, Ledger, Server
from tests.simulation.world import Halted, World, in_world

__all__ = ["Report", "simulate"]

_QUIET_S = 45.0
"""After the faults: connections that hang are noticed, processes are started again, and what is poison has ended."""
_PROBE_S = 20.0
"""Timeout of the requests that are made then."""


@dataclass(slots=True)
class Report:
    """What became of a run.

    Attributes:
        seed: Of the run.
        violations: Rules that were broken, in words.
        trace: What happened.
        steps: Events.
        counts: Of faults, outcomes and others, by name.
    """

    seed: int
    violations: list[str]
    trace: list[str] = field(repr=False)
    steps: int = 0
    counts: Counter[str] = field(default_factory=Counter)

    @property
    def digest(self) -> str:
        """Hash of everything that happened."""
        return hashlib.sha256("\n".join(self.trace).encode()).hexdigest()


def simulate(seed: int, *, kinds: Collection[str] | None = None, traced: bool = False, is_nats: bool = False) -> Report:
    """Run a seed.

    Args:
        seed: Decides everything.
        kinds: Faults that may happen; drawn from the seed where they are not given.
        traced: Whether the trace is returned where nothing was found, too.
        is_nats: Whether the broker is a nats-server.
    """
    world = World(seed)
    with in_world(world), simulated_parts(), _defects(world):
        run = Run(world, kinds, is_nats=is_nats)
        with suppress(Halted):
            run.play()
    trace = [" ".join(map(str, (f"{when:9.4f}", *what))) for when, *what in world.trace]
    return Report(seed, world.violations, trace if traced or world.violations else [], world.steps, run.counts())


@contextmanager
def _defects(world: World) -> Iterator[None]:
    """Take whatever the product logs as an error for a broken rule: it reports defects so."""
    logger = logging.getLogger("mqinfer")
    handler = logging.Handler(logging.ERROR)
    handler.emit = lambda record: world.violate(  # type: ignore[method-assign]  # the whole of a handler
        f"logged as a defect: {record.getMessage()} {record.exc_info and record.exc_info[1]!r}"
    )
    before = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.ERROR)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before[0])
        logger.propagate = before[1]


class Run:
    """The parts of a run."""

    def __init__(self, world: World, kinds: Collection[str] | None = None, *, is_nats: bool = False) -> None:
        self.world = world
        self.random: Random = world.random
        self.plan: Plan = make_plan(world.random, kinds)
        self.ledger = Ledger()
        self.broker = Broker(world, Noise(latency=self.plan.noise.latency), is_nats=is_nats)
        self.broker.masks = "reads along" in self.plan.kinds
        self._numbers: Counter[str] = Counter()
        self.servers = [Server(world, self.broker, f"s{index}", self.ledger, self._numbers) for index in range(2)]
        for number, slot in self.plan.slots:
            self.servers[number].slots.append(slot)
        self.clients: list[SimulatedClient] = []
        self.now_clients: dict[int, SimulatedClient] = {}
        self.faults = Faults(world, self.broker, self.servers, self.clients, self.now_clients, self._start_client)
        world.checks.append(self._check)

    def play(self) -> None:
        """Play all of it."""
        world, plan = self.world, self.plan
        world.note("kinds", *plan.kinds)
        for server in self.servers:
            if "rates" in plan.kinds:
                server.node.rate = self.random.uniform(0.9, 1.1)
            server.node.offset = self.random.uniform(0, 1e5)
            if "late reports" in plan.kinds:
                server.report_s = (0.0, 5.0)
            if "unreported" in plan.kinds:
                server.unreported = self.random.uniform(0.1, 1.0)
            server.start()
        for index in range(len(plan.options)):
            self._start_client(index)
        self.broker.noise = plan.noise
        for at, kind in plan.faults:
            world.at(at, self.faults.happen, kind)
        for number, question in enumerate(plan.questions):
            world.at(question.at, self._ask, number, question)
        world.run(plan.ends)
        self._quieten()
        world.run(plan.ends + _QUIET_S)
        self._probe()
        world.run(world.now + _PROBE_S + 10)
        self._check_end()

    def counts(self) -> Counter[str]:
        """Return what happened, by name."""
        found = Counter({f"fault: {kind}": count for kind, count in self.faults.counts.items()})
        for client in self.clients:
            for asked in client.asked.values():
                for outcome, code in asked.outcomes:
                    found[f"outcome: {code or outcome}"] += 1
            counters = client.requester.counters()
            found["requests"] += counters.submitted
            found["sent again"] += counters.retries
            found["late replies"] += counters.late
            found["damaged"] += counters.malformed
        found["crashes"] += sum(map(len, self.ledger.crashes.values()))
        found["innocent called poison"] += self.ledger.innocent
        for processes in self.ledger.crashes.values():
            found[f"crashes of one request: {len(processes)}"] += 1
        found["processes"] += self._numbers["process"]
        return found

    def _start_client(self, index: int) -> None:
        self._numbers["client"] += 1
        client = SimulatedClient(
            self.world, self.broker, index, self._numbers["client"], self.ledger, self.plan.options[index]
        )
        if "rates" in self.plan.kinds:
            client.node.rate = self.random.uniform(0.9, 1.1)
        self.clients.append(client)
        self.now_clients[index] = client
        client.node.call(client.start)

    def _ask(self, number: int, question: Question) -> None:
        client = self.now_clients[question.client]
        client.node.call(client.ask, number, question.model, question.version, question.flavour, question.timeout)
        if question.cancel_after is not None:
            client.node.after(question.cancel_after, client.cancel, number)

    def _check(self) -> None:
        touched = self.world.touched
        if touched is not None:
            for client in self.clients:
                if client.node is touched:
                    client.check()
            self.world.touched = None

    def _quieten(self) -> None:
        world = self.world
        world.note("faults end")
        self.broker.noise = Noise(latency=self.plan.noise.latency)
        if not self.broker.is_up:
            world.after(0.5, self.broker.start)
        for server in self.servers:
            server.node.halted_until = min(server.node.halted_until, world.now + 1)
            for slot in server.slots:
                slot.delay = 0.1

    def _ensure_broker(self) -> None:
        if not self.broker.is_up:
            self.broker.start()

    def _probe(self) -> None:
        self.world.note("probes")
        delay = 0.0
        for client in self.now_clients.values():
            for number, model in enumerate(self.plan.models * 2):
                probe = partial(client.ask, 1000 + number, model, None, Flavour.PLAIN, _PROBE_S, probe=True)
                client.node.after(delay, probe)
                delay += 0.5  # one after the other: nobody has to wait for another one

    def _check_end(self) -> None:
        world = self.world
        for client in self.clients:
            if client.node.dead:
                continue
            for asked in client.asked.values():
                self._check_asked(client, asked)
            if not client.closed:
                client.node.call(client.close)
            counters = client.requester.counters()
            if counters.pending or counters.in_flight:
                world.violate(f"{client.node.name} still counts {counters}")
            if client.requester.failure:
                world.violate(f"{client.node.name} has failed: {client.requester.failure}")
            bound = 17 + 0.1 * counters.submitted + client.causes
            if counters.retries > bound:
                world.violate(f"{client.node.name} sent again {counters.retries} times, {bound:.0f} are explained")
        for (request, process), count in self.ledger.runs.items():
            if count > 1 and request[1] not in {
                asked.number for asked in self._all_asked(request[0]) if asked.cancelled
            }:
                world.violate(f"process {process} ran request {request[1]} of client {request[0]} {count} times")

    def _check_crashes(self, client: SimulatedClient, asked: Asked) -> None:
        """Check that a request crashed no third worker over a lane; over a model's channel nobody knows who had it."""
        crashed = self.ledger.crashes.get((client.index, asked.number), set())
        links = [each.link for server in self.servers for each in server.processes if each.number in crashed]
        count = sum(link is not None and bytes.fromhex(asked.identity) in link.lane for link in links)
        if count > 2 and set(MILD).issuperset(self.plan.kinds):
            self.world.violate(f"{client.name_of(asked)} crashed {count} workers over their lanes")
        is_blamed = (
            asked.flavour not in {Flavour.POISON, Flavour.ENDLESS} and (Outcome.ERROR, "poison") in asked.outcomes
        )
        if is_blamed and set(MILD).issuperset(self.plan.kinds) and client.index in self._culprits(asked):
            self.world.violate(f"{client.name_of(asked)} ended as poison, though no process crashed on it")

    def _culprits(self, asked: Asked) -> set[int]:
        """Return the clients whose requests ended the processes that had this one: nobody keeps two clients' apart."""
        links = [(each.number, each.link) for server in self.servers for each in server.processes]
        had = {number for number, link in links if link is not None and bytes.fromhex(asked.identity) in link.given}
        return {culprit for (culprit, _), crashed in self.ledger.crashes.items() if crashed & had}

    def _all_asked(self, index: int) -> list[Asked]:
        return [asked for client in self.clients if client.index == index for asked in client.asked.values()]

    def _check_asked(self, client: SimulatedClient, asked: Asked) -> None:
        self._check_crashes(client, asked)
        if len(asked.outcomes) != 1:
            self.world.violate(f"{client.name_of(asked)} has {len(asked.outcomes)} outcomes at the end")
        elif asked.probe and asked.outcomes[0][0] is not Outcome.OK:
            self.world.violate(f"{client.name_of(asked)}, asked in quiet times, ended as {asked.outcomes[0]}")

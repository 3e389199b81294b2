"""Faults that happen at a time: connections, the broker, processes, machines and clocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial

from tests.simulation.broker import Broker, Wire
from tests.simulation.clients import SimulatedClient
from tests.simulation.link import SimulatedLink
from tests.simulation.servers import Process, Server
from tests.simulation.world import Node, World

__all__ = ["KINDS", "Faults"]


class Faults:
    """Chooses what each fault befalls.

    Args:
        world: The run.
        broker: The broker.
        servers: The machines with workers.
        clients: All clients, also those that have ended.
        now: Those that are used, by their index.
        start_client: Starts another client of an index.

    Attributes:
        counts: How many of each kind there were.
    """

    def __init__(
        self,
        world: World,
        broker: Broker,
        servers: list[Server],
        clients: list[SimulatedClient],
        now: dict[int, SimulatedClient],
        start_client: Callable[[int], None],
    ) -> None:
        self.world, self.broker, self.random = world, broker, world.random
        self.counts: Counter[str] = Counter()
        self._servers, self._clients, self._now, self._start_client = servers, clients, now, start_client

    def happen(self, kind: str) -> None:
        """Let a fault of a kind happen."""
        self.counts[kind] += 1
        self.world.note("fault", kind)
        KINDS[kind](self)

    def _wire(self) -> Wire | None:
        wires = list(self.broker.wires.values())
        return self.random.choice(wires) if wires else None

    def _cut(self) -> None:
        if wire := self._wire():
            wire.is_cut = True
            self.world.note("cut", wire.peer.client_id.partition("~")[0])
            self.world.after(self.random.choice((0.0, 0.01, 1.0)) * self.random.random(), wire.peer.lost, wire)
            self.world.after(self.random.choice((0.0, 0.01, 1.0)) * self.random.random(), self.broker.drop, wire)

    def _half_open(self) -> None:
        if wire := self._wire():
            wire.is_cut = True
            self.world.note("half open", wire.peer.client_id.partition("~")[0])
            self.world.after(self.random.uniform(1, 10), wire.peer.lost, wire)
            self.world.after(self.random.uniform(2, 15), self.broker.drop, wire)

    def _stall(self) -> None:
        if wire := self._wire():
            wire.hangs_until = self.world.now + self.random.choice((0.1, 1.0, 5.0)) * self.random.random()
            self.world.note("stall", wire.peer.client_id.partition("~")[0], "until", wire.hangs_until)

    def _take_over(self) -> None:
        if wire := self._wire():
            self.world.note("takeover of", wire.peer.client_id.partition("~")[0])
            rogue = SimulatedLink(self.broker, Node(self.world, "rogue"), wire.peer.client_id)
            rogue.open()
            self.world.after(self.random.uniform(0, 1), rogue.close)

    def _fill(self) -> None:
        if wire := self._wire():
            wire.full_until = self.world.now + self.random.uniform(0.1, 3)

    def _end_broker(self, *, gently: bool = False) -> None:
        if self.broker.is_up:
            self.broker.stop(gently=gently)
            self.world.after(self.random.choice((0.1, 4.0)) * self.random.random(), self.broker.start)

    def _processes(self) -> list[Process]:
        return [each for server in self._servers for each in server.processes if not each.node.dead and each.serves]

    def _kill_worker(self) -> None:
        if found := self._processes():
            self.random.choice(found).crash()

    def _halt_worker(self) -> None:
        if found := self._processes():
            self._halt(self.random.choice(found).node)

    def _halt_client(self) -> None:
        self._halt(self.random.choice(self._clients).node)

    def _halt(self, node: Node) -> None:
        seconds = self.random.choice((0.1, 1.0, 5.0)) * self.random.random()
        node.halted_until = max(node.halted_until, self.world.now + seconds)
        self.world.note(node.name, "is halted for", seconds)

    def _leap(self) -> None:
        seconds = self.random.choice((0.1, 2.0, 10.0, 3600.0)) * self.random.random()
        machines: list[Server | SimulatedClient] = [*self._servers, *self._clients]
        machine = self.random.choice(machines)
        self.world.note(machine.node.name, "leaps", seconds)
        if isinstance(machine, Server):
            machine.leap(seconds)
        elif not machine.node.dead:
            machine.node.let_leap(seconds)

    def _jump(self) -> None:
        self.random.choice(self._servers).jump(self.random.uniform(-3600, 3600))

    def _lose_power(self) -> None:
        self.random.choice(self._servers).lose_power()

    def _drain(self) -> None:
        found = self._processes()
        if found and self.world.depth < 6:
            process = self.random.choice(found)
            process.node.call(process.stop)

    def _twin(self) -> None:
        if found := self._processes():
            process = self.random.choice(found)
            process.server.launch(process.slot)

    def _kill_client(self) -> None:
        index = self.random.choice(sorted(self._now))
        client = self._now[index]
        client.kill()
        self._start_client(index)

    def _close_client(self) -> None:
        index = self.random.choice(sorted(self._now))
        client = self._now[index]
        client.node.call(client.close)
        if client.closed:
            self._start_client(index)


KINDS: dict[str, Callable[[Faults], None]] = {
    "cut": Faults._cut,
    "half open": Faults._half_open,
    "stall": Faults._stall,
    "takeover": Faults._take_over,
    "full queue": Faults._fill,
    "kill broker": Faults._end_broker,
    "stop broker": partial(Faults._end_broker, gently=True),
    "kill worker": Faults._kill_worker,
    "halt worker": Faults._halt_worker,
    "halt client": Faults._halt_client,
    "leap": Faults._leap,
    "wall clock": Faults._jump,
    "power": Faults._lose_power,
    "drain": Faults._drain,
    "twin": Faults._twin,
    "kill client": Faults._kill_client,
    "close client": Faults._close_client,
}
"""By the kind of a fault: lets it happen."""

"""Clients: the product's `Requester` on a simulated link, and the callers' books about each request."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from mqinfer.broker.link import ConnectionHandler, Message, ReasonCode
from mqinfer.client.options import ClientOptions
from mqinfer.client.request import InferOptions, make_request
from mqinfer.client.requester import Requester
from mqinfer.client.result import InferResult
from mqinfer.protocol.errors import BrokerUnreachable, Cancelled, Superseded
from mqinfer.protocol.states import WorkerState
from mqinfer.protocol.topics import Topics
from mqinfer.protocol.types import Outcome
from tests.simulation.broker import Broker
from tests.simulation.link import SimulatedLink
from tests.simulation.servers import Flavour, Ledger, answer
from tests.simulation.world import Node, World

__all__ = ["Asked", "SimulatedClient"]

_TICK_S = 0.02
"""An outcome comes so long after its deadline at the latest, while the process runs."""


@dataclass(slots=True, eq=False)
class Asked:
    """A request as its caller knows it.

    Attributes:
        number: The client's own.
        model: What was asked.
        version: The same.
        flavour: What it does to the model.
        submitted: By the client's clock.
        deadline: By the client's clock.
        probe: Whether it was asked after all faults had ended.
        identity: The request's id.
        cancelled: Whether the caller cancelled it.
        outcomes: What came back.
        ended: When, by the client's clock.
    """

    number: int
    model: str
    version: str | None
    flavour: int
    submitted: float
    deadline: float
    probe: bool
    identity: str = ""
    cancelled: bool = False
    outcomes: list[tuple[Outcome, str]] = field(default_factory=list)
    ended: float = 0.0


class SimulatedClient:
    """One client process.

    Attributes:
        node: Its process.
        asked: Its requests by number.
        requester: The product's.
        link: Its connection.
        closed: Whether it accepts no requests: not connected for the first time yet, closed or killed.
        causes: Publications that something other than silence or damage may have caused, as far as it was told.
    """

    def __init__(
        self, world: World, broker: Broker, index: int, life: int, ledger: Ledger, options: ClientOptions
    ) -> None:
        self.world, self.broker, self.index, self.ledger, self.options = world, broker, index, ledger, options
        random = world.random
        self.node = Node(world, f"c{index}.{life}", offset=random.uniform(0, 1e5))
        self.asked: dict[int, Asked] = {}
        self.open: dict[int, Asked] = {}
        self.causes = 0
        self.closed = True
        self.states: dict[str, tuple[str, int]] = {}
        self.node.call(self._make)

    def _make(self) -> None:
        self.requester = Requester(self._connect, f"c{self.index}", Topics(), self.options, self.node.clock)

    def _connect(self, on_connection: ConnectionHandler) -> SimulatedLink:
        def count(connected: bool) -> None:  # noqa: FBT001  the link's signature
            self.causes += 0 if connected else self.requester.counters().in_flight
            on_connection(connected)

        self.link = SimulatedLink(self.broker, self.node, f"c{self.index}~{self.node.name}", None, count)
        self.link.on_ack, self.link.on_message = self._count_ack, self._count_message
        return self.link

    def _count_ack(self, code: int, message: Message) -> None:
        del message
        self.causes += code != ReasonCode.SUCCESS

    def _count_message(self, message: Message) -> None:
        """Count what may cause requests to be sent again."""
        if message.topic.endswith("/state"):
            if not len(message.payload):
                return
            state = WorkerState.from_json(message.payload)
            known = self.states.get(state.worker)
            self.states[state.worker] = now = str(state.status), state.incarnation
            if known not in {None, now}:
                self.causes += self.requester.counters().in_flight
        else:
            self.causes += b"rejected" in bytes(message.payload) and b"corrupted" not in bytes(message.payload)

    def start(self) -> None:
        """Connect; a program tries until that is possible."""
        try:
            self.requester.open()
        except BrokerUnreachable:
            self.node.after(0.2, self.start)
        else:
            self.closed = False

    def ask(
        self, number: int, model: str, version: str | None, flavour: int, timeout: float, *, probe: bool = False
    ) -> None:
        """Submit a request."""
        if self.closed or self.requester.counters().pending >= self.options.max_pending:
            return
        now = self.node.clock()
        asked = self.asked[number] = Asked(number, model, version, flavour, now, now + timeout, probe)
        self.open[number] = asked
        options: InferOptions = {} if version is None else {"version": version}
        if number % 5 == 0:
            options["output_encoding"] = "lz4"
        inputs = {"x": np.array([[self.index, number, flavour]], np.int64)}
        self.world.note(self.node.name, "asks", number, model, version, flavour, round(timeout, 3))
        request = make_request(model, inputs, options)
        asked.identity = self.requester.submit(request, timeout, lambda result: self._settle(asked, result))

    def cancel(self, number: int) -> None:
        """Cancel a request."""
        asked = self.asked.get(number)
        if asked is None or self.closed:
            return
        if number % 4 == 1:
            self._supersede(asked.model)
            return
        had = bool(asked.outcomes)
        asked.cancelled = True
        self.world.note(self.node.name, "cancels", number)
        found = self.requester.cancel(asked.identity, Superseded("newer") if number % 2 else Cancelled("by the caller"))
        if found == had:
            self.world.violate(f"cancel of {self.name_of(asked)} returned {found}, though it had an outcome: {had}")

    def _supersede(self, model: str) -> None:
        """Let a newer frame take the place of one of a model's requests that no worker works on."""
        before = [each for each in self.open.values() if each.model == model]
        self.world.note(self.node.name, "supersedes one of", len(before))
        found = self.requester.supersede([each.identity for each in before])
        ended = [each for each in before if each.outcomes]
        superseded = [each for each in ended if each.outcomes[0][0] is Outcome.SUPERSEDED]
        for each in superseded:
            each.cancelled = True
        others = [each for each in ended if each not in superseded]  # whose time the same look at the clock found over
        if len(superseded) != found or any(each.deadline > each.ended for each in others):
            self.world.violate(f"superseding returned {found}, and {list(map(self.name_of, ended))} ended")

    def close(self) -> None:
        """Close it: everything pending ends."""
        if self.closed:
            return
        self.closed = True
        self.world.note(self.node.name, "closes")
        self.requester.close()
        if self.open:
            self.world.violate(f"{self.node.name} is closed, and {sorted(self.open)} have no outcome")

    def kill(self) -> None:
        """End the process: nobody waits for its outcomes any more."""
        self.closed = True
        self.world.note(self.node.name, "is killed")
        self.node.dead = True
        if self.link.socket is not None:
            self.broker.up(self.link.socket, self.broker.drop, self.link.socket)

    def check(self) -> None:
        """Check what holds at any time."""
        if self.node.dead:
            return
        counters = self.requester.counters()
        if counters.in_flight > self.options.window:
            self.world.violate(f"{self.node.name} has {counters.in_flight} in flight, above {self.options.window}")
        if counters.in_flight and not self.link.connected:
            self.world.violate(f"{self.node.name} has {counters.in_flight} in flight without a connection")
        if counters.submitted != counters.pending + sum(counters.outcomes.values()):
            self.world.violate(f"the counters of {self.node.name} don't add up: {counters}")
        if counters.pending != len(self.open):
            self.world.violate(
                f"{self.node.name} counts {counters.pending} pending, its callers wait for {sorted(self.open)}"
            )
        if self.world.now < max(self.node.halted_until, self.node.leapt_at) + 0.001:
            return  # its timer has not run since
        now = self.node.clock()
        for asked in self.open.values():
            if asked.deadline + _TICK_S < now:
                self.world.violate(
                    f"{self.name_of(asked)} has no outcome {now - asked.deadline:.3f} s after its deadline"
                )

    def name_of(self, asked: Asked) -> str:
        """Return a request's name in words."""
        return f"request {asked.number} of {self.node.name}"

    def _settle(self, asked: Asked, result: InferResult) -> None:
        code = result.error.code if result.error else ""
        asked.outcomes.append((result.outcome, code))
        asked.ended = self.node.clock()
        self.open.pop(asked.number, None)
        self.world.note(self.node.name, "ends", asked.number, str(result.outcome), code, result.attempts, result.worker)
        if len(asked.outcomes) > 1:
            self.world.violate(f"{self.name_of(asked)} has two outcomes: {asked.outcomes}")
        if result.id != asked.identity and asked.identity:
            self.world.violate(f"{self.name_of(asked)} got the outcome of {result.id}")
        if result.outcome is Outcome.OK:
            self._check_right(asked, result)
        if code == "poison":
            self._check_poison(asked, result.error.message if result.error else "")
        if result.outcome is Outcome.EXPIRED and asked.deadline - asked.ended > 0.01 and self.node.leap == 0.0:
            self.world.note("expired early", asked.deadline - asked.ended)

    def _check_right(self, asked: Asked, result: InferResult) -> None:
        found = {name: array.tolist() for name, array in result.outputs.items()}
        right = [answer(asked.model, "1", self.index, asked.number)]
        if found != {"x": right} or result.model_name != asked.model or result.model_version != "1":
            self.world.violate(
                f"{self.name_of(asked)} for {asked.model}/{asked.version} ended ok with {found} of {result.model_name}/"
                f"{result.model_version} from {result.worker}, expected {right}"
            )
        if asked.flavour in {Flavour.POISON, Flavour.ENDLESS, Flavour.FAILING}:
            self.world.violate(f"{self.name_of(asked)} ended ok, which no model can answer")

    def _check_poison(self, asked: Asked, why: str) -> None:
        """Check that two processes crashed to which the broker had sent it."""
        identity = bytes.fromhex(asked.identity)
        crashes = sum(identity in peer.given for peer in self.ledger.crashed)
        if self.broker.masks:
            return  # where somebody reads along, the broker acknowledges also what it sends to nobody
        if crashes < 2:
            self.world.violate(f"{self.name_of(asked)} ended as poison ({why}), though {crashes} processes crashed")
        elif asked.flavour not in {Flavour.POISON, Flavour.ENDLESS}:
            self.ledger.innocent += 1

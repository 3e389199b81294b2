"""One name, one process: who asks for a name that is in use is refused, and of several that have it one remains."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from queue import SimpleQueue
from random import Random
from threading import Barrier

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqinfer.broker import MemoryBroker, MemoryLink
from mqinfer.broker import presence as presence_module
from mqinfer.broker.link import Message, MessageHandler, ReasonCode
from mqinfer.broker.presence import Presence, make_client_id, new_incarnation, reads_back
from mqinfer.protocol.errors import NameTaken
from mqinfer.protocol.states import read_any_state
from tests.patience import PATIENCE_S, wait_until

TOPIC = "mqinfer/v1/workers/w/state"


def encode(status: str, incarnation: int) -> bytes:
    """Encode the least that a state holds."""
    return json.dumps({"boot": incarnation, "status": status}).encode()


def state(incarnation: int, status: str = "ready", *, retain: bool = False) -> Message:
    """What a process publishes under the name."""
    return Message(TOPIC, encode(status, incarnation), retain=retain)


class Holder:
    """One process that has the name, on a link of its own."""

    def __init__(self, broker: MemoryBroker, incarnation: int) -> None:
        self.published = 0
        self.taken: list[NameTaken] = []
        self.presence = Presence("w", TOPIC, self._encode, incarnation=incarnation)
        self.link = MemoryLink(broker, client_id=self.presence.client_id, on_connection=self._on_connection)
        self.presence.attach(self.link, self.taken.append)
        self.presence.publish("ready")  # with the first connection
        self.presence.watch()
        self.published = 0

    def _encode(self, status: str, incarnation: int) -> bytes:
        self.published += 1
        return encode(status, incarnation)

    def _on_connection(self, connected: bool) -> None:  # noqa: FBT001  the link's signature
        if connected:
            self.presence.publish()


def test_a_later_start_has_a_larger_number() -> None:
    """Of two starts the later one has at least the number of the earlier one."""
    assert new_incarnation() <= new_incarnation()


def test_nobody_can_guess_a_client_id() -> None:
    """It begins with the name and holds 64 random bits, whatever else is equal; a process keeps its own."""
    presences = [Presence("w", TOPIC, encode, incarnation=255) for _ in range(100)]
    assert [presence.client_id for presence in presences] == [presence.client_id for presence in presences]
    ids = {presence.client_id for presence in presences} | {make_client_id("w") for _ in range(100)}
    assert len(ids) == 200
    secrets = [client_id.removeprefix("w~") for client_id in ids]
    assert {len(bytes.fromhex(secret)) for secret in secrets} == {8}
    for bit in range(64):  # each of the bits is 0 in some and 1 in others
        assert {int(secret, 16) >> bit & 1 for secret in secrets} == {0, 1}


@pytest.mark.parametrize("message", [state(9, retain=True), Message(TOPIC, b"{"), state(5)])
def test_states_without_effect(message: Message) -> None:
    """What the broker kept, what can't be read, and the process's own state: nothing follows."""
    holder = Holder(MemoryBroker(), 5)
    holder.presence.receive(message)
    assert holder.published == 0
    assert holder.taken == []
    assert holder.presence.failure is None


@pytest.mark.parametrize(
    "message", [state(4), state(4, "lost"), state(9, "lost"), state(9, "stopped"), Message(TOPIC, b"")]
)
def test_the_last_state_is_this_ones(message: Message) -> None:
    """Neither a process that started earlier nor the will of one that is gone stands as the state of the name."""
    broker = MemoryBroker()
    with ExitStack() as stack:
        holder = Holder(broker, 5)
        stack.callback(holder.link.close)
        holder.link.open()
        assert holder.published == 1
        holder.presence.receive(message)
        assert holder.published == 2
        assert holder.taken == []


def test_nothing_is_published_without_a_status() -> None:
    """Before the first status, after `withdraw`, and once the name is another's; the PUBACK's code is passed on."""
    codes: list[int] = []
    presence = Presence("w", TOPIC, encode, incarnation=5, on_ack=codes.append)
    broker = MemoryBroker()
    link = MemoryLink(broker, client_id=presence.client_id, will=presence.will)
    presence.attach(link)
    presence.watch()
    with ExitStack() as stack:
        stack.callback(link.close)
        link.open()
        presence.publish()
        presence.publish("ready")
        presence.withdraw()
        presence.publish()
        presence.publish("ready")
        presence.receive(state(9))
        presence.publish("stopped")
        link.settle()
        assert codes == [ReasonCode.SUCCESS] * 2
        assert not presence.is_refused()
        assert isinstance(presence.failure, NameTaken)


def test_a_process_that_ends_leaves_no_state() -> None:
    """It publishes `stopped` for those who listen, and removes what the broker keeps; another of the name keeps its."""
    broker = MemoryBroker()
    elder, younger = Holder(broker, 1), Holder(broker, 2)
    watcher, seen = MemoryLink(broker, client_id="watcher"), list[bytes]()
    late, kept = MemoryLink(broker, client_id="late"), list[bytes]()
    with ExitStack() as stack:
        for link in (elder.link, watcher, younger.link, late):
            stack.callback(link.close)
            link.open()
            settle(elder, younger)
            if link is watcher:
                link.subscribe(TOPIC, lambda message: seen.append(bytes(message.payload)))
        elder.presence.end()  # it has lost the name, so it removes nothing
        younger.presence.receive(Message(TOPIC, b""))  # as an earlier release would
        younger.presence.end()
        younger.presence.end()
        settle(elder, younger)
        watcher.settle()
        assert [b'"stopped"' in payload for payload in seen[-2:]] == [True, False]
        assert seen[-1] == b""
        assert seen.count(b"") == 1
        late.subscribe(TOPIC, lambda message: kept.append(bytes(message.payload)))
        late.settle()
        assert kept == []


def test_a_message_to_oneself() -> None:
    """It comes back where the topic may be read, and leaves no subscription behind."""
    link = MemoryLink(MemoryBroker(), client_id="w")
    codes: list[int] = []
    with ExitStack() as stack:
        stack.callback(link.close)
        link.open()
        assert reads_back(link, "t")
        link.publish(Message("t", b""), codes.append)
        link.settle()
    assert codes == [ReasonCode.NO_MATCHING_SUBSCRIBERS]


@given(st.permutations([1, 2, 3]))
def test_whatever_the_order(incarnations: list[int]) -> None:
    """Of several on one broker the one with the largest number stays, each other ends once, and publishing ends."""
    broker = MemoryBroker()
    with ExitStack() as stack:
        holders: dict[int, Holder] = {}
        for incarnation in incarnations:
            holder = holders[incarnation] = Holder(broker, incarnation)
            stack.callback(holder.link.close)
            holder.link.open()
            settle(*holders.values())
        taken = {incarnation: len(holder.taken) for incarnation, holder in holders.items()}
        assert taken == {1: 1, 2: 1, 3: 0}
        assert holders[3].published <= 3


def test_an_elder_that_comes_back() -> None:
    """It was cut off while another took its name: on its return it receives the other's state and gives the name up."""
    broker = MemoryBroker()
    elder, younger = Holder(broker, 1), Holder(broker, 2)
    with ExitStack() as stack:
        stack.callback(elder.link.close)
        stack.callback(younger.link.close)
        elder.link.open()
        elder.link.drop()
        younger.link.open()
        settle(elder, younger)
        assert elder.taken == []
        elder.link.restore()
        settle(elder, younger)
        assert (len(elder.taken), len(younger.taken)) == (1, 0)


def settle(*holders: Holder) -> None:
    """Let each link hand out what waits, until what follows from it is handed out too."""
    for _ in range(3):
        for holder in holders:
            holder.link.settle()


def test_two_processes_that_drain_do_not_answer_each_other() -> None:
    """A later one that leaves is answered once it has stopped; answered before, both would answer without end."""
    earlier, later = Holder(MemoryBroker(), 5), Holder(MemoryBroker(), 9)
    earlier.presence.receive(state(9, "draining"))
    assert earlier.published == 0
    later.presence.receive(state(5, "draining"))
    assert later.published == 1
    for number, status in enumerate(("stopped", "lost"), 1):
        earlier.presence.receive(state(9, status))
        assert earlier.published == number
    assert earlier.presence.failure is None


ADVICE = "use --name"


class Claimant(Holder):
    """A process that asks before it takes the name, as edges and servers do."""

    def __init__(self, broker: MemoryBroker, incarnation: int, *, take_over: bool = False) -> None:
        self.published = 0
        self.taken: list[NameTaken] = []
        self.presence = Presence("w", TOPIC, self._encode, incarnation=incarnation)
        self.link = MemoryLink(
            broker,
            client_id=self.presence.client_id,
            will=self.presence.will,
            on_connection=self._on_connection,
        )
        self.presence.attach(self.link, self.taken.append)
        self._take_over = take_over
        self.published = 0  # the will does not count

    def _encode(self, status: str, incarnation: int) -> bytes:
        self.published += 1
        return json.dumps({"boot": incarnation, "status": status, "take_over": self.presence.take_over}).encode()

    def start(self) -> Claimant:
        """Connect, ask, and publish `ready`."""
        self.link.open()
        try:
            self.presence.claim(ADVICE, take_over=self._take_over)
        except BaseException:
            self.link.close()
            raise
        self.presence.publish("ready")
        return self


def retained(broker: MemoryBroker) -> tuple[int, str]:
    """Read the state that the broker keeps of the name."""
    states: SimpleQueue[Message] = SimpleQueue()
    with closing(MemoryLink(broker, client_id="reader")) as link:
        link.open()
        link.subscribe(TOPIC, states.put)
        state = read_any_state(states.get(timeout=PATIENCE_S).payload)
        return state.incarnation, state.status


def fails(claimant: Claimant) -> str:
    """Start, and return why the name was refused."""
    with pytest.raises(NameTaken) as refused:
        claimant.start()
    return str(refused.value)


@pytest.mark.parametrize("newcomers", [(6, 7, 8), (4, 3, 2)])
def test_who_works_is_not_ended(newcomers: tuple[int, ...]) -> None:
    """Newcomers, as of a restart loop, are refused one after the other, whichever clock is ahead; the state stays."""
    broker = MemoryBroker()
    with closing(Claimant(broker, 5).start().link) as link:
        for incarnation in newcomers:
            assert "another process has the name 'w'; use --name" in fails(Claimant(broker, incarnation))
        link.settle()
        assert retained(broker) == (5, "ready")
        link.drop()  # its own reconnect is nobody's business
        link.restore()
        link.settle()
        assert retained(broker) == (5, "ready")
        assert "another process" in fails(Claimant(broker, 9))


def test_taking_over() -> None:
    """Where the owner asks for it the newcomer takes the name, and the earlier process ends."""
    broker = MemoryBroker()
    elder = Claimant(broker, 5).start()
    with closing(elder.link), closing(Claimant(broker, 6, take_over=True).start().link):
        wait_until(lambda: len(elder.taken) == 1)
        elder.presence.publish("stopped")
        assert retained(broker) == (6, "ready")


@pytest.mark.parametrize(
    ("take_over", "winner", "words"),
    [(False, 5, "has had the name for longer, and is back; use --name"), (True, 6, "took the name over; use --name")],
)
def test_both_were_cut_off_from_each_other(winner: int, words: str, *, take_over: bool) -> None:
    """A process took the name while the other one had no connection: who was first goes on, unless it was taken over.

    So a service that is started again and again while the broker restarts does not end the one that works.
    """
    broker = MemoryBroker()
    elder = Claimant(broker, 5).start()
    elder.link.drop()
    younger = Claimant(broker, 6, take_over=take_over).start()
    elder.link.restore()
    with closing(elder.link), closing(younger.link):
        wait_until(lambda: len(elder.taken + younger.taken) == 1)
        settle(elder, younger)
        (loser,) = [each for each in (elder, younger) if each.presence.incarnation != winner]
        assert [words in str(error) for error in loser.taken] == [True]
        assert retained(broker) == (winner, "ready")


@given(st.permutations([1, 2, 3, 4]), st.sets(st.integers(1, 4)))
def test_whoever_meets_exactly_one_remains(order: list[int], taking_over: set[int]) -> None:
    """Of all that have the name the last to take over keeps it, else the first to start, whoever is back first."""
    broker = MemoryBroker()
    with ExitStack() as stack:
        claimants = {number: Claimant(broker, number, take_over=True) for number in order}
        for number, claimant in claimants.items():
            stack.callback(claimant.link.close)
            claimant.start()
            claimant.presence.take_over = number in taking_over
            claimant.link.drop()
        for claimant in claimants.values():
            claimant.link.restore()
            settle(*claimants.values())
        left = [number for number, claimant in claimants.items() if claimant.presence.failure is None]
        assert left == [max(taking_over, default=1)]
        assert all(len(claimants[number].taken) == 1 for number in claimants if number not in left)


@pytest.mark.parametrize("status", ["lost", "stopped", "crashed"])
def test_a_name_that_was_left(status: str) -> None:
    """It is free at once: a service that is started again takes it without waiting."""
    broker = MemoryBroker()
    with closing(MemoryLink(broker, client_id="earlier")) as link:
        link.open()
        link.publish(state(9, status, retain=True))
        with closing(Claimant(broker, 5).start().link):
            assert retained(broker) == (5, "ready")


def test_a_process_that_vanished(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is kept as `ready` by a broker that was away when it ended: nobody answers, so the name is free."""
    monkeypatch.setattr(presence_module, "_ANSWER_S", 0.1)
    broker = MemoryBroker()
    with closing(MemoryLink(broker, client_id="earlier")) as link:
        link.open()
        link.publish(state(9, retain=True))
        with closing(Claimant(broker, 10).start().link):
            assert retained(broker) == (10, "ready")


def test_the_will_ends_the_wait() -> None:
    """The broker notices while a newcomer waits for an answer: the name is free at once."""
    broker = MemoryBroker()
    presence = Presence("w", TOPIC, encode, incarnation=5)
    earlier = MemoryLink(broker, client_id="earlier", will=presence.will)
    earlier.open()
    earlier.publish(state(5, retain=True))
    newcomer = Claimant(broker, 6)
    with closing(newcomer.link), closing(earlier), ThreadPoolExecutor(1) as pool:
        started = pool.submit(newcomer.start)
        wait_until(lambda: newcomer.published == 1)  # it has asked
        earlier.drop()
        started.result(2.0)  # less than it waits for an answer
        assert retained(broker) == (6, "ready")


@pytest.mark.parametrize("round_", range(20))
def test_a_race_leaves_exactly_one(round_: int) -> None:
    """Eight that start at the same time: one has the name in the end, and each other one was refused or has ended."""
    broker = MemoryBroker()
    incarnations = Random(round_).sample(range(1, 100), 8)  # noqa: S311 - an order, not a secret
    claimants = [Claimant(broker, incarnation) for incarnation in incarnations]
    together = Barrier(len(claimants))

    def start(claimant: Claimant) -> None:
        together.wait(PATIENCE_S)
        with suppress(NameTaken):
            claimant.start()

    with ExitStack() as stack, ThreadPoolExecutor(len(claimants)) as pool:
        for claimant in claimants:
            stack.callback(claimant.link.close)
        list(pool.map(start, claimants))
        wait_until(lambda: len([each for each in claimants if each.presence.failure is None]) <= 1)
        (winner,) = [each for each in claimants if each.presence.failure is None]
        wait_until(lambda: retained(broker) == (winner.presence.incarnation, "ready"))  # it publishes its state again


def test_asking_leaves_no_trace() -> None:
    """What a claim publishes is not retained, and the process that is refused publishes no will."""
    broker = MemoryBroker()
    seen: list[tuple[str, bool]] = []
    with closing(Claimant(broker, 5).start().link), closing(MemoryLink(broker, client_id="reader")) as reader:
        reader.open()
        reader.subscribe(TOPIC, lambda message: seen.append((read_any_state(message.payload).status, message.retain)))
        fails(Claimant(broker, 6))
        wait_until(lambda: len(seen) >= 3)
        assert seen == [("ready", True), ("claiming", False), ("ready", False)]
        assert retained(broker) == (5, "ready")


def test_a_holder_that_answers_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its retained state comes while the newcomer still subscribes, its answer after the question came back."""
    broker = MemoryBroker()
    newcomer = Claimant(broker, 6)
    subscribe = newcomer.link.subscribe

    def subscribe_slowly(topic: str, handler: MessageHandler, *, retained: bool = True) -> None:
        subscribe(topic, handler, retained=retained)
        newcomer.link.settle()  # Mosquitto's SUBACK and what it had kept often come in one piece

    monkeypatch.setattr(newcomer.link, "subscribe", subscribe_slowly)
    with closing(MemoryLink(broker, client_id="holder")) as holder, ThreadPoolExecutor(1) as pool:
        holder.open()
        holder.publish(state(5, retain=True))
        started = pool.submit(newcomer.start)
        wait_until(lambda: newcomer.published > 0)  # it has asked
        newcomer.link.settle()
        holder.publish(state(5, retain=True))
        with pytest.raises(NameTaken):
            started.result(10)

"""What a seed decides: how many clients, workers and requests, which kinds of faults there may be, and when.

Each run has a random subset of the kinds (swarm testing: Groce et al., ISSTA 2012): a fault that hides the effect of
another one is missing in half of the runs.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from random import Random

from mqinfer.client.options import ClientOptions
from mqinfer.models.repository.config import DynamicBatching
from tests.simulation.broker import Noise
from tests.simulation.faults import KINDS
from tests.simulation.servers import Flavour, Slot

__all__ = ["MILD", "NOISES", "Plan", "Question", "make_plan"]

NOISES: dict[str, tuple[float, float]] = {
    "slow": (0.02, 0.3),
    "dropped": (0.01, 0.3),
    "doubled": (0.02, 0.4),
    "unacknowledged": (0.02, 0.5),
    "refused": (0.01, 0.15),
    "damaged": (0.01, 0.15),
    "misrouted": (0.01, 0.2),
    "held": (0.05, 0.5),
}
"""Faults of single messages, and the range of their chances."""
_FLAVOURS = {
    "slow model": Flavour.SLOW,
    "poison": Flavour.POISON,
    "endless": Flavour.ENDLESS,
    "failing": Flavour.FAILING,
}
MILD = ("poison", "endless", "failing", "slow model", "cancel", "rates", "reads along", "wall clock")
"""Kinds among which no connection, message or report is lost or late: stricter rules hold there."""
_TIMEOUTS = (0.05, 0.5, 2.0, 5.0, 10.0, 30.0)
_OTHERS = ("outage", "cancel", "rates", "late reports", "unreported", "reads along")


@dataclass(frozen=True, slots=True)
class Question:
    """A request that will be made: when, by whom, and what."""

    at: float
    client: int
    model: str
    version: str | None
    flavour: int
    timeout: float
    cancel_after: float | None


@dataclass(slots=True)
class Plan:
    """A run.

    Attributes:
        kinds: Faults that may happen.
        noise: Of single messages.
        faults: When something happens, and what.
        options: Of each client.
        slots: Workers, each with the number of its server.
        questions: Requests.
        ends: When the faults stop.
    """

    kinds: list[str]
    noise: Noise
    faults: list[tuple[float, str]]
    options: list[ClientOptions]
    slots: list[tuple[int, Slot]]
    questions: list[Question] = field(default_factory=list)
    ends: float = 5.0

    @property
    def models(self) -> list[str]:
        """Return the models that are served."""
        return sorted({slot.model for _, slot in self.slots})


def make_plan(random: Random, kinds: Collection[str] | None = None) -> Plan:
    """Draw a run; with kinds of faults given there are these and no others."""
    share = random.choice((0.1, 0.25, 0.5))
    drawn = [kind for kind in (*NOISES, *KINDS, *_FLAVOURS, *_OTHERS) if random.random() < share]
    if random.random() < 0.1:
        drawn = [kind for kind in MILD if random.random() < 0.5]
    kinds = drawn if kinds is None else list(kinds)
    ends = random.choice((1.0, 3.0, 8.0, 15.0)) * random.uniform(0.5, 1)
    noise = Noise(latency=random.choice((0.0002, 0.001, 0.02)))
    for kind, (least, most) in NOISES.items():
        if kind in kinds:
            setattr(noise, kind, random.uniform(least, most))
    if "outage" in kinds:
        noise.dropped = random.uniform(0.7, 1)
        ends = max(ends, 8.0)
    events = [kind for kind in KINDS if kind in kinds]
    count = random.choice((1, 2, 4, 8, 20)) if events else 0
    faults = sorted((random.uniform(0, ends), random.choice(events)) for _ in range(count))
    models = ("m",) if random.random() < 0.7 else ("m", "k")
    slots = [_slot(random, number, models) for number in range(random.choice((1, 2, 2, 3, 4)))]
    options = [_options(random) for _ in range(random.choice((1, 1, 2, 3)))]
    plan = Plan(kinds, noise, faults, options, slots, ends=ends)
    count = 40 if "outage" in kinds else random.choice((3, 5, 8, 12, 40))
    burst = random.random() < 0.5
    plan.questions = sorted(
        (_question(random, plan, burst=burst) for _ in range(count)), key=lambda question: question.at
    )
    return plan


def _slot(random: Random, number: int, models: tuple[str, ...]) -> tuple[int, Slot]:
    batching = DynamicBatching(
        max_queue_delay_microseconds=random.choice((None, 0, 5000)), preserve_ordering=random.random() < 0.3
    )
    return random.randrange(2), Slot(
        name=f"w{number}",
        model=models[number % len(models)],
        version="1",
        seconds=random.choice((0.0002, 0.005, 0.02, 0.1)),
        rows=random.choice((1, 1, 4, 8)),
        capacity=random.choice((1, 2, 8, 64)),
        batching=batching if random.random() < 0.3 else None,
    )


def _options(random: Random) -> ClientOptions:
    return ClientOptions(
        window=random.choice((1, 2, 4, 16, 64)),
        patience=random.choice((0.5, 2.0, 2.0, 10.0)),
        lanes=random.random() < 0.85,
    )


def _question(random: Random, plan: Plan, *, burst: bool) -> Question:
    model = random.choice(plan.models)
    flavours = [flavour for kind, flavour in _FLAVOURS.items() if kind in plan.kinds]
    flavour = random.choice(flavours) if flavours and random.random() < 0.12 else Flavour.PLAIN
    cancels = "cancel" in plan.kinds and random.random() < 0.2
    return Question(
        at=random.choice((0.1, 0.3, plan.ends * 0.5)) * random.uniform(0.9, 1)
        if burst
        else random.uniform(0, plan.ends),
        client=random.randrange(len(plan.options)),
        model=model,
        version=random.choice((None, None, "1")),
        flavour=flavour,
        timeout=random.choice((10.0, 30.0) if "outage" in plan.kinds else _TIMEOUTS) * random.uniform(0.8, 1),
        cancel_after=random.choice((0.0, 0.001, 0.01, 0.1, 1.0)) * random.random() if cancels else None,
    )

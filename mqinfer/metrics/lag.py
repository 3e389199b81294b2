"""How much waits for each model: the number to scale workers by, which no broker has.

Clients that publish a state say what they have queued and in flight, workers how many requests they have. Each request
at a worker is in flight at a client, but not every client publishes a state, so of these two the larger sum counts.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Container, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from itertools import chain, islice, zip_longest

from mqinfer.broker.address import BrokerAddress
from mqinfer.client.aio import AsyncClient
from mqinfer.client.connection import LiveRegistry
from mqinfer.client.registry import Registry
from mqinfer.metrics.client import add_connection
from mqinfer.metrics.samples import Samples
from mqinfer.protocol.errors import NotConnected
from mqinfer.protocol.states import WorkerStatus

_UNPROVEN, _AHEAD = 64, 8
"""A client's requests to a model count up to `max(_UNPROVEN, _AHEAD * accepted)`, those accepted of it of late."""
_MOST_CLAIMED = 1 << 20
"""Requests of one client to a model that count at most, and where a worker does not state what it has accepted."""
_MOST_UNKNOWN, _MOST_UNKNOWN_IN_ALL = 8, 64
"""Models without a card and a worker that count of one client, and of all: they may ask before a worker starts."""
_OLDEST_MS = 30 * 86_400_000
"""Age that counts of a request when its state was published: a spool may keep frames for weeks."""


@dataclass(frozen=True, slots=True)
class Lag:
    """What waits for one model, and who serves it.

    Attributes:
        pending: Requests without an outcome.
        oldest_ms: Age of the oldest of those that clients have stated, in milliseconds.
        workers: Processes that are ready.
        capacity: Requests that these accept at a time.
    """

    pending: int = 0
    oldest_ms: int = 0
    workers: int = 0
    capacity: int = 0


def lag(known: Registry, now: float) -> dict[str, Lag]:
    """Return the lag of each model that has a card, a worker or a request, by name.

    A client that was lost has nothing pending: its requests have ended with it, or are sent again once it is back.

    Args:
        known: With the states of clients.
        now: The reading of the registry's clock: an age grows from when the state came that named it.
    """
    depth, workers, capacity = (Counter[str]() for _ in range(3))
    for worker in known.workers.values():
        for model in worker.serves:
            depth[model] += worker.depth
            if worker.status is WorkerStatus.READY:
                workers[model] += 1
                capacity[model] += worker.capacity
    queued, in_flight, oldest = _pending(known, now, {*known.cards, *depth})
    return {
        model: Lag(
            queued[model] + max(in_flight[model], depth[model]), round(oldest[model]), workers[model], capacity[model]
        )
        for model in sorted({*known.cards, *queued, *depth})
    }


def _believed(known: Registry) -> dict[tuple[str, str], int]:
    """Return how many requests count by client and model, of those of which more than `_UNPROVEN` do."""
    found = Counter[tuple[str, str]]()
    for worker in known.workers.values():
        accepted = dict.fromkeys(known.clients, _MOST_CLAIMED) if worker.clients is None else worker.clients
        found.update({(client, model): _AHEAD * count for model in worker.serves for client, count in accepted.items()})
    return {key: max(_UNPROVEN, min(count, _MOST_CLAIMED)) for key, count in found.items()}


def _pending(
    known: Registry, now: float, models: Container[str]
) -> tuple[Counter[str], Counter[str], defaultdict[str, float]]:
    """Return by model what clients have queued and in flight, and the age of the oldest in milliseconds.

    What a client states proves nothing: as many of its requests count as those that workers have accepted allow.
    """
    queued, in_flight = Counter[str](), Counter[str]()
    oldest: defaultdict[str, float] = defaultdict(float)
    unknown, room = _unknown(known, models), _believed(known)
    for name, client in known.clients.items():
        since_ms = (now - client.at) * 1e3
        for each in client.state.pending or ():
            if each.model not in models and each.model not in unknown:
                continue
            left = room.get((name, each.model), _UNPROVEN)
            sent = min(each.in_flight, left)
            waiting = min(each.queued, left - sent)
            room[name, each.model] = left - sent - waiting
            queued[each.model] += waiting
            in_flight[each.model] += sent
            if each.count:
                oldest[each.model] = max(oldest[each.model], min(each.oldest_ms, _OLDEST_MS) + since_ms)
    return queued, in_flight, oldest


def _unknown(known: Registry, models: Container[str]) -> set[str]:
    """Return which models without a card and a worker count: clients take turns, so that none has all the room."""
    asked = [
        list(dict.fromkeys(each.model for each in client.state.pending or () if each.model not in models))
        for client in known.clients.values()
    ]
    turns = chain.from_iterable(zip_longest(*(each[:_MOST_UNKNOWN] for each in asked)))
    return set(islice(dict.fromkeys(name for name in turns if name is not None), _MOST_UNKNOWN_IN_ALL))


def to_record(found: Mapping[str, Lag]) -> dict[str, dict[str, int]]:
    """Return lags as JSON types."""
    return {model: asdict(each) for model, each in found.items()}


def add_lag(samples: Samples, live: LiveRegistry) -> None:
    """Add the lag of the models with a card or a worker: names that clients alone state would be series without end.

    Nothing without a connection to the broker: a zero would mean that nothing waits.
    """
    if not live.is_complete:
        return
    for model, each in lag(live.known, time.monotonic()).items():
        if not live.known.models.knows(model):
            continue
        samples.gauge("lag_pending_requests", "Requests without an outcome, of all clients.", each.pending, model=model)
        text = "Age of the oldest request that clients have stated."
        samples.gauge("lag_oldest_request_seconds", text, each.oldest_ms / 1e3, model=model)
        samples.gauge("lag_workers", "Worker processes that are ready.", each.workers, model=model)
        samples.gauge("lag_capacity_requests", "Requests that these accept at a time.", each.capacity, model=model)


def add_site(client: AsyncClient, samples: Samples) -> None:
    """Add the lag of the site that a client of `follow_site` sees, and whether there is a connection."""
    add_lag(samples, client.connection.registry)
    add_connection(samples, connected=client.connection.requester.connected)


@asynccontextmanager
async def follow_site(address: BrokerAddress, name: str | None, root: str) -> AsyncIterator[AsyncClient]:
    """Connect a client whose registry has all that the broker keeps, also the states of clients.

    Raises:
        LinkError: The broker is away, or refuses the login.
        ConfigError: The address is wrong.
    """
    async with AsyncClient(address, name=name, root=root) as client:
        client.connection.registry.watches_clients = True
        if not await client.connection.registry.wait_until_complete():
            raise NotConnected("the broker has not sent the states of clients and workers in time; try again")
        yield client

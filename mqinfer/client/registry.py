"""What the broker keeps of a site: cards, and the states of workers, servers and clients. Pure: no thread, no link.

The owner reports each card and state, and when a connection is lost. A broker does not say which message is the last of
those that it has kept: the owner publishes a marker to itself behind its subscriptions, and `finish` follows when that
has come back. Until then what an earlier connection has brought still holds. After it, what was not sent again is gone.

One thread changes a registry; others may read it: each reading is one look into a dictionary, or a copy of one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from mqinfer.protocol.card import ModelCard
from mqinfer.protocol.states import (
    ClientState,
    ProcessStatus,
    ServedModel,
    ServerState,
    WorkerState,
    WorkerStatus,
)
from mqinfer.protocol.topics import instead_of
from mqinfer.recent_ids import RecentIds

T = TypeVar("T")
_MOST_NAMES = 4096
"""Names of models that were here once and are not any more; the oldest are forgotten first."""


@dataclass(frozen=True, slots=True)
class SeenClient:
    """A client that is ready, and when its state came, by the registry's clock."""

    state: ClientState
    at: float


@dataclass(slots=True)
class _Kept(Generic[T]):
    """What is known by name, and which of it this connection has brought."""

    found: dict[str, T] = field(default_factory=dict)
    fresh: set[str] = field(default_factory=set)

    def put(self, name: str, value: T | None) -> T | None:
        """Set a value, or remove it; return the one before."""
        before = self.found.get(name)
        if value is None:
            self.found.pop(name, None)
        else:
            self.found[name] = value
            self.fresh.add(name)
        return before

    def drop_stale(self) -> dict[str, T]:
        """Remove what this connection has not brought, and return it."""
        return {name: self.found.pop(name) for name in self.found.keys() - self.fresh}


class ServedModels:
    """Which models and versions have a worker, as the cards and the states of the workers tell."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._workers: dict[str, dict[str, WorkerState]] = {}  # by model, by worker
        self._counts: dict[str, Counter[tuple[str, bool]]] = {}  # by model: those of a version that are ready, or not
        self._default_counts = Counter[str]()  # of those that are ready for requests without a version, by model
        self._versions: dict[str, dict[str, bool]] = {}
        self._defaults: set[str] = set()  # models whose requests without a version have a worker that is ready
        self._unserved_since: dict[str, dict[str | None, float]] = {}  # by model, by version or None for the default
        self._once_known = RecentIds(_MOST_NAMES)

    def versions(self, model: str) -> Mapping[str, bool]:
        """Return a model's versions, each with whether a worker of it is ready; empty where nothing is known of it."""
        return self._versions.get(model, {})

    def is_ready(self, model: str, version: str | None = None) -> bool:
        """Return whether a worker accepts requests for a model, or for a version of it."""
        return model in self._defaults if version is None else self.versions(model).get(version, False)

    def ready_workers(self, model: str) -> list[WorkerState]:
        """Return the last states of the workers that accept requests for a model, or for a version of it."""
        return [state for state in self._workers.get(model, {}).values() if state.status is WorkerStatus.READY]

    def knows(self, model: str) -> bool:
        """Return whether a model has a card or a worker, be it ready or not."""
        return model in self._versions

    def was_known(self, model: str) -> bool:
        """Return whether a model was here once that is not any more."""
        return model in self._once_known

    def instead_of(self, model: str, version: str | None) -> str:
        """Return which models there are or, of one that is known, which versions, for a message."""
        if version is not None and self.knows(model):
            return f"versions of it: {instead_of(version, self.versions(model))}"
        ready = ", no worker of it is ready" if self.knows(model) else ""
        return f"models that workers serve here: {instead_of(model, list(self._versions))}{ready}"

    def unserved_for(self, model: str, version: str | None = None) -> float:
        """Return for how many seconds a model or version that is known has had no worker; 0 where it has one."""
        since = self._unserved_since.get(model, {}).get(version)
        return 0.0 if since is None else self._clock() - since

    def assign(self, worker: str, before: WorkerState | None, state: WorkerState | None) -> set[str]:
        """List a worker under the models that it serves; return those that it concerns."""
        self._count(before, -1)
        self._count(state, 1)
        for model in (gone := _models(before)):
            workers = self._workers.get(model, {})
            workers.pop(worker, None)
            if not workers:
                self._workers.pop(model, None)
        for model in (now := _models(state)):
            if state is not None:
                self._workers.setdefault(model, {})[worker] = state
        return gone | now

    def update(self, model: str, card: ModelCard | None) -> None:
        """Derive again what is served of a model, in a time that does not grow with the workers."""
        counts = self._counts.get(model, Counter[tuple[str, bool]]())
        versions = {version: counts.get((version, True), 0) > 0 for version, _ in counts}
        if card is not None and card.version:
            versions.setdefault(card.version, False)
        self._set_versions(model, versions, is_known=card is not None or bool(counts))
        unserved: list[str | None] = [version for version, is_ready in versions.items() if not is_ready]
        if model in self._default_counts:
            self._defaults.add(model)
        else:
            self._defaults.discard(model)
            unserved.append(None)
        self._set_unserved(model, unserved)

    def _count(self, state: WorkerState | None, by: int) -> None:
        """Add what a worker serves, or take it away again."""
        if state is None:
            return
        is_ready = state.status is WorkerStatus.READY
        for each in state.models:
            counts = self._counts.setdefault(each.name, Counter())
            _add(counts, (each.version, is_ready), by)
            if not counts:
                del self._counts[each.name]
            if is_ready and each.default:
                _add(self._default_counts, each.name, by)

    def _set_versions(self, model: str, versions: dict[str, bool], *, is_known: bool) -> None:
        if is_known:
            self._versions[model] = versions
            self._once_known.discard(model)
        elif self._versions.pop(model, None) is not None:
            self._once_known.add(model)

    def _set_unserved(self, model: str, unserved: Sequence[str | None]) -> None:
        """Set the versions without a worker, each since when; those before keep their time."""
        if model not in self._versions:
            unserved = ()
        before = self._unserved_since.pop(model, {})
        if unserved:
            now = self._clock()
            self._unserved_since[model] = {version: before.get(version, now) for version in unserved}


class Registry:
    """Cards by model, states by worker, server and client.

    Attributes:
        models: What is served.
        is_complete: Whether all that the broker keeps has come, on this connection.
        revision: The number of changes of what is served; it is not raised where figures alone differ.
        on_change: Called after each of these changes.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        """Start with nothing known.

        Args:
            clock: In seconds.
        """
        self.models = ServedModels(clock)
        self.is_complete = False
        self.revision = 0
        self.on_change: Callable[[], None] = lambda: None
        self._clock = clock
        self._cards = _Kept[ModelCard]()
        self._workers = _Kept[WorkerState]()
        self._servers = _Kept[ServerState]()
        self._clients = _Kept[SeenClient]()

    @property
    def cards(self) -> dict[str, ModelCard]:
        """The cards by model."""
        return dict(self._cards.found)

    @property
    def workers(self) -> dict[str, WorkerState]:
        """The last states of the workers by name, without those that have ended."""
        return dict(self._workers.found)

    @property
    def servers(self) -> dict[str, ServerState]:
        """The last states of the servers by name, without those that have ended."""
        return dict(self._servers.found)

    @property
    def clients(self) -> dict[str, SeenClient]:
        """The clients by name that are ready and publish a state, where these are followed."""
        return dict(self._clients.found)

    def card(self, model: str) -> ModelCard | None:
        """Return a model's card, or None where there is none."""
        return self._cards.found.get(model)

    def served(self, worker: str, model: str, version: str) -> ServedModel | None:
        """Return what a worker's last state holds of a version; None of a worker that has ended."""
        state = self._workers.found.get(worker)
        models = () if state is None else state.models
        return next((each for each in models if (each.name, each.version) == (model, version)), None)

    def put_card(self, model: str, card: ModelCard | None) -> None:
        """Handle a card, or its removal."""
        if self._cards.put(model, card) != card:
            self._update({model})

    def put_worker(self, worker: str, state: WorkerState | None) -> None:
        """Handle a worker's state, or its removal.

        A worker that is lost or crashed stays, as one that is not ready: it is often started again.
        """
        before = self._workers.found.get(worker)
        if state is not None and _is_of_another(state, before):
            return
        if state is not None and state.status is WorkerStatus.STOPPED:
            state = None
        self._workers.put(worker, state)
        if before is None or state is None or _service(before) != _service(state):
            self._update(self.models.assign(worker, before, state))

    def put_server(self, server: str, state: ServerState | None) -> None:
        """Handle a server's state, or its removal; a question about a name changes nothing."""
        if state is None or state.status is not ProcessStatus.CLAIMING:
            is_over = state is None or state.status is ProcessStatus.STOPPED
            self._servers.put(server, None if is_over else state)

    def put_client(self, client: str, state: ClientState | None) -> None:
        """Handle a client's state, or its removal; a question about a name changes nothing, nor does an old will."""
        before = self._clients.found.get(client)
        if state is None or state.status is ProcessStatus.READY:
            self._clients.put(client, None if state is None else SeenClient(state, self._clock()))
        elif state.status is not ProcessStatus.CLAIMING and before and before.state.incarnation == state.incarnation:
            self._clients.put(client, None)

    def begin(self) -> None:
        """Handle a lost connection: everything comes again with the next one."""
        self.is_complete = False
        for kept in (self._cards, self._workers, self._servers, self._clients):
            kept.fresh.clear()

    def finish(self) -> None:
        """Handle the marker: everything has come that the broker had kept."""
        changed = set(self._cards.drop_stale())
        for worker, state in self._workers.drop_stale().items():
            changed |= self.models.assign(worker, state, None)
        self._servers.drop_stale()
        self._clients.drop_stale()
        self.is_complete = True
        self._update(changed)

    def _update(self, models: Iterable[str]) -> None:
        """Derive again what is served of some models."""
        self.revision += 1
        for model in models:
            self.models.update(model, self.card(model))
        self.on_change()


def _add(counts: Counter[T], key: T, by: int) -> None:
    counts[key] += by
    if not counts[key]:
        del counts[key]


def _is_of_another(state: WorkerState, known: WorkerState | None) -> bool:
    """Return whether a state is about a predecessor or a twin, or a crash whose state nothing would remove."""
    if known is None:
        return state.status is WorkerStatus.CRASHED
    return state.status is not WorkerStatus.READY and state.incarnation != known.incarnation


def _service(state: WorkerState) -> tuple[object, ...]:
    """Return what of a worker's state decides who is served."""
    return state.status, state.models


def _models(state: WorkerState | None) -> set[str]:
    return {served.name for served in state.models} if state else set()

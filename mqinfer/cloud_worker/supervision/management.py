"""What a server can be asked over MQTT, without the MQTT: the repository, its processes, and the protocol's answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, Protocol

from mqinfer._version import __version__
from mqinfer.cloud_worker.supervision.child import Phase, ProcessView
from mqinfer.cloud_worker.supervision.config_json import config_record
from mqinfer.cloud_worker.supervision.inquiry import ServerStatistics
from mqinfer.cloud_worker.supervision.planning import is_same, plan_versions
from mqinfer.cloud_worker.supervision.process import ProcessSpec
from mqinfer.models.repository import Repository, Scan
from mqinfer.models.repository.config import ModelConfig
from mqinfer.protocol.card import ModelCard, card_to_json
from mqinfer.protocol.control import Call, CallBody, IndexEntry, ModelState, Operation
from mqinfer.protocol.errors import InvalidRequest, ModelNotFound, ModelNotLoadable, MqinferError

__all__ = ["EXTENSIONS", "Fleet", "Management", "index"]

EXTENSIONS = ("binary_tensor_data", "model_repository", "model_configuration", "statistics", "classification")
"""The Open Inference Protocol's extensions that are implemented, by Triton's names."""


class Fleet(Protocol):
    """The processes of a server: what `Supervisor` is to its management."""

    @property
    def specs(self) -> Sequence[ProcessSpec]:
        """The first processes."""

    @property
    def processes(self) -> Sequence[ProcessView]:
        """All processes as they are now."""

    def roll_out(self, model: str, specs: Sequence[ProcessSpec], name: str) -> Future[None]:
        """Ask for exactly these processes of a model."""

    def statistics(self) -> Future[ServerStatistics]:
        """Ask every process what it has done."""


class Management:
    """Answers for one server. Not thread-safe: one thread asks."""

    def __init__(self, template: ProcessSpec, supervisor: Fleet, instances: int | None = None) -> None:
        """Prepare.

        Args:
            template: All but model and version; its worker name is the server's.
            supervisor: Sees to the processes.
            instances: Processes a model version; None for what its `instance_group` says.
        """
        self._template = template
        self._supervisor = supervisor
        self._instances = instances
        self._wanted: dict[str, Sequence[ProcessSpec]] = {}  # by model, as it was asked for last
        for spec in supervisor.specs:
            self._wanted[spec.model] = [*self._wanted.get(spec.model, ()), spec]

    def answer(self, call: Call, body: CallBody) -> Future[Any]:
        """Do what a call asks.

        Args:
            call: From the topic.
            body: Of the message; empty where it had none.

        Returns:
            The reply, made of what JSON has; or a MqinferError.
        """
        match call.operation:
            case Operation.LOAD:
                return self._load(call.model, body)
            case Operation.UNLOAD:
                return self._unload(call.model)
            case Operation.STATS | Operation.ALL_STATS:
                return _then(self._supervisor.statistics(), lambda found: _statistics(found, call))
        return _done(self._answer_at_once(call, body))

    def serves(self, model: str) -> bool:
        """Whether a process serves a model, or is about to."""
        return any(view.phase in {Phase.WAITING, Phase.STARTING, Phase.READY} for view in self._of(model))

    def poll(self, models: Sequence[str] = ()) -> dict[str, Future[None]]:
        """Look at the repository, and load, swap and unload whatever has changed since the last look.

        What an operator has unloaded stays so until the model changes; what can't be read stays as it is.

        Args:
            models: Only these; empty for all.

        Returns:
            By model, what has changed.
        """
        scan = self._scan()
        broken = {problem.model for problem in scan.problems}
        names = {version.name for version in scan.models} | self._wanted.keys()
        changed = {}
        for model in sorted(name for name in names if name not in broken and (not models or name in models)):
            specs = self._plan(scan, model)
            if not is_same(self._wanted.get(model, ()), specs):
                changed[model] = self._roll_out(model, specs)
        return changed

    def _answer_at_once(self, call: Call, body: CallBody) -> Any:
        match call.operation:
            case Operation.SERVER:
                return {"name": "mqinfer", "version": __version__, "extensions": EXTENSIONS}
            case Operation.LIVE:
                return {"live": True}
            case Operation.READY:
                return {"ready": all(view.phase in _SOUND for view in self._supervisor.processes)}
            case Operation.INDEX:
                return self._index(only_ready=body.ready)
            case Operation.MODEL_READY:
                return {"name": call.model, "ready": any(_fits(view, call) for view in self._ready(call.model))}
        config, card = self._loaded(call)
        return json.loads(card_to_json(card)) if call.operation is Operation.METADATA else config_record(config, card)

    def _index(self, *, only_ready: bool) -> list[dict[str, str]]:
        entries = index(self._scan(), self._supervisor.processes)
        return [entry.to_record() for entry in entries if not only_ready or entry.state is ModelState.READY]

    def _scan(self) -> Scan:
        return Repository(self._template.repository).scan()

    def _plan(self, scan: Scan, model: str) -> list[ProcessSpec]:
        versions = [version for version in scan.models if version.name == model]
        return plan_versions(versions, self._template, self._instances)

    def _load(self, model: str, body: CallBody) -> Future[Any]:
        if refused := body.further:
            raise InvalidRequest(
                f"load takes no parameters, not {', '.join(refused)[:200]}: a model and its configuration are never "
                "taken from a message; put them into the repository"
            )
        scan = self._scan()
        if problems := [problem.reason for problem in scan.problems if problem.model == model]:
            raise ModelNotLoadable("; ".join(problems))
        specs = self._plan(scan, model)
        if not specs:
            known = ", ".join(sorted({version.name for version in scan.models})) or "none"
            raise ModelNotFound(f"repository {self._template.repository} has no model {model!r}; it has: {known}")
        versions = sorted({spec.version for spec in specs})
        reply = {"name": model, "versions": [str(version) for version in versions]}
        return _then(self._roll_out(model, specs), lambda _: reply)

    def _unload(self, model: str) -> Future[Any]:
        if not self._of(model):
            raise ModelNotFound(f"model {model!r} is not loaded on server {self._template.options.name}")
        # What is in the repository now counts as seen: `poll` loads it again only when it changes.
        done = self._supervisor.roll_out(model, (), self._template.options.name)
        self._wanted[model] = self._plan(self._scan(), model)
        return _then(done, lambda _: {"name": model})

    def _roll_out(self, model: str, specs: Sequence[ProcessSpec]) -> Future[None]:
        self._wanted[model] = specs
        return self._supervisor.roll_out(model, specs, self._template.options.name)

    def _of(self, model: str) -> list[ProcessView]:
        return [view for view in self._supervisor.processes if view.spec.model == model]

    def _ready(self, model: str) -> list[ProcessView]:
        return [view for view in self._of(model) if view.phase is Phase.READY]

    def _loaded(self, call: Call) -> tuple[ModelConfig, ModelCard]:
        """Find what describes a model: the version asked for, or the default one."""
        ready = self._ready(call.model)
        versions = tuple(str(version) for version in sorted({view.spec.version for view in ready}))
        for view in ready:
            if view.card and view.spec.found and _fits(view, call):
                return view.spec.found.config, replace(view.card, versions=versions)
        version = "" if call.version is None else f"version {call.version} of "
        raise ModelNotFound(
            f"{version}model {call.model!r} is not ready on server {self._template.options.name}; "
            "repository/index tells its state"
        )


_SOUND = {Phase.READY, Phase.DRAINING}


def _fits(view: ProcessView, call: Call) -> bool:
    if call.version is None:
        return view.spec.found is None or view.spec.found.is_default
    return str(view.spec.version) == call.version


def _done(reply: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(reply)
    return future


def _then(future: Future[Any], make: Callable[[Any], Any]) -> Future[Any]:
    """Make a reply of what a future will give; its error becomes the reply's."""
    reply: Future[Any] = Future()

    def pass_on(done: Future[Any]) -> None:
        error = done.exception()
        if error is not None:
            reply.set_exception(error)
            return
        try:
            reply.set_result(make(done.result()))
        except MqinferError as problem:
            reply.set_exception(problem)

    future.add_done_callback(pass_on)
    return reply


def _statistics(found: ServerStatistics, call: Call) -> dict[str, Any]:
    chosen = {
        (name, version): statistics
        for (name, version), statistics in sorted(found.models.items())
        if call.model in {"", name} and call.version in {None, str(version)}
    }
    if call.model and not chosen and not found.unanswered:
        raise ModelNotFound(f"model {call.model!r} is not loaded here, or not in that version")
    reply: dict[str, Any] = {
        "model_stats": [statistics.to_record(name, str(version)) for (name, version), statistics in chosen.items()]
    }
    return reply | ({"unanswered": found.unanswered} if found.unanswered else {})


def index(scan: Scan, processes: Iterable[ProcessView]) -> list[IndexEntry]:
    """List what a repository holds and how it is, by name and version.

    Args:
        scan: The repository as it is.
        processes: Of the server.
    """
    views: dict[tuple[str, int], list[ProcessView]] = {(found.name, found.version): [] for found in scan.models}
    for view in processes:
        views.setdefault((view.spec.model, view.spec.version), []).append(view)
    entries = [_entry(name, version, found) for (name, version), found in views.items()]
    entries += [IndexEntry(each.model, "", ModelState.UNAVAILABLE, each.reason) for each in scan.problems]
    return sorted(entries, key=lambda entry: (entry.name, int(entry.version or -1)))


def _entry(name: str, version: int, views: Sequence[ProcessView]) -> IndexEntry:
    phases = {view.phase for view in views}
    reason = "; ".join(sorted({view.reason for view in views if view.reason}))
    if Phase.READY in phases:
        return IndexEntry(name, str(version), ModelState.READY, reason)
    starting = Phase.STARTING in phases or (Phase.WAITING in phases and not reason)
    if starting:
        return IndexEntry(name, str(version), ModelState.LOADING, reason)
    if Phase.DRAINING in phases:
        return IndexEntry(name, str(version), ModelState.UNLOADING, reason)
    return IndexEntry(name, str(version), ModelState.UNAVAILABLE, reason or "not loaded")

"""Executes control requests without MQTT: reads the repository, changes the processes, builds the replies."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import asdict
from typing import Any

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from mqinfer._version import __version__
from mqinfer.cloud_worker.supervision.child import Phase, ProcessView
from mqinfer.cloud_worker.supervision.planning import is_same, plan_versions, resized
from mqinfer.cloud_worker.supervision.process import ProcessSpec
from mqinfer.cloud_worker.supervision.records import config_record, index, statistics_record
from mqinfer.cloud_worker.supervision.supervisor import Supervisor
from mqinfer.metrics.process_usage import usage
from mqinfer.models.repository import ModelVersion, Repository, Scan
from mqinfer.models.repository.config import ModelConfig
from mqinfer.models.repository.traffic import Traffic, read_traffic, write_traffic
from mqinfer.protocol.card import ModelCard, card_to_json
from mqinfer.protocol.control import Call, CallBody, ModelState, Operation
from mqinfer.protocol.decoding import check, prepare
from mqinfer.protocol.errors import (
    BadTopic,
    ConfigError,
    InvalidRequest,
    ModelNotFound,
    ModelNotLoadable,
    MqinferError,
    Rejected,
)
from mqinfer.protocol.topics import instead_of
from mqinfer.protocol.types import Count, Finite

EXTENSIONS = ("binary_tensor_data", "model_repository", "model_configuration", "statistics", "classification")
"""Implemented extensions of the Open Inference Protocol, by Triton's names."""


class Management:
    """Control requests of one server. Not thread-safe: one thread calls it.

    Attributes:
        has_login: Whether the server logs in at the broker, whose access rules then vouch for the names of callers.
    """

    def __init__(
        self,
        template: ProcessSpec,
        supervisor: Supervisor,
        instances: int | None = None,
        install: Callable[[], None] = lambda: None,
        *,
        scales: bool = False,
    ) -> None:
        """Prepare.

        Args:
            template: Everything except model and version; its worker name is the server's name.
            supervisor: Starts and stops the processes.
            instances: Processes for each model version; None for the number in its `instance_group`.
            install: Called before the repository is read: puts what has been downloaded into it.
            scales: Whether the number of processes follows the load: `scale` is called.
        """
        self._install = install
        self.has_login = template.broker.login_name is not None
        self._template = template
        self._supervisor = supervisor
        self._instances = instances
        self._wanted: dict[str, Sequence[ProcessSpec]] = {}  # by model, as requested last
        for spec in supervisor.specs:
            self._wanted[spec.model] = [*self._wanted.get(spec.model, ()), spec]
        self._scales = scales
        self._counts = dict.fromkeys(self._wanted, instances or 1) if scales else {}

    def execute(self, call: Call, body: CallBody) -> Future[Any]:
        """Execute a control request.

        Args:
            call: Operation, model and version, from the topic.
            body: Body of the message; empty without one.

        Returns:
            Future of the reply, which holds JSON types only, or of a MqinferError.

        Raises:
            MqinferError: The request is refused at once.
        """
        match call.operation:
            case Operation.LOAD:
                return self._load(call.model, body)
            case Operation.UNLOAD:
                return self._unload(call.model)
            case Operation.TRAFFIC | Operation.ROLLBACK:
                return self._direct(call, body)
            case Operation.STATS | Operation.ALL_STATS:
                return _then(self._supervisor.statistics(), lambda found: statistics_record(found, call))
            case Operation.DRAIN | Operation.UNDRAIN:
                return self._drain(call.worker, on=call.operation is Operation.DRAIN)
            case Operation.CASCADE | Operation.COLLECT:
                raise BadTopic(
                    f"this is a server, and {call.operation} is of edges; ask `mqinfer replay` by its --name"
                )
        reply: Future[Any] = Future()
        reply.set_result(self._reply_at_once(call, body))
        return reply

    @property
    def counts(self) -> dict[str, int]:
        """The processes for each version of a model that is loaded, by model, where `scale` decides that."""
        return dict(self._counts)

    def scale(self, model: str, instances: int) -> None:
        """Run so many processes of each version of a model that is loaded; its files are not read again."""
        self._counts[model] = instances
        specs = self._sized(model)
        running = [view for view in self._of(model) if view.phase not in {Phase.DRAINING, Phase.GONE}]
        if len(running) != len(specs):
            self._supervisor.scale(model, specs, self._template.options.name)

    def _sized(self, model: str) -> Sequence[ProcessSpec]:
        planned, count = self._wanted[model], self._counts.get(model)
        return planned if count is None else resized(planned, self._template, count)

    def serves(self, model: str) -> bool:
        """Whether a process serves a model or is starting to."""
        return any(view.phase in {Phase.WAITING, Phase.STARTING, Phase.READY} for view in self._of(model))

    def has_process(self, worker: str) -> bool:
        """Whether a process of this name runs or is to start; thread-safe."""
        over = {Phase.GONE, Phase.FAILED}
        return any(view.spec.options.name == worker and view.phase not in over for view in self._supervisor.processes)

    def poll(self, models: Sequence[str] = ()) -> dict[str, Future[None]]:
        """Scan the repository; load, swap and unload the models that have changed since the last scan.

        A model that an operator unloaded stays so until it changes. A model that can't be read stays as it is. So does
        everything if the whole repository is empty: that is what the place of a disk looks like that is not mounted.

        Args:
            models: Models to watch; empty for all.

        Returns:
            A future for each changed model, by name.

        Raises:
            ConfigError: The repository can't be read, or is empty though models of it are served.
        """
        scan = self._scan()
        if not (scan.models or scan.problems) and any(self._wanted.values()):
            raise ConfigError(
                f"model repository {self._template.repository} is empty; the models that are loaded keep "
                "running until `mqinfer models unload`"
            )
        names = {version.name for version in scan.models} | self._wanted.keys()
        names -= {problem.model for problem in scan.problems}
        plans = {name: self._plan(scan, name) for name in sorted(names if not models else names.intersection(models))}
        return {name: self._roll_out(name, specs) for name, specs in plans.items() if self._is_new(name, specs)}

    def _is_new(self, model: str, specs: Sequence[ProcessSpec]) -> bool:
        before = self._wanted.get(model, ())
        return not is_same(before, specs) or _labels(before) != _labels(specs)

    def _reply_at_once(self, call: Call, body: CallBody) -> Any:
        match call.operation:
            case Operation.SERVER:
                return self._about()
            case Operation.LIVE:
                return {"live": True}
            case Operation.READY:
                return {"ready": all(map(_is_healthy, self._supervisor.processes))}
            case Operation.INDEX:
                return self._index(only_ready=body.ready)
            case Operation.MODEL_READY:
                views = self._of(call.model)
                return {"name": call.model, "ready": any(v.state is Phase.READY and _fits(v, call) for v in views)}
        config, card = self._loaded(call)
        return json.loads(card_to_json(card)) if call.operation is Operation.METADATA else config_record(config, card)

    def _about(self) -> dict[str, Any]:
        hashes = {
            view.spec.options.name: view.card.parameters.model_hash for view in self._supervisor.processes if view.card
        }
        used = {name: to_builtins(each) for name, each in usage(self._supervisor.pids).items()}
        about = {"name": "mqinfer", "version": __version__, "extensions": EXTENSIONS}
        return {**about, "host": socket.gethostname(), "model_hashes": hashes, "processes": used}

    def _index(self, *, only_ready: bool) -> list[dict[str, str]]:
        entries = index(self._scan(), self._supervisor.processes)
        return [entry.to_record() for entry in entries if not only_ready or entry.state is ModelState.READY]

    def _scan(self) -> Scan:
        self._install()
        return Repository(self._template.repository).scan()

    def _plan(self, scan: Scan, model: str) -> list[ProcessSpec]:
        versions = [version for version in scan.models if version.name == model]
        return plan_versions(versions, self._template, self._instances)

    def _load(self, model: str, body: CallBody) -> Future[Any]:
        if refused := body.further:
            raise InvalidRequest(
                f"load does not accept the parameters {', '.join(refused)[:200]}: a model and its configuration are "
                "never taken from a message; put them into the repository"
            )
        specs = self._wanted_now(model)
        reply = {"name": model, "versions": _versions(specs)}
        return _then(self._roll_out(model, specs), lambda _: reply)

    def _wanted_now(self, model: str) -> list[ProcessSpec]:
        """Plan a model's processes by what is in the repository now.

        Raises:
            ModelNotLoadable: Something in the model's folder is wrong.
            ModelNotFound: There is no such model.
        """
        scan = self._scan()
        if problems := [problem.reason for problem in scan.problems if problem.model == model]:
            raise ModelNotLoadable("; ".join(problems))
        specs = self._plan(scan, model)
        if not specs:
            known = instead_of(model, {version.name for version in scan.models})
            raise ModelNotFound(f"repository {self._template.repository} has no model {model!r}; it has: {known}")
        return specs

    def _direct(self, call: Call, body: CallBody) -> Future[Any]:
        """Label versions and set the shares of canary and shadow, in the repository and then in the processes.

        Where that fails, both are as before. An order begins from what is served, not from the file: a server that
        shares the repository may have carried it out there already.
        """
        model, folder = call.model, self._template.repository / call.model
        default = self._default(model)
        before = default.traffic
        is_back = call.operation is Operation.ROLLBACK
        if is_back and call.version not in {None, str(before.canary)}:
            raise Rejected(f"version {call.version} of model {model!r} is not the canary any more")
        after = before.rolled_back() if is_back else _moved(default, body)
        self._check_versions(model, after.versions)
        write_traffic(folder, after)

        def undo() -> None:
            if read_traffic(folder) == after:  # else a later order has replaced it
                write_traffic(folder, before)

        try:
            specs = self._wanted_now(model)
            done = self._roll_out(model, specs)
        except MqinferError:
            undo()
            raise
        done.add_done_callback(lambda future: undo() if future.exception() else None)
        reply: dict[str, Any] = {"name": model, "versions": _versions(specs)}
        reply |= {"labels": after.labels, "traffic": after.shares, **({"watch": True} if after.watch else {})}
        if after.shadow:
            reply["shadow"] = asdict(after.shadow)
        return _then(done, lambda _: reply)

    def _default(self, model: str) -> ModelVersion:
        """Return the version of a model that serves requests without one.

        Raises:
            ModelNotFound: The model is not loaded.
            Rejected: It is not ready.
        """
        if not self._of(model):
            raise ModelNotFound(f"model {model!r} is not loaded on server {self._template.options.name}")
        served = [view.spec.found for view in self._ready(model) if view.spec.found]
        default = next((found for found in served if found.is_default), None)
        if default is None:
            raise Rejected(
                f"model {model!r} is not ready on server {self._template.options.name}; try again when it is"
            )
        return default

    def _check_versions(self, model: str, versions: Sequence[int]) -> None:
        """Raise ModelNotFound unless the repository has all these versions of a model."""
        try:
            for version in versions:
                Repository(self._template.repository).find(model, version)
        except ModelNotLoadable as error:
            raise ModelNotFound(str(error)) from error

    def _unload(self, model: str) -> Future[Any]:
        if not self._of(model):
            raise ModelNotFound(f"model {model!r} is not loaded on server {self._template.options.name}")
        # The repository's content counts as known: `poll` loads the model again only when it changes.
        self._counts.pop(model, None)
        done = self._supervisor.roll_out(model, (), self._template.options.name)
        self._wanted[model] = self._plan(self._scan(), model)
        return _then(done, lambda _: {"name": model})

    def _drain(self, worker: str, *, on: bool) -> Future[Any]:
        reply = {"name": worker, "drained": on}
        return _then(self._supervisor.drain(worker, on=on), lambda names: reply | {"workers": names})

    def _roll_out(self, model: str, specs: Sequence[ProcessSpec]) -> Future[None]:
        self._wanted[model] = specs
        if self._scales and specs:
            self._counts[model] = max(1, self._counts.get(model, 0))  # one at least shows whether it can be served
        return self._supervisor.roll_out(model, self._sized(model), self._template.options.name)

    def _of(self, model: str) -> list[ProcessView]:
        return [view for view in self._supervisor.processes if view.spec.model == model]

    def _ready(self, model: str) -> list[ProcessView]:
        return [view for view in self._of(model) if view.phase is Phase.READY]

    def _loaded(self, call: Call) -> tuple[ModelConfig, ModelCard]:
        """Return configuration and card of the requested version, or of the default one."""
        ready = self._ready(call.model)
        versions = tuple(str(version) for version in sorted({view.spec.version for view in ready}))
        for view in ready:
            if view.card and view.spec.found and _fits(view, call):
                return view.spec.found.config, replace(view.card, versions=versions)
        version = "" if call.version is None else f"version {call.version} of "
        raise ModelNotFound(
            f"{version}model {call.model!r} is not ready on server {self._template.options.name}; "
            "request repository/index for its state"
        )


def _labels(specs: Sequence[ProcessSpec]) -> set[Traffic]:
    return {spec.found.traffic for spec in specs if spec.found}


def _versions(specs: Sequence[ProcessSpec]) -> list[str]:
    return [str(version) for version in sorted({spec.version for spec in specs})]


class _Order(Struct, frozen=True):
    """The parameters of a `traffic` call."""

    stable: Count | None = None
    canary: Count | None = None
    share: Count | None = None
    shadow: Count | None = None
    shadow_share: Count | None = None
    watch: bool | None = None
    tolerance: Finite | None = None


prepare(_Order)
_NUMBERS = frozenset(_Order.__struct_fields__) - {"watch", "tolerance"}
_DIGITS = re.compile("[0-9]{1,18}")


def _moved(default: ModelVersion, body: CallBody) -> Traffic:
    """Return the policy that follows from a `traffic` call.

    Raises:
        InvalidRequest: There is no parameter, one is unknown, one has no value of its kind, or they contradict.
    """
    given = {name: (body.parameters or {})[name] for name in body.further}
    known = _Order.__struct_fields__
    if (unknown := sorted(given.keys() - known)) or not given:
        raise InvalidRequest(f"traffic: {', '.join(unknown)[:200]!r} given; expected parameters of {', '.join(known)}")
    for name in _NUMBERS & given.keys():
        if _DIGITS.fullmatch(number := str(given[name])):  # versions are strings elsewhere
            given[name] = int(number)
    order = check(given, _Order, "traffic")
    moved = default.traffic.moved(
        default.version, stable=order.stable, canary=order.canary, share=order.share, watch=order.watch
    )
    return moved.shadowed(order.shadow, order.shadow_share, order.tolerance)


def _is_healthy(view: ProcessView) -> bool:
    return view.phase in {Phase.READY, Phase.DRAINING} and not view.draining


def _fits(view: ProcessView, call: Call) -> bool:
    if call.version is None:
        return view.spec.found is None or view.spec.found.is_default
    return str(view.spec.version) == call.version


def _then(future: Future[Any], make: Callable[[Any], Any]) -> Future[Any]:
    """Return a future that applies `make` to the result of another; an error passes through."""
    reply: Future[Any] = Future()

    def complete(done: Future[Any]) -> None:
        error = done.exception()
        if error is not None:
            reply.set_exception(error)
            return
        try:
            reply.set_result(make(done.result()))
        except MqinferError as problem:
            reply.set_exception(problem)

    future.add_done_callback(complete)
    return reply

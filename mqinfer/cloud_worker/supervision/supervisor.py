"""`mqinfer worker`: starts one process for each model instance, restarts crashed ones, replaces and stops them.

Requests pass through the broker alone. The supervisor only manages processes, so a crash in one model affects no other,
and all memory of a process is free when it exits. Everything runs on the thread that calls `run`: other threads put
actions into its inbox and receive futures.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection, wait
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from mqinfer.broker.waker import Waker
from mqinfer.cloud_worker.supervision.child import Child, Phase, ProcessView
from mqinfer.cloud_worker.supervision.drains import DrainOrder
from mqinfer.cloud_worker.supervision.planning import is_same
from mqinfer.cloud_worker.supervision.process import Command, ProcessReport, ProcessSpec
from mqinfer.cloud_worker.supervision.rollout import Rollout, RolloutStep, begin
from mqinfer.cloud_worker.supervision.shared_process import SharedProcesses
from mqinfer.cloud_worker.supervision.started_process import StartedProcess
from mqinfer.cloud_worker.supervision.statistics import ServerStatistics, StatisticsQuery, Totals
from mqinfer.logs import is_logged
from mqinfer.protocol.card import ModelCard
from mqinfer.protocol.control import ModelStatistics
from mqinfer.protocol.errors import Cancelled, ModelNotLoadable, NoWorker, Superseded

log = logging.getLogger("mqinfer.cloud_worker")
T = TypeVar("T")
_STOPPING = "this server is stopping"
_STATISTICS_TIMEOUT_S = 1.0
"""Time for the processes to reply with their statistics."""
_CHECK_S = 1.0
"""Interval at which the progress of the processes is checked."""


@dataclass(frozen=True, slots=True)
class Event:
    """Change of a worker process.

    Attributes:
        kind: `ready`, `waiting` (for the broker), `failed` (no restart), `crashed` (restart follows) or `stopped`.
        worker: Worker name.
        model: Model and version.
        detail: Engine and device, or the reason.
        crashed: Incarnation of a process that ended by itself, without a reason of its own; 0 for every other event.
        running: Ids of the requests that this process worked on.
    """

    kind: str
    worker: str
    model: str
    detail: str = ""
    crashed: int = 0
    running: tuple[str, ...] = ()


class Inbox:
    """Actions that other threads request of the supervisor's thread. `put` is thread-safe, the rest is the owner's."""

    def __init__(self) -> None:
        self._actions: SimpleQueue[tuple[Callable[[], None], Future[Any]]] = SimpleQueue()
        self._lock = threading.Lock()  # so that no action is put behind `close`
        self._is_closed = False
        self.waker: Waker | None = None  # of the owner, while it runs

    def put(self, action: Callable[[], None], future: Future[Any]) -> bool:
        """Append an action; return False once the inbox is closed.

        Args:
            action: Called once on the owner's thread; it completes the future.
            future: Receives the error if the action raises.
        """
        with self._lock:
            if not self._is_closed:
                self._actions.put((action, future))
        self.wake()
        return not self._is_closed

    def wake(self) -> None:
        """Have the owner look here; thread-safe and safe in a signal handler."""
        waker = self.waker
        if waker:
            waker.wake()

    def run_all(self) -> None:
        """Run the actions put so far, in order."""
        while True:
            try:
                action, future = self._actions.get_nowait()
            except Empty:
                return
            try:
                action()
            except Exception as error:  # noqa: BLE001 - the caller gets it; the owner continues
                future.set_exception(error)

    def close(self) -> list[Future[Any]]:
        """Accept no more actions; return the futures of those not run, for the owner to complete."""
        with self._lock:
            self._is_closed = True
        left = []
        while not self._actions.empty():
            left.append(self._actions.get_nowait()[1])
        return left


@dataclass(slots=True, eq=False)
class Supervisor:
    """Runs worker processes until `stop`.

    Attributes:
        specs: Processes to start at first.
        on_event: Called with each event, on the supervisor's thread.
        stop_timeout: Seconds for a process to drain before it is killed.
        may_idle: Whether `run` continues without a process and waits for `roll_out`, or for a broker that is away at
            the start. It still returns if none of the first processes ever served and all have failed.
        processes: Snapshots of all processes, those that failed for good included; any thread may read them.
    """

    specs: Sequence[ProcessSpec]
    on_event: Callable[[Event], None] = lambda _: None
    stop_timeout: float = 35.0
    may_idle: bool = False
    processes: tuple[ProcessView, ...] = field(default=(), init=False)
    _children: list[Child] = field(default_factory=list)
    _rollouts: list[Rollout] = field(default_factory=list)
    _drains: list[DrainOrder] = field(default_factory=list)
    _totals: Totals = field(default_factory=Totals)
    _shared: SharedProcesses = field(default_factory=SharedProcesses)
    _inbox: Inbox = field(default_factory=Inbox)
    _check_at: float = 0.0
    _is_stopping: bool = False
    _served: bool = False
    _defects: int = 0

    def __post_init__(self) -> None:
        self._children = [Child(spec) for spec in self.specs]
        self._update_views()

    @property
    def pids(self) -> dict[str, int]:
        """Process ids of the running processes, by worker name."""
        return {view.spec.options.name: view.pid for view in self.processes if view.pid}

    def run(self) -> bool:
        """Run until `stop` is called, or until every process has failed for good.

        Returns:
            Whether any process ever served, or none had to: `stop` was called before.
        """
        self._inbox.waker = waker = Waker().open(signals=True)  # before the first look there: no action is missed
        try:
            while self._run_once(waker):
                pass
            self._cancel_all()
            self._stop_children(waker)
        finally:
            for child in self._children:  # none is left, unless a defect ended one of the calls above
                child.kill()
            self._cancel_all()
            self._inbox.waker = None
            waker.close()
        return self._served or self._is_stopping

    def stop(self) -> None:
        """Make `run` drain every process and return; thread-safe and safe in a signal handler."""
        self._is_stopping = True
        self._inbox.wake()

    def roll_out(self, model: str, specs: Sequence[ProcessSpec], name: str) -> Future[None]:
        """Replace the processes of a model by exactly these; thread-safe.

        Equal processes stay. New ones start and serve before the others drain. If a new one fails, the old ones keep
        serving. A later call for the same model supersedes one that has not finished.

        Args:
            model: Model name.
            specs: Wanted processes; none to unload the model.
            name: Server name, the prefix of the process names.

        Returns:
            Future that completes when the last old process has exited. It raises ModelNotLoadable with the reasons,
            Superseded or Cancelled.
        """
        future: Future[None] = Future()
        return self._request(future, lambda: self._begin(model, specs, name, future))

    def scale(self, model: str, specs: Sequence[ProcessSpec], name: str) -> Future[None]:
        """Start what lacks of these processes of a model, and drain what is too much; thread-safe.

        Nothing is done while a rollout of the model has not switched: it ends with the processes that it wants. The
        arguments are those of `roll_out`; the wanted processes differ from those of now in their number alone.

        Returns:
            Future that completes when the processes are starting or draining. It raises Cancelled.
        """
        future: Future[None] = Future()
        return self._request(future, lambda: self._scale(model, specs, name, future))

    def statistics(self) -> Future[ServerStatistics]:
        """Query the statistics of every serving process; the future completes within about a second. Thread-safe."""
        query = StatisticsQuery(0.0, [])
        return self._request(query.future, lambda: self._query(query))

    def drain(self, worker: str, *, on: bool = True) -> Future[list[str]]:
        """Have processes accept nothing more and answer what they have, or serve again; thread-safe.

        They stay connected. A new process, also of one that crashed, serves.

        Args:
            worker: Name of the process; that of the server, without `.N`, for all that serve or start.
            on: Whether they drain.

        Returns:
            Future of their names, which completes when all have answered everything, or serve again. It raises
            NoWorker where there is no such process, Unanswered, Superseded or Cancelled.
        """
        future: Future[list[str]] = Future()
        return self._request(future, lambda: self._order_drain(worker, DrainOrder((), on, future)))

    def _request(self, future: Future[T], action: Callable[[], None]) -> Future[T]:
        if not self._inbox.put(action, future):
            future.set_exception(Cancelled(_STOPPING))
        return future

    # The methods below run on the supervisor's thread.

    def _run_once(self, waker: Waker) -> bool:
        """Do what is due, and wait for the next event; return False once there is nothing more to do."""
        try:
            self._inbox.run_all()
            if self._is_stopping or not self._has_work():
                return False
            self._run_due(time.monotonic())
            self._wait(waker)
        except Exception:  # a defect; the processes serve on
            self._defects += 1
            if is_logged(self._defects):
                log.exception("the supervisor of the processes failed (%d times); it goes on", self._defects)
            wait([waker.fileno()], _CHECK_S)
            waker.drain()
        return True

    def _has_work(self) -> bool:
        is_busy = any(not child.is_over for child in self._children) or bool(self._rollouts)
        return is_busy or (self.may_idle and (self._served or not self.specs))

    def _run_due(self, now: float) -> None:
        for child in [each for each in self._children if each.due is not None and each.due <= now]:
            if child.phase is Phase.WAITING:
                child.start(now, partial(self._shared.choose, processes=len(self._children)))
            else:
                self._kill(child)
        self._check_progress(now)
        self._update_views()
        for rollout in list(self._rollouts):
            self._advance(rollout, now)
        self._children = [child for child in self._children if child.phase is not Phase.GONE]
        self._totals.keep(self._children)
        self._finish_orders(now)

    def _finish_orders(self, now: float) -> None:
        """Complete the queries and the orders to drain that are over."""
        for query in [each for each in self._totals.queries if each.is_over(now)]:
            self._totals.queries.remove(query)
            query.finish(self._totals, self._children)
        for order in [each for each in self._drains if each.is_over]:
            self._drains.remove(order)
            order.finish()

    def _check_progress(self, now: float) -> None:
        """Kill the processes that hang, once an interval."""
        if now < self._check_at:
            return
        self._check_at = now + _CHECK_S
        for child in self._children:
            if child.run and child.is_busy and child.run.hang.is_over(_CHECK_S):
                is_loading = child.phase is Phase.STARTING
                what = (
                    "the model did not load within" if is_loading else "a request did not end, or the process hung, for"
                )
                why = f"killed: {what} {child.run.hang.timeout:g} s (--run-timeout)"
                child.is_final |= is_loading and child.card is None and not child.run.is_shared
                log.error("%s is %s", child.name, why)
                child.kill(why)

    def _wait(self, waker: Waker) -> None:
        runs = [(child, child.run) for child in self._children if child.run]
        ends: set[Connection | int] = {end for _, run in runs for end in (run.sentinel, run.pipe) if end is not None}
        happened = wait([waker.fileno(), *ends], self._timeout())
        waker.drain()
        for child, run in runs:
            if run.pipe in happened:
                self._read(child, run)
            if run.has_left or run.sentinel in happened:
                self._reap(child)

    def _timeout(self) -> float | None:
        """Return the seconds until something is due; None where nothing is."""
        due = [child.due for child in self._children if child.due is not None]
        due += [query.deadline for query in self._totals.queries]
        if any(child.phase in {Phase.STARTING, Phase.READY} for child in self._children):
            due.append(self._check_at)
        return max(0.0, min(due) - time.monotonic()) if due else None

    def _read(self, child: Child, run: StartedProcess) -> None:
        was_waiting, received = run.is_waiting, child.read()
        if isinstance(received, ModelStatistics):
            for query in self._totals.queries:
                query.add(child, received)
        elif isinstance(received, ProcessReport) and child.phase is Phase.READY:
            if received.card:
                self._serves(child, received.card, received.untried)
            else:  # it ends by itself, and drains first
                child.due = time.monotonic() + self.stop_timeout
        elif run.is_waiting and not was_waiting:
            if self._served or self.may_idle:
                self._emit(child, "waiting", child.reason)
            else:  # a first start, where the address may be wrong
                child.is_final = True
                run.abandon()

    def _serves(self, child: Child, card: ModelCard, untried: str) -> None:
        self._served = True
        for order in self._drains:
            order.started(child)
        self._emit(
            child, "ready", "; ".join(filter(None, [f"{card.parameters.backend} on {card.parameters.device}", untried]))
        )

    def _reap(self, child: Child) -> None:
        child.reap(time.monotonic())
        self._totals.ended(child)
        kinds = {Phase.FAILED: "failed", Phase.WAITING: "crashed", Phase.GONE: "stopped"}
        detail = "" if child.phase is Phase.GONE else child.reason
        self._emit(child, kinds[child.phase], detail, child.crashed, child.running)
        if child.phase is Phase.GONE:
            self._children.remove(child)

    def _begin(self, model: str, specs: Sequence[ProcessSpec], name: str, future: Future[None]) -> None:
        for rollout in self._rollouts:
            if rollout.model == model and not rollout.switched:
                if is_same(rollout.wanted, specs):
                    rollout.wanted = specs  # its labels may differ
                    rollout.futures.append(future)  # an equal rollout is running
                    return
                self._undo(rollout, Superseded(f"superseded by a later load or unload of model {model!r}"))
        rollout = begin(model, specs, name, self._children)
        rollout.futures.append(future)
        self._rollouts.append(rollout)

    def _scale(self, model: str, specs: Sequence[ProcessSpec], name: str, future: Future[None]) -> None:
        if not any(rollout.model == model and not rollout.switched for rollout in self._rollouts):
            begin(model, specs, name, self._children).switch(time.monotonic() + self.stop_timeout)
            self._update_views()
        future.set_result(None)

    def _advance(self, rollout: Rollout, now: float) -> None:
        if rollout.next_step is RolloutStep.UNDO:
            self._undo(rollout, ModelNotLoadable(rollout.failure))
        elif rollout.next_step is RolloutStep.SWITCH:
            rollout.switch(now + self.stop_timeout)
        if rollout.next_step is RolloutStep.DONE and rollout in self._rollouts:
            self._rollouts.remove(rollout)
            self._update_views()
            for future in rollout.futures:
                future.set_result(None)

    def _undo(self, rollout: Rollout, why: Exception) -> None:
        self._rollouts.remove(rollout)
        rollout.undo(time.monotonic() + self.stop_timeout, may_leave_new=not isinstance(why, Superseded))
        self._update_views()
        for future in rollout.futures:
            future.set_exception(why)

    def _query(self, query: StatisticsQuery) -> None:
        ready = [child for child in self._children if child.phase is Phase.READY]
        query.waiting = [child for child in ready if child.send(Command.STATISTICS)]
        query.deadline = time.monotonic() + _STATISTICS_TIMEOUT_S
        self._totals.queries.append(query)

    def _order_drain(self, worker: str, order: DrainOrder) -> None:
        mine = [child for child in self._children if worker in {child.name, child.name.rpartition(".")[0]}]
        order.children = [child for child in mine if child.phase in {Phase.READY, Phase.STARTING}]
        if not order.children:
            running = ", ".join(sorted(child.name for child in self._children if child.run)) or "none"
            raise NoWorker(f"no process {worker!r} serves here (processes: {running})")
        for earlier in [each for each in self._drains if each.on != order.on]:
            if not set(map(id, earlier.children)).isdisjoint(map(id, order.children)):
                self._drains.remove(earlier)
                why = f"superseded by a later {'drain' if order.on else 'undrain'} of {worker}"
                earlier.future.set_exception(Superseded(why))
        order.begin()
        self._drains.append(order)
        self._update_views()

    def _stop_children(self, waker: Waker) -> None:
        deadline = time.monotonic() + self.stop_timeout
        running = [child for child in self._children if child.run]
        for child in running:
            child.drain(deadline)
        while any(child.run for child in running):
            now = time.monotonic()
            for child in running:
                if child.run and child.due is not None and child.due <= now:
                    self._kill(child)
            self._wait(waker)

    def _kill(self, child: Child) -> None:
        log.error("%s did not stop within %g s and is killed", child.name, self.stop_timeout)
        child.kill()

    def _cancel_all(self) -> None:
        """Close the inbox and cancel everything that waits."""
        futures = self._inbox.close()
        futures += [query.future for query in self._totals.queries]
        futures += [order.future for order in self._drains]
        futures += [future for rollout in self._rollouts for future in rollout.futures]
        self._totals.queries.clear()
        self._drains.clear()
        self._rollouts.clear()
        for future in futures:
            future.set_exception(Cancelled(_STOPPING))

    def _update_views(self) -> None:
        """Publish snapshots of the processes to other threads."""
        self.processes = tuple(child.view() for child in self._children)

    def _emit(self, child: Child, kind: str, detail: str = "", crashed: int = 0, running: tuple[str, ...] = ()) -> None:
        self._update_views()
        _log_event(child, kind, detail)
        try:
            self.on_event(Event(kind, child.name, child.spec.title, detail, crashed, running))
        except Exception:  # foreign code; the processes serve on
            log.exception("the handler of the event %r failed", kind)


_LEVELS = {"ready": logging.INFO, "stopped": logging.INFO, "failed": logging.ERROR}
"""Level of an event in the log; a warning for the others."""


def _log_event(child: Child, kind: str, detail: str) -> None:
    level, shown = _LEVELS.get(kind, logging.WARNING), detail and f", {detail}"
    process = {"worker": child.name, "model": child.spec.model, "version": str(child.spec.version)}
    extra = {"event": kind, **process, "detail": detail}
    log.log(level, "%s %s: %s%s", child.name, kind, child.spec.title, shown, extra=extra)

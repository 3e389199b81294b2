"""`mqinfer worker`: starts a process for each model instance, starts it again when it dies, swaps and stops them.

The broker is the only channel for requests; the supervisor only sees to processes, so a crash in one model touches no
other, and the end of a process gives all its memory back. All of it happens on the one thread that `run` is called on:
other threads leave their wishes in its inbox and get futures.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from typing import TypeVar

from mqinfer.broker.waker import Waker
from mqinfer.cloud_worker.supervision.child import Child, Phase, ProcessView
from mqinfer.cloud_worker.supervision.inbox import Inbox
from mqinfer.cloud_worker.supervision.inquiry import Inquiry, ServerStatistics
from mqinfer.cloud_worker.supervision.planning import is_same
from mqinfer.cloud_worker.supervision.process import Order, ProcessSpec, Report
from mqinfer.cloud_worker.supervision.rollout import Rollout, Step, begin
from mqinfer.protocol.control import ModelStatistics
from mqinfer.protocol.errors import Cancelled, ModelNotLoadable, Superseded

__all__ = ["Event", "Supervisor"]

log = logging.getLogger("mqinfer.cloud_worker")
T = TypeVar("T")
_STOPPING = "this server is stopping"
_ANSWER_S = 1.0
"""How long a process may take to say its statistics."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a worker process.

    Attributes:
        kind: `ready`, `failed` (it won't be tried again), `died` (it is started again), `stopped`.
        worker: Its name.
        model: What it serves.
        detail: More about it.
    """

    kind: str
    worker: str
    model: str
    detail: str = ""


def _ignore(event: Event) -> None:
    """Take no notice of an event."""


@dataclass(slots=True, eq=False)
class Supervisor:
    """Runs worker processes until `stop`.

    Attributes:
        specs: One process each, to begin with.
        on_event: Told of everything that happens, on the supervisor's thread.
        stop_timeout: Seconds that a process may take to drain before it is killed.
        may_idle: Whether `run` goes on without any process, since others may still be asked for by `roll_out`. Where
            none of the first ones ever served it returns all the same.
    """

    specs: Sequence[ProcessSpec]
    on_event: Callable[[Event], None] = field(default=_ignore)
    stop_timeout: float = 35.0
    may_idle: bool = False
    _children: list[Child] = field(default_factory=list)
    _rollouts: list[Rollout] = field(default_factory=list)
    _inquiries: list[Inquiry] = field(default_factory=list)
    _views: tuple[ProcessView, ...] = ()
    _inbox: Inbox = field(default_factory=Inbox)
    _waker: Waker | None = None
    _stopping: bool = False
    _served: bool = False

    def __post_init__(self) -> None:
        self._children = [Child(spec) for spec in self.specs]
        self._look()

    @property
    def processes(self) -> tuple[ProcessView, ...]:
        """The processes as they are, those that failed to the last among them; from any thread."""
        return self._views

    @property
    def pids(self) -> dict[str, int]:
        """Process ids by worker name, of those that run."""
        return {view.spec.options.name: view.pid for view in self._views if view.pid}

    def run(self) -> bool:
        """Run until `stop` is called, or until no process is left that is worth starting.

        Returns:
            Whether any process ever served.
        """
        self._waker = waker = Waker().open(signals=True)  # before the first look at the inbox: who comes later finds it
        try:
            while True:
                self._inbox.work_off()
                if self._stopping or not self._is_wanted():
                    break
                self._act(time.monotonic())
                self._wait(waker)
            self._refuse()
            self._stop_children(waker)
        finally:
            self._refuse()
            self._waker = None
            waker.close()
        return self._served

    def stop(self) -> None:
        """Ask `run` to drain every process and return; safe in a signal handler and from any thread."""
        self._stopping = True
        self._wake()

    def roll_out(self, model: str, specs: Sequence[ProcessSpec], name: str) -> Future[None]:
        """Ask for exactly these processes of a model; from any thread.

        What runs already stays; what is new is started and serves before the rest is drained. Where a new one fails,
        the old ones go on serving. A later call for the same model takes the place of one that is not through.

        Args:
            model: Its name.
            specs: One process each; none to unload it.
            name: Of the server; its processes' names begin with it.

        Returns:
            Done when the last old process has ended. Otherwise it raises ModelNotLoadable (with the reasons),
            Superseded or Cancelled.
        """
        future: Future[None] = Future()
        return self._ask(future, lambda: self._begin(model, specs, name, future))

    def statistics(self) -> Future[ServerStatistics]:
        """Ask every process that serves what it has done; answered within a second or so, by whoever answers."""
        inquiry = Inquiry(0.0, [])
        return self._ask(inquiry.future, lambda: self._inquire(inquiry))

    def _ask(self, future: Future[T], action: Callable[[], None]) -> Future[T]:
        if self._inbox.put(action, future):
            self._wake()
        else:
            future.set_exception(Cancelled(_STOPPING))
        return future

    def _wake(self) -> None:
        waker = self._waker
        if waker:
            waker.wake()

    # What follows runs on the supervisor's thread.

    def _is_wanted(self) -> bool:
        at_work = any(not child.is_over for child in self._children) or bool(self._rollouts)
        return at_work or (self.may_idle and (self._served or not self.specs))

    def _act(self, now: float) -> None:
        for child in self._children:
            if child.due is None or child.due > now:
                continue
            if child.phase is Phase.WAITING:
                child.start(now)
            elif child.phase is Phase.DRAINING:
                self._kill(child)
        self._look()
        for rollout in list(self._rollouts):
            self._advance(rollout, now)
        self._children = [child for child in self._children if child.phase is not Phase.GONE]
        for inquiry in [each for each in self._inquiries if each.is_over(now)]:
            self._inquiries.remove(inquiry)
            inquiry.conclude()

    def _wait(self, waker: Waker) -> None:
        watched = [end for child in self._children for end in child.watched()]
        due = [child.due for child in self._children if child.due is not None]
        due += [inquiry.deadline for inquiry in self._inquiries]
        timeout = max(0.0, min(due) - time.monotonic()) if due else None
        happened = wait([waker.fileno(), *watched], timeout)
        waker.drain()
        for child in list(self._children):
            if child.pipe in happened:
                self._hear(child)
            if child.process and child.process.sentinel in happened:
                self._bury(child)

    def _hear(self, child: Child) -> None:
        said = child.read()
        if isinstance(said, ModelStatistics):
            for inquiry in self._inquiries:
                inquiry.take(child, said)
        elif isinstance(said, Report) and said.card and child.phase is Phase.READY:
            self._served = True
            self._tell(child, "ready", f"{said.card.backend} on {said.card.device}")

    def _bury(self, child: Child) -> None:
        child.bury(time.monotonic())
        kinds = {Phase.FAILED: "failed", Phase.WAITING: "died", Phase.GONE: "stopped"}
        self._tell(child, kinds[child.phase], "" if child.phase is Phase.GONE else child.reason)
        if child.phase is Phase.GONE:
            self._children.remove(child)

    def _begin(self, model: str, specs: Sequence[ProcessSpec], name: str, future: Future[None]) -> None:
        for rollout in self._rollouts:
            if rollout.model == model and not rollout.switched:
                if is_same(rollout.wanted, specs):
                    rollout.futures.append(future)  # the same is under way
                    return
                self._undo(rollout, Superseded(f"a later load or unload of model {model!r} took its place"))
        rollout = begin(model, specs, name, self._children)
        rollout.futures.append(future)
        self._rollouts.append(rollout)

    def _advance(self, rollout: Rollout, now: float) -> None:
        if rollout.next_step is Step.UNDO:
            self._undo(rollout, ModelNotLoadable(rollout.failure))
        elif rollout.next_step is Step.SWITCH:
            rollout.switch(now + self.stop_timeout)
        if rollout.next_step is Step.DONE and rollout in self._rollouts:
            self._rollouts.remove(rollout)
            self._look()
            for future in rollout.futures:
                future.set_result(None)

    def _undo(self, rollout: Rollout, why: Exception) -> None:
        self._rollouts.remove(rollout)
        rollout.undo(time.monotonic() + self.stop_timeout, may_leave_new=not isinstance(why, Superseded))
        self._look()
        for future in rollout.futures:
            future.set_exception(why)

    def _inquire(self, inquiry: Inquiry) -> None:
        ready = [child for child in self._children if child.phase is Phase.READY]
        inquiry.waiting = [child for child in ready if child.order(Order.STATISTICS)]
        inquiry.deadline = time.monotonic() + _ANSWER_S
        self._inquiries.append(inquiry)

    def _stop_children(self, waker: Waker) -> None:
        deadline = time.monotonic() + self.stop_timeout
        running = [child for child in self._children if child.process]
        for child in running:
            child.drain(deadline)
        while any(child.process for child in running):
            now = time.monotonic()
            for child in running:
                if child.due is not None and child.due <= now and child.process:
                    self._kill(child)
            self._wait(waker)

    def _kill(self, child: Child) -> None:
        log.error("%s did not stop within %g s and is killed", child.name, self.stop_timeout)
        child.kill()

    def _refuse(self) -> None:
        """Take no more wishes, and give up those that wait."""
        futures = self._inbox.close()
        futures += [inquiry.future for inquiry in self._inquiries]
        futures += [future for rollout in self._rollouts for future in rollout.futures]
        self._inquiries.clear()
        self._rollouts.clear()
        for future in futures:
            future.set_exception(Cancelled(_STOPPING))

    def _look(self) -> None:
        """Let others see the processes as they are now."""
        self._views = tuple(child.view() for child in self._children)

    def _tell(self, child: Child, kind: str, detail: str = "") -> None:
        self._look()
        self.on_event(Event(kind, child.name, child.title, detail))

"""A process that several small models share: each loads and serves on a thread of its own, as if it had a process.

The process is started with a number of places. A place has what a process of one model has: a status pipe, its
progress, and the record of the requests that it works on. A model takes the next place; none is used twice, and the
process ends when the last of its models has left. A load that fails, a stop and a drain concern one model. A crash ends
all of them, and the records say which were at work: see `StartedProcess`.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from multiprocessing.connection import Connection, wait

from mqinfer.broker.waker import Waker
from mqinfer.cloud_worker.serving.pipeline import RunningRequests
from mqinfer.cloud_worker.supervision.process import (
    MODEL_THREAD,
    ModelPlace,
    ProcessSpec,
    end_with_the_supervisor,
    make_place,
    serve_model,
    stop_on_sigterm,
)
from mqinfer.interrupts import start_without_interrupts
from mqinfer.logs import LogSettings, set_up
from mqinfer.protocol.errors import Cancelled

log = logging.getLogger("mqinfer.cloud_worker")
_LEAST_PROCESSES = 32
"""A server with no more processes than this has one for each model: sharing saves little there, and isolates less."""
_LOADS_ALONE_S = 10.0
"""A load waits so long for the one before it: models load one after the other unless one of them hangs."""


class SharedProcess:
    """One such process, as its supervisor sees it. Only the supervisor's thread uses it."""

    def __init__(self, name: str, logs: LogSettings, places: int) -> None:
        """Start the process.

        Args:
            name: For its log.
            logs: How it logs.
            places: Models that it takes, one after the other.
        """
        context = multiprocessing.get_context("spawn")
        pairs = [make_place(context) for _ in range(places)]
        self._places = [ours for ours, _ in pairs]
        self._taken = self._left = 0
        theirs = [place for _, place in pairs]
        self.process = context.Process(target=_run, args=(name, logs, theirs), name=f"mqinfer-{name}")
        start_without_interrupts(self.process)
        for place in theirs:
            place.pipe.close()

    @property
    def has_room(self) -> bool:
        """Whether it runs, and takes another model."""
        return self._left < self._taken < len(self._places) and self.process.exitcode is None

    @property
    def at_work(self) -> int:
        """How many models load or work on requests; of a process that has ended, when it ended."""
        return sum(RunningRequests(place.memory).is_busy for place in self._places)

    def take(self, spec: ProcessSpec) -> ModelPlace:
        """Have it load and serve a model; return the model's place."""
        place = self._places[self._taken]
        self._taken += 1
        with suppress(OSError):  # it has ended, which its supervisor will see
            place.pipe.send(spec)
        return place

    def leave(self) -> None:
        """Take note that one of its models has ended; end the process behind the last one."""
        self._left += 1
        if self._left == self._taken:
            self.process.kill()  # nothing runs there any more
            self.process.join()
            self.process.close()
            for place in self._places:
                place.pipe.close()


class SharedProcesses:
    """The shared processes of a server: finds the one that a model starts in."""

    def __init__(self) -> None:
        self._latest: SharedProcess | None = None
        self._started = 0

    def choose(self, spec: ProcessSpec, processes: int) -> SharedProcess | None:
        """Return the process that a model shares; None where it gets one of its own.

        Args:
            spec: What is to be served.
            processes: How many the server would have if none were shared.
        """
        if spec.share_with < 2 or processes <= _LEAST_PROCESSES:
            return None
        if self._latest is None or not self._latest.has_room:
            name = f"{spec.options.name.rpartition('.')[0]}.shared-{self._started}"
            self._started += 1
            self._latest = SharedProcess(name, spec.logs, spec.share_with)
        return self._latest


# What follows runs in the shared process.


def _run(name: str, logs: LogSettings, places: Sequence[ModelPlace]) -> None:
    """Serve models until the supervisor has exited, or SIGTERM: the process's entry point."""
    set_up(replace(logs, process=name))
    end_with_the_supervisor()
    is_ending = threading.Event()
    stops: list[threading.Event] = [is_ending]
    waker = stop_on_sigterm(stops)
    lock = threading.Lock()
    waiting = {place.pipe: place for place in places}
    threads: list[threading.Thread] = []
    while waiting and not is_ending.is_set():
        for pipe in wait([*waiting, waker.fileno()]):
            place = waiting.pop(pipe, None) if isinstance(pipe, Connection) else None
            if place is None:
                waker.drain()
                continue
            with suppress(EOFError, OSError):  # the supervisor has exited
                spec = place.pipe.recv()
                stops.append(threading.Event())
                arguments = (spec, place, stops[-1], lock)
                threads.append(
                    threading.Thread(target=_serve, args=arguments, name=f"{MODEL_THREAD}{spec.title}", daemon=True)
                )
                threads[-1].start()
    for thread in threads:
        thread.join()
    logging.shutdown()
    os._exit(0)


def _serve(spec: ProcessSpec, place: ModelPlace, stop: threading.Event, lock: threading.Lock) -> None:
    """Serve one model; the last message says that it has ended, which the end of the pipe alone would not."""
    waker = Waker().open()
    try:
        serve_model(spec, place, waker=waker, stop=stop, loading=_loading(place, lock))
    except Exception:
        log.exception("%s ended", spec.title)
    finally:
        with suppress(OSError):
            place.pipe.send(None)
        place.pipe.close()
        waker.close()


@contextmanager
def _loading(place: ModelPlace, lock: threading.Lock) -> Iterator[None]:
    """Load one model at a time, and record that it is this one, for a load that ends the process.

    Raises:
        Cancelled: It was asked to stop meanwhile.
    """
    is_alone, running = lock.acquire(timeout=_LOADS_ALONE_S), RunningRequests(place.memory)
    try:
        if place.pipe.poll():
            raise Cancelled("it was asked to stop")
        running.write(0, [None])
        yield
    finally:
        running.write(0, [])
        if is_alone:
            lock.release()

"""The processes of a gateway: one alone, or several that share the ports, each restarted when it crashes."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess

from mqinfer import logs
from mqinfer.broker.waker import Waker
from mqinfer.gateway.serving.process import GatewaySpec, Stop, serve
from mqinfer.interrupts import on_stop, start_without_interrupts
from mqinfer.protocol.errors import ConfigError, MissingExtra, MqinferError, NameTaken, NotAuthorized
from mqinfer.web.connections import allow_many_connections, log_each_kind

_log = logging.getLogger("mqinfer.gateway")

_FIRST_DELAY_S, _LAST_DELAY_S = 0.1, 30.0
"""Delay before restart n of a process that keeps ending: `min(_LAST_DELAY_S, 2**n * _FIRST_DELAY_S)`."""
_STABLE_S = 60.0
"""A process that ran longer than this restarts with the first delay again."""
_KILL_S = 15.0
"""A process that has not ended so long after the end of the drain is killed."""
_OVERHEAD_S = 20
"""The system ends a process so long after the drain's end, whatever it hangs in."""
_FINAL = (ConfigError, MissingExtra, NameTaken, NotAuthorized)
"""Errors that a restart does not help."""


def run_alone(spec: GatewaySpec) -> None:
    """Serve in this process until SIGTERM or SIGINT. Errors as of `serve`.

    A second SIGTERM cancels the calls; a second SIGINT ends at once.
    """
    allow_many_connections()

    async def main() -> None:
        stop, loop = Stop(), asyncio.get_running_loop()
        on_stop(partial(loop.call_soon_threadsafe, stop.request), lambda: "calls without an answer were cut")
        await _serve(spec, stop)

    asyncio.run(main())


def run_several(spec: GatewaySpec, count: int) -> None:
    """Serve in several processes, named `NAME.0`, `NAME.1`, …, until SIGTERM or SIGINT; a second SIGINT kills them.

    Raises:
        MqinferError: A process failed in a way that a restart does not help, or before any of them was ready.
    """
    _Processes([_Child(each) for each in specs_of(spec, count)]).run()


def specs_of(spec: GatewaySpec, count: int) -> list[GatewaySpec]:
    """Return what each of several processes serves: all share the ports but the metrics', the first has a socket."""
    settings, ports = spec.settings, spec.settings.ports
    first = ports.metrics_port
    return [
        replace(
            spec,
            name=f"{spec.name}.{number}",
            shared=True,
            settings=replace(
                settings,
                ports=replace(
                    ports,
                    metrics_port=first and first + number,
                    tfs_grpc_socket=None if number else ports.tfs_grpc_socket,
                ),
            ),
        )
        for number in range(count)
    ]


@dataclass(slots=True, eq=False)
class _Child:
    """A process as its parent sees it.

    Attributes:
        spec: What it serves.
        process: The process; None while it waits for its restart.
        pipe: Over it comes True once it is ready, or the error that it ends with.
        due: When to start it, on the monotonic clock.
        delay: Seconds until its next restart.
        started: When it was started.
        error: What it ended with, if it could report that.
    """

    spec: GatewaySpec
    process: SpawnProcess | None = None
    pipe: Connection | None = None
    due: float = 0.0
    delay: float = _FIRST_DELAY_S
    started: float = 0.0
    error: MqinferError | None = None

    def start(self, now: float) -> None:
        context = multiprocessing.get_context("spawn")  # a fork would share the threads and locks of gRPC
        self.pipe, theirs = context.Pipe(duplex=False)
        self.started, self.error = now, None
        self.process = context.Process(
            target=_run_child, args=(self.spec, theirs, logs.settings()), name=self.spec.name
        )
        start_without_interrupts(self.process)
        theirs.close()

    def receive(self) -> bool:
        """Take what the process has reported; return whether it is ready."""
        is_ready = False
        try:
            while self.pipe and self.pipe.poll():
                report = self.pipe.recv()
                is_ready |= report is True
                self.error = report if isinstance(report, MqinferError) else None
        except (EOFError, OSError):  # it has closed its end
            self._close()
        return is_ready

    def reap(self, now: float) -> str:
        """Forget the process, which has ended, and return why it has; it is due again after a delay."""
        process, self.process = self.process, None
        self._close()
        if now - self.started > _STABLE_S:
            self.delay = _FIRST_DELAY_S
        self.due, self.delay = now + self.delay, min(_LAST_DELAY_S, 2 * self.delay)
        if process:
            process.join()
        return str(self.error or f"exit code {process.exitcode if process else None}")

    def _close(self) -> None:
        if self.pipe:
            self.pipe.close()
            self.pipe = None


@dataclass(slots=True, eq=False)
class _Processes:
    """Runs the processes on the main thread, until a signal."""

    children: Sequence[_Child]
    _is_stopping: bool = False
    _has_served: bool = False
    _waker: Waker = field(default_factory=Waker)

    def run(self) -> None:
        """Run until a signal, or until one process fails for good."""
        on_stop(self._stop, lambda: f"gateway processes killed, with the calls that they had: {len(self.children)}")
        self._waker.open(signals=True)
        try:
            while not self._is_stopping:
                self._start_those_due()
                self._wait()
        finally:
            self._end()
            self._waker.close()

    def _stop(self) -> None:
        self._is_stopping = True

    def _start_those_due(self) -> None:
        now = time.monotonic()
        for child in self.children:
            if child.process is None and child.due <= now:
                child.start(now)

    def _wait(self) -> None:
        """Wait for what happens next, and take note of it."""
        waiting = [child.due for child in self.children if child.process is None]
        timeout = max(0.0, min(waiting) - time.monotonic()) if waiting else None
        ends: list[Connection | int] = [self._waker.fileno()]
        for child in self.children:
            ends += [child.process.sentinel] if child.process else []
            ends += [child.pipe] if child.pipe else []
        wait(ends, timeout)
        self._waker.drain()
        for child in self.children:
            self._check(child)

    def _check(self, child: _Child) -> None:
        self._has_served |= child.receive()
        if child.process is None or child.process.is_alive() or self._is_stopping:
            return
        why = child.reap(time.monotonic())
        if child.error and (isinstance(child.error, _FINAL) or not self._has_served):
            raise child.error
        _log.error(
            "process %s ended: %s; it starts again in %.1f s", child.spec.name, why, child.due - time.monotonic()
        )

    def _end(self) -> None:
        """End what runs: each process drains first, and is killed where that takes too long."""
        running = [child.process for child in self.children if child.process]
        for process in running:
            process.terminate()
        drain_s = max((child.spec.settings.bounds.drain for child in self.children), default=0.0)
        deadline = time.monotonic() + drain_s + _KILL_S
        for process in running:
            process.join(max(0.0, deadline - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()


def _run_child(spec: GatewaySpec, pipe: Connection, log_settings: logs.LogSettings) -> None:
    """Serve until SIGTERM, or until the parent has ended."""
    allow_many_connections()
    logs.set_up(replace(log_settings, process=spec.name))

    async def main() -> None:
        stop = Stop()
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, stop.drain.set)  # a service manager may send one to each process too
        parent = multiprocessing.parent_process()
        if parent is not None:
            loop.add_reader(parent.sentinel, on_parents_end, parent.sentinel, stop)
        await _serve(spec, stop, lambda: pipe.send(True))

    def on_parents_end(sentinel: int, stop: Stop) -> None:
        asyncio.get_running_loop().remove_reader(sentinel)  # it stays readable
        stop.drain.set()

    try:
        asyncio.run(main())
    except MqinferError as error:
        with suppress(OSError, ValueError):
            pipe.send(error)
        raise SystemExit(1) from None


async def _serve(spec: GatewaySpec, stop: Stop, on_ready: Callable[[], None] = lambda: None) -> None:
    async def end_what_hangs() -> None:
        await stop.drain.wait()
        signal.alarm(int(spec.settings.bounds.drain) + _OVERHEAD_S)

    log_each_kind(_log)
    watching = asyncio.create_task(end_what_hangs())
    try:
        await serve(spec, stop, on_ready)
    finally:
        watching.cancel()

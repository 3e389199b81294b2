"""The processes of a gateway: one alone, or several that share the ports, each restarted when it crashes."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess

from mqinfer import logs
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
    asyncio.run(_run_all(specs_of(spec, count)))


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


async def _run_all(specs: Sequence[GatewaySpec]) -> None:
    """Keep a process for each until a signal, or until one fails for good."""
    stop, served, loop = asyncio.Event(), asyncio.Event(), asyncio.get_running_loop()
    on_stop(
        partial(loop.call_soon_threadsafe, stop.set),
        lambda: f"gateway processes killed, with the calls that they had: {len(specs)}",
    )
    try:
        async with asyncio.TaskGroup() as group:
            keepers = [group.create_task(_keep(each, served)) for each in specs]
            await stop.wait()
            for keeper in keepers:
                keeper.cancel()
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None


async def _keep(spec: GatewaySpec, served: asyncio.Event) -> None:
    """Run a process, again after a delay whenever it has ended; `served` is set once one was ready."""
    delay = _FIRST_DELAY_S
    while True:
        started = time.monotonic()
        error, code = await _run_process(spec, served)
        if error and (isinstance(error, _FINAL) or not served.is_set()):
            raise error
        if time.monotonic() - started > _STABLE_S:
            delay = _FIRST_DELAY_S
        why = error or f"exit code {code}"
        _log.error("process %s ended: %s; it starts again in %.1f s", spec.name, why, delay)
        await asyncio.sleep(delay)
        delay = min(_LAST_DELAY_S, 2 * delay)


async def _run_process(spec: GatewaySpec, served: asyncio.Event) -> tuple[MqinferError | None, int | None]:
    """Run a process until it ends; return the error that it reported, and its exit code."""
    context = multiprocessing.get_context("spawn")  # a fork would share the threads and locks of gRPC
    pipe, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_run_child, args=(spec, theirs, logs.settings()), name=spec.name)
    start_without_interrupts(process)
    theirs.close()
    error: MqinferError | None = None
    with pipe:
        try:
            with suppress(EOFError, OSError):  # it has closed its end
                while True:
                    await _readable(pipe.fileno())
                    if (report := pipe.recv()) is True:
                        served.set()
                    else:
                        error = report
            await _readable(process.sentinel)
        finally:
            await _end(process, spec.settings.bounds.drain)
    return error, process.exitcode


async def _end(process: SpawnProcess, drain_s: float) -> None:
    """End what runs: it drains first, and is killed where that takes too long."""
    process.terminate()
    try:
        async with asyncio.timeout(drain_s + _KILL_S):
            await _readable(process.sentinel)
    except TimeoutError:
        process.kill()
    process.join()


async def _readable(descriptor: int) -> None:
    event, loop = asyncio.Event(), asyncio.get_running_loop()
    loop.add_reader(descriptor, event.set)
    try:
        await event.wait()
    finally:
        loop.remove_reader(descriptor)


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

"""`mqinfer watch`: results of other clients as they come, as lines, as JSON, and as a recording for Foxglove."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
import signal
import sys
import time
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from mqinfer.cli.exit_codes import ExitCode
from mqinfer.cli.options import AsJson, ConnectionOptions, with_connection, with_group
from mqinfer.cli.watching.lines import describe, line_of
from mqinfer.client import AsyncClient, AsyncWatch, SeenPreview, SeenResult, WatchCounters
from mqinfer.client.watching import WatchOptions
from mqinfer.edge_agent.sinks.foxglove.recorder import Recorder
from mqinfer.logs import printable
from mqinfer.protocol.card import ClassInfo, ModelCard
from mqinfer.protocol.errors import ConfigError, ModelNotFound, NotAuthorized

_log = logging.getLogger("mqinfer.watch")
_TICK_S = 0.5
"""The recording is written to disk at least this often."""
_CARD_S = 1.0
"""How long the first result of a model waits for its card; it has no names of classes without."""
_MOST_MODELS = 1024
_QUIET_S = 10.0
"""After so long without any message the command says what may be wrong."""
_NOTHING = (
    "nothing has come yet. Is anybody asking this model? Is this the login of a dashboard? No other one may read the "
    "results of others, and Mosquitto does not report that it delivers nothing."
)


@dataclass(frozen=True, slots=True)
class ResultOptions:
    """The results that are shown, and how; each field is an option of `watch`."""

    model: Annotated[str | None, typer.Argument(help="Model whose results to show; all by default.")] = None
    count: Annotated[int | None, typer.Option(help="End after N results.", min=1)] = None
    client: Annotated[str | None, typer.Option(help="Show the results of this client alone.")] = None
    save: Annotated[Path | None, typer.Option(help="Folder for a recording of results and previews, results.mcap.")] = (
        None
    )
    as_json: AsJson = False
    tensors: Annotated[
        bool, typer.Option("--tensors", help="Add all elements of the outputs to the JSON, in base64.")
    ] = False
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print no results; needs --save.")] = False
    buffer: Annotated[
        int, typer.Option(help="Results that may wait to be shown; the oldest are dropped first.", min=1)
    ] = 256

    def __post_init__(self) -> None:
        if self.tensors and not self.as_json:
            raise ConfigError("--tensors adds to the JSON; add --json")
        if self.quiet and self.save is None:
            raise ConfigError("--quiet leaves nothing to do without a recording; add --save DIR")


@with_connection
@with_group("wanted", ResultOptions)
def watch(connection: ConnectionOptions, wanted: ResultOptions) -> None:
    """Show the results that workers send to other clients, until Ctrl-C; with access rules, to a dashboard's login.

    A line has the time, client, source, frame, outcome, worker, model, the time in the worker and the answer. Previews,
    which --save records with the results, come from edges that run with --preview. What was dropped stands at the end,
    on standard error.
    """
    with _until_nobody_reads():
        if not asyncio.run(_run(connection, wanted)):
            raise typer.Exit(ExitCode.INTERRUPTED)


async def _run(connection: ConnectionOptions, wanted: ResultOptions) -> bool:
    """Show and record; return False where a signal came before the last of the results that were asked for."""
    address = connection.address()
    async with AsyncClient(address, name=connection.name, root=connection.root) as client:
        cards = _Cards(client)
        recorder = None if wanted.save is None else Recorder(wanted.save, cards.find, wanted.model)
        await cards.start()
        results = _open(client, wanted)
        try:
            async with results:
                _log.info("watching the results of %s at %s", wanted.model or "all models", address)
                return await _until_signal(_show(results, cards, recorder, wanted)) or wanted.count is None
        finally:
            files = recorder.close() if recorder else ()
            _summarize(results.counters(), recorder, files)


def _open(client: AsyncClient, wanted: ResultOptions) -> AsyncWatch[SeenResult] | AsyncWatch[SeenResult | SeenPreview]:
    options: WatchOptions = {"client": wanted.client, "buffer": wanted.buffer}
    if wanted.save is None:
        return client.watch(wanted.model, **options)
    return client.watch(wanted.model, with_previews=True, **options)


async def _until_signal(work: Coroutine[None, None, None]) -> bool:
    """Run something until its end, or until SIGINT or SIGTERM, which end it where it waits; return whether it ended."""
    task = asyncio.ensure_future(work)
    loop, signals = asyncio.get_running_loop(), (signal.SIGINT, signal.SIGTERM)
    for number in signals:
        loop.add_signal_handler(number, task.cancel)
    await asyncio.wait({task})
    for number in signals:
        loop.remove_signal_handler(number)
    if task.cancelled():
        return False
    task.result()
    return True


async def _show(
    results: AsyncWatch[SeenResult] | AsyncWatch[SeenResult | SeenPreview],
    cards: _Cards,
    recorder: Recorder | None,
    wanted: ResultOptions,
) -> None:
    """Take what comes, until so many results have come, or without end."""
    shown, hint_at = 0, time.monotonic() + _QUIET_S
    while not results.has_ended and (wanted.count is None or shown < wanted.count):
        seen = await results.next(_TICK_S)
        if recorder:
            await _record(seen, cards, recorder)
        if isinstance(seen, SeenResult):
            shown += 1
            if not wanted.quiet:
                _print(_text(seen, await cards.wait_for(seen.response.model_name), wanted))
        elif time.monotonic() >= hint_at and not results.counters().received:
            hint_at = math.inf
            typer.echo(_NOTHING, err=True)


async def _record(seen: SeenResult | SeenPreview | None, cards: _Cards, recorder: Recorder) -> None:
    if seen is not None:
        await cards.wait_for(seen.response.model_name)
        recorder.add(seen)
    recorder.flush()


def _print(line: str) -> None:
    """Print all of a line: with PYTHONUNBUFFERED, Python drops what a signal has kept the system from writing."""
    sys.stdout.flush()
    rest = memoryview(f"{line}\n".encode(sys.stdout.encoding, "backslashreplace"))
    while rest:
        rest = rest[sys.stdout.buffer.write(rest) :]
    sys.stdout.buffer.flush()


def _text(seen: SeenResult, classes: tuple[ClassInfo, ...], wanted: ResultOptions) -> str:
    result = seen.decode()
    if not wanted.as_json:
        return line_of(seen, result, classes)
    return json.dumps(describe(seen, result, classes, with_tensors=wanted.tensors), allow_nan=False)


class _Cards:
    """The cards of the models whose results come."""

    def __init__(self, client: AsyncClient) -> None:
        self._registry = client.connection.registry
        self._asked: set[str] = set()

    async def start(self) -> None:
        """Receive cards from now on, where the broker lets this login."""
        with suppress(NotAuthorized):
            await asyncio.to_thread(self._registry.start)

    def find(self, model: str) -> ModelCard | None:
        """Return a model's card, or None where there is none."""
        return self._registry.known.card(model)

    async def wait_for(self, model: str) -> tuple[ClassInfo, ...]:
        """Return the classes of a model; its first result waits a moment for its card."""
        if self.find(model) is None and model not in self._asked and len(self._asked) < _MOST_MODELS:
            self._asked.add(model)
            with suppress(ModelNotFound, NotAuthorized):
                await self._registry.wait_for(model, _CARD_S)
        card = self.find(model)
        return () if card is None else card.classes


def _summarize(counters: WatchCounters, recorder: Recorder | None, files: Sequence[Path]) -> None:
    """Print to standard error what came, what was dropped and why, and what was recorded."""
    dropped: dict[str, int] = {str(reason): number for reason, number in counters.dropped.items()}
    lines = [f"received {counters.received}; {_reasons(dropped)}"]
    if counters.disconnected:
        lines.append(f"connections lost: {counters.disconnected}; what came meanwhile is missing")
    if recorder:
        lines.append(
            f"recorded {recorder.results} results, {recorder.pictures} with a preview; {_reasons(recorder.dropped())}"
        )
    with suppress(OSError):  # nobody reads it any more
        for line in (*lines, *map(str, files)):
            typer.echo(printable(line), err=True)


def _reasons(dropped: Mapping[str, int]) -> str:
    found = ", ".join(f"{reason.replace('_', ' ')} {number}" for reason, number in sorted(dropped.items()) if number)
    return f"dropped: {found or 'none'}"


@contextmanager
def _until_nobody_reads() -> Iterator[None]:
    """End without an error where the reader of a pipe has left, such as `head`."""
    try:
        yield
    except BrokenPipeError:
        with open(os.devnull, "w", encoding="utf-8") as nowhere:  # noqa: PTH123 - no file of ours
            os.dup2(nowhere.fileno(), sys.stdout.fileno())  # the interpreter flushes it once more at its end

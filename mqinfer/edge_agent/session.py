"""Run a replay from start to end: open the source, send its frames to one or several models, close, report."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from mqinfer.bags.frame import Frame, FrameSource, StreamInfo
from mqinfer.bags.pacing import Pacer, replay
from mqinfer.bags.sources import is_live, open_source
from mqinfer.client.connection import LiveRegistry
from mqinfer.client.requester import Requester
from mqinfer.client.window import Policy
from mqinfer.edge_agent.fan_out import FanOut
from mqinfer.edge_agent.model_run import ModelRun, ReplaySettings, SessionReport, Site
from mqinfer.edge_agent.report import Goal, progress
from mqinfer.protocol.errors import BrokerUnreachable, LinkError

__all__ = ["ReplaySettings", "SessionReport", "run_session", "run_sessions"]

Connect = Callable[[float], None]
"""Connects within this many seconds, or raises."""
_GRACE_S = 1.0
"""With a spool: how long to wait for the first connection and then for a card, before frames are kept without them."""
_ATTEMPT_S, _PAUSE_S = 5.0, 1.0
"""A first connection may take `_ATTEMPT_S`; after a failure the next attempt comes `_PAUSE_S` later."""


def run_session(
    settings: ReplaySettings, requester: Requester, broker: str, stop: threading.Event, console: Console
) -> SessionReport:
    """Replay a source against a model; arguments and errors as of `run_sessions`."""
    models = [settings.options.model]
    return run_sessions(settings, models, requester, broker=broker, stop=stop, console=console)[0]


def run_sessions(  # noqa: PLR0913 - what a replay needs
    settings: ReplaySettings,
    models: Sequence[str],
    requester: Requester,
    *,
    broker: str,
    stop: threading.Event,
    console: Console,
    connect: Connect | None = None,
    on_runs: Callable[[Sequence[ModelRun]], None] = lambda _: None,
) -> list[SessionReport]:
    """Replay a source against some models; it is read once.

    Args:
        settings: What to send, and how; with several models each has folders of its own below `output` and `spool`.
        models: Their names.
        requester: Connected, or connected by `connect`.
        broker: Name of the broker in the summary.
        stop: Ends the replay early once pending frames have their outcome; set if the connection fails for good.
        console: For the progress display.
        connect: Connects the requester while a spool keeps the frames; None where it is connected.
        on_runs: Receives the runs of the models, which can be watched from then on.

    Returns:
        One report a model, in their order.

    Raises:
        SourceError: The source cannot be opened.
        ModelNotFound: No worker serves the model.
        ConfigError: A setting is wrong, a model takes no pictures, or a file cannot be created.
    """
    requester.watch(lambda: stop.set() if requester.failure else None)
    with ExitStack() as stack:
        source = stack.enter_context(closing(_open(settings)))
        streams = [stream for stream in source.streams() if stream.is_image]
        settings.bit_depths.check([stream.source for stream in streams])
        shelf = LiveRegistry(requester)
        is_endless = settings.loop or is_live(settings.source)
        filled = sum(stream.count != 0 for stream in streams)
        site = Site(requester, shelf, broker, stop, is_endless, max(filled, 1))
        own = [settings] if len(models) == 1 else [_own(settings, model) for model in models]
        runs = [stack.enter_context(closing(ModelRun(each, site))) for each in own]
        on_runs(runs)
        with nullcontext() if connect is None else _connecting(connect, requester, stop):
            for run in runs:
                run.prepare(_patience(settings, requester))
            shown = [(run.statistics, _goal(run.settings, streams)) for run in runs]
            with progress(shown, console):
                _run_all(runs, _frames(settings, source, stop))
        return [run.report() for run in runs]


def _own(settings: ReplaySettings, model: str) -> ReplaySettings:
    """Return the settings of one of several models: its files are in folders of its name."""

    def below(folder: Path | None) -> Path | None:
        return None if folder is None else folder / model

    options = replace(settings.options, model=model)
    return replace(settings, options=options, output=below(settings.output), spool=below(settings.spool))


def _patience(settings: ReplaySettings, requester: Requester) -> float:
    """Return how long to wait for a card before the first frame."""
    if settings.spool is None:
        return settings.card_timeout
    return min(_GRACE_S, settings.card_timeout) if requester.connected else 0.0


@contextmanager
def _connecting(connect: Connect, requester: Requester, stop: threading.Event) -> Iterator[None]:
    """Connect on a thread of its own while the body runs, again and again until that succeeds."""
    is_over, is_tried = threading.Event(), threading.Event()

    def run() -> None:
        while not (is_over.is_set() or stop.is_set()):
            try:
                connect(_ATTEMPT_S)
            except BrokerUnreachable:
                is_tried.set()
                is_over.wait(_PAUSE_S)
            except LinkError as error:  # refused: another attempt would be, too
                requester.give_up(error)
                break
            else:
                break
        is_tried.set()

    thread = threading.Thread(target=run, name="mqinfer-replay-connect")
    thread.start()
    try:
        is_tried.wait(_GRACE_S)
        yield
    finally:
        is_over.set()
        thread.join()


def _run_all(runs: Sequence[ModelRun], frames: Iterator[Frame]) -> None:
    """Run one model on this thread, or several on a thread each."""
    if len(runs) == 1:
        runs[0].run(frames)
        return
    readers = FanOut(frames, len(runs)).readers

    def run(index: int) -> None:
        with closing(readers[index]):
            runs[index].run(readers[index])

    with ThreadPoolExecutor(len(runs), thread_name_prefix="mqinfer-replay-model") as pool:
        for ended in [pool.submit(run, index) for index in range(len(runs))]:
            ended.result()


def _open(settings: ReplaySettings) -> FrameSource:
    part = settings.start, settings.duration
    return open_source(settings.source, topics=settings.topics, start=part[0], duration=part[1], depth=False)


def _frames(settings: ReplaySettings, source: FrameSource, stop: threading.Event) -> Iterator[Frame]:
    pacer = Pacer(_rate(settings), wait=stop.wait)
    return replay(source, pacer, loop=settings.loop, is_stopped=stop.is_set)


def _rate(settings: ReplaySettings) -> float:
    """Return the speed: a recording plays as recorded if only its newest frames count, else as fast as possible."""
    if settings.rate is not None:
        return settings.rate
    return 1.0 if settings.options.policy is Policy.LATEST and not is_live(settings.source) else 0.0


def _goal(settings: ReplaySettings, streams: Sequence[StreamInfo]) -> Goal:
    counts = [stream.count for stream in streams]
    known = None not in counts and not settings.loop
    total = sum(count or 0 for count in counts) if known else None
    return Goal(total, f"{settings.source} -> {settings.options.model}")

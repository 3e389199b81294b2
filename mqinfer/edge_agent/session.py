"""Run a replay from start to end: open the source, send its frames to one or several models, close, report."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, nullcontext

from rich.console import Console

from mqinfer.bags.frame import Frame, FrameSource, StreamInfo, TimeRange
from mqinfer.bags.joining import JoinedSource, Miss
from mqinfer.bags.pacing import Pacer, replay
from mqinfer.bags.sources import open_sources
from mqinfer.client.connection import LiveRegistry
from mqinfer.client.requester import Requester
from mqinfer.client.window import Policy
from mqinfer.edge_agent.fan_out import FanOut
from mqinfer.edge_agent.model_run import ModelRun, SessionParts
from mqinfer.edge_agent.reporting.report import RunExtent, SessionReport, progress
from mqinfer.edge_agent.settings import ReplaySettings, SourceSettings
from mqinfer.edge_agent.sinks.sink import Sink
from mqinfer.protocol.card import ModelCard
from mqinfer.protocol.errors import BrokerUnreachable, ConfigError, LinkError

log = logging.getLogger("mqinfer.edge_agent")

Connect = Callable[[float], None]
"""Connects within this many seconds, or raises."""
_GRACE_S = 1.0
"""With a spool: how long to wait for the first connection and then for a card, before frames are kept without them."""
_ATTEMPT_S, _PAUSE_S = 5.0, 1.0
"""A first connection may take `_ATTEMPT_S`; after a failure the next attempt comes `_PAUSE_S` later."""


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
    observe: Callable[[ReplaySettings, ModelCard], Sink] | None = None,
) -> list[SessionReport]:
    """Replay a source against some models; it is read once.

    Args:
        settings: What to send, and how; with several models each has folders of its own below those that it names.
        models: Their names, `name/version` for a certain version.
        requester: Connected, or connected by `connect`.
        broker: Name of the broker in the summary.
        stop: Ends the replay early once pending frames have their outcome; set if the connection fails for good.
        console: For the progress display.
        connect: Connects the requester while a spool keeps the frames; None where it is connected.
        on_runs: Receives the runs of the models, which can be watched from then on.
        observe: Makes a further sink for each model.

    Returns:
        One report a model, in their order.

    Raises:
        SourceError: The source cannot be opened.
        ModelNotFound: No worker serves the model.
        ConfigError: A setting is wrong, a model takes no pictures, or a file cannot be created.
    """
    _check(settings)
    requester.watch(lambda: stop.set() if requester.failure else None)
    with ExitStack() as stack:
        opened = stack.enter_context(closing(_open(settings.source, stop)))
        source, streams, missed = _join(opened, settings)
        shelf = LiveRegistry(requester)
        is_endless = settings.source.loop or settings.source.is_live
        filled = sum(stream.count != 0 for stream in streams)
        pacer = Pacer(_rate(settings), wait=stop.wait)
        site = SessionParts(requester, shelf, broker, stop, is_endless, max(filled, 1), pacer, missed, observe)
        is_one = len(models) == 1
        runs = [stack.enter_context(closing(ModelRun(settings.of_model(each, is_one=is_one), site))) for each in models]
        on_runs(runs)
        with nullcontext() if connect is None else _connecting(connect, requester, stop):
            for run in runs:
                run.prepare(_patience(settings, requester))
            shown = [(run.statistics, _goal(run, streams)) for run in runs]
            with progress(shown, console):
                done = min(run.done.count for run in runs)
                _run_all(runs, replay(source, pacer, loop=settings.source.loop, is_stopped=stop.is_set, skipped=done))
        return [run.report() for run in runs]


def _check(settings: ReplaySettings) -> None:
    """Refuse to go on with a run that does not keep every frame of a recording once, in their order."""
    if not settings.outputs.resume:
        return
    if settings.outputs.folder is None or "jsonl" not in settings.outputs.sinks:
        raise ConfigError("--resume goes on with the results.jsonl of --output; name its folder, with the sink jsonl")
    if settings.source.is_live or settings.source.loop or settings.options.policy is Policy.LATEST:
        raise ConfigError("--resume needs a recording and --policy all, without --loop: others don't stop at a frame")
    if settings.cascade is not None:
        raise ConfigError("--resume is without --cascade, whose answers depend on the frames before; run it anew")
    if settings.spool is not None:
        raise ConfigError("--resume is without --spool: the frames that a spool keeps are sent by the next run anyway")


def _patience(settings: ReplaySettings, requester: Requester) -> float:
    """Return how long to wait for a card before the first frame."""
    if settings.spool is None:
        return settings.options.card_timeout
    return min(_GRACE_S, settings.options.card_timeout) if requester.connected else 0.0


@contextmanager
def _connecting(connect: Connect, requester: Requester, stop: threading.Event) -> Iterator[None]:
    """Connect on a thread of its own while the body runs, again and again until that succeeds."""
    is_over, is_tried = threading.Event(), threading.Event()

    def run() -> None:
        while not (is_over.is_set() or stop.is_set()):
            try:
                connect(_ATTEMPT_S)
            except BrokerUnreachable as error:
                if not is_tried.is_set():
                    log.warning("%s; trying again", error)
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


def _open(settings: SourceSettings, stop: threading.Event) -> FrameSource:
    topics = settings.join.topics if settings.join and settings.join.topics else settings.topics
    span, waits = TimeRange(settings.start, settings.duration), settings.is_service
    return open_sources(settings.sources, topics, span, depth=False, is_stopped=stop.is_set, waits=waits)


def _join(
    source: FrameSource, settings: ReplaySettings
) -> tuple[FrameSource, Sequence[StreamInfo], Callable[[], Mapping[Miss, int]] | None]:
    """Check the streams of pictures, and join them where that is asked for.

    Returns:
        The source of the requests, its streams, and what returns the frames that were left out of joined ones.
    """
    streams = [stream for stream in source.streams() if stream.is_image]
    settings.preparing.bit_depths.check([stream.source for stream in streams])
    settings.preparing.framing.check(streams)
    if settings.source.join is None:
        return source, streams, None
    joined = JoinedSource(source, settings.source.join)
    return joined, list(joined.streams()), lambda: joined.missed


def _rate(settings: ReplaySettings) -> float:
    """Return the speed: a recording plays as recorded if only its newest frames count, else as fast as possible."""
    if settings.source.rate is not None:
        return settings.source.rate
    return 1.0 if settings.options.policy is Policy.LATEST and not settings.source.is_live else 0.0


def _goal(run: ModelRun, streams: Sequence[StreamInfo]) -> RunExtent:
    settings = run.settings
    counts = [stream.count for stream in streams]
    known = None not in counts and not settings.source.loop
    total = sum(count or 0 for count in counts) - run.done.count if known else None
    options = settings.options
    model = f"{options.model}/{options.version}" if options.version else options.model
    return RunExtent(total, f"{settings.source} -> {model}")

"""Run a replay from start to end: open the source, send its frames to one or several models, close, report."""

from __future__ import annotations

import logging
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext
from functools import partial
from pathlib import Path

from rich.console import Console

from mqinfer.bags.frame import Frame, FrameSource, StreamInfo, TimeRange
from mqinfer.bags.joining import JoinedSource, Miss
from mqinfer.bags.sources import open_sources
from mqinfer.client.connection import LiveRegistry
from mqinfer.client.requester import Requester
from mqinfer.client.window import Policy
from mqinfer.edge_agent.collecting.collector import Collector
from mqinfer.edge_agent.control import EdgeControl
from mqinfer.edge_agent.frames.by_source import check_sources
from mqinfer.edge_agent.model_run import ModelRun, SessionParts
from mqinfer.edge_agent.redaction import RedactedSource, Redactor
from mqinfer.edge_agent.replay import Pacer, replay
from mqinfer.edge_agent.reporting.report import Reading, RunExtent, SessionReport, progress
from mqinfer.edge_agent.settings import ReplaySettings, SourceSettings
from mqinfer.edge_agent.sinks.sink import Sink
from mqinfer.protocol.card import ModelCard
from mqinfer.protocol.control import Operation
from mqinfer.protocol.errors import BrokerUnreachable, ConfigError, LinkError

_AHEAD = 4
"""A reader may be this many frames ahead of the slowest one; they are held in memory."""


class FanOut:
    """Frames of one iterator for several readers, each on a thread of its own.

    The reader that needs the next frame first reads it from the source, and so waits until it is due. What it raises,
    every reader raises after the frames before it.

    Args:
        frames: Read once.
        readers: How many there will be.
    """

    def __init__(self, frames: Iterator[Frame], readers: int) -> None:
        self._frames = frames
        self._changed = threading.Condition()
        self._waiting: dict[int, deque[Frame]] = {number: deque() for number in range(readers)}
        self._is_reading = False
        self._end: BaseException | None = None

    @contextmanager
    def reader(self, number: int) -> Iterator[Iterator[Frame]]:
        """Yield all frames for the reader of a number, from 0; the others wait for it until the context ends."""
        try:
            yield iter(partial(self._take, self._waiting[number]), None)
        finally:
            with self._changed:
                del self._waiting[number]
                self._changed.notify_all()

    def _take(self, own: deque[Frame]) -> Frame:
        """Return the next frame of a reader, or raise what the source has ended with."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: own or self._end or self._may_read())
                if own:
                    self._changed.notify_all()
                    return own.popleft()
                if self._end is not None:
                    raise self._end
                self._is_reading = True
            self._read()

    def _may_read(self) -> bool:
        return not self._is_reading and all(len(each) < _AHEAD for each in self._waiting.values())

    def _read(self) -> None:
        frames: list[Frame] = []
        end = None
        try:
            frames.append(next(self._frames))
        except BaseException as error:  # noqa: BLE001 - each reader raises it
            end = error
        with self._changed:
            self._is_reading, self._end = False, end
            for each in self._waiting.values():
                each.extend(frames)
            self._changed.notify_all()


log = logging.getLogger("mqinfer.edge_agent")

Connect = Callable[[float], None]
"""Connects within this many seconds, or raises."""
_GRACE_S = 1.0
"""With a spool: how long to wait for the first connection and then for a card, before frames are kept without them."""
_CONNECT_S = 10.0
"""How long a connection may take before the first frame."""
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
        connect: Connects the requester: meanwhile, where it waits for live sources or a spool keeps the frames, else
            before; None where it is connected.
        on_runs: Receives the runs of the models, which can be watched from then on.
        observe: Makes a further sink for each model.

    Returns:
        One report a model, in their order.

    Raises:
        SourceError: The source cannot be opened.
        ModelNotFound: No worker serves the model.
        ConfigError: A setting is wrong, a model takes no pictures, or a file cannot be created.
    """
    check_resume(settings)
    connect = _connect_first(settings, connect)
    requester.watch(lambda: stop.set() if requester.failure else None)
    with ExitStack() as stack:
        redactor = stack.enter_context(_redactor(settings.preparing.redact))
        opened = stack.enter_context(closing(_open(settings.source, stop)))
        source, streams, told, reading = _join(opened, redactor, settings)
        shelf = LiveRegistry(requester)
        filled = sum(stream.count != 0 for stream in streams)
        pacer = Pacer(_rate(settings), wait=stop.wait)
        with _collector(settings, len(models), requester) as collector:
            site = SessionParts(requester, shelf, broker, stop, max(filled, 1), pacer, reading, observe, collector)
            is_one = len(models) == 1
            made = (ModelRun(settings.of_model(each, is_one=is_one), site, each) for each in models)
            runs = [stack.enter_context(closing(each)) for each in made]
            on_runs(runs)
            with _connecting(connect, requester, stop):
                for run in runs:
                    run.prepare(_patience(settings, requester))
                shown = [(run.statistics, _goal(run, streams)) for run in runs]
                with progress(shown, console):
                    done, is_stopped = min(run.done.count for run in runs), stop.is_set
                    frames = replay(source, pacer, loop=settings.source.loop, is_stopped=is_stopped, skipped=done)
                    _run_all(runs, frames if told is None else _counting(frames, told))
        return [run.report() for run in runs]


def check_resume(settings: ReplaySettings) -> None:
    """Refuse to go on with a run that does not keep every frame of a recording once, in their order.

    Raises:
        ConfigError: It is to go on, and these settings don't allow that.
    """
    if not settings.outputs.resume:
        return
    if settings.outputs.folder is None or "jsonl" not in settings.outputs.sinks:
        raise ConfigError("--resume goes on with the results.jsonl of --output; name its folder, with the sink jsonl")
    if settings.source.is_endless or settings.options.policy is Policy.LATEST:
        raise ConfigError("--resume needs a recording and --policy all, without --loop: others don't stop at a frame")
    if settings.cascade is not None:
        raise ConfigError("--resume is without --cascade, whose answers depend on the frames before; run it anew")
    if settings.outputs.track:
        raise ConfigError("--resume is without --track, whose ids depend on the frames before; run it anew")
    if settings.spool is not None:
        raise ConfigError("--resume is without --spool: the frames that a spool keeps are sent by the next run anyway")


def _connect_first(settings: ReplaySettings, connect: Connect | None) -> Connect | None:
    """Connect, unless frames can be read or kept before; return what connects then."""
    if connect is None or settings.source.is_service or settings.spool is not None:
        return connect
    connect(_CONNECT_S)
    return None


def _patience(settings: ReplaySettings, requester: Requester) -> float:
    """Return how long to wait for a card before the first frame."""
    if settings.spool is None:
        return settings.options.card_timeout
    return min(_GRACE_S, settings.options.card_timeout) if requester.connected else 0.0


@contextmanager
def _connecting(connect: Connect | None, requester: Requester, stop: threading.Event) -> Iterator[None]:
    """Connect on a thread of its own while the body runs, again and again until that succeeds; None is connected."""
    if connect is None:
        yield
        return
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
    fan = FanOut(frames, len(runs))

    def run(index: int) -> None:
        with fan.reader(index) as reader:
            runs[index].run(reader)

    with ThreadPoolExecutor(len(runs), thread_name_prefix="mqinfer-replay-model") as pool:
        for ended in [pool.submit(run, index) for index in range(len(runs))]:
            ended.result()


def _open(settings: SourceSettings, stop: threading.Event) -> FrameSource:
    joined = settings.join.topics if settings.join else ()
    return open_sources(
        settings.sources,
        joined or settings.topics,
        TimeRange(settings.start, settings.duration),
        depth=False,
        points=bool(joined),
        is_stopped=stop.is_set,
        waits=settings.is_service,
    )


def _redactor(model: Path | None) -> AbstractContextManager[Redactor | None]:
    """Load the detector whose boxes are filled, if there is one, to be released at the end."""
    return nullcontext() if model is None else closing(Redactor(model))


@contextmanager
def _collector(settings: ReplaySettings, models: int, requester: Requester) -> Iterator[Collector | None]:
    """Open the folder of collected frames, if there is one, and take calls for it."""
    if settings.collect is None:
        yield None
        return
    with (
        closing(Collector(settings.collect, models)) as made,
        closing(EdgeControl(requester, Operation.COLLECT, made.answer)),
    ):
        yield made


def _join(
    source: FrameSource, redactor: Redactor | None, settings: ReplaySettings
) -> tuple[FrameSource, Sequence[StreamInfo], Counter[Miss] | None, Callable[[], Reading]]:
    """Check the streams of pictures; redact and join them where that is asked for.

    Returns:
        The source of the requests; its streams; where its frames say what was lost before them, the sum of that, which
        whoever reads them adds up; and what returns the frames that were left out of joined ones, could not be
        redacted, or that a live source lost.

    Raises:
        ConfigError: A setting does not suit the streams.
    """
    redacting = None if redactor is None else RedactedSource(source, redactor, settings.preparing)
    source = redacting or source
    streams = _pictures(source.streams(), settings)
    sources = [stream.source for stream in streams]
    settings.preparing.bit_depths.check(sources)
    if settings.options.priorities is not None:
        check_sources("--priority", settings.options.priorities.by_source, sources)
    settings.preparing.framing.check(streams)
    if settings.source.join is not None:
        joined = JoinedSource(source, settings.source.join)
        return joined, list(joined.streams()), None, _reading(joined.missed, redacting)
    if redacting is None and not settings.source.is_live:
        return source, streams, None, Reading
    told = Counter[Miss]()
    return source, streams, told, _reading(told, redacting)


def _counting(frames: Iterator[Frame], told: Counter[Miss]) -> Iterator[Frame]:
    """Yield frames, and add up what they say is missing."""
    for frame in frames:
        told.update(frame.missed)
        yield frame


def _pictures(streams: Sequence[StreamInfo], settings: ReplaySettings) -> Sequence[StreamInfo]:
    """Return the streams of pictures; refuse for others what only pictures can be used for."""
    topics = [stream.source for stream in streams if not stream.is_image]
    main = settings.source.join.topics[:1] if settings.source.join else ()
    if not {*main}.isdisjoint(topics):
        raise ConfigError(f"--join: {main[0]} has points; name the topic of the main picture first")
    for option, given in (("--spool", settings.spool), ("--redact", settings.preparing.redact)):
        if given and topics:
            raise ConfigError(f"{option} is for pictures alone; leave it out, or join no topics of points: {topics[0]}")
    return [stream for stream in streams if stream.is_image]


def _reading(told: Counter[Miss], redacting: RedactedSource | None) -> Callable[[], Reading]:
    """Return what counts the frames that were left out, those included that no other frame came after."""
    if redacting is None:
        return lambda: Reading(told.copy())
    return lambda: Reading(told.copy() + redacting.missed.copy(), redacting.counts())


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

"""Run a replay from start to end: open source, spool and sinks, send the frames, close everything, report."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

from rich.console import Console

from mqinfer.bags.frame import Frame, FrameSource
from mqinfer.bags.pacing import Pacer, replay
from mqinfer.bags.sources import open_source
from mqinfer.broker.presence import Presence
from mqinfer.client.connection import CardShelf
from mqinfer.client.requester import Requester
from mqinfer.edge_agent.preparation import Preparer, choose_encoding, choose_output_encoding
from mqinfer.edge_agent.replay import Replay, ReplayOptions
from mqinfer.edge_agent.report import Goal, RunInfo, progress
from mqinfer.edge_agent.sinks.factory import SINK_KINDS, SinkSet, open_sinks
from mqinfer.edge_agent.spool import Spool
from mqinfer.edge_agent.statistics import ReplayStatistics, Snapshot
from mqinfer.images.demosaic import Demosaic
from mqinfer.protocol.card import ImageContract, ModelCard
from mqinfer.protocol.errors import ConfigError, MqinferError, SourceError
from mqinfer.protocol.states import ClientState, ClientStatus
from mqinfer.protocol.topics import Topics

__all__ = ["ReplaySettings", "SessionReport", "edge_presence", "run_session"]


@dataclass(frozen=True, slots=True)
class ReplaySettings:
    """The settings of `mqinfer replay`.

    Attributes:
        source: Bag, video, folder or camera.
        options: The model, and how frames are sent.
        topics: Image topics; empty for all.
        rate: Speed of the replay: 1 as recorded, 0 as fast as results allow.
        start: Where to start, in seconds after the first frame.
        duration: Length of the part to send, in seconds; None for all.
        loop: Start again at the end.
        encoding: Codec of the frames; None for the best that the worker decodes.
        demosaic: Method for Bayer mosaics.
        bit_depth: Significant bits of 16-bit samples.
        output: Folder for the results; None for no files.
        sinks: Kinds of files to write there.
        picture_every: Write an overlay picture every N frames.
        card_timeout: How long to wait for the model's card, in seconds.
        spool: Folder that keeps frames while there is no connection; None lets the reader wait.
        spool_bytes: Upper bound of the encoded frames there.
    """

    source: str
    options: ReplayOptions
    topics: Sequence[str] = ()
    rate: float = 0.0
    start: float = 0.0
    duration: float | None = None
    loop: bool = False
    encoding: str | None = None
    demosaic: Demosaic = Demosaic.BILINEAR
    bit_depth: int | None = None
    output: Path | None = None
    sinks: Sequence[str] = field(default=SINK_KINDS)
    picture_every: int = 10
    card_timeout: float = 10.0
    spool: Path | None = None
    spool_bytes: int = 4 << 30


@dataclass(frozen=True, slots=True)
class SessionReport:
    """The outcome of a replay.

    Attributes:
        snapshot: The counters; they add up.
        run: Its subject, and the files written.
        broke_off: Why it ended early or a kind of files is incomplete: the source broke off, a file can't be written,
            or the connection failed for good; None if all is well.
    """

    snapshot: Snapshot
    run: RunInfo
    broke_off: MqinferError | None = None


def run_session(
    settings: ReplaySettings, requester: Requester, broker: str, stop: threading.Event, console: Console
) -> SessionReport:
    """Replay a source against a model.

    Args:
        settings: What to send, and how.
        requester: Connected.
        broker: Name of the broker in the summary.
        stop: Ends the replay early once pending frames have their outcome; set if the connection fails for good.
        console: For the progress display.

    Raises:
        SourceError: The source cannot be opened.
        ModelNotFound: No worker serves the model.
        ConfigError: A setting is wrong, the model takes no pictures, or a file cannot be created.
    """
    options = settings.options
    with closing(_open(settings)) as source, _spool(settings) as spool:
        card = CardShelf(requester.link, requester.topics).get(options.model, settings.card_timeout)
        encoding = choose_encoding(settings.encoding, card)
        if options.output_encoding is None or isinstance(options.output_encoding, str):
            chosen = choose_output_encoding(options.output_encoding, card, options.version)
            options = replace(options, output_encoding=chosen)
        preparer = Preparer(_contract(card), encoding, settings.demosaic, settings.bit_depth)
        statistics = ReplayStatistics()
        sinks = _open_sinks(settings, card)
        broke_off: MqinferError | None = None
        requester.watch(lambda: stop.set() if requester.failure else None)
        try:
            with progress(statistics, _goal(settings, source), console):
                run = Replay(requester, preparer, options, statistics, sinks if settings.output else None, spool=spool)
                run.run(_frames(settings, source, stop), stop.is_set)
        except SourceError as error:
            broke_off = None if stop.is_set() else error  # a camera that stalls ends the read after a stop
        except MqinferError:
            if sinks.failure is None:  # else the report names it, with all that was counted
                raise
        finally:
            files = sinks.close()
    snapshot = statistics.snapshot()
    snapshot.check()
    damaged = 0 if spool is None else spool.damaged
    info = RunInfo(card.name, options.version or card.version, card.model_hash, broker, encoding, files, damaged)
    return SessionReport(snapshot, info, requester.failure or sinks.failure or broke_off)


def edge_presence(  # noqa: PLR0913 - what is published of an edge
    name: str, topics: Topics, source: str, model: str, *, window: int, incarnation: int | None = None
) -> Presence:
    """Return the presence of one run of an edge: `ready` at each connection, `lost` as its will.

    Args:
        name: Name of its client.
        topics: Below the root of the site.
        source: Name of its source.
        model: Name of the model that it sends to.
        window: Upper bound of its requests in flight.
        incarnation: Start number of the process; None for a new one.
    """

    def encode(status: str, incarnation: int) -> bytes:
        return ClientState(name, ClientStatus(status), incarnation, source, model, window).to_json()

    return Presence(name, topics.client_state(name), encode, status="ready", incarnation=incarnation)


def _open(settings: ReplaySettings) -> FrameSource:
    part = settings.start, settings.duration
    return open_source(settings.source, topics=settings.topics, start=part[0], duration=part[1], depth=False)


def _spool(settings: ReplaySettings) -> AbstractContextManager[Spool | None]:
    return nullcontext() if settings.spool is None else closing(Spool(settings.spool, settings.spool_bytes))


def _frames(settings: ReplaySettings, source: FrameSource, stop: threading.Event) -> Iterator[Frame]:
    return replay(source, Pacer(settings.rate, wait=stop.wait), loop=settings.loop, is_stopped=stop.is_set)


def _open_sinks(settings: ReplaySettings, card: ModelCard) -> SinkSet:
    if settings.output is None:
        return SinkSet(())
    return open_sinks(settings.output, card, settings.sinks, picture_every=settings.picture_every)


def _goal(settings: ReplaySettings, source: FrameSource) -> Goal:
    counts = [stream.count for stream in source.streams() if stream.is_image]
    known = None not in counts and not settings.loop
    total = sum(count or 0 for count in counts) if known else None
    return Goal(total, f"{settings.source} -> {settings.options.model}")


def _contract(card: ModelCard) -> ImageContract:
    if card.image is None:
        inputs = ", ".join(f"{spec.name} {spec.datatype}{list(spec.shape)}" for spec in card.inputs)
        raise ConfigError(f"model {card.name!r} takes no pictures; its inputs are {inputs}")
    return card.image

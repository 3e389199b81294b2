"""One model's part of a replay: its card, its files, its counters, and how it ended."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from pathlib import Path

from mqinfer.bags.frame import Frame
from mqinfer.client.connection import LiveRegistry
from mqinfer.client.requester import Requester
from mqinfer.codecs import available_encodings, parse_encoding
from mqinfer.edge_agent.before_card import BeforeCard, wait_for
from mqinfer.edge_agent.bit_depths import BitDepths
from mqinfer.edge_agent.preparation import Preparer, choose_encoding, choose_output_encoding
from mqinfer.edge_agent.replay import Replay, ReplayOptions
from mqinfer.edge_agent.report import Ending, RunInfo
from mqinfer.edge_agent.sinks.factory import SINK_KINDS, SinkSet, open_sinks
from mqinfer.edge_agent.spool import Spool
from mqinfer.edge_agent.statistics import ReplayStatistics, Snapshot
from mqinfer.images.demosaic import Demosaic
from mqinfer.protocol.card import ImageContract, ModelCard
from mqinfer.protocol.errors import BadEncoding, ConfigError, ModelNotFound, MqinferError, SourceError
from mqinfer.protocol.types import Outcome

__all__ = ["ModelRun", "ReplaySettings", "SessionReport", "Site"]


@dataclass(frozen=True, slots=True)
class ReplaySettings:
    """The settings of `mqinfer replay`.

    Attributes:
        source: Bag, video, folder or camera.
        options: The model, and how frames are sent.
        topics: Image topics; empty for all.
        rate: Speed of the replay: 1 as recorded, 0 as fast as results allow; None for what suits the policy.
        start: Where to start, in seconds after the first frame.
        duration: Length of the part to send, in seconds; None for all.
        loop: Start again at the end.
        encoding: Codec of the frames; None for the best that the worker decodes.
        demosaic: Method for Bayer mosaics.
        bit_depths: Significant bits of 16-bit samples, by source.
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
    rate: float | None = None
    start: float = 0.0
    duration: float | None = None
    loop: bool = False
    encoding: str | None = None
    demosaic: Demosaic = Demosaic.BILINEAR
    bit_depths: BitDepths = field(default_factory=BitDepths)
    output: Path | None = None
    sinks: Sequence[str] = field(default=SINK_KINDS)
    picture_every: int = 10
    card_timeout: float = 10.0
    spool: Path | None = None
    spool_bytes: int = 4 << 30


@dataclass(frozen=True, slots=True)
class SessionReport:
    """The outcome of one model's replay.

    Attributes:
        snapshot: The counters; they add up.
        run: Its subject, how it ended, and the files written.
        broke_off: Why it ended early or a kind of files is incomplete: the source broke off, no frame can succeed, a
            file can't be written, or there was no connection or it failed for good; None if all is well.
        is_stopped: Whether a signal ended a source without end, which is its regular end.
    """

    snapshot: Snapshot
    run: RunInfo
    broke_off: MqinferError | None = None
    is_stopped: bool = False


@dataclass(frozen=True, slots=True)
class Site:
    """What the models of one session share.

    Attributes:
        requester: Sends the frames.
        shelf: Holds the models' cards.
        broker: Name of the broker in the summary.
        stop: Set by a signal, or when the connection has failed for good.
        is_endless: Whether the source ends only by a signal.
        streams: Number of image streams of the source.
    """

    requester: Requester
    shelf: LiveRegistry
    broker: str
    stop: threading.Event
    is_endless: bool
    streams: int


class ModelRun:
    """Sends frames to one model. `prepare`, `run` and `report` in this order, then `close`."""

    def __init__(self, settings: ReplaySettings, site: Site) -> None:
        """Open the spool, if there is one.

        Args:
            settings: The model and how frames are sent; its folders are this model's own.
            site: What it shares with the other models.

        Raises:
            ConfigError: The spool can't be used.
        """
        self.statistics = ReplayStatistics()
        self.settings = settings
        self._site = site
        self._resources = ExitStack()
        self._spool: Spool | None = None
        if settings.spool is not None:
            self._spool = self._resources.enter_context(closing(Spool(settings.spool, settings.spool_bytes)))
        self._card: ModelCard | None = None
        self._encoding = settings.encoding or ""
        self._sinks = SinkSet(())
        self._replay: Replay | None = None
        self._source_error: SourceError | None = None
        self._failure: MqinferError | None = None
        self._is_read = False
        self._began = time.monotonic()

    def waiting(self) -> tuple[int, float]:
        """Return how many frames were read and have no outcome, and the age of the oldest in seconds; thread-safe."""
        now = time.monotonic()
        if self._replay is not None:
            count, since = self._replay.waiting()
        else:  # in the spool, before the model is known
            count, since = self.spooled, self._began
        return count, now - since if count else 0.0

    @property
    def spooled(self) -> int:
        """Number of frames in the spool; thread-safe."""
        return 0 if self._spool is None else len(self._spool)

    def prepare(self, timeout: float) -> None:
        """Wait for the model's card, and open the files; with a spool a card may come later.

        Args:
            timeout: For the card, in seconds.

        Raises:
            ModelNotFound: No worker serves the model, and there is no spool.
            ConfigError: A setting is wrong, the model takes no pictures, or a file can't be created.
        """
        stop, shelf = self._site.stop, self._site.shelf
        if not wait_for(self._find, timeout, stop) and self._spool is None and not stop.is_set():
            self._begin(shelf.get(self.settings.options.model, 0.0))  # raises, with the models that there are

    def _begin(self, card: ModelCard) -> None:
        settings, options = self.settings, self.settings.options
        self._encoding = choose_encoding(settings.encoding, card)
        if options.output_encoding is None or isinstance(options.output_encoding, str):
            chosen = choose_output_encoding(options.output_encoding, card, options.version)
            options = replace(options, output_encoding=chosen)
        preparer = Preparer(_contract(card), self._encoding, settings.demosaic, settings.bit_depths)
        if settings.output is not None:
            self._sinks = open_sinks(settings.output, card, settings.sinks, picture_every=settings.picture_every)
        sink = None if settings.output is None else self._sinks
        site = self._site
        self._replay = Replay(
            site.requester, preparer, options, self.statistics, sink, spool=self._spool, streams=site.streams
        )
        self._card = card

    def run(self, frames: Iterator[Frame]) -> None:
        """Send every frame, and return when all of them have their outcome or stay in the spool.

        Raises:
            ConfigError: A card that came late does not suit the settings.
        """
        left: Iterator[Frame] | None = frames
        try:
            if self._replay is None and self._spool is not None:
                left = self._keep(frames, self._spool)
            if left is not None and self._replay is not None:
                self._replay.run(left, self._site.stop.is_set)
        except SourceError as error:
            self._source_error = error
        except MqinferError as error:
            if self._replay is None:
                raise
            self._failure = error
        finally:
            self._is_read = self._is_read or (self._replay is not None and self._replay.is_complete)

    def _keep(self, frames: Iterator[Frame], spool: Spool) -> Iterator[Frame] | None:
        """Keep frames in the spool until the card is there; return those that are left, or None if it did not come."""
        settings, stop = self.settings, self._site.stop
        preparer = _recording_preparer(settings)
        before = BeforeCard(settings.options.model, preparer, spool, self.statistics, find=self._find, stop=stop)
        left = before.keep(frames, settings.card_timeout)
        self._is_read, self._source_error = before.is_read, before.error
        if left is None:
            why = before.abandon(self._absence)
            self._failure = None if stop.is_set() else why
        return left

    def _find(self, timeout: float) -> bool:
        """Wait for the model's card; return whether it is there."""
        if self._replay is not None:
            return True
        try:
            card = self._site.shelf.get(self.settings.options.model, timeout)
        except ModelNotFound:
            return False
        self._begin(card)
        return True

    @property
    def _absence(self) -> str:
        if not self._site.requester.connected:
            return f"there was no connection to {self._site.broker}"
        return f"no worker has published a card for model {self.settings.options.model!r}"

    def report(self) -> SessionReport:
        """Close the files, and return what became of the frames."""
        files = self._sinks.close()
        snapshot = self.statistics.snapshot()
        snapshot.check()
        ended, why = self._ending(snapshot)
        card, options = self._card, self.settings.options
        run = RunInfo(
            options.model,
            options.version or (card.version if card else ""),
            card.model_hash if card else "",
            self._site.broker,
            self._encoding,
            files,
            0 if self._spool is None else self._spool.damaged,
            ended,
            str(why or ""),
        )
        is_stopped = self._site.is_endless and self._site.stop.is_set()
        return SessionReport(snapshot, run, why, is_stopped)

    def _ending(self, snapshot: Snapshot) -> tuple[Ending, MqinferError | None]:
        site = self._site
        failure = site.requester.failure or self._sinks.failure
        if failure:
            return Ending.FAILED, failure
        is_stopped = site.stop.is_set()
        if self._source_error and not is_stopped:  # a camera that stalls ends the read after a stop
            return Ending.INCOMPLETE, self._source_error
        if is_stopped and not site.is_endless and (snapshot.outcomes[Outcome.CANCELLED] or not self._is_read):
            return Ending.INTERRUPTED, None
        failure = self._failure or self._nothing_read(snapshot)
        return (Ending.FAILED, failure) if failure else (Ending.COMPLETE, None)

    def _nothing_read(self, snapshot: Snapshot) -> ConfigError | None:
        start = self.settings.start
        if not self._is_read or snapshot.frames_read or not start:
            return None
        return ConfigError(f"{self.settings.source}: there is no frame from {start:g} s on; choose an earlier start")

    def close(self) -> None:
        """Close what is open."""
        self._sinks.close()
        self._resources.close()


def _recording_preparer(settings: ReplaySettings) -> Preparer:
    """Return a preparer for frames of a model that is not known yet: recorded size, and an input without a name."""
    encoding = settings.encoding or ("jpeg:90" if "jpeg" in available_encodings() else "lz4")
    try:
        parse_encoding(encoding)
    except BadEncoding as error:
        raise ConfigError(str(error)) from error
    return Preparer(ImageContract(""), encoding, settings.demosaic, settings.bit_depths)


def _contract(card: ModelCard) -> ImageContract:
    if card.image is None:
        inputs = ", ".join(f"{spec.name} {spec.datatype}{list(spec.shape)}" for spec in card.inputs)
        raise ConfigError(f"model {card.name!r} takes no pictures; its inputs are {inputs}")
    return card.image

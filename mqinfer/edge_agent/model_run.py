"""One model's part of a replay: its card, its files, its counters, and how it ended."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path

from mqinfer.bags.frame import Frame
from mqinfer.client.connection import LiveRegistry
from mqinfer.client.requester import Requester
from mqinfer.client.watching.absence import RETAINED_S, Absence
from mqinfer.codecs import available_encodings
from mqinfer.edge_agent.cascade.building import make_cascade
from mqinfer.edge_agent.cascade.cascade import Cascade
from mqinfer.edge_agent.collecting.collector import Collector
from mqinfer.edge_agent.control import EdgeControl
from mqinfer.edge_agent.frames.encoding import AUTO
from mqinfer.edge_agent.preparing.choices import check_alone, choose_contracts, choose_encoding, choose_output_encoding
from mqinfer.edge_agent.preparing.points import PointsPreparer
from mqinfer.edge_agent.preparing.preparer import Preparer
from mqinfer.edge_agent.previews import Previews
from mqinfer.edge_agent.replay import Pacer, Replay
from mqinfer.edge_agent.reporting.report import Ending, Reading, SessionReport
from mqinfer.edge_agent.reporting.statistics import FrameCounts, ReplayStatistics, Snapshot
from mqinfer.edge_agent.resuming import NOTHING, begin_run, describe_run, open_earlier
from mqinfer.edge_agent.settings import ReplayOptions, ReplaySettings
from mqinfer.edge_agent.sinks.factory import ON_LINK, ROS2, WITHOUT_FILES, SinkSet, open_sinks
from mqinfer.edge_agent.sinks.homeassistant import HomeAssistant
from mqinfer.edge_agent.sinks.mqtt_sink import MqttSink
from mqinfer.edge_agent.sinks.parquet_sink import kept_rows
from mqinfer.edge_agent.sinks.presence import ModelPresence, PresenceSettings
from mqinfer.edge_agent.sinks.ros.ros2_sink import Ros2Sink
from mqinfer.edge_agent.sinks.sink import Earlier, Sink
from mqinfer.edge_agent.spooling.before_card import BeforeCard, wait_for
from mqinfer.edge_agent.spooling.spool import Spool
from mqinfer.protocol.card import ImageContract, ModelCard
from mqinfer.protocol.control import Operation
from mqinfer.protocol.errors import ConfigError, ModelNotFound, MqinferError, SourceError
from mqinfer.protocol.states import StreamState
from mqinfer.protocol.types import Outcome

log = logging.getLogger("mqinfer.edge_agent")
# fmt: off
_NO_MATTER = (
    "card_timeout", "collect", "is_service", "loop", "options", "outputs", "policy", "preparing", "preview_rate",
    "rate", "source", "spool", "timeout", "window",
)
# fmt: on
"""Settings that a result does not depend on."""


@dataclass(frozen=True, slots=True)
class SessionParts:
    """What the models of one session share.

    Attributes:
        requester: Sends the frames.
        shelf: Holds the models' cards.
        broker: Name of the broker in the summary.
        stop: Set by a signal, or when the connection has failed for good.
        streams: Number of image streams of the source.
        pacer: Holds the frames back until they are due.
        reading: Returns what became of frames before they were sent.
        observe: Makes a further sink for a model from its settings and its card; None for none.
        collector: Keeps the frames that matter; None to keep none.
    """

    requester: Requester
    shelf: LiveRegistry
    broker: str
    stop: threading.Event
    streams: int
    pacer: Pacer
    reading: Callable[[], Reading] = Reading
    observe: Callable[[ReplaySettings, ModelCard], Sink] | None = None
    collector: Collector | None = None


class ModelRun:
    """Sends frames to one model. `prepare`, `run` and `report` in this order, then `close`.

    Args:
        settings: The model and how frames are sent; its folders are this model's own.
        site: What it shares with the other models.
        name: Its name among them: the model's, or `model/version`.

    Raises:
        ConfigError: The spool can't be used.
    """

    def __init__(self, settings: ReplaySettings, site: SessionParts, name: str) -> None:
        self.statistics = ReplayStatistics()
        self.settings, self.name = settings, name
        self._site = site
        self._resources = ExitStack()
        self._spool: Spool | None = None
        if settings.spool is not None:
            check_alone(settings.preparing.encoding or AUTO)
            redacts = settings.preparing.redact is not None
            spool = Spool(settings.spool.folder, settings.spool.max_bytes, redacts=redacts)
            self._spool = self._resources.enter_context(closing(spool))
        self._card: ModelCard | None = None
        self._encoding = settings.preparing.encoding or ""
        self._points: Counter[tuple[str, str]] = Counter()
        self._sinks = SinkSet(())
        self._answers: MqttSink | None = None
        self._replay: Replay | None = None
        self._previews = Previews(site.requester, settings.options.model, settings.options.preview_rate)
        self._source_error: SourceError | None = None
        self._failure: MqinferError | None = None
        self.done = NOTHING
        """The frames that an earlier run has done; known once it is prepared."""
        self._is_read = False
        self._began = time.monotonic()

    @property
    def pending(self) -> int:
        """Number of frames that were read and have no outcome, without those that a spool keeps; takes no lock."""
        return 0 if self._replay is None else self._replay.pending

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

    def streams(self) -> Iterator[tuple[FrameCounts, StreamState]]:
        """Yield what became of each stream, with its state but for the rate; thread-safe."""
        windows = {} if self._replay is None else self._replay.windows()
        on_disk = self.spooled
        for each in self.statistics.counts():
            window, in_flight = windows.get(each.source, (0, 0))
            waits = max(0, each.pending - in_flight) if self._replay else each.frames_read
            spooled = min(waits, on_disk)  # with a spool nothing else waits but what is being prepared
            previews = self._previews.of(each.source)
            yield (
                each,
                StreamState(
                    each.source,
                    self.settings.options.model,
                    window=window,
                    queued=waits - spooled,
                    in_flight=in_flight,
                    outcomes={outcome.value: count for outcome, count in each.outcomes.items() if count},
                    dropped=each.dropped,
                    spooled=spooled,
                    previews=previews.published,
                    previews_dropped=sum(previews.dropped.values()),
                ),
            )

    def prepare(self, timeout: float) -> None:
        """Wait for the model's card, and open the files; with a spool a card may come later.

        Args:
            timeout: For the card, in seconds.

        Raises:
            ModelNotFound: No worker serves the model, and there is no spool.
            ConfigError: A setting is wrong, the model takes no pictures, or a file can't be created.
        """
        stop, shelf = self._site.stop, self._site.shelf
        has_come = wait_for(self._find, min(timeout, RETAINED_S), stop)
        if not has_come and not self._is_mistyped():
            has_come = wait_for(self._find, timeout, stop)
        if not has_come and self._spool is None and not stop.is_set():
            self._begin(shelf.get(self.settings.options.model, 0.0))  # raises, with the models that there are

    def _is_mistyped(self) -> bool:
        """Return whether a recording need not wait: a model of nearly this name is there, and this one nowhere."""
        settings = self.settings
        waits = settings.source.is_service or self._spool is not None
        return not waits and Absence(self._site.requester).is_mistyped(settings.options.model)

    def _begin(self, card: ModelCard) -> None:
        settings, options = self.settings, self.settings.options
        self._encoding = choose_encoding(settings.preparing.encoding, card, alone=self._spool is not None)
        if options.output_encoding is None or isinstance(options.output_encoding, str):
            chosen = choose_output_encoding(options.output_encoding, card, options.version)
            options = replace(options, output_encoding=chosen)
        preparer = self._make_preparer(card)
        if settings.outputs.folder is not None:
            self._open(settings.outputs.folder, options, card)
        self._add_sinks(card)
        site, published = self._site, set(WITHOUT_FILES) & set(settings.outputs.sinks)
        made = Replay(
            site.requester,
            preparer,
            options,
            self.statistics,
            self._sinks if settings.outputs.folder or site.observe or site.collector or published else None,
            spool=self._spool,
            streams=site.streams,
            pacer=site.pacer,
            cascade=self._make_cascade(card, preparer),
            previews=self._previews,
            classes=card.classes,
            track=settings.outputs.track,
        )
        self._replay = self._resources.enter_context(closing(made))
        self._card = card

    def _make_preparer(self, card: ModelCard) -> Preparer:
        preparing = self.settings.preparing
        how = self._encoding, preparing.demosaic, preparing.bit_depths, preparing.framing
        main, others = choose_contracts(card, self.settings.source.join)
        prepared = [
            Preparer(each, *how) if isinstance(each, ImageContract) else PointsPreparer.of(each, card, self._points)
            for each in others
        ]
        return Preparer(main, *how, tuple(prepared))

    def _add_sinks(self, card: ModelCard) -> None:
        """Add those that need no folder of results."""
        site, settings = self._site, self.settings
        if site.observe is not None:
            self._sinks.add(site.observe(settings, card))
        if site.collector is not None:
            self._sinks.add(site.collector.sink(settings.cascade))
        if set(ON_LINK) & set(settings.outputs.sinks):
            self._answers = self._make_answers(card)
            self._sinks.add(self._answers)
        if ROS2 in settings.outputs.sinks:
            self._sinks.add(Ros2Sink(card))

    def _make_answers(self, card: ModelCard) -> MqttSink:
        site, outputs, kinds = self._site, self.settings.outputs, self.settings.outputs.sinks
        watched = outputs.presence or (PresenceSettings() if "homeassistant" in kinds else None)
        target = self.settings.cascade.target if self.settings.cascade else None
        presence = ModelPresence(watched, card.classes, target) if watched else None
        shown = None
        if presence and "homeassistant" in kinds:
            shown = HomeAssistant(site.requester.topics, presence, has_all="mqtt" in kinds, is_stopped=site.stop.is_set)
        what = site.requester, self.settings.options.model
        return MqttSink(*what, retain=outputs.retain, presence=presence, homeassistant=shown)

    def _make_cascade(self, card: ModelCard, preparer: Preparer) -> Cascade | None:
        settings, site = self.settings, self._site
        if settings.cascade is None:
            return None
        made = make_cascade(settings.cascade, card, preparer, site.shelf, settings.options, site.requester)
        self._resources.enter_context(closing(made))
        self._resources.enter_context(
            closing(EdgeControl(site.requester, Operation.CASCADE, made.answer, slow="version"))
        )
        return made

    def _open(self, output: Path, options: ReplayOptions, card: ModelCard) -> None:
        """Open the files; those of an earlier run once the recording is known to be the same."""
        settings = self.settings
        version = card.parameters.labels.get(options.version or card.version, options.version or card.version)
        model_hash = card.parameters.model_hash if version == card.version else ""
        found = {"encoding": self._encoding, "version": version, "model_hash": model_hash}
        parts = settings, settings.source, settings.preparing, options
        run = describe_run(parts, _NO_MATTER, sources=settings.source.shown, **found)
        if settings.outputs.resume:
            rows = kept_rows(output) if "parquet" in settings.outputs.sinks else None
            self.done = open_earlier(output, run, rows) or NOTHING
        if self.done is NOTHING:
            begin_run(output, run)
            self._open_sinks(output, card)

    def _open_sinks(self, output: Path, card: ModelCard) -> None:
        outputs = self.settings.outputs
        same = None if self.done is NOTHING else Earlier(self.done.model_hash, self.done.count)
        opened = open_sinks(output, card, outputs.sinks, picture_every=outputs.picture_every, goes_on_with=same)
        self._sinks.adopt(opened)

    def _skip_done(self, frames: Iterator[Frame]) -> None:
        """Read over the frames that an earlier run has done, and go on with its files."""
        output, card = self.settings.outputs.folder, self._card
        if not self.done.skip(frames, self._site.stop.is_set) or self.done is NOTHING or output is None or card is None:
            return
        self.done.cut()
        self._open_sinks(output, card)
        log.info("%s: %d frames have their result, and the run goes on with the next one", output, self.done.count)

    def run(self, frames: Iterator[Frame]) -> None:
        """Send every frame that has no result yet, and return when all of them have their outcome or stay in the spool.

        Raises:
            ConfigError: A card that came late does not suit the settings.
        """
        left: Iterator[Frame] | None = frames
        try:
            if self._replay is None and self._spool is not None:
                left = self._keep(frames, self._spool)
            if left is not None and self._replay is not None:
                self._skip_done(left)
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
        left = before.keep(frames, settings.options.card_timeout)
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

    @property
    def reading(self) -> Reading:
        """What became of frames beside their requests, so far; thread-safe."""
        site = self._site
        collected = None if site.collector is None else site.collector.counts
        return replace(site.reading(), points=self._points, collected=collected)

    def report(self) -> SessionReport:
        """Close the files, and return what became of the frames."""
        files = self._sinks.close()
        snapshot = self.statistics.snapshot()
        snapshot.check()
        ended, why = self._ending(snapshot)
        card, options, site = self._card, self.settings.options, self._site
        return SessionReport(
            snapshot,
            options.model,
            options.version or (card.version if card else ""),
            card.parameters.model_hash if card else "",
            site.broker,
            self._encoding,
            files,
            spool_damaged=0 if self._spool is None else self._spool.damaged,
            ended=ended,
            broke_off=why,
            is_stopped=self.settings.source.is_endless and site.stop.is_set(),
            clocks={} if self._replay is None else self._replay.clocks.offsets(),
            reading=self.reading,
            previews=None if options.preview_rate is None else self._previews.total,
            answers=None if self._answers is None else self._answers.counts,
        )

    def _ending(self, snapshot: Snapshot) -> tuple[Ending, MqinferError | None]:
        is_stopped = self._site.stop.is_set()
        if failure := self._site.requester.failure or self._sinks.failure:
            return Ending.FAILED, failure
        if self._source_error and not is_stopped:  # a camera that stalls ends the read after a stop
            return Ending.INCOMPLETE, self._source_error
        if is_stopped and self._is_cut_short(snapshot):
            return Ending.INTERRUPTED, None
        failure = self._failure or self._nothing_read(snapshot)
        return (Ending.FAILED, failure) if failure else (Ending.COMPLETE, None)

    def _is_cut_short(self, snapshot: Snapshot) -> bool:
        """Return whether a stop came before the end of the source, or of a frame."""
        return not self.settings.source.is_endless and not (self._is_read and not snapshot.outcomes[Outcome.CANCELLED])

    def _nothing_read(self, snapshot: Snapshot) -> ConfigError | None:
        missed = self._site.reading().missed
        if not self._is_read or snapshot.frames_read or self.done.count or not missed:
            return None
        if self.settings.source.join is None:
            reasons = ", ".join(sorted({why for _, why in missed}))
            return ConfigError(f"{self.settings.source}: no frame was sent: {reasons}; the log has the first error")
        return ConfigError(
            f"{self.settings.source}: no frames go together, so none was sent; join topics of the same moments, or "
            "raise --tolerance"
        )

    def close(self) -> None:
        """Close what is open."""
        self._sinks.close()
        self._resources.close()


def _recording_preparer(settings: ReplaySettings) -> Preparer:
    """Return a preparer for frames of a model that is not known yet: recorded size, and an input without a name."""
    usual = "jpeg:90" if "jpeg" in available_encodings() else "lz4"
    preparing, join = settings.preparing, settings.source.join
    encoding = usual if preparing.encoding in {None, AUTO} else preparing.encoding
    how = ImageContract(""), encoding, preparing.demosaic, preparing.bit_depths
    others = join.frames - 1 if join else 0
    return Preparer(*how, others=tuple(Preparer(*how) for _ in range(others)))

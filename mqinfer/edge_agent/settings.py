"""The settings of a replay: made once from the options of a command, in groups by what they are about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from mqinfer.bags.joining import PREVIOUS, Join
from mqinfer.bags.sources import is_live
from mqinfer.client.window import Policy
from mqinfer.edge_agent.collecting.collector import CollectSettings
from mqinfer.edge_agent.frames.by_source import Priorities
from mqinfer.edge_agent.preparing.framing import BitDepths, Framing
from mqinfer.edge_agent.preparing.quality_ladder import QualityBounds
from mqinfer.edge_agent.sinks.factory import DEFAULT_SINKS
from mqinfer.edge_agent.sinks.presence import PresenceSettings
from mqinfer.images.pixel_format import Demosaic
from mqinfer.judging.settings import CascadeSettings
from mqinfer.logs import without_logins


@dataclass(frozen=True, slots=True)
class SourceSettings:
    """The frames that are read.

    Attributes:
        sources: Bags, videos and folders, or cameras; see `mqinfer.bags.sources.open_sources`.
        topics: Image topics; empty for all.
        join: The pictures of one request; None for one.
        rate: Speed of the replay: 1 as recorded, 0 as fast as results allow; None for what suits the policy.
        start: Where to start, in seconds after the first frame.
        duration: Length of the part to send, in seconds; None for all.
        loop: Start again at the end.
        is_service: Whether it waits for live sources that are away at the start.
    """

    sources: Sequence[str]
    topics: Sequence[str] = ()
    join: Join | None = None
    rate: float | None = None
    start: float = 0.0
    duration: float | None = None
    loop: bool = False
    is_service: bool = False

    @property
    def is_live(self) -> bool:
        """Whether the frames are those of cameras, not of a recording."""
        return is_live(self.sources[0])

    @property
    def is_endless(self) -> bool:
        """Whether they end only by a signal."""
        return self.loop or self.is_live

    @property
    def shown(self) -> tuple[str, ...]:
        """The sources without the credentials in addresses."""
        return tuple(map(without_logins, self.sources))

    def __str__(self) -> str:
        return ", ".join(self.shown)


@dataclass(frozen=True, slots=True)
class PreparingSettings:
    """The way from a recorded frame to the tensor that travels.

    Attributes:
        encoding: Codec of the frames; None for the best that the worker decodes.
        demosaic: Method for Bayer mosaics.
        bit_depths: Significant bits of 16-bit samples, by source.
        framing: Whether frames are rectified, and which region of them is sent.
        redact: Folder of the detector whose boxes are filled; None to send frames as they are.
    """

    encoding: str | None = None
    demosaic: Demosaic = Demosaic.BILINEAR
    bit_depths: BitDepths = field(default_factory=BitDepths)
    framing: Framing = field(default_factory=Framing)
    redact: Path | None = None


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """How frames are sent.

    Attributes:
        model: Name of the model.
        version: Version of the model; None for the one that its policy prefers.
        window: Upper bound of the requests of one stream in flight.
        timeout: Of each request, in seconds.
        output_encoding: Codec of the results, one for all or by output; None for what suits the model's outputs.
        policy: What happens to a frame that arrives while the window is full.
        quality: Bounds of the quality ladder.
        card_timeout: How long to wait for the model's card, in seconds.
        preview_rate: Previews a second of each stream that are published for dashboards; None for none.
        priorities: Which frames go first, where they wait; None where they state none.
    """

    model: str
    version: str | None = None
    window: int = 8
    timeout: float = 60.0
    output_encoding: str | Mapping[str, str] | None = None
    policy: Policy = Policy.ALL
    quality: QualityBounds = field(default_factory=QualityBounds)
    card_timeout: float = 10.0
    preview_rate: float | None = None
    priorities: Priorities | None = None


@dataclass(frozen=True, slots=True)
class SpoolSettings:
    """The store for frames while there is no connection.

    Attributes:
        folder: Keeps one file a frame.
        max_bytes: Upper bound of the encoded frames there.
    """

    folder: Path
    max_bytes: int = 4 << 30


@dataclass(frozen=True, slots=True)
class OutputSettings:
    """The files of results.

    Attributes:
        folder: Holds them; None for no files.
        sinks: Kinds of files to write there.
        picture_every: Write an overlay picture every N frames.
        resume: Go on with the results in the folder, with the first frame that has none.
        retain: Have the broker keep the last answer of each stream that the sink `mqtt` publishes.
        presence: What is watched for being there, for the same sink; None for nothing.
        track: Whether objects get ids that follow them over the frames.
    """

    folder: Path | None = None
    sinks: Sequence[str] = DEFAULT_SINKS
    picture_every: int = 10
    resume: bool = False
    retain: bool = False
    presence: PresenceSettings | None = None
    track: bool = False


@dataclass(frozen=True, slots=True)
class ReplaySettings:
    """The settings of one run.

    Attributes:
        source: The frames that are read.
        options: The model, and how frames are sent.
        preparing: The way from a recorded frame to the tensor that travels.
        outputs: The files of results.
        spool: Keeps frames while there is no connection; None lets the reader wait.
        cascade: Answers frames on the edge where it can; None to send all of them.
        collect: Keeps the frames that matter as they were read; None to keep none.
    """

    source: SourceSettings
    options: ReplayOptions
    preparing: PreparingSettings = field(default_factory=PreparingSettings)
    outputs: OutputSettings = field(default_factory=OutputSettings)
    spool: SpoolSettings | None = None
    cascade: CascadeSettings | None = None
    collect: CollectSettings | None = None

    def describe(self) -> dict[str, object]:
        """Return what a report shows of them, by name; what is not set is left out."""
        source, options = self.source, self.options
        shown: dict[str, object] = {
            "source": str(source),
            "topics": ", ".join(source.topics),
            "joined": None if source.join is None else ", ".join(source.join.topics or (PREVIOUS,)),
            "policy": options.policy,
            "window": options.window,
            "timeout, s": options.timeout,
            "rate": source.rate,
            "start, s": source.start or None,
            "duration, s": source.duration,
            "demosaic": self.preparing.demosaic,
            "redact": self.preparing.redact,
            "least results a second": options.quality.min_rate or None,
            "previews a second": options.preview_rate,
            "output": self.outputs.folder,
            "spool": self.spool and self.spool.folder,
            "collect": self.collect and self.collect.folder,
        }
        return {name: value for name, value in shown.items() if value not in {None, ""}}

    def of_model(self, model: str, *, is_one: bool) -> ReplaySettings:
        """Return the settings of one of the models: of several, its files are in folders of its name."""
        name, _, version = model.partition("/")
        own = replace(self, options=replace(self.options, model=name, version=version or self.options.version))
        if is_one:
            return own
        folder, spool = self.outputs.folder, self.spool
        return replace(
            own,
            outputs=replace(self.outputs, folder=folder and folder / model),
            spool=spool and replace(spool, folder=spool.folder / model),
        )

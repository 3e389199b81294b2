"""Options of the subcommands that send frames to models: how they are sent, and where the results go."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from mqinfer.bags.joining import Join
from mqinfer.cli.options import MetricsBind, MetricsPort, OtlpEndpoint, TakeOver, with_group
from mqinfer.client.window import Policy
from mqinfer.edge_agent.collecting.collector import CollectSettings
from mqinfer.edge_agent.frames.by_source import Priorities, read_by_source, whole_number
from mqinfer.edge_agent.preparing.framing import BitDepths, Framing
from mqinfer.edge_agent.preparing.quality_ladder import QualityBounds
from mqinfer.edge_agent.previews import check_rate
from mqinfer.edge_agent.settings import (
    OutputSettings,
    PreparingSettings,
    ReplayOptions,
    ReplaySettings,
    SourceSettings,
    SpoolSettings,
)
from mqinfer.edge_agent.sinks.factory import DEFAULT_SINKS, ON_LINK, ROS2, SINK_KINDS, WITHOUT_FILES, check_kinds
from mqinfer.edge_agent.sinks.presence import PresenceSettings
from mqinfer.extras import check_packages
from mqinfer.images.pixel_format import Demosaic
from mqinfer.judging.settings import CascadeSettings, read_settings
from mqinfer.metrics.endpoint import LOOPBACK
from mqinfer.models.repository.tables import read_toml, table_of
from mqinfer.protocol.errors import ConfigError

_CARD_TIMEOUT_S = 10.0
_TIMEOUT_S = {Policy.LATEST: 2.0, Policy.ALL: 300.0}


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """The models that frames go to."""

    model: Annotated[
        list[str] | None,
        typer.Option(
            help="Name of the model, or NAME/VERSION; may be repeated: the source is read once for all of them."
        ),
    ] = None
    cascade: Annotated[
        Path | None,
        typer.Option(help="File of a cascade, instead of --model: the edge answers what it can, the model the rest."),
    ] = None
    version: Annotated[
        str | None,
        typer.Option(help="Version of the model, or a label such as stable; the default version if omitted."),
    ] = None

    @property
    def models(self) -> list[str]:
        """The models, each once."""
        return list(dict.fromkeys(self.model or ()))


@dataclass(frozen=True, slots=True)
class TopicOptions:
    """The frames of the sources that are sent."""

    topic: Annotated[
        list[str] | None,
        typer.Option(help="Image topic of the bag; may be repeated. By default all but depth."),
    ] = None
    join: Annotated[
        list[str] | None,
        typer.Option(
            help="Topics whose frames go to the model together, /left,/right or INPUT=TOPIC for each input, the main "
            "picture first; or previous, for the frame before."
        ),
    ] = None
    tolerance: Annotated[
        float, typer.Option(help="How far apart joined frames may be taken, in seconds; 0 for the same stamp.")
    ] = 0


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """The requests: how many at a time, how long each may take, and how they shrink on a thin link."""

    window: Annotated[
        int, typer.Option(help="Largest number of requests in flight for each stream.", min=1, max=1000)
    ] = 8
    policy: Annotated[
        Policy | None,
        typer.Option(
            help="When the window is full: latest keeps only the newest frame, all lets the reader wait. "
            "By default latest for cameras, all for recordings."
        ),
    ] = None
    timeout: Annotated[
        float | None,
        typer.Option(
            help="Time limit of each request, in seconds; by default 300, or 2 with latest.", min=0.001, max=1e6
        ),
    ] = None
    priority: Annotated[
        list[str] | None,
        typer.Option(
            help="Which frames go first, here and at workers whose model has priority_levels: 1 (the highest) or "
            "/topic=1; may be repeated. The model's default if omitted."
        ),
    ] = None
    min_rate: Annotated[
        float,
        typer.Option(help="Lower JPEG quality, then size, while fewer results a second arrive; 0 for never.", min=0),
    ] = 0
    min_quality: Annotated[int, typer.Option(help="Lowest JPEG quality for --min-rate.", min=1, max=100)] = 50
    min_scale: Annotated[
        float, typer.Option(help="Smallest factor on width and height for --min-rate.", min=0.1, max=1)
    ] = 0.5


@dataclass(frozen=True, slots=True)
class PreparingOptions:
    """What a request carries, and what its result."""

    encoding: Annotated[
        str | None,
        typer.Option(
            help="Codec of the frames: jpeg[:1-100], png[:0-9], lz4 or raw; bayer[:png|lz4] sends Bayer mosaics as "
            "recorded; h264[:LEVEL] encodes each frame against the one before, where LEVEL is a quality (0-51, 23 by "
            "default, 0 is best) or kbit/s for 30 frames a second; auto chooses by what it measures. By default "
            "jpeg:90, or lz4 if the worker can't decode JPEG."
        ),
    ] = None
    output_encoding: Annotated[
        str | None,
        typer.Option(
            help="Codec of the results: mask, lz4, raw or png; by default mask for class masks, lz4 for others."
        ),
    ] = None
    demosaic: Annotated[Demosaic, typer.Option(help="Method for Bayer mosaics.")] = Demosaic.BILINEAR
    bit_depth: Annotated[
        list[str] | None,
        typer.Option(help="Significant bits of 16-bit samples, 12 or /topic=12; may be repeated. 16 by default."),
    ] = None
    rectify: Annotated[
        bool, typer.Option("--rectify", help="Remove the distortion of the lens by the bag's CameraInfo.")
    ] = False
    roi: Annotated[
        list[str] | None,
        typer.Option(
            help="Region of the (rectified) frame that is sent, in pixels: X,Y,WIDTH,HEIGHT or "
            "/topic=X,Y,WIDTH,HEIGHT; may be repeated. The whole frame by default."
        ),
    ] = None
    redact: Annotated[
        Path | None,
        typer.Option(
            help="Fill the boxes of a detector with grey in every frame, before anything is sent or written: its "
            "folder in a model repository, such as models/faces. A frame where that fails is left out.",
            metavar="MODEL",
        ),
    ] = None
    preview: Annotated[
        float | None,
        typer.Option(
            help="Publish small pictures of what the model gets for dashboards, at most RATE a second of each stream, "
            "0.2 to 10. None by default.",
            metavar="RATE",
        ),
    ] = None

    def settings(self) -> PreparingSettings:
        """Return them as a run takes them.

        Raises:
            ConfigError: One is wrong.
        """
        framing = Framing.parse(self.roi or (), rectify=self.rectify)
        depths = BitDepths.parse(self.bit_depth or ())
        return PreparingSettings(self.encoding, self.demosaic, depths, framing, self.redact)


_PACKAGES = {"parquet": {"pyarrow": "pyarrow"}, ROS2: {"cyclonedds": "cyclonedds"}}
"""What kinds of results need, by the extra of the same name."""


@dataclass(frozen=True, slots=True)
class OutputOptions:
    """The files that a run leaves."""

    output: Annotated[
        Path | None,
        typer.Option(
            help="Folder for the results; with several models each has a folder of its name there. Files of earlier "
            "runs are kept under numbers (results.1.jsonl). No files by default."
        ),
    ] = None
    sink: Annotated[
        list[str] | None,
        typer.Option(
            help=f"Kind of results: {', '.join(SINK_KINDS)}; may be repeated. By default {', '.join(DEFAULT_SINKS)}."
        ),
    ] = None
    retain: Annotated[
        bool, typer.Option("--retain", help="Have the broker keep the last answer of each stream, of --sink mqtt.")
    ] = False
    presence: Annotated[
        Path | None,
        typer.Option(
            help="TOML file of what --sink mqtt and homeassistant watch for being there: classes, zones and lines; "
            "an empty file for all classes of the model."
        ),
    ] = None
    track: Annotated[
        bool, typer.Option("--track", help="Give detected objects ids that follow them over the frames of a stream.")
    ] = False
    picture_every: Annotated[int, typer.Option(help="Write an overlay picture every N frames.", min=1)] = 10
    summary_file: Annotated[
        Path | None,
        typer.Option("--summary", help="JSON file for the summary; that of an earlier run is kept under a number."),
    ] = None
    report: Annotated[
        Path | None,
        typer.Option(
            help="HTML file for a report with latencies over time and the worst frames; one of an earlier run is kept "
            "under a number."
        ),
    ] = None

    def sinks(self) -> Sequence[str]:
        """Return the kinds of results.

        Raises:
            ConfigError: One is unknown, or there is no folder for those that are asked for.
            MissingExtra: A package that one needs is not installed.
        """
        kinds = check_kinds(self.sink or DEFAULT_SINKS)
        for kind in _PACKAGES.keys() & kinds:
            check_packages(_PACKAGES[kind], kind)
        files = [each for each in kinds if each not in WITHOUT_FILES]
        if self.sink and files and self.output is None:
            raise ConfigError(f"--sink {files[0]} writes into the folder of --output; name one")
        for option, given in (("--retain", self.retain), ("--presence", self.presence)):
            if given and not set(ON_LINK) & set(kinds):
                raise ConfigError(f"{option} is of the answers that are published; add --sink {' or '.join(ON_LINK)}")
        return kinds

    def watched(self) -> PresenceSettings | None:
        """Return what is watched for being there; None for nothing.

        Raises:
            ConfigError: The file can't be read, or is wrong.
        """
        return read_toml(self.presence, table_of(PresenceSettings)) if self.presence else None


@dataclass(frozen=True, slots=True)
class SpoolOptions:
    """The store for frames while there is no connection."""

    spool: Annotated[
        Path | None,
        typer.Option(help="Folder that keeps frames while there is no connection, also before the first one."),
    ] = None
    spool_mb: Annotated[int, typer.Option(help="Bound of the spool, in megabytes of encoded frames.", min=1)] = 4096

    def settings(self) -> SpoolSettings | None:
        """Return it as a run takes it; None without one."""
        return SpoolSettings(self.spool, self.spool_mb * 10**6) if self.spool else None


@dataclass(frozen=True, slots=True)
class CollectOptions:
    """The frames that are kept on this machine since they matter."""

    collect: Annotated[
        Path | None,
        typer.Option(
            help="Folder that keeps frames as they were read, with their results: those that a cascade's small model "
            "was not sure of, that failed, on which several models disagree, and that `mqinfer collect ask` asked for."
        ),
    ] = None
    collect_mb: Annotated[int, typer.Option(help="Bound of that folder, in megabytes.", min=1)] = 4096
    collect_day_mb: Annotated[int, typer.Option(help="Bound of what it takes in a day, in megabytes.", min=1)] = 1024
    collect_rate: Annotated[
        list[str] | None,
        typer.Option(
            help="Keep samples, too: so many frames an hour in which a class was found, car=10, or any frames, 10; "
            "may be repeated."
        ),
    ] = None

    def settings(self) -> CollectSettings | None:
        """Return it as a run takes it; None without one.

        Raises:
            ConfigError: A rate is wrong, or there is no folder.
        """
        expected = "samples an hour, 1 to 3600, such as 10 or car=10"
        any_rate, rates = read_by_source("--collect-rate", self.collect_rate or (), whole_number(1, 3600), expected)
        if self.collect is None:
            if self.collect_rate:
                raise ConfigError("--collect-rate is of the frames that --collect keeps; name its folder")
            return None
        if any_rate:
            rates[""] = any_rate
        return CollectSettings(self.collect, self.collect_mb * 10**6, self.collect_day_mb * 10**6, rates)


@dataclass(frozen=True, slots=True)
class ProcessOptions:
    """The process: its name on the broker, its metrics and its spans."""

    take_over: TakeOver = False
    metrics_port: MetricsPort = None
    metrics_bind: MetricsBind = LOOPBACK
    otlp_endpoint: OtlpEndpoint = None


@dataclass(frozen=True, slots=True)
class Sending:
    """What a command line states about the frames and their results; each field of a group is an option."""

    models: ModelOptions
    topics: TopicOptions
    requests: RequestOptions
    preparing: PreparingOptions
    outputs: OutputOptions
    spool: SpoolOptions
    collect: CollectOptions
    process: ProcessOptions


with_sending = with_group("sending", Sending)
"""Adds these options to a subcommand, which takes them together as `sending`."""


def make_settings(sending: Sending, source: SourceSettings, *, resumes: bool = False) -> ReplaySettings:
    """Return the settings of a run.

    Args:
        sending: The options.
        source: What to read, without topics.
        resumes: Whether it goes on with an earlier run.

    Raises:
        ConfigError: Options that do not go together, or one is wrong.
    """
    outputs, topics = sending.outputs, sending.topics.topic or ()
    cascade = _read_cascade(sending, resumes=resumes)
    model, version = _model(sending.models) if cascade is None else (cascade.reference.model, cascade.reference.version)
    return ReplaySettings(
        replace(source, topics=topics, join=_join(sending.topics.join or (), sending.topics.tolerance, topics)),
        _options(model, version, sending, source),
        sending.preparing.settings(),
        OutputSettings(
            outputs.output,
            outputs.sinks(),
            outputs.picture_every,
            resumes,
            outputs.retain,
            outputs.watched(),
            outputs.track,
        ),
        sending.spool.settings(),
        cascade,
        sending.collect.settings(),
    )


def _options(model: str, version: str | None, sending: Sending, source: SourceSettings) -> ReplayOptions:
    asked, how = sending.requests, sending.preparing
    policy = asked.policy or (Policy.LATEST if source.is_live else Policy.ALL)
    waits_for_card = source.is_service and sending.spool.spool is None
    return ReplayOptions(
        model,
        version,
        asked.window,
        asked.timeout or _TIMEOUT_S[policy],
        how.output_encoding,
        policy,
        QualityBounds(asked.min_rate, asked.min_quality, asked.min_scale),
        math.inf if waits_for_card else _CARD_TIMEOUT_S,
        check_rate(how.preview),
        Priorities.parse(asked.priority) if asked.priority else None,
    )


def _model(chosen: ModelOptions) -> tuple[str, str | None]:
    """Return the first model, and the version asked for."""
    models, version = chosen.models, chosen.version
    if not models:
        raise ConfigError("which model? Give --model NAME, or --cascade FILE, which names its models")
    if version and len(models) > 1:
        raise ConfigError("--version is of one model; with several --model leave it out, or replay them one by one")
    name, _, own = models[0].partition("/")
    if version and own:
        raise ConfigError(f"--model {models[0]} names a version; leave out --version")
    return name, own or version if len(models) == 1 else None


def _read_cascade(sending: Sending, *, resumes: bool) -> CascadeSettings | None:
    if sending.models.cascade is None:
        return None
    if sending.models.model or sending.models.version:
        raise ConfigError("--cascade names the models and their versions in its file; leave out --model and --version")
    if resumes:
        raise ConfigError(
            "--resume goes on between two frames, and --cascade compares each with earlier ones; run it anew"
        )
    return read_settings(sending.models.cascade)


def _join(join: Sequence[str], tolerance: float, topics: Sequence[str]) -> Join | None:
    if not join:
        if tolerance:
            raise ConfigError("--tolerance is between the frames of joined topics; name these with --join")
        return None
    found = Join.parse(join, tolerance)
    if found.topics and topics:
        raise ConfigError("--join names the topics; leave out --topic")
    return found

"""Measure each encoding of the frames of a recording, with one model, in one run, and report what was measured."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated

from mqinfer.bags.frame import Frame
from mqinfer.bench.encodings.alone import Alone, measure_alone, pictures_of
from mqinfer.bench.encodings.through_broker import CollectingSink, camera, changed_share, keep_over_link, send_all
from mqinfer.bench.processes import worker_processes, worker_specs
from mqinfer.bench.recordings import colour_contract, first_frames
from mqinfer.broker.address import BrokerAddress
from mqinfer.broker.private import PrivateBroker
from mqinfer.client.client import Client
from mqinfer.codecs import available_encodings, traits_of
from mqinfer.edge_agent.preparing.choices import check_encoding, choose_encoding
from mqinfer.edge_agent.preparing.preparer import Preparer
from mqinfer.images.decode import to_mosaic
from mqinfer.lab.machine import describe_machine
from mqinfer.lab.report_files import Panel, Report
from mqinfer.lab.reports import Cell, Grid, machine_sentence
from mqinfer.models.repository import Repository
from mqinfer.protocol.card import BAYER, ModelCard
from mqinfer.protocol.errors import ConfigError

if TYPE_CHECKING:
    import typer

_FIRST = "raw"
"""The others are compared with it."""
_LEVELS = {"jpeg": ("jpeg:90", "jpeg:75", "jpeg:50")}
"""What is measured of an encoding; others are measured at the level that they have where none is stated."""
_MOSAICS = (BAYER, f"{BAYER}:lz4")
_USUAL = "jpeg:90"
"""The default of `--encoding`: what the thin link is compared with."""
_HEADINGS = ("encoding", "kB a frame", "edge CPU ms", "worker CPU ms", "PSNR dB", "answers changed, %", "p50 ms")
_PANELS = (
    Panel("kB a frame", ["kB a frame"], is_log=True),
    Panel("processor time a frame, ms", ["edge CPU ms", "worker CPU ms"]),
    Panel("end to end, p50 in ms", ["p50 ms"]),
)


@dataclass(frozen=True, slots=True)
class EncodingsOptions:
    """What is measured; each field is an option of `bench codecs`."""

    source: Annotated[str, typer.Argument(help="Bag, video or folder of pictures.")]
    model: Annotated[str, typer.Option(help="Model that gets the frames.")]
    repository: Annotated[Path, typer.Option(help="Folder of the model repository.")] = Path("models")
    topic: Annotated[str | None, typer.Option(help="Image topic; by default the first.")] = None
    encoding: Annotated[
        list[str] | None,
        typer.Option(help="Encoding to measure, such as jpeg:90; may be repeated. All by default."),
    ] = None
    frames: Annotated[int, typer.Option(help="Number of frames.", min=2)] = 20
    link_mbit: Annotated[float, typer.Option(help="Measure over a link of so many Mbit/s too; 0 for none.", min=0)] = (
        0.0
    )
    seconds: Annotated[float, typer.Option(help="Length of each turn over that link, in seconds.", min=1)] = 15.0


@dataclass(frozen=True, slots=True)
class EncodingFigures:
    """One encoding.

    Attributes:
        encoding: As of `--encoding`.
        alone: Bytes, processor time, and the picture that the model gets.
        changed: Share of the model's answers, such as pixels of its masks, that differ from those to `raw`.
        p50_ms: From a frame's preparation to its outcome, through a broker and a worker, median.
        finishing: Share of post-processing and encoding in the worker's time, 0 to 1, median.
        link_rate: Results a second over the thin link; None where it was not measured.
    """

    encoding: str
    alone: Alone
    changed: float
    p50_ms: float
    finishing: float
    link_rate: float | None = None


@dataclass(frozen=True, slots=True)
class EncodingsMeasurement:
    """All encodings in one run.

    Attributes:
        subject: Recording, model, size of its input, number of frames, link.
        machine: What it ran on.
        figures: In the order of measuring.
    """

    subject: Mapping[str, str]
    machine: Mapping[str, str]
    figures: tuple[EncodingFigures, ...]


def measure_encodings(options: EncodingsOptions, report: Callable[[str], None]) -> EncodingsMeasurement:
    """Measure encodings one after the other.

    Args:
        options: What to measure.
        report: Called with a line about each step.

    Raises:
        ConfigError: The model takes no colour pictures, or an encoding is not possible.
        SourceError: The recording can't be read, or has no frames.
        MqinferError: The worker does not start, or a frame gets no answer.
    """
    for encoding in options.encoding or ():
        check_encoding(encoding)
    frames, rate = first_frames(options.source, options.frames, options.topic)
    machine = describe_machine()
    version = Repository(options.repository).find(options.model)
    with PrivateBroker() as broker, worker_processes(worker_specs(version, BrokerAddress.parse(broker.url))):
        with Client(broker.url) as client:
            card = client.card(options.model)
        contract = colour_contract(card)
        pictures = pictures_of(contract, frames)
        figures: list[EncodingFigures] = []
        first: CollectingSink | None = None
        for encoding in dict.fromkeys((_FIRST, *_encodings(options, card, frames[0]))):
            report(f"{encoding} …")
            alone = measure_alone(Preparer(contract, encoding), frames, pictures)
            answers = send_all(broker.port, card, Preparer(contract, encoding), frames)
            first = first or answers
            changed, medians = changed_share(answers, first), map(median, (answers.milliseconds, answers.finishing))
            found = EncodingFigures(encoding, alone, changed, *medians)
            if options.link_mbit:
                live = camera(frames, rate, options.seconds)
                kept = keep_over_link(broker.port, card, Preparer(contract, encoding), live, options.link_mbit)
                found = replace(found, link_rate=kept / options.seconds)
            figures.append(found)
    height, width = pictures[0].shape[1:3]
    subject = {
        "recording": options.source,
        "model": options.model,
        "picture": f"{width}x{height}",
        "frames": str(len(frames)),
        "frames a second": f"{rate:.3g}",
        "link": f"{options.link_mbit:g} Mbit/s" if options.link_mbit else "",
    }
    return EncodingsMeasurement(subject, machine, tuple(figures))


def _encodings(options: EncodingsOptions, card: ModelCard, frame: Frame) -> Sequence[str]:
    """Return what was asked for, checked, or what is possible."""
    if options.encoding:
        return [choose_encoding(each, card) for each in options.encoding]
    possible = []
    names = [name for name in available_encodings() if traits_of(name).auto_colours or traits_of(name).auto_depth]
    mosaics = _MOSAICS if to_mosaic(frame.image) is not None else ()
    for each in (*(level for name in names for level in _LEVELS.get(name, (name,))), *mosaics):
        try:
            possible.append(choose_encoding(each, card))
        except ConfigError:  # the worker, or this installation, does not have it
            continue
    return possible


def report_encodings(measured: EncodingsMeasurement) -> Report:
    """Return the report, with one row for each encoding."""
    headings = list(_HEADINGS)
    has_link = any(each.link_rate is not None for each in measured.figures)
    usual = next((each.link_rate for each in measured.figures if each.encoding == _USUAL), None)
    if has_link:
        headings += ["results/s over the link", f"times {_USUAL}"]
    rows = [_row(each) + (_link(each, usual) if has_link else []) for each in measured.figures]
    title = ", ".join(f"{key} {value}" for key, value in measured.subject.items() if value)
    return Report(Grid(title, headings, rows, words=1), _PANELS, machine_sentence(measured.machine), measured)


def _row(each: EncodingFigures) -> list[Cell]:
    return [
        each.encoding,
        each.alone.frame_bytes / 1e3,
        each.alone.edge_ms,
        each.alone.worker_ms,
        math.inf if each.alone.psnr_db is None else each.alone.psnr_db,
        each.changed * 100,
        each.p50_ms,
    ]


def _link(each: EncodingFigures, usual: float | None) -> list[Cell]:
    return [each.link_rate, each.link_rate / usual if usual and each.link_rate is not None else None]

"""What each encoding of frames costs and keeps: bytes, time, the model's picture and its answers, a thin link."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import cycle
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from mqinfer.answers.outputs import find_mask
from mqinfer.bags.frame import Frame
from mqinfer.bench.processes import worker_processes, worker_specs
from mqinfer.bench.thin_link import ThinLink
from mqinfer.bench.workloads import colour_contract, first_frames
from mqinfer.broker.address import BrokerAddress
from mqinfer.broker.packets import buffer_size
from mqinfer.broker.private import PrivateBroker
from mqinfer.client.client import Client
from mqinfer.client.connection import connect, random_name
from mqinfer.client.result import InferResult
from mqinfer.client.window import Policy
from mqinfer.cloud_worker.serving.service import InferenceService
from mqinfer.codecs import available_encodings, traits_of
from mqinfer.edge_agent.frames.times import EdgeStage
from mqinfer.edge_agent.frames.view import FrameView
from mqinfer.edge_agent.preparing.choices import check_encoding, choose_encoding, choose_output_encoding
from mqinfer.edge_agent.preparing.preparer import Preparer
from mqinfer.edge_agent.replay import Pacer, Replay
from mqinfer.edge_agent.reporting.statistics import ReplayStatistics
from mqinfer.edge_agent.settings import ReplayOptions
from mqinfer.images.decode import to_mosaic
from mqinfer.lab.comparing.tolerance import NumberTolerance, deviation
from mqinfer.lab.machine import describe_machine
from mqinfer.lab.report_files import Panel, Report
from mqinfer.lab.reports import Cell, grid_of, machine_sentence
from mqinfer.models.loading import load_model
from mqinfer.models.repository import Repository
from mqinfer.protocol.card import BAYER, ImageContract, ModelCard, Resize
from mqinfer.protocol.datatypes import Array
from mqinfer.protocol.errors import ConfigError, ModelFailed
from mqinfer.protocol.types import Capture, InferRequest, Outcome

if TYPE_CHECKING:
    import typer

_FIRST = "raw"
"""The others are compared with it."""
_LEVELS = {"jpeg": ("jpeg:90", "jpeg:75", "jpeg:50")}
"""What is measured of an encoding; others are measured at the level that they have where none is stated."""
_MOSAICS = (BAYER, f"{BAYER}:lz4")
_USUAL = "jpeg:90"
"""The default of `--encoding`: what the thin link is compared with."""
_MODEL, _INPUT = "picture", "x"
_WHITE = 255.0
_TIMEOUT_S = 300.0
_FRESH_S = 2.0
"""Time limit of a live frame, as that of `mqinfer replay --policy latest`."""
_TOLERANCE = 0.01
"""Numbers differ if they differ by more than this share of the largest."""
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
class Alone:
    """One encoding without a network.

    Attributes:
        frame_bytes: Of the tensor of one frame, mean.
        edge_ms: Processor time of the edge for one frame, median: demosaicing, resizing, encoding.
        worker_ms: Processor time of the worker for one frame, median: decoding, demosaicing, resizing.
        psnr_db: Of the pictures that the model gets against those of `raw`; None where they are the same.
    """

    frame_bytes: float
    edge_ms: float
    worker_ms: float
    psnr_db: float | None


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
        pictures = [found for found, *_ in _pass(Preparer(contract, _FIRST), frames)]
        figures: list[EncodingFigures] = []
        first: CollectingSink | None = None
        for encoding in dict.fromkeys((_FIRST, *_encodings(options, card, frames[0]))):
            report(f"{encoding} …")
            alone = _measure_alone(Preparer(contract, encoding), frames, pictures)
            answers = _send_all(broker.port, card, Preparer(contract, encoding), frames)
            first = first or answers
            changed, medians = changed_share(answers, first), map(median, (answers.milliseconds, answers.finishing))
            found = EncodingFigures(encoding, alone, changed, *medians)
            if options.link_mbit:
                live, how = _camera(frames, rate, options.seconds), _options(card, _FRESH_S, policy=Policy.LATEST)
                with ThinLink(broker.port, options.link_mbit * 1e6 / 8) as link:
                    kept = _replay(link.port, Preparer(contract, encoding), live, how).snapshot().outcomes[Outcome.OK]
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
    usual = next((each.link_rate for each in measured.figures if each.encoding == _USUAL), None)
    rows: list[dict[str, Cell]] = [
        {
            "encoding": each.encoding,
            "kB a frame": each.alone.frame_bytes / 1e3,
            "edge CPU ms": each.alone.edge_ms,
            "worker CPU ms": each.alone.worker_ms,
            "PSNR dB": math.inf if each.alone.psnr_db is None else each.alone.psnr_db,
            "answers changed, %": each.changed * 100,
            "p50 ms": each.p50_ms,
            "results/s over the link": each.link_rate,
            f"times {_USUAL}": each.link_rate / usual if usual and each.link_rate is not None else None,
        }
        for each in measured.figures
    ]
    title = ", ".join(f"{key} {value}" for key, value in measured.subject.items() if value)
    return Report(grid_of(title, rows, words=1), _PANELS, machine_sentence(measured.machine), measured)


def _measure_alone(preparer: Preparer, frames: Sequence[Frame], pictures: Sequence[Array]) -> Alone:
    """Pass frames through an edge's preparation and a worker's, one after the other, as if each was answered."""
    found, sizes, edge, worker = zip(*_pass(preparer, frames), strict=True)
    pairs = zip(found, pictures, strict=True)
    noise = float(np.mean([np.mean(np.square(np.subtract(*pair, dtype=np.float64))) for pair in pairs]))
    psnr = None if noise == 0 else 10 * math.log10(_WHITE**2 / noise)
    return Alone(float(np.mean(sizes)), 1e3 * float(np.median(edge)), 1e3 * float(np.median(worker)), psnr)


def _pass(preparer: Preparer, frames: Sequence[Frame]) -> list[tuple[Array, int, float, float]]:
    """Return of each frame the model's picture, the bytes that travelled, and the edge's and the worker's CPU time."""
    found = []
    with TemporaryDirectory(prefix="mqinfer-bench-") as folder:
        service = _service(preparer.contract, Path(folder))
        for frame in frames:
            began = time.process_time()
            prepared = preparer.prepare(frame, lambda *_: None)
            sent = time.process_time()
            request = InferRequest("", _MODEL, prepared.tensors, capture=Capture(frame.source, frame.sequence))
            picture = service.prepare(request, "bench").inputs[prepared.tensors[0].name]
            ended = time.process_time()
            preparer.on_result(frame, prepared, InferResult("", Outcome.OK, _MODEL, worker="bench"))
            size = sum(buffer_size(tensor.data) for tensor in prepared.tensors)
            found.append((picture.copy(), size, sent - began, ended - sent))
    return found


def _service(contract: ImageContract, folder: Path) -> InferenceService:
    """Return a service whose model's input is the picture itself, of the contract's size and way of resizing."""
    version = folder / _MODEL / "1"
    version.mkdir(parents=True)
    shape = [-1, contract.height or -1, contract.width or -1, 3]
    declared = f'[[input]]\nname = "{contract.input or _INPUT}"\ndatatype = "UINT8"\nshape = {shape}\n'
    (version / "model.echo").write_text(declared, encoding="utf-8")
    if contract.resize is not Resize.STRETCH:
        text = f'[image]\nresize = "{contract.resize}"\nfill = {contract.fill}\n'
        (folder / _MODEL / "model.toml").write_text(text, encoding="utf-8")
    return InferenceService(load_model(Repository(folder).models()[0], device="cpu"))


class CollectingSink:
    """A sink that keeps what came back of each frame.

    Attributes:
        outputs: By name.
        milliseconds: From its preparation to its outcome.
        finishing: Share of post-processing and encoding in the worker's time, 0 to 1; waiting is not in it.
        failure: Of the first frame without a result; None where each has one.
    """

    def __init__(self) -> None:
        self.outputs: list[dict[str, Array]] = []
        self.milliseconds: list[float] = []
        self.finishing: list[float] = []
        self.failure: str | None = None

    def write(self, frame: Frame, view: FrameView, result: InferResult) -> None:
        """Keep one result."""
        if result.outcome is not Outcome.OK:
            why = result.error.message if result.error else result.outcome
            self.failure = self.failure or f"{frame.source}, frame {frame.sequence}: {why}"
            return
        self.outputs.append(dict(result.outputs))
        waited = sum(view.times.stages.get(stage, 0) for stage in (EdgeStage.READ, EdgeStage.QUEUE))
        self.milliseconds.append((view.times.total - waited) / 1e6)
        took = result.timings
        finishing = took.postprocess + took.encode
        self.finishing.append(finishing / (took.decode + took.preprocess + took.inference + finishing))

    def close(self) -> tuple[Path, ...]:
        """Have no files."""
        return ()


def _replay(
    port: int, preparer: Preparer, frames: Iterator[Frame], options: ReplayOptions, sink: CollectingSink | None = None
) -> ReplayStatistics:
    """Send frames over a port, and return the counters."""
    statistics = ReplayStatistics()
    with closing(connect(f"mqtt://127.0.0.1:{port}", random_name())) as requester:
        Replay(requester, preparer, options, statistics, sink).run(frames)
    return statistics


def _options(card: ModelCard, timeout: float, **options: Any) -> ReplayOptions:
    return ReplayOptions(card.name, timeout=timeout, output_encoding=choose_output_encoding(None, card), **options)


def _send_all(port: int, card: ModelCard, preparer: Preparer, frames: Sequence[Frame]) -> CollectingSink:
    """Send frames to a model one at a time, and return the answers."""
    answers = CollectingSink()
    _replay(port, preparer, iter(frames), _options(card, _TIMEOUT_S, window=1), answers)
    if answers.failure:
        raise ModelFailed(f"model {card.name!r}, {preparer.encoding}: {answers.failure}")
    return answers


def changed_share(answers: CollectingSink, first: CollectingSink) -> float:
    """Return how much of the answers is another one: the share of a mask's pixels, or of all outputs' numbers."""
    pairs = zip(answers.outputs, first.outputs, strict=True)
    return float(np.mean([_changed(outputs, expected) for outputs, expected in pairs]))


def _camera(frames: Sequence[Frame], rate: float, seconds: float) -> Iterator[Frame]:
    """Yield frames at a rate, when they are due; played forth and back, so that the scene never jumps."""
    there_and_back, pacer = cycle([*frames, *frames[-2:0:-1]]), Pacer()
    for number in range(round(seconds * rate)):
        pacer.wait_for(round(number / rate * 1e9))
        yield replace(next(there_and_back), sequence=number)


def _changed(outputs: dict[str, Array], expected: dict[str, Array]) -> float:
    mask, first = find_mask(outputs), find_mask(expected)
    if mask and first:
        return float(np.mean(mask[1] != first[1]))
    found = [deviation(expected[name], array, _tolerance(expected[name])) for name, array in outputs.items()]
    return sum(each.outside for each in found) / max(1, sum(each.values for each in found))


def _tolerance(expected: Array) -> NumberTolerance:
    largest = float(np.max(np.abs(expected), initial=0.0)) if expected.dtype.kind == "f" else 0.0
    return NumberTolerance(0.0, _TOLERANCE * largest)

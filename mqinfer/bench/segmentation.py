"""Measures where a worker's time goes with a segmentation model: its versions side by side, in one run over a broker.

It shows what fusing the argmax into the graph gains: a version that returns logits, from which the worker makes the
mask (`[segmentation]` in that version's `model.toml`), against versions that return the mask themselves.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from mqinfer.answers.outputs import Mask, find_mask
from mqinfer.bench.processes import worker_processes, worker_specs
from mqinfer.broker.address import BrokerAddress
from mqinfer.broker.private import PrivateBroker
from mqinfer.client.client import Client
from mqinfer.client.result import InferResult
from mqinfer.cloud_worker.serving.options import WorkerOptions
from mqinfer.cloud_worker.supervision.process import ProcessSpec
from mqinfer.cloud_worker.supervision.supervisor import Event
from mqinfer.codecs import encode_tensor
from mqinfer.lab.drives.synthetic import SyntheticDrive
from mqinfer.lab.machine import describe_machine
from mqinfer.lab.report_files import Panel, Report
from mqinfer.lab.reports import Cell, Grid, machine_sentence
from mqinfer.models.repository import Repository
from mqinfer.protocol.card import ModelCard
from mqinfer.protocol.errors import ConfigError
from mqinfer.protocol.types import EncodedTensor

STAGES = ("decode", "preprocess", "inference", "postprocess", "encode")
"""Headings, and stages of a reply's times."""
_FINISHING = "post + encode, %"
"""Heading of the share of post-processing and encoding in the worker's time."""
_REQUEST_TIMEOUT_S = 120.0
_SIZE = (2048, 1024)


@dataclass(frozen=True, slots=True)
class Shares:
    """Where one version's time went.

    Attributes:
        version: Its number.
        engine: What ran it, and on what.
        stages_ms: Median over the rounds of each of `STAGES`, in milliseconds; waiting is not in them.
        finishing: Median of the rounds' shares of post-processing and encoding in the sum of the stages, 0 to 1.
        mask_bytes: Of the mask as it travels, mean.
        agreement: Share of the pixels whose class is that of the first version.
    """

    version: int
    engine: str
    stages_ms: Mapping[str, float]
    finishing: float
    mask_bytes: float
    agreement: float


def measure_segmentation(
    repository: Path, model: str, versions: Sequence[int], rounds: int, report: Callable[[str], None]
) -> list[Shares]:
    """Send the same pictures to each version in turn, as JPEG; the masks come back in the codec `mask`.

    Args:
        repository: Holds the model, whose `version_policy` serves the versions.
        model: Its name.
        versions: To compare; they take the same input. The others are compared with the first.
        rounds: Pictures, after one that is not counted.
        report: Called with a line about each step.

    Raises:
        ConfigError: The model takes no pictures, or returns no mask.
        MqinferError: A worker does not start, or a request fails.
    """
    results: dict[int, list[InferResult]] = {version: [] for version in versions}
    engines: dict[int, str] = {}

    def note_engine(event: Event) -> None:
        version = specs[event.worker].version
        engines[version] = event.detail
        report(f"version {version}: {event.detail}")

    with PrivateBroker() as broker:
        specs = _plan(repository, model, versions, broker.url)
        with worker_processes(tuple(specs.values()), note_engine), Client(broker.url) as client:
            for number, picture in enumerate(_pictures(client.card(model), rounds + 1)):
                for version in versions:
                    result = _ask(client, model, version, picture)
                    results[version].append(result)
                    took = sum(_stages(result).values())
                    report(f"  picture {number}, version {version}: {took:.1f} ms in the worker")
    first = [_mask(result) for result in results[versions[0]]]
    return [_shares(version, engines[version], results[version], first) for version in versions]


def report_segmentation(shares: Sequence[Shares]) -> Report:
    """Return the report, with one row for each version."""
    headings = ("version", "engine", *STAGES, _FINISHING, "mask kB", "pixels changed, %")
    rows: list[list[Cell]] = [
        [
            str(each.version),
            each.engine,
            *(each.stages_ms[stage] for stage in STAGES),
            each.finishing * 100,
            each.mask_bytes / 1e3,
            (1 - each.agreement) * 100,
        ]
        for each in shares
    ]
    machine = describe_machine()
    grid = Grid("Time in the worker by stage, medians in ms", headings, rows, words=2)
    panels = (Panel("time in the worker, ms", STAGES), Panel(_FINISHING, [_FINISHING]))
    return Report(grid, panels, machine_sentence(machine), {"machine": machine, "versions": shares})


def _plan(repository: Path, model: str, versions: Sequence[int], broker: str) -> dict[str, ProcessSpec]:
    """Plan a process for each version, by its worker's name; the first one's publishes the model's card."""
    specs = {}
    for version in versions:
        found = replace(Repository(repository).find(model, version), is_default=version == versions[0])
        name = f"bench-{os.getpid()}-{version}"
        (spec,) = worker_specs(found, BrokerAddress.parse(broker), options=WorkerOptions(name))
        specs[spec.options.name] = spec
    return specs


def _pictures(card: ModelCard, count: int) -> Iterator[EncodedTensor]:
    """Render a drive at the model's size, encoded as a replay would."""
    image = card.image
    if image is None:
        raise ConfigError(f"model {card.name!r} takes no pictures; this bench is for segmentation")
    drive = SyntheticDrive(2, image.width or _SIZE[0], image.height or _SIZE[1])
    for number in range(count):
        picture = drive.scene(5 * number).picture
        yield encode_tensor(image.input, picture[None], "jpeg:90", {"image_encoding": "rgb8"})


def _ask(client: Client, model: str, version: int, picture: EncodedTensor) -> InferResult:
    return client.infer(
        model, {picture.name: picture}, version=version, output_encoding="mask", timeout=_REQUEST_TIMEOUT_S
    )


def _mask(result: InferResult) -> Mask:
    found = find_mask(result.outputs)
    if found is None:
        shapes = ", ".join(f"{name} {array.dtype} {list(array.shape)}" for name, array in result.outputs.items())
        raise ConfigError(
            f"version {result.model_version} of {result.model_name!r} returns no class mask but {shapes}; "
            "add to its model.toml: [segmentation] output = NAME"
        )
    return found[1]


def _stages(result: InferResult) -> dict[str, float]:
    return {stage: getattr(result.timings, stage) / 1e6 for stage in STAGES}


def _shares(version: int, engine: str, results: Sequence[InferResult], first: Sequence[Mask]) -> Shares:
    masks = [_mask(result) for result in results]
    stages = [_stages(result) for result in results[1:]]
    finishing = [(each["postprocess"] + each["encode"]) / sum(each.values()) for each in stages]
    sizes: list[Any] = [memoryview(encode_tensor("mask", mask, "mask").data).nbytes for mask in masks]
    return Shares(
        version,
        engine,
        {stage: median(each[stage] for each in stages) for stage in STAGES},
        median(finishing),
        float(np.mean(sizes)),
        float(np.mean([np.mean(mask == other) for mask, other in zip(masks, first, strict=True)])),
    )

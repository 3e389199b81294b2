"""Optimises a model: convert, fuse, make products, compare, refuse, measure, promote.

A product is a complete further version of the model: a fused graph in one engine's format and one precision.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from mqinfer.lab.conversion import to_onnx
from mqinfer.lab.machine import ENGINES, describe_machine
from mqinfer.lab.model_process import card_of, in_process
from mqinfer.lab.optimize.fusing import Fused, fuse, fused_inputs
from mqinfer.lab.optimize.parity import Outputs, Parity, Tolerance, compare
from mqinfer.lab.optimize.products import Recipe, plan, product_version, write_product
from mqinfer.lab.optimize.results import Optimisation, Product, Speed
from mqinfer.lab.optimize.samples import Sample, SampleInputs, feeds, random_samples
from mqinfer.lab.profiling.child import Plan, Subject
from mqinfer.lab.profiling.measure import measure
from mqinfer.models.loading import load_model, load_options
from mqinfer.models.repository import ModelVersion
from mqinfer.protocol.card import ModelCard
from mqinfer.protocol.datatypes import Array
from mqinfer.protocol.errors import MissingExtra, MqinferError


def run_samples(model: ModelVersion, samples: Sequence[Sample], argmax: Mapping[str, int], folder: Path) -> Outputs:
    """Run a model on samples and return its outputs, memory-mapped.

    Args:
        model: Version to load.
        samples: Samples, one run each.
        argmax: Class axis of each output that is reduced to the best class, so that large logits are not written.
        folder: Existing folder for the outputs; needed as long as they are.

    Raises:
        ModelNotLoadable: As `load_model`.
        ModelFailed: The engine raised, or the process crashed.
    """
    written = in_process(_run, model, samples, argmax, folder)
    return [{name: np.load(path, mmap_mode="r") for name, path in each.items()} for each in written]


def _run(
    model: ModelVersion, samples: Sequence[Sample], argmax: Mapping[str, int], folder: Path
) -> list[dict[str, Path]]:
    loaded = load_model(model, device="cpu")
    written = []
    for number, sample in enumerate(samples):
        outputs = loaded.backend.infer(feeds(sample, loaded.backend.inputs, loaded.card.image))
        written.append(
            {
                name: _write(folder, number, n, _kept(array, argmax.get(name)))
                for n, (name, array) in enumerate(outputs.items())
            }
        )
    loaded.backend.close()
    return written


def _kept(array: Array, axis: int | None) -> Array:
    return array if axis is None else np.asarray(array.argmax(axis), np.uint8)


def _write(folder: Path, number: int, output: int, array: Array) -> Path:
    path = folder / f"{number}-{output}.npy"
    np.save(path, array)
    return path


CANDIDATES = "candidates"
"""Folder of the products in a model's folder. It is no number, so workers do not serve its content."""
_GROUP_SIZE = 3
"""Products measured beside the original at a time; each of them occupies memory."""
_RANDOM_SAMPLES = 4

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class OptimizeOptions:
    """Products to make, and their evaluation.

    Attributes:
        engines: Some of `products.ENGINES`.
        precisions: Some of `products.PRECISIONS`.
        early: Whether to also make products with the argmax before the last resize.
        tolerance: Largest loss of a product.
        rounds: Measurements of each version.
        seconds: Length of each measurement.
        promote: Whether the best product becomes the next version if it is faster than the original.
    """

    engines: Sequence[str] = ("onnx", "openvino")
    precisions: Sequence[str] = ("fp32", "bf16", "int8")
    early: bool = False
    tolerance: Tolerance = field(default_factory=Tolerance)
    rounds: int = 5
    seconds: float = 0.3
    promote: bool = False


@dataclass(frozen=True, slots=True)
class _Job:
    """Context of all steps.

    Attributes:
        original: Version that the products are made from.
        card: Card of the original.
        options: Requested products.
        samples: Samples for the comparison.
        calibrating: Samples for the calibration.
        scratch: Folder for temporary files.
        progress: Called with a line at each step.
    """

    original: ModelVersion
    card: ModelCard
    options: OptimizeOptions
    samples: Sequence[Sample]
    calibrating: Sequence[Sample]
    scratch: Path
    progress: Progress


def optimize(
    original: ModelVersion,
    options: OptimizeOptions,
    samples: Sequence[Sample] = (),
    source: str = "",
    progress: Progress = lambda _: None,
) -> Optimisation:
    """Make products of a model in its folder. Workers do not serve them until they are promoted.

    Args:
        original: Version in a repository.
        options: Products to make.
        samples: Half are for calibration, the others for the comparison, so that no product is compared on its
            calibration data. Without samples the comparison uses random inputs, and nothing is calibrated.
        source: Description of the samples, for the report.
        progress: Called with a line at each step.

    Raises:
        ConfigError: The format can't be converted, or there is nothing to make.
        MissingExtra: A package of the extra `optimize` is not installed.
        ModelNotLoadable: The original can't be loaded or converted.
    """
    recipes = plan(options.engines, options.precisions, early=options.early, calibrated=len(samples) > 1)
    progress(f"loading version {original.version} of {original.name}")
    card = card_of(original)
    judging = samples[1::2] or samples or random_samples(card, _RANDOM_SAMPLES)
    words = f"{len(judging)} of {len(samples)} samples of {source}" if samples else f"{len(judging)} random inputs"
    with TemporaryDirectory(prefix="mqinfer-optimize-") as scratch:
        job = _Job(original, card, options, judging, samples[::2], Path(scratch), progress)
        base, candidates = _measured(job, _candidates(job, recipes, _fused(job)))
    found = Optimisation(
        model=original.name,
        version=original.version,
        engine=card.parameters.backend,
        original=base,
        original_size=_size(original.path),
        candidates=candidates,
        tolerance=options.tolerance,
        samples=words,
        machine=describe_machine(ENGINES),
    )
    return promote(found, original.folder.parent) if options.promote else found


def _fused(job: _Job) -> dict[bool, Fused | None]:
    """Return the graph of the products, and under True the one with an early argmax if requested and possible."""
    job.progress("converting to ONNX and fusing")
    converted = to_onnx(job.original, job.card)
    config = job.original.config
    return {
        early: fuse(converted, job.card, config, job.scratch / f"{'early' if early else 'fused'}.onnx", early=early)
        for early in ((False, True) if job.options.early else (False,))
    }


def _candidates(job: _Job, recipes: Sequence[Recipe], fused: Mapping[bool, Fused | None]) -> list[Product]:
    """Make and compare all products; one that can't be made is a candidate with a problem."""
    job.progress(f"running version {job.original.version} on {len(job.samples)} samples")
    reduced = {name: axis for each in fused.values() if each is not None for name, axis in each.argmax.items()}
    expected = run_samples(job.original, job.samples, reduced, _folder(job, "original"))
    found = []
    for recipe in recipes:
        graph = fused[recipe.early]
        candidate = Product(recipe.label, recipe.precision, "the mask does not come from a resize")
        found.append(candidate if graph is None else _candidate(job, recipe, graph, expected))
        job.progress(f"{recipe.label}: {found[-1].problem or 'within the tolerance'}")
    return found


def _candidate(job: _Job, recipe: Recipe, fused: Fused, expected: Outputs) -> Product:
    folder = job.original.folder.parent / CANDIDATES / recipe.label
    candidate = Product(recipe.label, recipe.precision, notes=fused.notes)
    is_int8 = recipe.precision == "int8"
    inputs, image = fused_inputs(job.card, fused)
    calibration = [feeds(each, inputs, image) for each in job.calibrating] if is_int8 else []
    try:
        write_product(recipe, fused, job.original, calibration, folder)
        candidate = replace(candidate, folder=folder, size_bytes=_size(folder))
        parity = _parity(job, folder, expected)
    except MissingExtra:
        raise  # not caused by the product
    except MqinferError as error:
        return replace(candidate, problem=str(error))
    refusal = job.options.tolerance.judge(parity, recipe.precision)
    return replace(candidate, parity=parity, problem=f"refused: {refusal}" if refusal else "")


def _parity(job: _Job, folder: Path, expected: Outputs) -> Parity:
    place = _folder(job, folder.name)
    outputs = run_samples(product_version(job.original, folder), job.samples, {}, place)
    truths = [each.truth for each in job.samples]
    parity = compare(expected, outputs, truths, [each.name for each in job.card.classes])
    shutil.rmtree(place)
    return parity


def _measured(job: _Job, candidates: Sequence[Product]) -> tuple[Speed | None, tuple[Product, ...]]:
    """Measure every product that ran beside the original, then delete the refused ones."""
    runnable = [each for each in candidates if each.parity is not None]
    base: Speed | None = None
    speeds: dict[str, Speed | None] = {}
    for first in range(0, len(runnable), _GROUP_SIZE):
        group = runnable[first : first + _GROUP_SIZE]
        job.progress(f"measuring {', '.join(each.label for each in group)}")
        products = {each.label: product_version(job.original, each.folder) for each in group if each.folder}
        versions = {"original": job.original} | products
        subjects = [_subject(name, version, job) for name, version in versions.items()]
        profiles = measure(subjects, _plan(job))
        base = base or Speed.of(profiles[0], profiles[0])
        speeds |= {each.name: Speed.of(each, profiles[0]) for each in profiles[1:]}
    return base, tuple(_settled(each, speeds.get(each.label)) for each in candidates)


def _subject(name: str, version: ModelVersion, job: _Job) -> Subject:
    inputs = SampleInputs(job.samples[0], version.config.pictures.image)
    return Subject(name, version.path, version.config.backend, load_options(version.config, "cpu"), inputs)


def _plan(job: _Job) -> Plan:
    batches = tuple(2**power for power in range(8) if 2**power <= max(job.card.max_batch_size, 1))
    return Plan(batches, job.options.rounds, job.options.seconds, least=1, warm_up=2)


def _settled(candidate: Product, speed: Speed | None) -> Product:
    if candidate.problem and candidate.folder is not None:
        shutil.rmtree(candidate.folder, ignore_errors=True)
        candidate = replace(candidate, folder=None)
    return replace(candidate, speed=speed)


def promote(found: Optimisation, folder: Path) -> Optimisation:
    """Rename the best product to the next free version; workers with the default version policy then serve it.

    Args:
        found: Result; without a product that is faster than the original nothing changes.
        folder: Folder of the model.
    """
    best = found.best
    if best is None or best.folder is None:
        return found
    number = max(int(each.name) for each in folder.iterdir() if each.is_dir() and each.name.isdecimal()) + 1
    place = folder / str(number)
    best.folder.rename(place)
    candidates = tuple(replace(each, folder=place) if each is best else each for each in found.candidates)
    return replace(found, candidates=candidates, promoted=number)


def _folder(job: _Job, name: str) -> Path:
    path = job.scratch / name
    path.mkdir()
    return path


def _size(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(each.stat().st_size for each in files if each.is_file())

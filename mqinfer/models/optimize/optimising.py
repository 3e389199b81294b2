"""The whole way: convert, fuse, make products, compare, refuse, measure, report, promote."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from mqinfer.models.loading import load_options
from mqinfer.models.optimize.fusing import Fused, fuse, fuse_early
from mqinfer.models.optimize.machine import describe_machine
from mqinfer.models.optimize.parity import Answers, Parity, Tolerance, compare
from mqinfer.models.optimize.products import Recipe, plan, product_version, write_product
from mqinfer.models.optimize.results import Candidate, Optimisation, Speed
from mqinfer.models.optimize.running import answers, card_of
from mqinfer.models.optimize.samples import Sample, SampleInputs, feeds, random_samples
from mqinfer.models.optimize.source import to_onnx
from mqinfer.models.profiling import Plan, Subject, measure
from mqinfer.models.repository import ModelVersion
from mqinfer.protocol.card import ModelCard
from mqinfer.protocol.errors import ConfigError, MissingExtra, MqinferError

__all__ = ["CANDIDATES", "OptimizeOptions", "optimize"]

CANDIDATES = "candidates"
"""Folder of the products within a model's folder: no number, so that no worker serves what is in it."""
_SIDE_BY_SIDE = 3
"""Products measured beside the original at a time: each holds its memory meanwhile."""
_RANDOM = 4


@dataclass(frozen=True, slots=True)
class OptimizeOptions:
    """What to make, and how to judge it.

    Attributes:
        engines: Of `products.ENGINES`.
        precisions: Of `products.PRECISIONS`.
        early: Also products with the argmax before the last resize.
        tolerance: What a product may lose.
        rounds: Turns of each version in the measurement.
        seconds: Length of a turn.
        promote: Give the best product the next free version number.
    """

    engines: Sequence[str] = ("onnx", "openvino")
    precisions: Sequence[str] = ("fp32", "bf16", "int8")
    early: bool = False
    tolerance: Tolerance = field(default_factory=Tolerance)
    rounds: int = 5
    seconds: float = 0.3
    promote: bool = False


@dataclass(frozen=True, slots=True)
class _Work:
    """What all steps need: the original and its answers."""

    original: ModelVersion
    card: ModelCard
    options: OptimizeOptions
    judged: Sequence[Sample]
    calibrated: Sequence[Sample]
    scratch: Path
    say: Callable[[str], None]

    @property
    def model_folder(self) -> Path:
        path = self.original.path
        return next(
            each.parent
            for each in (path, *path.parents)
            if each.name.isdigit() and int(each.name) == self.original.version
        )


def optimize(
    original: ModelVersion,
    options: OptimizeOptions,
    samples: Sequence[Sample] = (),
    source: str = "",
    say: Callable[[str], None] = lambda _: None,
) -> Optimisation:
    """Make products of a model, beside it and never served by themselves.

    Args:
        original: From a repository.
        options: What to make.
        samples: Every other one calibrates, the rest judge: no product is judged on what it was calibrated on. Random
            ones judge where there are none, and nothing calibrates then.
        source: What the samples are, in words.
        say: Told what is going on, in lines.

    Raises:
        ConfigError: There is no way from this format, or nothing to make.
        MissingExtra: A package of the extra `optimize` is not installed.
        ModelNotLoadable: The original can't be loaded or converted.
    """
    recipes = plan(options.engines, options.precisions, early=options.early, calibrated=len(samples) > 1)
    say(f"loading version {original.version} of {original.name}")
    card = card_of(original)
    judged = samples[1::2] or samples or random_samples(card, _RANDOM)
    words = f"{len(judged)} of {len(samples)} samples of {source}" if samples else f"{len(judged)} random inputs"
    with TemporaryDirectory(prefix="mqinfer-optimize-") as scratch:
        work = _Work(original, card, options, judged, samples[::2], Path(scratch), say)
        candidates = _candidates(work, recipes)
        engine, speed, measured = _measured(work, candidates)
    found = Optimisation(
        original.name, original.version, engine or card.backend, speed, _size(original.path), measured,
        options.tolerance, words, describe_machine(),
    )  # fmt: skip
    return promote(found, work.model_folder) if options.promote else found


def promote(found: Optimisation, folder: Path) -> Optimisation:
    """Give the best product the next free version number; with the usual version policy it is served from then on."""
    if not found.kept:
        return found
    number = max(int(each.name) for each in folder.iterdir() if each.is_dir() and each.name.isdecimal()) + 1
    best = found.kept[0]
    place = folder / str(number)
    (best.folder or folder).rename(place)
    candidates = tuple(replace(each, folder=place) if each is best else each for each in found.candidates)
    return replace(found, candidates=candidates, promoted=number)


def _candidates(work: _Work, recipes: Sequence[Recipe]) -> list[Candidate]:
    """Make all products and compare them; what can't be made is a candidate with a problem."""
    work.say("converting to ONNX and fusing")
    fused = fuse(to_onnx(work.original, work.card), work.card, work.original.config, work.scratch / "late.onnx")
    early = fuse_early(fused, work.card, work.scratch / "early.onnx") if work.options.early else None
    work.say(f"running version {work.original.version} on {len(work.judged)} samples")
    truth = work.scratch / "original"
    truth.mkdir()
    expected = answers(work.original, work.judged, fused.argmax, truth)
    found = []
    for recipe in recipes:
        graph = early if recipe.early else fused
        if graph is None:
            found.append(Candidate(recipe.label, recipe.precision, "no resize ends the graph"))
        else:
            found.append(_candidate(work, recipe, graph, expected))
        work.say(f"{recipe.label}: {found[-1].problem or 'within the tolerance'}")
    return found


def _candidate(work: _Work, recipe: Recipe, fused: Fused, expected: Answers) -> Candidate:
    folder = work.model_folder / CANDIDATES / recipe.label
    candidate = Candidate(recipe.label, recipe.precision, notes=fused.notes)
    try:
        calibration = [feeds(sample, _fused_card(work.card, fused)) for sample in work.calibrated]
        write_product(recipe, fused, work.original, calibration if recipe.precision == "int8" else (), folder)
        candidate = replace(candidate, folder=folder, size_bytes=_size(folder))
        parity = _parity(work, folder, expected)
    except (MissingExtra, ConfigError):
        raise
    except MqinferError as error:
        return replace(candidate, problem=str(error))
    refusal = work.options.tolerance.judge(parity, recipe.precision)
    return replace(candidate, parity=parity, problem=f"refused: {refusal}" if refusal else "")


def _parity(work: _Work, folder: Path, expected: Answers) -> Parity:
    product = product_version(work.original, work.model_folder, folder)
    place = work.scratch / folder.name
    place.mkdir()
    given = answers(product, work.judged, {}, place)
    parity = compare(expected, given, [each.truth for each in work.judged], [each.name for each in work.card.classes])
    shutil.rmtree(place)
    return parity


def _fused_card(card: ModelCard, fused: Fused) -> ModelCard:
    """Describe what a fused graph takes, where that is something else than the original does."""
    if fused.image is None:
        return card
    from mqinfer.protocol.datatypes import Datatype

    inputs = tuple(
        replace(spec, datatype=Datatype.UINT8) if spec.name == fused.image.input else spec for spec in card.inputs
    )
    return replace(card, inputs=inputs, image=fused.image)


def _measured(work: _Work, candidates: Sequence[Candidate]) -> tuple[str, Speed | None, tuple[Candidate, ...]]:
    """Measure beside the original; remove what was refused."""
    runnable = [each for each in candidates if each.parity is not None and each.folder is not None]
    base: Speed | None = None
    engine = ""
    speeds: dict[str, Speed | None] = {}
    for first in range(0, len(runnable), _SIDE_BY_SIDE):
        group = runnable[first : first + _SIDE_BY_SIDE]
        work.say(f"measuring {', '.join(each.label for each in group)}")
        profiles = measure([_subject(work, None), *(_subject(work, each) for each in group)], _plan(work))
        engine = profiles[0].loaded.engine if profiles[0].loaded else ""
        base = base or Speed.of(profiles[0], profiles[0])
        speeds |= {
            each.label: Speed.of(profile, profiles[0]) for each, profile in zip(group, profiles[1:], strict=True)
        }
    return engine, base, tuple(_settled(each, speeds.get(each.label)) for each in candidates)


def _settled(candidate: Candidate, speed: Speed | None) -> Candidate:
    if candidate.problem and candidate.folder is not None:
        shutil.rmtree(candidate.folder, ignore_errors=True)
        candidate = replace(candidate, folder=None)
    return replace(candidate, speed=speed)


def _subject(work: _Work, candidate: Candidate | None) -> Subject:
    version, name = work.original, "original"
    if candidate is not None and candidate.folder is not None:
        version, name = product_version(version, work.model_folder, candidate.folder), candidate.label
    card = card_of(version) if candidate else work.card
    inputs = SampleInputs(feeds(work.judged[0], card))
    return Subject(name, version.path, version.config.backend, load_options(version.config, "cpu"), inputs)


def _plan(work: _Work) -> Plan:
    batches = tuple(2**power for power in range(8) if 2**power <= max(work.card.max_batch_size, 1))
    return Plan(batches, work.options.rounds, work.options.seconds, least=1, warm_up=2)


def _size(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(each.stat().st_size for each in files if each.is_file())

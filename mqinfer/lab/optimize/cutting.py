"""Cuts a model in two, and writes the pipeline of both: for models that run as parts, on several machines.

An ONNX graph is a list of nodes in an order in which they can run, so each place between two nodes is a possible cut:
what was made before it and is taken behind it crosses from the one part to the other.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from operator import itemgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from msgspec import to_builtins

from mqinfer.lab.conversion import import_onnx, to_onnx
from mqinfer.lab.model_process import card_of
from mqinfer.lab.optimize.optimising import run_samples
from mqinfer.lab.optimize.parity import compare
from mqinfer.lab.optimize.passes import reads
from mqinfer.lab.optimize.samples import Sample, random_samples
from mqinfer.models.repository import ModelVersion, Repository
from mqinfer.models.repository.config_files import CONFIG_FILE
from mqinfer.models.repository.tables import as_toml, toml_key
from mqinfer.protocol.card import ModelCard
from mqinfer.protocol.errors import ConfigError, ModelFailed

AUTO = "auto"
_SAMPLES = 4
_LARGE = 1 << 30
"""Bytes of weights above which they get a file of their own: no message of Protocol Buffers has more than 2 GiB."""
_TRIED = 6
"""Places that are tried until one gives the same bits: an engine may compute otherwise what a cut keeps apart."""
_MOST = 1e-3
"""The largest difference that is kept."""
_EVEN = 0.25
"""A cut should leave at least this share of the weights on each side."""


@dataclass(frozen=True, slots=True)
class Cut:
    """What a cut has made.

    Attributes:
        tensors: What crosses.
        crossing: Bytes of it for one row.
        weights: Bytes of the weights of the first and of the second part.
        models: Names of the first part, the second one, and the pipeline of both.
        difference: Largest difference of the pipeline's outputs from the model's, as a share of the largest value of
            an output or of the classes; 0 where each bit is equal.
    """

    tensors: tuple[str, ...]
    crossing: int
    weights: tuple[int, int]
    models: tuple[str, str, str]
    difference: float


@dataclass(frozen=True, slots=True)
class _Part:
    """One side of a cut: the numbers of its nodes, and the tensors at its ends."""

    nodes: frozenset[int]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def cut(
    original: ModelVersion,
    tensors: Sequence[str],
    samples: Sequence[Sample] = (),
    progress: Callable[[str], None] = lambda _: None,
) -> Cut:
    """Write the two parts of a model into its repository, as models of their own, and an ensemble of both.

    The pipeline must answer as the model does; else nothing is written.

    Args:
        original: Version in a repository: ONNX, or what can be converted to it.
        tensors: Where to cut; `AUTO` alone for a place where little crosses, near half the weights.
        samples: For the comparison; random ones where there are none.
        progress: Called with a line at each step.

    Raises:
        ConfigError: The format can't be converted, there is no such tensor, more crosses there, or a name is taken.
        ModelFailed: The pipeline does not answer as the model does.
        MissingExtra: A package of the extra `optimize` is not installed.
    """
    repository = original.folder.parent.parent
    names = _names(original.name)
    taken = [name for name in names if (repository / name).exists()]
    if taken:
        raise ConfigError(f"{repository / taken[0]}: is there already; remove it, or cut a copy of the model")
    progress(f"reading {original.name} version {original.version}")
    card = card_of(original)
    graph = _Graph(import_onnx().shape_inference.infer_shapes(to_onnx(original, card)))
    given = samples or random_samples(card, _SAMPLES)
    found = list[tuple[float, Path, tuple[_Part, _Part]]]()
    with TemporaryDirectory(prefix=".cut-", dir=repository) as scratch:
        for number, place in enumerate(graph.places() if list(tensors) == [AUTO] else [tensors]):
            parts, folder = graph.parts(place), Path(scratch) / str(number)
            progress(f"cutting at {', '.join(place)}")
            _write(original, card, graph, parts, folder)
            difference = _difference(original, Repository(folder).find(names[2]), given)
            found.append((difference, folder, parts))
            if not difference:
                break
        difference, folder, (head, tail) = min(found, key=itemgetter(0))
        if difference > _MOST:
            raise ModelFailed(
                f"the two parts do not answer as {original.name} does: outputs differ by {difference:.2g} of their "
                f"largest value, more than {_MOST:g}; cut it elsewhere"
            )
        for name in names:
            shutil.move(folder / name, repository / name)
    crossing = tuple(name for name in tail.inputs if name in head.outputs)
    weights = graph.weights(head.nodes), graph.weights(tail.nodes)
    return Cut(crossing, sum(map(graph.row_bytes, crossing)), weights, names, difference)


def _names(model: str) -> tuple[str, str, str]:
    return f"{model}-head", f"{model}-tail", f"{model}-parts"


class _Graph:
    """Who makes and takes which tensor."""

    def __init__(self, model: Any) -> None:
        graph = model.graph
        self._model = model
        self._nodes = list(graph.node)
        self._weights = {each.name: each.ByteSize() for each in graph.initializer}
        self._inputs = [each.name for each in graph.input if each.name not in self._weights]
        self.outputs = [each.name for each in graph.output]
        self._made = {name: number for number, node in enumerate(self._nodes) for name in node.output if name}
        self._last = {name: number for number, node in enumerate(self._nodes) for name in reads(node)}
        self._values = {each.name: each for each in (*graph.value_info, *graph.input, *graph.output)}

    def places(self) -> list[list[str]]:
        """Return what crosses at the best places to cut: near half the weights, and of these with the least bytes."""
        whole, before, found = self.weights(range(len(self._nodes))), 0, list[tuple[bool, int, float, int]]()
        for number in range(1, len(self._nodes)):
            before += sum(self._weights.get(name, 0) for name in self._nodes[number - 1].input)
            share = before / whole if whole else number / len(self._nodes)
            nbytes = sum(map(self.row_bytes, self._crossing(number)))
            found.append((not _EVEN <= share <= 1 - _EVEN, nbytes, abs(share - 0.5), number))
        if not found:
            raise ConfigError("the model is a single node: nothing to cut")
        return [self._crossing(place) for *_, place in sorted(found)[:_TRIED]]

    def _crossing(self, place: int) -> list[str]:
        """Return what nodes before a place make for those behind it."""
        return [name for name, number in self._made.items() if number < place <= self._last.get(name, -1)]

    def parts(self, tensors: Sequence[str]) -> tuple[_Part, _Part]:
        """Return both sides of a cut.

        Raises:
            ConfigError: No node makes one of the tensors, something else crosses there, too, or nothing lies behind it.
        """
        first = self._behind(tensors, ())
        later = [name for name in self.outputs if self._made.get(name) not in first]
        second = self._behind(later, tensors)
        self._check(tensors, first, second)
        ends = [name for name in self.outputs if name not in later and name not in tensors]
        return (
            _Part(frozenset(first), tuple(self._given(first)), (*tensors, *ends)),
            _Part(frozenset(second), (*tensors, *self._given(second)), tuple(later)),
        )

    def _check(self, tensors: Sequence[str], first: Collection[int], second: Collection[int]) -> None:
        """Refuse a cut whose sides, given by their nodes, are none."""
        where, both = f"--cut {','.join(tensors)}", {*first}.intersection(second)
        unknown = [name for name in tensors if name not in self._made]
        if unknown:
            raise ConfigError(f"{where}: no node of the model makes a tensor {unknown[0]!r}; {AUTO} finds a place")
        if both:
            also = {name for number in both for name in self._nodes[number].output if self._is_taken(name, second)}
            raise ConfigError(f"{where}: these cross there, too: {', '.join(sorted(also)[:5])}; {AUTO} finds a place")
        if not second:
            raise ConfigError(f"{where}: nothing lies behind it; {AUTO} finds a place")

    def _behind(self, wanted: Iterable[str], known: Collection[str]) -> set[int]:
        """Return the nodes that tensors need, where some others are known."""
        found, left = set[int](), [name for name in wanted if name not in known]
        while left:
            number = self._made.get(left.pop())
            if number is not None and number not in found:
                found.add(number)
                left += [name for name in reads(self._nodes[number]) if name not in known]
        return found

    def _given(self, nodes: Collection[int]) -> list[str]:
        """Return the model's inputs that nodes take."""
        return [name for name in self._inputs if self._is_taken(name, nodes)]

    def _is_taken(self, name: str, nodes: Collection[int]) -> bool:
        return any(name in reads(self._nodes[number]) for number in nodes)

    def weights(self, nodes: Iterable[int]) -> int:
        """Return the bytes of the weights that nodes take."""
        names = {name for number in nodes for name in reads(self._nodes[number])}
        return sum(size for name, size in self._weights.items() if name in names)

    def model_of(self, part: _Part) -> Any:
        """Return a part as a model.

        Raises:
            ConfigError: The type of a tensor at its ends is not known.
        """
        helper, nodes = import_onnx().helper, [self._nodes[number] for number in sorted(part.nodes)]
        unknown = [name for name in (*part.inputs, *part.outputs) if name not in self._values]
        if unknown:
            raise ConfigError(f"--cut {unknown[0]}: the type and shape of this tensor are not known; cut it elsewhere")
        taken = {name for node in nodes for name in reads(node)}
        graph = helper.make_graph(
            nodes,
            self._model.graph.name,
            [self._values[name] for name in part.inputs],
            [self._values[name] for name in part.outputs],
            [each for each in self._model.graph.initializer if each.name in taken],
        )
        versions = {"opset_imports": self._model.opset_import, "ir_version": self._model.ir_version}
        return helper.make_model(graph, functions=self._model.functions, **versions)

    def row_bytes(self, name: str) -> int:
        """Return the bytes of a tensor with one row, open axes counted as 1; very many where they are not known."""
        if name not in self._values:
            return _LARGE
        kind = self._values[name].type.tensor_type
        dtype = np.dtype(import_onnx().helper.tensor_dtype_to_np_dtype(kind.elem_type))
        nbytes: int = dtype.itemsize * prod(each.dim_value or 1 for each in kind.shape.dim)
        return nbytes


def _write(
    original: ModelVersion, card: ModelCard, graph: _Graph, parts: tuple[_Part, _Part], repository: Path
) -> None:
    names = _names(original.name)
    for name, part in zip(names, parts, strict=False):
        _write_part(graph, part, card, repository / name)
    _write_pipeline(original, card, parts, graph.outputs, repository / names[2])


def _write_part(graph: _Graph, part: _Part, card: ModelCard, folder: Path) -> None:
    onnx = import_onnx()
    extracted = graph.model_of(part)
    path = folder / "1" / "model.onnx"
    path.parent.mkdir(parents=True)
    is_large = graph.weights(part.nodes) > _LARGE
    onnx.save(extracted, str(path), save_as_external_data=is_large, location="weights.bin" if is_large else None)
    (folder / CONFIG_FILE).write_text(f"max_batch_size = {card.max_batch_size}\n", encoding="utf-8")


def _write_pipeline(
    original: ModelVersion, card: ModelCard, parts: Sequence[_Part], outputs: Sequence[str], folder: Path
) -> None:
    tables: dict[str, Any] = {
        "platform": "ensemble",
        "max_batch_size": card.max_batch_size,
        "input": [{"name": spec.name} for spec in card.inputs],
        "output": [{"name": name} for name in outputs],
        "ensemble_scheduling": {
            "step": [_step(name, part) for name, part in zip(_names(original.name), parts, strict=False)]
        },
    }
    pictures = to_builtins(original.config.pictures)
    if images := pictures.pop("images"):
        pictures["image"] = images  # of which it was the first
    tables |= {key: _stated(value) for key, value in pictures.items() if value}
    lines = [f"{toml_key(key)} = {as_toml(value)}\n" for key, value in tables.items()]
    (folder / "1").mkdir(parents=True)
    head = f"# Made by `mqinfer models optimize --cut` from version {original.version} of {original.name}.\n"
    (folder / CONFIG_FILE).write_text(head + "".join(lines), encoding="utf-8")


def _step(name: str, part: _Part) -> Mapping[str, Any]:
    maps = {"input_map": part.inputs, "output_map": part.outputs}
    return {"model_name": name} | {key: {each: each for each in tensors} for key, tensors in maps.items()}


def _stated(value: Any) -> Any:
    """Return a table without what is left open."""
    if isinstance(value, Mapping):
        return {key: _stated(each) for key, each in value.items() if each is not None}
    return [_stated(each) for each in value] if isinstance(value, (list, tuple)) else value


def _difference(original: ModelVersion, pipeline: ModelVersion, samples: Sequence[Sample]) -> float:
    """Return the largest difference of the outputs of two models, as a share of the largest value of an output."""
    with TemporaryDirectory(prefix="mqinfer-cut-") as scratch:
        folders = (Path(scratch) / "whole", Path(scratch) / "parts")
        for folder in folders:
            folder.mkdir()
        whole = run_samples(original, samples, {}, folders[0])
        parts = run_samples(pipeline, samples, {}, folders[1])
        pairs = [(array, also[name]) for each, also in zip(whole, parts, strict=True) for name, array in each.items()]
        if all(np.array_equal(array, also) for array, also in pairs):
            return 0.0
        parity = compare(whole, parts, [None] * len(samples))
    return max(parity.relative or 0.0, 1 - (1.0 if parity.agreement is None else parity.agreement))

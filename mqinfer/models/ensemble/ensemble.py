"""Run several models behind one name: tensors pass from one to the next within the process.

An ensemble has no file of its own: its configuration lists models of the repository as its steps. All of them are
loaded into the ensemble's process, also if they are served by themselves; only those run that the requested outputs
need. A step may also be a model that other workers serve: its back end asks them, and other requests run meanwhile.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Protocol

from msgspec import structs

from mqinfer.models.backend import Backend
from mqinfer.models.card import max_batch_size
from mqinfer.models.ensemble.graph import EnsembleNode, Graph, make_graph
from mqinfer.models.load_options import LoadOptions, with_configured_shapes
from mqinfer.models.postprocess.stage import network_of
from mqinfer.models.repository.config import EnsembleStep, ModelConfig, TensorConfig
from mqinfer.protocol.card import ClassInfo, ImageContract, ModelCard
from mqinfer.protocol.control import BatchStatistics, Duration, ModelStatistics, StageTimes
from mqinfer.protocol.datatypes import Array
from mqinfer.protocol.errors import ConfigError, ModelFailed, MqinferError
from mqinfer.value_object import value_object

PLATFORM = "ensemble"
REMOTE = "remote"
"""Platform of a model that other workers run; it has no other name on the wire."""


class Member(Protocol):
    """A loaded model as an ensemble sees it."""

    @property
    def backend(self) -> Backend:
        """The back end that runs it."""

    @property
    def card(self) -> ModelCard:
        """Its card."""


_NO_TURN = nullcontext()
_NO_TIME = Duration(1)


@value_object()
class _Stage:
    """A step to run, with the outputs of its model to keep, and the tensors that no later step takes."""

    node: EnsembleNode
    outputs: tuple[str, ...]
    last_used: frozenset[str]


class StepCounts:
    """What one model of an ensemble has run as a step, for its statistics; each run is one request. Thread-safe.

    Args:
        card: Of the model.

    Attributes:
        card: The same.
        sums: What was counted.
    """

    def __init__(self, card: ModelCard) -> None:
        self.card, self.sums = card, ModelStatistics()
        self._lock = threading.Lock()

    def ran(self, rows: int, ns: int) -> None:
        """Count a run of so many rows and nanoseconds."""
        run, now = Duration(1, ns), time.time_ns() // 1_000_000
        stages = StageTimes(run, Duration(), _NO_TIME, _NO_TIME, run, _NO_TIME)
        self._add(ModelStatistics(now, rows, 1, stages, {rows: BatchStatistics(_NO_TIME, run, _NO_TIME)}))

    def failed(self, ns: int) -> None:
        """Count a run that failed after so many nanoseconds."""
        self._add(ModelStatistics(stages=StageTimes(fail=Duration(1, ns))))

    def _add(self, run: ModelStatistics) -> None:
        with self._lock:
            self.sums += run


class EnsembleBackend:
    """A graph of models that runs as one.

    Args:
        graph: The steps, in order.
        members: The steps' models by the steps' numbers; the same one may be there for several steps.
        options: The configured shapes of inputs and outputs.

    Attributes:
        counts: What the models have run as steps, those within steps included.
    """

    platform = PLATFORM

    def __init__(self, graph: Graph, members: Mapping[int, Member], options: LoadOptions) -> None:
        self._graph = graph
        self._backends = {number: each.backend for number, each in members.items()}
        self._counts = {number: StepCounts(each.card) for number, each in members.items()}
        local = _local(self._backends)
        self.counts = [self._counts[number] for number in local]
        self.counts += [counts for each in _once(local.values()) for counts in step_counts(each)]
        self.inputs = with_configured_shapes(graph.inputs, options.inputs)
        self.outputs = with_configured_shapes(graph.outputs, options.outputs)
        parts = list(self._backends.values())
        self.engine = _joined(parts, "engine")
        self.device = _joined(parts, "device")
        self.precision = _joined(parts, "precision")
        is_spread = len(local) < len(parts)  # then whoever waits for another worker does not keep others from running
        self.concurrency = (max if is_spread else min)(part.concurrency for part in parts)
        self._turns = _turns(local) if is_spread else {}

    def infer(self, inputs: Mapping[str, Array], outputs: Sequence[str] = ()) -> dict[str, Array]:
        """Run the steps that the outputs need; each tensor is released after its last use.

        Raises:
            ModelFailed: A step's model raised (the message names the step), or the back end is closed.
        """
        if not self._backends:
            raise ModelFailed("the ensemble is closed")
        requested = list(outputs) or [spec.name for spec in self.outputs]
        tensors = dict(inputs)
        for stage in _stages(self._graph, requested):
            tensors |= self._run(stage, tensors)
            for name in stage.last_used:
                del tensors[name]
        return {name: tensors[name] for name in requested}

    def _run(self, stage: _Stage, tensors: Mapping[str, Array]) -> dict[str, Array]:
        step = stage.node.step
        feeds = {name: tensors[tensor] for name, tensor in step.input_map.items()}
        counts, started = self._counts[stage.node.number], time.perf_counter_ns()
        try:
            with self._turns.get(stage.node.number, _NO_TURN):
                results = self._backends[stage.node.number].infer(feeds, stage.outputs)
        except MqinferError as error:
            counts.failed(time.perf_counter_ns() - started)
            raise type(error)(f"{stage.node}: {error}") from error
        rows = max(map(len, feeds.values()), default=1) if counts.card.max_batch_size else 1
        counts.ran(rows, time.perf_counter_ns() - started)
        return {step.output_map[name]: array for name, array in results.items()}

    def close(self) -> None:
        """Close every model, each once."""
        for backend in _once(self._backends.values()):
            backend.close()
        self._backends.clear()


def _local(backends: Mapping[int, Backend]) -> dict[int, Backend]:
    """Return the back ends that run here, by step."""
    return {number: each for number, each in backends.items() if each.platform != REMOTE}


def _joined(parts: Iterable[Backend], attribute: str) -> str:
    return " + ".join(dict.fromkeys(getattr(part, attribute) for part in parts))


def _once(backends: Iterable[Backend]) -> list[Backend]:
    """Return each back end once, though it may run several steps."""
    return list({id(each): each for each in backends}.values())


def _turns(backends: Mapping[int, Backend]) -> dict[int, threading.Semaphore]:
    """Return by step what keeps its back end from more runs at a time than it takes."""
    turns = {id(each): threading.Semaphore(each.concurrency) for each in backends.values()}
    return {number: turns[id(each)] for number, each in backends.items()}


def step_counts(backend: Backend) -> Sequence[StepCounts]:
    """Return the counts of the models that run as steps of an ensemble; none of another model."""
    network = network_of(backend)
    return network.counts if isinstance(network, EnsembleBackend) else ()


def _stages(graph: Graph, requested: Collection[str]) -> list[_Stage]:
    stages: list[_Stage] = []
    later = set(requested)
    for node in reversed(graph.needed(requested)):
        taken = set(node.step.input_map.values())
        outputs = tuple(name for name, tensor in node.step.output_map.items() if tensor in later)
        stages.append(_Stage(node, outputs, frozenset(taken - later)))
        later |= taken
    return stages[::-1]


def compose(
    config: ModelConfig, members: Sequence[Member], options: LoadOptions
) -> tuple[EnsembleBackend, ModelConfig]:
    """Make an ensemble of loaded models.

    Args:
        config: The ensemble's configuration.
        members: One for each step; the same one may be there for several steps.
        options: The ensemble's options.

    Returns:
        The back end, and the configuration completed from the models: batch size, image contract, classes.

    Raises:
        ConfigError: The steps do not fit together, or the configuration does not fit them.
    """
    if config.backend not in {None, PLATFORM} or not (config.input and config.output):
        raise ConfigError("an ensemble needs platform = 'ensemble', an input and an output")
    pairs = list(zip(config.ensemble_scheduling, members, strict=True))
    nodes = [
        EnsembleNode(number, step, each.card.inputs, each.card.outputs) for number, (step, each) in enumerate(pairs, 1)
    ]
    graph = make_graph(nodes, _names(config.input), _names(config.output))
    backend = EnsembleBackend(graph, dict(enumerate(members, 1)), options)
    return backend, replace(
        config,
        max_batch_size=_batch_limit(config, backend, [each.card for each in members]),
        pictures=replace(
            config.pictures,
            image=config.pictures.image or _image(config, pairs),
            classes=config.pictures.classes or _classes(config, pairs),
        ),
    )


def _names(tensors: Sequence[TensorConfig]) -> list[str]:
    return [each.name for each in tensors]


def _batch_limit(config: ModelConfig, backend: Backend, cards: Sequence[ModelCard]) -> int:
    smallest = min(cards, key=lambda card: card.max_batch_size)
    if config.max_batch_size is None:
        return min(max_batch_size(backend.inputs, backend.outputs), smallest.max_batch_size)
    if config.max_batch_size > smallest.max_batch_size:
        raise ConfigError(
            f"max_batch_size = {config.max_batch_size}: model {smallest.name!r} of the ensemble "
            f"takes at most {smallest.max_batch_size}"
        )
    return config.max_batch_size


def _image(config: ModelConfig, pairs: Sequence[tuple[EnsembleStep, Member]]) -> ImageContract | None:
    """Return the contract of the model that takes the ensemble's picture, by the ensemble's name of the input."""
    inputs = {each.name for each in config.input}
    for step, member in pairs:
        image = member.card.image
        if image and step.input_map[image.input] in inputs:
            return structs.replace(image, input=step.input_map[image.input])
    return None


def _classes(config: ModelConfig, pairs: Sequence[tuple[EnsembleStep, Member]]) -> tuple[ClassInfo, ...]:
    """Return the classes of the model that makes an output of the ensemble."""
    outputs = {each.name for each in config.output}
    for step, member in pairs:
        if member.card.classes and outputs.intersection(step.output_map.values()):
            return member.card.classes
    return ()

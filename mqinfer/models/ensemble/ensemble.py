"""Several models behind one name: their tensors pass from one to the next within the process.

An ensemble has no file of its own: its configuration says which models of the repository are its steps. All of them are
loaded into the ensemble's process, whatever else serves them, and only those run that the wanted outputs need.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from mqinfer.models.backend import Backend
from mqinfer.models.card import max_batch_size
from mqinfer.models.ensemble.graph import Graph, Node, make_graph
from mqinfer.models.load_options import LoadOptions, state_shape
from mqinfer.models.repository.config import EnsembleStep, ModelConfig
from mqinfer.protocol.card import ClassInfo, ImageContract, ModelCard
from mqinfer.protocol.datatypes import Array
from mqinfer.protocol.errors import ConfigError, ModelFailed, MqinferError

__all__ = ["PLATFORM", "EnsembleBackend", "Member", "compose"]

PLATFORM = "ensemble"


class Member(Protocol):
    """A loaded model as an ensemble sees it."""

    @property
    def backend(self) -> Backend:
        """What runs it."""

    @property
    def card(self) -> ModelCard:
        """What it is."""


@dataclass(frozen=True, slots=True)
class _Stage:
    """A step about to run: which outputs of its model are kept, and which tensors nobody takes after it."""

    node: Node
    outputs: tuple[str, ...]
    done_with: frozenset[str]


class EnsembleBackend:
    """A graph of models that runs as one.

    Args:
        graph: The steps, in order.
        backends: By the steps' numbers.
        options: With what is stated of inputs and outputs.
    """

    platform = PLATFORM

    def __init__(self, graph: Graph, backends: Mapping[int, Backend], options: LoadOptions) -> None:
        self._graph = graph
        self._backends = dict(backends)
        self.inputs = state_shape(graph.inputs, options.inputs)
        self.outputs = state_shape(graph.outputs, options.outputs)
        parts = list(self._backends.values())
        self.engine = " + ".join(dict.fromkeys(part.engine for part in parts))
        self.device = " + ".join(dict.fromkeys(part.device for part in parts))
        self.precision = " + ".join(dict.fromkeys(part.precision for part in parts))
        self.concurrency = min(part.concurrency for part in parts)

    def infer(self, inputs: Mapping[str, Array], outputs: Sequence[str] = ()) -> dict[str, Array]:
        """Run the steps that the outputs need; a tensor is let go after its last use.

        Raises:
            ModelFailed: A step's model raised, or the back end was closed; the message names the step.
        """
        if not self._backends:
            raise ModelFailed("the ensemble is closed")
        wanted = list(outputs) or [spec.name for spec in self.outputs]
        tensors = dict(inputs)
        for stage in _stages(self._graph, wanted):
            tensors |= self._run(stage, tensors)
            for name in stage.done_with:
                del tensors[name]
        return {name: tensors[name] for name in wanted}

    def _run(self, stage: _Stage, tensors: Mapping[str, Array]) -> dict[str, Array]:
        step = stage.node.step
        feeds = {name: tensors[tensor] for name, tensor in step.input_map.items()}
        try:
            results = self._backends[stage.node.number].infer(feeds, stage.outputs)
        except MqinferError as error:
            raise type(error)(f"{stage.node}: {error}") from error
        return {step.output_map[name]: array for name, array in results.items()}

    def close(self) -> None:
        """Close every model, each once."""
        for backend in {id(each): each for each in self._backends.values()}.values():
            backend.close()
        self._backends.clear()


def _stages(graph: Graph, wanted: Collection[str]) -> list[_Stage]:
    stages: list[_Stage] = []
    later = set(wanted)
    for node in reversed(graph.needed(wanted)):
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
        config: The ensemble's.
        members: One for each step; one that serves several steps may be repeated.
        options: Of the ensemble.

    Returns:
        The back end, and the configuration completed by what the models say: batch size, image contract, classes.

    Raises:
        ConfigError: The steps don't fit together, or the configuration doesn't fit them.
    """
    if config.backend not in {None, PLATFORM} or not (config.input and config.output):
        raise ConfigError("an ensemble has platform = 'ensemble', and states its input and output")
    pairs = list(zip(config.ensemble_scheduling, members, strict=True))
    nodes = [Node(number, step, each.card.inputs, each.card.outputs) for number, (step, each) in enumerate(pairs, 1)]
    graph = make_graph(nodes, [each.name for each in config.input], [each.name for each in config.output])
    backend = EnsembleBackend(
        graph, {node.number: each.backend for node, each in zip(nodes, members, strict=True)}, options
    )
    return backend, replace(
        config,
        max_batch_size=_batch_limit(config, backend, [each.card for each in members]),
        image=config.image or _image(config, pairs),
        classes=config.classes or _classes(config, pairs),
    )


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
    """Take over the contract of the model that gets the ensemble's picture as it is."""
    inputs = {each.name for each in config.input}
    for step, member in pairs:
        image = member.card.image
        if image and step.input_map[image.input] in inputs:
            return replace(image, input=step.input_map[image.input])
    return None


def _classes(config: ModelConfig, pairs: Sequence[tuple[EnsembleStep, Member]]) -> tuple[ClassInfo, ...]:
    """Take over the classes of the model that makes an output of the ensemble."""
    outputs = {each.name for each in config.output}
    for step, member in pairs:
        if member.card.classes and outputs.intersection(step.output_map.values()):
            return member.card.classes
    return ()

"""The graph of an ensemble: steps joined by named tensors, as Triton's `ensemble_scheduling` describes them.

Pure: names, datatypes and shapes in, an order of steps out. A step runs when its inputs are there, so the order in
which the steps are written does not matter. Rules and wording follow Triton's
(https://github.com/triton-inference-server/server/blob/main/docs/user_guide/ensemble_models.md): every input of a
step's model is mapped, every tensor has one source, and nothing goes in circles.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from mqinfer.models.repository.config import EnsembleStep
from mqinfer.protocol.errors import ConfigError
from mqinfer.protocol.types import TensorSpec

__all__ = ["Graph", "Node", "make_graph"]


@dataclass(frozen=True, slots=True)
class Node:
    """A step with what its model takes and gives.

    Attributes:
        number: Place in the configuration, from 1.
        step: As configured.
        inputs: Of its model.
        outputs: Of its model.
    """

    number: int
    step: EnsembleStep
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]

    def __str__(self) -> str:
        return f"step {self.number} (model {self.step.model_name!r})"


@dataclass(frozen=True, slots=True)
class Graph:
    """A checked graph.

    Attributes:
        order: Steps, each after those that it takes tensors from.
        inputs: Of the ensemble, as the first step that takes each of them declares it.
        outputs: Of the ensemble, as the steps that make them declare them.
    """

    order: tuple[Node, ...]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]

    def needed(self, wanted: Iterable[str]) -> list[Node]:
        """Give the steps without which the wanted tensors can't be made, in order."""
        missing, found = set(wanted), list[Node]()
        for node in reversed(self.order):
            if missing.intersection(node.step.output_map.values()):
                missing.update(node.step.input_map.values())
                found.append(node)
        return found[::-1]


def make_graph(nodes: Sequence[Node], inputs: Sequence[str], outputs: Sequence[str]) -> Graph:
    """Check the steps of an ensemble and put them in order.

    Args:
        nodes: The steps.
        inputs: Names of the ensemble's inputs.
        outputs: Names of its outputs.

    Raises:
        ConfigError: Names the step and the tensor that is missing, made twice, of another type or shape, or part of
            a circle.
    """
    for node in nodes:
        _check_maps(node)
    made = _sources(nodes, inputs)
    taken = _takers(nodes, made)
    for name in outputs:
        if name not in made:
            raise ConfigError(f"output {name!r} of the ensemble is made by no step")
    for name in inputs:
        if name not in taken:
            raise ConfigError(f"input {name!r} of the ensemble is taken by no step")
    order = _order(nodes, set(inputs))
    ends = {name: spec for name, spec in made.items() if spec is not None} | {name: taken[name] for name in inputs}
    return Graph(order, tuple(_named(ends, inputs)), tuple(_named(ends, outputs)))


def _named(specs: Mapping[str, TensorSpec], names: Sequence[str]) -> Iterable[TensorSpec]:
    return (TensorSpec(name, specs[name].datatype, specs[name].shape) for name in names)


def _check_maps(node: Node) -> None:
    inputs, outputs = [spec.name for spec in node.inputs], [spec.name for spec in node.outputs]
    for name in inputs:
        if name not in node.step.input_map:
            raise ConfigError(f"{node}: input_map leaves out the model's input {name!r}")
    for kind, mapped, there in (("input", node.step.input_map, inputs), ("output", node.step.output_map, outputs)):
        for name in mapped:
            if name not in there:
                raise ConfigError(f"{node}: {kind}_map names {name!r}; the model's {kind}s are {', '.join(there)}")


def _sources(nodes: Sequence[Node], inputs: Sequence[str]) -> dict[str, TensorSpec | None]:
    """Find what makes each tensor; None for the ensemble's inputs."""
    made: dict[str, TensorSpec | None] = {}
    for name in inputs:
        if name in made:
            raise ConfigError(f"the ensemble has two inputs {name!r}")
        made[name] = None
    for node in nodes:
        for spec in node.outputs:
            tensor = node.step.output_map.get(spec.name)
            if tensor is None:
                continue
            if tensor in made:
                raise ConfigError(f"{node}: output_map makes the tensor {tensor!r}, which is there already")
            made[tensor] = spec
    return made


def _takers(nodes: Sequence[Node], made: Mapping[str, TensorSpec | None]) -> dict[str, TensorSpec]:
    """Check each tensor against the inputs that it feeds; give the first such input of each."""
    taken: dict[str, TensorSpec] = {}
    for node in nodes:
        for spec in node.inputs:
            tensor = node.step.input_map[spec.name]
            if tensor not in made:
                raise ConfigError(f"{node}: input {spec.name!r} takes the tensor {tensor!r}, which nothing makes")
            source = made[tensor] or taken.setdefault(tensor, spec)
            if not _fits(source, spec):
                raise ConfigError(
                    f"{node}: input {spec.name!r} is {spec.datatype} {list(spec.shape)}, "
                    f"the tensor {tensor!r} is {source.datatype} {list(source.shape)}"
                )
    return taken


def _fits(made: TensorSpec, taken: TensorSpec) -> bool:
    if made.datatype is not taken.datatype:
        return False
    if not made.shape or not taken.shape:  # of no axes, or of a rank that the file leaves open
        return True
    return len(made.shape) == len(taken.shape) and all(
        -1 in {one, other} or one == other for one, other in zip(made.shape, taken.shape, strict=True)
    )


def _order(nodes: Sequence[Node], there: set[str]) -> tuple[Node, ...]:
    """Put the steps in order (Kahn, 1962), those that could run first as they are written."""
    order: list[Node] = []
    left = list(nodes)
    while left:
        ready = [node for node in left if there.issuperset(node.step.input_map.values())]
        if not ready:
            waiting = sorted({tensor for node in left for tensor in node.step.input_map.values()} - there)
            raise ConfigError(
                f"steps {', '.join(str(node.number) for node in left)} wait for each other, "
                f"for the tensors {', '.join(map(repr, waiting))}"
            )
        order += ready
        there = there.union(*(node.step.output_map.values() for node in ready))
        left = [node for node in left if node not in ready]
    return tuple(order)

"""Check and order the graph of an ensemble: steps joined by named tensors, as in Triton's `ensemble_scheduling`.

Pure: names, datatypes and shapes in, an order of steps out. A step runs when its inputs are available, so the order in
which the steps are written does not matter. Rules and wording are Triton's
(https://github.com/triton-inference-server/server/blob/main/docs/user_guide/ensemble_models.md): every input of a
step's model is mapped, every tensor has one source, and there are no circles.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from mqinfer.models.load_options import sizes_fit
from mqinfer.models.repository.config import EnsembleStep
from mqinfer.protocol.errors import ConfigError
from mqinfer.protocol.types import TensorSpec


@dataclass(frozen=True, slots=True)
class EnsembleNode:
    """A step with the inputs and outputs of its model.

    Attributes:
        number: Place in the configuration, from 1.
        step: The configured step.
        inputs: Inputs of its model.
        outputs: Outputs of its model.
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
        order: The steps, each after those whose tensors it takes.
        inputs: The ensemble's inputs, each as its first step declares it.
        outputs: The ensemble's outputs, as the steps that make them declare them.
    """

    order: tuple[EnsembleNode, ...]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]

    def needed(self, requested: Iterable[str]) -> list[EnsembleNode]:
        """Return the steps that the requested tensors need, in order."""
        missing, found = set(requested), list[EnsembleNode]()
        for node in reversed(self.order):
            if missing.intersection(node.step.output_map.values()):
                missing.update(node.step.input_map.values())
                found.append(node)
        return found[::-1]


def make_graph(nodes: Sequence[EnsembleNode], inputs: Sequence[str], outputs: Sequence[str]) -> Graph:
    """Check the steps of an ensemble and order them.

    Args:
        nodes: The steps.
        inputs: Names of the ensemble's inputs.
        outputs: Names of its outputs.

    Raises:
        ConfigError: The message has the step and the tensor that is missing, made twice, of another datatype or shape,
            or part of a circle.
    """
    for node in nodes:
        _check_maps(node)
    made = _sources(nodes, inputs)
    taken = _consumers(nodes, made)
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


def _check_maps(node: EnsembleNode) -> None:
    inputs, outputs = [spec.name for spec in node.inputs], [spec.name for spec in node.outputs]
    for name in inputs:
        if name not in node.step.input_map:
            raise ConfigError(f"{node}: input_map leaves out the model's input {name!r}")
    for kind, mapped, there in (("input", node.step.input_map, inputs), ("output", node.step.output_map, outputs)):
        for name in mapped:
            if name not in there:
                raise ConfigError(f"{node}: {kind}_map names {name!r}; the model's {kind}s are {', '.join(there)}")


def _sources(nodes: Sequence[EnsembleNode], inputs: Sequence[str]) -> dict[str, TensorSpec | None]:
    """Return the output that makes each tensor; None for the ensemble's inputs."""
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
                raise ConfigError(f"{node}: output_map makes the tensor {tensor!r}, which exists already")
            made[tensor] = spec
    return made


def _consumers(nodes: Sequence[EnsembleNode], made: Mapping[str, TensorSpec | None]) -> dict[str, TensorSpec]:
    """Check each tensor against the inputs that take it; return the first such input of each."""
    taken: dict[str, TensorSpec] = {}
    for node in nodes:
        for spec in node.inputs:
            tensor = node.step.input_map[spec.name]
            if tensor not in made:
                raise ConfigError(f"{node}: input {spec.name!r} takes the tensor {tensor!r}, which no step makes")
            source = made[tensor] or taken.setdefault(tensor, spec)
            if not _fits(source, spec):
                raise ConfigError(
                    f"{node}: input {spec.name!r} is {spec.datatype} {list(spec.shape)}, "
                    f"the tensor {tensor!r} is {source.datatype} {list(source.shape)}"
                )
    return taken


def _fits(made: TensorSpec, taken: TensorSpec) -> bool:
    is_open = not made.shape or not taken.shape  # no axes, or a rank that the file leaves open
    return made.datatype is taken.datatype and (is_open or sizes_fit(made.shape, taken.shape))


def _order(nodes: Sequence[EnsembleNode], available: set[str]) -> tuple[EnsembleNode, ...]:
    """Return the steps in order (Kahn, 1962); steps that could run at the same time stay as they are written."""
    order: list[EnsembleNode] = []
    left = list(nodes)
    while left:
        ready = [node for node in left if available.issuperset(node.step.input_map.values())]
        if not ready:
            waiting = sorted({tensor for node in left for tensor in node.step.input_map.values()} - available)
            raise ConfigError(
                f"steps {', '.join(str(node.number) for node in left)} wait for each other, "
                f"for the tensors {', '.join(map(repr, waiting))}"
            )
        order += ready
        available = available.union(*(node.step.output_map.values() for node in ready))
        left = [node for node in left if node not in ready]
    return tuple(order)

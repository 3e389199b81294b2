"""Basic operations on ONNX graphs. They change the graph in place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mqinfer.lab.conversion import import_onnx
from mqinfer.protocol.datatypes import Array

PREFIX = "mqinfer_"
"""Prefix of the names of added tensors."""


def append(model: Any, kind: str, inputs: Sequence[str], output: str = "", **attributes: Any) -> str:
    """Append a node with one output and return the output's name; trailing empty inputs are dropped."""
    name = output or f"{PREFIX}{kind.lower()}_{len(model.graph.node)}"
    while inputs and not inputs[-1]:
        inputs = inputs[:-1]
    model.graph.node.append(import_onnx().helper.make_node(kind, inputs, [name], name, **attributes))
    return name


def constant(model: Any, values: Array) -> str:
    """Add an array to the graph and return its name."""
    name = f"{PREFIX}constant_{len(model.graph.initializer)}"
    model.graph.initializer.append(import_onnx().numpy_helper.from_array(np.asarray(values), name))
    return name


def producer(model: Any, name: str) -> Any:
    """Return the node that produces a tensor, or None for an input or a constant."""
    return next((node for node in model.graph.node if name in node.output), None)


def output_named(model: Any, name: str) -> Any:
    """Return the declaration of an output."""
    return next(each for each in model.graph.output if each.name == name)


def attributes(node: Any) -> dict[str, Any]:
    """Return the attributes of a node by name."""
    return {each.name: import_onnx().helper.get_attribute_value(each) for each in node.attribute}


def prune(model: Any) -> int:
    """Remove nodes, constants and declared shapes that no output needs.

    Returns:
        Number of removed nodes and constants.
    """
    graph = model.graph
    makers = {output: node for node in graph.node for output in node.output}
    needed: set[str] = set()
    waiting = [value.name for value in graph.output]
    while waiting:
        name = waiting.pop()
        if name and name not in needed:
            needed.add(name)
            waiting += _reads(makers[name]) if name in makers else ()
    before = len(graph.node) + len(graph.initializer)
    _keep(graph.node, lambda node: any(output in needed for output in node.output))
    _keep(graph.initializer, lambda each: each.name in needed)
    del graph.value_info[:]  # shapes of changed tensors would be wrong; engines infer them again
    return before - len(graph.node) - len(graph.initializer)


def sort(model: Any) -> None:
    """Sort the nodes topologically, as ONNX requires."""
    made = {output for node in model.graph.node for output in node.output}
    known: set[str] = set()
    waiting, ordered = list(model.graph.node), []
    while waiting:
        ready: list[Any] = []
        rest: list[Any] = []
        for node in waiting:
            (rest if (made - known).intersection(_reads(node)) - set(node.output) else ready).append(node)
        if not ready:
            raise ValueError(f"the graph has a cycle through {rest[0].name!r}")
        known |= {output for node in ready for output in node.output}
        ordered += ready
        waiting = rest
    copies = [import_onnx().NodeProto.FromString(node.SerializeToString()) for node in ordered]
    del model.graph.node[:]
    model.graph.node.extend(copies)


def _reads(node: Any) -> list[str]:
    """Return the inputs of a node, and of its subgraphs (of a Loop or an If)."""
    inner = [attribute.g for attribute in node.attribute if attribute.HasField("g")]
    return [*node.input, *(name for graph in inner for each in graph.node for name in _reads(each))]


def _keep(entries: Any, wanted: Callable[[Any], bool]) -> None:
    kept = [each for each in entries if wanted(each)]
    del entries[:]
    entries.extend(kept)

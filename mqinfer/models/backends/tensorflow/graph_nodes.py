"""Follow the inputs of a TensorFlow graph's nodes."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Protocol

_NO_RESULTS = frozenset({"Assert", "Const", "NoOp", "Placeholder", "PlaceholderWithDefault"})


class NodeDef(Protocol):
    """The part of TensorFlow's NodeDef that is needed here.

    An entry of `input` is `node`, `node:1` for another output than the first, or `^node` for a mere dependency
    (tensorflow/core/framework/node_def.proto).
    """

    @property
    def name(self) -> str:
        """Unique in the graph."""

    @property
    def op(self) -> str:
        """Name of its operation."""

    @property
    def input(self) -> Sequence[str]:
        """The nodes that its inputs come from."""


def unconsumed(nodes: Iterable[NodeDef]) -> tuple[NodeDef, ...]:
    """Return the nodes whose results no other takes: a frozen graph's outputs.

    Unused placeholders and constants, and nodes without a result, are left out.
    """
    every = tuple(nodes)
    consumed = {entry.partition(":")[0] for node in every for entry in node.input if not entry.startswith("^")}
    return tuple(node for node in every if node.name not in consumed and node.op not in _NO_RESULTS)


def reaching(nodes: Mapping[str, NodeDef], targets: Iterable[str]) -> frozenset[str]:
    """Return the names of all nodes that the targets need, the targets included."""
    return _closure(targets, lambda name: _producers(nodes[name]), nodes)


def needing(nodes: Mapping[str, NodeDef], sources: Iterable[str]) -> frozenset[str]:
    """Return the names of all nodes that need one of the sources, the sources included."""
    consumers: dict[str, list[str]] = {}
    for node in nodes.values():
        for entry in _producers(node):
            consumers.setdefault(entry, []).append(node.name)
    return _closure(sources, lambda name: consumers.get(name, ()), nodes)


def _producers(node: NodeDef) -> list[str]:
    return [entry.removeprefix("^").partition(":")[0] for entry in node.input]


def _closure(begin: Iterable[str], beside: Callable[[str], Iterable[str]], nodes: Container[str]) -> frozenset[str]:
    """Return the nodes that are reached from some of them, those included."""
    found: set[str] = set()
    waiting = list(begin)
    while waiting:
        name = waiting.pop()
        if name not in found and name in nodes:
            found.add(name)
            waiting += beside(name)
    return frozenset(found)

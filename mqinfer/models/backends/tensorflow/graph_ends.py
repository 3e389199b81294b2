"""Finds where a TensorFlow graph begins and ends, from its nodes alone: nothing in a frozen graph says so."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

__all__ = ["Node", "reaching", "unconsumed"]

_NO_RESULTS = frozenset({"Assert", "Const", "NoOp", "Placeholder", "PlaceholderWithDefault"})


class Node(Protocol):
    """The part of TensorFlow's NodeDef that counts here.

    An entry of `input` is `node`, `node:1` for another output than the first, or `^node` where only the order counts
    (tensorflow/core/framework/node_def.proto).
    """

    @property
    def name(self) -> str:
        """Unique in the graph."""

    @property
    def op(self) -> str:
        """What it computes."""

    @property
    def input(self) -> Sequence[str]:
        """Where its inputs come from."""


def unconsumed(nodes: Iterable[Node]) -> tuple[Node, ...]:
    """Give the nodes whose results nobody takes: a frozen graph's outputs.

    Placeholders and constants that dangle are none, nor are nodes without a result.
    """
    every = tuple(nodes)
    consumed = {entry.partition(":")[0] for node in every for entry in node.input if not entry.startswith("^")}
    return tuple(node for node in every if node.name not in consumed and node.op not in _NO_RESULTS)


def reaching(nodes: Mapping[str, Node], targets: Iterable[str]) -> frozenset[str]:
    """Give the names of all nodes that the targets need, the targets included."""
    found: set[str] = set()
    waiting = list(targets)
    while waiting:
        name = waiting.pop()
        if name not in found and name in nodes:
            found.add(name)
            waiting += [entry.removeprefix("^").partition(":")[0] for entry in nodes[name].input]
    return frozenset(found)

"""Compare what OpenVINO made of a TensorFlow model with the model's own inputs and outputs, read from its file.

OpenVINO's front end may lose an input, or make an input and an output of a placeholder that nothing needs; such a model
would serve, with wrong results. TensorFlow itself is not needed to read the few fields that name them (field numbers:
tensorflow/core/protobuf/saved_model.proto and meta_graph.proto, tensorflow/core/framework/graph.proto).
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from mqinfer.models.backends.tensorflow.graph_nodes import reaching, unconsumed
from mqinfer.models.backends.tensorflow.saved_model import choose_signature
from mqinfer.models.repository.files import describe
from mqinfer.protobuf_wire import DELIMITED, VARINT, fields, read_varint
from mqinfer.protocol.errors import InvalidRequest, ModelNotLoadable

Bytes = bytes | mmap.mmap
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class FrozenNode:
    """A node of a frozen graph (NodeDef)."""

    name: str
    op: str
    input: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Signature:
    """A signature of a SavedModel: its inputs' datatypes by name, and names of its outputs."""

    inputs: Mapping[str, int]
    outputs: frozenset[str]


def read_nodes(path: Path) -> dict[str, FrozenNode]:
    """Return a frozen graph's nodes by name; the weights are passed over.

    Raises:
        ModelNotLoadable: The file is damaged.
    """
    return _read(path, path, _nodes)


def dangling(nodes: Mapping[str, FrozenNode]) -> set[str]:
    """Return the placeholders of a frozen graph that no node consumes: TensorFlow makes no input of them."""
    consumed = {entry.removeprefix("^").partition(":")[0] for node in nodes.values() for entry in node.input}
    return {node.name for node in nodes.values() if node.op == "Placeholder"} - consumed


def check_graph(
    path: Path,
    nodes: Mapping[str, FrozenNode],
    inputs: Iterable[str],
    outputs: Iterable[str],
    configured: Collection[str],
) -> None:
    """Raise if OpenVINO's outputs are no ends of a frozen graph, or its inputs not those that they need.

    Args:
        path: The file.
        nodes: Its nodes.
        inputs: Names of the inputs that OpenVINO found; `name:n` is tensor n of a node.
        outputs: Names of the outputs that OpenVINO found.
        configured: The outputs that `model.toml` names, which need not be ends; empty for the ends.

    Raises:
        ModelNotLoadable: They differ.
    """
    found = _node_names(outputs)
    ends = _node_names(configured) or {node.name for node in unconsumed(nodes.values())}
    _compare(path, "outputs", found, found & ends or ends)
    needed = {each for each in reaching(nodes, found) if nodes[each].op == "Placeholder"}
    _compare(path, "inputs", _node_names(inputs), needed)


def check_saved_model(path: Path, inputs: Iterable[str], outputs: Iterable[str]) -> None:
    """Raise if OpenVINO's inputs or outputs are not those of the signature that the back end `tensorflow` takes.

    Args:
        path: The SavedModel's folder.
        inputs: Names of the inputs that OpenVINO found.
        outputs: Names of the outputs that OpenVINO found.

    Raises:
        ModelNotLoadable: They differ, or the file is damaged.
    """
    signatures = _read(path, path / "saved_model.pb", _signatures)
    types = {name: signature.inputs.values() for name, signature in signatures.items()}
    own = signatures[choose_signature(types, None, path)]
    _compare(path, "inputs", set(inputs), own.inputs)
    _compare(path, "outputs", set(outputs), own.outputs)


def _compare(path: Path, what: str, found: set[str], own: Collection[str]) -> None:
    if found != set(own):
        raise ModelNotLoadable(
            f"{path}: OpenVINO reads the {what} {_listed(found)}, the model has {_listed(own)}; use the back end "
            "`tensorflow`, or convert the model to ONNX"
        )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"


def _node_names(tensors: Iterable[str]) -> set[str]:
    return {name.partition(":")[0] for name in tensors}


def _read(path: Path, file: Path, parse: Callable[[Bytes], T]) -> T:
    try:
        with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return parse(content)
    except (InvalidRequest, ValueError) as error:  # ValueError: an empty file, or names that are no text
        raise ModelNotLoadable(f"{path}: no model that can be read ({error}); found {describe(path)}") from error


def _nodes(content: Bytes) -> dict[str, FrozenNode]:
    every = fields(content)
    nodes = (_node(content, at, end) for found, kind, _, at, end in every if found == 1 and kind == DELIMITED)
    return {node.name: node for node in nodes}


def _node(content: Bytes, start: int, end: int) -> FrozenNode:
    """Read name, operation and inputs where they lie, so that the attributes, with the weights, are not copied."""
    texts: dict[int, list[str]] = {1: [], 2: [], 3: []}
    for found, kind, _, first, last in fields(content, start, end):
        if found in texts and kind == DELIMITED:
            texts[found].append(content[first:last].decode())
    return FrozenNode("".join(texts[1]), "".join(texts[2]), tuple(texts[3]))


def _signatures(content: Bytes) -> dict[str, _Signature]:
    graphs = list(_messages(content, 2))
    served = [each for each in graphs if any("serve" in _texts(info, 4) for info in _messages(each, 1))]
    found = _map((served or graphs or [b""])[0], 5)
    return {name: _signature(each) for name, each in found.items() if not name.startswith("__")}


def _signature(content: bytes) -> _Signature:
    inputs = {name: _number(info, 2) for name, info in _map(content, 1).items()}
    return _Signature(inputs, frozenset(_map(content, 2)))


def _number(content: bytes, number: int) -> int:
    """Return a field that is a varint; 0, as in protobuf, where it is absent."""
    starts = (start for found, kind, _, start, _ in fields(content) if (found, kind) == (number, VARINT))
    return next((read_varint(content, start)[0] for start in starts), 0)


def _map(content: bytes, number: int) -> dict[str, bytes]:
    """Return a map field, whose entries are messages of a key and a value."""
    return {_text(entry, 1): b"".join(_messages(entry, 2)) for entry in _messages(content, number)}


def _text(content: bytes, number: int) -> str:
    return "".join(_texts(content, number))


def _texts(content: bytes, number: int) -> list[str]:
    return [each.decode() for each in _messages(content, number)]


def _messages(content: Bytes, number: int) -> Iterator[bytes]:
    """Yield the bytes of each field of this number."""
    for found, kind, _, first, last in fields(content):
        if found == number and kind == DELIMITED:
            yield content[first:last]

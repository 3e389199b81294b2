"""Check ONNX files without an engine: where their external data is, and what an engine's error means.

ONNX is protobuf; only the few fields that lead to external data are followed, in the mapped file, so that weights of
any size cost nothing and neither onnx nor protobuf is needed (field numbers:
https://github.com/onnx/onnx/blob/main/onnx/onnx.proto).
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterator
from pathlib import Path

from mqinfer.models.repository.files import describe, named_file
from mqinfer.protobuf_wire import DELIMITED, fields
from mqinfer.protocol.errors import InvalidRequest, ModelNotLoadable

_MOST_FIELDS = 5_000_000
"""The most fields that are read: a network of 100,000 nodes has about 1.5 million; this many take some seconds."""

_FOLLOWED = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "function": {7: "node", 11: "attribute"},
    "graph": {1: "node", 5: "tensor", 15: "sparse tensor"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse tensor", 23: "sparse tensor"},
    "sparse tensor": {1: "tensor", 2: "tensor"},
    "tensor": {13: "entry"},
}
"""The fields of each message that may lead to external data, by number."""

_LOCATION = b"location"
_IN_MEMORY = "_ORT_MEM_ADDR_"  # ONNX Runtime's mark for an address in place of a file

_OPSET = re.compile(r"Opset (\d+) is under development.*domain (\S+) is till opset (\d+)", re.DOTALL)
_IR = re.compile(r"Unsupported model IR version: (\d+), max supported IR version: (\d+)")
_NO_OPERATOR = re.compile(r"No Op registered for (\S+) with domain_version of (\d+)")


def check_external_data(path: Path) -> None:
    """Raise if an ONNX file's weights are elsewhere than in plain files of its own folder.

    Raises:
        ModelNotLoadable: The message has the location, and what is wrong with it.
    """
    locations = external_locations(path)
    if locations and path.is_symlink():
        raise ModelNotLoadable(f"{path}: a symbolic link to a model with external data; put both into this folder")
    for location in sorted(locations):
        if _IN_MEMORY in location:
            raise ModelNotLoadable(f"{path}: its external data is an address in memory; export the model again")
        named_file(path.parent, location, f"{path.name}: external data")


def external_locations(path: Path) -> frozenset[str]:
    """Return every `location` of external data in an ONNX file.

    Raises:
        ModelNotLoadable: The file can't be read, or is damaged where it may have a location.
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            if content.find(_LOCATION) < 0:  # no such key in it at all
                return frozenset()
            entries = [dict(_entry(content, *where)) for where in _entries(content)]
    except (OSError, ValueError) as error:  # ValueError: nothing in it
        raise ModelNotLoadable(f"{path}: can't be read: {error}; check who owns it") from error
    except InvalidRequest as error:
        raise ModelNotLoadable(f"{path}: not a readable ONNX file ({error}); found {describe(path)}") from error
    return frozenset(text.decode(errors="replace") for entry in entries for text in entry.get(_LOCATION, ()))


def _entries(content: mmap.mmap) -> Iterator[tuple[int, int]]:
    """Yield the entries of all tensors' `external_data`, level by level, without recursion."""
    waiting = [("model", 0, len(content))]
    left = _MOST_FIELDS
    while waiting:
        kind, start, end = waiting.pop()
        if kind == "entry":
            yield start, end
            continue
        followed = _FOLLOWED[kind]
        for number, wire_type, _, first, last in fields(content, start, end):
            left -= 1
            if left < 0:
                raise InvalidRequest(f"more than {_MOST_FIELDS} fields")
            if number in followed and wire_type == DELIMITED:
                waiting.append((followed[number], first, last))


def _entry(content: mmap.mmap, start: int, end: int) -> Iterator[tuple[bytes, list[bytes]]]:
    """Return all values of each key: if a field occurs twice, readers differ in which one they take."""
    every = fields(content, start, end)
    texts = [(number, content[first:last]) for number, kind, _, first, last in every if kind == DELIMITED]
    values = [text for number, text in texts if number == 2]
    return ((text, values) for number, text in texts if number == 1)


def refusal(message: str) -> str:
    """Return what ONNX Runtime's error means, and what to do; empty for an error of another kind.

    Args:
        message: The message of its exception.
    """
    if found := _OPSET.search(message):
        opset, domain, most = found.groups()
        return (
            f"opset {opset}, this ONNX Runtime reads {domain} up to {most}: export the model with opset {most} or less"
        )
    if found := _IR.search(message):
        version, most = found.groups()
        return f"IR version {version}, this ONNX Runtime reads up to {most}: export the model for an older one"
    if found := _NO_OPERATOR.search(message):
        operator, opset = found.groups()
        return f"opset {opset} has no operator {operator} that this ONNX Runtime knows"
    return ""

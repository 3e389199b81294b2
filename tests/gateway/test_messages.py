"""The descriptor set that the gateway reads is that of the `.proto` files beside it, and agrees with Triton's."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from importlib import resources
from typing import Any

import pytest
from google.protobuf import descriptor_pb2

from mqinfer.gateway.messages import message_class

PROTOS = resources.files("mqinfer.gateway") / "protos"
NUMBERED = re.compile(r"(\w+) = (\d+);$", re.MULTILINE)
BEYOND = {"properties", "model_name", "isLoaded", "isUnloaded"}
"""Fields of KServe's messages alone."""


def numbered(message: Any) -> Iterator[tuple[str, str]]:
    """Yield name and number of each field and value of a message, and of those in it."""
    for inner in message.nested_type:
        if not inner.options.map_entry:
            yield from numbered(inner)
    for enum in message.enum_type:
        yield from ((value.name, str(value.number)) for value in enum.value)
    yield from ((field.name, str(field.number)) for field in message.field)


def test_descriptors_are_those_of_the_files() -> None:
    """Each file has the fields and values that the descriptor set has of it; scripts/build-protos makes that."""
    made = descriptor_pb2.FileDescriptorSet.FromString((PROTOS / "descriptors.pb").read_bytes())
    assert {file.name for file in made.file} == {each.name for each in PROTOS.iterdir() if each.name.endswith(".proto")}
    for file in made.file:
        found = Counter(pair for message in file.message_type for pair in numbered(message))
        found.update((value.name, str(value.number)) for enum in file.enum_type for value in enum.value)
        assert found == Counter(NUMBERED.findall((PROTOS / file.name).read_text())), file.name


@pytest.mark.parametrize("module", ["service_pb2", "model_config_pb2"])
def test_fields_are_tritons(module: str) -> None:
    """Each field that Triton's messages have too has the number and the type that it has there."""
    pool = message_class("inference.ModelInferRequest").DESCRIPTOR.file.pool
    made = pool.FindFileByName({"service_pb2": "grpc_service.proto"}.get(module, "model_config.proto"))
    theirs = pytest.importorskip(f"tritonclient.grpc.{module}").DESCRIPTOR.message_types_by_name
    for name, message in made.message_types_by_name.items():
        ours, other = (descriptor_pb2.DescriptorProto() for _ in range(2))
        message.CopyToProto(ours)
        theirs[name].CopyToProto(other)
        compare(ours, other)


def compare(ours: Any, theirs: Any) -> None:
    """Compare the fields of a message and of those in it."""
    known = {field.name: field for field in theirs.field}
    for field in ours.field:
        other = known.get(field.name)
        if other is None:
            assert field.name in BEYOND
        elif field.name != "contents":  # declared as its bytes
            assert (field.number, field.type, field.label) == (other.number, other.type, other.label), field.name
    inner = {each.name: each for each in theirs.nested_type}
    for each in ours.nested_type:
        if each.name != "PropertiesEntry":
            compare(each, inner[each.name])

"""Messages of Protocol Buffers from tables, in pools of their own.

Generated code of other packages (tritonclient, kserve) registers the same names in the default pool, and two versions
of it clash there; messages from a private pool run beside them in one process, with any protobuf from 5 on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mqinfer.protocol.errors import MissingExtra

__all__ = ["Table", "make_messages"]

Table = Mapping[str, Sequence[str]]
"""Fields by message, each as in a .proto file: `repeated int64 shape = 3`, `map<string, Parameter> parameters = 4`.

One of a group has its name in front, `oneof parameter_choice: bool bool_param = 1`; a message within another one is
called `Outer.Inner`.
"""

_SCALARS = {
    "double": 1, "float": 2, "int64": 3, "uint64": 4, "int32": 5, "fixed64": 6, "fixed32": 7, "bool": 8, "string": 9,
    "bytes": 12, "uint32": 13, "sfixed32": 15, "sfixed64": 16, "sint32": 17, "sint64": 18,
}  # fmt: skip
_OPTIONAL, _REPEATED = 1, 3
_MESSAGE, _ENUM = 11, 14


def make_messages(
    package: str, messages: Table, enums: Mapping[str, Mapping[str, int]] | None = None
) -> dict[str, Any]:
    """Make the classes of messages.

    Args:
        package: Of the messages, such as `inference`.
        messages: Their fields.
        enums: Numbers by name, by enumeration.

    Returns:
        Classes by the names of the table.

    Raises:
        MissingExtra: protobuf is not installed.
    """
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    except ImportError as error:
        raise MissingExtra.of("protobuf", "gateway") from error
    file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto3")
    for name, numbers in (enums or {}).items():
        enum = file.enum_type.add(name=name)
        for value, number in numbers.items():
            enum.value.add(name=value, number=number)
    made: dict[str, Any] = {}
    for name, fields in messages.items():
        outer, _, inner = name.rpartition(".")
        made[name] = (made[outer].nested_type if outer else file.message_type).add(name=inner)
        for field in fields:
            _add(made[name], field, f".{package}", name, enums or {})
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}")) for name in messages}


def _add(message: Any, text: str, package: str, owner: str, enums: Mapping[str, Any]) -> None:
    head, _, rest = text.rpartition(": ")
    declaration, _, number = rest.partition(" = ")
    kind, _, name = declaration.rpartition(" ")
    field = message.field.add(name=name, number=int(number), label=_OPTIONAL)
    if head:
        group = head.removeprefix("oneof ")
        known = [each.name for each in message.oneof_decl]
        if group not in known:
            message.oneof_decl.add(name=group)
            known.append(group)
        field.oneof_index = known.index(group)
    if kind.startswith("map<"):
        key, value = kind[4:-1].split(", ")
        entry = message.nested_type.add(name=f"{name.title().replace('_', '')}Entry")
        entry.options.map_entry = True
        for position, (part, of) in enumerate((("key", key), ("value", value)), 1):
            _set_type(entry.field.add(name=part, number=position, label=_OPTIONAL), of, package, enums)
        field.label, field.type, field.type_name = _REPEATED, _MESSAGE, f"{package}.{owner}.{entry.name}"
        return
    if kind.startswith("repeated "):
        field.label, kind = _REPEATED, kind.removeprefix("repeated ")
    _set_type(field, kind, package, enums)


def _set_type(field: Any, kind: str, package: str, enums: Mapping[str, Any]) -> None:
    if kind in _SCALARS:
        field.type = _SCALARS[kind]
    else:
        field.type, field.type_name = (_ENUM if kind in enums else _MESSAGE), f"{package}.{kind}"

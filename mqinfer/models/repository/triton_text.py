"""Reads Triton's `config.pbtxt`: protobuf's text format, by protobuf itself, into the tables that TOML would give.

The message is described here and built when it is first needed: the text format goes by names alone, so the description
holds what mqinfer reads and no more, needs no generated code, and works with any release of protobuf. Everything else
in a file is skipped, and named once, with the near misses that are most likely slips of the pen.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

from mqinfer.protocol.errors import ConfigError, MissingExtra

__all__ = ["read_triton_text"]

log = logging.getLogger("mqinfer.models")

_LARGEST = 1 << 18  # bytes; the longest that were seen have some 20,000
_ENUMS = {
    "DataType": "TYPE_INVALID TYPE_BOOL TYPE_UINT8 TYPE_UINT16 TYPE_UINT32 TYPE_UINT64 TYPE_INT8 TYPE_INT16 "
    "TYPE_INT32 TYPE_INT64 TYPE_FP16 TYPE_FP32 TYPE_FP64 TYPE_STRING TYPE_BF16",
    "Format": "FORMAT_NONE FORMAT_NHWC FORMAT_NCHW",
    "Kind": "KIND_AUTO KIND_GPU KIND_CPU KIND_MODEL",
    "TimeoutAction": "REJECT DELAY",
}
_MESSAGES = {
    "ModelConfig": "string name, string platform, string backend, int64 max_batch_size, Tensor* input, Tensor* output, "
    "VersionPolicy version_policy, DynamicBatching dynamic_batching, InstanceGroup* instance_group, "
    "string default_model_filename, Parameter* parameters, WarmUp* model_warmup, Optimization optimization, "
    "Ensemble ensemble_scheduling",
    "Tensor": "string name, DataType data_type, int64* dims, Format format, Shape reshape, string label_filename",
    "Shape": "int64* shape",
    "VersionPolicy": "Latest latest, All all, Specific specific",
    "Latest": "int64 num_versions",
    "All": "",
    "Specific": "int64* versions",
    "DynamicBatching": "int64* preferred_batch_size, uint64 max_queue_delay_microseconds, bool preserve_ordering, "
    "uint64 priority_levels, uint64 default_priority_level, QueuePolicy default_queue_policy, "
    "Level* priority_queue_policy",
    "QueuePolicy": "TimeoutAction timeout_action, uint64 default_timeout_microseconds, bool allow_timeout_override, "
    "uint64 max_queue_size",
    "Level": "uint64 key, QueuePolicy value",
    "InstanceGroup": "string name, int64 count, Kind kind, int64* gpus",
    "Parameter": "string key, ParameterValue value",
    "ParameterValue": "string string_value",
    "WarmUp": "string name, int64 batch_size, int64 count, WarmUpEntry* inputs",
    "WarmUpEntry": "string key, WarmUpInput value",
    "WarmUpInput": "DataType data_type, int64* dims, bool zero_data, bool random_data, string input_data_file",
    "Optimization": "ExecutionAccelerators execution_accelerators",
    "ExecutionAccelerators": "Accelerator* gpu_execution_accelerator, Accelerator* cpu_execution_accelerator",
    "Accelerator": "string name, Name* parameters",
    "Ensemble": "Step* step",
    "Step": "string model_name, int64 model_version, Name* input_map, Name* output_map",
    "Name": "string key, string value",
}
"""Fields as `type name`, a star for repeated ones. A message of `key` and `value` is an entry of a table."""

_OPENING, _CLOSING, _AFTER_NAMES = frozenset("{<"), frozenset("}>"), frozenset(":{<[")


def read_triton_text(path: Path) -> dict[str, Any]:
    """Read a file into nested tables, with the names and values of the file.

    Raises:
        ConfigError: The file can't be read, or is not in the text format of Triton's `ModelConfig`.
        MissingExtra: protobuf is not installed.
    """
    try:
        from google.protobuf import text_format
    except ImportError as error:
        raise MissingExtra.of("protobuf", "worker") from error
    text, message = _text(path), _message_class()()
    known, unknown = _without_unknown(text, text_format.Tokenizer(text.splitlines()), message.DESCRIPTOR)
    try:
        text_format.Parse(known, message)
    except (text_format.ParseError, RecursionError) as error:
        raise ConfigError(f"{path}: not in the text format of Triton's ModelConfig: {error}") from error
    _warn(path, unknown)
    # In proto3, which the file is written for, an empty text and none are the same.
    return {name: value for name, value in _plain(message).items() if value != ""}


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(_LARGEST + 1)
        if len(content) > _LARGEST:
            raise ConfigError(f"{path}: longer than {_LARGEST} bytes; is it a model's configuration?")
        return content.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: can't be read: {error}") from error


@cache
def _message_class() -> Any:
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="mqinfer/triton_text.proto", package="triton")
    for name, values in _ENUMS.items():
        enum = file.enum_type.add(name=name)
        for number, value in enumerate(values.split()):
            enum.value.add(name=value, number=number)
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for number, (kind, star, field) in enumerate(re.findall(r"(\w+)(\*?) (\w+)", fields), 1):
            message.field.add(name=field, number=number, label=3 if star else 1, **_type(kind))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("triton.ModelConfig"))


def _type(kind: str) -> dict[str, Any]:
    """Name a field's type as a descriptor does: by number, and by name where it is a type of this file."""
    scalars = {"int64": 3, "uint64": 4, "bool": 8, "string": 9}
    if kind in scalars:
        return {"type": scalars[kind]}
    return {"type": 14 if kind in _ENUMS else 11, "type_name": f".triton.{kind}"}


def _plain(value: Any, field: Any = None) -> Any:
    if field is not None and field.enum_type is not None and isinstance(value, int):
        return field.enum_type.values_by_number[value].name
    if isinstance(value, (bool, int, str)):
        return value
    if hasattr(value, "ListFields"):
        return {each.name: _plain(inner, each) for each, inner in value.ListFields()}
    items = [_plain(each, field) for each in value]
    if field.message_type is not None and "key" in field.message_type.fields_by_name:
        return {str(item.get("key", "")): _entry(item.get("value", "")) for item in items}
    return items


def _entry(value: Any) -> Any:
    """Take the one kind of value that a parameter can have out of its message."""
    return value["string_value"] if isinstance(value, dict) and value.keys() == {"string_value"} else value


@dataclass(slots=True)
class _Level:
    """An open brace: the message within it, where it stands, and the type of the field that was named last."""

    message: Any
    place: str = ""
    child: Any = None
    name: str = ""


@dataclass(frozen=True, slots=True)
class _Unknown:
    """A field that the description lacks: from its name to whatever follows its value."""

    place: str
    near: str
    start: tuple[int, int]
    depth: int


def _without_unknown(text: str, tokenizer: Any, root: Any) -> tuple[str, list[_Unknown]]:
    """Blank out what the description lacks, so that protobuf reads the rest strictly, lines and columns unchanged.

    (Its own `allow_unknown_field` names nothing, and stumbles over lists of messages.) A word is a field's name where a
    colon or a bracket follows; a value ends where the next name of its level begins, or where the level ends.
    """
    lines, unknown, skipped = [list(line) for line in text.splitlines()], list[_Unknown](), None
    levels = [_Level(root)]
    while not tokenizer.AtEnd():
        token, here = tokenizer.token, _position(tokenizer)
        tokenizer.NextToken()
        is_name = tokenizer.token in _AFTER_NAMES and token.isidentifier()
        if skipped and (len(levels) == skipped.depth and (is_name or token in _CLOSING)):
            _blank(lines, skipped.start, here)
            skipped = None
        if token in _OPENING:
            levels.append(_Level(levels[-1].child, levels[-1].name))
        elif token in _CLOSING and len(levels) > 1:
            levels.pop()
        elif is_name and not skipped and (skipped := _enter(levels, token, here)):
            unknown.append(skipped)
    if skipped:
        _blank(lines, skipped.start, (len(lines), 0))
    return "\n".join(map("".join, lines)), unknown


def _enter(levels: list[_Level], token: str, here: tuple[int, int]) -> _Unknown | None:
    level = levels[-1]
    level.name, level.child = f"{level.place}.{token}".lstrip("."), None
    if level.message is None:  # braces after a plain field, which protobuf will refuse
        return None
    fields = level.message.fields_by_name
    if token not in fields:
        near = get_close_matches(token, list(fields), 1, cutoff=0.85)
        return _Unknown(level.name, near[0] if near else "", here, len(levels))
    level.child = fields[token].message_type
    return None


def _position(tokenizer: Any) -> tuple[int, int]:
    here = tokenizer.ParseError("")
    return here.GetLine() - 1, here.GetColumn() - 1


def _blank(lines: list[list[str]], start: tuple[int, int], end: tuple[int, int]) -> None:
    for number in range(start[0], min(end[0] + 1, len(lines))):
        line = lines[number]
        first = start[1] if number == start[0] else 0
        last = end[1] if number == end[0] else len(line)
        line[first:last] = " " * (last - first)


def _warn(path: Path, unknown: list[_Unknown]) -> None:
    named = [f"{each.place} (did you mean {each.near}?)" if each.near else each.place for each in unknown]
    if named:
        log.warning("%s: without effect here: %s", path, ", ".join(dict.fromkeys(named)))

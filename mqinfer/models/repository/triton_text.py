"""Read Triton's `config.pbtxt`, with protobuf's text format and Triton's own message, into tables as TOML has them."""

from __future__ import annotations

import re
from collections.abc import MutableMapping, MutableSequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from mqinfer.extras import missing_extra
from mqinfer.models.repository.tables import Place
from mqinfer.protocol.errors import ConfigError
from mqinfer.toml_files import read_text

_LARGEST = 1 << 18  # bytes; the longest that were seen have some 20,000
_UNKNOWN = re.compile(r'type "(\S+)" has no field named "(\w+)"')


def read_triton_text(place: Place) -> dict[str, Any]:
    """Read a file into nested tables, with the names and values of the file.

    A field that Triton's message lacks is skipped as far as protobuf can; the first one is added to `place.unused`.

    Args:
        place: The file.

    Raises:
        ConfigError: The file can't be read, or is not in the text format of Triton's `ModelConfig`.
        MissingExtra: tritonclient is not installed.
    """
    text, message_class = _text(place.file), _message_class()
    from google.protobuf import text_format

    try:
        try:
            message = text_format.Parse(text, message_class())
        except text_format.ParseError as error:
            unknown = _UNKNOWN.search(str(error))
            if not unknown:
                raise
            place.add_unused(_with_suggestion(message_class.DESCRIPTOR.file.pool, unknown[1], unknown[2]))
            message = text_format.Parse(text, message_class(), allow_unknown_field=True)
    except (text_format.ParseError, RecursionError) as error:
        raise ConfigError(f"{place.file}: not in the text format of Triton's ModelConfig: {error}") from error
    # In proto3, which the file is written for, an empty text and none are the same.
    return {name: value for name, value in _plain(message).items() if value != ""}


def _text(path: Path) -> str:
    try:
        return read_text(path, _LARGEST)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: can't be read: {error}") from error


def _message_class() -> Any:
    """Make Triton's `ModelConfig` with the presence of proto2, so that `max_batch_size: 0` differs from none at all."""
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
        from tritonclient.grpc import model_config_pb2
    except (ImportError, RuntimeError) as error:  # tritonclient raises the latter where grpcio is missing
        raise missing_extra("tritonclient[grpc]", "worker") from error
    file = descriptor_pb2.FileDescriptorProto()
    model_config_pb2.DESCRIPTOR.CopyToProto(file)
    file.syntax = "proto2"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(
        pool.FindMessageTypeByName(model_config_pb2.ModelConfig.DESCRIPTOR.full_name)
    )


def _with_suggestion(pool: Any, message: str, name: str) -> str:
    near = get_close_matches(name, list(pool.FindMessageTypeByName(message).fields_by_name), 1, cutoff=0.85)
    return f"{name} (did you mean {near[0]}?)" if near else name


def _plain(value: Any, field: Any = None) -> Any:
    """Convert a message to a dictionary; `field` describes the value where it is one of a message's."""
    if isinstance(value, MutableMapping):
        return {str(key): _plain(each, field.message_type.fields_by_name["value"]) for key, each in value.items()}
    if isinstance(value, MutableSequence):
        return [_plain(each, field) for each in value]
    if hasattr(value, "ListFields"):
        fields = {each.name: _plain(inner, each) for each, inner in value.ListFields()}
        return fields.get("string_value", "") if value.DESCRIPTOR.name == "ModelParameter" else fields
    return field.enum_type.values_by_number[value].name if field.enum_type else value

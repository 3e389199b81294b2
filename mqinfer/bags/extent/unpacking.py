"""Unpack what zstd, LZ4 or bzip2 compressed, up to a bound: a few of its bytes may stand for any number."""

from __future__ import annotations

import bz2
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial
from importlib import import_module
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import lz4.frame

from mqinfer.protocol.errors import SourceError

LARGEST = 1 << 29
"""Bytes that one part of a recording may have: a chunk, or a message. A message of a picture has at most half of it."""
_DEFINITION = 1 << 18
"""Characters of the definition of a message type, with all that it uses; one of 60,000 is large."""
_PIECE = 1 << 20
"""Bytes that are unpacked at a time."""
METADATA = 1 << 23
"""Bytes of a folder's metadata.yaml: 20,000 files or 15,000 topics take half of them."""
_MOST_PARTS = 1 << 19
"""Names, values, beginnings and ends in it, which are parsed in some seconds: 30,000 files or topics have so many."""
_FORMATS = {"ros2msg": "MSG", "ros2idl": "IDL", "omgidl": "IDL"}
"""What rosbags calls the encodings of schemas that it parses."""
_PROFILE, _ROS2 = 17, b"\4\0\0\0ros2"
"""Where an MCAP file's header has its profile, and that of ROS 2."""
MADE = "SELECT t.name FROM sqlite_master t, pragma_table_xinfo(t.name) c WHERE t.type = 'view' OR c.hidden"
"""Finds what is no plain table: rows and columns that are made while they are read may have any size, or no end."""
_PLAIN = {"int": "-?[0-9]{1,19}", "bool": "true|false", "null": "~|null|"}
"""What else than text stands in it without a mark of its type."""


def zstd() -> Any:
    """Import the module of zstd: the standard library's, or that which rosbags depends on."""
    if sys.version_info >= (3, 14):
        from compression import zstd as module
    else:
        from backports import zstd as module
    return module


def unpack(kind: str, packed: bytes, *, is_cut: bool = False) -> bytes:
    """Unpack a part of a recording.

    Args:
        kind: `zstd`, `lz4` or `bz2`; empty or `none` for what is not packed.
        packed: The part.
        is_cut: Whether to return what there is of a part that is cut off.

    Raises:
        ValueError: It has more than `LARGEST` bytes.
        Exception: What the decompressors raise on damage.
    """
    if kind in {"", "none"}:
        return bytes(packed)
    opener: Any = {"zstd": lambda file: zstd().open(file), "lz4": lz4.frame.open, "bz2": bz2.open}[kind]
    whole = BytesIO()
    with opener(BytesIO(packed)) as pieces:
        try:
            while piece := pieces.read1(_PIECE):
                whole.write(piece)
                if whole.tell() > LARGEST:
                    raise ValueError(f"a part of {len(packed)} bytes unpacks to more than {LARGEST >> 20} MiB")
        except EOFError:
            if not is_cut:
                raise
    return whole.getvalue()


def chunk_records(chunk: Any) -> list[Any]:
    """Return the records in a chunk of an MCAP file; raise what decompressors and parsers raise on damage."""
    from mcap.stream_reader import breakup_chunk

    whole = replace(chunk, compression="", data=unpack(chunk.compression, chunk.data))
    return list(breakup_chunk(whole, validate_crc=True))


def bound_rosbags() -> None:
    """Have the readers of rosbags unpack within the bound, and parse what does not take minutes.

    They have one table of functions for each kind of bag.
    """
    from rosbags import typesys
    from rosbags.highlevel import anyreader
    from rosbags.rosbag1 import reader as ros1
    from rosbags.rosbag2 import reader as ros2
    from rosbags.rosbag2 import storage_mcap as mcap
    from rosbags.rosbag2 import storage_sqlite3 as sqlite

    def bounded(kind: str) -> Any:
        return lambda packed, *_: unpack(kind, packed)

    def text(file: Any) -> str:  # of schemas it may be none; with the profile a record begins, and any is read
        is_profile, found = file.tell() == 0, mcap.read_bytes(file).decode(errors="replace")
        return "ros2" if is_profile else found

    for table in (vars(ros1).get("decompressors", {}), vars(mcap).get("DECOMPRESSORS", {})):
        table.update({kind: bounded(kind) for kind in table if kind in {"zstd", "lz4", "bz2"}})
    for name in ("get_types_from_msg", "get_types_from_idl"):
        vars(anyreader)[name] = lru_cache(partial(_parse, vars(typesys)[name]))  # of most topics the same ones
    vars(mcap)["read_string"] = text
    vars(mcap)["get_msgdef"] = _definition
    for each in (ros2, mcap, sqlite):  # one more YAML file a topic, of which nothing is used
        vars(each)["parse_qos"] = lambda _: []
    vars(sqlite)["apsw"] = SimpleNamespace(**vars(import_module("apsw")) | {"Connection": _stored})
    vars(ros2)["YAML"] = lambda **_: SimpleNamespace(load=_metadata)
    module = zstd()
    vars(ros2)["zstd"] = SimpleNamespace(open=module.open, decompress=bounded("zstd"))


def _stored(uri: str, **options: Any) -> Any:
    """Return the connection that rosbags asks of apsw; a path may have what means something in an address."""
    path, _, query = uri.removeprefix("file:").rpartition("?")
    opened = import_module("apsw").Connection(f"file:{quote(path)}?{query}", **options)
    if made := opened.execute(MADE).fetchone():
        opened.close()
        raise SourceError(f"{path}: {made[0]!r:.100} is no plain table as recorders write; choose another recording")
    return opened


def _definition(schema: Any) -> Any:
    """Return the definition that a schema of an MCAP file has; that there is none where it is none of ROS 2."""
    from rosbags.interfaces import MessageDefinition, MessageDefinitionFormat

    kind = _FORMATS.get(schema.encoding if schema else "", "NONE")
    return MessageDefinition(MessageDefinitionFormat[kind], schema.data if kind != "NONE" else "")


def is_foreign(file: Path) -> bool:
    """Return whether the header of an MCAP file has another profile than that of ROS 2."""
    with file.open("rb") as opened:
        head = opened.read(_PROFILE + len(_ROS2))
    return len(head) == _PROFILE + len(_ROS2) and not head.endswith(_ROS2)


def _metadata(text: str) -> Any:
    """Parse a metadata.yaml in C; rosbags takes a minute for a megabyte."""
    from yaml import CSafeLoader, YAMLError, parse

    # No dates, no numbers to the base of 60 and no merging of maps, which may take for ever.
    without: dict[str, Any] = {"yaml_implicit_resolvers": {}, "flatten_mapping": lambda *_: None}
    loader: Any = type("Loader", (CSafeLoader,), without)
    for name, pattern in _PLAIN.items():
        loader.add_implicit_resolver(f"tag:yaml.org,2002:{name}", re.compile(f"^(?:{pattern})$"), None)
    try:
        if any(number > _MOST_PARTS for number, _ in enumerate(parse(text, loader))):
            raise ValueError(f"metadata.yaml has more than {_MOST_PARTS} parts")
        return loader(text).get_single_data()
    except YAMLError as error:
        raise ValueError(f"metadata.yaml is not YAML: {error}") from error


def _parse(parse: Callable[..., Any], text: str, *name: str) -> Any:
    if len(text) > _DEFINITION:
        raise ValueError(f"a message type is defined in {len(text)} characters; expected at most {_DEFINITION}")
    return parse(text, *name)

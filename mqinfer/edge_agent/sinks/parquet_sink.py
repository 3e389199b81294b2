"""Write results as a folder of Parquet files, for pandas, DuckDB and Spark: a row a frame, with a message's words."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from mqinfer.answers.words import SCHEMA
from mqinfer.bags.frame import Frame
from mqinfer.client.result import InferResult
from mqinfer.edge_agent.frames.view import FrameView
from mqinfer.edge_agent.output_files import replacing, set_aside, writing
from mqinfer.edge_agent.sinks.jsonl_sink import describe_settled
from mqinfer.extras import import_extra
from mqinfer.logs import encodable
from mqinfer.protocol.errors import ConfigError

FOLDER = "results.parquet"
_BATCH = 32
"""Rows that are kept as Python objects, at most 1 MiB each, before they become columns."""
_PART_ROWS, _PART_BYTES, _PART_S = 1024, 16 << 20, 60.0
"""A part is written before it has more rows or more bytes, and with the first row that comes after so many seconds."""
_NOT_KEPT = ("schema", "cut", "presence", "crossings")
"""Fields of a message alone: its version stands in each file, nothing is cut, and a run is watched by one sink."""
_INSTEAD = "remove it, choose another --output, or leave out --resume"

_Column = tuple[Any, Callable[[Any], Any]]
"""A type of Arrow, and what makes values that it takes of those of a message."""


class ParquetSink:
    """Writes `results.parquet/part-N.parquet`, one row a frame, whatever its outcome; N is the place of its first row.

    A part has its name once it is whole, so a kill loses the rows that have not become a part: less than `_PART_ROWS`.
    The columns are those of `answer.schema.json`.

    Args:
        directory: For the folder.
        goes_on_at: Go on behind so many rows of the folder that is there; None sets it aside.

    Raises:
        ConfigError: The folder cannot be set aside or created, or a part cannot be cut.
        MissingExtra: pyarrow is not installed.
    """

    def __init__(self, directory: Path, *, goes_on_at: int | None = None) -> None:
        self._parquet = import_extra("pyarrow.parquet", "parquet", "pyarrow")
        self._arrow = import_extra("pyarrow", "parquet")
        self._folder = directory / FOLDER
        text = resources.files("mqinfer.answers").joinpath("answer.schema.json").read_text(encoding="utf-8")
        fields = json.loads(text)["properties"].items()
        row, self._plain = _struct(self._arrow, {name: each for name, each in fields if name not in _NOT_KEPT})
        self._schema = self._arrow.schema(row, metadata={"mqinfer.schema": str(SCHEMA)})
        # Arrow imports pandas, where that is installed, with the first rows: no frame is to wait for that second.
        self._arrow.RecordBatch.from_pylist([], self._schema)
        self._rows: list[dict[str, Any]] = []
        self._batches: list[Any] = []
        self._bytes = 0
        self._due = 0.0
        self._begin = goes_on_at or 0
        with writing(self._folder):
            if goes_on_at is None:
                set_aside(self._folder, is_there=Path.is_dir)
            self._folder.mkdir(exist_ok=True)
            self._cut(self._begin)

    def write(self, frame: Frame, view: FrameView, result: InferResult) -> None:
        """Keep the row of a frame, and write a part where one is full or due.

        Raises:
            ConfigError: A part cannot be written.
        """
        row = self._plain(describe_settled(frame, view, result, view.words))
        if not self._rows and not self._batches:
            self._due = time.monotonic() + _PART_S
        self._rows.append(row)
        is_due = time.monotonic() >= self._due
        if is_due or len(self._rows) >= _BATCH:
            self._convert()
            if is_due or self._count >= _PART_ROWS or self._bytes >= _PART_BYTES:
                self._write_part()

    def close(self) -> tuple[Path, ...]:
        """Write what is left, and return the path of the folder.

        Raises:
            ConfigError: It cannot be written.
        """
        self._convert()
        self._write_part()
        return (self._folder,)

    @property
    def _count(self) -> int:
        return sum(len(each) for each in self._batches)

    def _convert(self) -> None:
        try:
            if self._rows:
                self._batches.append(self._arrow.RecordBatch.from_pylist(self._rows, self._schema))
                self._bytes += self._batches[-1].nbytes
        except MemoryError as error:  # the sink is left out: a part without them would be taken for whole
            raise ConfigError(f"{self._folder}: no memory is left for {len(self._rows)} rows") from error
        self._rows = []

    def _write_part(self) -> None:
        if self._batches:
            self._write(self._begin, self._arrow.Table.from_batches(self._batches))
            self._begin += self._count
            self._batches, self._bytes = [], 0

    def _write(self, begin: int, table: Any) -> None:
        path = self._folder / f"part-{begin:012d}.parquet"
        with replacing(path, prefix=".") as unfinished:  # readers of a folder leave out what begins with a dot
            self._parquet.write_table(table, unfinished, compression="zstd")

    def _cut(self, rows: int) -> None:
        """Remove what follows so many rows, which a run that goes on writes again, and what a kill left unfinished."""
        for path in self._folder.glob(".part-*.new"):
            path.unlink()
        for begin, end, path in _parts(self._folder):
            if begin >= rows:
                path.unlink()
            elif end > rows:
                self._write(begin, self._parquet.read_table(path).slice(0, rows - begin))


def kept_rows(directory: Path) -> int | None:
    """Return up to which frame of a run its folder of parts has rows; None without a folder.

    Raises:
        ConfigError: A part can't be read.
        MissingExtra: pyarrow is not installed.
    """
    folder = directory / FOLDER
    return max((end for _, end, _ in _parts(folder)), default=0) if folder.is_dir() else None


def _parts(folder: Path) -> Iterator[tuple[int, int, Path]]:
    """Yield place of the first row, of the row behind the last one, and path of each part, in order."""
    read_metadata = import_extra("pyarrow.parquet", "parquet", "pyarrow").read_metadata
    for path in sorted(folder.glob("part-*.parquet")):
        if not path.is_file():  # opening a pipe would wait for ever
            raise ConfigError(f"{path}: not a file; {_INSTEAD}")
        try:
            begin = int(path.stem.removeprefix("part-"))
            rows = read_metadata(path).num_rows
        except (OSError, ValueError) as error:
            raise ConfigError(f"{path}: {error}; {_INSTEAD}") from error
        yield begin, begin + rows, path


def _column(arrow: Any, field: Mapping[str, Any]) -> _Column:
    """Return the column for a field of a JSON Schema; one that may be anything is a text, as JSON."""
    field = next((each for each in field.get("oneOf", ()) if each["type"] != "null"), field)
    kinds = field.get("type", "string")  # an `enum` is one of texts
    kind = kinds if isinstance(kinds, str) else kinds[0]  # the other one is "null"
    if kind in _SCALARS:
        return _SCALARS[kind](arrow)
    inner = field.get("items") or field.get("additionalProperties")
    if "properties" in field:
        fields, plain = _struct(arrow, field["properties"])
        return arrow.struct(fields), plain
    if not inner:
        return arrow.string(), json.dumps
    of, plain = _column(arrow, inner)
    if kind == "array":
        return arrow.list_(of), lambda values: [plain(each) for each in values]
    return arrow.map_(arrow.string(), of), lambda found: [(encodable(key), plain(each)) for key, each in found.items()]


def _struct(arrow: Any, fields: Mapping[str, Any]) -> tuple[list[Any], Callable[[Mapping[str, Any]], dict[str, Any]]]:
    columns = {name: _column(arrow, field) for name, field in fields.items()}
    described = [
        arrow.field(name, of, metadata={"description": fields[name].get("description", "")})
        for name, (of, _) in columns.items()
    ]

    def row(found: Mapping[str, Any]) -> dict[str, Any]:
        return {name: columns[name][1](each) for name, each in found.items() if each is not None and name in columns}

    return described, row


def _whole(value: int) -> int | None:
    """Return a number that fits into 64 bits; None in place of another one."""
    return value if -(1 << 63) <= value < 1 << 63 else None


_SCALARS: Mapping[str, Callable[[Any], _Column]] = {
    "integer": lambda arrow: (arrow.int64(), _whole),
    "number": lambda arrow: (arrow.float64(), float),
    "string": lambda arrow: (arrow.string(), encodable),
    "boolean": lambda arrow: (arrow.bool_(), bool),
}

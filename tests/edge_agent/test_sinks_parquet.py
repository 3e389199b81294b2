"""Parquet files: all fields of a message, by readers that others wrote; parts, kills, and a run that goes on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from mqinfer.edge_agent.frames.view import NO_VIEW
from mqinfer.edge_agent.sinks import parquet_sink
from mqinfer.edge_agent.sinks.factory import SinkSet, open_sinks
from mqinfer.edge_agent.sinks.jsonl_sink import describe_settled
from mqinfer.edge_agent.sinks.parquet_sink import ParquetSink, kept_rows
from mqinfer.edge_agent.sinks.sink import Earlier
from mqinfer.protocol.card import ClassInfo, ModelCard
from mqinfer.protocol.datatypes import Array
from mqinfer.protocol.errors import ConfigError
from mqinfer.protocol.types import Outcome
from tests.edge_agent.test_sinks_mqtt import FINDINGS, frame, result, view

parquet: Any = pytest.importorskip("pyarrow.parquet", reason="needs pyarrow, of the extra parquet")
SCHEMA = json.loads(resources.files("mqinfer.answers").joinpath("answer.schema.json").read_text())
FOLLOWED = FINDINGS["followed objects with masks"]


def write(sink: ParquetSink, *numbers: int, outputs: dict[str, Array] = FOLLOWED) -> None:
    """Write frames with the same outputs."""
    for number in numbers:
        sink.write(frame(number), view(outputs), result(outputs))


def files(directory: Path) -> list[str]:
    """Return the names of the parts, and of what else is in the folder."""
    return sorted(path.name for path in (directory / parquet_sink.FOLDER).iterdir())


def sequences(directory: Path) -> list[int]:
    """Return the number of each frame, in the order of the rows."""
    numbers: list[int] = parquet.read_table(directory / parquet_sink.FOLDER)["sequence"].to_pylist()
    return numbers


def document(value: Any, field: Any) -> Any:
    """Return a value of a row as a message has it: without nulls, maps as objects, texts of JSON as what they say."""
    inner = field.get("items") or field.get("additionalProperties")
    field = next((each for each in field.get("oneOf", ()) if each["type"] != "null"), field)
    if "properties" in field:
        return {name: document(each, field["properties"][name]) for name, each in value.items() if each is not None}
    if field.get("type") == "array" and inner:
        return [document(each, inner) for each in value]
    if inner:
        return {name: document(each, inner) for name, each in dict(value).items()}
    return json.loads(value) if field.get("type") in ("array", "object") else value


def without_nulls(value: Any) -> Any:
    """Return a message without what is null."""
    if isinstance(value, dict):
        return {name: without_nulls(each) for name, each in value.items() if each is not None}
    return [without_nulls(each) for each in value] if isinstance(value, list) else value


def test_a_row_has_all_that_a_message_has(tmp_path: Path) -> None:
    """Of what each kind of model answers, and of a frame without an answer; as a message again, it fits the schema."""
    sink = ParquetSink(tmp_path)
    written = [(frame(number), view(outputs), result(outputs)) for number, outputs in enumerate(FINDINGS.values())]
    written.append((frame(99), NO_VIEW, result({}, Outcome.EXPIRED)))
    for each in written:
        sink.write(*each)
    (folder,) = sink.close()
    table = parquet.read_table(folder)
    assert set(table.column_names) == set(SCHEMA["properties"]) - {"schema", "cut", "presence", "crossings"}
    assert table.schema.metadata[b"mqinfer.schema"] == b"1"
    assert table.schema.field("worker").metadata[b"description"].startswith(b"Who answered")
    for row, each in zip(table.to_pylist(), written, strict=True):
        described = describe_settled(*each, each[1].words)
        found = document(row, SCHEMA)
        assert found == without_nulls(json.loads(json.dumps(described)))
        jsonschema.Draft202012Validator(SCHEMA).validate({"schema": 1, "error": None, **found})


def test_pandas_and_duckdb_read_the_folder(tmp_path: Path) -> None:
    """Objects as rows of their own, counts and shares by class, stages by name."""
    pandas, duckdb = (
        pytest.importorskip(name, reason=f"needs {name}, of the extra dev") for name in ("pandas", "duckdb")
    )
    sink = ParquetSink(tmp_path)
    write(sink, 0, 1)
    write(sink, 2, outputs=FINDINGS["mask"])
    (folder,) = sink.close()
    table = pandas.read_parquet(folder)
    objects = pandas.json_normalize(table.explode("detections")["detections"].dropna())
    assert objects["class"].tolist() == ["car", "road"] * 2
    assert objects["score"].tolist() == [0.875, 0.5] * 2
    assert dict(table["class_shares"][2]) == {"car": 0.5, "road": 0.5}
    found = duckdb.execute(
        "SELECT sequence, d.class, d.id, d.box[3], counts['car'], times.stages['inference'] FROM "
        "(SELECT *, unnest(detections) AS d FROM read_parquet(?)) WHERE d.class = 'car' ORDER BY sequence",
        [f"{folder}/*.parquet"],
    )
    assert found.fetchall() == [(0, "car", 8, 60.0, 1, 10), (1, "car", 8, 60.0, 1, 10)]
    text = (Path(__file__).parents[2] / "docs" / "reference" / "replay.md").read_text(encoding="utf-8")
    query = text.partition("```sql\n")[2].partition("```")[0].replace("by-kind/results.parquet", str(folder))
    assert duckdb.sql(query).fetchall() == [("/camera/image", 10 + number, "car", 0.875, 20.0, 10) for number in (0, 1)]
    shares = duckdb.execute("SELECT class_shares['road'] FROM read_parquet(?)", [f"{folder}/*.parquet"])
    assert shares.fetchall() == [(None,), (None,), (0.5,)]


def test_what_no_column_takes_costs_no_row(tmp_path: Path) -> None:
    """Numbers beyond 64 bits are null, texts lose what UTF-8 has no bytes for; large whole numbers are numbers."""
    outputs: dict[str, Array] = {
        "boxes": np.zeros((1, 4), np.float32),
        "scores": np.ones(1, np.float32),
        "ids": np.array([1e30]),
        "large": np.full(100, (1 << 63) - 1, np.int64),
    }
    sink = ParquetSink(tmp_path)
    odd = frame(1, "\udc80\0")
    sink.write(odd, view(outputs, [ClassInfo("\udc80", (0, 0, 0))]), result(outputs))
    sink.write(frame(2**64), view({}), result({}))
    first, second = parquet.read_table(sink.close()[0]).to_pylist()
    assert (first["source"], first["detections"][0]["id"], second["sequence"]) == ("\\udc80\0", None, None)
    assert dict(first["outputs"])["large"]["greatest"] == 2.0**63


def test_parts_are_bounded_by_rows_bytes_and_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has its name once it is whole; the name is the place of its first row."""
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(parquet_sink, "_BATCH", 4)
    monkeypatch.setattr(parquet_sink, "_PART_ROWS", 8)
    sink = ParquetSink(tmp_path)
    write(sink, *range(10))
    assert files(tmp_path) == ["part-000000000000.parquet"]
    clock[0] = 61.0
    write(sink, 10)
    assert kept_rows(tmp_path) == 11
    monkeypatch.setattr(parquet_sink, "_PART_BYTES", 1)
    write(sink, *range(11, 16))
    assert kept_rows(tmp_path) == 15
    sink.close()
    assert files(tmp_path) == [f"part-{begin:012d}.parquet" for begin in (0, 8, 11, 15)]
    assert sequences(tmp_path) == list(range(16))


KILLED = """
import os
import sys
from tests.edge_agent.test_sinks_parquet import *
sink = ParquetSink(Path(sys.argv[1]))
parquet_sink._PART_ROWS = 64
write(sink, *range(150))
sink._parquet.write_table = lambda table, path, **_: (path.write_bytes(b"PAR1"), os.kill(os.getpid(), 9))
sink.close()
"""


def test_a_killed_run_leaves_whole_parts_and_the_next_goes_on(tmp_path: Path) -> None:
    """Killed within a part: readers of the folder see the ones before; what a run writes again is there once."""
    ended = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False, timeout=120)
    assert ended.returncode == -9
    assert len(files(tmp_path)) == 3
    assert sequences(tmp_path) == list(range(128))
    assert kept_rows(tmp_path) == 128
    sinks = open_sinks(tmp_path, ModelCard(name="net", platform="echo"), ["parquet"], goes_on_with=Earlier("", 100))
    for number in range(100, 103):
        sinks.write(frame(number), view({}), result({}))
    sinks.close()
    assert sequences(tmp_path) == list(range(103))
    assert len(files(tmp_path)) == 3


def test_another_run_sets_the_folder_aside(tmp_path: Path) -> None:
    """As every other kind of files; a part that can't be read is named where a run is to go on."""
    for _ in range(2):
        sink = ParquetSink(tmp_path)
        write(sink, 0)
        sink.close()
    assert {path.name for path in tmp_path.iterdir()} == {"results.parquet", "results.1.parquet"}
    part = tmp_path / "results.parquet" / "part-000000000001.parquet"
    part.write_bytes(b"PAR1")
    with pytest.raises(ConfigError, match=r"part-000000000001.parquet: .*leave out --resume"):
        kept_rows(tmp_path)
    part.unlink()
    os.mkfifo(part)
    with pytest.raises(ConfigError, match=r"part-000000000001.parquet: not a file"):
        kept_rows(tmp_path)


def test_a_full_disk_and_a_lack_of_memory_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the part's name; the other kinds of files go on, and no half of a part is left."""
    sink = ParquetSink(tmp_path)
    (tmp_path / "results.parquet" / ".part-000000000000.parquet.new").symlink_to("/dev/full")
    sinks = SinkSet([sink])
    write(sink, 0)
    sinks.close()
    assert isinstance(sinks.failure, ConfigError)
    assert "part-000000000000.parquet: " in str(sinks.failure)
    assert files(tmp_path) == []
    sink = ParquetSink(tmp_path)

    class Full:
        @staticmethod
        def from_pylist(*_: object) -> None:
            raise MemoryError

    monkeypatch.setattr(sink, "_arrow", type("Arrow", (), {"RecordBatch": Full}))
    write(sink, 0)
    with pytest.raises(ConfigError, match="no memory is left for 1 rows"):
        sink.close()

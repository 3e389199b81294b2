"""docs/reference/protocol.md says what the code does."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from pathlib import Path

import msgpack
import pytest
from msgspec.structs import fields

from mqinfer.protocol import control, envelope, errors, states, topics
from mqinfer.protocol.checksum import checksum
from mqinfer.protocol.control import BatchStatistics, ModelStatistics
from mqinfer.protocol.datatypes import Datatype
from mqinfer.protocol.limits import DEFAULT_LIMITS
from mqinfer.protocol.states import WorkerState
from mqinfer.protocol.types import InferRequest, InferResponse, Outcome, Timings

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "reference" / "protocol.md").read_text()
EXAMPLE = (ROOT / "tests" / "golden" / "request_small.mqi").read_bytes()


def rows(heading: str) -> list[list[str]]:
    """Read the table below the line of headings that begins so; backquotes are taken off."""
    lines = TEXT.split(f"\n| {heading} |", 1)[1].split("\n")[2:]
    table = lines[: next(index for index, line in enumerate(lines) if not line.startswith("|"))]
    return [[cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in table]


def test_error_codes_are_those_of_the_tree() -> None:
    """Every class with its code, in the order of the tree."""
    classes = [getattr(errors, name) for name in errors.__all__ if name != "error_from_code"]
    assert {(row[0], row[1]) for row in rows("code")} == {(error.code, error.__name__) for error in classes}


def test_outcomes_datatypes_and_limits_are_those_of_the_code() -> None:
    """The three other tables."""
    assert [row[0] for row in rows("outcome")] == list(Outcome)
    assert {row[0]: int(row[1]) for row in rows("limit")} == asdict(DEFAULT_LIMITS)
    listed = TEXT.split("## 6. Datatypes")[1].split("| encoding")[0]
    assert re.findall(r"\b(?:BOOL|U?INT\d+|FP\d+|BYTES)\b", listed) == list(Datatype)


def test_the_hex_example_is_the_golden_file() -> None:
    """Byte for byte, and the explanations point at what they say."""
    block = TEXT.split("```hex\n")[1].split("```")[0]
    assert bytes.fromhex("".join(line[6:53] for line in block.splitlines())) == EXAMPLE
    assert int.from_bytes(EXAMPLE[4:8], "little") == 177
    for at, data, _ in rows("at"):
        shown = re.match(r"(?:[0-9a-f]{2} ?)+", data)
        if shown:
            expected = bytes.fromhex(shown[0])
            assert EXAMPLE[int(at, 16) :].startswith(expected), at
    assert msgpack.unpackb(EXAMPLE[8 : 8 + 177])["parameters"]["timeout"] == 5_000_000


def test_the_checksum_is_that_of_the_code() -> None:
    """The property, and its value for the example."""
    name, value = checksum((EXAMPLE,))
    assert f"`{value}` for the example" in TEXT
    assert f"| User Property `{name}` |" in TEXT


@pytest.mark.parametrize(
    "name", ["id", "timeout", "priority", "attempt", "response_topic", "source", "sequence", "frame_id"]
)
def test_every_request_field_is_described(name: str) -> None:
    """A field that travels stands in the table."""
    assert name in {row[0].removeprefix("… ").strip("`") for row in rows("field")}
    assert f"`{name}`" in TEXT


def test_every_field_of_a_reply_and_of_a_state_is_described() -> None:
    """The same for replies, timings and states."""
    renamed = {"timeout_us": "timeout", "capture": "capture_time_ns", "trace": "traceparent"}
    names = [field.name for message in (InferRequest, InferResponse, Timings) for field in fields(message)]
    described = (WorkerState, states.ClientState, states.PendingRequests, states.StreamState)
    for name in [*names, *(field for state in described for field in state.__struct_encode_fields__)]:
        assert f"`{renamed.get(name, name)}`" in TEXT, name


def test_topics_are_those_of_the_code() -> None:
    """The table of topics holds the levels of each kind, with names in braces."""
    made = topics.Topics("{root}")
    kinds = (made.channel, made.version_channel, made.lane, made.result, made.cancel, made.card)
    states = (made.worker_state, made.client_state, made.previews, made.answers, made.presence, made.overlay)
    assert [row[0] for row in rows("topic")] == [kind.template for kind in (*kinds, *states)]


def test_control_is_that_of_the_code() -> None:
    """The tables of topics, calls and states, and every field of the statistics and of a server's state."""
    made = topics.Topics("root")
    built = [made.control("server", "client", "call"), made.control_state("server")]
    shown = [re.sub(r"[{}]", "", row[0]) for row in rows("control topic")]
    assert shown == [*built, made.control_result("client", "request"), made.edge_reply("edge", "request")]
    assert [row[0] for row in rows("call")] == list(control.Operation)
    assert {row[0] for row in rows("state")} == set(control.ModelState)
    entry = (ModelStatistics() + ModelStatistics(batches={1: BatchStatistics()})).to_record("m", "1")
    state = json.loads(states.ServerState("s", states.ProcessStatus.READY, 1).to_json())
    named = {*entry, *entry["inference_stats"], *entry["batch_stats"][0], *state}
    assert {name for name in named if f"`{name}`" not in TEXT} == set()
    assert all(f"`{status}`" in TEXT for status in states.ProcessStatus)


def test_the_states_are_those_of_the_code() -> None:
    """Every field and status of the state of a worker and of a client."""
    text = TEXT[TEXT.index("A **worker state**") :]
    worker = states.WorkerState("w", states.WorkerStatus.CRASHED, 1, running=("1",)).to_json()
    client_text = text[text.index("A **client state**") :]
    client = states.ClientState("c", states.ProcessStatus.READY, 1, pending=()).to_json()
    assert [name for name in json.loads(worker) if f"`{name}`" not in text] == []
    assert [name for name in json.loads(client) if f"`{name}`" not in client_text] == []
    assert [each for each in states.WorkerStatus if f"`{each}`" not in text] == []
    assert [each for each in states.ProcessStatus if f"`{each}`" not in client_text] == []


def test_content_types_are_named() -> None:
    """Both media types stand in the document."""
    assert envelope.CONTENT_TYPE in TEXT
    assert "`application/json`" in TEXT

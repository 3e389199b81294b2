"""Messages that every receiver refuses: Python's own decoder gives the codes that broken.json states."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mqinfer.codecs import decode_tensor
from mqinfer.protocol import envelope
from mqinfer.protocol.errors import MqinferError
from tests.golden.broken import broken_messages, payload_of

RECORDS: list[dict[str, Any]] = json.loads((Path(__file__).parent / "broken.json").read_text("utf-8"))


def code_of(record: dict[str, Any]) -> str:
    """Decode a message and all of its tensors; return the code of the error, or `ok`."""
    try:
        if record["kind"] == "request":
            tensors = envelope.decode_request(payload_of(record)).inputs
        else:
            tensors = envelope.decode_response(payload_of(record)).outputs
        for tensor in tensors:
            decode_tensor(tensor)
    except MqinferError as error:
        return error.code
    return "ok"


@pytest.mark.parametrize("record", RECORDS, ids=[record["name"] for record in RECORDS])
def test_broken_messages_are_refused(record: dict[str, Any]) -> None:
    """Each with the code that it is listed with, or, where that is allowed, taken."""
    code = code_of(record)
    assert code == record["code"] or (code == "ok" and record.get("lenient"))


def test_every_broken_message_is_listed() -> None:
    """Names are unique, and none is missing in the file."""
    names = [broken.name for broken in broken_messages()]
    assert len(set(names)) == len(names)
    assert names == [record["name"] for record in RECORDS]

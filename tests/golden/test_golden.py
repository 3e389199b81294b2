"""Bytes that were once written must be read for ever.

Run this file as a script (`python -m tests.golden.test_golden`) to write golden files that are missing, with their
entries in golden.json and broken.json; it never changes one that is there. A change of the format gets new files beside
the old ones.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import fields, replace

from mqinfer.codecs import LOSSY, decode_tensor, encode_tensor
from mqinfer.protocol import envelope, oip_json
from mqinfer.protocol.card import CardParameters, ClassInfo, ImageContract, ModelCard, card_from_json, card_to_json
from mqinfer.protocol.datatypes import Array, Datatype
from mqinfer.protocol.states import ServedModel, WorkerState, WorkerStatus
from mqinfer.protocol.types import (
    Capture,
    EncodedTensor,
    ErrorInfo,
    InferRequest,
    InferResponse,
    Outcome,
    RequestedOutput,
    TensorSpec,
    Timings,
    WorkerLoad,
)
from tests import json_requests
from tests.golden.broken import broken_messages
from tests.golden.describe import TOLERANCE, describe_file, describe_reply, describe_request, describe_tensor

FOLDER = Path(__file__).parent

ARRAYS: dict[str, Array] = {
    "bool": np.array([True, False, True]),
    "uint8": np.arange(5, dtype=np.uint8),
    "uint16": np.array([[0, 1], [256, 65535]], np.uint16),
    "uint32": np.array([2**32 - 1], np.uint32),
    "uint64": np.array([2**64 - 1], np.uint64),
    "int8": np.array([-128, 127], np.int8),
    "int16": np.array([-32768, 32767], np.int16),
    "int32": np.array([-(2**31)], np.int32),
    "int64": np.array([-(2**63)], np.int64),
    "fp16": np.array([0.5, -np.inf], np.float16),
    "fp32": np.array([1.5, np.nan, np.inf], np.float32),
    "fp64": np.array(np.pi),
    "bytes": np.array(["", "grün", b"\xff\0"], object),
    "empty": np.zeros((0, 3), np.float32),
}
TEXT_ARRAYS = {name: array for name, array in ARRAYS.items() if name not in {"fp16", "bytes"}} | {
    "bytes": np.array(["", "grün"], object)
}
RAMP = np.linspace(-1, 1, 100, dtype=np.float32).reshape(4, 25)
BARS = np.repeat(np.array([[[255, 0, 0], [0, 255, 0], [0, 0, 255]]], np.uint8), 16, axis=1).repeat(16, axis=0)
STRIPES = np.repeat(np.array([0, 7, 7, 255, 3], np.uint8), 66_000).reshape(1, 600, 550)
GREY16 = (np.arange(24, dtype=np.uint16) * np.uint16(2730)).reshape(4, 6)
CODED: dict[str, dict[str, Array]] = {
    "lz4": {"ramp": RAMP, "bytes": ARRAYS["bytes"]},
    "shuffle-lz4": {"ramp": RAMP, "bytes": ARRAYS["bytes"]},
    "mask": {
        "stripes": STRIPES,
        "bits1": ARRAYS["bool"],
        "bits2": np.arange(7, dtype=np.uint8) % 4,
        "bits4": np.arange(7, dtype=np.uint8) + 9,
        "bits8": ARRAYS["uint8"] * 60,
        "empty": np.zeros((0, 3), np.uint8),
    },
    "png": {"bars": BARS, "grey16": GREY16},
    "jpeg": {"bars": BARS[None], "grey": BARS[..., 1]},
}

SMALL = InferRequest(
    "00112233445566778899aabbccddeeff",
    "half_plus_two",
    (encode_tensor("x", np.array([1, 2, 5], np.float32)),),
    timeout_us=5_000_000,
    capture=Capture("cam", 7),
)
FULL = InferRequest(
    "r-1",
    "seg",
    tuple(encode_tensor(name, array, parameters={"note": name}) for name, array in ARRAYS.items()),
    "3",
    (RequestedOutput("mask", "lz4"), RequestedOutput("score")),
    timeout_us=2_000_000,
    priority=1,
    attempt=2,
    response_topic="mqinfer/v1/results/seg/car-7/r-1",
    capture=Capture("/camera/front", 41, 1_700_000_000_123_456_789, "camera_optical"),
    parameters={"flag": True, "number": -2, "ratio": 0.5, "text": "grün"},
)
CLASSIFIED = replace(SMALL, outputs=(RequestedOutput("y", classification=5), RequestedOutput("z", "mask", 1)))
TEXT = replace(FULL, inputs=tuple(encode_tensor(name, array) for name, array in TEXT_ARRAYS.items()))
REPLY = InferResponse(
    "r-1",
    "seg",
    "3",
    outputs=(encode_tensor("mask", np.arange(6, dtype=np.uint8).reshape(1, 2, 3)),),
    model_hash="sha256:" + "0f" * 32,
    worker="gpu-0",
    stage="edge",
    timings=Timings(0, 0, 1_000, 2_000, 3_000, 4_000, 5_000, 6_000),
    load=WorkerLoad(2, 900),
    attempt=2,
    capture=FULL.capture,
    parameters={"flag": True},
)
FAILED = InferResponse(
    "r-1", "seg", outcome=Outcome.ERROR, error=ErrorInfo("bad_tensor", "tensor 'x': wrong"), worker="gpu-0"
)
MASK = {"mask": decode_tensor(REPLY.outputs[0])}
CARD = ModelCard(
    name="seg",
    versions=("1", "3"),
    platform="tensorflow_graphdef",
    inputs=(TensorSpec("image", Datatype.FP32, (-1, 608, 968, 3)),),
    outputs=(TensorSpec("mask", Datatype.UINT8, (-1, 608, 968)),),
    parameters=CardParameters(
        version="3",
        max_batch_size=8,
        encodings=("raw", "jpeg"),
        image=ImageContract("image", 968, 608, scale=1 / 255, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)),
        classes=(ClassInfo("road", (128, 64, 128)),),
        model_hash="sha256:" + "0f" * 32,
        backend="tensorflow 2.21.0",
    ),
)
STATE = WorkerState("gpu-0", WorkerStatus.READY, 17, (ServedModel("seg", "3"),), 16, 2, 900, {"ok": 41})


def coded(encoding: str) -> InferRequest:
    """Make a request whose tensors are encoded so."""
    tensors = (encode_tensor(name, array, encoding) for name, array in CODED[encoding].items())
    return InferRequest("r-1", "seg", tuple(tensors))


EXACT: dict[str, Callable[[], bytes]] = {
    "request_small.mqi": lambda: envelope.encode_request(SMALL),
    "request_full.mqi": lambda: envelope.encode_request(FULL),
    "request_classification.mqi": lambda: envelope.encode_request(CLASSIFIED),
    "request_classification.json": lambda: json_requests.encode_request(CLASSIFIED)[0],
    "reply_ok.mqi": lambda: envelope.encode_response(REPLY),
    "reply_error.mqi": lambda: envelope.encode_response(FAILED),
    "request.json": lambda: json_requests.encode_request(TEXT)[0],
    "request_tail.oip": lambda: json_requests.encode_request(FULL, binary=True)[0],
    "reply_ok.json": lambda: oip_json.encode_response(REPLY, arrays=MASK, binary=False)[0],
    "reply_tail.oip": lambda: oip_json.encode_response(REPLY, arrays=MASK, binary=True)[0],
    "reply_error.json": lambda: oip_json.encode_response(FAILED, arrays={}, binary=False)[0],
    "card.json": lambda: card_to_json(CARD),
    "state.json": STATE.to_json,
}
"""Files that this release writes byte by byte."""

CODED_FILES = {encoding: f"request_{encoding}.mqi" for encoding in CODED}
"""Files that are only read: another release of a compressor may write other bytes."""


MESSAGES: dict[str, InferRequest | InferResponse] = {
    "request_small.mqi": SMALL,
    "request_full.mqi": FULL,
    "request_classification.mqi": CLASSIFIED,
    "request_classification.json": CLASSIFIED,
    "request.json": TEXT,
    "request_tail.oip": FULL,
    "reply_ok.mqi": REPLY,
    "reply_ok.json": REPLY,
    "reply_tail.oip": REPLY,
    "reply_error.mqi": FAILED,
    "reply_error.json": FAILED,
    **{name: coded(encoding) for encoding, name in CODED_FILES.items()},
}
"""What each file of a request or reply holds."""
RETAINED = {"card.json": "card", "state.json": "worker state"}
"""The other files, and what they are."""


def golden(name: str) -> bytes:
    """Read a golden file."""
    return (FOLDER / name).read_bytes()


def json_length(payload: bytes) -> int:
    """Find where the JSON before a binary tail ends; over MQTT a user property says it."""
    return json.JSONDecoder().raw_decode(payload.decode("latin-1"))[1]


def arrays_of(message: InferRequest | InferResponse) -> dict[str, Array]:
    """Decode the tensors of a message."""
    tensors = message.inputs if isinstance(message, InferRequest) else message.outputs
    return {tensor.name: decode_tensor(tensor) for tensor in tensors}


def check_arrays(found: dict[str, Array], expected: dict[str, Array]) -> None:
    """Compare arrays by their bits, strings by their UTF-8."""
    assert list(found) == list(expected)
    for name, array in expected.items():
        if array.dtype.kind == "O":
            wanted = [text if isinstance(text, bytes) else text.encode() for text in array.tolist()]
            assert found[name].tolist() == wanted
        else:
            assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
            assert found[name].tobytes() == array.tobytes()


def check_fields(found: InferRequest | InferResponse, expected: InferRequest | InferResponse, *skip: str) -> None:
    """Compare all fields but the tensors."""
    for name in {field.name for field in fields(expected)} - set(skip):
        assert getattr(found, name) == getattr(expected, name), name


@pytest.mark.parametrize("name", EXACT)
def test_this_release_writes_the_golden_bytes(name: str) -> None:
    """What others read today they read tomorrow."""
    assert EXACT[name]() == golden(name)


@pytest.mark.parametrize(
    ("name", "request_"),
    [("request_small.mqi", SMALL), ("request_full.mqi", FULL), ("request_classification.mqi", CLASSIFIED)],
)
def test_golden_requests_are_read(name: str, request_: InferRequest) -> None:
    """All fields and all datatypes."""
    found = envelope.decode_request(golden(name))
    check_fields(found, request_, "inputs")
    check_arrays(arrays_of(found), arrays_of(request_))


def test_golden_json_requests_are_read() -> None:
    """All fields and datatypes, as JSON and with a binary tail."""
    found = oip_json.decode_request(golden("request.json"), "seg", "3")
    check_fields(found, TEXT, "inputs")
    check_arrays(arrays_of(found), TEXT_ARRAYS)
    found = oip_json.decode_request(golden("request_classification.json"), "half_plus_two")
    check_fields(found, CLASSIFIED, "inputs")
    payload = golden("request_tail.oip")
    found = oip_json.decode_request(payload, "seg", "3", header_length=json_length(payload))
    check_fields(found, FULL, "inputs")
    check_arrays(arrays_of(found), ARRAYS)


@pytest.mark.parametrize("name", ["reply_ok.mqi", "reply_ok.json", "reply_tail.oip"])
def test_golden_replies_are_read(name: str) -> None:
    """A result in all three forms."""
    payload = golden(name)
    if name.endswith("mqi"):
        found = envelope.decode_response(payload)
    else:
        found = oip_json.decode_response(payload, json_length(payload) if name.endswith("oip") else None)
    check_fields(found, REPLY, "outputs")
    check_arrays(arrays_of(found), MASK)


def test_golden_errors_are_read() -> None:
    """An error in both content types."""
    check_fields(envelope.decode_response(golden("reply_error.mqi")), FAILED)
    check_fields(oip_json.decode_response(golden("reply_error.json")), FAILED)


def test_golden_cards_and_states_are_read() -> None:
    """The retained messages."""
    assert card_from_json(golden("card.json")) == CARD
    assert WorkerState.from_json(golden("state.json")) == STATE


@pytest.mark.parametrize("encoding", sorted(CODED.keys() - LOSSY))
def test_golden_tensors_are_decoded(encoding: str) -> None:
    """Each lossless codec, bit by bit."""
    check_arrays(arrays_of(envelope.decode_request(golden(CODED_FILES[encoding]))), CODED[encoding])


def test_golden_jpegs_are_decoded() -> None:
    """JPEG within what decoders differ by: the middle of each bar has its colour."""
    found = arrays_of(envelope.decode_request(golden(CODED_FILES["jpeg"])))
    for name, array in CODED["jpeg"].items():
        assert found[name].shape == array.shape
        wanted, got = (picture.reshape(16, 48, -1)[8, 8::16].astype(int) for picture in (array, found[name]))
        assert np.abs(got - wanted).max() <= 4


def entry(name: str) -> dict[str, Any]:
    """Describe a golden file, from the objects that it was written from."""
    payload = golden(name)
    content_type = envelope.CONTENT_TYPE if name.endswith("mqi") else "application/json"
    found = describe_file(name, payload, content_type)
    if name in RETAINED:
        return found | {"kind": RETAINED[name], "fields": json.loads(payload)}
    if name.endswith("oip"):
        found["header_length"] = json_length(payload)
    message = MESSAGES[name]
    if isinstance(message, InferRequest):
        return found | {
            "kind": "request",
            "fields": describe_request(message),
            "tensors": [describe_tensor(tensor, array_of(name, tensor)) for tensor in message.inputs],
        }
    return found | {
        "kind": "reply",
        "fields": describe_reply(message),
        "tensors": [describe_tensor(tensor, array_of(name, tensor)) for tensor in message.outputs],
    }


def array_of(name: str, tensor: EncodedTensor) -> Array:
    """Return what a tensor of a file was made from; of a lossy one what becomes of it, which is not the same."""
    if tensor.encoding in TOLERANCE:
        return arrays_of(envelope.decode_request(golden(name)))[tensor.name]
    return CODED[tensor.encoding][tensor.name] if tensor.encoding in CODED else decode_tensor(tensor)


def read(name: str) -> InferRequest | InferResponse:
    """Decode a golden file of a request or reply."""
    payload = golden(name)
    if name.endswith("mqi"):
        decode = envelope.decode_request if name.startswith("request") else envelope.decode_response
        return decode(payload)
    length = json_length(payload) if name.endswith("oip") else None
    if not name.startswith("request"):
        return oip_json.decode_response(payload, length)
    message = MESSAGES[name]
    assert isinstance(message, InferRequest)
    return oip_json.decode_request(payload, message.model_name, message.model_version, header_length=length)


def entries() -> dict[str, dict[str, Any]]:
    """Read golden.json by file."""
    path = FOLDER / "golden.json"
    return {each["file"]: each for each in json.loads(path.read_text("utf-8"))} if path.exists() else {}


def test_every_golden_file_is_described() -> None:
    """Entries of golden.json are those that the objects make; pixels of lossy ones may differ a little."""
    found = entries()
    assert sorted(found) == sorted((*MESSAGES, *RETAINED))
    for name, described in found.items():
        wanted = entry(name)
        for left, right in zip(described.get("tensors", ()), wanted.get("tensors", ()), strict=True):
            if "tolerance" in left:
                pixels, others = (np.frombuffer(base64.b64decode(each.pop("raw")), np.uint8) for each in (left, right))
                assert np.abs(pixels.astype(int) - others).max() <= left["tolerance"]
        assert described == wanted, name


@pytest.mark.parametrize("name", MESSAGES)
def test_golden_files_hold_what_their_entry_says(name: str) -> None:
    """The same from the other side: the fields that a decoded file has."""
    message, described = read(name), entries()[name]
    fields_ = describe_request(message) if isinstance(message, InferRequest) else describe_reply(message)
    assert fields_ == described["fields"]
    tensors = message.inputs if isinstance(message, InferRequest) else message.outputs
    for tensor, wanted in zip(tensors, described["tensors"], strict=True):
        if name.endswith("mqi"):
            wanted.pop("raw", None)
            found = describe_tensor(tensor, decode_tensor(tensor))
            assert {key: value for key, value in found.items() if key != "raw"} == wanted


def write_missing() -> None:
    """Write the golden files and entries that are not there yet."""
    writers = EXACT | {
        name: (lambda encoding=encoding: envelope.encode_request(coded(encoding)))
        for encoding, name in CODED_FILES.items()
    }
    for name, write in writers.items():
        if not (FOLDER / name).exists():
            (FOLDER / name).write_bytes(write())
    described = entries()
    write_entries("golden.json", [described.get(name) or entry(name) for name in (*MESSAGES, *RETAINED)])
    path = FOLDER / "broken.json"
    kept = {each["name"]: each for each in json.loads(path.read_text("utf-8"))} if path.exists() else {}
    write_entries("broken.json", [kept.get(broken.name) or broken.record() for broken in broken_messages()])


def write_entries(name: str, found: list[dict[str, Any]]) -> None:
    """Write JSON with one entry a line, so that a change shows which one it is."""
    lines = (json.dumps(each, ensure_ascii=False) for each in found)
    (FOLDER / name).write_text("[\n" + ",\n".join(lines) + "\n]\n", "utf-8")


if __name__ == "__main__":
    write_missing()

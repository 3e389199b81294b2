"""The Open Inference Protocol over HTTP against a real server of models."""

from __future__ import annotations

import asyncio
import gzip
import json
import math
import zlib
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mqinfer.cloud_worker.serving.worker import Worker
from mqinfer.gateway.calls import InferCall
from mqinfer.protocol.datatypes import Datatype, dtype_of
from mqinfer.protocol.topics import Topics
from tests.gateway.conftest import Fleet, core_of
from tests.gateway.models import IDENTITIES
from tests.gateway.rest_front import Front, Reply, json_input, serving
from tests.patience import until

COUNT, ONES = list(range(16)), [1] * 16
SUMS, DIFFERENCES = [each + 1 for each in COUNT], [each - 1 for each in COUNT]
INPUT0, INPUT1 = json_input("INPUT0", "INT32", [1, 16], COUNT), json_input("INPUT1", "INT32", [1, 16], ONES)
SIMPLE = {"inputs": [INPUT0, INPUT1]}
Serve = Callable[..., Worker]
LENGTH = "Inference-Header-Content-Length"
RAW = {LENGTH.replace("-", "_"): "0"}


def with_tail(request: dict[str, Any], *tensors: bytes) -> tuple[bytes, dict[str, str]]:
    """Return a body of JSON and binary tensors, and the header that goes with it."""
    head = json.dumps(request).encode()
    return b"".join((head, *tensors)), {LENGTH: str(len(head))}


def binary_input(name: str, datatype: str, shape: list[int], size: int) -> dict[str, Any]:
    """Return an input whose bytes follow the JSON."""
    return {"name": name, "datatype": datatype, "shape": shape, "parameters": {"binary_data_size": size}}


def parts(reply: Reply) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Return the JSON of a reply, and its binary outputs by name."""
    assert reply.status == 200, reply.body
    if LENGTH not in reply.headers:
        assert reply.headers["Content-Type"] == "application/json"
        return reply.json, {}
    assert reply.headers["Content-Type"] == "application/octet-stream"
    end = int(reply.headers[LENGTH])
    content, tail = json.loads(reply.body[:end]), reply.body[end:]
    found = {}
    for output in content["outputs"]:
        size = output.get("parameters", {}).get("binary_data_size")
        if size is not None:
            found[output["name"]], tail = tail[:size], tail[size:]
    assert not tail
    return content, found


async def test_json(front: Front) -> None:
    """Sums and differences come back as JSON, with the caller's id; nested data and a byte order mark are read."""
    reply = await front.infer("simple", SIMPLE | {"id": "my request"})
    outputs = [
        json_input("OUTPUT0", "INT32", [1, 16], SUMS),
        json_input("OUTPUT1", "INT32", [1, 16], DIFFERENCES),
    ]
    answer = {"id": "my request", "model_name": "simple", "model_version": "1", "outputs": outputs}
    assert parts(reply)[0] == answer
    nested = {"inputs": [INPUT0 | {"data": [COUNT]}, INPUT1]}
    body = b"\xef\xbb\xbf" + json.dumps(nested, indent=2).encode()
    del answer["id"]
    assert (await front.infer("simple", body)).json == answer
    assert (await front("POST", "/v2/models/simple/versions/1/infer?a=1&a=2", SIMPLE)).json == answer


async def test_fields_that_are_null(front: Front) -> None:
    """Null stands for a field that is not there, as clients that are made from a schema write it."""
    plain = (await front.infer("simple", SIMPLE)).json
    for nothing in (
        {"id": None},
        {"parameters": None},
        {"outputs": None},
        {"parameters": {"content_type": None, "headers": None}},
    ):
        assert (await front.infer("simple", SIMPLE | nothing)).json == plain


async def test_configuration(front: Front) -> None:
    """A model's configuration is Triton's whole message: what the file states, and defaults, numbers as numbers."""
    config = (await front("GET", "/v2/models/densenet_onnx/config")).json
    named = {"platform": "onnxruntime_onnx", "backend": "onnxruntime", "max_batch_size": 0, "runtime": ""}
    assert config | named == config
    assert "classes" not in config
    assert "dynamic_batching" not in config
    (group,) = config["instance_group"]
    assert group | {"name": "densenet_onnx_0", "count": 1, "kind": "KIND_CPU", "gpus": [], "passive": False} == group
    shared = {"data_type": "TYPE_FP32", "is_shape_tensor": False, "is_non_linear_format_io": False}
    assert config["input"] == [
        {
            "name": "data_0", "format": "FORMAT_NCHW", "dims": [3, 8, 8], "reshape": {"shape": [1, 3, 8, 8]},
            "allow_ragged_batch": False, "optional": False, **shared,
        }
    ]  # fmt: skip
    assert config["output"] == [
        {"name": "fc6_1", "dims": [3], "reshape": {"shape": [1, 3, 1, 1]}, "label_filename": "labels.txt", **shared}
    ]
    assert (config["model_warmup"], config["batch_input"], config["metric_tags"]) == ([], [], {})


async def test_mixed_outputs(front: Front) -> None:
    """An output's own `binary_data` holds for it; `binary_data_output` for those that state none."""
    for default, chosen in product((None, False, True), repeat=2):
        wanted: list[dict[str, Any]] = [{"name": "OUTPUT1"}, {"name": "OUTPUT0"}]
        if chosen is not None:
            wanted[1]["parameters"] = {"binary_data": chosen}
        request: dict[str, Any] = {"inputs": [INPUT0, binary_input("INPUT1", "INT32", [1, 16], 64)], "outputs": wanted}
        if default is not None:
            request["parameters"] = {"binary_data_output": default}
        body, headers = with_tail(request, np.array(ONES, "<i4").tobytes())
        content, binary = parts(await front("POST", "/v2/models/simple/infer", body, headers))
        expected = {"OUTPUT0": bool(default if chosen is None else chosen), "OUTPUT1": bool(default)}
        assert binary.keys() == {name for name, is_binary in expected.items() if is_binary}
        truth = {"OUTPUT0": SUMS, "OUTPUT1": DIFFERENCES}
        for output in content["outputs"]:
            name = output["name"]
            data = np.frombuffer(binary[name], "<i4").tolist() if name in binary else output["data"]
            assert data == truth[name]


def extremes() -> dict[str, list[Any]]:
    """Return the least and the greatest value of each datatype, as JSON has them."""
    found: dict[str, list[Any]] = {"BOOL": [True, False], "BYTES": ["", 'Ü "\0']}
    for name in IDENTITIES.keys() - found.keys():
        dtype = dtype_of(Datatype(name))
        info: Any = np.iinfo(dtype) if dtype.kind in "iu" else np.finfo(dtype)
        found[name] = [dtype.type(end).item() for end in (info.min, info.max)]
    return found


async def test_every_datatype(front: Front) -> None:
    """Each datatype travels as bytes and, but for FP16, as JSON; extreme values come back exactly."""
    values = extremes()
    half = np.array(values.pop("FP16"), np.float16).tobytes()
    inputs = [json_input(name, name, [2], data) for name, data in values.items()]
    inputs.append(binary_input("FP16", "FP16", [2], 4))
    outputs: list[dict[str, Any]] = [{"name": f"{name}_OUT"} for name in values]
    outputs.append({"name": "FP16_OUT", "parameters": {"binary_data": True}})
    body, headers = with_tail({"inputs": inputs, "outputs": outputs}, half)
    content, binary = parts(await front("POST", "/v2/models/all_types/infer", body, headers))
    assert binary == {"FP16_OUT": half}
    for output in content["outputs"]:
        name = output["datatype"]
        if name == "FP32":
            assert np.array(output["data"], np.float32).tolist() == values[name]
        elif name != "FP16":
            assert output["data"] == values[name]

    body, headers = with_tail({"inputs": inputs, "parameters": {"binary_data_output": True}}, half)
    _, binary = parts(await front("POST", "/v2/models/all_types/infer", body, headers))
    assert binary.keys() == {f"{name}_OUT" for name in IDENTITIES}
    assert binary["BYTES_OUT"] == b"\0\0\0\0" + b"\5\0\0\0" + 'Ü "\0'.encode()
    assert binary["INT64_OUT"] == np.array(values["INT64"], "<i8").tobytes()


async def test_half_precision_as_json(front: Front) -> None:
    """FP16 and BF16 as JSON are refused in Triton's words, both ways; BF16 at all."""
    for name in ("FP16", "BF16"):
        reply = await front.infer("all_types", {"inputs": [json_input("X", name, [1], [1.0])]})
        assert reply.status == 400
        assert reply.error == (
            f"receiving {name} data via JSON is not supported. Please use the binary data format for input X"
        )
    body, headers = with_tail({"inputs": [binary_input("X", "BF16", [1], 2)]}, b"12")
    assert (await front("POST", "/v2/models/all_types/infer", body, headers)).status == 400
    inputs = [binary_input(name, name, [0], 0) for name in IDENTITIES]
    reply = await front.infer("all_types", {"inputs": inputs, "outputs": [{"name": "FP16_OUT"}]})
    assert reply.status == 400
    assert reply.error.startswith("sending FP16 data via JSON is not supported. Please use the binary data format")


async def test_numbers_that_json_lacks(front: Front) -> None:
    """NaN and the infinities are read bare and in quotes, and written in quotes, which every parser reads."""
    for text in ("[NaN, Infinity,-Infinity,0.5]", '["NaN","Infinity","-Infinity",0.5]'):
        body = b'{"id":"NaN,\\"NaN","inputs":[{"name":"INPUT0","datatype":"FP32","shape":[2,2],"data":%b}]}'
        reply = await front.infer("identity_fp32", body % text.encode())
        content, _ = parts(reply)
        assert content["id"] == 'NaN,"NaN'
        data = content["outputs"][0]["data"]
        assert data == ["NaN", "Infinity", "-Infinity", 0.5]
        assert np.array(data, np.float32)[1] == math.inf  # as tritonclient and kserve read it


@pytest.fixture
def own(fleet: Fleet, unique: Callable[[str], str]) -> Fleet:
    """A topic root for workers of the test's own; what they leave at the broker is in nobody's way."""
    return replace(fleet, root=unique("rest"))


async def test_raw_requests(own: Fleet, serve: Serve, write_echo: Callable[..., Path]) -> None:
    """A body without JSON becomes the only input of a batch of one, its shape taken from the card."""
    write_echo("text", ("x", "BYTES", [-1, 1]), config="max_batch_size = 8")
    repository = write_echo("numbers", ("x", "FP32", [-1, -1, 2]), config="max_batch_size = 8")
    for model in ("text", "numbers"):
        serve(own.url, repository, model, topics=Topics(own.root))
    async with serving(core_of(own)) as front:
        numbers = np.arange(6, dtype="<f4").tobytes()
        content, binary = parts(await front.infer("numbers", numbers, **RAW))
        assert (content["outputs"][0]["shape"], binary) == ([1, 3, 2], {"x": numbers})
        content, binary = parts(await front.infer("text", b"42\xff", **RAW))
        assert (content["outputs"][0]["shape"], binary) == ([1, 1], {"x": b"\3\0\0\x0042\xff"})
        reply = await front.infer("numbers", b"12345", **RAW)
        assert reply.error.startswith("input byte size mismatch for input 'x' for model 'numbers'. Expected 0, got 5")


async def test_raw_requests_of_no_shape(front: Front) -> None:
    """Where the shape does not follow from the bytes, a raw request is refused in Triton's words."""
    for model, words in (
        ("simple", "Raw request must only have 1 input (found 1) to be deduced but got 2 inputs in"),
        ("identity_bytes", "For BYTE datatype raw input 'INPUT0', the model must have input shape [1]"),
        ("identity_fp32", "The shape of the raw input 'INPUT0' can not be deduced because there are more than one"),
    ):
        reply = await front.infer(model, b"12345", **RAW)
        assert (reply.status, reply.error.startswith(words)) == (400, True), reply.body
    assert (await front.infer("nothing", b"12345", **RAW)).status == 404


async def test_classification(front: Front) -> None:
    """An output's largest elements come as text, in either form."""
    classes: list[dict[str, Any]] = [{"name": "OUTPUT0", "parameters": {"classification": 2}}]
    content, _ = parts(await front.infer("simple", SIMPLE | {"outputs": classes}))
    (output,) = content["outputs"]
    assert (output["datatype"], output["shape"]) == ("BYTES", [1, 2])
    assert [text.split(":")[1] for text in output["data"]] == ["15", "14"]
    classes[0]["parameters"] |= {"binary_data": True}
    _, binary = parts(await front.infer("simple", SIMPLE | {"outputs": classes}))
    assert binary["OUTPUT0"].endswith(b":14")


async def test_strings_that_are_too_few_or_too_many(front: Front) -> None:
    """They are refused in Triton's words, as binary ones are."""
    of = "for inference input 'INPUT0' for model 'identity_bytes'"
    for strings, words in (
        (["a"], f"expected 2 string elements {of}, got 1"),
        (["a", "b", "c"], f"unexpected number of string elements 3 {of}, expecting 2"),
    ):
        reply = await front.infer("identity_bytes", {"inputs": [json_input("INPUT0", "BYTES", [1, 2], strings)]})
        assert reply.status == 400
        assert reply.error.startswith(words)


async def test_compression(front: Front) -> None:
    """The better weight of `Accept-Encoding` wins; what it names has the same content."""
    unpack: dict[str, Callable[[bytes], bytes]] = {
        "gzip": gzip.decompress,
        "deflate": zlib.decompress,
        "identity": bytes,
    }
    plain = await front.infer("simple", SIMPLE)
    for accepted, best in (
        ("gzip;q=0.1, deflate;q=0.9", "deflate"),
        ("deflate, gzip", "deflate"),
        ("gzip;q=0, br", "identity"),
        ("gzip;q=x", "identity"),
        (" GZIP ; q=0.5", "gzip"),
    ):
        reply = await front.infer("simple", SIMPLE, Accept_Encoding=accepted)
        assert reply.headers.get("Content-Encoding", "identity") == best
        assert unpack[best](reply.body) == plain.body


async def test_disconnect_cancels(own: Fleet, serve: Serve, write_echo: Callable[..., Path]) -> None:
    """A caller who disconnects has the request cancelled, at the worker too, whose next request starts at once."""
    worker = serve(own.url, write_echo("patient", delay_ms=200), "patient", topics=Topics(own.root))
    body = {"inputs": [json_input("x", "FP32", [1, 4], [1, 2, 3, 4])]}
    async with serving(core_of(own)) as front:
        calls = [asyncio.create_task(front.infer("patient", body)) for _ in range(4)]
        await until(lambda: worker.depth >= 2)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        await until(lambda: worker.statistics().counters.get("skipped_cancelled"))
        assert (await front.infer("patient", body)).status == 200


async def test_what_the_core_receives(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trace context, timeout, priority and the caller's name reach the core; binary tensors are not copied."""
    calls: list[InferCall] = []
    infer = front.core.infer

    async def record(call: InferCall) -> Any:
        calls.append(call)
        return await infer(call)

    monkeypatch.setattr(front.core, "infer", record)
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    request = {
        "inputs": [binary_input(f"INPUT{place}", "INT32", [1, 16], 64) for place in (0, 1)],
        "parameters": {
            "timeout": 30_000_000,
            "priority": 1,
            "sequence_id": "s",
            "sequence_start": True,
            "own": 1.5,
        },
    }
    body, headers = with_tail(request, bytes(64), bytes(64))
    await front("POST", "/v2/models/simple/versions/1/infer", body, headers | {"traceparent": trace})
    (call,) = calls
    assert (call.model, call.version, call.timeout_s, call.priority) == ("simple", "1", 30.0, 1)
    assert call.traceparent == trace
    assert call.caller.startswith("127.0.0.1:")
    views = [each.data for each in call.inputs]
    assert all(isinstance(view, memoryview) for view in views)
    assert views[0].obj is views[1].obj  # type: ignore[union-attr]  # as the line above asserts

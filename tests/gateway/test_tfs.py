"""TensorFlow Serving's clients against models of any kind: forms, batches that are split, errors, garbage."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from mqinfer.gateway.tfs import calls
from mqinfer.gateway.tfs.messages import tfs_class
from mqinfer.gateway.tfs.tensors import NUMBERS
from mqinfer.metrics.samples import Samples
from mqinfer.protocol.datatypes import Array, Datatype, dtype_of
from mqinfer.protocol.topics import Topics
from mqinfer.telemetry.tracer import Tracer
from tests.gateway.conftest import Fleet, OpenCore, core_of
from tests.gateway.listening import failure
from tests.gateway.models import IDENTITIES
from tests.gateway.tfs_front import PREDICTION, TfsFront, serving
from tests.patience import until

ROWS = np.arange(1000 * 16, dtype="<i4").reshape(1000, 16)
ONE = np.ones((1, 16), "<i4")
STATUS = {"version": "1", "state": "AVAILABLE", "status": {"error_code": "OK", "error_message": ""}}


@pytest.fixture
def front(open_core: OpenCore, options: dict[str, Any]) -> AbstractAsyncContextManager[TfsFront]:
    """Serve both fronts."""
    return serving(open_core, **options)


async def test_sums_in_both_forms(front: TfsFront) -> None:
    """A model of ONNX answers in rows, in columns and by gRPC; its only signature is `serving_default`."""
    row, one = ROWS[0].tolist(), ONE[0].tolist()
    sums, differences = (ROWS[:1] + 1)[0].tolist(), (ROWS[:1] - 1)[0].tolist()
    reply = await front.post("simple:predict", {"instances": [{"INPUT0": row, "INPUT1": one}]})
    assert reply.json == {"predictions": [{"OUTPUT0": sums, "OUTPUT1": differences}]}
    reply = await front.post("simple/versions/1:PREDICT", {"inputs": {"INPUT0": [row], "INPUT1": [one]}})
    assert reply.json == {"outputs": {"OUTPUT0": [sums], "OUTPUT1": [differences]}}
    outputs, spec = await front.predict("simple", {"INPUT0": ROWS[:1], "INPUT1": ONE})
    assert outputs["OUTPUT0"].tolist() == [sums]
    assert (spec.name, spec.version.value, spec.signature_name) == ("simple", 1, "serving_default")


async def test_the_status_of_all_models(front: TfsFront) -> None:
    """`/v1/config` answers as OpenVINO Model Server's does."""
    found = (await front.rest("GET", "/v1/config")).json
    assert found["simple"] == {"model_version_status": [STATUS]}
    assert {"simple", "slow"} <= found.keys()


async def test_a_thousand_rows(front: TfsFront) -> None:
    """A batch beyond `max_batch_size` is split and joined, in both fronts; it is one call with one reply."""
    outputs, _ = await front.predict("simple", {"INPUT0": ROWS, "INPUT1": np.repeat(ONE, 1000, 0)})
    np.testing.assert_array_equal(outputs["OUTPUT0"], ROWS + 1)
    np.testing.assert_array_equal(outputs["OUTPUT1"], ROWS - 1)
    assert front.core.inference.outcomes == {("simple", "ok"): 1}
    assert front.core.inference.admission.accepted == 125
    instances = [{"INPUT0": [str(each) for each in row], "INPUT1": ["1"] * 16} for row in ROWS[:21].tolist()]
    reply = await front.post("simple_string:predict", {"instances": instances})
    found = [[int(each) for each in row["OUTPUT0"]] for row in reply.json["predictions"]]
    assert found == (ROWS[:21] + 1).tolist()


async def test_a_call_with_its_parts_below(front: TfsFront) -> None:
    """20 rows for a model of 8 are one call in metrics and traces, and below it three requests."""
    memory, requester = InMemorySpanExporter(), front.core.client.connection.requester
    requester.tracer = Tracer(memory, "memory")
    rows = [{"INPUT0": row, "INPUT1": row} for row in ROWS[:20].tolist()]
    assert len((await front.post("simple:predict", {"instances": rows})).json["predictions"]) == 20
    tracer, requester.tracer = requester.tracer, None

    def are_ended() -> bool:
        tracer._provider.force_flush()
        return [span.name.split()[0] for span in memory.get_finished_spans()].count("infer") == 3

    await until(are_ended)  # a request's spans end behind its answer
    tracer.close()
    spans = memory.get_finished_spans()
    (call,) = [span for span in spans if span.name == "call"]
    below = [span for span in spans if span.parent is not None and span.parent.span_id == call.context.span_id]
    assert [span.name.split()[0] for span in below] == ["infer"] * 3
    assert {span.context.trace_id for span in spans} == {call.context.trace_id}
    assert front.core.inference.outcomes == {("simple", "ok"): 1}
    assert front.core.inference.admission.accepted == 3
    samples = Samples()
    front.core.inference.times["simple"].add_to(samples, "simple")
    values = {
        (each.name, each.labels.get("stage")): each.value for family in samples.families() for each in family.samples
    }
    assert values["mqinfer_gateway_request_duration_seconds_count", None] == 1
    assert values["mqinfer_gateway_stage_duration_seconds_count", "transmission"] == 3


async def test_more_rows_than_are_split(front: TfsFront, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that would become too many requests is refused before the first is sent."""
    monkeypatch.setattr(calls, "_MOST_PARTS", 100)
    code, why = await failure(front.predict("simple", {"INPUT0": ROWS, "INPUT1": ROWS}))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "1000 rows, and model 'simple' takes 8 at a time: at most 100 requests" in why
    assert not front.core.inference.outcomes


async def test_one_failed_part_fails_all(front: TfsFront) -> None:
    """Where one part of a batch fails, the call does, at once: what was not sent is not, and nothing stays pending."""
    text = np.full((1000, 16), b"1", np.object_)
    text[9, 3] = b"no number"
    code, why = await failure(front.predict("simple_string", {"INPUT0": text, "INPUT1": text}))
    assert code is grpc.StatusCode.INTERNAL
    assert "Cast" in why
    counters = front.core.inference
    assert counters.admission.running == counters.admission.queued == 0
    assert counters.outcomes == {("simple_string", "model_failed"): 1}
    assert counters.admission.accepted < 125


async def test_all_types(front: TfsFront) -> None:
    """Each datatype comes back, by gRPC and by JSON; values are in the fields of their types."""
    given = {
        name: np.array([0, 1], dtype_of(Datatype(name))) if name != "BYTES" else np.array([b"\0a", b""], np.object_)
        for name in IDENTITIES
    }
    outputs, _ = await front.predict("all_types", given)
    for name, array in given.items():
        assert outputs[f"{name}_OUT"].tolist() == array.tolist()
        assert outputs[f"{name}_OUT"].dtype == array.dtype
    inputs = {name: array.tolist() for name, array in given.items()} | {"BYTES": ["\0a", {"b64": ""}]}
    reply = await front.post("all_types:predict", {"inputs": inputs})
    assert reply.json["outputs"] == {f"{name}_OUT": values for name, values in inputs.items()} | {
        "BYTES_OUT": ["\0a", ""]
    }
    bare = await front.post("identity_fp32:predict", b'{"inputs": [[NaN, -Infinity, 0.1]]}')
    assert bare.body == b'{"outputs":[[NaN,-Infinity,0.1]]}'


async def test_status_and_metadata(front: TfsFront) -> None:
    """Versions with their states, the newest first; metadata of a version in the form of the API."""
    both = await front.rest("GET", "/v1/models/identity_fp32")
    assert both.json == {"model_version_status": [STATUS | {"version": "2"}, STATUS]}
    one = await front.rest("GET", "/v1/models/identity_fp32/versions/01")
    assert one.json == {"model_version_status": [STATUS]}
    dims = [{"size": "-1", "name": ""}] * 2
    for path, version in (("", "2"), ("/versions/1", "1")):
        found = (await front.rest("GET", f"/v1/models/identity_fp32{path}/metadata")).json
        assert found["model_spec"] == {"name": "identity_fp32", "signature_name": "", "version": version}
        (signature,) = found["metadata"]["signature_def"]["signature_def"].values()
        assert signature["inputs"]["INPUT0"] == {
            "dtype": "DT_FLOAT", "tensor_shape": {"dim": dims, "unknown_rank": False}, "name": "INPUT0",
        }  # fmt: skip
        assert signature["method_name"] == "tensorflow/serving/predict"
    none = await front.rest("GET", "/v1/models/identity_fp32/versions/0")
    assert none.json == both.json
    x = np.ones((1, 1), np.float32)
    _, spec = await front.predict("identity_fp32", {"INPUT0": x}, version={"value": 0})  # clients of OpenVINO
    assert spec.version.value == 2
    for number in (1, 2):
        _, spec = await front.predict("identity_fp32", {"INPUT0": x}, version={"value": number})
        assert spec.version.value == number


async def test_what_is_not_there(front: TfsFront) -> None:
    """Models, versions, labels and paths that there are not, in TensorFlow Serving's words, at once."""
    for method, path, status, error in (
        ("POST", "/v1/models/half:predict", 404, "Servable not found for request: Latest(half)"),
        (
            "POST",
            "/v1/models/simple/versions/7:predict",
            404,
            "Servable not found for request: Specific(simple, 7)",
        ),
        ("POST", "/v1/models/simple/labels/x:predict", 400, "Unrecognized servable version label: x"),
        ("POST", "/v1/models/h%2Ff:predict", 404, "Servable not found for request: Latest(h/f)"),
        ("GET", "/v1/models/half", 404, "Could not find any versions of model half"),
        ("GET", "/v1/models/simple/versions/7", 404, "Could not find version 7 of model simple"),
        ("GET", f"/v1/models/simple/versions/{2**63}", 400, f"Failed to convert version: {2**63} to numeric."),
        ("GET", "/v1/models/half/metadata", 404, "Servable not found for request: Latest(half)"),
        ("GET", "/v1/models", 400, "Missing model name in request."),
        ("GET", "/v1/models/metadata", 404, "Could not find any versions of model metadata"),
        ("POST", "/v1/models/simple", 400, "Malformed request: POST /v1/models/simple"),
        ("GET", "/v1/models/simple:predict", 400, "Malformed request: GET /v1/models/simple:predict"),
        ("POST", "/v1/models/simple:explain", 400, "Malformed request: POST /v1/models/simple:explain"),
        ("DELETE", "/v1/models/simple", 400, "Malformed request: DELETE /v1/models/simple"),
        ("GET", "/", 404, "Not Found"),
    ):
        body = {"instances": [1], "signature_name": ""} if method == "POST" else None
        reply = await front.rest(method, path, body)
        assert (reply.status, reply.error) == (status, error)
    unknown = await front.post("simple:predict", {"instances": [1], "signature_name": "s"})
    assert (unknown.status, unknown.error) == (400, 'Serving signature name: "s" not found in signature def')
    code, text = await failure(front.predict("simple", {}, signature_name="s"))
    assert code is grpc.StatusCode.FAILED_PRECONDITION
    assert text.startswith('Serving signature key "s" not found.')
    assert await failure(front.predict("half", {})) == (
        grpc.StatusCode.NOT_FOUND, "Servable not found for request: Latest(half)"
    )  # fmt: skip
    assert (await failure(front.predict("", {})))[1] == "ModelSpec has no name specified."
    code, text = await failure(front.predict("simple", {"INPUT0": ONE}))
    assert text.startswith("input size does not match signature: 1!=2 len({INPUT0}) != len({INPUT0,INPUT1}).")
    request = tfs_class("PredictRequest")(model_spec={"name": "simple"}, output_filter=["OUTPUT2"])
    request.inputs["INPUT0"].dtype = request.inputs["INPUT1"].dtype = NUMBERS[Datatype.INT32]
    code, text = await failure(front.send("Predict", request.SerializeToString()))
    assert text.startswith("output tensor alias not found in signature: OUTPUT2 Outputs expected to be in the set")
    code, text = await failure(front.send("HandleReloadConfigRequest", b""))
    assert code is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.options(tfs_rest_timeout=0.2)
async def test_deadlines_and_cancels(front: TfsFront) -> None:
    """A caller's deadline, the REST front's own, and a cancelled call end at once, and nothing stays pending."""
    x = np.ones((3, 4), np.float32)
    assert (await failure(front.predict("slow", {"x": x}, deadline_s=0.2)))[0] is grpc.StatusCode.DEADLINE_EXCEEDED
    reply = await front.post("slow:predict", {"instances": x.tolist()})
    assert reply.status == 504
    call = asyncio.ensure_future(front.predict("slow", {"x": x}))
    await until(lambda: front.core.inference.admission.running == 1)
    call.cancel()
    await until(lambda: not front.core.inference.admission.running)
    assert front.core.inference.outcomes["slow", "cancelled"] >= 1


@pytest.mark.parametrize("transport", ["grpc", "rest"])
async def test_cancelled_at_the_worker(
    fleet: Fleet, serve: Callable[..., Any], write_echo: Callable[..., Path], transport: str
) -> None:
    """Calls that are cancelled are cancelled at the worker too, whose next request starts at once."""
    own = replace(fleet, root=f"{fleet.root}-{transport}")
    worker = serve(own.url, write_echo("patient", delay_ms=1000), "patient", topics=Topics(own.root))
    x = np.ones((1, 4), np.float32)

    async def ask(front: TfsFront) -> Any:
        if transport == "grpc":
            return await front.predict("patient", {"x": x})
        return (await front.post("patient:predict", {"instances": x.tolist()})).json["predictions"]

    async with serving(core_of(own)) as front:
        calls = [asyncio.create_task(ask(front)) for _ in range(4)]
        await until(lambda: worker.depth >= 2)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        await until(lambda: worker.statistics().counters.get("skipped_cancelled"))
        assert await ask(front)


@pytest.mark.options(tfs_cors=True, metrics_port=0)
async def test_compressed_bodies_and_other_origins(front: TfsFront) -> None:
    """Bodies may be compressed both ways; pages of any origin may call where the operator says so."""
    body = gzip.compress(json.dumps({"inputs": [[1.5]]}).encode())
    reply = await front.rest(
        "POST", "/v1/models/identity_fp32:predict", body, Content_Encoding="gzip", Accept_Encoding="gzip"
    )
    assert json.loads(gzip.decompress(reply.body)) == {"outputs": [[1.5]]}
    assert reply.headers["Access-Control-Allow-Origin"] == "*"
    reply = await front.rest("OPTIONS", "/v1/models/simple:predict", Origin="http://example.org")
    assert reply.status == 200
    assert reply.headers["Access-Control-Allow-Methods"] == "POST, GET"
    reply = await front.rest("OPTIONS", "/v1/models/simple:predict")
    assert (reply.status, reply.error) == (400, "Origin header is missing in CORS preflight")
    assert (await front.rest("GET", "/monitoring/prometheus/metrics")).status == 404


GARBAGE = [
    b"", b"\x00", b"\xff" * 100, b"null", b"[]", b"{", b'"', b"[" * 10_000, b'{"instances":' * 5000,
    b'{"instances": [{"b64": "?"}]}', b'{"inputs": {"INPUT0": [[1]], "INPUT1": [[1], [2]]}}', b'{"instances": [1e999]}',
    b'{"examples": [{"x": 1}], "signature_name": 1}', b'{"instances": [' + b"1," * 100_000 + b"1]}",
    b'{"inputs": {"INPUT0": [' + b"[]," * 999 + b'[]], "INPUT1": 1}}',
]  # fmt: skip


@pytest.mark.parametrize("settings", [{}, {"http_max_input_size": 1000}], ids=["usual", "small"])
async def test_garbage_by_rest(open_core: OpenCore, settings: dict[str, Any]) -> None:
    """Whatever comes, by whatever method and path, there is a status and an error in JSON; the front goes on."""
    async with serving(open_core, **settings) as front:
        for path in (
            "simple:predict",
            "simple:classify",
            "simple:regress",
            "simple",
            "simple/metadata",
            "simple_string:predict",
        ):
            for method in ("POST", "GET", "PUT", "DELETE", "PATCH", "OPTIONS", "PROPFIND"):
                for body in GARBAGE if method == "POST" else GARBAGE[:3]:
                    reply = await front.rest(method, f"/v1/models/{path}", body)
                    if method != "GET" or ":" in path:
                        assert 400 <= reply.status < 500, (method, path, body[:50], reply)
                        assert reply.error
        for headers in ({"Content_Encoding": "gzip"}, {"Content_Encoding": "br"}):
            reply = await front.rest("POST", "/v1/models/simple:predict", gzip.compress(b"{}" * 100)[:-9], **headers)
            assert reply.status == 400
            assert reply.error
        bomb = await front.rest(
            "POST", "/v1/models/simple:predict", gzip.compress(bytes(100_000_000), 9), Content_Encoding="gzip"
        )
        assert bomb.status == 400
        assert (await front.rest("GET", "/v1/models/simple")).status == 200


async def test_garbage_by_grpc(front: TfsFront) -> None:
    """Whatever bytes come, each method has a status with a text; a tensor of 52 MB that lies is refused."""
    methods = [
        "Predict", "Classify", "Regress", "MultiInference", "GetModelMetadata", "GetModelStatus",
        "HandleReloadConfigRequest",
    ]  # fmt: skip
    for method in methods:
        for data in (b"", b"\x00", b"\xff" * 100, b"\x0a\x06simple", b"\x0a\x08\x0a\x06simple", b"\x12\xff\x01"):
            if method == "GetModelStatus" and data.startswith(b"\x0a\x08"):
                continue  # no garbage to it
            code, text = await failure(front.send(method, data))
            assert code not in {grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL}, (method, data, text)
            assert text
    code, _ = await failure(front.channel.unary_unary(f"{PREDICTION}Nothing")(b""))
    assert code is grpc.StatusCode.UNIMPLEMENTED
    request = tfs_class("PredictRequest")(model_spec={"name": "identity_fp32"})
    tensor = request.inputs["INPUT0"]
    tensor.dtype = NUMBERS[Datatype.INT32]
    tensor.int_val.append(b"\x01" * 52_000_000)
    for size in (1, 52_000_000):
        tensor.tensor_shape.dim.add(size=size)
    code, text = await failure(front.send("Predict", request.SerializeToString()))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "208000000 bytes" in text
    code, text = await failure(front.send("MultiInference", b"\x0a\x00" * 65))
    assert (code, text) == (grpc.StatusCode.INVALID_ARGUMENT, "65 tasks; at most 64 are accepted")
    assert (await front.rest("GET", "/v1/models/simple")).status == 200


async def test_large_tensors_pass(front: TfsFront) -> None:
    """A frame passes as typed values and as JSON, converted by a thread."""
    frame: Array = np.random.default_rng(1).random((200, 200), np.float32)
    outputs, _ = await front.predict("identity_fp32", {"INPUT0": frame})
    np.testing.assert_array_equal(outputs["OUTPUT0"], frame)
    reply = await front.post("identity_fp32:predict", {"inputs": frame.tolist()})
    np.testing.assert_array_equal(np.array(reply.json["outputs"], np.float32), frame)

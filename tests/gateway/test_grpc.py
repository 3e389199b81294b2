"""The Open Inference Protocol over gRPC, through a real broker to real workers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import grpc
import numpy as np
import pytest

from mqinfer.gateway.access import Access, Right
from mqinfer.protocol.datatypes import Datatype, dtype_of
from tests.gateway.conftest import OpenCore, gateway_settings
from tests.gateway.grpc_front import GrpcFront, read_outputs, serving, tensors
from tests.gateway.listening import failure
from tests.gateway.models import IDENTITIES
from tests.patience import PATIENCE_S

COUNT, ONES = np.arange(16, dtype="<i4")[None], np.ones((1, 16), "<i4")
SUMS = {"model_name": "simple", **tensors(INPUT0=COUNT, INPUT1=ONES)}


@pytest.fixture
def front(open_core: OpenCore) -> AbstractAsyncContextManager[GrpcFront]:
    """Serve the front."""

    @asynccontextmanager
    async def opened() -> AsyncIterator[GrpcFront]:
        async with open_core() as core, serving(core, settings=gateway_settings(server_name="here")) as front:
            yield front

    return opened()


def typed_sums(kind: str = "int_contents") -> list[dict[str, Any]]:
    """Return the inputs of `simple` with typed contents."""
    from mqinfer.gateway.messages import message_class

    contents = message_class("inference.InferTensorContents")
    return [
        {
            "name": name,
            "datatype": "INT32",
            "shape": [1, 16],
            "contents": [contents(**{kind: array.ravel()}).SerializeToString()],
        }
        for name, array in (("INPUT0", COUNT), ("INPUT1", ONES))
    ]


async def test_raw_typed_and_chosen_outputs(front: GrpcFront) -> None:
    """Raw and typed requests give the same sums; only the requested outputs come; the id is kept, whatever it is."""
    replies = [
        await front.call("ModelInfer", id="my request id", **SUMS),
        await front.call("ModelInfer", model_name="simple", inputs=typed_sums(), model_version="1"),
        await front.call("ModelInfer", outputs=[{"name": "OUTPUT1"}], **SUMS),
    ]
    assert [reply.id for reply in replies] == ["my request id", "", ""]
    assert {(reply.model_name, reply.model_version) for reply in replies} == {("simple", "1")}
    for reply in replies[:2]:
        np.testing.assert_array_equal(read_outputs(reply)["OUTPUT0"], COUNT + 1)
        np.testing.assert_array_equal(read_outputs(reply)["OUTPUT1"], COUNT - 1)
    assert list(read_outputs(replies[2])) == ["OUTPUT1"]


async def test_all_datatypes(front: GrpcFront) -> None:
    """Each datatype comes back bit by bit, empty tensors and strings with NULs too."""
    for size in (0, 3):
        arrays = {
            name: np.array([b"", b"a\0", "é".encode()][:size], object)
            if name == "BYTES"
            else np.arange(size).astype(dtype_of(Datatype(name)))
            for name in IDENTITIES
        }
        given = tensors(**arrays)
        reply = await front.call("ModelInfer", model_name="all_types", **given)
        outputs = read_outputs(reply)
        for name, array in arrays.items():
            assert outputs[f"{name}_OUT"].tolist() == array.tolist()
            assert outputs[f"{name}_OUT"].dtype == array.dtype


async def test_large_tensors_both_ways(front: GrpcFront) -> None:
    """A tensor of 12 MB is the same behind the gateway, with a compressed request too."""
    array = np.random.default_rng(0).random((3, 1 << 20), "<f4")
    reply = await front.call("ModelInfer", model_name="identity_fp32", id="large", **tensors(INPUT0=array))
    np.testing.assert_array_equal(read_outputs(reply)["OUTPUT0"], array)
    assert reply.id == "large"
    async with grpc.aio.insecure_channel(front.address, compression=grpc.Compression.Gzip) as channel:
        reply = await GrpcFront(channel, front.address).call("ModelInfer", **SUMS)
        np.testing.assert_array_equal(read_outputs(reply)["OUTPUT0"], COUNT + 1)


async def test_classification(front: GrpcFront) -> None:
    """The largest elements come as text, `value:index`."""
    wanted = [{"name": "OUTPUT0", "parameters": {"classification": {"int64_param": 2}}}]
    reply = await front.call("ModelInfer", outputs=wanted, **SUMS)
    assert reply.outputs[0].datatype == "BYTES"
    assert [text.split(b":")[1] for text in read_outputs(reply)["OUTPUT0"].ravel().tolist()] == [b"15", b"14"]


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "unknown model": ({"model_name": "nope"}, "Request for unknown model: 'nope' is not found"),
    "unknown version": ({"model_version": "99"}, "Request for unknown model: 'simple' version 99 is not"),
    "output twice": (
        {"outputs": [{"name": "OUTPUT0"}] * 2},
        "output 'OUTPUT0' already exists in request",
    ),
    "no version": (
        {"model_version": "wrong_specification"},
        "failed to get model version from specified version string 'wrong_specification'",
    ),
    "raw and typed": (
        {"inputs": typed_sums()},
        "contents field must not be specified when using raw_input_contents for 'INPUT0' for model 'simple'",
    ),
    "too few raws": (
        {"raw_input_contents": [COUNT.tobytes()]},
        "unable to find data for input tensor 'INPUT1' for model 'simple' in request.",
    ),
    "too many raws": (
        {"raw_input_contents": [COUNT.tobytes()] * 3},
        "unexpected additional input data for model 'simple'",
    ),
    "no data": (
        {"raw_input_contents": []},
        "unable to find data for input tensor 'INPUT0' for model 'simple' in request.",
    ),
    "contents of another type": (
        {"raw_input_contents": [], "inputs": typed_sums("int64_contents")},
        "unexpected explicit tensor data for input tensor 'INPUT0' for model 'simple' of type 'INT64'",
    ),
    "no datatype": (
        {"inputs": [{"name": "INPUT0", "datatype": "BF16", "shape": [1]}], "raw_input_contents": [b"\0\0"]},
        "inference input 'INPUT0' for model 'simple' has the datatype 'BF16'",
    ),
    "too many strings": (
        {"inputs": [{"name": "INPUT0", "datatype": "BYTES", "shape": [1_500_000]}], "raw_input_contents": [b""]},
        "tensor 'INPUT0': shape [1500000] of BYTES takes 72000000 bytes; at most 67108864 are accepted for one tensor",
    ),
    "too many typed strings": (
        {
            "inputs": [{"name": "INPUT0", "datatype": "BYTES", "shape": [1_500_000], "contents": [b"\x42\x00"]}],
            "raw_input_contents": [],
        },
        "tensor 'INPUT0': shape [1500000] of BYTES takes 72000000 bytes; at most 67108864 are accepted for one tensor",
    ),
    "reserved parameter": (
        {"parameters": {"triton_x": {"int64_param": 1}}},
        "parameter keys starting with 'triton_' are reserved for Triton usage",
    ),
    "type of priority": (
        {"parameters": {"priority": {"string_param": "1"}}},
        "invalid value type for 'priority' parameter, expected int64_param or uint64_param.",
    ),
    "negative timeout": (
        {"parameters": {"timeout": {"int64_param": -1}}},
        "invalid value for 'timeout', expected value >= 0.",
    ),
    "type of sequence_start": (
        {"parameters": {"sequence_start": {"int64_param": 1}}},
        "invalid value type for 'sequence_start' parameter, expected bool_param.",
    ),
    "empty parameter": ({"parameters": {"mine": {}}}, "invalid value type for 'mine' parameter"),
    "shared memory": (
        {"outputs": [{"name": "OUTPUT0", "parameters": {"shared_memory_region": {"string_param": "r"}}}]},
        "Client shared memory is disabled.",
    ),
    "missing input": (tensors(INPUT0=COUNT), ""),
}
"""What is changed in a request, and what the error begins with."""
CODES = {"unknown model": "NOT_FOUND", "unknown version": "NOT_FOUND", "shared memory": "UNIMPLEMENTED"}
"""Status codes other than INVALID_ARGUMENT."""


async def test_requests_that_are_refused(front: GrpcFront) -> None:
    """Each has its status and begins with Triton's words; the next request is served."""
    for what, (changes, text) in WRONG.items():
        code, details = await failure(front.call("ModelInfer", **SUMS | changes))
        assert (what, code.name) == (what, CODES.get(what, "INVALID_ARGUMENT"))
        assert details.startswith(text), what
    ignored = {
        "sequence_id": {"int64_param": 7},
        "sequence_start": {"bool_param": True},
        "timeout": {"int64_param": 30_000_000},
        "mine": {"double_param": 0.5},
        "triton_enable_empty_final_response": {"bool_param": True},
    }
    reply = await front.call("ModelInfer", parameters=ignored, **SUMS)
    np.testing.assert_array_equal(read_outputs(reply)["OUTPUT0"], COUNT + 1)


async def test_health_and_metadata(front: GrpcFront) -> None:
    """Live, ready, the server's metadata and a model's, whatever foreign metadata keys a call has."""
    assert (await front.call("ServerLive")).live
    assert (await front.call("ServerReady", metadata=[("foreign", "key")])).ready
    assert (await front.call("ModelReady", name="simple")).ready
    assert (await front.call("ModelReady", name="identity_fp32", version="2")).ready
    assert not (await front.call("ModelReady", name="nope")).ready
    server = await front.call("ServerMetadata")
    assert server.name == "here"
    assert "binary_tensor_data" in server.extensions
    model = await front.call("ModelMetadata", name="simple")
    assert (model.name, list(model.versions)) == ("simple", ["1"])
    assert [(each.name, each.datatype, list(each.shape)) for each in model.inputs] == [
        ("INPUT0", "INT32", [-1, 16]),
        ("INPUT1", "INT32", [-1, 16]),
    ]
    assert model.properties["max_batch_size"] == "8"
    for name, version, words in (
        ("foo", "", "Request for unknown model: 'foo' is not found"),
        ("simple", "99", "Request for unknown model: 'simple' version 99 is not found"),
    ):
        code, details = await failure(front.call("ModelMetadata", name=name, version=version))
        assert code is grpc.StatusCode.NOT_FOUND
        assert details.startswith(words)


async def test_config_and_statistics(front: GrpcFront) -> None:
    """A model's configuration has Triton's numbers; its statistics rise with its requests."""
    config = (await front.call("ModelConfig", name="simple")).config
    assert (config.name, config.max_batch_size, config.version_policy.latest.num_versions) == ("simple", 8, 1)
    assert [(each.name, each.data_type, list(each.dims)) for each in config.input] == [
        ("INPUT0", 8, [16]),
        ("INPUT1", 8, [16]),
    ]
    assert [(each.kind, each.count) for each in config.instance_group] == [(2, 1)]  # KIND_CPU
    assert (await front.call("ModelConfig", name="identity_fp32")).config.version_policy.HasField("all")

    async def count() -> int:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                (entry,) = (await front.call("ModelStatistics", name="simple")).model_stats
                if entry.inference_stats.success.count >= entry.execution_count > 0:  # counted once a reply is sent
                    return int(entry.inference_count)

    await front.call("ModelInfer", **SUMS)
    before = await count()
    await front.call("ModelInfer", **SUMS)
    assert await count() == before + 1
    assert len((await front.call("ModelStatistics")).model_stats) > 1


async def test_repository(front: GrpcFront) -> None:
    """The index lists all versions; a model is unloaded and loaded again; nothing of it is taken from a message."""
    index = {(each.name, each.version): each.state for each in (await front.call("RepositoryIndex")).models}
    assert index["simple", "1"] == index["identity_fp32", "2"] == "READY"
    await front.call("RepositoryModelUnload", model_name="identity_bytes")
    assert not (await front.call("ModelReady", name="identity_bytes")).ready
    code, details = await failure(front.call("ModelInfer", **SUMS | {"model_name": "identity_bytes"}))
    assert code is grpc.StatusCode.NOT_FOUND
    assert details.startswith("Request for unknown model: 'identity_bytes' has no available versions")
    reply = await front.call("RepositoryModelLoad", repository_name="identity_bytes")  # as KServe's client has it
    assert (reply.model_name, reply.isLoaded) == ("identity_bytes", True)
    assert (await front.call("ModelReady", name="identity_bytes")).ready
    config = {"config": {"string_param": "{}"}}
    _, details = await failure(front.call("RepositoryModelLoad", model_name="simple", parameters=config))
    assert details.startswith("failed to load 'simple'")
    file = {"file:1/model.onnx": {"bytes_param": bytes(2 << 20)}}
    _, details = await failure(front.call("RepositoryModelLoad", model_name="simple", parameters=file))
    assert details.startswith("failed to load")
    _, details = await failure(front.call("RepositoryModelLoad", model_name="wrong_model_name"))
    assert details.startswith("failed to load 'wrong_model_name'")
    code, _ = await failure(front.call("RepositoryIndex", repository_name="mine"))
    assert code is grpc.StatusCode.UNIMPLEMENTED


async def test_what_a_gateway_does_not_have(front: GrpcFront) -> None:
    """Shared memory has no regions and takes none; settings can be read and not changed."""
    for kind in ("System", "Cuda"):
        assert not (await front.call(f"{kind}SharedMemoryStatus")).regions
        code, _ = await failure(front.call(f"{kind}SharedMemoryStatus", name="x"))
        assert code is grpc.StatusCode.NOT_FOUND
        await front.call(f"{kind}SharedMemoryUnregister", name="x")
        code, details = await failure(front.call(f"{kind}SharedMemoryRegister", name="x", byte_size=1))
        assert code is grpc.StatusCode.UNIMPLEMENTED
        assert details.startswith("Client shared memory is disabled.")
    assert (await front.call("TraceSetting")).settings["trace_level"].value == ["OFF"]
    assert (await front.call("LogSettings")).settings["log_error"].bool_param
    for method, settings in (
        ("TraceSetting", {"trace_file": {"value": ["x"]}}),
        ("LogSettings", {"log_file": {"string_param": "x"}}),
        ("LogSettings", {"log_info": {"bool_param": False}}),
    ):
        code, _ = await failure(front.call(method, settings=settings))
        assert code is grpc.StatusCode.UNIMPLEMENTED
    code, _ = await failure(front.call("TraceSetting", model_name="nope"))
    assert code is grpc.StatusCode.NOT_FOUND


async def test_health_service(front: GrpcFront) -> None:
    """Load balancers hear that the server and the service are serving, and of no other service."""
    check = "/grpc.health.v1.Health/Check"
    assert await front.send(check, b"") == b"\x08\x01"
    assert await front.send(check, b"\x0a\x1e" + b"inference.GRPCInferenceService") == b"\x08\x01"
    code, _ = await failure(front.send(check, b"\x0a\x01x"))
    assert code is grpc.StatusCode.NOT_FOUND
    code, _ = await failure(front.send("/grpc.health.v1.Health/Watch", b""))
    assert code is grpc.StatusCode.UNIMPLEMENTED


async def test_message_sizes(open_core: OpenCore) -> None:
    """A request above the limit is refused by its size, one below it is not."""
    settings = gateway_settings(http_max_input_size=6 << 20)
    async with open_core() as core, serving(core, settings=settings) as front:
        array = np.zeros((1, 1 << 20), "<f4")
        reply = await front.call("ModelInfer", model_name="identity_fp32", **tensors(INPUT0=array))
        assert read_outputs(reply)["OUTPUT0"].shape == array.shape
        larger = tensors(INPUT0=np.zeros((2, 1 << 20), "<f4"))
        code, _ = await failure(front.call("ModelInfer", model_name="identity_fp32", **larger))
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_restricted_calls(open_core: OpenCore) -> None:
    """A restricted group of calls needs Triton's header; the others do not."""
    access = Access(restricted={Right.INFERENCE: ("secret", "abc")})
    async with open_core() as core, serving(core, access) as front:
        await front.call("ServerMetadata")
        code, details = await failure(front.call("ModelInfer", **SUMS))
        assert code is grpc.StatusCode.PERMISSION_DENIED
        assert details.startswith("This protocol is restricted, expecting header 'triton-grpc-protocol-secret'")
        call = front.stream()
        await call.done_writing()
        code, _ = await failure(call.read())
        assert code is grpc.StatusCode.PERMISSION_DENIED
        await front.call("ModelInfer", metadata=[("triton-grpc-protocol-secret", "abc")], **SUMS)


async def test_calls_beyond_the_bound(open_core: OpenCore) -> None:
    """A call above `max_pending` is refused at once, with the pause after which gRPC's clients may try again."""
    async with open_core(max_pending=1) as core, serving(core) as front:
        slow = {"model_name": "slow", **tensors(x=np.zeros((1, 4), "<f4"))}
        first = asyncio.ensure_future(front.call("ModelInfer", **slow))
        while not core.inference.admission.running:  # noqa: ASYNC110  no event tells of a counter
            await asyncio.sleep(0.005)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await front.call("ModelInfer", **slow)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert caught.value.details().startswith("Exceeds maximum queue size")
        assert int(dict(caught.value.trailing_metadata())["grpc-retry-pushback-ms"]) > 0
        first.cancel()

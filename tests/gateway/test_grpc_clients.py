"""The field's published gRPC clients, each in an environment of its own, against the gateway's front."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.gateway.conftest import OpenCore, call_peer, gateway_settings
from tests.gateway.grpc_front import serving

TRITON = """
    import sys
    import numpy as np
    import tritonclient.grpc as triton
    from tritonclient.utils import InferenceServerException

    client = triton.InferenceServerClient(sys.argv[1])
    count, ones = np.arange(16, dtype=np.int32)[None], np.ones((1, 16), np.int32)

    def given(name, array, datatype):
        tensor = triton.InferInput(name, array.shape, datatype)
        tensor.set_data_from_numpy(array)
        return tensor

    def fails(text, status, call, *arguments, **options):
        try:
            call(*arguments, **options)
        except InferenceServerException as error:
            assert error.message().startswith(text) and status in error.status(), error
        else:
            raise AssertionError(f"expected {text}")

    sums = [given("INPUT0", count, "INT32"), given("INPUT1", ones, "INT32")]
    assert client.is_server_live() and client.is_server_ready(headers={"foreign": "key"})
    assert client.is_model_ready("simple") and not client.is_model_ready("nope")
    assert client.get_server_metadata().name == "here"
    assert client.get_model_metadata("simple", as_json=True)["inputs"][0]["shape"] == ["-1", "16"]
    config = client.get_model_config("simple").config
    assert (config.name, config.max_batch_size, config.input[0].data_type) == ("simple", 8, 8)
    config = client.get_model_config("densenet_onnx").config  # what Triton's image clients read, and how they ask
    assert (config.platform, config.input[0].format, list(config.output[0].dims)) == ("onnxruntime_onnx", 2, [3])
    picture = triton.InferInput("data_0", [3, 8, 8], "FP32")
    picture.set_data_from_numpy(np.arange(192, dtype=np.float32).reshape(3, 8, 8))
    wanted = [triton.InferRequestedOutput("fc6_1", class_count=2)]
    found = client.infer("densenet_onnx", [picture], outputs=wanted).as_numpy("fc6_1")
    assert found.tolist() == [b"159.500000:2:BLUE", b"95.500000:1:GREEN"], found
    for compression in (None, "gzip", "deflate"):
        wanted = [triton.InferRequestedOutput("OUTPUT0"), triton.InferRequestedOutput("OUTPUT1")]
        result = client.infer("simple", sums, outputs=wanted, request_id="my id", compression_algorithm=compression)
        assert (result.as_numpy("OUTPUT0") == count + 1).all() and (result.as_numpy("OUTPUT1") == count - 1).all()
        assert result.get_response().id == "my id"
    while client.get_inference_statistics("simple").model_stats[0].inference_stats.success.count < 3:
        pass  # a reply is counted once it is sent
    assert client.get_inference_statistics("simple").model_stats[0].inference_count >= 3
    text = np.array([[b"1"] * 15 + [b"-2"]], object)
    result = client.infer("simple_string", [given("INPUT0", text, "BYTES"), given("INPUT1", text, "BYTES")])
    assert result.as_numpy("OUTPUT0").tolist() == [[b"2"] * 15 + [b"-4"]]
    nul = np.array([["a\\0", "", "\\u00e9"]], object)
    assert client.infer("identity_bytes", [given("INPUT0", nul, "BYTES")]).as_numpy("OUTPUT0").tolist() == [
        [b"a\\0", b"", "\\u00e9".encode()]
    ]
    top = triton.InferRequestedOutput("OUTPUT0", class_count=3)
    assert client.infer("simple", sums, outputs=[top]).as_numpy("OUTPUT0").shape == (1, 3)
    large = np.random.default_rng(0).random((4, 1 << 20)).astype(np.float32)
    result = client.infer("identity_fp32", [given("INPUT0", large, "FP32")], model_version="2", priority=1)
    assert (result.as_numpy("OUTPUT0") == large).all() and result.get_response().model_version == "2"
    fails("Request for unknown model: 'nope' is not found", "NOT_FOUND", client.infer, "nope", sums)
    fails("Request for unknown model: 'simple' version 99", "NOT_FOUND", client.get_model_metadata, "simple", "99")
    fails("failed to get model version from", "INVALID_ARGUMENT", client.infer, "simple", sums, model_version="x")
    fails("Deadline Exceeded", "DEADLINE_EXCEEDED", client.infer, "slow",
          [given("x", np.ones((1, 4), np.float32), "FP32")], client_timeout=0.1)
    fails("failed to load 'simple'", "", client.load_model, "simple", config="{}")
    fails("failed to load", "", client.load_model, "wrong_model_name")
    assert {each.name for each in client.get_model_repository_index().models} >= {"simple", "simple_string"}
    assert not client.get_system_shared_memory_status().regions
    client.unregister_system_shared_memory()
    fails("Client shared memory is disabled", "UNIMPLEMENTED", client.register_system_shared_memory, "x", "/x", 8)
    client.update_trace_settings()
    assert client.get_trace_settings(as_json=True)["settings"]["trace_level"] == {"value": ["OFF"]}
    assert client.get_log_settings(as_json=True)["settings"]["log_error"]["bool_param"]

    import queue
    ended = queue.Queue()
    client.start_stream(lambda result, error: ended.put((result, error)))
    for number in range(50):
        client.async_stream_infer("simple", sums, request_id=str(number))
    client.async_stream_infer("nope", sums, request_id="bad")
    found = [ended.get(timeout=60) for _ in range(51)]
    client.stop_stream()
    late = queue.Queue()
    for _ in range(60):
        client.start_stream(lambda result, error: late.put(error), stream_timeout=0.5)
        try:
            client.async_stream_infer("slow", [given("x", np.ones((1, 4), np.float32), "FP32")])
            break
        except InferenceServerException:  # the machine stood still for as long as the stream may last
            client.stop_stream()
    error = late.get(timeout=60)
    assert (error.status(), error.message()[:17]) == ("StatusCode.DEADLINE_EXCEEDED", "Deadline Exceeded"), error
    client.stop_stream()
    assert {result.get_response().id for result, _ in found if result} == {str(number) for number in range(50)}
    (error,) = [error for _, error in found if error]
    assert error.message().startswith("Request for unknown model: 'nope' is not found")
    call = client.async_infer("slow", [given("x", np.ones((1, 4), np.float32), "FP32")], lambda *_: None)
    call.cancel()
    client.close()
    print("PASS")
"""
KSERVE = """
    import asyncio, sys
    import numpy as np
    from kserve import InferenceGRPCClient, InferInput, InferRequest

    def given(name, array, datatype, binary):
        tensor = InferInput(name, list(array.shape), datatype)
        tensor.set_data_from_numpy(array, binary_data=binary)
        return tensor

    async def main():
        client = InferenceGRPCClient(url=sys.argv[1])
        assert await client.is_server_live() and await client.is_server_ready()
        assert await client.is_model_ready("simple") and not await client.is_model_ready("nope")
        count, ones = np.arange(16, dtype=np.int32)[None], np.ones((1, 16), np.int32)
        for binary in (False, True):
            inputs = [given("INPUT0", count, "INT32", binary), given("INPUT1", ones, "INT32", binary)]
            reply = await client.infer(InferRequest("simple", inputs, request_id="my id"))
            assert reply.id == "my id"
            outputs = {output.name: output.as_numpy() for output in reply.outputs}
            assert (outputs["OUTPUT0"] == count + 1).all() and (outputs["OUTPUT1"] == count - 1).all()
            half = given("INPUT0", np.array([[0.5]], np.float32), "FP32", binary)
            reply = await client.infer(InferRequest("identity_fp32", [half], parameters={"mine": "x"}))
            assert reply.outputs[0].as_numpy().tolist() == [[0.5]]
        try:
            await client.infer(InferRequest("nope", [given("INPUT0", ones, "INT32", True)]))
        except Exception as error:
            assert "Request for unknown model: 'nope' is not found" in str(error)
        else:
            raise AssertionError("expected an error")
        await client.close()
        print("PASS")

    asyncio.run(main())
"""


@pytest.mark.parametrize(("environment", "script"), [("triton", TRITON), ("kserve", KSERVE)])
async def test_published_clients(
    environment: str, script: str, open_core: OpenCore, peer_python: Callable[[str], Path]
) -> None:
    """The client's calls give what its own server would: values, ids, texts and states."""
    python = peer_python(environment)
    async with open_core() as core, serving(core, settings=gateway_settings(server_name="here")) as front:
        await call_peer(python, script, front.address)

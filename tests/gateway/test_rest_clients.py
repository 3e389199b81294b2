"""The field's published HTTP clients, each in an environment of its own, against the gateway's front."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.gateway.conftest import call_peer
from tests.gateway.rest_front import Front

TRITON = """
    import asyncio, sys
    import numpy as np
    import tritonclient.http as triton
    import tritonclient.http.aio as aio
    from tritonclient.utils import InferenceServerException

    client = triton.InferenceServerClient(sys.argv[1], concurrency=4)
    count, ones = np.arange(16, dtype=np.int32)[None], np.ones((1, 16), np.int32)

    def given(name, array, datatype, binary=True):
        tensor = triton.InferInput(name, array.shape, datatype)
        tensor.set_data_from_numpy(array, binary_data=binary)
        return tensor

    def wanted(name, **how):
        return triton.InferRequestedOutput(name, **how)

    def check(result):
        assert (result.as_numpy("OUTPUT0") == count + 1).all() and (result.as_numpy("OUTPUT1") == count - 1).all()
        return result

    def fails(text, status, call, *arguments, **options):
        try:
            call(*arguments, **options)
        except InferenceServerException as error:
            assert error.message().startswith(text) and error.status() == status, (error.status(), error)
        else:
            raise AssertionError(f"expected {text}")

    sums = [given("INPUT0", count, "INT32", binary=False), given("INPUT1", ones, "INT32")]
    mixed = [wanted("OUTPUT0", binary_data=True), wanted("OUTPUT1", binary_data=False)]
    assert client.is_server_live(query_params={"a": 1, "b": [2, 3]}) and client.is_server_ready()
    assert client.is_model_ready("simple") and not client.is_model_ready("nope")
    assert client.is_model_ready("simple", "1") and not client.is_model_ready("simple", "9")
    assert client.get_server_metadata(headers={"foreign": "key"})["name"] == "triton"
    assert client.get_model_metadata("simple")["inputs"][0]["shape"] == [-1, 16]
    config = client.get_model_config("simple")
    assert (config["name"], config["max_batch_size"]) == ("simple", 8)
    for theirs in (None, "gzip", "deflate"):
        for ours in (None, "gzip", "deflate"):
            coding = {"request_compression_algorithm": theirs, "response_compression_algorithm": ours}
            result = check(client.infer("simple", sums, outputs=mixed, request_id="my id", **coding))
            assert result.get_response()["id"] == "my id"
            assert result.get_output("OUTPUT1")["data"] == (count - 1)[0].tolist()
            check(client.infer("simple", sums, **coding))
    assert len(client.get_inference_statistics("simple")["model_stats"]) == 1
    for binary in (True, False):
        text = np.array([[b"1"] * 15 + [b"-2"]], object)
        strings = [given("INPUT0", text, "BYTES"), given("INPUT1", text, "BYTES", binary=False)]
        outputs = [wanted("OUTPUT0", binary_data=binary)]
        found = client.infer("simple_string", strings, outputs=outputs).as_numpy("OUTPUT0")
        assert [int(each) for each in found[0]] == [2] * 15 + [-4]
        nul = np.array([["a\\0", "", "\\u00e9"]], object)
        found = client.infer("identity_bytes", [given("INPUT0", nul, "BYTES", binary)], outputs=outputs)
        found = [each.decode() if binary else each for each in found.as_numpy("OUTPUT0")[0]]
        assert found == ["a\\0", "", "\\u00e9"], found
        not_finite = np.array([[np.nan, np.inf, -np.inf, 0.1]], np.float32)
        found = client.infer("identity_fp32", [given("INPUT0", not_finite, "FP32", binary)], outputs=outputs)
        assert np.array_equal(found.as_numpy("OUTPUT0"), not_finite, equal_nan=True)
    assert client.infer("simple", sums, outputs=[wanted("OUTPUT0", class_count=3)]).as_numpy("OUTPUT0").shape == (1, 3)
    large = np.random.default_rng(0).random((4, 1 << 20)).astype(np.float32)
    result = client.infer("identity_fp32", [given("INPUT0", large, "FP32")], model_version="2", priority=1,
                          timeout=10**8)
    assert (result.as_numpy("OUTPUT0") == large).all() and result.get_response()["model_version"] == "2"
    result = client.infer("identity_fp32", [given("INPUT0", large[:, :1000], "FP32", binary=False)],
                          outputs=[wanted("OUTPUT0", binary_data=False)])
    assert (result.as_numpy("OUTPUT0") == large[:, :1000]).all()
    calls = [client.async_infer("simple", sums, outputs=mixed) for _ in range(20)]
    for call in calls:
        check(call.get_result())
    fails("Request for unknown model: 'nope' is not found", "404", client.infer, "nope", sums)
    fails("Request for unknown model: 'simple' version 99 is", "404", client.get_model_metadata, "simple", "99")
    fails("", "400", client.infer, "simple", sums[:1])
    fails("Request timeout expired", "503", client.infer, "slow",
          [given("x", np.ones((1, 4), np.float32), "FP32")], timeout=50_000)
    fails("failed to load 'simple'", "400", client.load_model, "simple", config="{}")
    fails("failed to load 'wrong_model_name', failed to poll", "500", client.load_model, "wrong_model_name")
    client.unload_model("simple_string")
    assert not client.is_model_ready("simple_string")
    client.load_model("simple_string")
    assert client.is_model_ready("simple_string")
    assert {each["name"] for each in client.get_model_repository_index()} >= {"simple", "simple_string"}
    assert client.get_system_shared_memory_status() == client.get_cuda_shared_memory_status() == []
    client.unregister_system_shared_memory()
    client.unregister_cuda_shared_memory("region")
    fails("Client shared memory is disabled", "501", client.register_system_shared_memory, "x", "/x", 8)
    fails("Client shared memory is disabled", "501", client.register_cuda_shared_memory, "x", b"", 0, 8)
    assert client.update_trace_settings() == client.get_trace_settings("simple")
    assert client.update_log_settings({}) == client.get_log_settings()
    client.close()

    async def main():
        async with aio.InferenceServerClient(sys.argv[1]) as client:
            assert await client.is_server_ready() and await client.is_model_ready("simple")
            results = await asyncio.gather(*(client.infer("simple", sums, outputs=mixed) for _ in range(20)))
            for result in results:
                check(result)
            try:
                await client.infer("nope", sums)
            except InferenceServerException as error:
                assert error.status() == "404"
            else:
                raise AssertionError("expected an error")

    asyncio.run(main())
    print("PASS")
"""
KSERVE = """
    import asyncio, sys
    import numpy as np
    from kserve import InferenceRESTClient, InferInput, InferRequest, RESTConfig
    from kserve.protocol.infer_type import RequestedOutput

    def given(name, array, datatype, binary):
        tensor = InferInput(name, list(array.shape), datatype)
        tensor.set_data_from_numpy(array, binary_data=binary)
        return tensor

    async def main():
        client, url = InferenceRESTClient(RESTConfig(protocol="v2")), "http://" + sys.argv[1]
        assert await client.is_server_live(url) and await client.is_server_ready(url)
        assert await client.is_model_ready(url, "simple") and not await client.is_model_ready(url, "nope")
        count, ones = np.arange(16, dtype=np.int32)[None], np.ones((1, 16), np.int32)
        for binary in (False, True):
            inputs = [given("INPUT0", count, "INT32", binary), given("INPUT1", ones, "INT32", not binary)]
            outputs = [RequestedOutput(f"OUTPUT{place}", {"binary_data": binary == bool(place)}) for place in (0, 1)]
            request = InferRequest("simple", inputs, request_id="my id", request_outputs=outputs)
            reply = await client.infer(url, request, model_name="simple")
            assert (reply.id, reply.model_name) == ("my id", "simple")
            found = {output.name: output.as_numpy() for output in reply.outputs}
            assert (found["OUTPUT0"] == count + 1).all() and (found["OUTPUT1"] == count - 1).all()
            given_fp32 = given("INPUT0", np.array([[0.5, np.nan]], np.float32), "FP32", True)
            request = InferRequest("identity_fp32", [given_fp32], parameters={"binary_data_output": binary})
            reply = await client.infer(url, request, model_name="identity_fp32")
            found = reply.outputs[0].as_numpy()
            assert found[0, 0] == 0.5 and np.isnan(found[0, 1])
        request = {"inputs": [{"name": "INPUT0", "shape": [1, 1], "datatype": "BYTES", "data": ["\\u00e9"]}]}
        reply = await client.infer(url, request, model_name="identity_bytes")
        assert reply.outputs[0].data == ["\\u00e9"]
        try:
            await client.infer(url, request, model_name="nope")
        except Exception as error:
            assert "Request for unknown model: 'nope' is not found" in str(error)
        else:
            raise AssertionError("expected an error")
        await client.close()
        print("PASS")

    asyncio.run(main())
"""


@pytest.mark.parametrize(("environment", "script"), [("triton", TRITON), ("kserve", KSERVE)])
@pytest.mark.options(server_name="triton")
async def test_published_clients(
    environment: str, script: str, front: Front, peer_python: Callable[[str], Path]
) -> None:
    """The client's calls give what its own server would: values, ids, texts and states."""
    python = peer_python(environment)
    await call_peer(python, script, front.url.removeprefix("http://"))

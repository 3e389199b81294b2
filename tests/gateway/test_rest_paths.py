"""Paths of the REST front beside inference: health, metadata, repository, and what is not offered."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.gateway.rest_front import Front, json_input
from tests.patience import PATIENCE_S

SIMPLE: dict[str, Any] = {"inputs": [json_input(f"INPUT{place}", "INT32", [1, 16], [1] * 16) for place in (0, 1)]}


@pytest.mark.options(server_name="triton")
async def test_metadata(front: Front) -> None:
    """Server, models, versions, configuration, statistics and readiness are answered as Triton does."""
    assert (await front("GET", "/v2/health/live")).json == {"live": True}
    assert (await front("GET", "/v2/health/ready")).json == {"ready": True}
    server = (await front("GET", "/v2?x=1")).json
    assert server["name"] == "triton"
    slash = await front("GET", "/v2/")
    assert (slash.json, slash.headers["Server"]) == (server, "mqinfer")
    assert "binary_tensor_data" in server["extensions"]
    model = (await front("GET", "/v2/models/simple")).json
    assert model["inputs"][0] == {"name": "INPUT0", "datatype": "INT32", "shape": [-1, 16]}
    assert model["versions"] == ["1"]
    assert (await front("GET", "/v2/models/identity_fp32/versions/2")).json["versions"] == ["2"]
    for path in ("simple", "%73imple", "simple/versions/1", "simple/versions/0001"):
        assert (await front("GET", f"/v2/models/{path}/ready")).status == 200
    for path in ("nothing", "simple/versions/9", "a%2Fb", "%00", "%ff"):
        reply = await front("GET", f"/v2/models/{path}/ready")
        assert (reply.status, reply.error) == (400, "Model version not ready")
    config = (await front("GET", "/v2/models/simple/config")).json
    assert (config["name"], config["max_batch_size"]) == ("simple", 8)
    await front.infer("simple", SIMPLE)
    async with asyncio.timeout(PATIENCE_S):
        while True:
            (entry,) = (await front("GET", "/v2/models/simple/stats")).json["model_stats"]
            if entry["inference_stats"]["success"]["count"] >= 1:  # a reply is counted once it is sent
                break
    names = [each["name"] for each in (await front("GET", "/v2/models/stats")).json["model_stats"]]
    assert {"simple", "identity_fp32"} <= set(names)


async def test_unknown_models(front: Front) -> None:
    """An unknown model or version is NOT_FOUND in Triton's words, whatever is asked about it."""
    for kind in ("", "/config", "/stats"):
        reply = await front("GET", f"/v2/models/foo{kind}")
        assert (reply.status, reply.error) == (404, "Request for unknown model: 'foo' is not found")
        reply = await front("GET", f"/v2/models/simple/versions/99{kind}")
        assert reply.status == 404
        assert reply.error == "Request for unknown model: 'simple' version 99 is not found"
    for path in ("foo", "simple/versions/99"):
        for kind in ("infer", "generate", "generate_stream"):
            reply = await front("POST", f"/v2/models/{path}/{kind}", SIMPLE)
            assert reply.status == 404
            assert reply.error.startswith("Request for unknown model")


async def test_repository(front: Front) -> None:
    """The index is listed, a model unloaded and loaded; nothing of a model is taken from a message."""
    index = (await front("POST", "/v2/repository/index")).json
    assert {(each["name"], each["version"], each["state"]) for each in index} >= {
        ("simple", "1", "READY"),
        ("identity_fp32", "2", "READY"),
    }
    models = "/v2/repository/models"
    assert (await front("POST", f"{models}/simple_string/unload", b"")).status == 200
    reply = await front("GET", "/v2/models/simple_string")
    assert (reply.status, reply.error) == (
        404,
        "Request for unknown model: 'simple_string' has no available versions",
    )
    ready = (await front("POST", "/v2/repository/index", {"ready": True})).json
    assert "simple_string" not in {each["name"] for each in ready}
    reply = await front("POST", f"{models}/simple_string/load", {"parameters": {"config": "{}"}})
    assert reply.status == 400
    assert reply.error.startswith("failed to load 'simple_string'")
    reply = await front("POST", f"{models}/simple_string/load")
    assert (reply.status, reply.body) == (200, b"")
    assert (await front("GET", "/v2/models/simple_string/ready")).status == 200
    reply = await front("POST", f"{models}/wrong_model_name/load")
    assert reply.status == 500
    assert reply.error == "failed to load 'wrong_model_name', failed to poll from model repository: no server has it"

    for body, words in (
        ({"ready": 1}, "Invalid value for 'ready': expected a boolean"),
        ([], "body must be a map"),
    ):
        reply = await front("POST", "/v2/repository/index", body)
        assert (reply.status, reply.error.startswith(words)) == (400, True)
    for path in ("index", "models/simple/load", "models/simple/unload"):
        reply = await front("POST", f"/v2/repository/mine/{path}")
        assert (reply.status, reply.error) == (501, "'repository_name' specification is not supported")


@pytest.mark.options(model_control=False)
async def test_repository_is_closed(front: Front) -> None:
    """Without the operator's consent nobody loads or unloads models."""
    for action in ("load", "unload"):
        reply = await front("POST", f"/v2/repository/models/simple/{action}")
        assert reply.status == 403
        assert reply.error.startswith("explicit model load / unload is not allowed if polling is enabled")
    assert (await front("GET", "/v2/models/simple/ready")).status == 200


async def test_what_is_not_offered(front: Front) -> None:
    """Shared memory, trace and log settings are answered as by a Triton that has them switched off."""
    for kind in ("system", "cuda"):
        for region in ("", "/region/mine"):
            path = f"/v2/{kind}sharedmemory{region}"
            status = await front("GET", f"{path}/status")
            assert (status.status, status.json) == (
                (404, {"error": f"Unable to find {kind} shared memory region: 'mine'"}) if region else (200, [])
            )
            assert (await front("POST", f"{path}/unregister")).status == 200
            reply = await front("POST", f"{path}/register", {"key": "k", "byte_size": 1})
            assert reply.status == 501
            assert reply.error.startswith("Client shared memory is disabled.")
    shared = {"shared_memory_region": "r", "shared_memory_byte_size": 64}
    request = {"inputs": [{"name": "INPUT0", "datatype": "INT32", "shape": [1, 16], "parameters": shared}]}
    assert (await front.infer("simple", request)).status == 501
    reply = await front.infer("simple", SIMPLE | {"outputs": [{"name": "OUTPUT0", "parameters": shared}]})
    assert reply.status == 501
    for path in ("/v2/trace/setting", "/v2/models/simple/trace/setting"):
        settings = (await front("GET", path)).json
        assert settings["trace_level"] == ["OFF"]
        assert (await front("POST", path, {})).json == settings
        assert (await front("POST", path, {"trace_rate": None})).json == settings
        assert (await front("POST", path, {"trace_file": "/etc/passwd"})).status == 501
    assert (await front("GET", "/v2/models/foo/trace/setting")).status == 404
    settings = (await front("GET", "/v2/logging")).json
    assert settings.keys() >= {"log_file", "log_info", "log_verbose_level", "log_format"}
    assert (await front("POST", "/v2/logging", {})).json == settings
    assert (await front("POST", "/v2/logging", {"log_file": "/etc/passwd"})).status == 501
    for kind in ("generate", "generate_stream"):
        assert (await front("POST", f"/v2/models/simple/{kind}", {"text_input": "x"})).status == 501

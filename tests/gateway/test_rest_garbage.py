"""Garbage on the REST front: each call gets a status and a typed body, and the front goes on serving."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import threading
import zlib
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest

from mqinfer.gateway import http
from mqinfer.gateway.http import decompress
from tests.gateway.conftest import OpenCore
from tests.gateway.rest_front import Front, json_input, serving

LENGTH = "Inference-Header-Content-Length"
GOOD = {"inputs": [json_input("INPUT0", "FP32", [1, 2], [1, 2])]}
BODY = json.dumps(GOOD).encode()
MODEL_PATHS = ["", "/infer", "/ready", "/config", "/stats", "/generate", "/generate_stream", "/trace/setting", "/x"]
PATHS = [
    *(f"/v2/models/{model}{kind}" for model in ("identity_fp32", "identity_fp32/versions/1") for kind in MODEL_PATHS),
    *(f"/v2/models/{model}/infer" for model in ("%00", "%2e%2e", "a%2Fb", "%ff%fe", "x" * 3000, "😀", "+", "#", "%")),
    *(f"/v2/models/simple/versions/{version}/infer" for version in ("0", "-1", "1.5", "x", "9" * 400)),
    *(f"/v2/repository/{path}" for path in ("index", "r/index", "models/nothing/load", "models/nothing/unload", "x")),
    *(f"/v2/{kind}sharedmemory{path}" for kind in ("system", "cuda") for path in ("/status", "/region/r/register")),
    *("/", "/v2", "/v2/", "/v2/health", "/v2/health/live", "/v2/health/ready", "/v2/models", "/v2/models/stats"),
    *("/v2/trace/setting", "/v2/logging", "/v1/models/simple:predict", "/metrics", "/%", "//v2", "/v2/../v2"),
]
BODIES = [
    b"",
    b"{",
    b"null",
    b"[]",
    b"\x00\xff" * 50,
    b'{"inputs":' + b"[" * 10_000 + b"]" * 10_000 + b"}",
    b'{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[-1],"data":[1]}],"parameters":7,"ready":"x"}',
    b'{"inputs":[{"name":null}],"trace_level":[1],"log_info":"yes","parameters":{"config":[1]}}',
]


@pytest.fixture
def front(
    open_core: OpenCore, options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> AbstractAsyncContextManager[Front]:
    """Serve the front; after the test it is live, and nothing was logged as an error."""

    @asynccontextmanager
    async def opened() -> AsyncIterator[Front]:
        async with serving(open_core, **options) as front:
            yield front
            assert (await front("GET", "/v2/health/live")).status == 200
            assert (await front.infer("identity_fp32", BODY)).status == 200
        assert [each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR] == []

    return opened()


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "TRACE", "PROPFIND"])
async def test_every_path(front: Front, method: str) -> None:
    """Each path with each method and each body is answered, and refused with a sentence."""
    bodies = BODIES if method == "POST" else BODIES[:2]
    replies = await asyncio.gather(*(front(method, path, body) for path in PATHS for body in bodies))
    for (path, body), reply in zip(((path, body) for path in PATHS for body in bodies), replies, strict=True):
        what = f"{method} {path[:60]} {body[:20]!r}: {reply.status} {reply.body[:100]!r}"
        if reply.status == 200:
            assert method in {"GET", "POST"}, what
        elif method == "HEAD":
            assert reply.body == b"", what
        else:
            assert reply.error, what
        assert reply.status in {200, 400, 404, 405, 501} or "nothing/load" in path, what


async def test_paths_that_are_none(front: Front) -> None:
    """Paths and methods that do not exist are refused in Triton's words; the methods that do are listed."""
    reply = await front("GET", "/v2/models")
    assert (reply.status, reply.error) == (404, "Not Found")
    reply = await front("PUT", "/v2/models/simple/infer")
    assert (reply.status, reply.error) == (405, "Method Not Allowed")
    assert reply.headers["Allow"] == "POST"


async def test_header_lengths(front: Front) -> None:
    """A length that is no number, negative, huge or beyond the body is refused before anything is read."""
    for value in ("-1", str(len(BODY) + 1), "9" * 18):
        reply = await front("POST", "/v2/models/simple/infer", BODY, {LENGTH: value})
        assert reply.status == 400
        assert reply.error.startswith(f"inference header size should be in range (0, {len(BODY)}), got: ")
    for value in ("", "x", "1.5", "0x10", "9" * 500, "1 2", "\u0661"):
        reply = await front("POST", "/v2/models/simple/infer", BODY, {LENGTH: value})
        assert reply.status == 400, value
        assert reply.error.startswith(f"Unable to parse {LENGTH}, got: ")
    assert (await front("POST", "/v2/models/simple/infer", BODY, {LENGTH: "5"})).status == 400


@pytest.mark.options(http_max_input_size=1 << 20)
async def test_compressed_garbage(front: Front) -> None:
    """A bomb, a cut or damaged body, a second stream and unknown codings are refused; nothing is enlarged."""
    whole = gzip.compress(BODY)
    bomb = gzip.compress(bytes(8 << 20))
    for coding, body, words in (
        ("gzip", bomb, "bytes when decompressed"),
        ("gzip", whole[:-9], "ends before"),
        ("gzip", whole[:1], "ends before"),
        ("gzip", b"", "ends before"),
        ("gzip", whole[:10] + b"\xff" * 20, "is not gzip"),
        ("gzip", whole[:-4] + b"1234", "is not gzip"),
        ("gzip", zlib.compress(BODY), "is not gzip"),
        ("gzip", whole + whole, "follow"),
        ("deflate", whole, "is not deflate"),
        ("br", BODY, "Unsupported compression type"),
        ("gzip, gzip", gzip.compress(whole), "Unsupported compression type"),
    ):
        reply = await front.infer("identity_fp32", body, Content_Encoding=coding)
        assert reply.status == 400, (coding, body[:20])
        assert words in reply.error
    for path in ("/v2/repository/index", "/v2/logging", "/v2/trace/setting"):
        assert (await front("POST", path, bomb, {"Content-Encoding": "gzip"})).status == 400


async def test_the_loop_enlarges_nothing(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also a body of some bytes, which may become thousand times as many, is decompressed by a thread."""
    by: list[str] = []

    def recorded(*args: Any) -> bytes:
        by.append(threading.current_thread().name)
        return decompress(*args)

    monkeypatch.setattr(http, "decompress", recorded)
    assert (await front.infer("identity_fp32", gzip.compress(BODY), Content_Encoding="gzip")).status == 200
    assert [each.rsplit("_", 1)[0] for each in by] == ["mqinfer-gateway-decompress"]


@pytest.mark.options(http_max_input_size=10_000)
async def test_limit(front: Front) -> None:
    """A body above the limit is refused, stated or not."""

    async def parts() -> Any:
        for _ in range(20):
            yield b" " * 1000

    for body in (b" " * 20_000, parts()):
        async with front.session.post(f"{front.url}/v2/models/simple/infer", data=body) as reply:
            assert reply.status == 400
            assert "--http-max-input-size" in (await reply.json())["error"]


@pytest.mark.options(http_max_input_size=10_000, max_bytes=8_000)
async def test_limit_of_all_bodies(front: Front) -> None:
    """What all bodies together take is bounded; the refusal has a `Retry-After`."""
    reply = await front.infer("simple", b" " * 9_000)
    assert reply.status == 429
    assert reply.error
    assert int(reply.headers["Retry-After"]) >= 1


@pytest.mark.options(timeout=0.05)
async def test_body_that_does_not_come(front: Front) -> None:
    """A body that stays away is given up after the time of a call."""
    host, port = front.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"POST /v2/models/simple/infer HTTP/1.1\r\nHost: h\r\nContent-Length: 100\r\n\r\n{}")
    async with asyncio.timeout(60):
        assert b" 504 " in await reader.readline()
    writer.close()


async def test_tensors_that_do_not_fit(front: Front) -> None:
    """Sizes, names and sources that contradict each other are refused with status 400."""
    tensor = GOOD["inputs"][0]
    for inputs in (
        [tensor, tensor],
        [tensor | {"shape": [2, 2]}],
        [tensor | {"shape": [1 << 40, 1 << 40]}],
        [tensor | {"shape": [-1, 2]}],
        [tensor | {"shape": [1 << 70]}],
        [tensor | {"shape": [1] * 17}],
        [tensor | {"data": [1, None]}],
        [tensor | {"data": [1, "x"]}],
        [tensor | {"data": [1, []]}],
        [tensor | {"data": 5}],
        [tensor | {"datatype": "FP31"}],
        [tensor | {"parameters": {"binary_data_size": 8}}],
        [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 2]}],
        [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 2], "parameters": {"binary_data_size": 8}}],
        [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 2], "parameters": {"binary_data_size": -8}}],
        [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 2], "parameters": {"binary_data_size": 1 << 70}}],
        [tensor | {"name": f"x{number}"} for number in range(100)],
        [],
    ):
        reply = await front.infer("identity_fp32", {"inputs": inputs})
        assert reply.status == 400, inputs
        assert reply.error
    for wrong in (
        {"parameters": {"triton_enable": True}},
        {"parameters": {"timeout": -1}},
        {"parameters": {"priority": "high"}},
        {"parameters": {"binary_data_output": "yes"}},
        {"parameters": {"x": [1]}},
        {"id": 5},
        {"outputs": [{"name": "OUTPUT0"}, {"name": "OUTPUT0"}]},
        {"outputs": [{"name": "OUTPUT0", "parameters": {"classification": -1}}]},
        {"outputs": {"name": "OUTPUT0"}},
    ):
        reply = await front.infer("identity_fp32", GOOD | wrong)
        assert reply.status == 400, wrong
    head = json.dumps({"inputs": [tensor]}).encode()
    reply = await front("POST", "/v2/models/m/infer", head + b"more", {LENGTH: str(len(head))})
    assert (reply.status, reply.error) == (400, "unexpected additional input data for model 'm': 4 bytes")
    reply = await front.infer("identity_fp32", {"inputs": [tensor | {"name": "x" * 100_000, "data": 5}]})
    assert len(reply.error) < 5000
    reply = await front.infer("identity_fp32", GOOD | {"inputs": [tensor | {"shape": "x"}]})
    assert reply.error.startswith("Unable to parse 'shape': ")


async def test_nesting(front: Front) -> None:
    """JSON nested deeper than 100 is refused in Triton's words, wherever it is; brackets in strings do not count."""
    for depth in (10_000, 101):
        deep = b"[" * depth + b"]" * depth
        for body in (deep, b'{"inputs":[{"data":%b}]}' % deep, b'{"x":%b}' % deep, b'{"id":"\\"%b' % deep):
            reply = await front.infer("identity_fp32", body)
            assert reply.status == 400
            if not body.startswith(b'{"id"'):
                assert reply.error == "JSON nesting depth exceeds maximum allowed limit (100)"
    assert (await front.infer("identity_fp32", GOOD | {"id": "[{" * 5000})).status == 200
    reply = await front("POST", "/v2/repository/index", b'{"ready":%b}' % (b"[" * 250_000 + b"]" * 250_000))
    assert (reply.status, reply.error) == (400, "JSON nesting depth exceeds maximum allowed limit (100)")
    closing = {"x": "]" * 200, "inputs": [deep_list(101)]}
    assert (await front.infer("identity_fp32", closing)).error == reply.error


def deep_list(depth: int) -> list[Any]:
    """Return lists within each other."""
    return [deep_list(depth - 1)] if depth else []


@pytest.mark.parametrize(
    "sent",
    [
        b"GET\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"POST /v2/models/simple/infer HTTP/1.1\r\nContent-Length: x\r\n\r\n{}",
        b"POST /v2/models/simple/infer HTTP/1.1\r\nHost: h\r\nContent-Length: -5\r\n\r\n{}",
        b"POST /v2/models/simple/infer HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n",
        b"POST /v2/models/simple/infer HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{}",
        b"POST /v2/models/simple/infer HTTP/1.1\r\nHost: h\r\nContent-Length: 100\r\n\r\n{}",
        b"GET /v2 HTTP/1.1\r\nHost: h\r\nX: " + b"y" * 20_000 + b"\r\n\r\n",
        b"GET /v2 HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n\xff\xff",
        b"OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n",
        b"CONNECT h:1 HTTP/1.1\r\nHost: h\r\n\r\n",
        b"POST /v2/models/simple/infer HTTP/1.1\r\nHost: h\r\nExpect: nothing\r\nContent-Length: 2\r\n\r\n{}",
    ],
)
async def test_broken_http(front: Front, sent: bytes) -> None:
    """Whatever a connection sends, it is answered with a status or closed, and others go on."""
    host, port = front.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(sent)
    writer.write_eof()
    async with asyncio.timeout(60):
        answer = await reader.read()
    writer.close()
    assert not answer or answer.startswith(b"HTTP/1."), answer
    assert b" 500 " not in answer[:20]

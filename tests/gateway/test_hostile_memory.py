"""Memory as a promise: a gateway of bounded memory and 60 descriptors, under whatever strangers send to its ports."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import grpc
import pytest

from mqinfer.broker.mosquitto.server import MosquittoServer
from mqinfer.gateway.messages import message_class
from tests.confined import MIB, Confined, attack, confine
from tests.dashboard.hostile import ATTACKS
from tests.dashboard.programs import Programs
from tests.dashboard.publishing import Publisher
from tests.gateway.grpc_front import SERVICE
from tests.gateway.test_grpc_receiving import frame, opening, unfinished
from tests.patience import PATIENCE_S, wait_until
from tests.ports import free_port

pytestmark = [pytest.mark.slow, pytest.mark.broker, pytest.mark.timeout(900), pytest.mark.full]

PORTS = ("http", "grpc", "metrics", "tfs-grpc", "tfs-rest")
ROOM = 128 * MIB
"""Of --max-bytes."""
MODELS = {"echo": "UINT8", "floats": "FP32"}
INFER, PREDICT = "/v2/models/echo/infer", "/v1/models/floats:predict"
INPUT = {"name": "x", "datatype": "UINT8", "shape": [1, 3]}
AGAIN = {getattr(grpc.StatusCode, name) for name in ("RESOURCE_EXHAUSTED", "UNAVAILABLE", "DEADLINE_EXCEEDED")}
SMALL = json.dumps({"inputs": [{**INPUT, "data": [1, 2, 3]}]}).encode()


def http(path: str, body: bytes, *headers: str) -> bytes:
    """Return a request of HTTP."""
    lines = (f"POST {path} HTTP/1.1", "Host: x", f"Content-Length: {len(body)}", *headers, "", "")
    return "\r\n".join(lines).encode() + body


def grpc_of(size: int) -> bytes:
    """Return a request of gRPC for a tensor of zeros."""
    made = message_class("inference.ModelInferRequest")(
        model_name="echo", inputs=[{**INPUT, "shape": [1, size]}], raw_input_contents=[bytes(size)]
    )
    return bytes(made.SerializeToString())


def compressed(method: str, size: int, calls: int) -> bytes:
    """Return the octets of a connection with many calls, each of a message of some kilobytes that inflates."""
    small = gzip.compress(grpc_of(size))
    data = b"\1" + len(small).to_bytes(4, "big") + small
    return b"".join(
        [
            opening(method, stream, {"grpc-encoding": "gzip"}) + b"".join(
                frame(0, int(at + 16384 >= len(data)), stream, data[at : at + 16384])
                for at in range(0, len(data), 16384)
            )
            for stream in range(1, 2 * calls, 2)
        ]
    )  # fmt: skip


def json_of(element: bytes, head: bytes, tail: bytes, size: int = 8 * MIB) -> bytes:
    """Return JSON of many small things."""
    return head + (element + b",") * (size // (len(element) + 1)) + element + tail


def attacks() -> Iterator[tuple[str, str, bytes, int, bool]]:
    """Yield kind by kind its name, the port, the octets of a connection, how many there are, and whether each reads."""
    yield "unfinished messages", "grpc", unfinished("ModelInfer", 60 * MIB - 1), 20, False
    yield "unfinished messages of streams", "grpc", unfinished("ModelStreamInfer", 60 * MIB - 1), 20, False
    yield "unfinished bodies", "http", http(INFER, bytes(60 * MIB))[:-1], 20, False
    for element in (b"{}", b"[]", b'{"b64":""}', b"1"):
        yield f"JSON of {element!r}", "tfs-rest", http(PREDICT, json_of(element, b'{"instances":[', b"]}")), 6, True
        head = b'{"inputs":[{"name":"x","datatype":"UINT8","shape":[1,1000000],"data":['
        yield f"data of {element!r}", "http", http(INFER, json_of(element, head, b"]}]}")), 6, True
    behind = b']},"examples":[' + b"{}," * 200_000 + b"{}]}"
    context = http("/v1/models/floats:regress", json_of(b"1", b'{"context":{"x":[', behind, 4 * MIB))
    yield "a context of each example", "tfs-rest", context, 6, True
    parts = b"--b\r\nContent-Disposition: form-data; name=a\r\n\r\n\r\n" * (1 << 19) + b"--b--\r\n"
    form = http("/v1/vision/detection", parts, "Content-Type: multipart/form-data; boundary=b")
    yield "parts of a form", "http", form, 12, True
    yield "deep JSON", "http", http(INFER, b"[" * (8 * MIB)), 6, True
    for content in (bytes(63 * MIB), b"[" * (63 * MIB), json_of(b"{}", b'{"instances":[', b"]}", 60 * MIB)):
        for port, path in (("tfs-rest", PREDICT), ("http", INFER)):
            body = gzip.compress(content, 1)
            yield f"gzip of {content[:20]!r}", port, http(path, body, "Content-Encoding: gzip"), 12, True
    header = json.dumps({"inputs": [{**INPUT, "shape": [1, 16 * MIB], "parameters": {"binary_data_size": 16 * MIB}}]})
    headers = f"Inference-Header-Content-Length: {len(header)}", "Content-Encoding: gzip"
    body = gzip.compress(header.encode() + bytes(16 * MIB))
    yield "unread replies", "http", http(INFER, body, *headers), 30, False
    for method in ("ModelInfer", "ModelStreamInfer"):
        yield f"unread replies of {method}", "grpc", compressed(method, 16 * MIB, 12), 4, False
        yield f"{method} that inflates", "grpc", compressed(method, 62 * MIB, 100), 4, False
    yield "connections", "http", b"", 2 * 60, False


class Caller:
    """One who asks over both protocols, on connections that it keeps, and comes again where there is no room."""

    def __init__(self, session: aiohttp.ClientSession, channel: grpc.aio.Channel, port: int) -> None:
        self._session, self._url = session, f"http://127.0.0.1:{port}{INFER}"
        self._call = channel.unary_unary(f"/{SERVICE}/ModelInfer")

    async def ask(self) -> None:
        """Have an answer of each."""
        async with asyncio.timeout(2 * PATIENCE_S):
            while True:
                async with self._session.post(self._url, data=SMALL) as reply:
                    if reply.status == 200:
                        break
                    assert reply.status in {429, 503, 504}, await reply.text()
                await asyncio.sleep(0.1)
            while True:
                call = self._call(grpc_of(3))
                code = await call.code()
                if code is grpc.StatusCode.OK:
                    break
                assert code in AGAIN, await call.details()
                await asyncio.sleep(0.1)


async def test_it_does_not_end_others_are_served_and_memory_returns(tmp_path: Path) -> None:
    """Within 2 GiB and 60 descriptors, kind after kind, while another caller asks; then 512 MiB are left at most."""
    for model, datatype in MODELS.items():
        folder = tmp_path / "models" / model / "1"
        folder.mkdir(parents=True)
        (folder / "model.echo").write_text(f'[[input]]\nname = "x"\ndatatype = "TYPE_{datatype}"\nshape = [-1, -1]\n')
    ports = {name: free_port() for name in PORTS}
    words = [f"--{name}-port={port}" for name, port in ports.items()]
    with MosquittoServer() as broker, Programs(tmp_path, broker.url) as programs:
        worker = programs.start("worker", "--repository", tmp_path / "models")
        gateway = programs.start("gateway", "--max-bytes", str(ROOM), "--timeout", "10", *words)
        confine(gateway.process.pid)
        wait_until(lambda: worker.log().count(" ready: ") == len(MODELS) and " ready: " in gateway.log())
        async with (
            aiohttp.ClientSession() as session,
            grpc.aio.insecure_channel(f"127.0.0.1:{ports['grpc']}") as channel,
        ):
            caller = Caller(session, channel, ports["http"])
            await caller.ask()
            processes = Confined(gateway.process.pid)
            for kind, port, octets, times, reads in attacks():
                strangers = [asyncio.create_task(attack(ports[port], octets, reads=reads)) for _ in range(times)]
                for _ in range(3):
                    await caller.ask()
                if reads:
                    await asyncio.wait(strangers)
                for each in strangers:
                    each.cancel()
                await asyncio.gather(*strangers, return_exceptions=True)
                await caller.ask()
                processes.check(kind)
            with Publisher(broker.url) as publisher:
                for publish in ATTACKS.values():
                    publish(publisher)
                publisher.flush()
            await caller.ask()
            await asyncio.to_thread(processes.wait_for_memory, 512 * MIB)
            processes.check("all of them")

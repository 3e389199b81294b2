"""Each method of the gRPC front with truncated, random and hostile bytes: a status, and the front goes on."""

from __future__ import annotations

import asyncio
import logging

import grpc
import numpy as np
import pytest

from mqinfer.gateway.grpc.service import METHODS
from mqinfer.gateway.messages import message_class
from mqinfer.protobuf_wire import delimited
from tests.gateway.conftest import OpenCore
from tests.gateway.grpc_front import GrpcFront, read_outputs, serving, tensors

GOOD = message_class("inference.ModelInferRequest")(
    model_name="simple",
    id="x",
    parameters={"priority": {"uint64_param": 1}},
    outputs=[{"name": "OUTPUT0"}],
    **tensors(INPUT0=np.zeros((1, 16), "<i4"), INPUT1=np.zeros((1, 16), "<i4")),
).SerializeToString()
LARGE = bytes(1 << 17)
HOSTILE = {
    "nothing": b"",
    "zeros": LARGE,
    "0xff": b"\xff" * 100_000,
    "text": b"GET / HTTP/1.1\r\n\r\n" * 5000,
    "name that is no text": b"\x0a\x02\xff\xfe",
    "empty inputs": b"\x2a\x00" * 40_000,
    "empty raws": b"\x3a\x00" * 40_000,
    "deep groups": b"\x0b" * 10_000,
    "length beyond the end": b"\x0a\xff\xff\xff\xff\x0f",
    "long name": delimited(1, len(LARGE)) + b"a" * len(LARGE),
    "topic characters": delimited(1, 9) + b"a/+/#/\0/b",
    "huge shape": message_class("inference.ModelInferRequest")(
        model_name="simple",
        inputs=[{"name": "INPUT0", "datatype": "INT32", "shape": [1 << 62, 1 << 62], "contents": [b"\x12\x00"]}],
    ).SerializeToString(),
    "negative shape": message_class("inference.ModelInferRequest")(
        model_name="simple",
        inputs=[{"name": "INPUT0", "datatype": "INT32", "shape": [-1, 16]}],
        raw_input_contents=[bytes(64)],
    ).SerializeToString(),
    "strings that lie": message_class("inference.ModelInferRequest")(
        model_name="simple_string",
        inputs=[{"name": "INPUT0", "datatype": "BYTES", "shape": [1, 2]}],
        raw_input_contents=[b"\xff\xff\xff\xff"],
    ).SerializeToString(),
    "many names": message_class("inference.ModelInferRequest")(
        model_name="simple", inputs=[{"name": "INPUT0", "datatype": "INT32", "shape": [0]}] * 60
    ).SerializeToString(),
}
EXPECTED = {"OK", "INVALID_ARGUMENT", "NOT_FOUND", "UNIMPLEMENTED"}


async def status(front: GrpcFront, method: str, octets: bytes) -> str:
    """Return the status of a call."""
    try:
        await front.send(method, octets)
    except grpc.aio.AioRpcError as error:
        return "Traceback" if "Traceback" in error.details() else str(error.code().name)
    return "OK"


async def stream_status(front: GrpcFront, octets: bytes) -> str:
    """Return the status of a stream of one request, which must have had one reply."""
    stream = front.stream()
    await stream.write(octets)
    await stream.done_writing()
    assert await stream.read() is not grpc.aio.EOF
    assert await stream.read() is grpc.aio.EOF
    return str((await stream.code()).name)


def test_every_method_with_garbage(open_core: OpenCore, caplog: pytest.LogCaptureFixture) -> None:
    """Each call ends in a status that says what was wrong, and none in one that nobody has foreseen."""
    rng = np.random.default_rng(13)
    random_bytes = [rng.bytes(int(rng.integers(400))) for _ in range(40)]
    truncated = [GOOD[:length] for length in range(0, len(GOOD), 7)]
    flipped = [
        GOOD[:at] + bytes([GOOD[at] ^ 1 << int(rng.integers(8))]) + GOOD[at + 1 :] for at in range(0, len(GOOD), 3)
    ]

    async def main() -> None:
        async with open_core() as core, serving(core) as front:
            for octets in [*HOSTILE.values(), *random_bytes, *truncated, *flipped]:
                found = await asyncio.gather(status(front, "ModelInfer", octets), stream_status(front, octets))
                assert found[0] in EXPECTED
                assert found[1] == "OK"
            harmless = [octets for octets in HOSTILE.values() if b"simple" not in octets]  # which it would unload
            for method in (*METHODS, "/grpc.health.v1.Health/Check", "NoSuchMethod"):
                expected = EXPECTED | ({"INTERNAL"} if method == "RepositoryModelLoad" else set())
                for octets in (*harmless, *random_bytes):
                    assert await status(front, method, octets) in expected
            reply = message_class("inference.ModelInferResponse").FromString(await front.send("ModelInfer", GOOD))
            assert read_outputs(reply)["OUTPUT0"].tolist() == [[0] * 16]

    with caplog.at_level(logging.ERROR, "mqinfer"):
        asyncio.run(main())
    assert not caplog.records

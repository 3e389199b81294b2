"""Pictures as files: callers of each protocol send the bytes of a JPEG or PNG, and a real worker decodes them."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from zlib import compress, crc32

import cv2
import grpc
import numpy as np
import pytest

from mqinfer.client import AsyncClient
from mqinfer.client.control import AsyncControl
from mqinfer.cloud_worker.serving.worker import Worker
from mqinfer.gateway.core import Core
from mqinfer.gateway.errors import status_of
from mqinfer.protocol.datatypes import Array
from mqinfer.protocol.errors import MqinferError
from mqinfer.protocol.topics import Topics
from tests.gateway import grpc_front, rest_front, tfs_front
from tests.gateway.conftest import OpenCore
from tests.patience import PATIENT

CONTRACT = 'max_batch_size = 4\nimage = { input = "x", layout = "NCHW", scale = 1 }\n'
SIDE = 8


def pixels(height: int, width: int, channels: int = 3, dtype: str = "uint8") -> Array:
    """Return a picture of noise."""
    shape = (height, width) if channels == 1 else (height, width, channels)
    return np.random.default_rng(7).integers(0, np.iinfo(dtype).max, shape, dtype)


def file(array: Any, kind: str = ".png") -> bytes:
    """Return a picture as a file."""
    return bytes(cv2.imencode(kind, array)[1])


def strings(*files: bytes) -> Array:
    """Return files as a tensor of strings."""
    array = np.empty(len(files), np.object_)
    array[:] = files
    return array


PICTURE = file(pixels(10, 20), ".jpg")
WIDE = file(pixels(6, 90))
OTHER = file(pixels(30, 5, 1))
PNG = WIDE[:8]


@pytest.fixture
def open_core(
    broker_url: str, unique: Callable[[str], str], serve: Callable[..., Worker], write_echo: Callable[..., Path]
) -> OpenCore:
    """Open a core before workers of a model that takes pictures and returns what it sees, and of one for any size."""
    topics = Topics(unique("root"))
    repository = write_echo("echo", ("x", "FP32", [-1, 3, SIDE, SIDE]), config=CONTRACT)
    write_echo("any_size", ("x", "FP32", [-1, 3, -1, -1]), config=CONTRACT)
    for model in ("echo", "any_size"):
        serve(broker_url, repository, model=model, topics=topics)

    @asynccontextmanager
    async def opened(**options: Any) -> AsyncIterator[Core]:
        async with AsyncClient(broker_url, root=topics.root, options=replace(PATIENT, shed=True)) as client:
            core = Core(client, AsyncControl(client), **options)
            await core.start()
            for model in ("echo", "any_size"):
                assert await client.connection.registry.until(partial(core.model_ready, model), 60)
            yield core

    return opened


async def expected(core: Core, *files: bytes) -> Any:
    """Return what the model sees of pictures that come over MQTT."""
    found: list[Any] = [await core.client.infer_picture("echo", each) for each in files]
    return np.concatenate([each.result.outputs["x"] for each in found])


async def test_a_picture_over_grpc(open_core: OpenCore) -> None:
    """One picture, and several of unequal size: each is what the model sees of it over MQTT, in one call's answer."""
    async with open_core() as core, grpc_front.serving(core) as front:
        for files in ((PICTURE,), (PICTURE, WIDE, OTHER)):
            reply = await front.call("ModelInfer", model_name="echo", **grpc_front.tensors(x=strings(*files)))
            np.testing.assert_array_equal(grpc_front.read_outputs(reply)["x"], await expected(core, *files))
        assert core.inference.outcomes == {("echo", "ok"): 2}


async def test_a_picture_over_rest(open_core: OpenCore) -> None:
    """As binary data, in base64 in JSON as text or as an object, and as the body itself."""
    async with rest_front.serving(open_core) as front:
        wanted = await expected(front.core, PICTURE)
        text = b64encode(PICTURE).decode()
        for data in ([text], [{"b64": text}]):
            reply = await front.infer("echo", {"inputs": [rest_front.json_input("x", "BYTES", [1], data)]})
            assert reply.json["outputs"][0]["data"] == wanted.ravel().tolist()
        raw = len(PICTURE).to_bytes(4, "little") + PICTURE
        entry = {"name": "x", "datatype": "BYTES", "shape": [1, 1], "parameters": {"binary_data_size": len(raw)}}
        head = json.dumps({"inputs": [entry]}).encode()
        reply = await front.infer("echo", head + raw, Inference_Header_Content_Length=str(len(head)))
        assert reply.json["outputs"][0]["data"] == wanted.ravel().tolist()
        reply = await front.infer("echo", PICTURE, Content_Type="image/jpeg")
        assert reply.json["outputs"][0]["shape"] == [1, 3, SIDE, SIDE]
        assert reply.json["outputs"][0]["data"] == wanted.ravel().tolist()


async def test_a_picture_for_clients_of_tensorflow_serving(open_core: OpenCore) -> None:
    """By gRPC as strings, also as a scalar; by REST as objects of base64 in rows and columns."""
    async with tfs_front.serving(open_core) as front:
        both = await expected(front.core, PICTURE, WIDE)
        outputs, _ = await front.predict("echo", {"x": strings(PICTURE, WIDE)})
        np.testing.assert_array_equal(outputs["x"], both)
        outputs, _ = await front.predict("echo", {"x": strings(PICTURE).reshape(())})
        np.testing.assert_array_equal(outputs["x"], both[:1])
        items = [{"b64": b64encode(each).decode()} for each in (PICTURE, WIDE)]
        for body, key in (({"instances": items}, "predictions"), ({"inputs": items}, "outputs")):
            async with front.session.post(f"{front.url}/v1/models/echo:predict", json=body) as reply:
                np.testing.assert_allclose((await reply.json(content_type=None))[key], both, rtol=1e-6)


def chunk(kind: bytes, content: bytes) -> bytes:
    """Return a chunk of a PNG."""
    return len(content).to_bytes(4, "big") + kind + content + crc32(kind + content).to_bytes(4, "big")


def cmyk(side: int) -> bytes:
    """Return a JPEG of four colours, of a side that 8 divides: each block is as the one before, the first is grey."""
    tables = b"\xff\xdb\x00\x43\x00" + bytes([1] * 64)
    frame = (
        b"\xff\xc0\x00\x14\x08"
        + side.to_bytes(2, "big") * 2
        + b"\x04"
        + b"".join([bytes((n, 17, 0)) for n in range(4)])
    )
    codes = b"".join([b"\xff\xc4\x00\x14" + bytes((kind, 1)) + bytes(16) for kind in (0x00, 0x10)])
    scan = b"\xff\xda\x00\x0e\x04" + b"".join([bytes((n, 0)) for n in range(4)]) + b"\x00\x3f\x00"
    return b"\xff\xd8" + tables + frame + codes + scan + bytes(side * side // 64) + b"\xff\xd9"


BAD = {
    "truncated JPEG": PICTURE[: len(PICTURE) // 2],
    "truncated PNG": WIDE[:-20],
    "a header only": PICTURE[:8],
    "bomb": WIDE[:16] + (60_000).to_bytes(4, "big") * 2 + WIDE[24:],
    "text": b"no picture at all",
    "nothing": b"",
    "GIF": b"GIF89a" + bytes(40),
    "four colours, three declared": PICTURE.replace(b"\xff\xc0\x00\x11\x08", b"\xff\xc0\x00\x14\x08").replace(
        b"\x00\x14\x03", b"\x00\x14\x04"
    ),
    "12 bits": PICTURE.replace(b"\xff\xc0\x00\x11\x08", b"\xff\xc0\x00\x11\x0c"),
    "WebP": file(pixels(9, 9), ".webp"),
    "JPEG 2000": file(pixels(32, 32), ".jp2"),
    "animated PNG": WIDE[:33] + chunk(b"acTL", bytes(8)) + WIDE[33:],
}
GOOD = {
    "1 x 1": file(pixels(1, 1)),
    "grey": OTHER,
    "16 bits": file(pixels(9, 9, 3, "uint16")),
    "alpha": file(pixels(9, 7, 4)),
    "alpha, 16 bits": file(pixels(9, 7, 4, "uint16")),
    "grey with alpha": PNG
    + chunk(b"IHDR", bytes((0, 0, 0, 2, 0, 0, 0, 2, 8, 4, 0, 0, 0)))
    + chunk(b"IDAT", compress(bytes((0, 9, 200, 30, 40, 0, 99, 0, 255, 255))))
    + chunk(b"IEND", b""),
    "CMYK": cmyk(16),
    "EXIF rotation": PICTURE[:2]
    + b"\xff\xe1\x00\x22Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0\0\0\0\0"
    + PICTURE[2:],
}


async def answer(sent: Any) -> Any:
    """Return what came, or the error."""
    try:
        return await sent
    except MqinferError as error:
        return error


async def test_a_bad_picture_is_the_client_s_fault_as_over_mqtt(open_core: OpenCore) -> None:
    """Each is refused with 400, where MQTT refuses it too; odd ones that are none give what they give over MQTT."""
    async with rest_front.serving(open_core) as front:
        for name, data in (BAD | GOOD).items():
            over_mqtt = await answer(front.core.client.infer_picture("echo", data))
            reply = await front.infer("echo", data, Content_Type="image/jpeg")
            if name in BAD:
                assert isinstance(over_mqtt, MqinferError), name
                assert (reply.status, status_of(over_mqtt).http) == (400, 400), (name, reply.body, over_mqtt)
                told = str(over_mqtt).removeprefix(f"{len(data)} bytes: ").partition("; expected a JPEG or PNG")[0]
                assert told in reply.error
            else:
                assert not isinstance(over_mqtt, MqinferError), (name, over_mqtt)
                assert reply.json["outputs"][0]["data"] == over_mqtt.result.outputs["x"].ravel().tolist(), name
        assert (await front.infer("echo", PICTURE, Content_Type="image/jpeg")).status == 200


async def test_answers_that_fit_into_no_array(open_core: OpenCore) -> None:
    """Pictures whose answers differ in shape are refused in words, over each protocol; those that do not are joined."""
    async with open_core() as core:
        async with grpc_front.serving(core) as front:
            fields = grpc_front.tensors(x=strings(PICTURE, WIDE))
            with pytest.raises(grpc.aio.AioRpcError, match=r"'x' has the shape .* call once for each") as caught:
                await front.call("ModelInfer", model_name="any_size", **fields)
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            fields = grpc_front.tensors(x=strings(PICTURE, PICTURE))
            reply = await front.call("ModelInfer", model_name="any_size", **fields)
            assert grpc_front.read_outputs(reply)["x"].shape == (2, 3, 10, 20)
        assert core.inference.outcomes == {("any_size", "bad_tensor"): 1, ("any_size", "ok"): 1}


async def test_inputs_that_make_no_picture(open_core: OpenCore) -> None:
    """No string, too many, and an input that takes none."""
    async with rest_front.serving(open_core) as front:
        for shape, data, words in (
            ([0], [], "1 or more"),
            ([65], ["/9j/"] * 65, "at most 64"),
            ([1], ["/9j/4"], "picture 0"),
        ):
            reply = await front.infer("echo", {"inputs": [rest_front.json_input("x", "BYTES", shape, data)]})
            assert reply.status == 400
            assert words in reply.error

"""Pictures as files: callers of each protocol send the bytes of a JPEG or PNG, and a real worker decodes them."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
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


@pytest.fixture
def open_core(
    broker_url: str, unique: Callable[[str], str], serve: Callable[..., Worker], write_echo: Callable[..., Path]
) -> OpenCore:
    """Open a core before a worker whose model takes pictures and returns what the model sees."""
    topics = Topics(unique("root"))
    repository = write_echo("echo", ("x", "FP32", [-1, 3, SIDE, SIDE]), config=CONTRACT)
    serve(broker_url, repository, topics=topics)

    @asynccontextmanager
    async def opened(**options: Any) -> AsyncIterator[Core]:
        async with AsyncClient(broker_url, root=topics.root, options=replace(PATIENT, shed=True)) as client:
            core = Core(client, AsyncControl(client), **options)
            await core.start()
            assert await client.connection.registry.until(lambda: core.model_ready("echo"), 60)
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


BAD = {
    "truncated JPEG": PICTURE[: len(PICTURE) // 2],
    "truncated PNG": WIDE[:-20],
    "a header only": PICTURE[:8],
    "bomb": WIDE[:16] + (60_000).to_bytes(4, "big") * 2 + WIDE[24:],
    "text": b"no picture at all",
    "nothing": b"",
    "GIF": b"GIF89a" + bytes(40),
    "CMYK": PICTURE.replace(b"\xff\xc0\x00\x11\x08", b"\xff\xc0\x00\x14\x08").replace(b"\x00\x14\x03", b"\x00\x14\x04"),
    "12 bits": PICTURE.replace(b"\xff\xc0\x00\x11\x08", b"\xff\xc0\x00\x11\x0c"),
}
GOOD = {
    "1 x 1": file(pixels(1, 1)),
    "grey": OTHER,
    "16 bits": file(pixels(9, 9, 3, "uint16")),
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
                assert reply.error
            else:
                assert reply.json["outputs"][0]["data"] == over_mqtt.result.outputs["x"].ravel().tolist(), name
        assert (await front.infer("echo", PICTURE, Content_Type="image/jpeg")).status == 200


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

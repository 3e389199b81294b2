"""Pictures as files: callers of each protocol send the bytes of a JPEG or PNG, and a real worker decodes them."""

from __future__ import annotations

import asyncio
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
from mqinfer.codecs import encode_tensor, traits_of
from mqinfer.gateway.core import Core
from mqinfer.gateway.errors import status_of
from mqinfer.protocol.datatypes import Array
from mqinfer.protocol.errors import MqinferError
from mqinfer.protocol.topics import Topics
from mqinfer.protocol.types import EncodedTensor
from tests.gateway import grpc_front, rest_front, tfs_front
from tests.gateway.conftest import OpenCore, call_peer
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


MODELS = ("echo", "any_size", "finder")
FINDER = """max_batch_size = 4
classes = [{ name = "sky" }, { name = "car" }, { name = "road" }]
image = { input = "x", layout = "NCHW", scale = 1, resize = "letterbox" }
"""


def write_finder(folder: Path) -> None:
    """Write a model that finds two boxes in every picture, and the largest colour of each pixel."""
    from onnx import TensorProto, helper, numpy_helper

    boxes = np.array([[[1, 2, 5, 6], [0, 2, 8, 4]]], np.float32)
    fixed = {"all": boxes, "sure": np.array([[0.9, 0.5]], np.float32), "none": np.zeros(1, np.float32)}
    nodes = [
        helper.make_node("ReduceMean", ["x"], ["mean"], axes=[1, 2, 3], keepdims=0),
        helper.make_node("Mul", ["mean", "none"], ["zero"]),
        helper.make_node("Unsqueeze", ["zero", "axis"], ["zeros"]),
        helper.make_node("Add", ["zeros", "sure"], ["scores"]),
        helper.make_node("Unsqueeze", ["zeros", "last"], ["deep"]),
        helper.make_node("Add", ["deep", "all"], ["boxes"]),
        helper.make_node("ArgMax", ["x"], ["mask"], axis=1, keepdims=0),
        helper.make_node("ArgMax", ["boxes"], ["classes"], axis=2, keepdims=0),
    ]
    shapes = {"boxes": ["n", 2, 4], "scores": ["n", 2], "classes": ["n", 2], "mask": ["n", SIDE, SIDE]}
    outputs = [
        helper.make_tensor_value_info(
            name, TensorProto.FLOAT if name in {"boxes", "scores"} else TensorProto.INT64, shape
        )
        for name, shape in shapes.items()
    ]
    fixed |= {"axis": np.array([1]), "last": np.array([2])}
    given = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, SIDE, SIDE])]
    held = [numpy_helper.from_array(array, name) for name, array in fixed.items()]
    made = helper.make_model(
        helper.make_graph(nodes, "finder", given, outputs, held),
        opset_imports=[helper.make_opsetid("", 13)],
        ir_version=9,
    )
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.onnx").write_bytes(made.SerializeToString())
    (folder / "model.toml").write_text(FINDER)


@pytest.fixture
def open_core(
    broker_url: str, unique: Callable[[str], str], serve: Callable[..., Worker], write_echo: Callable[..., Path]
) -> OpenCore:
    """Open a core before workers of a model that takes pictures and returns what it sees, and of one for any size."""
    topics = Topics(unique("root"))
    repository = write_echo("echo", ("x", "FP32", [-1, 3, SIDE, SIDE]), config=CONTRACT)
    write_echo("any_size", ("x", "FP32", [-1, 3, -1, -1]), config=CONTRACT)
    write_finder(repository / "finder")
    for model in MODELS:
        serve(broker_url, repository, model=model, topics=topics)

    @asynccontextmanager
    async def opened(**options: Any) -> AsyncIterator[Core]:
        async with AsyncClient(broker_url, root=topics.root, options=replace(PATIENT, shed=True)) as client:
            core = Core(client, AsyncControl(client), **options)
            await core.start()
            for model in MODELS:
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


async def test_answers_in_the_picture_s_own_pixels(open_core: OpenCore) -> None:
    """A call may ask for boxes, with names, and the mask: they are those that clients over MQTT find."""
    async with open_core() as core, grpc_front.serving(core) as front, front_of(core) as rest:
        found: list[Any] = [await core.client.infer_picture("finder", each) for each in (PICTURE, WIDE)]
        for files in ((PICTURE,), (PICTURE, WIDE)):
            fields = grpc_front.tensors(x=strings(*files))
            reply = await front.call("ModelInfer", model_name="finder", parameters=typed({"answers": True}), **fields)
            outputs = grpc_front.read_outputs(reply)
            answers = [json.loads(each) for each in outputs["answers"]]
            assert len(answers) == len(files)
            for answer, wanted in zip(answers, found, strict=False):
                assert [answer["height"], answer["width"]] == list(wanted.mask.shape)
                boxes = [[round(side, 2) for side in each.box] for each in wanted.detections]
                assert [each["box"] for each in answer["detections"]] == boxes
                assert [each["class"] for each in answer["detections"]] == [each.name for each in wanted.detections]
                assert answer["class_shares"] == wanted.shares
            assert ("answers_mask" in outputs) == (len(files) == 1)
            assert outputs["boxes"].shape == (len(files), 2, 4)
        reply = await rest("POST", "/v2/models/finder/infer?answers=true", PICTURE)
        written = {each["name"]: each for each in reply.json["outputs"]}
        assert json.loads(written["answers"]["data"][0]) == answers[0]
        assert written["answers_mask"]["data"] == found[0].mask.ravel().tolist()
        fields = grpc_front.tensors(x=strings(PICTURE, WIDE))
        reply = await front.call("ModelInfer", model_name="any_size", parameters=typed({"answers": True}), **fields)
        assert list(grpc_front.read_outputs(reply)) == ["answers"]  # the arrays fit into none
        array = {"inputs": [rest_front.json_input("x", "FP32", [1, 3, SIDE, SIDE], [0] * 192)]}
        reply = await rest.infer("finder", array | {"parameters": {"answers": True}})
        assert (reply.status, "sent none" in reply.error) == (400, True)


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


MOSAIC = pixels(12, 16, 1)
PLAIN = pixels(12, 16)


def as_sent(array: Array, encoding: str, **parameters: Any) -> tuple[EncodedTensor, dict[str, Any]]:
    """Return an array as it travels, and what a caller states of it."""
    sent = encode_tensor("x", array[np.newaxis], encoding, parameters)
    return sent, {"encoding": sent.encoding, **sent.parameters}


ENCODED = {
    "jpeg": as_sent(PLAIN, "jpeg", image_encoding="rgb8"),
    "png of 16 bits": as_sent(pixels(9, 9, 3, "uint16"), "png", image_encoding="rgb16"),
    "lz4": as_sent(PLAIN, "lz4", image_encoding="rgb8"),
    "shuffle-lz4": as_sent(pixels(9, 9, 1, "uint16"), "shuffle-lz4", image_encoding="mono16", bit_depth=12),
    "bayer": as_sent(MOSAIC, "raw", image_encoding="bayer_rggb8", demosaic="edge-aware"),
    "bayer in png": as_sent(MOSAIC, "png", image_encoding="bayer_rggb8"),
    "h264": as_sent(pixels(32, 32), "h264", image_encoding="rgb8"),
}


def typed(parameters: dict[str, Any]) -> dict[str, Any]:
    """Return parameters as messages of gRPC."""
    return {
        name: {"bool_param" if type(value) is bool else "int64_param" if type(value) is int else "string_param": value}
        for name, value in parameters.items()
    }


async def test_encodings_that_travel_over_mqtt(open_core: OpenCore) -> None:
    """Each reaches the model as over MQTT: as bytes of a declared array, and as a string with parameters."""
    async with open_core() as core, grpc_front.serving(core) as front, front_of(core) as rest:
        for name, (sent, stated) in ENCODED.items():
            wanted = (await core.client.infer("echo", {"x": sent})).outputs["x"]
            declared: dict[str, Any] = {"name": "x", "datatype": str(sent.datatype), "shape": sent.shape}
            given: dict[str, Any] = {
                "inputs": [declared | {"parameters": typed(stated)}],
                "raw_input_contents": [bytes(sent.data)],
            }
            reply = await front.call("ModelInfer", model_name="echo", **given)
            np.testing.assert_array_equal(grpc_front.read_outputs(reply)["x"], wanted, name)
            head = json.dumps({"inputs": [declared | {"parameters": stated | {"binary_data_size": len(sent.data)}}]})
            answered = await rest.infer(
                "echo", head.encode() + sent.data, Inference_Header_Content_Length=str(len(head))
            )
            assert answered.json["outputs"][0]["data"] == wanted.ravel().tolist(), name
            shape = ",".join(map(str, sent.shape))
            parameters = typed(stated | {"shape": shape, "datatype": str(sent.datatype)})
            reply = await front.call(
                "ModelInfer",
                model_name="echo",
                parameters=parameters,
                **grpc_front.tensors(x=strings(bytes(sent.data))),
            )
            np.testing.assert_array_equal(grpc_front.read_outputs(reply)["x"], wanted, name)


@asynccontextmanager
async def front_of(core: Core) -> AsyncIterator[rest_front.Front]:
    """Serve the REST front before a core that is open."""

    @asynccontextmanager
    async def opened(**_: Any) -> AsyncIterator[Core]:
        yield core

    async with rest_front.serving(opened) as front:
        yield front


async def test_the_model_s_own_tensor_in_an_encoding(open_core: OpenCore) -> None:
    """What is no picture travels compressed, too, and `encoding` alone names the mosaic of a sensor."""
    array = np.random.default_rng(1).random((2, 3, SIDE, SIDE), np.float32)
    sent = encode_tensor("x", array, "shuffle-lz4")
    mosaic = encode_tensor("x", MOSAIC[np.newaxis], "raw", {"image_encoding": "bayer_gbrg8"})
    async with open_core() as core, grpc_front.serving(core) as front:
        for tensor, encoding, expected_array in (
            (sent, "shuffle-lz4", array),
            (mosaic, "bayer_gbrg8", (await core.client.infer("echo", {"x": mosaic})).outputs["x"]),
        ):
            entry: dict[str, Any] = {"name": "x", "datatype": str(tensor.datatype), "shape": tensor.shape}
            given: dict[str, Any] = {"inputs": [entry | {"parameters": typed({"encoding": encoding})}]}
            reply = await front.call("ModelInfer", model_name="echo", **given, raw_input_contents=[bytes(tensor.data)])
            np.testing.assert_array_equal(grpc_front.read_outputs(reply)["x"], expected_array)


async def test_bytes_that_are_not_what_the_parameters_say(open_core: OpenCore) -> None:
    """Each is the client's fault, over both ways the same, with words."""
    sent, stated = ENCODED["lz4"]
    bomb = {"shape": "1,30000,30000,3"}
    async with open_core() as core, front_of(core) as front:
        for change, words in (
            ({"encoding": "jpeg"}, "neither JPEG nor PNG"),
            ({"encoding": "nope"}, "nope"),
            ({"encoding": "h264"}, ""),
            ({"shape": "1,2,2,3"}, ""),
            (bomb, "at most"),
            ({"shape": "1,-2,2,3"}, "expected the parameters 'shape'"),
            ({"datatype": "FP33"}, "FP33"),
            ({"image_encoding": "rgb9"}, "rgb9"),
            ({"bit_depth": 99, "image_encoding": "bayer_rggb8"}, ""),
            ({"answers": 1}, "true or false"),
            ({"stream": "a/b"}, "without '/'"),
        ):
            entry = {"name": "x", "datatype": "BYTES", "shape": [1], "data": [{"b64": b64encode(sent.data).decode()}]}
            parameters = {**stated, "shape": "1,12,16,3", **change}
            reply = await front.infer("echo", {"inputs": [entry], "parameters": parameters})
            assert reply.status == 400, (change, reply.body)
            assert words in reply.error
        reply = await front.infer(
            "echo", {"inputs": [entry | {"data": ["a", "b"], "shape": [2]}], "parameters": stated}
        )
        assert (reply.status, "2 strings in lz4" in reply.error) == (400, True)


async def test_a_stream_of_pictures_that_need_those_before(open_core: OpenCore) -> None:
    """A chain of H.264 goes on by the name of its stream; one that lacks its beginning is told so, as over MQTT."""
    stream = traits_of("h264").stream
    assert stream is not None
    encoder = stream.encoder(None)
    async with open_core() as core, grpc_front.serving(core) as front:

        async def send(tensor: EncodedTensor, name: str) -> Any:
            entry: dict[str, Any] = {"name": "x", "datatype": "UINT8", "shape": tensor.shape}
            entry["parameters"] = typed({"encoding": "h264", **tensor.parameters})
            given: dict[str, Any] = {
                "inputs": [entry],
                "raw_input_contents": [bytes(tensor.data)],
                "parameters": typed({"stream": name}),
            }
            reply = await front.call("ModelInfer", model_name="echo", **given)
            return grpc_front.read_outputs(reply)["x"]

        positions = []
        for number in range(4):
            picture = np.full((1, 32, 32, 3), 40 * number, np.uint8)
            tensor, _ = encoder.encode("x", picture, {"image_encoding": "rgb8"}, whole=False)
            np.testing.assert_allclose(await send(tensor, "camera 1"), 40 * number, atol=6)
            encoder.settled(tensor, "w")
            positions.append(tensor.parameters["position"])
        assert positions == [0, 1, 2, 3]
        with pytest.raises(grpc.aio.AioRpcError, match="send it as a key frame") as caught:
            await send(tensor, "camera 2")
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


TRITON = """
    import json, queue, sys
    import numpy as np
    import tritonclient.grpc as by_grpc
    import tritonclient.http as by_http

    def given(module, *data):
        tensor = module.InferInput("x", [len(data)], "BYTES")
        tensor.set_data_from_numpy(np.array(data, object))
        return [tensor]

    jpeg, coded, answers = open(sys.argv[3], "rb").read(), open(sys.argv[4], "rb").read(), queue.Queue()
    http, grpc = by_http.InferenceServerClient(sys.argv[1]), by_grpc.InferenceServerClient(sys.argv[2])
    wanted = http.infer("echo", given(by_http, jpeg)).as_numpy("x")
    how = {"encoding": "lz4", "image_encoding": "rgb8", "shape": "1,12,16,3"}
    for module, client in ((by_http, http), (by_grpc, grpc)):
        assert (client.infer("echo", given(module, jpeg)).as_numpy("x") == wanted).all()
        assert client.infer("echo", given(module, coded), parameters=how).as_numpy("x").shape == wanted.shape
        found = client.infer("finder", given(module, jpeg, jpeg), parameters={"answers": True}).as_numpy("answers")
        assert [each["class"] for each in json.loads(found[1])["detections"]], found
    grpc.start_stream(lambda result, error: answers.put((result, error)))
    for number in range(8):
        grpc.async_stream_infer("echo", given(by_grpc, jpeg), request_id=str(number))
    grpc.async_stream_infer("echo", given(by_grpc, b"no picture"), request_id="bad")
    come = [answers.get(timeout=60) for _ in range(9)]
    grpc.stop_stream()
    assert [error for _, error in come if error][0].message().startswith("inference input 'x', picture 0: "), come
    assert all((result.as_numpy("x") == wanted).all() for result, _ in come if result is not None)
    assert len({result.get_response().id for result, _ in come if result is not None}) == 8
    grpc.close()
    http.close()
    print("PASS")
"""


async def test_published_clients(open_core: OpenCore, peer_python: Callable[[str], Path], tmp_path: Path) -> None:
    """Triton's clients send files and encoded bytes by what they offer, also in streams; curl needs no header."""
    picture, coded = tmp_path / "a.jpg", tmp_path / "a.lz4"
    picture.write_bytes(PICTURE)
    coded.write_bytes(ENCODED["lz4"][0].data)
    async with open_core() as core, front_of(core) as rest, grpc_front.serving(core) as front:
        address = rest.url.removeprefix("http://")
        await call_peer(peer_python("triton"), TRITON, address, front.address, str(picture), str(coded))
        seen = (await expected(core, PICTURE)).ravel().tolist()
        for header in (["-H", "Content-Type: image/jpeg"], []):
            command = (
                "curl",
                "-sf",
                "--max-time",
                "60",
                *header,
                "--data-binary",
                f"@{picture}",
                f"{rest.url}/v2/models/echo/infer",
            )
            curl = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
            output, _ = await curl.communicate()
            assert json.loads(output)["outputs"][0]["data"] == seen

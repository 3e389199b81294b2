"""Pictures that the JavaScript client sends, in node and in a browser: it finds what Python's client finds."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from mqinfer import Client
from mqinfer.broker import make_link
from mqinfer.broker.link import Message
from mqinfer.broker.mosquitto.configuration import render
from mqinfer.broker.mosquitto.server import MosquittoServer
from mqinfer.client.result import InferResult, PictureResult
from mqinfer.images.placement import Placement, Resize
from mqinfer.protocol.card import ClassInfo, ImageContract
from mqinfer.protocol.datatypes import datatype_of
from mqinfer.protocol.envelope import decode_request
from mqinfer.protocol.header import OUTPUT_ENCODING
from mqinfer.protocol.topics import Topics
from mqinfer.protocol.types import Outcome
from tests.clients.live import output
from tests.clients.node import compiled, node, program
from tests.clients.pages import ROOT, Pages, chromium_page
from tests.ports import free_port
from tests.system.test_letterbox import blob_detector, frame

pytestmark = pytest.mark.slow
CASES = 300
README = ROOT / "clients" / "js" / "README.md"
STEREO = '[[image]]\ninput = "right"\n[[image]]\ninput = "left"\n'
PIXEL = 1.0
"""A box may differ by so much where a browser decoded the JPEG that a worker decodes else."""


@pytest.fixture(scope="module")
def programs() -> Iterator[Path]:
    """Folder of the compiled programs."""
    with compiled() as folder:
        yield folder


def described(result: PictureResult) -> dict[str, Any]:
    """Describe what was found as `clients/js/test/live/described.ts` does."""
    mask = result.mask
    detections = [
        {"box": list(each.box), "score": each.score, "name": each.name}
        | ({} if each.number is None else {"number": each.number})
        for each in result.detections
    ]
    top = [{"name": each.name, "number": each.number, "score": each.score} for each in result.top]
    return {
        "detections": detections,
        "mask": None if mask is None else [mask.shape[1], mask.shape[0], mask.tobytes().hex()],
        "top": top,
    }


def outputs_of(random: np.random.Generator, picture: tuple[int, int]) -> dict[str, np.ndarray[Any, Any]]:
    """Return outputs of one of the kinds that are found, some of them damaged."""
    count = int(random.integers(0, 7))
    corners, sides = random.normal(20, 20, (count, 2)), random.normal(12, 8, (count, 2))
    kinds: list[dict[str, np.ndarray[Any, Any]]] = [
        {
            "boxes": np.hstack([corners, corners + sides]).astype(random.choice(["f2", "f4", "f8", "i4"])),
            "scores": np.round(random.normal(0.5, 0.2, count), 1).astype(random.choice(["f2", "f4", "f8"])),
        },
        {"mask": random.integers(-1 if random.random() < 0.2 else 0, 4, picture[::-1])},
        {"mask": random.integers(0, 300, (1, 7, 5, 1)), "other": random.integers(0, 9, (4, 6))},
        {"scores": random.normal(0, 1, (1, 2)).astype("f4"), "text": np.array([b"a"], object)},
        {"logits": np.round(random.normal(0, 1, (1, 9, 1, 1)), 0)},
    ]
    found = kinds[random.integers(len(kinds))]
    if "boxes" in found:
        if random.random() < 0.5:
            found["classes"] = random.integers(-1, 4, count).astype(random.choice(["i8", "f4", "?"]))
        if random.random() < 0.3:
            found["count"] = np.array([random.integers(-1, 9)], random.choice(["i4", "f4"]))
        if random.random() < 0.5:
            found = {name: each[None] for name, each in found.items()} | {"masks": np.ones((count, 4, 4), np.uint8)}
    for each in found.values():
        if each.dtype.kind == "f" and each.size and random.random() < 0.3:
            each.flat[random.integers(each.size)] = random.choice([np.nan, np.inf])
    return found


def one_case(random: np.random.Generator) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a case as the program reads it, and what Python finds in it."""
    size = int(random.integers(1, 60)), int(random.integers(1, 60))
    width, height = (None if random.random() < 0.2 else int(random.integers(1, 50)) for _ in range(2))
    contract = ImageContract("x", width, height, resize=list(Resize)[random.integers(len(Resize))])
    placement = Placement.in_model(contract, *size)
    classes = tuple(ClassInfo(name, (0, 0, 0)) for name in ("road", "sky", "<b>", "__proto__")[: random.integers(5)])
    outputs = outputs_of(random, placement.picture)
    described_outputs = [
        {
            "name": name,
            "datatype": datatype_of(each.dtype).value,
            "shape": each.shape,
            "bytes": base64.b64encode(b"\1\0\0\0a" if each.dtype.kind == "O" else each.tobytes()).decode(),
        }
        for name, each in outputs.items()
    ]
    case = {
        "contract": {key: each for key, each in (("width", width), ("height", height)) if each}
        | {"resize": str(contract.resize)},
        "size": size,
        "outputs": described_outputs,
        "classes": [{"name": each.name} for each in classes],
    }
    return case, described(PictureResult(InferResult("a", Outcome.OK, "m", outputs=outputs), placement, classes))


def test_the_rules_are_those_of_python(programs: Path, tmp_path: Path) -> None:
    """Boxes, masks and best classes of 300 random results are equal, to the last bit."""
    random = np.random.default_rng(11)
    cases, expected = zip(*(one_case(random) for _ in range(CASES)), strict=True)
    (tmp_path / "cases.json").write_text(json.dumps(cases))
    found = json.loads(output(*node(programs / "test" / "live" / "placed.js", str(tmp_path / "cases.json"))))
    for case, one, other in zip(cases, found, expected, strict=True):
        assert one == other, case
    assert min(sum(bool(each[key]) for each in expected) for key in ("detections", "mask", "top")) > 15


def files(folder: Path) -> tuple[Path, Path, Path]:
    """Write the blobs as PNG, as JPEG, and as a PNG with transparency."""
    png, jpeg, alpha = folder / "a.png", folder / "a.jpg", folder / "alpha.png"
    pixels = cv2.cvtColor(frame(), cv2.COLOR_RGB2BGR)
    for file in (png, jpeg):
        cv2.imwrite(str(file), pixels)
    cv2.imwrite(str(alpha), cv2.cvtColor(pixels, cv2.COLOR_BGR2BGRA))
    return png, jpeg, alpha


@pytest.mark.broker
def test_pictures_in_node(
    programs: Path,
    broker_url: str,
    unique: Callable[[str], str],
    write_echo: Callable[..., Path],
    serve: Callable[..., Any],
    tmp_path: Path,
) -> None:
    """A path, bytes, a Blob, pixels and a file with transparency are answered as Python's client is."""
    topics = Topics(unique("test"))
    serve(broker_url, blob_detector(tmp_path / "models"), "blobs", topics=topics)
    inputs = ("left", "UINT8", [-1, 4, 4, 3]), ("right", "UINT8", [-1, 4, 4, 3])
    serve(broker_url, write_echo("stereo", *inputs, config=STEREO), "stereo", topics=topics)
    serve(broker_url, write_echo("plain"), "plain", topics=topics)
    png, jpeg, alpha = files(tmp_path)
    rgba = cv2.cvtColor(frame(), cv2.COLOR_RGB2RGBA)
    (tmp_path / "rgba.json").write_text(
        json.dumps({"width": rgba.shape[1], "height": rgba.shape[0], "data": base64.b64encode(rgba.tobytes()).decode()})
    )
    arguments = [broker_url, topics.root, str(png), str(jpeg), str(tmp_path / "rgba.json"), str(alpha)]
    requests: list[Message] = []
    with closing(make_link(broker_url, client_id=unique("watcher"))) as link:
        link.open()
        link.subscribe(topics.lane.filter(model="blobs", client="asker"), requests.append)
        found = json.loads(output(*node(programs / "test" / "live" / "pictures.js", *arguments)))
    assert {decode_request(message.payload).parameters[OUTPUT_ENCODING] for message in requests} == {"lz4"}
    blocks = re.findall(r"^```js\n(.*?)^```$", README.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    (shown,) = (block for block in blocks if "a.jpg" in block)
    written = shown.replace('1883")', f'1883", {{ root: "{topics.root}" }})').replace(
        "mqtt://127.0.0.1:1883", broker_url
    )
    placed = written.replace("drive_segmentation_onnx", "blobs").replace("a.jpg", str(png))
    printed = output(*node(program(programs, "shown.mjs", placed)))
    assert printed.splitlines()[1:] == ["red 1 [ 64, 48, 96, 80 ]", "green 1 [ 240, 128, 272, 160 ]"]
    with Client(broker_url, root=topics.root) as client:
        expected = described(client.infer_picture("blobs", png, timeout=60))
        assert found["jpeg"] == described(client.infer_picture("blobs", jpeg, timeout=60))
        assert found["stereo"] == described(client.infer_picture("stereo", [png, jpeg], timeout=60))
    assert {each["name"] for each in expected["detections"]} == {"red", "green"}
    for form in ("path", "url", "bytes", "buffer", "blob", "pixels", "alpha"):
        assert found[form] == expected, form
    assert "ENOENT" in found["wrong"].pop("path")
    wrong = {name: f"{each['code']}: {each['message']}" for name, each in found["wrong"].items()}
    for name, words in {
        "text": 'bad_encoding: tensor "images": 4 bytes are neither JPEG nor PNG',
        "size": "bad_tensor: expected a JPEG or PNG, pixels",
        "nothing": "bad_tensor: expected a JPEG or PNG, pixels",
        "several": 'bad_tensor: 2 pictures: model "blobs" takes 1 in one request: images',
        "few": 'bad_tensor: 1 pictures: model "stereo" takes 2 in one request: right, left',
        "none": 'bad_tensor: model "plain" takes no pictures; its inputs are x FP32[-1, 4]; if one has',
        "nobody": 'model_not_found: no worker has published a card of model "nobody" in 0.2 s',
    }.items():
        assert wrong[name].startswith(words)
    assert (found["closed"]["code"], found["after"]["code"]) == ("cancelled", "cancelled")


@pytest.mark.broker
def test_pictures_in_a_browser(
    programs: Path, unique: Callable[[str], str], serve: Callable[..., Any], tmp_path: Path
) -> None:
    """A file travels as it is and is answered as Python's; what the browser decoded within a pixel of that."""
    topics, port = Topics(unique("test")), free_port()
    png, jpeg, alpha = files(tmp_path)
    with ExitStack() as stack:
        broker = stack.enter_context(MosquittoServer(configuration=partial(render, websockets_port=port)))
        serve(broker.url, blob_detector(tmp_path / "models"), "blobs", topics=topics)
        url = f"ws://127.0.0.1:{port}"
        extra = {"a.jpg": jpeg.read_bytes(), "alpha.png": alpha.read_bytes()}
        pages = stack.enter_context(Pages({"/dist/": programs}, extra, connect=url))
        page = stack.enter_context(chromium_page(pages.address))
        call = f"all.pictures('{url}', '{topics.root}', '/extra/a.jpg', '/extra/alpha.png')"
        found = page.evaluate(f"() => import('/dist/test/live/in_page.js').then((all) => {call})")
        with Client(broker.url, root=topics.root) as client:
            expected, exact = (described(client.infer_picture("blobs", each, timeout=60)) for each in (jpeg, png))
    assert (found["file"], found["bytes"], found["alpha"]) == (expected, expected, exact)
    for form, one in found["drawn"].items():
        assert [each["name"] for each in one["detections"]] == [each["name"] for each in expected["detections"]], form
        boxes, others = ([each["box"] for each in answer["detections"]] for answer in (one, expected))
        np.testing.assert_allclose(boxes, others, atol=PIXEL)
    assert found["path"] == "a.jpg: a page reads no paths; give the File, or the Blob of a response"

"""Pictures that a client sends: files, bytes and arrays, answered in their own pixels with the names of classes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from mqinfer.client import AsyncClient, Client, PictureResult
from mqinfer.cloud_worker.serving.worker import Worker
from mqinfer.images.sending import offer_contract
from mqinfer.protocol.card import ModelCard
from mqinfer.protocol.datatypes import Datatype
from mqinfer.protocol.errors import BadTensor, ModelNotFound
from mqinfer.protocol.types import TensorSpec
from tests.commands import run_main
from tests.system.test_letterbox import GREEN, RED, blob_detector, frame

Serve = Callable[..., Worker]
WriteEcho = Callable[..., Path]
MakeClient = Callable[..., Client]
NAMES = "".join(f'[[classes]]\nname = "{name}"\ncolour = [{red}, 0, 0]\n' for name, red in (("road", 90), ("sky", 9)))
LETTERBOX = f'[image]\nresize = "letterbox"\n{NAMES}'
GREY = np.repeat(np.repeat(np.array([[0, 1], [1, 1]], np.uint8), 40, 0), 80, 1)
"""A picture whose samples are classes, twice as wide as the model's."""


def png(folder: Path, pixels: np.ndarray[Any, Any]) -> Path:
    """Write a picture."""
    order = cv2.cvtColor(pixels, cv2.COLOR_RGB2BGR) if pixels.ndim == 3 else pixels
    cv2.imwrite(str(folder / "a.png"), order)
    return folder / "a.png"


def found(result: PictureResult) -> dict[str, list[int]]:
    """Return the box of each class, rounded."""
    return {each.name: [round(side) for side in each.box] for each in result.detections}


@pytest.fixture
def blobs(url: str, serve: Serve, tmp_path: Path) -> str:
    """URL of a broker where a detector with letterbox is served."""
    serve(url, blob_detector(tmp_path / "models"), "blobs")
    return url


def test_boxes_of_a_path_bytes_and_an_array(blobs: str, make_client: MakeClient, tmp_path: Path) -> None:
    """Each is in the pixels of the picture, with the name of its class."""
    client, file, large = make_client(blobs), png(tmp_path, frame()), np.repeat(np.repeat(frame(), 2, 0), 2, 1)
    for picture in (file, str(file), file.read_bytes(), frame()):
        assert found(client.infer_picture("blobs", picture, timeout=20)) == {"red": RED, "green": GREEN}
    result = client.infer_picture("blobs", large, timeout=20)
    assert found(result) == {name: [2 * side for side in box] for name, box in (("red", RED), ("green", GREEN))}
    assert result.result.bytes_sent < 100_000
    assert (result.mask, result.shares, result.top, result.depth) == (None, {}, (), None)


def test_a_mask_has_the_size_of_the_picture(
    url: str, serve: Serve, write_echo: WriteEcho, make_client: MakeClient, tmp_path: Path
) -> None:
    """And shares by name; the margins of a letterbox belong to neither."""
    serve(url, write_echo("grey", ("m", "UINT8", [-1, 80, 80, 1]), config=LETTERBOX), "grey")
    client = make_client(url)
    for picture in (GREY, png(tmp_path, GREY)):
        result = client.infer_picture("grey", picture, timeout=20)
        assert result.mask is not None
        np.testing.assert_array_equal(result.mask, GREY)
        assert result.shares == {"road": 0.25, "sky": 0.75}


def test_scores_and_numbers_of_each_pixel(
    url: str, serve: Serve, write_echo: WriteEcho, make_client: MakeClient
) -> None:
    """The best classes by name; an array of floats in the size of the picture."""
    serve(url, write_echo("deep", ("d", "FP32", [-1, 8, 16, 1]), config='[image]\ncolour = "mono"\n'), "deep")
    result = make_client(url).infer_picture("deep", np.repeat(np.arange(64, dtype=np.uint8)[None], 32, 0), timeout=20)
    assert result.depth is not None
    assert result.depth.shape == (32, 64)
    assert result.depth[0, [0, 63]].tolist() == [2.0, 62.0]


def test_asyncio_and_several_pictures(url: str, serve: Serve, write_echo: WriteEcho) -> None:
    """One for each `[[image]]`, in their order; another number is refused with their names."""
    tables = '[[image]]\ninput = "right"\n[[image]]\ninput = "left"\n'
    inputs = ("left", "UINT8", [-1, 4, 4, 3]), ("right", "UINT8", [-1, 4, 4, 3])
    serve(url, write_echo("stereo", *inputs, config=tables), "stereo")
    one, other = np.full((4, 4, 3), 7, np.uint8), np.full((8, 8, 3), 9, np.uint8)

    async def ask() -> None:
        async with AsyncClient(url) as client:
            result = await client.infer_picture("stereo", [one, other], timeout=20)
            assert {name: int(each.mean()) for name, each in result.result.outputs.items()} == {"right": 7, "left": 9}
            with pytest.raises(BadTensor, match="1 pictures: model 'stereo' takes 2 in one request: right, left"):
                await client.infer_picture("stereo", one)

    asyncio.run(ask())


def test_what_is_no_picture_is_refused(blobs: str, make_client: MakeClient, tmp_path: Path) -> None:
    """The error names what was given, and what is expected."""
    client = make_client(blobs)
    (tmp_path / "a.txt").write_text("text")
    wrong: list[tuple[Any, type[Exception], str]] = [
        (tmp_path / "a.txt", BadTensor, r"a\.txt: .*expected a JPEG or PNG"),
        (b"text", BadTensor, "4 bytes: .*expected a JPEG or PNG"),
        (
            np.zeros((4, 4, 3), np.float32),
            BadTensor,
            r"a picture of float32 \[4, 4, 3\]: expected \[height, width, 3\]",
        ),
        (np.zeros((1, 4, 4, 3), np.uint8), BadTensor, r"a picture of uint8 \[1, 4, 4, 3\]"),
        (np.zeros((0, 4, 3), np.uint8), BadTensor, r"\[0, 4, 3\]"),
        (None, BadTensor, "a picture of type NoneType: expected a path, the bytes of a JPEG or PNG, or an array"),
        (7, BadTensor, "a picture of type int"),
        (tmp_path / "none.png", FileNotFoundError, "none.png"),
    ]
    for picture, error, words in wrong:
        with pytest.raises(error, match=words):
            client.infer_picture("blobs", picture, timeout=20)
    with pytest.raises(ModelNotFound, match="blobs"):
        client.infer_picture("blob", frame(), timeout=0.2)


def card_of(datatype: str, shape: tuple[int, ...], platform: str = "onnx_onnxv1") -> ModelCard:
    """Return a card without an image contract."""
    return ModelCard(name="det", platform=platform, inputs=(TensorSpec("x", Datatype(datatype), shape),))


@pytest.mark.parametrize(
    ("card", "layout"),
    [
        (card_of("FP16", (1, 3, 640, 640)), "NCHW"),
        (card_of("FP32", (-1, -1, -1, -1)), "NCHW"),
        (card_of("FP32", (-1, -1, -1, -1), "tensorflow_savedmodel"), "NHWC"),
        (card_of("FP16", (-1, 480, 640, 3)), "NHWC"),
        (card_of("FP32", (480, 640, 3)), "NHWC"),
    ],
)
def test_a_model_without_a_contract_is_offered_one(
    card: ModelCard, layout: str, url: str, serve: Serve, write_echo: WriteEcho
) -> None:
    """The line, put into its `model.toml`, makes it take pictures."""
    offered = offer_contract(card)
    assert offered.startswith("model 'det' takes no pictures; its inputs are x FP")
    line = offered.partition("with the line: ")[2].partition(", or 0.0039")[0]
    assert f'layout = "{layout}"' in line
    spec = card.inputs[0]
    worker = serve(url, write_echo("det", ("x", str(spec.datatype), list(spec.shape)), config=line + "\n"), "det")
    assert worker.card.image is not None
    assert worker.card.image.layout == layout


def test_nothing_is_offered_for_another_shape() -> None:
    """Neither sequences, nor text, nor 13 channels."""
    for card in (card_of("FP32", (1, 128)), card_of("BYTES", (1, 3, 4, 4)), card_of("FP32", (1, 13, 64, 64))):
        assert "model.toml" not in offer_contract(card)


def test_the_command_draws_the_answer(blobs: str, tmp_path: Path, capfd: Any) -> None:
    """The picture goes to the default input; boxes are printed by name, and drawn."""
    file, drawn = png(tmp_path, frame()), tmp_path / "out.png"
    assert run_main("infer", "blobs", "--broker", blobs, "--input", file, "--picture", drawn) == 0
    printed = json.loads(capfd.readouterr().out)
    assert sorted((each["class"], each["box"]) for each in printed["detections"]) == [("green", GREEN), ("red", RED)]
    assert printed["written"] == str(drawn)
    picture = np.asarray(cv2.imread(str(drawn), cv2.IMREAD_COLOR_RGB))
    assert picture.shape[1] >= 320
    assert not np.array_equal(picture[:192, :320], frame())


def test_the_command_prints_shares_and_what_is_missing(
    url: str, serve: Serve, write_echo: WriteEcho, tmp_path: Path, capfd: Any
) -> None:
    """Of a mask in the picture's pixels; a model without a contract is offered one."""
    serve(url, write_echo("grey", ("m", "UINT8", [-1, 80, 80, 1]), config=LETTERBOX), "grey")
    assert run_main("infer", "grey", "--broker", url, "--input", png(tmp_path, GREY)) == 0
    assert json.loads(capfd.readouterr().out)["outputs"]["m"]["class_shares"] == {"road": 0.25, "sky": 0.75}
    serve(url, write_echo("half", ("x", "FP16", [-1, 8, 8, 3])), "half")
    assert run_main("infer", "half", "--broker", url, "--input", tmp_path / "a.png") == 2
    assert 'image = { input = "x", layout = "NHWC", scale = 1 }' in capfd.readouterr().err
    np.save(tmp_path / "x.npy", np.ones((1, 8, 8, 3), np.float16))
    assert run_main("infer", "half", "--broker", url, "--input", tmp_path / "x.npy") == 0

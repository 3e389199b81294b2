from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import jsonschema
import numpy as np
import pytest

from mqinfer.bags.frame import Frame
from mqinfer.client.result import InferResult
from mqinfer.codecs import encode_tensor
from mqinfer.edge_agent.frames.times import EdgeStage
from mqinfer.edge_agent.frames.view import FrameView
from mqinfer.edge_agent.preparing.preparer import Preparer
from mqinfer.edge_agent.sinks.drawing.overlay import encode_mask, palette
from mqinfer.edge_agent.sinks.foxglove.layout import LAYOUT_FILE, make_layout
from mqinfer.edge_agent.sinks.foxglove.mcap_sink import McapSink
from mqinfer.edge_agent.sinks.foxglove.messages import result_schema, schema
from mqinfer.images.picture import CompressedImage, RawImage
from mqinfer.images.placement import Placement, Resize
from mqinfer.protocol.card import CardParameters, ClassInfo, ImageContract, ModelCard
from mqinfer.protocol.datatypes import Array, Datatype
from mqinfer.protocol.types import ErrorInfo, Outcome, TensorSpec, Timings
from tests.mcap_files import decoded, messages

CLASSES = (ClassInfo("road", (128, 64, 128)), ClassInfo('a "wide" sign', (70, 130, 180)))
OUTPUTS = TensorSpec("mask", Datatype.UINT8, (1, 24, 32)), TensorSpec("scores", Datatype.FP32, (1, 3))
CARD = ModelCard(
    name="road",
    versions=("3",),
    platform="onnx_onnxv1",
    outputs=OUTPUTS,
    parameters=CardParameters(classes=CLASSES),
)
WIDTH, HEIGHT = 96, 64
PIXELS = cv2.resize(np.random.default_rng(5).integers(0, 255, (8, 12, 3), np.uint8), (WIDTH, HEIGHT)).astype(np.uint8)
RAW = RawImage("rgb8", HEIGHT, WIDTH, 3 * WIDTH, is_bigendian=False, data=PIXELS.tobytes())
JPEG = bytes(encode_tensor("x", PIXELS, "jpeg:95").data)
EXIF = JPEG[:2] + b"\xff\xe1\x00\x08Exif\0\0" + JPEG[2:]
BOXES: dict[str, Array] = {
    "boxes": np.array([[1, 2, 9, 8], [3, 3, 5, 5]], np.float32),
    "scores": np.array([0.9, 0.5], np.float32),
    "classes": np.array([0, 7]),
}
MASK: dict[str, Array] = {"mask": np.eye(24, 32, dtype=np.uint8)[None]}


def frame_of(image: RawImage | CompressedImage = RAW, source: str = "/camera", number: int = 0) -> Frame:
    """Put an image into a frame."""
    stamp = 1_700_000_000_123_456_789 + 50_000_000 * number
    return Frame(source, number, stamp, stamp + 7, "optical", image)


def result_of(outputs: dict[str, Array], outcome: Outcome = Outcome.OK) -> InferResult:
    """Make a result."""
    error = None if outcome is Outcome.OK else ErrorInfo(outcome.value, "no reply in 1 s")
    return InferResult("1", outcome, "road", outputs=outputs, error=error, timings=Timings(inference=12_345_678))


def kept(
    folder: Path, frame: Frame, outputs: dict[str, Array], encoding: str = "png", size: tuple[int, int] = (32, 24)
) -> dict[str, Any]:
    """Prepare a frame for a model, write a result of it, and read the messages back by the last part of their topic."""
    prepared = Preparer(ImageContract("x", *size), encoding).prepare(frame, ignore)
    sink = McapSink(folder, CARD)
    sink.write(
        frame,
        FrameView(prepared.picture(), prepared.placement, outputs, prepared.tensors[0], classes=CARD.classes),
        result_of(outputs),
    )
    sink.close()
    return {topic.rsplit("/", 1)[1]: body for topic, _, body in messages_in(folder / "results.mcap")}


def ignore(stage: EdgeStage, nanoseconds: int) -> None:
    """Take no notice."""


def messages_in(path: Path) -> list[tuple[str, str, dict[str, Any]]]:
    """Read topic, schema name and body of each message of an MCAP file, whose schemas are the published ones."""
    found = []
    for topic, kind, _, body in messages(path):
        if kind.name.startswith("foxglove."):
            assert kind.data == schema(kind.name)
            jsonschema.validate(body, strict(json.loads(kind.data)))
        found.append((topic, kind.name, body))
    return found


def strict(part: Any) -> Any:
    """Return a published schema that wants each of its fields, and no other: viewers skip a misspelt one silently."""
    if isinstance(part, list):
        return [strict(each) for each in part]
    if not isinstance(part, dict):
        return part
    made = {key: strict(each) for key, each in part.items()}
    fields = made.get("properties")
    return made | {"required": list(fields), "additionalProperties": False} if isinstance(fields, dict) else made


@pytest.mark.parametrize("outputs", [MASK, BOXES, {"scores": np.array([0.25, np.nan], np.float32)}, {}])
@pytest.mark.parametrize("outcome", list(Outcome))
def test_each_message_keeps_to_the_published_schemas(
    tmp_path: Path, outputs: dict[str, Array], outcome: Outcome
) -> None:
    """Of a segmenter, a detector and a classifier, with every outcome: viewers stop at a field that is missing."""
    sink = McapSink(tmp_path, CARD)
    answered = outputs if outcome is Outcome.OK else {}
    view = FrameView(PIXELS, Placement.of((WIDTH, HEIGHT), (32, 24)), answered, classes=CARD.classes)
    sink.write(frame_of(), view, result_of(answered, outcome))
    sink.close()
    found = {topic.rsplit("/", 1)[1]: body for topic, _, body in messages_in(tmp_path / "results.mcap")}
    assert {"image", "annotations", "result"} <= set(found)
    assert len(found["annotations"]["points"]) == len(answered.get("boxes", ()))
    assert ("error" in found["result"]) is (outcome is not Outcome.OK)
    assert found["result"]["latency_ms"] == pytest.approx(12.346)


def described_fields(field: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a field of a schema and all below it, the way viewers walk."""
    yield field
    for each in field.get("properties", {}).values():
        yield from described_fields(each)
    if "items" in field:
        yield from described_fields(field["items"])


@pytest.mark.parametrize("card", [CARD, ModelCard(name="plain", versions=("1",), platform="p")])
def test_viewers_can_read_the_schema_of_results(card: ModelCard) -> None:
    """Foxglove and Lichtblick take one type a field, never a null, and arrays that say of what; or nothing is shown."""
    fields = list(described_fields(json.loads(result_schema(card))))
    assert len(fields) > 30
    for field in fields:
        assert field["type"] in ("boolean", "string", "number", "integer", "object", "array"), field
        assert field["type"] != "array" or "items" in field


def test_the_schema_of_results_offers_outputs_and_classes() -> None:
    """So that a viewer completes the path of a plot."""
    fields = json.loads(result_schema(CARD))["properties"]
    assert fields["latency_ms"]["type"] == "number"
    assert set(fields["timings"]["properties"]) >= {"inference", "server_queue", "transmission"}
    assert set(fields["outputs"]["properties"]) == {"mask", "scores"}
    shares = fields["outputs"]["properties"]["mask"]["properties"]["class_shares"]["properties"]
    assert set(shares) == {"road", 'a "wide" sign'}


@pytest.mark.parametrize(
    "image", [CompressedImage("jpeg", JPEG), CompressedImage("rgb8; jpeg compressed bgr8", memoryview(JPEG))]
)
def test_a_recorded_jpeg_is_kept_as_it_is(tmp_path: Path, image: CompressedImage) -> None:
    """Byte by byte, also where the model needs another size."""
    found = kept(tmp_path, frame_of(image), BOXES)
    assert base64.b64decode(found["image"]["data"]) == JPEG
    assert found["image"]["format"] == "jpeg"


@pytest.mark.parametrize(
    "image",
    [
        RAW,
        CompressedImage("jpeg", EXIF),
        CompressedImage("rgb8; jpeg compressed rgb8", bytes(encode_tensor("x", PIXELS[:, :, ::-1], "jpeg:95").data)),
        CompressedImage("png", bytes(encode_tensor("x", PIXELS, "png").data)),
        CompressedImage("bayer_rggb8; jpeg compressed", bytes(encode_tensor("x", PIXELS[:, :, 1], "jpeg:95").data)),
    ],
)
def test_other_recordings_are_encoded_as_the_model_saw_them(tmp_path: Path, image: RawImage | CompressedImage) -> None:
    """Raw pixels, mosaics, swapped colours, PNG, and a JPEG that a viewer would turn: upright and in true colours."""
    frame = frame_of(image)
    seen = Preparer(ImageContract("x"), "raw").prepare(frame, ignore).picture()
    found = kept(tmp_path, frame, BOXES)
    assert base64.b64decode(found["image"]["data"]) != bytes(image.data)
    assert np.abs(decoded(found["image"]["data"]).astype(int) - seen).mean() < 4


def test_a_frame_that_was_sent_as_jpeg_is_not_encoded_twice(tmp_path: Path) -> None:
    """Where the model takes the frame's own size, the bytes that were sent are kept."""
    prepared = Preparer(ImageContract("x"), "jpeg:40").prepare(frame_of(), ignore)
    found = kept(tmp_path, frame_of(), BOXES, "jpeg:40", (WIDTH, HEIGHT))
    assert base64.b64decode(found["image"]["data"]) == bytes(prepared.tensors[0].data)


def test_all_pictures_have_the_size_of_the_recorded_frame(tmp_path: Path) -> None:
    """A model that sees 32x24 of 96x64: picture, overlay, mask and class numbers are 96x64, and lie on each other."""
    found = kept(tmp_path, frame_of(), MASK)
    mask = Placement.of((WIDTH, HEIGHT), (32, 24)).mask_to_frame(MASK["mask"][0])
    colours = palette(CLASSES)
    assert decoded(found["image"]["data"]).shape == PIXELS.shape
    assert np.array_equal(decoded(found["mask"]["data"]), colours[mask])
    numbers = np.frombuffer(base64.b64decode(found["classes"]["data"]), np.uint8)
    assert np.array_equal(numbers.reshape(found["classes"]["height"], found["classes"]["step"]), mask)
    overlay = decoded(found["overlay"]["data"]).astype(int)
    assert np.abs(overlay - (PIXELS.astype(int) + colours[mask]) // 2).mean() < 4


def test_the_margins_of_a_letterbox_count_for_nothing(tmp_path: Path) -> None:
    """Shares are those of the frame's own pixels."""
    mask = np.ones((1, 32, 32), np.uint8)
    mask[:, 8:24] = 0  # the frame; above and below are the margins
    outputs: dict[str, Array] = {"mask": mask}
    placement = Placement.of((100, 50), (32, 32), Resize.LETTERBOX)
    view = FrameView(np.zeros((50, 100, 3), np.uint8), placement, outputs, classes=CARD.classes)
    sink = McapSink(tmp_path, CARD)
    sink.write(frame_of(), view, result_of(outputs))
    sink.close()
    (result,) = (body for _, name, body in messages_in(tmp_path / "results.mcap") if name == "mqinfer.Result")
    assert result["outputs"]["mask"]["class_shares"] == {"road": 1.0, 'a "wide" sign': 0.0}


def test_a_mask_is_a_png_of_class_numbers_with_a_palette() -> None:
    """Readers that keep palettes get the numbers, all others the colours."""
    mask = np.arange(256, dtype=np.uint8).reshape(8, 32)
    data = encode_mask(mask, CLASSES)
    picture = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
    assert picture is not None
    assert np.array_equal(picture[:, :, ::-1], palette(CLASSES)[mask])
    assert data[25] == 3  # the colour type of IHDR: a palette


def leaves(node: Any) -> list[str]:
    """Return the panels of a layout in the order of the tree."""
    return [node] if isinstance(node, str) else leaves(node["first"]) + leaves(node["second"])


def test_a_layout_stands_beside_the_file_from_the_first_frame(tmp_path: Path) -> None:
    """Before the file is closed too; it names topics that are in the file, and grows with the streams."""
    sink = McapSink(tmp_path, CARD)
    place = Placement.of((WIDTH, HEIGHT), (32, 24))
    for number, (source, outputs) in enumerate([("/front", BOXES), ("/rear", {}), ("/rear", MASK), ("/front", BOXES)]):
        sink.write(frame_of(RAW, source, number), FrameView(PIXELS, place, outputs), result_of(outputs))
        layout = json.loads((tmp_path / LAYOUT_FILE).read_text(encoding="utf-8"))
        assert sorted(leaves(layout["layout"])) == sorted(layout["configById"])
    path, layout_path = sink.close()
    assert layout_path == tmp_path / LAYOUT_FILE
    panels = [config["imageMode"] for config in layout["configById"].values() if "imageMode" in config]
    assert [panel["imageTopic"].rsplit("/", 1)[1] for panel in panels] == ["image", "image", "overlay"]
    named = {topic for panel in panels for topic in (panel["imageTopic"], *panel["annotations"])}
    assert named <= {topic for topic, _, _ in messages_in(path)}


def test_sources_of_any_name_have_valid_paths_in_the_layout() -> None:
    """A topic that is no plain name stands in quotes, or the dot of a file's name would begin a field."""
    layout = make_layout({"/camera/front": False, 'drive "1".mp4': True})
    paths = [series["value"] for series in layout["configById"]["Plot!latency"]["paths"]]
    assert paths[0] == "/camera/front/mqinfer/result.latency_ms"
    assert paths[1] == '"drive \\"1\\".mp4/mqinfer/result".latency_ms'
    assert re.fullmatch(r'"(?:[^"\\]|\\\\|\\")*"\.latency_ms', paths[1])


@pytest.mark.parametrize("has_masks", [False, True])
def test_many_streams_stand_in_rows(has_masks: bool) -> None:  # noqa: FBT001 - a parameter of the test
    """Seven cameras are laid out three side by side, or in two pairs, each panel once."""
    layout = make_layout({f"/camera{number}": has_masks for number in range(7)})
    assert sorted(leaves(layout["layout"])) == sorted(layout["configById"])
    assert len(layout["configById"]) == (16 if has_masks else 9)
    rows = layout["layout"]["first"]
    kinds = ["image", "overlay", "image", "overlay"] if has_masks else ["image", "image", "image"]
    assert [re.sub(r"Image!|\d", "", name) for name in leaves(rows["first"])] == kinds


def test_the_label_of_a_box_at_the_upper_edge_is_visible(tmp_path: Path) -> None:
    """A text stands above its position, so that one at row 0 would be outside of the picture."""
    found = kept(tmp_path, frame_of(), {**BOXES, "boxes": np.array([[0, 0, 9, 8], [3, 20, 5, 22]], np.float32)})
    labels = found["annotations"]["texts"][1:]
    assert [text["position"]["y"] for text in labels] == [18, pytest.approx(20 * HEIGHT / 24)]

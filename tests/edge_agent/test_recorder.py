"""Results of others in MCAP files, read back with the mcap package."""

from __future__ import annotations

import base64
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as nps
from msgspec import structs

from mqinfer.bags.repair import repair
from mqinfer.client.watching import SeenPreview, SeenResult
from mqinfer.codecs import encode_tensor
from mqinfer.edge_agent.sinks.foxglove.recorder import Recorder
from mqinfer.protocol.card import CardParameters, ClassInfo, ImageContract, ModelCard
from mqinfer.protocol.types import Capture, EncodedTensor, ErrorInfo, InferResponse, Outcome
from tests.mcap_files import decoded, messages

CLASSES = tuple(ClassInfo(name, colour) for name, colour in (("road", (1, 2, 3)), ("car", (200, 100, 50))))
KNOWN = CardParameters(image=ImageContract("x", 64, 48), classes=CLASSES)
CARD = ModelCard(name="seg", versions=("3",), platform="onnx", parameters=KNOWN)
Found = dict[str, list[tuple[int, dict[str, Any]]]]


def reply(number: int | None, *outputs: EncodedTensor, source: str = "/camera", **fields: Any) -> InferResponse:
    """Of one frame, captured at `1000 + number`."""
    stamp = None if number is None else 1000 + number
    made = InferResponse(f"id-{number}", "seg", "3", outputs=outputs, worker="gpu.0", capture=Capture(source, number))
    return structs.replace(
        made, capture=structs.replace(made.capture, capture_time_ns=stamp, frame_id="front"), **fields
    )


def result(number: int | None, *outputs: EncodedTensor, client: str = "car-1", **fields: Any) -> SeenResult:
    """One that came at `5_000_000 + number`."""
    made = reply(number, *outputs, **fields)
    return SeenResult(client, made.id, made, 5_000_000 + (number or 0))


def preview(number: int, grey: int = 90, size: tuple[int, int] = (24, 32), client: str = "car-1") -> SeenPreview:
    """Of a model's picture of 64 x 48 pixels."""
    picture = np.full((*size, 3), grey, np.uint8)
    return SeenPreview(client, reply(number, encode_tensor("preview", picture, "jpeg")), (64, 48), 7)


def mask(value: int = 1) -> EncodedTensor:
    """Return a mask of 48 x 64 whose left half has a class."""
    numbers = np.zeros((1, 48, 64), np.uint8)
    numbers[:, :, :32] = value
    return encode_tensor("mask", numbers, "mask")


def read(path: Path) -> Found:
    """Return the messages by topic, with their log times."""
    found: Found = defaultdict(list)
    for topic, _, message, body in messages(path):
        found[topic].append((message.log_time, body))
    return found


@pytest.fixture
def recorder(tmp_path: Path) -> Recorder:
    """A recorder of one model, whose card is known."""
    return Recorder(tmp_path, lambda _: CARD, "seg")


def test_a_frame_with_its_preview(recorder: Recorder) -> None:
    """Picture byte by byte, mask and boxes in its pixels, stamps of capture; all logged when the result came."""
    boxes = encode_tensor("boxes", np.array([[32, 24, 64, 48]], np.float32))
    scores, numbers = encode_tensor("scores", np.array([0.5], np.float32)), encode_tensor("classes", np.array([1]))
    shown = preview(7)
    recorder.add(shown)
    recorder.add(result(7, mask(), boxes, scores, numbers))
    path, layout = recorder.close()
    assert (path.name, layout.name) == ("results.mcap", "foxglove-layout.json")
    found = read(path)
    topics = {topic.removeprefix("/car-1/camera/mqinfer/") for topic in found}
    assert topics == {"image", "annotations", "result", "mask", "classes", "overlay"}
    assert all(len(each) == 1 and each[0][0] == 5_000_007 for each in found.values())
    image, note, said, numbered = (
        found[f"/car-1/camera/mqinfer/{kind}"][0][1] for kind in ("image", "annotations", "result", "classes")
    )
    assert base64.b64decode(image["data"]) == bytes(shown.tensor.data)
    assert image["timestamp"] == note["timestamp"] == numbered["timestamp"] == {"sec": 0, "nsec": 1007}
    assert image["frame_id"] == "front"
    assert (numbered["width"], numbered["height"]) == (32, 24)
    classes = np.frombuffer(base64.b64decode(numbered["data"]), np.uint8).reshape(24, 32)
    assert classes[:, :16].all()
    assert not classes[:, 16:].any()
    assert decoded(found["/car-1/camera/mqinfer/mask"][0][1]["data"])[5, 5].tolist() == [200, 100, 50]
    assert decoded(found["/car-1/camera/mqinfer/overlay"][0][1]["data"]).shape == (24, 32, 3)
    assert [(point["x"], point["y"]) for point in note["points"][0]["points"]] == [
        (16, 12),
        (32, 12),
        (32, 24),
        (16, 24),
    ]
    assert (said["source"], said["sequence"], said["capture_time_ns"]) == ("/car-1/camera", 7, 1007)
    assert said["outputs"]["mask"]["class_shares"] == {"road": 0.5, "car": 0.5}
    assert (recorder.results, recorder.pictures, recorder.dropped()) == (1, 1, {})


def test_frames_without_a_preview(recorder: Recorder) -> None:
    """They are recorded without a picture, in the same pixels as those with one."""
    recorder.add(result(1, mask()))
    recorder.add(preview(2))
    recorder.add(result(2, mask()))
    recorder.add(result(3, mask()))
    path, _ = recorder.close()
    found = read(path)
    sizes = [(each["width"], each["height"]) for _, each in found["/car-1/camera/mqinfer/classes"]]
    assert sizes == [(64, 48), (32, 24), (32, 24)]
    assert [each["sequence"] for _, each in found["/car-1/camera/mqinfer/result"]] == [1, 2, 3]
    assert len(found["/car-1/camera/mqinfer/image"]) == 1
    assert (recorder.results, recorder.pictures) == (3, 1)


def test_clients_and_sources_have_topics_of_their_own(recorder: Recorder) -> None:
    """Also where their names would make the same topic; control characters never get into one."""
    for client, source in (("car-1", "/a"), ("car-1", "a"), ("van", "/a"), ("car-1", ""), ("car-1", "\x1b[31m\n" * 99)):
        recorder.add(replace(result(1, client=client, source=source), request_id=f"{client}{source}"))
    path, _ = recorder.close()
    topics = {topic.removesuffix("/mqinfer/result") for topic in read(path) if topic.endswith("result")}
    assert {"/car-1/a", "/car-1/a-2", "/van/a", "/car-1"} < topics
    assert len(topics) == 5
    assert all(topic.isprintable() and len(topic) <= 200 for topic in topics)


def test_several_models(tmp_path: Path) -> None:
    """Each has a folder, and one without a card has what its results say."""
    recorder = Recorder(tmp_path, lambda model: CARD if model == "seg" else None)
    for model in ("seg", "det"):
        recorder.add(result(1, model_name=model, model_version="9"))
    paths = recorder.close()
    assert {path.relative_to(tmp_path).as_posix() for path in paths if path.suffix == ".mcap"} == {
        "seg/results.mcap",
        "det/results.mcap",
    }


def test_so_many_models(tmp_path: Path) -> None:
    """Above a bound of models their results are counted, not recorded."""
    recorder = Recorder(tmp_path, lambda _: None)
    for number in range(100):
        recorder.add(result(number, model_name=f"m{number}"))
    recorder.close()
    assert recorder.dropped() == {"models": 100 - 64}


@pytest.mark.full
def test_so_many_streams(recorder: Recorder) -> None:
    """Above a bound of streams their results are counted, not recorded."""
    for number in range(1100):
        recorder.add(result(number, source=f"/camera/{number}"))
    recorder.close()
    assert recorder.results == 1024
    assert recorder.dropped() == {"streams": 76}


def test_failed_requests_and_broken_previews(recorder: Recorder) -> None:
    """A result without an answer is recorded with its error, one with a preview that is no picture without it."""
    recorder.add(result(1, outcome=Outcome.REJECTED, error=ErrorInfo("rejected", "busy")))
    broken = preview(2)
    tensor = structs.replace(broken.tensor, data=bytes(broken.tensor.data[:40]))
    recorder.add(replace(broken, response=structs.replace(broken.response, outputs=(tensor,))))
    recorder.add(result(2, EncodedTensor("y", CARD_TYPE, (2, 4), "lz4", b"no block")))
    path, _ = recorder.close()
    said = [each for _, each in read(path)["/car-1/camera/mqinfer/result"]]
    assert [each["outcome"] for each in said] == ["rejected", "error"]
    assert [each["error"]["code"] for each in said] == ["rejected", "bad_encoding"]
    assert recorder.dropped() == {"preview_unreadable": 1}


CARD_TYPE = encode_tensor("x", np.zeros(1, np.float32)).datatype


def test_a_kill(recorder: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was flushed is in the file without its end; `mqinfer bag repair` makes a whole one of it."""
    monkeypatch.setattr("mqinfer.edge_agent.sinks.foxglove.mcap_sink._CHUNK_S", 0.0)
    for number in range(5):
        recorder.add(result(number, mask()))
    recorder.flush()
    killed = tmp_path / "killed.mcap"
    killed.write_bytes((tmp_path / "results.mcap").read_bytes())
    repaired = tmp_path / "repaired.mcap"
    repair(killed, repaired)
    assert len(read(repaired)["/car-1/camera/mqinfer/result"]) == 5
    recorder.close()


def test_what_is_held_is_written_in_time(tmp_path: Path) -> None:
    """A result that waits for a preview is written by `flush` once it has waited long enough."""
    now = [0.0]
    recorder = Recorder(tmp_path, lambda _: CARD, "seg", clock=lambda: now[0])
    recorder.add(preview(1))
    recorder.add(result(2))
    recorder.flush()
    assert recorder.results == 0
    now[0] = 1.0
    recorder.flush()
    assert recorder.results == 1
    recorder.close()


ARRAYS = nps.arrays(
    st.sampled_from([np.uint8, np.int64, np.float32, np.float64, np.bool_]),
    nps.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5),
)
OUTPUTS = st.dictionaries(
    st.sampled_from(["boxes", "scores", "classes", "masks", "count", "present", "mask", "y"]), ARRAYS, max_size=5
)
CAPTURES = st.builds(
    Capture,
    st.text(max_size=20),
    st.none() | st.integers(0, (1 << 63) - 1),
    st.none() | st.integers(-(1 << 63), (1 << 63) - 1),
    st.text(max_size=10),
)


@given(OUTPUTS, CAPTURES, st.booleans())
def test_whatever_workers_send(
    tmp_path_factory: pytest.TempPathFactory,
    outputs: dict[str, npt.NDArray[Any]],
    capture: Capture,
    has_preview: bool,  # noqa: FBT001
) -> None:
    """Outputs of any kind and shape, sequence numbers and stamps of any size: the file can be written and read."""
    recorder = Recorder(tmp_path_factory.mktemp("any"), lambda _: CARD, "seg")
    tensors = tuple(encode_tensor(name, array) for name, array in outputs.items())
    shown = preview(1)
    if has_preview and capture.sequence is not None:
        recorder.add(replace(shown, response=structs.replace(shown.response, capture=capture)))
    recorder.add(SeenResult("car-1", "r", structs.replace(reply(1, *tensors), capture=capture), 99))
    path = recorder.close()[0]
    (topic,) = (topic for topic in read(path) if topic.endswith("/mqinfer/result"))
    assert recorder.results == 1
    assert topic.startswith("/car-1")


def test_words_instead_of_numbers(recorder: Recorder) -> None:
    """Class numbers that are strings, or not finite, are no numbers; nothing fails."""
    boxes, scores = encode_tensor("boxes", np.ones((1, 4), np.float32)), encode_tensor("scores", np.ones(1, np.float32))
    masks = encode_tensor("masks", np.ones((1, 4, 4), np.uint8))
    strange = [np.array([b"x"], object), np.array([np.nan], np.float32), np.array([np.inf], np.float64)]
    for number, array in enumerate(strange):
        recorder.add(preview(number))
        recorder.add(result(number, boxes, scores, masks, encode_tensor("classes", array)))
    recorder.close()
    assert recorder.results == 3


def test_the_same_words(recorder: Recorder, find_schema: Callable[[str], bytes]) -> None:
    """Schemas are those that a replay writes."""
    recorder.add(preview(1))
    recorder.add(result(1, mask()))
    path, _ = recorder.close()
    for _, schema, _, _ in messages(path):
        if schema.name != "mqinfer.Result":
            assert schema.data == find_schema(schema.name)


@pytest.fixture
def find_schema() -> Callable[[str], bytes]:
    """The schemas of Foxglove's messages."""
    from mqinfer.edge_agent.sinks.foxglove.messages import schema

    return schema

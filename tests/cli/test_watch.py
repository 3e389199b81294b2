"""Lines and objects that `mqinfer watch` makes of results, and its options."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as nps
from msgspec.structs import replace
from typer.testing import CliRunner

from mqinfer.cli.app import app
from mqinfer.cli.watching.lines import describe, line_of
from mqinfer.client.watching import SeenResult
from mqinfer.codecs import encode_tensor
from mqinfer.protocol.card import ClassInfo
from mqinfer.protocol.errors import ConfigError
from mqinfer.protocol.types import Capture, ErrorInfo, InferResponse, Outcome, Timings

CLASSES = (ClassInfo("road", (1, 2, 3)), ClassInfo("car", (4, 5, 6)))
TIMINGS = Timings(server_queue=1_000_000, inference=10_400_000, encode=20_000)


def seen(outputs: dict[str, npt.NDArray[Any]] | None = None, **fields: Any) -> SeenResult:
    """Return a result with outputs."""
    tensors = tuple(encode_tensor(name, array) for name, array in (outputs or {}).items())
    capture = Capture("/camera", 7, 123, "front")
    reply = InferResponse("r1", "seg", "3", outputs=tensors, worker="gpu.0", timings=TIMINGS, capture=capture)
    return SeenResult("car-1", "r1", replace(reply, **fields), 1_700_000_000_123_456_789)


def line(each: SeenResult, classes: tuple[ClassInfo, ...] = CLASSES) -> str:
    """Return the line of a result."""
    return line_of(each, each.decode(), classes)


def answer(outputs: dict[str, npt.NDArray[Any]], classes: tuple[ClassInfo, ...] = CLASSES) -> str:
    """Return the last part of a line."""
    return line(seen(outputs), classes).rpartition("  ")[2]


def test_a_line() -> None:
    """Time, client, source, sequence, outcome, worker, model and version, the time in the worker, the answer."""
    mask = np.zeros((1, 4, 4), np.uint8)
    mask[:, 3] = 1
    parts = line(seen({"mask": mask})).split("  ")
    assert parts[0].endswith(".123")
    assert parts[1:] == [
        "car-1",
        "/camera",
        "7",
        "ok",
        "gpu.0",
        "seg 3",
        "11.4 ms (queue 1.0, inference 10.4)",
        "road 75%, car 25%",
    ]


def test_answers() -> None:
    """Boxes, the best classes, a number, the shapes of anything else."""
    boxes = {"boxes": np.ones((4, 4), np.float32), "scores": np.array([0.1, 0.9, 0.5, 0.2], np.float32)}
    assert answer(boxes | {"classes": np.ones(4)}) == "4 boxes: car 0.90, car 0.50, car 0.20"
    assert answer({"y": np.array([[0.25, 0.75]], np.float32)}) == "car 0.75, road 0.25"
    assert answer({"y": np.array([2.5], np.float32)}, ()) == "y 2.5"
    assert answer({"y": np.ones((1, 2, 3, 4), np.float32)}) == "y float32[1, 2, 3, 4]"
    assert answer({}) == "no outputs"


def test_a_failure() -> None:
    """Its code and its words stand in place of the answer; without a frame there are dashes."""
    failed = seen(outcome=Outcome.REJECTED, error=ErrorInfo("rejected", "busy"), capture=Capture(), worker="")
    parts = line(failed).split("  ")
    assert parts[2:6] == ["-", "-", "rejected", "-"]
    assert parts[-1] == "rejected: busy"


def test_nothing_of_a_message_changes_the_terminal() -> None:
    """Escape sequences and line breaks are written out, and long texts are cut."""
    evil = "\x1b[2J\nroot\r\x9b31m"
    hostile = seen(
        {f"\x1b]0;{evil}\a": np.ones((2, 2, 2), np.float32)},
        worker=evil,
        model_version=evil,
        capture=Capture(evil * 99),
    )
    for each in (line(hostile), line(seen(outcome=Outcome.ERROR, error=ErrorInfo(evil, evil * 999)))):
        assert each.isprintable()
        assert len(each) < 5000
    assert "\\x1b[2J\\nroot" in line(hostile)


def test_an_object() -> None:
    """It holds everything but the bytes of large outputs; these come where they are asked for, and can be read."""
    large, text = np.arange(100, dtype=np.float32).reshape(1, 100, 1), np.array([b"a", b"b\xff"], object)
    each = seen({"y": large, "words": text}, parameters={"score": float("nan"), "n": 1})
    plain: Any = json.loads(json.dumps(describe(each, each.decode(), ()), allow_nan=False))
    assert (plain["client"], plain["id"], plain["source"], plain["sequence"]) == ("car-1", "r1", "/camera", 7)
    assert (plain["capture_time_ns"], plain["worker"], plain["model_version"]) == (123, "gpu.0", "3")
    assert plain["timings"]["inference"] == 10_400_000
    assert set(plain["outputs"]["y"]) == {"shape", "datatype", "hash", "least", "greatest"}
    assert plain["parameters"] == {"score": "nan", "n": 1}
    full: Any = json.loads(json.dumps(describe(each, each.decode(), (), with_tensors=True)))["outputs"]
    read = np.frombuffer(base64.b64decode(full["y"]["data"]), "<f4").reshape(full["y"]["shape"])
    np.testing.assert_array_equal(read, large)
    assert [base64.b64decode(word) for word in full["words"]["strings"]] == [b"a", b"b\xff"]


def test_an_object_of_boxes_and_classes() -> None:
    """Detections and best classes stand beside the outputs; an error is there with its code."""
    boxes = {"boxes": np.ones((1, 4)), "scores": np.ones(1), "classes": np.ones(1)}
    each = seen(boxes)
    assert describe(each, each.decode(), CLASSES)["detections"] == [{"class": "car", "score": 1.0, "box": [1.0] * 4}]
    each = seen({"y": np.array([0.25, 0.75])})
    top = describe(each, each.decode(), CLASSES)["top"]
    assert top == [{"class": "car", "number": 1, "score": 0.75}, {"class": "road", "number": 0, "score": 0.25}]
    each = seen(outcome=Outcome.ERROR, error=ErrorInfo("model_failed", "no"))
    assert describe(each, each.decode(), ())["error"] == {"code": "model_failed", "message": "no"}


ARRAYS = nps.arrays(
    st.sampled_from([np.uint8, np.int64, np.float32, np.float64, np.bool_]),
    nps.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5),
)
NAMES = st.sampled_from(["boxes", "scores", "classes", "masks", "count", "mask", "y"]) | st.text(max_size=5)


@given(st.dictionaries(NAMES, ARRAYS, max_size=4), st.text(max_size=30), st.booleans())
def test_whatever_workers_send(outputs: dict[str, npt.NDArray[Any]], words: str, has_classes: bool) -> None:  # noqa: FBT001
    """One printable line, and one line of JSON without NaN."""
    each = seen(outputs, stage=words, worker=words, capture=Capture(words, None, None, words))
    classes = CLASSES if has_classes else ()
    assert line(each, classes).isprintable()
    text = json.dumps(describe(each, each.decode(), classes, with_tensors=True), allow_nan=False)
    assert "\n" not in text


@pytest.mark.parametrize("options", [["--tensors"], ["--quiet"]])
def test_options_that_need_another(options: list[str]) -> None:
    """What would have no effect is an error."""
    result = CliRunner().invoke(app, ["watch", "seg", *options])
    assert isinstance(result.exception, ConfigError)

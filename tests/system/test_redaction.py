"""What an edge publishes and keeps with `--redact`: no pixel of a detector's boxes, in no encoding."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper
from rich.console import Console

from mqinfer.bags.sources import open_source
from mqinfer.broker import make_link
from mqinfer.broker.link import Message
from mqinfer.client.connection import connect, random_name
from mqinfer.edge_agent.collecting.collector import CollectSettings
from mqinfer.edge_agent.redaction import FAILED, GREY, LEAST_MARGIN, NOT_DECODED
from mqinfer.edge_agent.reporting.report import Ending, SessionReport, summary
from mqinfer.edge_agent.session import run_sessions
from mqinfer.edge_agent.settings import ReplayOptions
from mqinfer.protocol.envelope import decode_request, decode_response
from mqinfer.protocol.topics import Topics
from mqinfer.protocol.types import Capture, EncodedTensor
from tests.onnx_files import save_onnx
from tests.patience import wait_until
from tests.settings import settings_of
from tests.system.test_detections import HEIGHT as ROWS
from tests.system.test_detections import WIDTH as COLUMNS
from tests.system.test_detections import blob_detector

pytestmark = pytest.mark.broker
FRAMES = 8
HEIGHT, WIDTH, SIDE = 2 * ROWS, 2 * COLUMNS, 32
"""Of the pictures, twice as large as what the detector sees, and of the squares that it finds."""
OPTIONS = ReplayOptions("eye", window=2)
Tensor = tuple[str, str, tuple[int, ...], bytes]


@dataclass
class Heard:
    """The pictures of every message as they travelled, by the numbers of their frames."""

    infer: dict[int, Tensor] = field(default_factory=dict)
    preview: dict[int, Tensor] = field(default_factory=dict)
    results: dict[int, Tensor] = field(default_factory=dict)

    def add(self, kind: str, capture: Capture | None, tensors: tuple[EncodedTensor, ...]) -> None:
        """Keep the one tensor of a message; another attempt has the same."""
        assert capture is not None
        assert capture.sequence is not None
        (each,) = tensors
        tensor = each.name, each.encoding, each.shape, bytes(each.data)
        assert getattr(self, kind).setdefault(capture.sequence, tensor) == tensor


@contextmanager
def listening(url: str, topics: Topics) -> Iterator[Heard]:
    """Receive every message below a root."""
    heard = Heard()

    def on_message(message: Message) -> None:
        parts = message.topic.removeprefix(topics.root).split("/")
        if "infer" in parts:
            request = decode_request(message.payload)
            heard.add("infer", request.capture, request.inputs)
        elif "preview" in parts or "results" in parts:
            response = decode_response(message.payload)
            heard.add("preview" if "preview" in parts else "results", response.capture, response.outputs)

    link = make_link(url, client_id=random_name())
    link.open()
    link.subscribe(f"{topics.root}/#", on_message)
    try:
        yield heard
    finally:
        link.close()


def square(number: int) -> tuple[slice, slice]:
    """Return where the secret of a picture is; it moves by a cell of the detector each time."""
    top, left = 48 + 16 * (number % 4), 32 + 16 * number
    return slice(top, top + SIDE), slice(left, left + SIDE)


def scene(number: int, seed: int) -> NDArray[np.uint8]:
    """Return a picture whose secret, reddish noise, is of the seed; the rest is the same of every seed."""
    pixels = np.random.default_rng(number).integers(30, 60, (HEIGHT, WIDTH, 3), np.uint8)
    secret = np.random.default_rng(1000 * seed + number).integers(0, 40, (SIDE, SIDE, 3), np.uint8)
    secret[..., 0] += 200
    pixels[square(number)] = secret
    return pixels


def recording(folder: Path, seed: int) -> Path:
    """Write pictures, all with the same stamps."""
    folder.mkdir()
    for number in range(FRAMES):
        path = folder / f"{number}.png"
        cv2.imwrite(str(path), scene(number, seed)[..., ::-1])
        os.utime(path, (1000 + number, 1000 + number))
    return folder


def run(url: str, topics: Topics, source: Path, options: ReplayOptions = OPTIONS, **settings: Any) -> SessionReport:
    """Replay a source to the model `eye`, as the stream `cam`."""
    requester = connect(url, random_name(), topics)
    with closing(requester):
        (report,) = run_sessions(
            settings_of(f"cam={source}", options, **settings),
            [options.model],
            requester,
            broker=url,
            stop=threading.Event(),
            console=Console(quiet=True),
        )
    return report


@pytest.fixture
def topics(
    broker_url: str, unique: Callable[[str], str], serve: Callable[..., Any], write_echo: Callable[..., Path]
) -> Topics:
    """Serve the model `eye`, which returns its picture, below a root of its own."""
    topics = Topics(unique("test"))
    config = f'[image]\ninput = "image"\nwidth = {WIDTH}\nheight = {HEIGHT}\n'
    repository = write_echo("eye", ("image", "UINT8", [-1, HEIGHT, WIDTH, 3]), config=config)
    serve(broker_url, repository, "eye", topics=topics)
    return topics


@pytest.fixture
def detector(tmp_path: Path) -> Path:
    """Make a detector of red squares."""
    return blob_detector(tmp_path / "models") / "blobs"


def has_come(heard: Heard, previews: int) -> bool:
    """Return whether every message is there."""
    return len(heard.infer) == len(heard.results) == FRAMES and len(heard.preview) == previews


@pytest.mark.parametrize("encoding", ["raw", "lz4", "png", "jpeg:90", "h264"])
def test_no_pixel_of_a_box_is_published(
    broker_url: str, topics: Topics, detector: Path, tmp_path: Path, encoding: str
) -> None:
    """Of two recordings that differ in the boxes alone, all requests, results and previews have the same bytes."""
    published: list[Heard] = []
    for seed, redact in ((1, detector), (2, detector), (1, None)):
        source = recording(tmp_path / f"{seed}-{redact is None}", seed)
        with listening(broker_url, topics) as heard:
            how: dict[str, Any] = {
                "encoding": encoding,
                "output_encoding": "raw",
                "preview_rate": 10.0,
                "redact": redact,
            }
            report = run(broker_url, topics, source, ReplayOptions("eye", window=1), **how)
            assert report.previews is not None
            wait_until(partial(has_come, heard, report.previews.published))
        published.append(heard)
        told: Any = summary(report)
        assert told["redacted"] == (redact and {"frames": FRAMES, "boxes": FRAMES})
        assert told["missed"] == (redact and {})
    first, second, plain = published
    assert first.infer == second.infer
    assert first.results == second.results
    assert first.preview[0] == second.preview[0]
    assert plain.preview[0] != first.preview[0]
    for number, (_, _, _, data) in first.results.items():  # what the worker decoded
        assert data != plain.results[number][-1]
        assert first.infer[number] != plain.infer[number]
        pixels = np.frombuffer(data, np.uint8).reshape(HEIGHT, WIDTH, 3)
        assert np.abs(pixels[square(number)].astype(int) - GREY).max() < 12


def test_no_pixel_of_a_box_is_kept_on_the_disk(
    broker_url: str, unique: Callable[[str], str], detector: Path, tmp_path: Path
) -> None:
    """The spool of an edge whose model is away holds the same bytes, whatever was in the boxes."""
    kept = []
    for seed in (1, 2):
        spool, source = tmp_path / f"spool-{seed}", recording(tmp_path / f"in-{seed}", seed)
        options = ReplayOptions("eye", card_timeout=0.1)
        run(broker_url, Topics(unique("test")), source, options, spool=spool, encoding="lz4", redact=detector)
        kept.append([path.read_bytes() for path in sorted(spool.glob("*.frame"))])
    assert len(kept[0]) == FRAMES
    assert kept[0] == kept[1]


def test_a_collected_frame_is_redacted(broker_url: str, topics: Topics, detector: Path, tmp_path: Path) -> None:
    """What is kept of two recordings that differ in the boxes alone has the same pixels."""
    kept = []
    for seed in (1, 2):
        collect = CollectSettings(tmp_path / f"kept-{seed}", rates={"": 1})
        report = run(broker_url, topics, recording(tmp_path / f"in-{seed}", seed), redact=detector, collect=collect)
        assert report.reading.collected is not None
        assert report.reading.collected.frames == 1
        with closing(open_source(str(collect.folder))) as source:
            (frame,) = source.frames()
        kept.append(bytes(frame.image.data))
    assert kept[0] == kept[1]
    pixels = np.frombuffer(kept[0], np.uint8).reshape(HEIGHT, WIDTH, 3)
    assert (pixels[square(0)] == GREY).all()
    assert not (pixels == GREY).all()


def failing_detector(repository: Path) -> Path:
    """Make a detector of one box, whose engine raises on a picture with a white pixel: no such row is there."""
    nodes = [
        helper.make_node("Cast", ["image"], ["numbers"], to=TensorProto.INT32),
        helper.make_node("ReduceMax", ["numbers"], ["brightest"], keepdims=0),
        helper.make_node("Greater", ["brightest", "limit"], ["is_bright"]),
        helper.make_node("Cast", ["is_bright"], ["row"], to=TensorProto.INT64),
        helper.make_node("Gather", ["table", "row"], ["boxes"]),
        helper.make_node("Identity", ["score"], ["scores"]),
    ]
    constants = {
        "limit": np.int32(250),
        "table": np.array([[[10, 10, 20, 20]]], np.float32),
        "score": np.ones(1, np.float32),
    }
    ends = {"boxes": (TensorProto.FLOAT, [1, 4]), "scores": (TensorProto.FLOAT, [1])}
    picture = {"image": (TensorProto.UINT8, [1, ROWS, COLUMNS, 3])}
    save_onnx(repository / "one" / "1" / "model.onnx", nodes, picture, ends, constants)
    return repository / "one"


def with_white(folder: Path, *numbers: int) -> Path:
    """Write a recording of which some frames have a white field."""
    recording(folder, 1)
    for number in numbers:
        pixels = scene(number, 1)
        pixels[:32, :32] = 255
        cv2.imwrite(str(folder / f"{number}.png"), pixels)
    return folder


def test_a_frame_is_left_out_where_the_detector_fails(
    broker_url: str, topics: Topics, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is never sent, nor is one that can't be decoded: both are counted by reason, also at the very end."""
    source = with_white(tmp_path / "in", 2, 3, FRAMES - 1)
    (source / "4.png").write_bytes((source / "4.png").read_bytes()[:1000])
    with listening(broker_url, topics) as heard:
        settings: dict[str, Any] = {"folder": tmp_path / "out", "sinks": ["jsonl"], "preview_rate": 10.0}
        redact = failing_detector(tmp_path / "models")
        report = run(broker_url, topics, source, encoding="raw", redact=redact, **settings)
        wait_until(lambda: len(heard.results) >= FRAMES - 4)
    assert len(heard.infer) == FRAMES - 4
    told: Any = summary(report)
    assert told["missed"] == {"cam": {FAILED: 3, NOT_DECODED: 1}}
    assert told["redacted"] == {"frames": FRAMES - 4, "boxes": FRAMES - 4}
    lines = [json.loads(line) for line in (tmp_path / "out" / "results.jsonl").read_text().splitlines()]
    assert [line["sequence"] for line in lines] == [0, 1, 5, 6]
    assert lines[2]["missed"] == {"cam": {FAILED: 2, NOT_DECODED: 1}}
    assert "cam, frame 2 is not sent: the detector failed" in caplog.text
    for _, _, _, data in heard.infer.values():
        pixels = np.frombuffer(data, np.uint8).reshape(HEIGHT, WIDTH, 3)
        assert (pixels[20 - LEAST_MARGIN : 40 + LEAST_MARGIN, 20 - LEAST_MARGIN : 40 + LEAST_MARGIN] == GREY).all()
        assert (pixels[:, 60 + LEAST_MARGIN :] != GREY).any()


def test_a_detector_that_always_fails_sends_nothing(broker_url: str, topics: Topics, tmp_path: Path) -> None:
    """The run fails, and names the reason."""
    source = with_white(tmp_path / "in", *range(FRAMES))
    with listening(broker_url, topics) as heard:
        redact = failing_detector(tmp_path / "models")
        report = run(broker_url, topics, source, preview_rate=10.0, redact=redact)
        run(broker_url, topics, source, options=ReplayOptions("eye", window=1))  # all that came before is here by then
        wait_until(lambda: len(heard.results) >= FRAMES)
    assert len(heard.infer) == FRAMES
    assert heard.preview == {}
    assert report.ended is Ending.FAILED
    assert "no frame was sent: the detector failed" in report.reason
    assert report.reading.missed == {("cam", FAILED): FRAMES}


def test_the_command_tells_what_was_redacted(broker_url: str, topics: Topics, detector: Path, tmp_path: Path) -> None:
    """In its last lines, the summary and the report; a folder without a model is an error."""
    from typer.testing import CliRunner

    from mqinfer.cli.app import app

    source = recording(tmp_path / "in", 1)
    where = ["replay", str(source), "--broker", broker_url, "--root", topics.root, "--model", "eye"]
    files = ["--summary", str(tmp_path / "s.json"), "--report", str(tmp_path / "r.html")]
    done = CliRunner().invoke(app, [*where, *files, "--redact", str(detector / "1")])
    assert done.exit_code == 0, done.output
    assert f"redacted: {FRAMES} boxes in {FRAMES} frames" in done.output
    assert json.loads((tmp_path / "s.json").read_text())["redacted"] == {"frames": FRAMES, "boxes": FRAMES}
    assert f"{FRAMES} boxes in {FRAMES} frames" in (tmp_path / "r.html").read_text()
    refused = CliRunner().invoke(app, [*where, "--redact", str(tmp_path / "nowhere")])
    assert refused.exit_code != 0
    assert "nowhere" in str(refused.exception) + refused.output

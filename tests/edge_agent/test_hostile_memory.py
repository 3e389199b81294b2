"""Memory as a promise: an edge of bounded address space and 60 descriptors, under whatever reaches it from a worker."""

from __future__ import annotations

import json
import queue
import resource
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import cv2
import numpy as np
import pytest

from mqinfer.broker import make_link
from mqinfer.broker.link import Message
from mqinfer.broker.mosquitto.server import MosquittoServer
from mqinfer.codecs import encode_tensor
from mqinfer.codecs.h264 import H264Encoder
from mqinfer.lab.drives.recording import write_drive
from mqinfer.models.loading import load_model
from mqinfer.models.repository import Repository
from mqinfer.protocol.card import card_to_json
from mqinfer.protocol.datatypes import Datatype
from mqinfer.protocol.envelope import decode_request, encode_response
from mqinfer.protocol.header import CHAIN, POSITION
from mqinfer.protocol.topics import Topics
from mqinfer.protocol.types import EncodedTensor, ErrorInfo, InferRequest, InferResponse, Outcome
from tests.confined import MEMORY, MIB, Confined, confine
from tests.dashboard.hostile import ATTACKS
from tests.dashboard.programs import Programs
from tests.dashboard.publishing import Publisher
from tests.fuzz import seeds
from tests.fuzz.mutation import in_envelope
from tests.patience import PATIENCE_S, wait_until
from tests.segmenter import HEIGHT, WIDTH, write_segmenter

pytestmark = [pytest.mark.slow, pytest.mark.broker, pytest.mark.timeout(900), pytest.mark.full]

ROOM = 2 * MEMORY
"""Eight results wait for the files at most (--window), each of 256 MiB at most."""
MODEL, TOPICS, SIDE = "mask", Topics(), 16_000
MASK = np.zeros((1, HEIGHT, WIDTH), np.uint8)
ZEROS = np.broadcast_to(np.uint8(0), (1, SIDE, SIDE))
HALF = SIDE // 2
KINDS = ["csv", "jsonl", "mcap", "npz", "pictures", "rosbag", "video"]
Content = bytes | tuple[EncodedTensor, ...]
"""A reply's bytes, or its outputs."""


def tensor(encoding: str, data: bytes, *shape: int, **parameters: Any) -> tuple[EncodedTensor, ...]:
    """Return one output as it travels."""
    return (EncodedTensor("output", Datatype.UINT8, shape, encoding, data, parameters),)


def small_but_large() -> Iterator[Content]:
    """Outputs of at most a megabyte that decode to 256 MB, one or many in a reply."""
    for encoding in ("lz4", "shuffle-lz4", "mask"):
        yield (encode_tensor("output", ZEROS, encoding),)
        many = [encode_tensor("output", ZEROS, encoding)]
        many += [encode_tensor(f"output-{number}", ZEROS, encoding) for number in range(40)]
        yield tuple(many)
    picture = np.broadcast_to(np.uint8(0), (1, HALF, HALF, 3))
    for encoding in ("png", "jpeg"):
        yield (encode_tensor("output", picture, encoding),)
    yield tensor(
        "jpeg", cv2.imencode(".jpg", picture[0], [cv2.IMWRITE_JPEG_PROGRESSIVE, 1])[1].tobytes(), 1, HALF, HALF, 3
    )
    logits = np.broadcast_to(np.float32(0), (1, 60, 1000, 1000))
    yield (encode_tensor("output", logits, "lz4"),)
    yield (encode_tensor("output", np.broadcast_to(np.float32(0), (1, 10_000_000, 6)), "lz4"),)


def video() -> Iterator[Content]:
    """Pictures of H.264, large ones, and small ones behind hundreds of thousands of units."""
    large = H264Encoder(HALF, HALF, 51).encode(np.zeros((HALF, HALF, 3), np.uint8), key=True)
    yield tensor("h264", large, 1, HALF, HALF, 3)
    yield tensor("h264", large, 1, HALF, HALF, 3, **{CHAIN: 1, POSITION: 0})
    key = H264Encoder(64, 64, 30).encode(np.zeros((64, 64, 3), np.uint8), key=True)
    for unit in (b"\x0c", b"\x09\x10", b"\x06\x05\x01\0\x80"):
        for count in (300_000, 750_000):
            yield tensor("h264", (b"\0\0\1" + unit) * count + key, 1, 64, 64, 3)


def texts() -> Iterator[Content]:
    """Strings of nothing, headers of many small things, and errors that tell much."""
    yield (encode_tensor("output", np.full((1, 5_000_000), b"", object), "lz4"),)
    yield (encode_tensor("output", np.full((1, 4_000_000), b"abc", object)),)
    yield b"MQI1" + (20 * MIB).to_bytes(4, "little") + b"\xdd\0\x7a\x12\0" + b"\x80" * (20 * MIB)
    yield bytes(60 * MIB)
    yield b'{"outputs":[' + b"{}," * (8 * MIB) + b"{}]}"


def wrong_shapes() -> Iterator[Content]:
    """Outputs that are no mask of such a picture."""
    for shape in (
        (),
        (0,),
        (1, 1),
        (1, 1, 1),
        (1, 1, 4_000_000),
        (1, 4_000_000, 1),
        (1, 2, 3, 4, 5),
        (5, HEIGHT, WIDTH),
    ):
        yield (encode_tensor("output", np.full(shape, 255, np.uint8)),)
        yield (encode_tensor("output", np.full(shape, np.nan, np.float32)),)
    yield ()
    yield tuple(encode_tensor(f"output-{number}", MASK) for number in range(64))


def mutated() -> Iterator[Content]:
    """What the fuzzer makes of good messages."""
    chance, good = Random(20), seeds.envelopes()  # noqa: S311 - no secret depends on it
    for _ in range(200):
        yield in_envelope(chance.choice(good), chance, lambda data: data[: chance.randrange(len(data) + 1)])


REPLIES: dict[str, tuple[Callable[[], Iterator[Content]], int]] = {
    "outputs that decode to much": (small_but_large, 3),
    "video": (video, 2),
    "texts": (texts, 3),
    "wrong shapes": (wrong_shapes, 1),
    "mutated": (mutated, 1),
}
"""By name: the replies, and how often each is sent."""


class Impostor:
    """A worker that sends what it is told in place of a result, and a good one where nothing is left."""

    def __init__(self, url: str) -> None:
        self._todo: queue.SimpleQueue[Content] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self.good = 0
        self._link = make_link(url, client_id="impostor")
        self._link.open(PATIENCE_S)
        self._link.subscribe(TOPICS.infer_filter(MODEL), self._take, share="workers")

    def publish_card(self, folder: Path) -> None:
        """Publish the card of a model that makes masks."""
        (version,) = Repository(write_segmenter(folder, MODEL)).models()
        model = load_model(version, device="cpu")
        model.backend.close()
        self._link.publish(Message(TOPICS.card(MODEL), card_to_json(model.card), retain=True))

    def send(self, contents: Iterator[Content], times: int) -> None:
        """Send these in place of the next results, and wait until two good ones were sent behind them."""
        for content in contents:
            for _ in range(times):
                self._todo.put(content)
        while left := self._todo.qsize():  # each has its time: a busy machine takes long for some
            wait_until(lambda left=left: self._todo.qsize() < left)  # type: ignore[misc]  # bound now
        goal = self.good + 2
        wait_until(lambda: self.good >= goal)

    def close(self) -> None:
        """Disconnect."""
        self._link.close()

    def _take(self, message: Message) -> None:
        request = decode_request(message.payload)
        if not self._todo.empty():
            self._reply(request, self._todo.get())
            # What can't be read is no outcome: this one is.
            self._send(request, encode_response(self._response(request, (), Outcome.ERROR)))
        else:
            self._reply(request, (encode_tensor("output", MASK),))
            self.good += 1

    def _reply(self, request: InferRequest, content: Content) -> None:
        self._send(
            request, content if isinstance(content, bytes) else encode_response(self._response(request, content))
        )

    def _response(
        self, request: InferRequest, outputs: tuple[EncodedTensor, ...], outcome: Outcome = Outcome.OK
    ) -> InferResponse:
        error = ErrorInfo("internal", "x" * 4000) if outcome is Outcome.ERROR else None
        return InferResponse(request.id, MODEL, "1", outcome=outcome, outputs=outputs, error=error)

    def _send(self, request: InferRequest, payload: bytes) -> None:
        assert request.response_topic
        self._link.publish(Message(request.response_topic, payload))


def test_it_does_not_end_other_frames_are_served_and_memory_returns(tmp_path: Path) -> None:
    """Within 2 GiB and 60 descriptors, kind after kind; then 256 MiB are left at most, and the files are whole."""
    drive = write_drive(tmp_path / "drive", ros=2, frames=20, seed=1, width=WIDTH, height=HEIGHT, encoding="rgb8")
    with (
        MosquittoServer() as broker,
        Programs(tmp_path, broker.url) as programs,
        closing(Impostor(broker.url)) as impostor,
        Publisher(broker.url) as publisher,
    ):
        impostor.publish_card(tmp_path / "models")
        sinks = [f"--sink={kind}" for kind in KINDS]
        out = tmp_path / "out"
        edge = programs.start(
            "replay",
            drive,
            "--topic=/camera/image_raw",
            f"--model={MODEL}",
            "--loop",
            "--rate=0",
            "--output",
            out,
            *sinks,
        )
        confine(edge.process.pid, resource.RLIMIT_AS, ROOM)
        wait_until(lambda: impostor.good > 20)
        process = Confined(edge.process.pid, resource.RLIMIT_AS, ROOM)
        for kind, (contents, times) in REPLIES.items():
            impostor.send(contents(), times)
            process.check(kind)
        for kind, attack in ATTACKS.items():
            attack(publisher)
            impostor.send(iter(()), 0)
            process.check(str(kind))
        process.wait_for_memory()
        good = impostor.good
        edge.process.send_signal(signal.SIGINT)
        assert edge.process.wait(PATIENCE_S) == 0, edge.log()[-3000:]
    outcomes = Counter(json.loads(line)["outcome"] for line in (out / "results.jsonl").read_text().splitlines())
    assert outcomes["ok"] >= good

"""Memory as a promise: a worker of bounded address space and 60 descriptors, under whatever a stranger may send."""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from random import Random
from typing import Any

import cv2
import numpy as np
import pytest

from mqinfer import Client
from mqinfer.broker import make_link
from mqinfer.broker.link import Message
from mqinfer.codecs import encode_tensor
from mqinfer.codecs.h264 import H264Encoder
from mqinfer.protocol.datatypes import Datatype
from mqinfer.protocol.envelope import CONTENT_TYPE, encode_request
from mqinfer.protocol.header import CHAIN, POSITION
from mqinfer.protocol.oip_json import CONTENT_TYPE as JSON
from mqinfer.protocol.topics import Topics
from mqinfer.protocol.types import EncodedTensor, InferRequest
from tests.confined import MIB, Confined, confine
from tests.fuzz import seeds
from tests.fuzz.mutation import in_envelope
from tests.patience import PATIENCE_S, PATIENT, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.broker, pytest.mark.timeout(600), pytest.mark.full]

TOPICS = Topics()
SIDE = 8000
ZEROS = np.broadcast_to(np.uint8(0), (1, SIDE, SIDE, 3))
SMALL = np.zeros((1, 64, 64, 3), np.uint8)
GOOD = {"echo": encode_tensor("x", SMALL), "text": encode_tensor("x", np.full((1, 2), b"a", object))}
"""By model: a request that it answers."""
Payload = tuple[bytes, str]
"""Bytes, and their content type."""


def picture(encoding: str, data: bytes, side: int = SIDE, **parameters: Any) -> EncodedTensor:
    """Return a picture as it travels."""
    return EncodedTensor("x", Datatype.UINT8, (1, side, side, 3), encoding, data, parameters)


def small_but_large() -> Iterator[EncodedTensor]:
    """Tensors of at most a megabyte that decode to 192 MiB: in each encoding that can."""
    for encoding in ("lz4", "shuffle-lz4", "mask", "png", "jpeg"):
        yield encode_tensor("x", ZEROS, encoding)
    yield picture("jpeg", cv2.imencode(".jpg", ZEROS[0], [cv2.IMWRITE_JPEG_PROGRESSIVE, 1])[1].tobytes())
    key = H264Encoder(SIDE, SIDE, 51).encode(ZEROS[0], key=True)
    yield picture("h264", key)
    yield picture("h264", key, **{CHAIN: 1, POSITION: 0})


def units() -> Iterator[EncodedTensor]:
    """Pictures of H.264 behind hundreds of thousands of units."""
    key = H264Encoder(64, 64, 30).encode(SMALL[0], key=True)
    for unit in (b"\x0c", b"\x09\x10", b"\x06\x05\x01\0\x80"):
        for count in (300_000, 750_000):
            yield picture("h264", (b"\0\0\1" + unit) * count + key, 64)


def texts() -> Iterator[Payload]:
    """JSON of 8 MB and headers of many small things."""
    head = b'{"inputs":[{"name":"x","datatype":"UINT8","shape":[1,1,1333333,3],"data":['
    for element in (b"[],", b"{},", b"1,"):
        yield head + element * (7 * MIB // len(element)) + element[:-1] + b"]}]}", JSON
    yield b"MQI1" + (20 * MIB).to_bytes(4, "little") + b"\xdd\0\x7a\x12\0" + b"\x80" * (20 * MIB), CONTENT_TYPE


def strings() -> Iterator[EncodedTensor]:
    """Five million strings of nothing in 80 kB, and four million of three bytes."""
    yield encode_tensor("x", np.full((1, 5_000_000), b"", object), "lz4")
    yield encode_tensor("x", np.full((1, 4_000_000), b"abc", object))


def mutated() -> Iterator[Payload]:
    """What the fuzzer makes of good requests."""
    chance, good = Random(20), seeds.envelopes()  # noqa: S311 - no secret depends on it
    for _ in range(400):
        yield (
            in_envelope(chance.choice(good), chance, lambda data: data[: chance.randrange(len(data) + 1)]),
            CONTENT_TYPE,
        )


KINDS: dict[str, tuple[str, Callable[[], Iterator[EncodedTensor | Payload]], int]] = {
    "tensors that decode to much": ("echo", small_but_large, 3),
    "video of many units": ("echo", units, 2),
    "JSON and headers": ("echo", texts, 3),
    "strings": ("text", strings, 3),
    "mutated requests": ("echo", mutated, 1),
}
"""By name: the model, what is sent, and how often."""


@pytest.fixture
def confined(broker_url: str, tmp_path: Path, unique: Callable[[str], str]) -> Iterator[tuple[int, list[str]]]:
    """Start `mqinfer worker` within the bounds; return its process, and the names of two models: pictures, text."""
    names = [unique("echo"), unique("text")]
    for name, (datatype, shape) in zip(names, (("UINT8", "[-1, -1, -1, 3]"), ("BYTES", "[-1, -1]")), strict=True):
        folder = tmp_path / "models" / name / "1"
        folder.mkdir(parents=True)
        text = f'delay_ms = 5\n[[input]]\nname = "x"\ndatatype = "TYPE_{datatype}"\nshape = {shape}\n'
        (folder / "model.echo").write_text(text)

    arguments = ["--repository", str(tmp_path / "models"), "--broker", broker_url, "--name", unique("confined")]
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen([sys.executable, "-m", "mqinfer", "worker", *arguments], stdout=log, stderr=log)
        try:  # those of its own processes are the same: they are started later
            confine(process.pid, resource.RLIMIT_AS)
            wait_until(lambda: (tmp_path / "log").read_text().count(" ready: ") == len(names))
            yield process.pid, names
        finally:
            process.terminate()
            process.wait(PATIENCE_S)


class Stranger:
    """Sends what it is told, and knows which of its requests are answered."""

    def __init__(self, url: str, name: str) -> None:
        self._name, self._sent = name, 0
        self._answered: set[str] = set()
        self._link = make_link(url, client_id=name)
        self._link.open(PATIENCE_S)
        self._link.subscribe(TOPICS.result.filter(client=name), self._note)

    def send(self, model: str, content: EncodedTensor | Payload) -> str:
        """Send a request with a tensor, or with these bytes; return its id."""
        self._sent += 1
        request_id = f"{self._sent:032x}"
        to = TOPICS.result(model, self._name, request_id)
        if isinstance(content, EncodedTensor):
            content = encode_request(InferRequest(request_id, model, (content,), response_topic=to)), CONTENT_TYPE
        payload, kind = content
        topic, correlation = TOPICS.infer(model, self._name), bytes.fromhex(request_id)
        self._link.publish(Message(topic, payload, content_type=kind, response_topic=to, correlation_data=correlation))
        return request_id

    def flush(self, model: str, good: EncodedTensor) -> None:
        """Wait until a good request is answered, behind all others; a busy machine may lose one with a connection."""
        last: set[str] = set()
        end = time.monotonic() + 10 * PATIENCE_S
        while not last & self._answered:
            assert time.monotonic() < end
            last.add(self.send(model, good))
            with suppress(AssertionError):
                wait_until(lambda: bool(last & self._answered))

    def close(self) -> None:
        """Disconnect."""
        self._link.close()

    def _note(self, message: Message) -> None:
        self._answered.add(message.topic.rpartition("/")[2])


def test_no_process_ends_others_are_served_and_memory_returns(
    broker_url: str, confined: tuple[int, list[str]], unique: Callable[[str], str]
) -> None:
    """Within 2 GiB and 60 descriptors, kind after kind, while another caller asks; then 256 MiB are left at most."""
    server, names = confined
    models = dict(zip(("echo", "text"), names, strict=True))
    with Client(broker_url, options=PATIENT) as client, closing(Stranger(broker_url, unique("stranger"))) as stranger:

        def ask() -> None:
            assert client.infer(models["echo"], {"x": SMALL}, timeout=3 * PATIENCE_S).outputs["x"].shape == SMALL.shape

        ask()
        client.infer(models["text"], {"x": np.full((1, 2), b"a", object)}, timeout=3 * PATIENCE_S)
        processes = Confined(server, resource.RLIMIT_AS)
        for kind, (model, make, times) in KINDS.items():
            for content in make():
                for _ in range(times):
                    stranger.send(models[model], content)
            ask()
            stranger.flush(models[model], GOOD[model])
            ask()
            processes.check(kind)
        processes.wait_for_memory()
        ask()
        processes.check("all of them")

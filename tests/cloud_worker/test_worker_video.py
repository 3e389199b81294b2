"""Video at a worker: what it can't decode has a code, the next key frame heals, and other clients notice nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from mqinfer import Capture, Client
from mqinfer.cloud_worker.serving.worker import Worker
from mqinfer.codecs.chain import sealed
from mqinfer.codecs.h264 import H264Encoder
from mqinfer.protocol.datatypes import Datatype
from mqinfer.protocol.errors import MqinferError
from mqinfer.protocol.header import CHAIN, DIGEST, IMAGE_ENCODING, POSITION
from mqinfer.protocol.types import EncodedTensor

Serve = Callable[..., Worker]
HEIGHT, WIDTH = 32, 48
NOISE = np.random.default_rng(1).integers(0, 255, (HEIGHT, WIDTH, 1), np.uint8)


def picture(number: int) -> Any:
    """Return a picture that differs from the others."""
    return np.repeat(np.roll(NOISE, 2 * number, 1), 3, axis=2)


def chain(number: int, count: int) -> list[EncodedTensor]:
    """Encode pictures as one chain."""
    encoder = H264Encoder(HEIGHT, WIDTH, 20)
    tensors = []
    for position in range(count):
        encoded = sealed(encoder.encode(picture(position), key=position == 0), {CHAIN: number, POSITION: position})
        parameters = {IMAGE_ENCODING: "rgb8", **encoded.parameters}
        shape = (1, HEIGHT, WIDTH, 3)
        tensors.append(EncodedTensor("x", Datatype.UINT8, shape, "h264", encoded.data, parameters))
    return tensors


@pytest.fixture
def worker(url: str, serve: Serve, write_echo: Callable[..., Path]) -> Worker:
    """A worker that returns the picture that its model got."""
    return serve(url, write_echo("echo", ("x", "UINT8", [-1, HEIGHT, WIDTH, 3])))


def send(client: Client, tensor: EncodedTensor, source: str = "/camera") -> tuple[str, Any]:
    """Send one picture; return the code of its outcome, and what the model got."""
    try:
        result = client.infer("echo", {"x": tensor}, capture=Capture(source), timeout=60)
    except MqinferError as error:
        return error.code, None
    return "ok", result.outputs["x"][0]


def truncated(tensor: EncodedTensor, *, has_digest: bool) -> EncodedTensor:
    """Return the beginning of a picture."""
    parameters = dict(tensor.parameters)
    if not has_digest:
        del parameters[DIGEST]
    return replace(tensor, data=bytes(tensor.data)[:40], parameters=parameters)


def test_a_truncated_stream_has_a_code_and_a_key_frame_heals(url: str, worker: Worker) -> None:
    """With its digest or without; what is behind it is `reference_lost`, and the streams of others go on."""
    with Client(url) as client, Client(url) as other:
        theirs = iter(chain(1, 8))
        for has_digest in (True, False):
            sent = chain(worker.statistics().counters.get("ok", 0), 4)
            codes = [
                send(client, each)[0] for each in (sent[0], truncated(sent[1], has_digest=has_digest), sent[2], sent[3])
            ]
            assert codes == ["ok", "bad_encoding", "reference_lost", "reference_lost"]
            assert send(other, next(theirs))[0] == "ok"
            code, found = send(client, chain(worker.statistics().counters["ok"], 1)[0])
            assert code == "ok"
            assert np.abs(found.astype(int) - picture(0)).mean() < 12
            assert send(other, next(theirs))[0] == "ok"
    assert worker.statistics().counters["references_lost"] == 4


def test_streams_are_their_own(url: str, worker: Worker) -> None:
    """Another client, or another source, has none of a stream's pictures, though it names the same chain."""
    sent = chain(1, 3)
    with Client(url) as client, Client(url) as other:
        assert send(client, sent[0])[0] == "ok"
        assert send(other, sent[1])[0] == "reference_lost"
        assert send(client, sent[1], "/rear")[0] == "reference_lost"
        assert send(client, sent[1])[0] == "ok"
    assert worker.statistics().counters["references_lost"] == 2


@pytest.mark.parametrize(
    ("parameters", "code"),
    [
        ({CHAIN: -1, POSITION: 0}, "bad_encoding"),
        ({CHAIN: 1}, "bad_encoding"),
        ({CHAIN: 1, POSITION: 1 << 62}, "reference_lost"),
        ({CHAIN: "1", POSITION: "0"}, "bad_encoding"),
        ({DIGEST: "0" * 16}, "bad_encoding"),
        ({DIGEST: 5}, "bad_encoding"),
        ({POSITION: 3}, "ok"),  # without a chain it is a picture alone
    ],
)
def test_strange_parameters(url: str, worker: Worker, parameters: dict[str, Any], code: str) -> None:
    """Each has a code, and the worker serves on."""
    key = chain(1, 1)[0]
    with Client(url) as client:
        assert send(client, replace(key, parameters={IMAGE_ENCODING: "rgb8", **parameters}))[0] == code
        assert send(client, key)[0] == "ok"
    assert worker.failure is None

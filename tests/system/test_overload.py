"""Replies that no broker carries, and a swap while a thousand requests wait at one worker, with real parts."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from onnx import TensorProto, helper

from mqinfer import Client
from mqinfer.broker import make_link
from mqinfer.broker.link import Message
from mqinfer.client.request import make_request
from mqinfer.errors import MessageTooLarge, ModelFailed
from mqinfer.protocol.envelope import CONTENT_TYPE, decode_response, encode_request
from mqinfer.protocol.topics import Topics
from mqinfer.protocol.types import Outcome
from tests.onnx_files import save_onnx
from tests.patience import PATIENT

pytestmark = pytest.mark.broker
MIB = 1 << 18
"""Elements of a mebibyte of FP32."""


def write_tile(repository: Path) -> Path:
    """Write an ONNX model that repeats its input `n` times."""
    inputs = {"x": (TensorProto.FLOAT, ["a"]), "n": (TensorProto.INT64, [1])}
    nodes, outputs = [helper.make_node("Tile", ["x", "n"], ["y"])], {"y": (TensorProto.FLOAT, ["b"])}
    save_onnx(repository / "tile" / "1" / "model.onnx", nodes, inputs, outputs)
    (repository / "tile" / "model.toml").write_text("max_batch_size = 0\n", encoding="utf-8")
    return repository


def test_a_reply_of_200_megabytes_is_an_error_that_says_so(
    tmp_path: Path, serving: Callable[[Path], Topics], broker_url: str
) -> None:
    """So is one just above the limit; one just below arrives, and so do those of another client meanwhile."""
    topics = serving(write_tile(tmp_path))

    def ask(client: Client, repeats: int) -> Any:
        inputs: dict[str, Any] = {"x": np.ones(MIB, np.float32), "n": np.array([repeats], np.int64)}
        return client.infer("tile", inputs, timeout=60)

    with Client(broker_url, root=topics.root, options=PATIENT) as large, Client(broker_url, root=topics.root) as small:
        little: dict[str, Any] = {"x": np.ones(1, np.float32), "n": np.array([2], np.int64)}
        asked = [small.submit("tile", little, timeout=60) for _ in range(50)]
        assert ask(large, 63).outputs["y"].nbytes == 63 << 20
        for repeats, error in ((64, MessageTooLarge), (200, MessageTooLarge), (1 << 40, ModelFailed)):
            with pytest.raises(error):
                ask(large, repeats)
        assert ask(large, 1).outputs["y"].nbytes == 1 << 20
        assert {future.result(60).outcome for future in asked} == {Outcome.OK}
        assert (large.counters().retries, large.counters().late) == (0, 0)


@pytest.mark.slow
def test_a_swap_with_a_thousand_requests_at_one_worker(
    write_echo: Callable[..., Path], managed: Callable[..., Any], broker_url: str, unique: Callable[[str], str]
) -> None:
    """The old process replies to all that it has accepted: none is lost, none has two replies, none is wrong."""
    repository = write_echo("echo", delay_ms=2, config="max_batch_size = 1\n")
    server = managed(repository, capacity=2000)
    server.control.load("echo")
    name, replies, lock, all_in = unique("raw"), dict[str, list[Any]](), threading.Lock(), threading.Event()

    def note(message: Message) -> None:
        reply = decode_response(message.payload)
        with lock:
            replies.setdefault(reply.id, []).append(reply)
            if len(replies) == 1000:
                all_in.set()

    link = make_link(broker_url, client_id=name)
    link.open()
    try:
        link.subscribe(server.topics.result.filter(client=name), note)
        for number in range(1000):
            topic = server.topics.result("echo", name, f"{number:032x}")
            request = make_request("echo", {"x": np.full((1, 4), number, np.float32)}, {})
            payload = encode_request(replace(request, id=f"{number:032x}", response_topic=topic))
            link.publish(
                Message(server.topics.infer("echo", name), payload, content_type=CONTENT_TYPE, response_topic=topic)
            )
        write_echo("echo", version=2, delay_ms=2)
        server.control.load("echo")
        assert all_in.wait(60)
    finally:
        link.close()
    assert Counter(len(each) for each in replies.values()) == {1: 1000}
    for request_id, (reply,) in replies.items():
        assert reply.outcome is Outcome.OK
        assert np.frombuffer(reply.outputs[0].data, np.float32)[0] == int(request_id, 16)

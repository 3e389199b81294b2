"""Bad requests, damage on the way, replies that do not fit, defects: a typed reply, and on it goes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import lz4.block
import numpy as np
import pytest
from msgspec.structs import replace

from mqinfer import Outcome
from mqinfer.cloud_worker.serving.worker import Worker
from mqinfer.codecs import encode_tensor
from mqinfer.protocol.checksum import CHECKSUM, checksum
from mqinfer.protocol.decoding import MAX_JSON_BYTES
from mqinfer.protocol.oip_json import HEADER_LENGTH
from mqinfer.protocol.types import EncodedTensor
from tests.patience import wait_until

GatedWorker = Callable[..., tuple[Worker, Any]]
X = np.arange(4, dtype=np.float32).reshape(1, 4)
DATA = '"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [0, 1, 2, 3]}]'
LZ4_BOMB = EncodedTensor(
    "x", encode_tensor("x", X).datatype, (25_000_000_000, 4), "lz4", lz4.block.compress(b"a" * 64, store_size=False)
)
LZ4_LIAR = replace(LZ4_BOMB, shape=(1, 4), data=lz4.block.compress(bytes(1 << 20), store_size=False))


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (lambda _: b"", "bad_envelope"),
        (lambda _: b"MQI0" + bytes(60), "bad_envelope"),
        (lambda _: b"MQI1" + (1 << 31).to_bytes(4, "little") + bytes(56), "bad_envelope"),
        (lambda _: b"MQI1" + b"\x04\x00\x00\x00" + b"\xc1\xc1\xc1\xc1" + bytes(52), "bad_envelope"),
        (lambda bare: bytes(bare.binary().payload)[:-64], "bad_tensor"),
        (lambda bare: bare.binary(inputs=(LZ4_BOMB,)).payload, "limit_exceeded"),
        (lambda bare: bare.binary(inputs=(LZ4_LIAR,)).payload, "bad_encoding"),
        (lambda bare: bare.binary(inputs=(replace(LZ4_LIAR, encoding="jpeg"),)).payload, "bad_encoding"),
        (lambda bare: bare.binary(inputs=(replace(LZ4_LIAR, encoding="zip"),)).payload, "bad_encoding"),
        (
            lambda bare: bare.binary(inputs=(replace(LZ4_LIAR, shape=(1 << 62, 1 << 62), data=b""),)).payload,
            "limit_exceeded",
        ),
    ],
)
def test_bad_messages_are_answered_by_their_error(
    gated_worker: GatedWorker, bare: Any, make: Callable[[Any], bytes], code: str
) -> None:
    """Wrong magic, a header beyond the payload, an overflowing shape, LZ4 bombs: a typed reply, and on it goes."""
    gated_worker()
    reply = bare.ask(replace(bare.binary(), payload=make(bare)))
    assert (reply.id, reply.outcome) == ("ab" * 16, Outcome.ERROR)
    assert reply.error
    assert reply.error.code == code, reply.error
    assert bare.ask(bare.binary("cd" * 16)).outcome is Outcome.OK


def test_a_damaged_request_is_not_run_and_not_blamed(gated_worker: GatedWorker, bare: Any) -> None:
    """Whatever its bytes say by now: it is rejected, so that it is sent again; then it runs under the same id."""
    worker, backend = gated_worker()
    good = bare.binary()
    payload = bytes(good.payload)
    stated = replace(good, user_properties=(checksum((payload,)),))
    for place in (0, 5, 20, len(payload) - 1):
        damaged = bytearray(payload)
        damaged[place] ^= 1
        reply = bare.ask(replace(stated, payload=bytes(damaged)))
        assert (reply.id, reply.outcome) == ("ab" * 16, Outcome.REJECTED)
        assert reply.error
        assert reply.error.code == "corrupted"
    assert backend.runs == []
    assert bare.ask(stated).outcome is Outcome.OK
    wait_until(lambda: worker.statistics().counters == {"rejected": 4, "corrupted": 4, "ok": 1})


def test_a_damaged_request_is_answered_nowhere_but_where_any_other_would_be(
    gated_worker: GatedWorker, bare: Any
) -> None:
    """Its properties may be damaged as well, so the Response Topic is checked as ever."""
    worker, _ = gated_worker()
    wrong = (CHECKSUM, "0" * 8)
    for topic in (None, "mqinfer/v1/results/echo/bard/1", "mqinfer/v1/state"):
        bare.link.publish(replace(bare.binary(), response_topic=topic, user_properties=(wrong,)))
    assert bare.ask(bare.binary()).outcome is Outcome.OK
    wait_until(lambda: worker.statistics().counters == {"dropped_corrupted": 3, "corrupted": 3, "ok": 1})


@pytest.mark.parametrize("make", [lambda bare: bare.binary(), lambda bare: bare.text("{" + DATA + "}")])
def test_every_reply_carries_its_checksum(gated_worker: GatedWorker, bare: Any, make: Any) -> None:
    """Results and errors, in both forms; a request in JSON that has one is held to it."""
    gated_worker()
    for request in (
        make(bare),
        replace(make(bare), payload=b"{"),
        replace(make(bare), user_properties=((CHECKSUM, ""),)),
    ):
        bare.link.publish(request)
        reply = bare.next()
        assert checksum((reply.payload,)) in reply.user_properties
    assert b"corrupted" in bytes(reply.payload)


def test_a_reply_above_the_brokers_limit_is_an_error_reply(gated_worker: GatedWorker, bare: Any) -> None:
    """The sender learns that there was a result and why it could not come; the reply is counted once."""
    worker, _ = gated_worker("echo", ("x", "FP32", [-1, 1000]))
    wide = encode_tensor("x", np.zeros((1, 1000), np.float32), "lz4")
    bare.link._broker.max_packet_size = 2000
    reply = bare.ask(bare.binary(inputs=(wide,)))
    assert reply.error
    assert reply.error.code == "message_too_large"
    wait_until(lambda: worker.statistics().counters == {"error": 1})


def test_a_reply_with_more_elements_than_json_can_hold_is_an_error_reply(gated_worker: GatedWorker, bare: Any) -> None:
    """It is refused before it is written: writing 200 MB takes 20 seconds in which no other thread runs."""
    most = MAX_JSON_BYTES // 2
    gated_worker("echo", ("x", "UINT8", [-1]), config="max_batch_size = 0")
    for count, code in ((most + 1, b"limit_exceeded"), (1000, b"")):
        head = f'{{"id": "1", "inputs": [{{"name": "x", "datatype": "UINT8", "shape": [{count}],'
        head += f' "parameters": {{"binary_data_size": {count}}}}}]}}'
        properties = ((HEADER_LENGTH, str(len(head))),)
        payload = head.encode() + bytes(count)
        bare.link.publish(replace(bare.text("", str(count)), payload=payload, user_properties=properties))
        reply = bytes(bare.next().payload)
        assert (code in reply, b'"outputs"' in reply) == (True, not code)


def test_an_answer_that_does_not_fit_at_all_is_counted(
    gated_worker: GatedWorker, bare: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Where not even the error fits through, the worker says so to its log and goes on."""
    worker, backend = gated_worker()
    bare.hold(backend)
    limit, bare.link._broker.max_packet_size = bare.link._broker.max_packet_size, 200
    with caplog.at_level(logging.CRITICAL, "mqinfer"):
        backend.gate.set()
        wait_until(lambda: worker.depth == 0)
    bare.link._broker.max_packet_size = limit
    wait_until(lambda: worker.statistics().counters == {"dropped_message_too_large": 1})
    assert bare.ask(bare.binary("cd" * 16)).outcome is Outcome.OK


def test_a_defect_is_answered_and_leaves_nothing_behind(
    gated_worker: GatedWorker, bare: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What should never be raised costs one request, whose reply says so and which may come again."""
    worker, _ = gated_worker()

    def broken(*_: object) -> Any:
        raise ZeroDivisionError

    with caplog.at_level(logging.CRITICAL, "mqinfer"), monkeypatch.context() as patch:
        patch.setattr("mqinfer.cloud_worker.serving.service.decode_tensor", broken)
        reply = bare.ask(bare.binary())
    assert reply.error
    assert (reply.error.code, "ZeroDivisionError" in reply.error.message) == ("internal", True)
    assert bare.ask(bare.binary("cd" * 16)).outcome is Outcome.OK
    wait_until(lambda: worker.depth == 0)

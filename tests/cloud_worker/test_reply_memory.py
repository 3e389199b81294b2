from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqinfer.broker.link import Message
from mqinfer.broker.packets import payload_size
from mqinfer.cloud_worker.serving.replies import REPLY_COST, ReplyMemory, Seen
from mqinfer.codecs import encode_tensor
from mqinfer.protocol.datatypes import Array
from mqinfer.protocol.types import Outcome
from tests.patience import wait_until

ACTIONS = st.lists(
    st.tuples(st.sampled_from(["begin", "finish", "forget"]), st.integers(0, 8), st.integers(0, 900)), max_size=80
)


@given(ACTIONS, st.integers(0, 3000))
def test_the_bound_holds_and_what_is_told_is_true(actions: list[tuple[str, int, int]], bound: int) -> None:
    """Stored replies never cost more than the bound; an id is new, running, or gives the reply stored last."""
    memory = ReplyMemory(bound)
    running: set[int] = set()
    stored: dict[int, Message] = {}
    for action, key, size in actions:
        if action == "begin":
            known = memory.begin(key)
            if isinstance(known, Message):
                assert known is stored[key]
            elif known is Seen.RUNNING:
                assert key in running
            else:
                assert key not in running
                running.add(key)
                stored.pop(key, None)
        elif action == "finish":
            stored[key] = Message("t", bytes(size // 2), tail=(bytes(size - size // 2),))
            memory.finish(key, stored[key])
            running.discard(key)
        else:
            memory.forget(key)
            running.discard(key)
            stored.pop(key, None)
        for each in list(stored):
            if memory.begin(each) is Seen.NEW:  # it made room for a newer one
                memory.forget(each)
                del stored[each]
        assert memory.bytes == sum(payload_size(reply) + REPLY_COST for reply in stored.values()) <= bound


def test_the_oldest_reply_goes_first() -> None:
    """Room is made by forgetting what was finished longest ago; running ones stay."""
    memory = ReplyMemory(2 * (REPLY_COST + 10))
    memory.begin("running")
    for key in "abc":
        memory.begin(key)
        memory.finish(key, Message("t", bytes(10)))
    assert memory.begin("a") is Seen.NEW
    assert isinstance(memory.begin("b"), Message)
    assert isinstance(memory.begin("c"), Message)
    assert memory.begin("running") is Seen.RUNNING


@pytest.mark.parametrize("reply", [Message("t", bytes(10)), Message("t", b"", correlation_data=bytes(10))])
def test_a_reply_above_the_bound_is_not_kept(reply: Message) -> None:
    """Its request runs again if it comes again; the Correlation Data that it repeats counts, up to 64 KiB."""
    memory = ReplyMemory(REPLY_COST + 9)
    memory.begin("a")
    memory.finish("a", reply)
    assert memory.begin("a") is Seen.NEW


@pytest.mark.parametrize("rows", [1, 2, 8])
def test_a_stored_reply_keeps_no_more_than_its_own_bytes(gated_worker: Any, bare: Any, rows: int) -> None:
    """A part of a large batch's outputs is copied, so that the others are free once they are forgotten."""
    batches = f"max_batch_size = {rows}\n[dynamic_batching]\nmax_queue_delay_microseconds = 60000000\n"
    model = ("echo", ("x", "FP32", [-1, -1]))
    worker, backend = gated_worker(*model, config=batches if rows > 1 else "", memory_bytes=4 << 20)
    outputs: list[weakref.ref[Array]] = []
    infer = backend.infer

    def watched(inputs: Any, wanted: Any = ()) -> dict[str, Array]:
        found = {name: array.copy() for name, array in infer(inputs, wanted).items()}
        outputs.extend(weakref.ref(array) for array in found.values())
        return found

    backend.infer = watched
    large = encode_tensor("x", np.zeros((1, 750_000), np.float32))
    for number in range(rows):
        bare.link.publish(bare.binary(f"{number:032x}", inputs=(large,)))
    assert [bare.read().outcome for _ in range(rows)] == [Outcome.OK] * rows
    wait_until(lambda: worker.depth == 0)
    kept = sum(array.nbytes for each in outputs if (array := each()) is not None)
    assert kept <= 6_000_000

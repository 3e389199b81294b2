"""Memory of a worker: what a few bytes become is bounded before it is taken, and freed when it has been answered."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from mqinfer.cloud_worker.serving.worker import Worker
from mqinfer.codecs import decode_tensor, encode_tensor
from mqinfer.protocol.datatypes import Array
from mqinfer.protocol.types import Outcome
from tests.cloud_worker.conftest import GatedEcho
from tests.patience import wait_until

GatedWorker = Callable[..., tuple[Worker, GatedEcho]]
MIB = 1 << 20
ONCE = "max_batch_size = 1\n"


class Decoded:
    """Decodes tensors, and sees which of the arrays are still there."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._arrays: list[weakref.ref[Array]] = []
        self.most = 0
        monkeypatch.setattr("mqinfer.cloud_worker.serving.service.decode_tensor", self)

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays that are there."""
        arrays = [array for each in list(self._arrays) if (array := each()) is not None]
        return sum(array.nbytes if array.dtype != object else 49 * array.size for array in arrays)

    def __call__(self, *arguments: Any) -> Array:
        """Decode a tensor."""
        array = decode_tensor(*arguments)
        self._arrays.append(weakref.ref(array))
        self.most = max(self.most, self.nbytes)
        return array


@pytest.mark.parametrize(
    ("datatype", "array"),
    [("UINT8", np.zeros((1, MIB), np.uint8)), ("BYTES", np.full((1, MIB // 49), b"1", object))],
    ids=["numbers", "strings"],
)
def test_small_requests_that_decode_to_much_wait_as_they_came(
    gated_worker: GatedWorker, bare: Any, datatype: str, array: Array, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forty of 4 KiB that take 1 MiB each, at a worker with room for 4: few are decoded at a time, all are served."""
    worker, backend = gated_worker("echo", ("x", datatype, [-1, -1]), config=ONCE, capacity_bytes=4 * MIB)
    decoded = Decoded(monkeypatch)
    small = encode_tensor("x", array, "lz4")
    bare.hold(backend, f"{0:032x}", inputs=(small,))
    for number in range(1, 40):
        bare.link.publish(bare.binary(f"{number:032x}", inputs=(small,)))
    wait_until(lambda: worker.pipeline.prepared >= 3)
    backend.gate.set()
    assert [bare.read().outcome for _ in range(40)] == [Outcome.OK] * 40
    wait_until(lambda: worker.depth == 0)
    assert decoded.most <= 7 * MIB


def test_an_idle_worker_returns_freed_memory_once(
    gated_worker: GatedWorker, bare: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some time after its last request, and again only after another one; not while one runs."""
    worker, backend = gated_worker()
    returned: list[int] = []
    monkeypatch.setattr("mqinfer.cloud_worker.serving.worker.return_freed_memory", lambda: returned.append(1))
    worker.refresh()
    bare.hold(backend)
    worker.refresh()
    monkeypatch.setattr("mqinfer.cloud_worker.serving.worker._IDLE_S", -1.0)
    worker.refresh()
    assert not returned
    backend.gate.set()
    assert bare.read().outcome is Outcome.OK
    wait_until(lambda: worker.depth == 0)
    for _ in range(3):
        worker.refresh()
    assert returned == [1]
    assert bare.ask(bare.binary("01" * 16)).outcome is Outcome.OK
    wait_until(lambda: worker.depth == 0)
    worker.refresh()
    assert returned == [1, 1]

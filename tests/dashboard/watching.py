"""Another client beside the page: what it decodes of the same messages, and when they came."""

from __future__ import annotations

import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt

from mqinfer.broker import BrokerAddress, Message, make_link
from mqinfer.codecs import decode_tensor
from mqinfer.protocol.envelope import decode_response
from mqinfer.protocol.states import WorkerState
from mqinfer.protocol.topics import Topics
from tests.patience import PATIENCE_S

__all__ = ["Witness", "witness"]

_KEPT = 3000


class Witness:
    """Keeps the masks of the last results, and when each state of a worker came."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._topics = Topics()
        self._masks: OrderedDict[tuple[str, str, int], npt.NDArray[np.uint8]] = OrderedDict()
        self._states: dict[tuple[str, str], float] = {}
        self._counts: Counter[str] = Counter()
        self.previews = 0

    def mask(self, client: str, source: str, sequence: int) -> npt.NDArray[np.uint8]:
        """Return the mask of a frame, `[height, width]`; the page may have it first, and then this waits."""
        key = client, source, sequence
        with self._changed:
            assert self._changed.wait_for(lambda: key in self._masks, PATIENCE_S), f"no result has sequence {sequence}"
            return self._masks[key]

    def results_of(self, client: str) -> int:
        """Return how many results of a client came."""
        with self._changed:
            return self._counts[client]

    def state_came(self, worker: str, status: str) -> float | None:
        """Return when a worker's state came last, in seconds of `time.time()`, as the page's clock."""
        with self._changed:
            return self._states.get((worker, status))

    def on_result(self, message: Message) -> None:
        """Decode a result."""
        reply = decode_response(message.payload)
        client = self._topics.result.parse(message.topic)["client"]
        masks = [each for each in reply.outputs if each.encoding == "mask"]
        with self._changed:
            self._counts[client] += 1
            if masks and reply.capture.sequence is not None:
                array: npt.NDArray[np.uint8] = decode_tensor(masks[0]).astype(np.uint8)
                self._masks[client, reply.capture.source, reply.capture.sequence] = array.reshape(array.shape[-2:])
                while len(self._masks) > _KEPT:
                    self._masks.popitem(last=False)
                self._changed.notify_all()

    def on_preview(self, _: Message) -> None:
        """Count a preview."""
        with self._changed:
            self.previews += 1

    def on_worker(self, message: Message) -> None:
        """Note when a state came."""
        now = time.time()
        name, state = WorkerState.read(self._topics, message.topic, message.payload)
        if state is not None:
            with self._changed:
                self._states[name, state.status.value] = now


@contextmanager
def witness(url: str | BrokerAddress) -> Iterator[Witness]:
    """Subscribe to what a page subscribes to."""
    kept, topics = Witness(), Topics()
    link = make_link(url, client_id=f"witness-{time.monotonic_ns():x}")
    handlers: dict[str, Callable[[Message], None]] = {
        f"{topics.root}/results/+/+/+": kept.on_result,
        f"{topics.root}/clients/+/preview/+": kept.on_preview,
        topics.worker_state.filter(): kept.on_worker,
    }
    link.open()
    try:
        for topic_filter, handler in handlers.items():
            link.subscribe(topic_filter, handler)
        yield kept
    finally:
        link.close()

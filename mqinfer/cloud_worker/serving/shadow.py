"""Shadow traffic: copies of a share of a worker's requests also go to another version, whose answers are only compared.

A copy is made behind the reply to its request, on a thread of its own, and its answer is read by a client of its own:
nobody waits for either. There are only so many copies at a time, and none is made while the model is busy.
"""

from __future__ import annotations

import logging
import random
import re
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mqinfer.cloud_worker.serving.incoming import IncomingRequest
from mqinfer.cloud_worker.serving.load import LoadMeter
from mqinfer.codecs import STATEFUL
from mqinfer.models.repository.traffic import Shadow
from mqinfer.protocol.datatypes import Array
from mqinfer.protocol.errors import Cancelled, LinkError, MqinferError, NoWorker, Rejected
from mqinfer.protocol.header import SIGNATURE
from mqinfer.protocol.shadow import counter
from mqinfer.protocol.types import InferRequest, InferResponse

if TYPE_CHECKING:
    from mqinfer.client import Client
    from mqinfer.client.result import InferResult

log = logging.getLogger("mqinfer.cloud_worker")
_MOST, _MOST_BYTES = 8, 64 << 20
"""Copies without an answer at a time, and the bytes of their inputs and of the answers that they are compared with."""
_TIMEOUT_S = 10.0
_BUSY, _LOOK_S = 0.9, 1.0
"""Part of a time of at least so many seconds in which the model ran, from which on no copies are made."""
_NO_ROOM = (Rejected, NoWorker, Cancelled, LinkError)
"""Errors that say nothing of the version: it has no room or no worker, or there is no connection."""


@dataclass(frozen=True, slots=True, eq=False)
class _Copy:
    """A request that was answered, and the answer: what came, what the model got of it, and what is compared."""

    request: InferRequest
    prepared: Mapping[str, Array]
    response: InferResponse
    outputs: Mapping[str, Array]
    size: int


class Shadowing:
    """Copies for one shadow version. Thread-safe.

    Attributes:
        target: The version, its share, and what agrees.

    Args:
        target: As the attribute.
        meter: Of the worker: counts what becomes of the copies.
        connect: Makes the client that sends them; may raise a LinkError.
        clock: In seconds.
    """

    def __init__(
        self,
        target: Shadow,
        meter: LoadMeter,
        connect: Callable[[], Client],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.target = target
        self._meter, self._connect, self._clock = meter, connect, clock
        self._client: Client | None = None
        self._sender = ThreadPoolExecutor(1, "mqinfer-shadow")
        self._lock = threading.Lock()
        self._under_way = self._bytes = 0
        self._since, self._replies, self._is_busy = clock(), 0, False

    def offer(
        self,
        incoming: IncomingRequest,
        prepared: Mapping[str, Array],
        response: InferResponse,
        outputs: Mapping[str, Array],
    ) -> None:
        """Copy a request that was replied to, where it is its turn and there is room.

        Args:
            incoming: The request.
            prepared: Its inputs as the model got them.
            response: The reply.
            outputs: The arrays in it.
        """
        is_busy, request = self._look(), incoming.request
        if request.model_version is not None or response.error is not None:
            return
        if 100 * random.random() >= self.target.share:  # noqa: S311 - no secret depends on it
            return
        size = incoming.size + sum(each.nbytes for each in outputs.values())
        if is_busy or not self._enter(size):
            self._count("dropped", "busy" if is_busy else "full")
            return
        try:
            self._sender.submit(self._send, _Copy(request, prepared, response, outputs, size))
        except RuntimeError:  # it is being closed
            self._leave(size)

    def close(self) -> None:
        """Make no copies any more; those under way are not waited for."""
        self._sender.shutdown(cancel_futures=True)
        if self._client is not None:
            self._client.close()

    def _look(self) -> bool:
        """Count a reply, and return whether the model is busy: over a second, so that all of a burst count alike."""
        self._replies += 1
        seconds = self._clock() - self._since
        if seconds >= _LOOK_S:
            self._is_busy = self._replies * self._meter.service_s > _BUSY * seconds
            self._since, self._replies = self._since + seconds, 0
        return self._is_busy

    def _enter(self, size: int) -> bool:
        with self._lock:
            has_room = self._under_way < _MOST and self._bytes + size <= _MOST_BYTES
            if has_room:
                self._under_way += 1
                self._bytes += size
            return has_room

    def _leave(self, size: int) -> None:
        with self._lock:
            self._under_way -= 1
            self._bytes -= size

    def _send(self, copy: _Copy) -> None:
        """Send a copy; a picture that is encoded against others goes as the tensor that was made of it."""
        request, prepared = copy.request, copy.prepared
        try:
            if self._client is None:
                self._client = self._connect()
            future = self._client.submit(
                copy.response.model_name,
                {each.name: prepared[each.name] if each.encoding in STATEFUL else each for each in request.inputs},
                timeout=_TIMEOUT_S,
                version=self.target.version,
                outputs=[each.name for each in request.outputs],
                classification={each.name: each.classification for each in request.outputs if each.classification},
                signature=str(request.parameters.get(SIGNATURE, "")),
            )
        except BaseException as error:  # noqa: BLE001 - also no memory: a copy less
            self._end(copy, error)
        else:
            future.add_done_callback(lambda done: self._received(copy, done))

    def _received(self, copy: _Copy, done: Future[InferResult]) -> None:
        try:
            result = done.result()
            agrees = agree(copy.outputs, result.outputs, self.target.tolerance)
        except BaseException as error:  # noqa: BLE001 - as above
            self._end(copy, error)
            return
        self._count("agreed" if agrees else "differed")
        self._count("own_ns", by=result.timings.server)
        self._count("beside_ns", by=copy.response.timings.server)
        self._leave(copy.size)

    def _end(self, copy: _Copy, error: BaseException) -> None:
        """Count a copy without an answer."""
        if isinstance(error, MqinferError):
            self._count("dropped" if isinstance(error, _NO_ROOM) else "failed", error.code)
        else:
            log.error("a copy for shadow version %d could not be made", self.target.version, exc_info=error)
            self._count("dropped", "internal")
        self._leave(copy.size)

    def _count(self, what: str, reason: str = "", by: int = 1) -> None:
        self._meter.count(counter(self.target.version, what, reason), by)


def agree(one: Mapping[str, Array], other: Mapping[str, Array], tolerance: float) -> bool:
    """Return whether two answers have the same outputs, but for a tolerance.

    Numbers with a fraction may differ by the tolerance, relative where they are above 1; of whole numbers, such as
    classes of pixels, and of texts that part of them may differ, and of a text `value:index[:label]` only what follows
    the value counts.
    """
    return one.keys() == other.keys() and all(_is_alike(one[name], other[name], tolerance) for name in one)


def _is_alike(one: Array, other: Array, tolerance: float) -> bool:
    kinds = {"O" if each.dtype.kind in "SU" else each.dtype.kind for each in (one, other)}
    if one.shape != other.shape or len(kinds) > 1:
        return False
    if kinds == {"f"}:
        return bool(np.allclose(one, other, rtol=tolerance, atol=tolerance, equal_nan=True))
    if kinds == {"O"}:
        one, other = _texts(one), _texts(other)
    return not one.size or float(np.mean(one != other)) <= tolerance


def _texts(array: Array) -> Array:
    """Return texts without the scores of a classification; a model's own may be no bytes yet."""
    given = [each if isinstance(each, bytes) else str(each).encode() for each in array.ravel().tolist()]
    return np.array([_SCORE.sub(b"", each) for each in given], object)


_SCORE = re.compile(rb"^[-+]?([0-9.e+-]+|inf|nan):")
"""What precedes the index in a text of a classification."""

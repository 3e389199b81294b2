"""What a worker keeps of its clients' streams from one picture to the next, within bounds.

Pictures that are encoded against earlier ones need those here. Nothing of it is needed for a right answer: whoever asks
for something that is gone receives `reference_lost`, and sends the picture again on its own.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from mqinfer.codecs import Codecs, decode_tensor, traits_of
from mqinfer.codecs.chain import ChainDecoder
from mqinfer.protocol.datatypes import Array
from mqinfer.protocol.errors import ReferenceLost
from mqinfer.protocol.header import CHAIN
from mqinfer.protocol.limits import Limits
from mqinfer.protocol.types import EncodedTensor

StreamKey = tuple[str, str, str, str]
"""Client, source of the pictures, name of the model's input, encoding."""
_MOST_BYTES = 256 << 20
_MOST_STREAMS = 256
_IDLE_S = 30.0
"""A stream without a picture of its chain for so long is forgotten."""


@dataclass(slots=True, eq=False)
class _StreamState:
    """The state of one stream in one encoding.

    Attributes:
        decoder: Decodes its pictures; it guards itself.
        used: When the last picture of its chain came, in seconds.
        counted: Bytes of memory, as they are part of the sum.
    """

    decoder: ChainDecoder
    used: float
    counted: int = 0


class StreamStates:
    """The states of all streams of one worker. Thread-safe.

    Where there is no room for one more, the client that takes most loses the stream that it used longest ago.
    """

    def __init__(
        self,
        count: Callable[[str], None] = lambda _: None,
        *,
        most_bytes: int = _MOST_BYTES,
        most_streams: int = _MOST_STREAMS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start with none.

        Args:
            count: Counts by name what was forgotten for want of room (`streams_forgotten`) and of pictures
                (`streams_idle`), and pictures encoded against some that are gone (`references_lost`).
            most_bytes: Of all pictures together.
            most_streams: How many streams have a state at a time.
            clock: In seconds.
        """
        self._count, self._clock = count, clock
        self._most_bytes, self._most_streams = most_bytes, most_streams
        self._lock = threading.Lock()
        self._states: OrderedDict[StreamKey, _StreamState] = OrderedDict()
        self._bytes = 0

    def decode(self, tensor: EncodedTensor, key: StreamKey, limits: Limits, codecs: Codecs) -> Array:
        """Decode a picture, with its stream's state if it is encoded against others.

        Args:
            tensor: As received; its encoding is one of `codecs.STATEFUL`.
            key: The stream.
            limits: Limits of this receiver.
            codecs: The codecs of this process.

        Raises:
            ReferenceLost: What it is encoded against is not here.
            BadEncoding, BadTensor, LimitExceeded: As of `decode_tensor`.
        """
        stream = traits_of(tensor.encoding).stream
        if stream is None or CHAIN not in tensor.parameters:
            return decode_tensor(tensor, limits, codecs)
        with self._lock:
            if key not in self._states:
                self._states[key] = _StreamState(stream.decoder(), self._clock())
            state = self._states[key]
            self._states.move_to_end(key)
        try:
            pixels = state.decoder.decode(tensor, limits)
        except ReferenceLost:
            self._count("references_lost")
            raise
        else:
            if tensor.parameters[CHAIN] == state.decoder.chain:  # an edge's clock may have been set back
                state.used = self._clock()
            return pixels
        finally:
            self._make_room(key)

    def forget_idle(self) -> bool:
        """Forget the streams without a picture for `_IDLE_S`; call it now and then. Return whether there were any."""
        before = self._clock() - _IDLE_S
        with self._lock:
            idle = [key for key, state in self._states.items() if state.used < before]
            for key in idle:
                self._bytes -= self._states.pop(key).counted
        for _ in idle:
            self._count("streams_idle")
        return bool(idle)

    def _make_room(self, key: StreamKey) -> None:
        """Count the memory that a stream takes now, and forget others until there is room for it."""
        forgotten = 0
        with self._lock:
            if state := self._states.get(key):
                nbytes = state.decoder.nbytes
                self._bytes += nbytes - state.counted
                state.counted = nbytes
            while self._bytes > self._most_bytes or len(self._states) > self._most_streams:
                self._bytes -= self._states.pop(self._dispensable()).counted
                forgotten += 1
        for _ in range(forgotten):
            self._count("streams_forgotten")

    def _dispensable(self) -> StreamKey:
        """Return the stream used longest ago of the client that has most of what is scarce; the lock is held."""
        shares: Counter[str] = Counter()
        for (client, _, _, _), state in self._states.items():
            shares[client] += state.counted if self._bytes > self._most_bytes else 1
        largest = max(shares, key=shares.__getitem__)
        return next(key for key in self._states if key[0] == largest)

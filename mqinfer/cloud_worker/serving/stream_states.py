"""What a worker keeps of its clients' streams from one picture to the next, within bounds.

Pictures that are encoded against earlier ones need those here. Nothing of it is needed for a right answer: whoever asks
for something that is gone receives `reference_lost`, and sends the picture again on its own.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable

from mqinfer.codecs import Codecs, decode_tensor
from mqinfer.codecs.difference import DIFFERENCE, add_difference, array_name
from mqinfer.codecs.video import VIDEO
from mqinfer.codecs.video_chain import VideoChain
from mqinfer.protocol.datatypes import Array
from mqinfer.protocol.errors import ReferenceLost
from mqinfer.protocol.header import CHAIN, KEEP, REFERENCE
from mqinfer.protocol.limits import Limits
from mqinfer.protocol.types import EncodedTensor

__all__ = ["STATEFUL", "StreamKey", "StreamStates"]

STATEFUL = frozenset((DIFFERENCE, *VIDEO))
"""Encodings that may need the stream's state."""
StreamKey = tuple[str, str, str]
"""Client, source of the pictures, name of the model's input."""
_MOST_KEPT = 3
"""Pictures of one stream: the client's reference, the next one that it offers, and the one that frames on their way
still need."""
_MOST_BYTES = 256 << 20
_MOST_STREAMS = 256
_IDLE_S = 30.0
"""A stream without a picture for so long is forgotten."""


class _StreamState:
    """The state of one stream.

    Attributes:
        kept: Pictures by name, the oldest first.
        video: Decodes its video; it guards itself.
        used: When its last picture came, in seconds.
        counted: Bytes of memory, as they are part of the sum.
    """

    __slots__ = ("counted", "kept", "used", "video")

    def __init__(self) -> None:
        self.kept: OrderedDict[str, Array] = OrderedDict()
        self.video = VideoChain()
        self.used = 0.0
        self.counted = 0

    @property
    def nbytes(self) -> int:
        """Bytes of memory, about."""
        return sum(array.nbytes for array in self.kept.values()) + self.video.nbytes


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
        """Decode a picture with its stream's state, and keep it there if its sender asks for that.

        Args:
            tensor: As received; its encoding is one of `STATEFUL`, or it has the parameter `keep`.
            key: The stream.
            limits: Limits of this receiver.
            codecs: The codecs of this process.

        Raises:
            ReferenceLost: What it is encoded against is not here.
            BadEncoding, BadTensor, LimitExceeded: As of `decode_tensor`.
        """
        try:
            if tensor.encoding == DIFFERENCE:
                reference = self._kept(key, str(tensor.parameters.get(REFERENCE, "")))
                array = add_difference(tensor, reference, limits)
            elif tensor.encoding in VIDEO and CHAIN in tensor.parameters:
                array = self._decode_video(key, tensor, limits)
            else:
                array = decode_tensor(tensor, limits, codecs)
        except ReferenceLost:
            self._count("references_lost")
            raise
        if KEEP in tensor.parameters and array.dtype != object:  # text has no difference
            self._keep(key, array)
        return array

    def forget_idle(self) -> None:
        """Forget the streams without a picture for `_IDLE_S`; call it now and then."""
        before = self._clock() - _IDLE_S
        with self._lock:
            idle = [key for key, state in self._states.items() if state.used < before]
            for key in idle:
                self._bytes -= self._states.pop(key).counted
        for _ in idle:
            self._count("streams_idle")

    def _decode_video(self, key: StreamKey, tensor: EncodedTensor, limits: Limits) -> Array:
        with self._lock:
            state = self._use(key)
        try:
            return state.video.decode(tensor, limits)
        finally:
            self._make_room(key)

    def _use(self, key: StreamKey) -> _StreamState:
        """Return the state of a stream, a new one where there is none; the lock is held."""
        state = self._states.setdefault(key, _StreamState())
        self._states.move_to_end(key)
        state.used = self._clock()
        return state

    def _kept(self, key: StreamKey, name: str) -> Array | None:
        with self._lock:
            if key not in self._states:
                return None
            return self._use(key).kept.get(name)

    def _keep(self, key: StreamKey, array: Array) -> None:
        """Keep a picture under the name that its own samples give it, whatever its sender calls it."""
        own = array.copy()  # it may be a view of the message
        own.setflags(write=False)
        name = array_name(own)
        with self._lock:
            state = self._use(key)
            state.kept[name] = own
            state.kept.move_to_end(name)
            while len(state.kept) > _MOST_KEPT:
                state.kept.popitem(last=False)
        self._make_room(key)

    def _make_room(self, key: StreamKey) -> None:
        """Count the memory that a stream takes now, and forget others until there is room for it."""
        forgotten = 0
        with self._lock:
            if state := self._states.get(key):
                self._bytes += state.nbytes - state.counted
                state.counted = state.nbytes
            while self._bytes > self._most_bytes or len(self._states) > self._most_streams:
                self._bytes -= self._states.pop(self._dispensable()).counted
                forgotten += 1
        for _ in range(forgotten):
            self._count("streams_forgotten")

    def _dispensable(self) -> StreamKey:
        """Return the stream used longest ago of the client that has most of what is scarce; the lock is held."""
        shares: Counter[str] = Counter()
        for (client, _, _), state in self._states.items():
            shares[client] += state.counted if self._bytes > self._most_bytes else 1
        largest = max(shares, key=shares.__getitem__)
        return next(key for key in self._states if key[0] == largest)

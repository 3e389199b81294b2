"""Bring results of other clients together with the previews of the same frames. Pure: no thread, no file.

A preview belongs to a result of the same client, model, source and sequence, and to no other. Either may come first. A
result without its preview waits for it only where its stream has previews at all, and not for long, since an edge
publishes one of a few frames.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from mqinfer.client.watching import SeenPreview, SeenResult
from mqinfer.protocol.types import InferResponse, Outcome
from mqinfer.recent_ids import RecentIds

HOLD_S = 0.5
"""How long a result waits for its preview."""
KEEP_S = 30.0
"""How long a preview waits for its result; requests take no longer than that, as a rule."""
_MOST_PREVIEWS = 256
_MOST_HELD = 256
_MOST_HELD_BYTES = 32 << 20
_MOST_STREAMS = 4096
_MOST_REMEMBERED = 4096
_Key = tuple[str, str, str, int | None]
"""Client, model, source and sequence."""


@dataclass(frozen=True, slots=True)
class _Held:
    result: SeenResult
    until: float
    size: int


class Pairing:
    """Results and previews that wait for each other. Each result comes out once, with its preview or without.

    Attributes:
        dropped: What does not come out, by reason: `duplicate` results, since a request that was sent again may be
            answered twice; `preview_unpaired`, whose result did not come in time.

    Args:
        clock: In seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.dropped: Counter[str] = Counter()
        self._clock = clock
        self._previews: OrderedDict[_Key, tuple[SeenPreview, float]] = OrderedDict()
        self._held: deque[_Held] = deque()
        self._held_bytes = 0
        self._streams = RecentIds(_MOST_STREAMS)
        self._remembered = RecentIds(_MOST_REMEMBERED)

    def add_preview(self, preview: SeenPreview) -> Iterator[tuple[SeenResult, SeenPreview | None]]:
        """Add a preview, and yield the results that can be written now, each with its preview."""
        key = _key(preview.client, preview.response)
        self._streams.add(key[:3])
        yield from self.due()
        matching = [each for each in self._held if _key(each.result.client, each.result.response) == key]
        for each in matching:
            self._release(each)
            yield each.result, preview
        if matching:
            return
        if self._previews.pop(key, None) is not None:  # the same frame again: the newer one counts
            self.dropped["preview_unpaired"] += 1
        self._previews[key] = preview, self._clock()
        while len(self._previews) > _MOST_PREVIEWS:
            self._forget_preview()

    def add_result(self, result: SeenResult) -> Iterator[tuple[SeenResult, SeenPreview | None]]:
        """Add a result, and yield the results that can be written now, each with its preview."""
        yield from self.due()
        reply = result.response
        once = result.client, reply.model_name, result.request_id, reply.outcome
        if not self._remembered.add(once):
            self.dropped["duplicate"] += 1
            return
        key = _key(result.client, reply)
        if (found := self._previews.pop(key, None)) is not None:
            yield result, found[0]
        elif key[:3] not in self._streams or key[3] is None or reply.outcome is not Outcome.OK:
            yield result, None
        else:
            size = sum(memoryview(tensor.data).nbytes for tensor in reply.outputs)
            self._held.append(_Held(result, self._clock() + HOLD_S, size))
            self._held_bytes += size
            while len(self._held) > _MOST_HELD or self._held_bytes > _MOST_HELD_BYTES:
                yield self._release(self._held[0]), None

    def due(self) -> Iterator[tuple[SeenResult, SeenPreview | None]]:
        """Yield the results that have waited long enough, and forget previews that have."""
        now = self._clock()
        while self._previews and next(iter(self._previews.values()))[1] + KEEP_S <= now:
            self._forget_preview()
        while self._held and self._held[0].until <= now:
            yield self._release(self._held[0]), None

    def rest(self) -> Iterator[tuple[SeenResult, SeenPreview | None]]:
        """Yield all that waits: nothing more comes."""
        while self._previews:
            self._forget_preview()
        while self._held:
            yield self._release(self._held[0]), None

    def _release(self, held: _Held) -> SeenResult:
        self._held.remove(held)
        self._held_bytes -= held.size
        return held.result

    def _forget_preview(self) -> None:
        self._previews.popitem(last=False)
        self.dropped["preview_unpaired"] += 1


def _key(client: str, reply: InferResponse) -> _Key:
    return client, reply.model_name, reply.capture.source, reply.capture.sequence

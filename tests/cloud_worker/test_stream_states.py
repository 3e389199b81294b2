"""What a worker keeps of streams: bounded in memory and number, by client, and forgotten when idle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest
from msgspec.structs import replace

from mqinfer.cloud_worker.serving.stream_states import StreamStates
from mqinfer.codecs import codecs_for, encode_tensor, traits_of
from mqinfer.codecs.chain import ChainDecoder
from mqinfer.codecs.h264 import H264Decoder
from mqinfer.protocol.datatypes import Array
from mqinfer.protocol.errors import ReferenceLost
from mqinfer.protocol.header import CHAIN
from mqinfer.protocol.limits import DEFAULT_LIMITS
from mqinfer.protocol.types import EncodedTensor

HEIGHT, WIDTH = 32, 48
CODECS = codecs_for("cpu")


@cache
def chain() -> Sequence[EncodedTensor]:
    """Encode three pictures as one chain."""
    state = traits_of("h264").stream
    assert state is not None
    encoder = state.encoder(None)
    noise = np.random.default_rng(3).integers(0, 255, (1, HEIGHT, WIDTH, 3), np.uint8)
    sent = []
    for number in range(3):
        sent.append(encoder.encode("image", np.roll(noise, number, 2), {}, whole=False)[0])
        encoder.settled(sent[-1], "w")
    return sent


def _nbytes() -> int:
    """Return what the chain's decoder takes."""
    decoder = ChainDecoder(H264Decoder)
    decoder.decode(chain()[0])
    return decoder.nbytes


def decode(states: StreamStates, tensor: EncodedTensor, client: str = "polite", source: str = "/camera") -> Array:
    """Decode a picture as a worker does."""
    return states.decode(tensor, (client, source, "image", "h264"), DEFAULT_LIMITS, CODECS)


def test_streams_are_bounded_by_client_and_forgotten_when_idle() -> None:
    """Who opens most loses first: the other client's chain goes on; all is counted."""
    now, counts = [0.0], Counter[str]()
    states = StreamStates(lambda what: counts.update([what]), most_streams=4, clock=lambda: now[0])
    first, second, third = chain()
    decode(states, first)
    for number in range(8):
        decode(states, first, "greedy", f"/{number}")
    assert decode(states, second).shape == (1, HEIGHT, WIDTH, 3)
    with pytest.raises(ReferenceLost):
        decode(states, second, "greedy", "/0")
    assert counts["streams_forgotten"] >= 5
    now[0] = 60.0
    states.forget_idle()
    assert counts["streams_idle"] == 4
    with pytest.raises(ReferenceLost):
        decode(states, third)
    assert counts["references_lost"] == 2


def test_memory_is_bounded() -> None:
    """The stream that was used longest ago goes as a whole; one that is larger than the bound is not kept."""
    counts = Counter[str]()
    states = StreamStates(lambda what: counts.update([what]), most_bytes=5 * _nbytes() // 2)
    first, second, third = chain()
    for client in ("a", "b"):
        decode(states, first, client)
    decode(states, second, "a")
    assert not counts
    decode(states, first, "c")  # the third stream: that of "b" was used longest ago
    assert counts == {"streams_forgotten": 1}
    decode(states, third, "a")
    with pytest.raises(ReferenceLost):
        decode(states, second, "b")
    small = StreamStates(most_bytes=_nbytes() // 2)
    assert decode(small, first).shape == (1, HEIGHT, WIDTH, 3)
    with pytest.raises(ReferenceLost):
        decode(small, second)


def test_a_picture_alone_needs_no_state() -> None:
    """A key frame without a chain is decoded as by any codec, and takes no stream's place."""
    counts = Counter[str]()
    states = StreamStates(lambda what: counts.update([what]), most_streams=1)
    first, second, _ = chain()
    decode(states, first)
    decode(states, encode_tensor("image", np.zeros((HEIGHT, WIDTH, 3), np.uint8), "h264"), "other")
    decode(states, second)
    assert not counts


def test_an_edge_whose_clock_was_set_back() -> None:
    """Its chains have smaller numbers than one before: once that is idle they go on, however many key frames came."""
    now = [0.0]
    states, (first, second, _) = StreamStates(clock=lambda: now[0]), chain()
    later = {CHAIN: int(first.parameters[CHAIN]) + 1}
    decode(states, replace(first, parameters={**first.parameters, **later}))
    for _ in range(7):
        now[0] += 5.0
        decode(states, first)
        states.forget_idle()
    decode(states, first)
    assert decode(states, second).shape == (1, HEIGHT, WIDTH, 3)

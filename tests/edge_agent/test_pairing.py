"""Results and previews of the same frames, brought together on a clock of the test's."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from mqinfer.client.watching import SeenPreview, SeenResult
from mqinfer.edge_agent.sinks.foxglove.pairing import HOLD_S, KEEP_S, Pairing
from mqinfer.protocol.types import Capture, InferResponse, Outcome
from tests.clock import Clock

Pairs = Iterable[tuple[SeenResult, SeenPreview | None]]


def reply(number: int | None, source: str = "/camera", model: str = "seg") -> InferResponse:
    """Of one frame."""
    return InferResponse(f"{number}-{source}", model, capture=Capture(source, number))


def result(number: int | None, source: str = "/camera", client: str = "car", model: str = "seg") -> SeenResult:
    """Of one frame."""
    return SeenResult(client, f"{number}-{source}", reply(number, source, model), 0)


def preview(number: int, source: str = "/camera", client: str = "car", model: str = "seg") -> SeenPreview:
    """Of one frame."""
    return SeenPreview(client, reply(number, source, model), (8, 8), 0)


def numbers(pairs: Pairs) -> list[tuple[int | None, int | None]]:
    """Return the sequence numbers of pairs."""
    return [
        (seen.response.capture.sequence, shown.response.capture.sequence if shown else None) for seen, shown in pairs
    ]


def test_the_preview_comes_first() -> None:
    """Its result takes it, once; others of the stream don't."""
    clock = Clock()
    pairing = Pairing(clock)
    assert numbers(pairing.add_preview(preview(5))) == []
    assert numbers(pairing.add_result(result(5))) == [(5, 5)]
    assert numbers(pairing.add_result(result(6))) == []
    clock.now += HOLD_S
    assert numbers(pairing.due()) == [(6, None)]
    assert not pairing.dropped


def test_the_result_comes_first() -> None:
    """It waits for its preview once its stream has some, and not for ever; a stream without any never waits."""
    clock = Clock()
    pairing = Pairing(clock)
    assert numbers(pairing.add_result(result(1))) == [(1, None)]
    assert numbers(pairing.add_preview(preview(1))) == []
    assert numbers(pairing.add_result(result(2))) == []
    assert numbers(pairing.add_preview(preview(2))) == [(2, 2)]
    assert numbers(pairing.add_result(result(3))) == []
    clock.now += HOLD_S
    assert numbers(pairing.add_result(result(3, "/rear"))) == [(3, None), (3, None)]
    clock.now = KEEP_S
    assert numbers(pairing.due()) == []
    assert pairing.dropped == {"preview_unpaired": 1}


def test_never_over_another_frame() -> None:
    """Client, model, source and sequence must all be the same."""
    pairing = Pairing(Clock())
    assert numbers(pairing.add_preview(preview(1))) == []
    for other in (result(1, client="van"), result(1, model="det"), result(1, "/rear"), result(2)):
        assert all(shown is None for _, shown in pairing.add_result(other))
    assert numbers(pairing.add_result(result(1))) == [(1, 1)]
    assert numbers(pairing.rest()) == [(2, None)]


def test_what_does_not_wait() -> None:
    """A result without a sequence number, and one that failed, are passed on at once."""
    pairing = Pairing(Clock())
    list(pairing.add_preview(preview(1)))
    assert numbers(pairing.add_result(result(None))) == [(None, None)]
    refused = replace(result(2), response=structs.replace(reply(2), outcome=Outcome.REJECTED))
    assert numbers(pairing.add_result(refused)) == [(2, None)]


def test_a_request_that_was_answered_twice() -> None:
    """The second reply is left out; one with another outcome is not."""
    pairing = Pairing(Clock())
    refused = replace(result(1), response=structs.replace(reply(1), outcome=Outcome.REJECTED))
    assert numbers(pairing.add_result(refused)) == [(1, None)]
    assert numbers(pairing.add_result(result(1))) == [(1, None)]
    assert numbers(pairing.add_result(result(1))) == []
    assert pairing.dropped == {"duplicate": 1}


def test_bounds() -> None:
    """Previews without a result are forgotten, results without a preview are passed on early."""
    pairing = Pairing(Clock())
    for number in range(1000):
        list(pairing.add_preview(preview(number)))
    assert pairing.dropped == {"preview_unpaired": 1000 - 256}
    early = [pair for number in range(2000, 3000) for pair in numbers(pairing.add_result(result(number)))]
    assert early == [(number, None) for number in range(2000, 2744)]


STEPS = st.lists(
    st.tuples(
        st.sampled_from("rpt"), st.integers(0, 5), st.sampled_from(["/a", "/b"]), st.sampled_from(["car", "van"])
    ),
    max_size=40,
)


@given(STEPS)
def test_each_result_comes_out_once(steps: list[tuple[str, int, str, str]]) -> None:
    """Whatever the order: each result once, with its own preview or none, and each preview with one result at most."""
    clock = Clock()
    pairing = Pairing(clock)
    pairs: list[tuple[SeenResult, SeenPreview | None]] = []
    added, previews = set(), 0
    for kind, number, source, client in steps:
        if kind == "t":
            clock.now += number / 4
            pairs += pairing.due()
        elif kind == "r":
            pairs += pairing.add_result(result(number, source, client))
            added.add((client, number, source))
        else:
            pairs += pairing.add_preview(preview(number, source, client))
            previews += 1
    pairs += pairing.rest()
    keys = [(seen.client, seen.response.capture.sequence, seen.response.capture.source) for seen, _ in pairs]
    assert len(keys) == len(set(keys))
    assert set(keys) == added
    shown = [each for _, each in pairs if each]
    assert all(each.response.capture == seen.response.capture for seen, each in pairs if each)
    assert len(shown) + pairing.dropped["preview_unpaired"] == previews

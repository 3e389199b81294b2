from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from random import Random
from types import SimpleNamespace

import pytest

from mqinfer.cloud_worker.supervision.canary import CanaryTest, CanaryWatch
from mqinfer.cloud_worker.supervision.child import Phase
from mqinfer.cloud_worker.supervision.statistics import ServerStatistics
from mqinfer.models.repository.traffic import Traffic
from mqinfer.protocol.control import Call, ModelStatistics, Operation

STABLE, CANARY = ("m", 1), ("m", 2)
_QUICK, _SLOW = 24, 26
"""Bits of a time of 16 ms, and of 64 ms, in nanoseconds."""


def followed(
    seed: int,
    share: int,
    bad: Callable[[tuple[str, int], int], float],
    what: str,
    looks: int = 300,
    rate: int = 20,
    batch: int = 1,
) -> tuple[str, int, int]:
    """Let a canary serve `rate` requests a second; return why it was taken back, after how many looks and bad ends.

    Args:
        seed: Of who gets a request, and of which ends badly.
        share: The canary's, in per cent.
        bad: Chance of a bad end, by version and look.
        what: `error` for requests that fail, `slow` for those that take long.
        looks: Seconds.
        rate: Requests a second.
        batch: Requests that end alike, since they run together.
    """
    random, test = Random(seed), CanaryTest(CANARY, STABLE)  # noqa: S311  no secret depends on it
    counts = {key: {"ok": 0, "error": 0} for key in (STABLE, CANARY)}
    times = {key: [0] * 65 for key in counts}
    hits = 0
    for look in range(looks):
        totals = {
            key: ModelStatistics(counters=dict(counts[key]), histograms={"compute_infer": tuple(times[key])})
            for key in counts
        }
        if why := test.add(ServerStatistics({}, (), totals)):
            return why, look, hits
        for _ in range(rate // batch):
            key = CANARY if random.random() < share / 100 else STABLE
            is_bad = random.random() < bad(key, look)
            counts[key]["error" if is_bad and what == "error" else "ok"] += batch
            times[key][_SLOW if is_bad and what == "slow" else _QUICK] += batch
            hits += is_bad and key == CANARY
    return "", looks, hits


@pytest.mark.parametrize("what", ["error", "slow"])
@pytest.mark.parametrize("share", [5, 50])
def test_an_equal_canary_stays(share: int, what: str) -> None:
    """Both fail alike: rarely, then for a minute often, as where the engine or the disk has trouble. 50 seeds."""

    def bad(_: tuple[str, int], look: int) -> float:
        return 0.5 if 100 <= look < 160 else 0.02

    taken_back = [seed for seed in range(50) if followed(seed, share, bad, what)[0]]
    assert taken_back == []


@pytest.mark.parametrize("share", [10, 50])
def test_an_equal_canary_stays_though_batches_fail_as_a_whole(share: int) -> None:
    """Requests that run together end together: eight bad ones of one version are then no more than chance."""
    taken_back = [seed for seed in range(50) if followed(seed, share, lambda *_: 0.1, "error", batch=10)[0]]
    assert taken_back == []


@pytest.mark.parametrize("what", ["error", "slow"])
@pytest.mark.parametrize(("share", "seconds", "most"), [(10, 300, 30), (50, 120, 60)])
def test_a_canary_that_fails_one_in_twenty_is_taken_back(share: int, seconds: int, most: int, what: str) -> None:
    """At 20 requests a second all of 50 seeds are, within so many seconds and bad ends."""
    found = [followed(seed, share, lambda key, _: 0.05 * (key == CANARY), what) for seed in range(50)]
    assert all(why for why, _, _ in found)
    assert max(looks for _, looks, _ in found) <= seconds
    assert max(hits for _, _, hits in found) <= most


def test_a_canary_that_fails_always_under_load_is_taken_back() -> None:
    """With thousands of failures a look, too, each look counts no more than its bound: it takes a few."""
    why, looks, _ = followed(1, 50, lambda key, _: float(key == CANARY), "error", looks=20, rate=5000)
    assert why
    assert looks > 3


def test_one_hiccup_is_no_evidence() -> None:
    """Five seconds in which all requests of the canary fail take nothing back; twenty such seconds do."""
    for seconds, is_taken_back in ((5, False), (20, True)):
        hiccup = range(10, 10 + seconds)
        why, _, _ = followed(1, 50, lambda key, look, h=hiccup: float(key == CANARY and look in h), "error", 60)  # type: ignore[misc]
        assert bool(why) is is_taken_back


def test_crashes_count_as_failures() -> None:
    """A canary whose process crashes again and again is taken back, though nobody counts what it did not answer."""
    test = CanaryTest(CANARY, STABLE)
    for look in range(60):
        totals = {key: ModelStatistics(counters={"ok": 100 * look}) for key in (STABLE, CANARY)}
        if test.add(ServerStatistics({}, (), totals, {CANARY: look})):
            assert look > 5
            return
    pytest.fail("it was not taken back")


def test_a_canary_without_the_order_or_without_requests_beside_it_stays() -> None:
    """Only `watch` has a canary judged; and where the stable version gets nothing there is nothing to compare with."""
    why, _, _ = followed(1, 100, lambda *_: 0.5, "error", 60)
    assert not why
    asked: list[Call] = []
    counts = [ServerStatistics({}, (), _totals(look)) for look in range(20)]
    found = iter(counts)
    views = [SimpleNamespace(phase=Phase.READY, spec=SimpleNamespace(model="m", found=SimpleNamespace(traffic=None)))]
    supervisor = SimpleNamespace(processes=views, statistics=lambda: _done(next(found)))
    management = SimpleNamespace(execute=lambda call, _: asked.append(call))
    for watch in (False, True):
        views[0].spec.found.traffic = Traffic(1, 2, 50, watch=watch)
        found = iter(counts)
        watcher = CanaryWatch(supervisor, management)  # type: ignore[arg-type]
        for _ in range(19):
            watcher.look()
        assert bool(asked) is watch
    assert asked == [Call(Operation.ROLLBACK, "m", "2")]


def _totals(look: int) -> dict[tuple[str, int], ModelStatistics]:
    return {
        STABLE: ModelStatistics(counters={"ok": 10 * look}),
        CANARY: ModelStatistics(counters={"error": 10 * look}),
    }


def _done(found: ServerStatistics) -> Future[ServerStatistics]:
    future: Future[ServerStatistics] = Future()
    future.set_result(found)
    return future

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from mqinfer.bags.frame import Frame
from mqinfer.client.window import Policy
from mqinfer.edge_agent.spooling.spool import Spool
from mqinfer.judging.settings import RunsAt
from mqinfer.protocol.types import Outcome, Stage
from tests.edge_agent.cascade.rig import Rig, Watched, frame_of
from tests.edge_agent.kept import Kept
from tests.patience import PATIENCE_S, wait_until

EDGE, REUSE, WORKER = Stage.EDGE.value, Stage.REUSE.value, Stage.WORKER.value
UNSURE = 140.0
"""Brightness between the thresholds."""


def paced(levels: list[float], kept: Kept, at: dict[int, Callable[[], object]], ahead: int = 1) -> Iterator[Frame]:
    """Yield frames, each once all but the newest few before it are written; call something before some of them."""
    for number, level in enumerate(levels):
        kept.wait_for(number - ahead + 1)
        at.get(number, lambda: None)()
        yield frame_of(number, level)


@pytest.mark.parametrize("policy", list(Policy))
@pytest.mark.parametrize("placement", list(RunsAt))
def test_without_a_connection_the_edge_answers_alone(rig: Rig, policy: Policy, placement: RunsAt) -> None:
    """It says so; nothing is written twice or out of order, and later frames go to the cloud again."""
    workers = ("yolo", "is-car") if placement is RunsAt.CLOUD else ("yolo",)
    rig.start(*workers)
    kept = Kept()
    frames = paced([UNSURE] * 30, kept, {10: rig.disconnect, 20: rig.reconnect})
    settings = rig.settings(small={"c_low": 0.1, "c_high": 0.9, "placement": placement})
    rig.run(frames, settings, policy=policy, kept=kept)
    assert [result.outcome for result in kept.results] == [Outcome.OK] * 30
    assert kept.stages[:9] == [WORKER] * 9
    assert kept.stages[11:20] == [EDGE] * 9
    assert kept.stages[21:] == [WORKER] * 9
    assert {result.parameters.get("fallback") for result in kept.results[11:20]} == {"not_connected"}
    assert not any("fallback" in result.parameters for result in kept.results if result.stage == WORKER)
    assert all(kept.present)  # the middle of the thresholds decides


def test_what_was_sent_when_the_connection_broke_is_answered_by_the_edge(rig: Rig) -> None:
    """Its worker's reply, which comes later, is not written a second time."""
    reached, release = threading.Event(), threading.Event()

    def hold() -> None:
        reached.set()
        assert release.wait(PATIENCE_S)

    rig.start_wrapped("yolo", lambda inner: Watched(inner, hold))
    kept = Kept()

    def cut() -> None:
        assert reached.wait(PATIENCE_S)
        rig.disconnect()

    def restore() -> None:
        rig.reconnect()
        release.set()

    frames = paced([UNSURE] * 6, kept, {1: cut, 4: restore, 5: lambda: kept.wait_for(5)}, ahead=2)
    rig.run(frames, rig.settings(small={"c_low": 0.1}), kept=kept)
    assert kept.stages[:3] == [EDGE] * 3
    assert kept.results[0].parameters["fallback"] == "not_connected"
    assert kept.stages[5] == WORKER


@pytest.mark.parametrize("policy", list(Policy))
def test_in_the_seconds_of_a_reconnect_the_edge_goes_on_answering(rig: Rig, policy: Policy) -> None:
    """One frame tries the model; until its reply no other one waits for it, or is superseded."""
    release = threading.Event()
    release.set()
    rig.start_wrapped("yolo", lambda inner: Watched(inner, lambda: release.wait(PATIENCE_S)))
    kept = Kept()

    def frames() -> Iterator[Frame]:
        for number in range(24):
            if not 10 < number <= 18:  # more are not read before the first of them is written
                kept.wait_for(number)
            if number in {5, 10}:
                (rig.disconnect if number == 5 else rig.reconnect)()
                release.clear()
            if number == 18:
                release.set()
            yield frame_of(number, UNSURE)
            if number > 10:
                wait_until(lambda: rig.cascade is not None and set(rig.cascade._entries) <= {10})

    rig.run(frames(), rig.settings(small={"c_low": 0.1}), policy=policy, kept=kept)
    assert [result.outcome for result in kept.results] == [Outcome.OK] * 24
    assert kept.stages[5:18] == [EDGE] * 5 + [WORKER] + [EDGE] * 7
    assert kept.stages[19:] == [WORKER] * 5


def test_a_worker_that_is_gone_and_comes_back(rig: Rig) -> None:
    """One frame at a time tries the cloud; when it answers, all go there again."""
    worker = rig.start("yolo")[0]
    kept = Kept()
    frames = paced([UNSURE] * 40, kept, {5: worker.stop, 25: lambda: rig.start("yolo")}, ahead=3)
    rig.run(frames, rig.settings(small={"c_low": 0.1}), kept=kept, timeout=30.0)
    assert kept.stages[:3] == [WORKER] * 3
    assert EDGE in kept.stages
    assert kept.stages[-1] == WORKER
    reasons = {result.parameters["fallback"] for result in kept.results if result.stage == EDGE}
    assert reasons <= {"no_worker", "expired", "unanswered"}
    assert reasons


def test_frames_like_one_that_the_edge_answered_alone_are_asked_again(rig: Rig) -> None:
    """Those that waited for its answer get it; with the connection back a still camera gets the cloud's."""
    rig.start("yolo")
    kept = Kept()
    frames = paced([UNSURE] * 20, kept, {0: rig.disconnect, 10: rig.reconnect})
    rig.run(frames, rig.settings(t_diff=4.0, small={"c_low": 0.1}), kept=kept)
    assert WORKER not in kept.stages[:10]
    assert kept.stages[12:] == [REUSE] * 8
    assert "fallback" not in kept.results[-1].parameters
    assert WORKER in kept.stages[10:12]


def test_without_a_small_model_frames_wait_for_the_connection(rig: Rig) -> None:
    """The edge has nothing to answer with; with `all` nothing is lost."""
    rig.start("yolo")
    kept = Kept()

    def frames() -> Iterator[Frame]:
        for number in range(8):
            if number == 3:
                kept.wait_for(3)
                rig.disconnect()
                threading.Timer(0.1, rig.link.restore).start()
            yield frame_of(number, 30 * number)

    rig.run(frames(), rig.settings(t_diff=4.0), kept=kept)
    assert kept.stages == [WORKER] * 8


@pytest.mark.parametrize("has_small", [False, True])
def test_beside_a_spool_a_frame_is_answered_at_the_edge_or_kept(rig: Rig, tmp_path: Path, *, has_small: bool) -> None:
    """Without a connection: where there is a small model it answers at once, else the disk keeps what is to be sent."""
    rig.start("yolo")
    kept, on_disk = Kept(), list[int]()
    with closing(Spool(tmp_path)) as spool:

        def cut() -> None:
            kept.wait_for(3)
            rig.disconnect()

        def restore() -> None:
            if has_small:
                kept.wait_for(15)
            else:
                wait_until(lambda: len(spool) >= 10)
            on_disk.append(len(spool))
            rig.reconnect()

        def frames() -> Iterator[Frame]:
            for number in range(20):
                {3: cut, 15: restore}.get(number, lambda: None)()
                yield frame_of(number, 100 + 5 * number)

        small = {"c_low": 0.1, "c_high": 0.95} if has_small else None
        rig.run(frames(), rig.settings(t_diff=0.5, small=small), kept=kept, spool=spool)
        assert len(spool) == 0
    assert [result.outcome for result in kept.results] == [Outcome.OK] * 20
    assert kept.stages[3:15] == ([EDGE] if has_small else [WORKER]) * 12
    assert (on_disk[0] == 0) is has_small
    assert all("present" in result.outputs for result in kept.results)


def test_followers_of_a_frame_that_failed_go_on_by_themselves(rig: Rig) -> None:
    """With `all` none of them is lost, and each has an answer of its own."""
    failures = iter([True])

    def fail() -> None:
        if next(failures, False):
            raise RuntimeError("the first run fails")

    rig.start_wrapped("yolo", lambda inner: Watched(inner, fail))
    kept, snapshot = rig.run([frame_of(each, 200) for each in range(6)], rig.settings(t_diff=4.0))
    assert kept.results[0].outcome is Outcome.ERROR
    assert snapshot.outcomes[Outcome.OK] == 5
    assert kept.stages[1] == WORKER
    assert set(kept.stages[2:]) <= {WORKER, REUSE}
    wait_until(lambda: rig.requester.counters().pending == 0)

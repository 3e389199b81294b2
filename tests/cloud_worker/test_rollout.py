from __future__ import annotations

import ctypes
from dataclasses import replace
from pathlib import Path

import pytest

from mqinfer.broker.address import BrokerAddress
from mqinfer.cloud_worker.serving.options import WorkerOptions
from mqinfer.cloud_worker.supervision.child import Child, Phase
from mqinfer.cloud_worker.supervision.process import ProcessSpec
from mqinfer.cloud_worker.supervision.rollout import Rollout, RolloutStep
from mqinfer.cloud_worker.supervision.started_process import HangTimer, StartedProcess
from mqinfer.cloud_worker.supervision.statistics import StatisticsQuery, Totals
from mqinfer.models.repository import ModelVersion
from mqinfer.protocol.card import ModelCard
from mqinfer.protocol.control import Duration, ModelStatistics, StageTimes

CARD = ModelCard(name="m", versions=("1",), platform="mqinfer_echo")


def child(phase: Phase, *, reason: str = "", served: bool = False) -> Child:
    """Make a child in a phase, without a running process."""
    spec = ProcessSpec(Path(), "m", 1, BrokerAddress("localhost"), WorkerOptions("w.0"))
    return Child(spec, phase, card=CARD if served or phase is Phase.READY else None, reason=reason)


@pytest.mark.parametrize(
    ("new", "old", "switched", "step"),
    [
        (child(Phase.WAITING), child(Phase.READY), False, RolloutStep.WAIT),
        (child(Phase.STARTING), child(Phase.READY), False, RolloutStep.WAIT),
        (child(Phase.READY), child(Phase.READY), False, RolloutStep.SWITCH),
        (child(Phase.FAILED, reason="no"), child(Phase.READY), False, RolloutStep.UNDO),
        (child(Phase.WAITING, reason="exit code -9"), child(Phase.READY), False, RolloutStep.UNDO),
        (child(Phase.WAITING, reason="exit code -9", served=True), child(Phase.READY), False, RolloutStep.WAIT),
        (child(Phase.READY), child(Phase.DRAINING), True, RolloutStep.WAIT),
        (child(Phase.READY), child(Phase.GONE), True, RolloutStep.DONE),
        (child(Phase.FAILED, reason="no"), child(Phase.GONE), True, RolloutStep.DONE),
    ],
)
def test_steps_of_a_rollout(new: Child, old: Child, switched: bool, step: RolloutStep) -> None:  # noqa: FBT001 -- a column of the table
    """The old process drains once the new one serves and stays if it fails; its exit ends the rollout."""
    assert Rollout("m", (), [new], [], [old], switched=switched).next_step is step


def test_the_slowest_and_the_worst_decide() -> None:
    """A process that is not ready delays the switch; one that failed undoes it, with its reason."""
    ready, starting = child(Phase.READY), child(Phase.STARTING)
    assert Rollout("m", (), [ready, starting]).next_step is RolloutStep.WAIT
    assert Rollout("m", (), [ready], [starting]).next_step is RolloutStep.WAIT
    failed = Rollout("m", (), [ready, starting, child(Phase.FAILED, reason="no such file")])
    assert failed.next_step is RolloutStep.UNDO
    assert failed.failure == "m version 1: no such file"
    assert Rollout("m", ()).next_step is RolloutStep.SWITCH


def test_an_abandoned_child_keeps_its_reason() -> None:
    """A crashed one counts as failed and one that never ran as gone; neither has a process to end."""
    crashed, waiting = child(Phase.WAITING, reason="exit code -11"), child(Phase.WAITING)
    for each in (crashed, waiting):
        each.abandon(1.0)
    assert (crashed.phase, crashed.reason, waiting.phase) == (Phase.FAILED, "exit code -11", Phase.GONE)


def test_a_statistics_query_adds_up_and_ends() -> None:
    """Replies of one model's processes are added; a second reply and a stranger's are ignored; the deadline ends it."""
    one, two, three, stranger = (child(Phase.READY) for _ in range(4))
    three.run = object.__new__(StartedProcess)  # never started: one that runs and does not reply
    query = StatisticsQuery(5.0, [one, two, three])
    for each in (one, two, two, stranger):
        query.add(each, ModelStatistics(inference_count=2, stages=StageTimes(Duration(1, 10))))
        each.statistics = ModelStatistics(inference_count=2, stages=StageTimes(Duration(1, 10)))
    assert query.waiting == [three]
    assert not query.is_over(4.9)
    assert query.is_over(5.0)
    three.statistics = ModelStatistics(inference_count=5, depth=1)  # of its last reply
    query.finish(Totals(), [one, two, three])
    found = query.future.result(0)
    assert found.models == {("m", 1): ModelStatistics(inference_count=4, stages=StageTimes(Duration(2, 20)))}
    assert found.missing == ("w.0",)
    assert found.totals == {("m", 1): ModelStatistics(inference_count=9, stages=StageTimes(Duration(2, 20)), depth=1)}


def test_counters_do_not_go_back_when_a_process_ends() -> None:
    """What ended processes had counted stays in the sums, what they had at work does not; an unloaded model is gone."""
    totals, one, two = Totals(), child(Phase.READY), child(Phase.READY)
    times = {"queue": (0, 1, 2), "success": (3,)}
    one.statistics = ModelStatistics(10, 7, counters={"ok": 7}, depth=3, capacity=8, oldest_ns=5, histograms=times)
    two.statistics = ModelStatistics(20, 1, counters={"ok": 1, "dropped_x": 2}, depth=1, capacity=8, histograms=times)
    (before,) = totals.sums([one, two]).values()
    assert (before.inference_count, before.counters, before.depth) == (8, {"ok": 8, "dropped_x": 2}, 4)
    one.crashed = 17
    totals.ended(one)
    (after,) = totals.sums([one, two]).values()
    assert (after.inference_count, after.counters, after.histograms) == (8, before.counters, before.histograms)
    assert (after.depth, after.capacity, after.oldest_ns) == (1, 8, 0)
    assert after.histograms == {"queue": (0, 2, 4), "success": (6,)}
    assert totals.crashes == {("m", 1): 1}
    one.statistics = ModelStatistics(inference_count=1)  # it was started again
    assert totals.sums([one, two])["m", 1].inference_count == 9
    totals.keep([one])
    assert totals.crashes
    totals.keep([])
    assert (totals.sums([]), totals.crashes) == ({}, {})


def test_steps_of_an_ensemble_count_for_their_models() -> None:
    """A reply's steps are added to their models, those of a process that has ended too, until the ensemble goes."""
    part = ModelVersion("part", 2, Path("part"))
    totals, one, two = Totals(), child(Phase.READY), child(Phase.READY)
    for each in (one, two):
        each.spec = replace(each.spec, found=ModelVersion("m", 1, Path("m"), parts=(part,)))
        each.statistics = ModelStatistics(inference_count=1, steps=[("part", 2, ModelStatistics(inference_count=3))])
    query = StatisticsQuery(5.0, [one])
    query.add(one, one.statistics)
    query.finish(totals, [one, two])
    found = query.future.result(0)
    assert {key: each.inference_count for key, each in found.models.items()} == {("m", 1): 1, ("part", 2): 3}
    assert {key: each.inference_count for key, each in found.totals.items()} == {("m", 1): 2, ("part", 2): 6}
    totals.ended(one)
    totals.keep([two])
    assert totals.sums([two])["part", 2].inference_count == 6
    totals.keep([])
    assert totals.sums([]) == {}


def test_a_statistics_query_ends_with_the_last_process() -> None:
    """A process that has exited is not waited for."""
    assert StatisticsQuery(5.0, [child(Phase.WAITING)]).is_over(0.0)


def test_only_progress_that_stands_still_counts() -> None:
    """A process is stuck once its progress has not changed for its timeout, counted by checks, while it serves."""
    progress = ctypes.c_double(1.0)
    hang = HangTimer(progress, 3.0)
    assert [hang.is_over(1.0) for _ in range(3)] == [False] * 3
    progress.value = 2.0
    assert [hang.is_over(1.0) for _ in range(4)] == [False, False, False, True]
    hang.restart(0.0)  # no limit
    assert not any(hang.is_over(1000.0) for _ in range(3))
    assert child(Phase.READY).is_busy
    assert not child(Phase.READY, reason="it was asked to stop").is_busy  # it drains, and its time is bounded otherwise
    assert not child(Phase.DRAINING).is_busy

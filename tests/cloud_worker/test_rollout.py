from __future__ import annotations

from pathlib import Path

import pytest

from mqinfer.broker.address import BrokerAddress
from mqinfer.cloud_worker.serving.options import WorkerOptions
from mqinfer.cloud_worker.supervision.child import Child, Phase
from mqinfer.cloud_worker.supervision.inquiry import Inquiry
from mqinfer.cloud_worker.supervision.process import ProcessSpec
from mqinfer.cloud_worker.supervision.rollout import Rollout, Step
from mqinfer.protocol.card import ModelCard
from mqinfer.protocol.control import Duration, ModelStatistics

CARD = ModelCard("m", "1", ("1",), "mqinfer_echo", (), ())


def child(phase: Phase, *, reason: str = "", served: bool = False) -> Child:
    """Make a process in some phase, without one that runs."""
    spec = ProcessSpec(Path(), "m", 1, BrokerAddress("localhost"), WorkerOptions("w.0"))
    return Child(spec, phase, card=CARD if served or phase is Phase.READY else None, reason=reason)


@pytest.mark.parametrize(
    ("new", "old", "switched", "step"),
    [
        (child(Phase.WAITING), child(Phase.READY), False, Step.WAIT),
        (child(Phase.STARTING), child(Phase.READY), False, Step.WAIT),
        (child(Phase.READY), child(Phase.READY), False, Step.SWITCH),
        (child(Phase.FAILED, reason="no"), child(Phase.READY), False, Step.UNDO),
        (child(Phase.WAITING, reason="exit code -9"), child(Phase.READY), False, Step.UNDO),
        (child(Phase.WAITING, reason="exit code -9", served=True), child(Phase.READY), False, Step.WAIT),
        (child(Phase.READY), child(Phase.DRAINING), True, Step.WAIT),
        (child(Phase.READY), child(Phase.GONE), True, Step.DONE),
        (child(Phase.FAILED, reason="no"), child(Phase.GONE), True, Step.DONE),
    ],
)
def test_steps_of_a_rollout(new: Child, old: Child, switched: bool, step: Step) -> None:  # noqa: FBT001 -- a column of the table
    """The old process goes when the new one serves, stays when it fails, and the rollout ends with its end."""
    assert Rollout("m", (), [new], [], [old], switched=switched).next_step is step


def test_the_slowest_and_the_worst_decide() -> None:
    """One process that is not ready holds the switch back; one that failed undoes it, and says why."""
    ready, starting = child(Phase.READY), child(Phase.STARTING)
    assert Rollout("m", (), [ready, starting]).next_step is Step.WAIT
    assert Rollout("m", (), [ready], [starting]).next_step is Step.WAIT
    failed = Rollout("m", (), [ready, starting, child(Phase.FAILED, reason="no such file")])
    assert failed.next_step is Step.UNDO
    assert failed.failure == "m version 1: no such file"
    assert Rollout("m", ()).next_step is Step.SWITCH


def test_a_child_that_is_given_up_keeps_its_reason() -> None:
    """One that crashed counts as failed; one that never ran is gone; both without a process to end."""
    crashed, waiting = child(Phase.WAITING, reason="exit code -11"), child(Phase.WAITING)
    for each in (crashed, waiting):
        each.give_up(1.0)
    assert (crashed.phase, crashed.reason, waiting.phase) == (Phase.FAILED, "exit code -11", Phase.GONE)


def test_an_inquiry_adds_up_and_ends() -> None:
    """Answers of one model's processes are added; late ones and strangers' don't count; the deadline names the rest."""
    one, two, three, stranger = (child(Phase.READY) for _ in range(4))
    inquiry = Inquiry(5.0, [one, two, three])
    for each in (one, two, two, stranger):
        inquiry.take(each, ModelStatistics(inference_count=2, success=Duration(1, 10)))
    assert not inquiry.is_over(4.9) or inquiry.waiting == [three]
    assert inquiry.is_over(5.0)
    inquiry.conclude()
    found = inquiry.future.result(0)
    assert found.models == {("m", 1): ModelStatistics(inference_count=4, success=Duration(2, 20))}
    assert found.unanswered == ("w.0",)

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mqinfer.bags.frame import Frame
from mqinfer.client.window import Policy
from mqinfer.edge_agent.cascade.small import SmallNetwork
from mqinfer.edge_agent.frames.table import PreparedFrame
from mqinfer.images.picture import CompressedImage
from mqinfer.judging.settings import RunsAt
from mqinfer.protocol.datatypes import Array
from mqinfer.protocol.errors import ConfigError, ModelNotFound, ModelNotLoadable
from mqinfer.protocol.types import Outcome, Stage, Timings
from tests.edge_agent.cascade.rig import Rig, Watched, frame_of
from tests.edge_agent.kept import Kept

EDGE, REUSE, WORKER = Stage.EDGE.value, Stage.REUSE.value, Stage.WORKER.value


def test_without_stages_every_answer_is_the_reference_models(rig: Rig) -> None:
    """They have the cascade's form all the same."""
    rig.start("yolo")
    kept, snapshot = rig.run([frame_of(each, 30 * each) for each in range(8)], rig.settings())
    assert kept.stages == [WORKER] * 8
    assert kept.present == [each >= 5 for each in range(8)]
    assert snapshot.answered == {Stage.WORKER: 8, Stage.EDGE: 0, Stage.REUSE: 0}
    assert all(set(result.outputs) == {"present", "confidence"} for result in kept.results)


def test_what_the_small_model_is_sure_of_is_not_sent(rig: Rig) -> None:
    """Below c_low it is absent, from c_high on present, and between them the reference model is asked."""
    rig.start("yolo")
    levels = [10, 250, 120, 140, 30, 245]
    settings = rig.settings(small={"c_low": 0.3, "c_high": 0.9})
    kept, snapshot = rig.run([frame_of(number, level) for number, level in enumerate(levels)], settings)
    assert kept.stages == [EDGE, EDGE, WORKER, WORKER, EDGE, EDGE]
    assert kept.present == [False, True, False, True, False, True]
    assert snapshot.answered == {Stage.WORKER: 2, Stage.EDGE: 4, Stage.REUSE: 0}
    edge = kept.results[0]
    assert (edge.model_name, edge.worker, edge.attempts) == ("is-car", "", 0)
    assert edge.timings.inference > 0
    assert edge.parameters["confidence"] == pytest.approx(10 / 255, abs=0.01)
    assert rig.requester.counters().submitted == 2


def test_a_still_camera_repeats_the_answer(rig: Rig) -> None:
    """At least 55 of 100 frames are skipped where 60 hardly change, and no answer is another one than without."""
    rig.start("yolo")
    rng = np.random.default_rng(7)
    levels, level = [], 100.0
    for number in range(100):
        if number % 5 in {0, 3}:  # 40 of 100 are new
            level = float(rng.uniform(0, 255))
        levels.append(level)
    frames = [frame_of(number, each, noise=3) for number, each in enumerate(levels)]
    kept, snapshot = rig.run(frames, rig.settings(t_diff=4.0))
    plain, _ = rig.run(frames, rig.settings())
    assert snapshot.answered[Stage.REUSE] >= 55
    assert kept.present == plain.present
    reused = next(result for result in kept.results if result.stage == REUSE)
    assert (reused.worker, reused.attempts, reused.bytes_sent, reused.timings.inference) == ("", 0, 0, 0)
    sequences = [result.capture.sequence for result in kept.results]
    assert sequences == list(range(100))
    assert all(view.pixels.shape == (64, 96, 3) for _, view, _ in kept.written)


@pytest.mark.parametrize("placement", list(RunsAt))
def test_the_stages_of_each_frame_sum_to_its_time(rig: Rig, placement: RunsAt) -> None:
    """Whoever answered it; the small model's time and the comparison are stages of the edge."""
    rig.start("yolo", "is-car")
    levels = [10.0, 10.0, 140.0, 140.0, 250.0]
    settings = rig.settings(t_diff=4.0, small={"c_low": 0.3, "placement": placement})
    kept, _ = rig.run([frame_of(number, level) for number, level in enumerate(levels)], settings)
    assert kept.stages == [EDGE, REUSE, WORKER, REUSE, EDGE]
    for _, view, result in kept.written:
        assert sum(view.times.stages.values()) == view.times.total > 0
        assert ("edge_small" in view.times.stages) == (result.stage != REUSE)
        assert "edge_compare" in view.times.stages


@pytest.mark.parametrize("placement", ["edge", "cloud"])
def test_masks(rig: Rig, placement: str) -> None:
    """The small network's mask counts where it is confident, in the size of the frame; else the reference's."""
    rig.start("seg", "small-seg")
    settings = rig.settings(target=None, small={"placement": RunsAt(placement), "c_high": 0.99})
    kept, _ = rig.run([frame_of(0, 20), frame_of(1, 230), frame_of(2, 130)], settings)
    assert kept.stages == [EDGE, EDGE, WORKER]
    masks = [view.answer.mask for _, view, _ in kept.written]
    assert all(mask is not None and mask.shape == (64, 96) for mask in masks)
    assert [float(mask.mean()) for mask in masks if mask is not None] == [0.0, 1.0, 1.0]
    assert all(list(result.outputs) == ["mask"] for result in kept.results)
    assert {result.outputs["mask"].dtype for result in kept.results} == {np.dtype(np.uint8)}
    assert bool(kept.results[0].worker) == (placement == "cloud")


def test_the_small_model_in_the_cloud(rig: Rig) -> None:
    """Two workers serve it, and it needs no repository here; its request counts among the bytes."""
    rig.start("yolo", "is-car", "is-car")
    settings = rig.settings(small={"placement": RunsAt.CLOUD, "repository": None, "c_low": 0.3})
    kept, _ = rig.run([frame_of(each, 10 if each % 2 else 130) for each in range(12)], settings)
    assert kept.stages == [WORKER, EDGE] * 6
    assert kept.present == [True, False] * 6
    assert all(result.worker and result.bytes_sent for result in kept.results)
    assert rig.requester.counters().submitted == 18


def test_several_streams_are_compared_each_with_itself(rig: Rig) -> None:
    """A bright camera beside a dark one changes nothing."""
    rig.start("yolo")
    frames = [frame_of(each // 2, 200 if each % 2 else 20, ("/left", "/right")[each % 2]) for each in range(20)]
    kept, snapshot = rig.run(frames, rig.settings(t_diff=4.0))
    assert snapshot.answered == {Stage.WORKER: 2, Stage.EDGE: 0, Stage.REUSE: 18}
    assert kept.present == [False, True] * 10


def test_frames_that_cannot_be_decoded_fail_alone(rig: Rig) -> None:
    """The others have their answers."""
    rig.start("yolo")
    broken = CompressedImage("jpeg", b"\xff\xd8\xff no picture")
    frames = [replace(frame_of(each, 200), image=broken) if each % 3 == 1 else frame_of(each, 200) for each in range(9)]
    kept, snapshot = rig.run(frames, rig.settings(t_diff=4.0, small={"c_high": 0.99, "c_low": 0.1}))
    assert snapshot.outcomes[Outcome.OK] == 6
    assert [result.outcome is Outcome.OK for result in kept.results] == [each % 3 != 1 for each in range(9)]
    assert {result.error.code for result in kept.results if result.error} == {"bad_image"}


def test_with_latest_frames_that_follow_a_lost_one_are_lost_with_it(rig: Rig) -> None:
    """A newer frame came first; none of them is sent late, and each has one outcome."""
    gate = threading.Event()
    rig.start_wrapped("yolo", lambda inner: Watched(inner, lambda: gate.wait(20)))
    kept = Kept()
    levels = [20.0, 200.0, 200.0, 90.0, 90.0, 90.0, 150.0]

    def frames() -> Iterator[Frame]:
        for number, level in enumerate(levels):
            yield frame_of(number, level)
        gate.set()

    kept, snapshot = rig.run(frames(), rig.settings(t_diff=4.0), policy=Policy.LATEST, window=1, kept=kept)
    outcomes = [result.outcome.value for result in kept.results]
    assert outcomes == ["ok", *["superseded"] * 5, "ok"]
    assert snapshot.outcomes[Outcome.SUPERSEDED] == 5


def test_with_latest_the_newest_follower_of_a_failed_frame_goes_on(rig: Rig) -> None:
    """The camera is still, so nothing newer will be sent; the older followers are superseded by it."""
    gate, failures = threading.Event(), iter([True])

    def fail_once() -> None:
        gate.wait(20)
        if next(failures, False):
            raise RuntimeError("the first run fails")

    rig.start_wrapped("yolo", lambda inner: Watched(inner, fail_once))

    def frames() -> Iterator[Frame]:
        for number in range(6):
            yield frame_of(number, 200.0)
        gate.set()

    kept, _ = rig.run(frames(), rig.settings(t_diff=4.0), policy=Policy.LATEST)
    outcomes = [result.outcome.value for result in kept.results]
    assert outcomes[0] == "error"
    assert outcomes[-1] == "ok"
    assert set(outcomes[1:-1]) <= {"superseded", "ok"}


def test_a_small_model_that_cannot_be_used_is_refused_at_the_start(rig: Rig, tmp_path: Path) -> None:
    """What it is, where, and what is expected; nothing was sent."""
    rig.start("yolo", "seg")
    there = {"repository": None, "placement": RunsAt.CLOUD}
    cases = [
        (rig.settings(small={"model": "unheard"}), ModelNotLoadable, "unheard: there is no such model"),
        (rig.settings(small={"repository": tmp_path / "no"}), ConfigError, "there is no such folder"),
        (rig.settings(small={**there, "model": "unheard"}), ModelNotFound, "unheard"),
        (rig.settings(small={"model": "seg", "version": "x"}), ConfigError, "small.version = 'x'"),
        (rig.settings(small={"model": "small-seg"}), ConfigError, "no confidence of 'car' among the outputs"),
        (rig.settings(target=None, small={"model": "is-car"}), ConfigError, "no mask with a confidence"),
        (replace(rig.settings(), target="dog"), ConfigError, "its classes are none, car"),
        (rig.settings(t_diff=1.0, against="gone.png"), ConfigError, "difference.against = 'gone.png'"),
    ]
    for settings, error, message in cases:
        with pytest.raises(error, match=message):
            rig.run([frame_of(0, 10)], settings)
    assert not rig.requester.counters().submitted


def test_a_small_model_that_fails_leaves_its_frames_to_the_reference(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever its engine raises, and whatever it returns."""
    rig.start("yolo")
    answers: list[object] = [np.float32(np.nan), np.float32(7.0), RuntimeError("engine"), SystemError("engine"), None]
    run = SmallNetwork.run

    def broken(self: SmallNetwork, prepared: PreparedFrame) -> tuple[dict[str, Array], Timings]:
        outputs, timings = run(self, prepared)
        answer = answers.pop(0) if len(answers) < 6 and not is_first else None
        is_first.clear()
        if isinstance(answer, Exception):
            raise answer
        return outputs if answer is None else {"confidence": np.full((1, 1), answer)}, timings

    is_first = [True]  # the trial at the start
    monkeypatch.setattr(SmallNetwork, "run", broken)
    kept, _ = rig.run([frame_of(each, 10) for each in range(5)], rig.settings(small={"c_low": 0.3}))
    assert kept.stages == [WORKER] * 4 + [EDGE]
    assert not any(kept.present)

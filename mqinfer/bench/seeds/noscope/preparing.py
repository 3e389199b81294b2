"""Prepares the cascade of document 004: frames, reference, small model trained on its answers, thresholds by data."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from mqinfer.bags.frame import Frame
from mqinfer.bench.processes import worker_processes, worker_specs
from mqinfer.bench.seeds.experiment import Bench
from mqinfer.bench.seeds.noscope.reference import write_reference
from mqinfer.bench.seeds.noscope.scene import TARGET, read_labels, read_scene
from mqinfer.broker.address import BrokerAddress
from mqinfer.broker.private import PrivateBroker
from mqinfer.client.client import Client
from mqinfer.edge_agent.cascade.small import SmallNetwork
from mqinfer.judging.results import ResultMaker
from mqinfer.judging.settings import CascadeSettings, Reference, SmallModel
from mqinfer.judging.thumbnail import difference, thumbnail
from mqinfer.lab.cascade.recording import Answered, ask_reference, record_scores
from mqinfer.lab.cascade.scores import Scores
from mqinfer.lab.cascade.simulation import Pass, Thresholds, with_thresholds
from mqinfer.lab.cascade.training import train_presence, write_model
from mqinfer.lab.model_process import card_of
from mqinfer.models.repository import Repository
from mqinfer.protocol.errors import ConfigError

REFERENCE, SMALL = "reference", "small"
_TIMEOUT_S = 1800.0
_SHARES = (0.05, 0.07, 0.1, 0.14, 0.2, 0.28, 0.4)
"""Shares of the frames that the reference may get, N_R / N_F; the document has 8.5 to 44 %."""
LESSONS, STEP = 600, 15
"""Frames that train the small model, and of how many of the recording each is one: they show more of the traffic."""
CHOOSING = 600
"""Frames in a row behind them, by which thresholds are chosen."""


def choose_thresholds(scores: Scores, agreement: float) -> Thresholds:
    """Return thresholds with the least share of `_SHARES` for the reference that keeps an agreement on these frames.

    The difference detector may lose half of what the agreement allows. Then the frames about which the small model is
    least sure go to the reference.

    Args:
        scores: Recorded on frames that the small model was not trained on.
        agreement: Share of the frames that get the reference's own answer.
    """
    found = [difference(one, other) for one, other in pairwise(scores.thumbnails)]
    candidates = [0.0, *map(float, np.quantile(found, np.linspace(0.05, 0.95, 19)))]
    kept = [each for each in candidates if Pass(scores, each).by_reference.mean() >= (1 + agreement) / 2]
    run = Pass(scores, max(kept))
    doubts = np.sort(np.minimum(run.confidences, 1 - run.confidences)[run.is_key])
    for share in _SHARES:
        # The frame at a threshold may be on either side of it.
        margin = float(doubts[-min(round(share * len(scores)) + 1, len(doubts))])
        thresholds = Thresholds(run.t_diff, margin, 1 - margin)
        if run.agreement(thresholds).mean() >= agreement:
            break
    return thresholds


def prepare(
    bench: Bench, folder: Path, frames: int, side: int, agreement: float
) -> tuple[CascadeSettings, Path, Path, frozenset[int] | None]:
    """Prepare the cascade.

    Args:
        bench: Names a recording and its labels; a model `reference` of its repository is used.
        folder: For models and frames.
        frames: Frames in a row to answer, behind those that train the small model and choose thresholds.
        side: Of the pictures, in pixels; a multiple of 32.
        agreement: With the reference, on the frames that choose the thresholds.

    Returns:
        The cascade with its thresholds, the repository with its models, the folder of the frames to answer, and the
        numbers of those in which a car is; None where there are no labels.

    Raises:
        MqinferError: A model can't be made or served, or there are too few frames.
    """
    report, models = bench.progress, folder / "models"
    models.mkdir()
    if (bench.repository / REFERENCE).is_dir():
        Repository(bench.repository).find(REFERENCE, None)
        shutil.copytree(bench.repository / REFERENCE, models / REFERENCE)
    elif bench.source:
        raise ConfigError(f"a recording needs a reference that knows it: put a model {REFERENCE!r} in the repository")
    else:
        write_reference(models / REFERENCE, side, report)
    start = LESSONS * STEP + CHOOSING
    numbers = [*range(0, LESSONS * STEP, STEP), *range(LESSONS * STEP, start + frames)]
    scene = read_scene(bench.source, numbers, side, report)
    last = folder / "frames"
    last.mkdir()
    for number, picture in enumerate(scene[-frames:]):
        (last / f"{number:06d}.jpg").write_bytes(picture.data)
    labels = read_labels(bench.labels) if bench.labels else None
    bare = CascadeSettings(Reference(REFERENCE), TARGET)
    known = [Frame("", number, 0, 0, "", picture) for number, picture in zip(numbers, scene[:-frames], strict=False)]
    answered, answers = _answers(bench, bare, models, known, labels)
    first, second = answered[:LESSONS], answered[LESSONS:]
    seen, taught = np.stack([each.seen for each in first]), np.concatenate([each.answer for each in first])
    write_model(models, SMALL, train_presence(seen, taught, report), {"source": "street", "skipped": 0})
    small = SmallModel(SMALL, 1.0, repository=models)
    network = SmallNetwork(small, models, is_raw=False)
    try:
        staged = replace(bare, small=small)
        scores = record_scores(second, replace(answers, settings=staged, small=network.card), network)
    finally:
        network.close()
    chosen = choose_thresholds(scores, agreement)
    report(f"t_diff {chosen.t_diff:.3g}, c_low {chosen.c_low:.3g}, c_high {chosen.c_high:.6g}")
    seen_there = None if labels is None else frozenset(number - start for number in labels)
    return with_thresholds(staged, chosen), models, last, seen_there


def _answers(
    bench: Bench, bare: CascadeSettings, models: Path, frames: Sequence[Frame], labels: frozenset[int] | None
) -> tuple[list[Answered], ResultMaker]:
    """Return the reference's answers to frames: the labels, or what workers say."""
    reference = Repository(models).find(REFERENCE)
    if labels is not None:
        known = [(each, np.array([each.sequence in labels], np.uint8)) for each in frames]
        found = [Answered(frame, thumbnail(frame.image), is_there, 0.0) for frame, is_there in known]
        return found, ResultMaker(bare, card_of(reference))

    def tell(done: int) -> None:
        if done % 100 == 0:
            bench.progress(f"  the reference has answered {done} of {len(frames)} frames")

    with PrivateBroker() as broker:
        specs = worker_specs(reference, BrokerAddress.parse(broker.url), len(os.sched_getaffinity(0)))
        with worker_processes(specs), Client(broker.url) as client:
            answers = ResultMaker(bare, client.card(REFERENCE))
            return list(ask_reference(client, answers, frames, _TIMEOUT_S, tell)), answers

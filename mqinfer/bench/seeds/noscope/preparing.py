"""Prepares the cascade of document 004: frames, reference, small model trained on its answers, thresholds by data.

The reference is YOLOv2 in its full size; its last layer finds cars of synthetic streets. All layers but the last have
random weights, with normalisation fitted to some pictures. Random convolutions are features too, and a street is
simple: a ridge regression from the 1024 features of a cell to "the middle of a car is here", fitted on frames of the
same street days later, is enough to answer whether a car is in the picture: 99 % right. Fitted on other streets it was
right in 95 %, and a small model can't learn its errors. So the answers depend on the picture, and each costs what
YOLOv2's costs. It is no good detector of anything else.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mqinfer.bags.frame import Frame
from mqinfer.bench.processes import worker_processes, worker_specs
from mqinfer.bench.seeds.experiment import Bench
from mqinfer.bench.seeds.noscope.scene import SEED, TARGET, read_labels, read_scene
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
from mqinfer.lab.drives.street import StreetCamera
from mqinfer.lab.model_process import card_of
from mqinfer.lab.zoo.classes import COCO
from mqinfer.lab.zoo.layers import keras
from mqinfer.lab.zoo.networks.yolo_v2 import ANCHORS, yolo_network, yolo_v2
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
Floats = npt.NDArray[np.float64]
_STREETS = range(1_000_000, 1_001_200)
"""Numbers of frames at two a second, of which some fit the last layer: days later than the experiment's."""
_WITH_CARS, _WITHOUT = 100, 60
_STRIDE = 32
_RIDGE = 0.02
"""Weight of the coefficients' size, a cell."""
_CERTAINTY = 6.0
"""The regression's -1 and 1 become scores of sigmoid(-6) and sigmoid(6)."""
_ANCHOR = 1
_VALUES = 5 + len(COCO)


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
        _write_reference(models / REFERENCE, side, report)
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


def _write_reference(folder: Path, side: int, report: Callable[[str], None]) -> None:
    """Fit the network, and write it as a model that workers serve, on one thread and in batches of up to 4."""
    model = yolo_v2(side)
    pictures, boxes = _streets(side)
    _normalise(model, pictures[::7])
    trunk = keras().Model(model.input, model.layers[-1].input)
    report(f"fitting the reference's last layer on {len(pictures)} frames")
    features = np.concatenate([trunk(_floats(picture[None]), training=False).numpy() for picture in pictures])
    weights, bias = _fit(features, boxes)
    model.layers[-1].set_weights([weights[None, None].astype(np.float32), bias.astype(np.float32)])
    version = folder / "1"
    version.mkdir(parents=True)
    # TensorFlow, as in the document; and ONNX of 50 million weights takes 9 GB to write, this 3.
    yolo_network(model).write(version / "model.pb")
    (folder / "model.toml").write_text(_config(side), encoding="utf-8")


def _streets(side: int) -> tuple[npt.NDArray[np.uint8], list[Floats]]:
    camera = StreetCamera(SEED, side, side, rate=2.0)
    found = {number: camera.boxes(number) for number in _STREETS}
    crowded = [number for number, each in found.items() if len(each)]
    free = [number for number, each in found.items() if not len(each)]
    chosen = [
        *crowded[:: max(len(crowded) // _WITH_CARS, 1)][:_WITH_CARS],
        *free[:: max(len(free) // _WITHOUT, 1)][:_WITHOUT],
    ]
    return np.stack([camera.scene(number).picture for number in chosen]), [found[number] for number in chosen]


def _floats(pictures: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    return pictures.astype(np.float32) / np.float32(255)


def _normalise(model: Any, pictures: npt.NDArray[np.uint8]) -> None:
    """Set the statistics of batch normalisation to those of some pictures: with random ones features vanish."""
    for layer in model.layers:
        if isinstance(layer, keras().layers.BatchNormalization):
            layer.momentum = 0.0
    model(_floats(pictures), training=True)


def _fit(features: npt.NDArray[np.float32], boxes: list[Floats]) -> tuple[Floats, Floats]:
    """Return weights and biases of the last layer, such that one anchor finds cars and the others find nothing."""
    cells = features.shape[1]
    inside, judged, offsets = _targets(boxes, cells)
    flat = features.reshape(-1, features.shape[-1]).astype(np.float64)
    mean = flat.mean(axis=0)
    inputs = np.c_[flat - mean, np.ones(len(flat))]
    share = float(inside[judged].mean())
    balance = np.asarray(np.where(inside, (1 - share) / share / 4, 1.0) * judged, np.float64)
    objectness = _ridge(inputs, np.where(inside, 1.0, -1.0)[:, None], balance)
    shape = _ridge(inputs, offsets, inside.astype(np.float64))
    weights = np.zeros((len(ANCHORS), _VALUES, inputs.shape[1]))
    weights[_ANCHOR, 4], weights[_ANCHOR, :4] = _CERTAINTY * objectness[:, 0], shape.T
    weights[:, 4, -1] -= 20 * (np.arange(len(ANCHORS)) != _ANCHOR)
    weights[:, 5 + [each.name for each in COCO].index(TARGET), -1] = 10
    plain = weights.reshape(-1, inputs.shape[1])
    return plain[:, :-1].T, plain[:, -1] - plain[:, :-1] @ mean


def _targets(boxes: list[Floats], cells: int) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_], Floats]:
    """Return for each cell whether it lies in the middle of a car, whether that is clear, and the car's box there."""
    centres = (np.arange(cells) + 0.5) * _STRIDE
    inside = np.zeros((len(boxes), cells, cells), bool)
    near, offsets = inside.copy(), np.zeros((*inside.shape, 4))
    for number, found in enumerate(boxes):
        for left, top, right, bottom in found:
            width, height = right - left, bottom - top
            aside, above = abs(centres - (left + right) / 2), abs(centres - (top + bottom) / 2)
            here = np.ix_(above < max(0.3 * height, 0.53 * _STRIDE), aside < max(0.25 * width, 0.53 * _STRIDE))
            inside[number][here] = True
            near[number][np.ix_(above < 0.6 * height + 16, aside < 0.6 * width + 16)] = True
            # Centre 0.5 (a sigmoid's 0) in the cell: boxes are rough, and the question is whether there is one.
            offsets[number][here] = (0, 0, *np.log(np.array([width, height]) / _STRIDE / ANCHORS[_ANCHOR]))
    return inside.ravel(), (inside | ~near).ravel(), offsets.reshape(-1, 4)


def _ridge(inputs: Floats, targets: Floats, weights: Floats) -> Floats:
    """Return the coefficients of a weighted ridge regression."""
    weighted = inputs * weights[:, None]
    size = _RIDGE * len(inputs) * np.eye(inputs.shape[1])
    return np.asarray(np.linalg.solve(weighted.T @ inputs + size, weighted.T @ targets), np.float64)


def _config(side: int) -> str:
    classes = "".join(f'\n[[classes]]\nname = "{each.name}"\n' for each in COCO)
    return (
        f'max_batch_size = 4\n\n[parameters]\nintra_op_thread_count = "1"\n\n'
        f'[image]\ninput = "input"\nwidth = {side}\nheight = {side}\n{classes}'
    )

"""Trains `drive_segmentation` on synthetic drives, in minutes on two cores, reproducibly from a seed.

The caller supplies the drives; the command uses `mqinfer.lab.drives.lessons`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mqinfer.lab.zoo.layers import keras, tensorflow
from mqinfer.lab.zoo.networks.drive_net import drive_net
from mqinfer.protocol.card import ClassInfo

log = logging.getLogger("mqinfer.models")
Pixels = npt.NDArray[np.uint8]
_SEED = 20_000
"""First seed of the training drives; test drives have seeds far from these."""


@dataclass(frozen=True, slots=True)
class Lessons:
    """Training data.

    Attributes:
        drive: Function from a seed to an endless iterator over the pictures (RGB uint8 [H,W,3]) and masks
            (uint8 [H,W]) of one drive, all of one size.
        classes: Classes of the numbers in the masks.
        key: Hash of the code that renders the drives.
    """

    drive: Callable[[int], Iterator[tuple[Pixels, Pixels]]]
    classes: tuple[ClassInfo, ...]
    key: str


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """Amount of training; all of it is part of the key of the cached weights.

    Attributes:
        drives: Number of drives.
        frames: Frames of each drive, seconds apart, so that they differ.
        crop: Height and width of a training crop, in pixels of the halved picture.
        batch: Crops in a step.
        steps: Number of steps.
        rate: Largest learning rate.
    """

    drives: int = 100
    frames: int = 3
    crop: tuple[int, int] = (160, 256)
    batch: int = 8
    steps: int = 700
    rate: float = 4e-3


def train(lessons: Lessons, plan: TrainingPlan, weights: Path, progress: Callable[[str], None]) -> None:
    """Train the network and write its weights (`.weights.h5`).

    Args:
        lessons: Training data.
        plan: Amount of training.
        weights: File to write.
        progress: Called with a line at each step.

    Raises:
        MissingExtra: TensorFlow is not installed.
    """
    started = time.monotonic()
    keras().utils.set_random_seed(7)
    pictures, masks = _render(lessons, plan)
    progress(f"rendered {len(pictures)} frames of {plan.drives} drives in {time.monotonic() - started:.0f} s")
    model = drive_net(*plan.crop, len(lessons.classes))
    _fit(model, plan, (pictures, masks), class_weights(masks, len(lessons.classes)), progress)
    weights.parent.mkdir(parents=True, exist_ok=True)
    model.save_weights(weights)
    progress(f"trained in {time.monotonic() - started:.0f} s")


def _render(lessons: Lessons, plan: TrainingPlan) -> tuple[Pixels, Pixels]:
    """Collect pictures and masks, halved: the exported network halves its input too."""
    pictures, masks = [], []
    for drive in range(plan.drives):
        for picture, mask in islice(lessons.drive(_SEED + drive), plan.frames):
            pictures.append(_halve(picture))
            masks.append(mask[::2, ::2])
    return np.stack(pictures), np.stack(masks)


def _halve(picture: Pixels) -> Pixels:
    from mqinfer.images.placement import fit

    return np.asarray(fit(picture, picture.shape[1] // 2, picture.shape[0] // 2), np.uint8)


def _fit(
    model: Any,
    plan: TrainingPlan,
    data: tuple[Pixels, Pixels],
    by_class: npt.NDArray[np.float32],
    progress: Callable[[str], None],
) -> None:
    tf = tensorflow()
    schedule = keras().optimizers.schedules.CosineDecay(
        plan.rate / 20, plan.steps, alpha=0.01, warmup_target=plan.rate, warmup_steps=plan.steps // 20
    )
    optimizer = keras().optimizers.AdamW(schedule, weight_decay=1e-3)
    weights = tf.constant(by_class)

    @tf.function(jit_compile=False)  # type: ignore[untyped-decorator]  # TensorFlow ships no types
    def step(picture: Any, mask: Any) -> Any:
        with tf.GradientTape() as tape:
            logits = model(picture, training=True)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(mask, logits)
            weight = tf.gather(weights, mask)
            loss = tf.reduce_sum(losses * weight) / tf.reduce_sum(weight)
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        return loss

    rng = np.random.default_rng(7)
    for number in range(plan.steps):
        loss = step(*_crops(rng, plan, *data))
        if number % 100 == 99:
            progress(f"step {number + 1} of {plan.steps}, loss {float(loss):.3f}")


def class_weights(masks: Pixels, classes: int) -> npt.NDArray[np.float32]:
    """Return a weight for each class, larger for rare ones: poles, lane marks and cars have few pixels."""
    shares = np.bincount(masks.ravel(), minlength=classes) / masks.size
    weights = np.sqrt(0.05 / np.maximum(shares, 1e-4))
    return np.clip(weights, 0.5, 6.0).astype(np.float32)


def _crops(
    rng: np.random.Generator, plan: TrainingPlan, pictures: Pixels, masks: Pixels
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int32]]:
    """Cut a batch at random places; mirror half of it and vary the brightness of all."""
    height, width = plan.crop
    picture = np.empty((plan.batch, height, width, 3), np.float32)
    mask = np.empty((plan.batch, height, width), np.int32)
    for index in range(plan.batch):
        frame = rng.integers(len(pictures))
        top = rng.integers(pictures.shape[1] - height + 1)
        left = rng.integers(pictures.shape[2] - width + 1)
        area = np.s_[frame, top : top + height, left : left + width]
        side = -1 if rng.random() < 0.5 else 1
        picture[index] = pictures[area][:, ::side] * np.float32(rng.uniform(0.8, 1.2) / 255)
        mask[index] = masks[area][:, ::side]
    return np.minimum(picture, 1.0), mask

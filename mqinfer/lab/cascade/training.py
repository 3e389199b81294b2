"""Trains the small model of a cascade on the reference model's own answers."""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mqinfer.codecs.opencv import opencv
from mqinfer.extras import check_packages
from mqinfer.lab.zoo.classes import class_tables
from mqinfer.lab.zoo.export import Input, Network
from mqinfer.lab.zoo.layers import keras, tensorflow
from mqinfer.lab.zoo.networks.classifiers import SIDE, noscope, noscope_network
from mqinfer.lab.zoo.networks.drive_net import drive_net
from mqinfer.lab.zoo.training import class_weights
from mqinfer.protocol.card import ClassInfo
from mqinfer.protocol.errors import ConfigError
from mqinfer.toml_files import read_text

Pixels = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
MASK_SIZE = (96, 64)
"""Width and height of the pictures and masks of a small model for masks."""
_LEAST_FRAMES = 20
_BATCH, _STEPS, _JUDGED_EVERY = 16, 600, 50
_PATIENCE = 3
"""Training ends when so many judgements in a row were no better than the best one,"""
_GOOD_LOSS = 0.01
"""or when the loss on the frames kept back is below this: more would make it surer, and not better."""
_KEPT_BACK = 0.2
_SPREAD = 0.1
"""Differences to the mean picture are divided by this, of 1."""
_NOTES = "training.json"


@dataclass(frozen=True, slots=True)
class TrainedNetwork:
    """A trained network.

    Attributes:
        network: As it will be served.
        size: Width and height of its pictures.
        frames: How many frames it was trained on, those that it was judged by included.
        accuracy: Share of right answers, or of right pixels, on the frames that were kept back.
    """

    network: Network
    size: tuple[int, int]
    frames: int
    accuracy: float


def check_training() -> None:
    """Check before the reference is asked that a network can be trained and written.

    Raises:
        MissingExtra: TensorFlow or tf2onnx is not installed.
    """
    check_packages({"tensorflow": "tensorflow-cpu", "tf2onnx": "tf2onnx"}, "tensorflow")


def train_presence(
    pictures: Pixels, answers: Pixels, report: Callable[[str], None], *, seed: int = 0
) -> TrainedNetwork:
    """Train NoScope's specialised network to answer as the reference does whether the target is there.

    The last fifth of the frames is kept back, and the weights that do best on them are returned.

    Args:
        pictures: Thumbnails of the frames, uint8 [n,50,50,3].
        answers: The reference's, 0 or 1, uint8 [n].
        report: Called with a line about each step.
        seed: Of weights and batches.

    Raises:
        ConfigError: All answers are the same.
        ConfigError: There are too few frames.
        MissingExtra: TensorFlow is not installed.
    """
    _check(len(pictures))
    present = float(answers.mean())
    if present in {0.0, 1.0}:
        what = "in every one" if present else "in none"
        raise ConfigError(
            f"there is nothing to learn: the reference finds the target {what} of {len(answers)} frames; choose a part "
            "of the recording where it comes and goes, or another target"
        )
    model = noscope(seed=seed)
    weights = np.where(answers, 0.5 / present, 0.5 / (1 - present)).astype(np.float32)
    split = _split(answers)
    # What stands still is most of a picture and says nothing; NoScope subtracts the mean picture, too.
    mean = pictures[:split].mean(axis=0, dtype=np.float32) / 255
    shown = np.asarray((pictures / np.float32(255) - mean) / _SPREAD, np.float32)
    accuracy = _fit(model, (shown, answers, weights), split, report, seed)
    return TrainedNetwork(noscope_network(model, mean, _SPREAD), (SIDE, SIDE), len(pictures), accuracy)


def train_masks(
    pictures: Pixels, masks: Pixels, classes: int, report: Callable[[str], None], *, seed: int = 0
) -> TrainedNetwork:
    """Train a small segmentation network to make the reference's masks.

    Args:
        pictures: Of the frames, RGB, uint8 [n,64,96,3].
        masks: The reference's, in the same size, uint8 [n,64,96].
        classes: Number of classes.
        report: Called with a line about each step.
        seed: Of weights and batches.

    Raises:
        ConfigError: All masks are the same.
        ConfigError: There are too few frames.
        MissingExtra: TensorFlow is not installed.
    """
    _check(len(pictures))
    if (masks == masks[0]).all():
        raise ConfigError(
            f"there is nothing to learn: the reference's mask is the same for all {len(masks)} frames; choose a part "
            "of the recording where something moves"
        )
    keras().utils.set_random_seed(seed)
    width, height = MASK_SIZE
    logits = drive_net(height, width, max(classes, int(masks.max()) + 1))
    model = keras().Model(logits.input, keras().layers.Softmax()(logits.output))
    weights = class_weights(masks, 256)
    split = round(len(pictures) * (1 - _KEPT_BACK))
    shown = np.asarray(pictures, np.float32) / np.float32(255)
    accuracy = _fit(model, (shown, masks, np.asarray(weights[masks], np.float32)), split, report, seed)
    return TrainedNetwork(_mask_network(model), MASK_SIZE, len(pictures), accuracy)


def shrink_mask(mask: Pixels) -> Pixels:
    """Return a mask in the size of the small model's: each pixel is the class of the nearest one."""
    return np.asarray(opencv().resize(mask, MASK_SIZE, interpolation=opencv().INTER_NEAREST_EXACT), np.uint8)


def _check(frames: int) -> None:
    if frames < _LEAST_FRAMES:
        raise ConfigError(f"{frames} frames are too few to train with; expected {_LEAST_FRAMES} or more")


def _fit(
    model: Any, data: tuple[Floats, Pixels, Floats], split: int, report: Callable[[str], None], seed: int
) -> float:
    """Train on the frames before `split`, keep the weights that do best on the others, and return their accuracy."""
    pictures, answers, weights = data
    model.compile(
        keras().optimizers.Adam(1e-3), loss="sparse_categorical_crossentropy", metrics=["accuracy"], jit_compile=False
    )
    rng = np.random.default_rng(seed)
    best, best_weights, waited = (float("inf"), 0.0), model.get_weights(), 0
    for step in range(1, _STEPS + 1):
        chosen = rng.integers(0, split, _BATCH)
        gain = rng.uniform(0.9, 1.1, (_BATCH, 1, 1, 1)).astype(np.float32)
        model.train_on_batch(pictures[chosen] * gain, answers[chosen], sample_weight=weights[chosen])
        if step % _JUDGED_EVERY == 0:
            loss, accuracy = (float(each) for each in model.evaluate(pictures[split:], answers[split:], verbose=0))
            report(
                f"step {step} of {_STEPS}: {accuracy:.2%} right on {len(pictures) - split} frames that were kept back"
            )
            waited += 1
            if loss < best[0]:
                best, best_weights, waited = (loss, accuracy), model.get_weights(), 0
            if waited == _PATIENCE or loss < _GOOD_LOSS:
                break
    model.set_weights(best_weights)
    return best[1]


def _split(answers: Pixels) -> int:
    """Return how many frames to train on: four fifths, or fewer if both answers are then on both sides."""
    wanted = round(len(answers) * (1 - _KEPT_BACK))
    for split in range(wanted, 0, -1):
        if len(np.unique(answers[:split])) == len(np.unique(answers[split:])) == 2:
            return split
    return wanted


def _mask_network(model: Any) -> Network:
    """Return the served network: uint8 `input` [N,64,96,3] to `mask` uint8 [N,64,96] and its `confidence` [N].

    The confidence is the mean over the pixels of the best class's probability.
    """
    tf, (width, height) = tensorflow(), MASK_SIZE

    def infer(pixels: Any) -> Mapping[str, Any]:
        found = model(tf.cast(pixels, tf.float32) / 255, training=False)
        mask = tf.cast(tf.argmax(found, axis=-1, output_type=tf.int32), tf.uint8)
        return {"mask": mask, "confidence": tf.reduce_mean(tf.reduce_max(found, axis=-1), axis=(1, 2))}

    inputs = (Input("input", (None, height, width, 3), "uint8"),)
    return Network(infer, inputs, ("mask", "confidence"), model.variables)


def write_model(
    repository: Path, name: str, trained: TrainedNetwork, notes: Mapping[str, object], classes: Sequence[ClassInfo] = ()
) -> Path:
    """Write a trained network into a repository as the model's next version, with what it was trained on.

    Args:
        repository: Model repository.
        name: Of the model.
        trained: The network.
        notes: What it was trained on, for `trained_frames` and for readers.
        classes: Of its masks.

    Returns:
        Folder of the version.

    Raises:
        ConfigError: It can't be written.
        MissingExtra: tf2onnx is not installed.
    """
    new = repository / name / f".{secrets.token_hex(4)}.new"
    try:
        new.mkdir(parents=True)
        trained.network.write(new / "model.onnx")
        (new / _NOTES).write_text(json.dumps({**notes, "frames": trained.frames}) + "\n", encoding="utf-8")
        config = new.parent / "model.toml"
        if not config.exists():
            config.write_text(_config(trained, classes), encoding="utf-8")
        return _numbered(new)
    except OSError as error:
        shutil.rmtree(new, ignore_errors=True)
        raise ConfigError(f"cannot write {new.parent}: {error.strerror or error}; choose another repository") from error


def _numbered(new: Path) -> Path:
    """Rename a whole version to the next number, or to a later one where another is written at the same moment."""
    while True:
        taken = [int(each.name) for each in new.parent.glob("*") if each.name.isdecimal()]
        folder = new.with_name(str(max(taken, default=0) + 1))
        try:
            return new.rename(folder)
        except OSError:
            if not folder.exists():
                raise


def _config(trained: TrainedNetwork, classes: Sequence[ClassInfo]) -> str:
    width, height = trained.size
    size = f"width = {width}\nheight = {height}\n"
    return f'max_batch_size = 64\n\n[image]\ninput = "input"\n{size}{class_tables(classes)}'


def trained_frames(version: Path, source: str) -> int:
    """Return the number of the first frame of a recording that a model's version was not trained on."""
    path = version / _NOTES
    try:
        notes = json.loads(read_text(path)) if path.is_file() else {}
        is_own = Path(notes["source"]).absolute() == Path(source).absolute()
        return max(int(notes["skipped"]) + int(notes["frames"]), 0) if is_own else 0
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return 0

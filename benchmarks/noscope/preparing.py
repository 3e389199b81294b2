"""Prepares the experiment: renders frames, fits the reference, trains the small model on its answers, calibrates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from benchmarks.noscope.experiment import REFERENCE, SMALL, Setting, serving
from benchmarks.noscope.reference import TARGET, write_reference
from benchmarks.noscope.street import StreetCamera
from mqinfer.broker.mosquitto.server import MosquittoServer
from mqinfer.client.client import Client
from mqinfer.codecs.opencv import opencv
from mqinfer.edge_agent.cascade.small import SmallNetwork
from mqinfer.judging.results import ResultMaker
from mqinfer.judging.settings import CascadeSettings, Reference, SmallModel
from mqinfer.lab.cascade.calibration import Calibration, Goal, calibrate
from mqinfer.lab.cascade.recording import Answered, ask_reference, read_part, record_scores
from mqinfer.lab.cascade.simulation import with_thresholds
from mqinfer.lab.cascade.training import train_presence, write_model
from mqinfer.protocol.errors import ConfigError

__all__ = ["NoScopeOptions", "PreparedExperiment", "prepare"]

_TIMEOUT_S = 1800.0
_QUALITY = 90


@dataclass(frozen=True, slots=True)
class NoScopeOptions:
    """The size of the experiment.

    Attributes:
        frames: Frames that each setting gets.
        training: Frames before them that the small model is trained on.
        calibration: Frames between these that the thresholds are chosen on.
        side: Side of the pictures, in pixels.
        rate: Frames a second of the camera.
        seed: Of the street.
        goal: Accuracy that the thresholds are chosen for: as NoScope's optimiser without a promise, since so few frames
            of one scene promise little. It is measured.
        replicas: Numbers of workers of each model in the grid.
    """

    frames: int = 100
    training: int = 300
    calibration: int = 600
    side: int = 608
    rate: float = 2.0
    seed: int = 7
    goal: Goal = field(default_factory=lambda: Goal(confidence=0.5))
    replicas: tuple[int, ...] = (1, 2)

    def __post_init__(self) -> None:
        if self.frames < 1 or self.side < 96 or self.side % 32:
            raise ConfigError(
                f"{self.frames} frames of {self.side} pixels: expected 1 frame or more, and a side of 96 or more that "
                "is a multiple of 32"
            )


@dataclass(frozen=True, slots=True)
class PreparedExperiment:
    """What the settings are measured with.

    Attributes:
        cascade: Calibrated.
        calibration: How.
        repository: Has the models.
        frames: Folder of the frames to answer.
        truth: Whether a car is in each of them.
        trained_accuracy: Of the small model alone on frames that were kept back from training.
    """

    cascade: CascadeSettings
    calibration: Calibration
    repository: Path
    frames: Path
    truth: tuple[bool, ...]
    trained_accuracy: float


def prepare(
    options: NoScopeOptions, repository: Path, folder: Path, report: Callable[[str], None]
) -> PreparedExperiment:
    """Prepare the experiment.

    Args:
        options: Its size.
        repository: For the models; a model `reference` that is there is used.
        folder: For the frames.
        report: Called with a line about each step.

    Raises:
        MqinferError: A model can't be made or served, or no thresholds keep the goal.
    """
    camera = StreetCamera(options.seed, options.side, options.side, options.rate)
    before = options.training + options.calibration
    report(f"rendering {before + options.frames} frames of a street")
    _render(camera, range(before), folder / "before")
    _render(camera, range(before, before + options.frames), folder / "frames")
    if not (repository / REFERENCE).exists():
        write_reference(repository / REFERENCE, options.side, report)
    bare = CascadeSettings(Reference(REFERENCE), TARGET)
    answered, answers = _ask(bare, options, repository, folder / "before", report)
    first, second = answered[: options.training], answered[options.training :]
    seen = np.stack([each.seen for each in first])
    trained = train_presence(seen, np.concatenate([each.answer for each in first]), report)
    write_model(repository, SMALL, trained, {"source": "street", "skipped": 0})
    small = SmallModel(SMALL, 1.0, repository=repository)
    network = SmallNetwork(small, repository, is_raw=False)
    try:
        staged = replace(bare, small=small)
        scores = record_scores(second, replace(answers, settings=staged, small=network.card), network)
    finally:
        network.close()
    found = calibrate(scores, options.goal)
    cascade = with_thresholds(staged, found.chosen.thresholds)
    truth = tuple(len(camera.boxes(number)) > 0 for number in range(before, before + options.frames))
    return PreparedExperiment(cascade, found, repository, folder / "frames", truth, trained.accuracy)


def _render(camera: StreetCamera, numbers: range, folder: Path) -> None:
    folder.mkdir(parents=True)
    cv2 = opencv()
    for number in numbers:
        picture = cv2.cvtColor(camera.scene(number).picture, cv2.COLOR_RGB2BGR)
        cv2.imwrite(str(folder / f"{number:06d}.jpg"), picture, [cv2.IMWRITE_JPEG_QUALITY, _QUALITY])


def _ask(
    bare: CascadeSettings, options: NoScopeOptions, repository: Path, folder: Path, report: Callable[[str], None]
) -> tuple[list[Answered], ResultMaker]:
    """Return the reference's answers to the frames before the experiment, by as many workers as the grid has."""
    count = options.training + options.calibration
    setting = Setting("", bare, max(options.replicas))

    def tell(done: int) -> None:
        if done % 100 == 0:
            report(f"  the reference has answered {done} of {count} frames")

    with MosquittoServer() as broker, serving(setting, repository, broker.url), Client(broker.url) as client:
        answers = ResultMaker(bare, client.card(REFERENCE))
        frames = read_part(str(folder), None, 0, count)
        return list(ask_reference(client, answers, frames, _TIMEOUT_S, tell)), answers

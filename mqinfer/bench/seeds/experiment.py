"""What an experiment gets, and how the networks that it needs come into a model repository."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from mqinfer.bench.seeds.rows import Measured, NotMeasured
from mqinfer.lab import zoo
from mqinfer.lab.drives.lessons import lesson_drive, lessons_key
from mqinfer.lab.drives.synthetic import CLASSES
from mqinfer.models.repository import ModelVersion, Repository


@dataclass(frozen=True, slots=True)
class Bench:
    """What an experiment gets.

    Attributes:
        repository: Model repository; networks of the zoo that it lacks are built there.
        full: Whether the documents' own numbers of samples run.
        source: Recording with the frames; None for a synthetic drive.
        tables: Tables that are asked for; an experiment may yield rows of others, which are dropped.
        progress: Called with a line about each step.
        replicas: Numbers of reference servers of document 004.
        frames: Numbers of frames of document 004's Table 1; empty for two of its own, or all of them.
        labels: NoScope's file of labels of the recording: which frames have a car; None to ask a reference model.
    """

    repository: Path
    full: bool
    source: str | None
    tables: frozenset[str]
    progress: Callable[[str], None]
    replicas: tuple[int, ...] = (1, 2, 4, 8)
    frames: tuple[int, ...] = ()
    labels: Path | None = None

    def model(self, name: str) -> ModelVersion:
        """Return a network of the zoo from the repository, and build it there if there is none of its name.

        Raises:
            MissingExtra: TensorFlow, tf2onnx or onnx is not installed, and the network has to be built.
            ConfigError: The repository has something of that name that is no model.
        """
        if not (self.repository / name).is_dir():
            lessons = zoo.Lessons(lesson_drive, CLASSES, lessons_key())
            zoo.build(self.repository, [name], lessons=lessons, progress=self.progress)
        return Repository(self.repository).find(name, None)

    def count(self, usual: int, full: int) -> int:
        """Return a number of samples: the usual one, or the document's."""
        return full if self.full else usual


Experiment = Callable[[Bench], Iterator[Measured | NotMeasured]]

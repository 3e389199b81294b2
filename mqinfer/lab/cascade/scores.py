"""What is recorded of each frame of a video, from which any thresholds of a cascade can be judged without a model."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mqinfer.edge_agent.output_files import read_npz, writing
from mqinfer.judging.thumbnail import SIDE
from mqinfer.logs import reason
from mqinfer.protocol.errors import ConfigError

Pixels = npt.NDArray[np.uint8]
ABSENT, PRESENT = 0, 1
"""The two answers of a cascade that looks for a target."""
_FORMS = ["uint8, axes 4", "float32, axes 1", *["uint8, axes 2"] * 2]


@dataclass(frozen=True, slots=True)
class Costs:
    """What each stage costs for one frame that reaches it, in milliseconds of a processor core.

    Attributes:
        difference: The comparison with another frame.
        small: The small model.
        reference: The reference model.
    """

    difference: float = 0.1
    small: float = 2.0
    reference: float = 600.0

    def __post_init__(self) -> None:
        if not all(0 <= each < math.inf for each in (self.difference, self.small, self.reference)):
            raise ConfigError(f"{self}: expected milliseconds, 0 or more")


@dataclass(frozen=True, slots=True, eq=False)
class Scores:
    """The recorded scores of consecutive frames of one video.

    Attributes:
        thumbnails: uint8 [n,50,50,3].
        confidences: Of the small model, 0 to 1, float32 [n].
        reference: The reference's answers, uint8 [n,p]: `PRESENT` or `ABSENT` with p = 1, or the p pixels of a mask.
        small: The small model's masks, uint8 [n,p]; None for a cascade with a target, whose answer follows from the
            confidence.
        costs: What the stages cost.
    """

    thumbnails: Pixels
    confidences: npt.NDArray[np.float32]
    reference: Pixels
    small: Pixels | None = None
    costs: Costs = field(default_factory=Costs)

    def __post_init__(self) -> None:
        count = len(self.thumbnails)
        masks = self.reference if self.small is None else self.small
        arrays = (self.thumbnails, self.confidences, self.reference, masks)
        shapes = [each.shape for each in arrays]
        if {shape[0] for shape in shapes} != {count} or masks.shape != self.reference.shape:
            raise ConfigError(f"scores of {shapes}: expected the same number of frames in each, and masks of one size")
        if not count:
            raise ConfigError("there are no frames to calibrate with; choose a longer part of the recording")
        forms = [f"{each.dtype}, axes {each.ndim}" for each in arrays]
        if forms != _FORMS:
            raise ConfigError(f"scores of {forms}: expected {_FORMS}")
        if not ((self.confidences >= 0) & (self.confidences <= 1)).all():
            raise ConfigError("some confidences of the small model are not from 0 to 1; train it again")

    def __len__(self) -> int:
        return len(self.thumbnails)


def write_scores(path: Path, scores: Scores) -> None:
    """Write scores as `.npz`.

    Raises:
        ConfigError: The file can't be written.
    """
    costs = np.array([scores.costs.difference, scores.costs.small, scores.costs.reference])
    arrays: dict[str, Any] = {"costs": costs, "thumbnails": scores.thumbnails, "confidences": scores.confidences}
    arrays["reference"] = scores.reference
    if scores.small is not None:
        arrays["small"] = scores.small
    with writing(path), path.open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, **arrays)


def read_scores(path: Path) -> Scores:
    """Read what `write_scores` wrote.

    Raises:
        ConfigError: It can't be read, or holds something else.
    """
    try:
        arrays = read_npz(path)
        arrays["thumbnails"] = arrays["thumbnails"].reshape(-1, SIDE, SIDE, 3)
        costs = Costs(*map(float, arrays.pop("costs")))
        return Scores(costs=costs, **arrays)
    except Exception as error:  # of NumPy's reader, of ZIP files and what packed them, or of other arrays
        raise ConfigError(
            f"{path}: can't be read as scores: {reason(error)}; write them with: mqinfer cascade calibrate --scores"
        ) from error

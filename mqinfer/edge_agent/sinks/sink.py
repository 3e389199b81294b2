"""The contract of a sink."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from mqinfer.bags.frame import Frame
from mqinfer.client.result import InferResult

__all__ = ["Picture", "Sink"]

Picture = npt.NDArray[np.uint8]
"""RGB pixels `[height, width, 3]`, 0 to 255."""


class Sink(Protocol):
    """Keeps results. Called from one thread, in the order in which the frames of a stream were read."""

    def write(self, frame: Frame, picture: Picture, result: InferResult) -> None:
        """Keep one result, whatever its outcome.

        Args:
            frame: As it was read.
            picture: What the model saw, before its own normalisation; `[0, 0, 3]` where the frame could not be decoded.
            result: The outcome.
        """

    def close(self) -> tuple[Path, ...]:
        """Finish the files and name them."""

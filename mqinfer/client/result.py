"""What a caller gets back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mqinfer.protocol.datatypes import Array
from mqinfer.protocol.errors import error_from_code
from mqinfer.protocol.types import NO_CAPTURE, Capture, ErrorInfo, Outcome, Scalar, Timings

__all__ = ["InferResult"]


@dataclass(frozen=True, slots=True, eq=False)
class InferResult:
    """The one outcome of one request.

    Attributes:
        id: The request's.
        outcome: How it ended.
        model_name: The model asked.
        model_version: The version that answered, empty where nobody did.
        model_hash: Content hash of that model's files.
        outputs: Decoded arrays by name, empty unless the outcome is `ok`.
        error: Set unless the outcome is `ok`.
        worker: Name of the worker that answered, empty where nobody did.
        stage: Which part of a cascade answered.
        timings: Where the time went.
        capture: Where the frame came from.
        attempts: How often the request was sent.
        bytes_sent: Size of the request message, counted once an attempt.
        parameters: Any further response parameters.
    """

    id: str
    outcome: Outcome
    model_name: str
    model_version: str = ""
    model_hash: str = ""
    outputs: Mapping[str, Array] = field(default_factory=dict)
    error: ErrorInfo | None = None
    worker: str = ""
    stage: str = ""
    timings: Timings = field(default_factory=Timings)
    capture: Capture = NO_CAPTURE
    attempts: int = 0
    bytes_sent: int = 0
    parameters: Mapping[str, Scalar] = field(default_factory=dict)

    def raise_for_outcome(self) -> None:
        """Raise what went wrong; do nothing where the outcome is `ok`.

        Raises:
            MqinferError: The class that the error's code stands for.
        """
        if self.outcome is not Outcome.OK:
            error = self.error or ErrorInfo(self.outcome.value, f"the request ended as {self.outcome}")
            raise error_from_code(error.code, error.message)

"""What a caller gets back, and what a client counts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mqinfer.codecs import decode_tensor
from mqinfer.protocol.datatypes import Array
from mqinfer.protocol.errors import BadEncoding, MqinferError, error_from_code
from mqinfer.protocol.limits import Limits
from mqinfer.protocol.types import NO_CAPTURE, Capture, ErrorInfo, InferResponse, Outcome, Scalar, Timings
from mqinfer.protocol.value import value_object

__all__ = ["Counters", "InferResult", "decode_outputs"]


@value_object(eq=False)
class InferResult:
    """The one outcome of one request.

    Attributes:
        id: The request's.
        outcome: How it ended.
        model_name: Name of the model that was asked.
        model_version: The version that answered, empty where none did.
        model_hash: Content hash of that model's files.
        outputs: Decoded arrays by name, empty unless the outcome is `ok`.
        error: Set unless the outcome is `ok`.
        worker: Name of the worker that answered, empty where none did.
        stage: Which part of a cascade answered.
        timings: Where the time went.
        capture: Where the frame came from.
        attempts: How often the request was sent.
        bytes_sent: Size of the request message, counted once per attempt.
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
        """Raise the error of a request that failed; do nothing where the outcome is `ok`.

        Raises:
            MqinferError: The class that the error's code stands for.
        """
        if self.outcome is not Outcome.OK:
            error = self.error or ErrorInfo(self.outcome.value, f"the request ended as {self.outcome}")
            raise error_from_code(error.code, error.message)


@dataclass(frozen=True, slots=True)
class Counters:
    """What became of a client's requests; `submitted == sum(outcomes.values()) + pending` holds at any time.

    Attributes:
        submitted: Requests accepted.
        pending: Requests without an outcome.
        in_flight: Requests that are published and unanswered.
        outcomes: Requests by outcome.
        retries: Publications beyond each request's first.
        withheld: Retries that the retry budget delayed.
        late: Replies to requests that already had an outcome, duplicates among them.
        malformed: Replies that could not be read, or were damaged on the network.
    """

    submitted: int
    pending: int
    in_flight: int
    outcomes: Mapping[Outcome, int]
    retries: int
    withheld: int
    late: int
    malformed: int


def decode_outputs(response: InferResponse, limits: Limits) -> tuple[dict[str, Array], MqinferError | None]:
    """Decode a reply's tensors; return the error instead of raising it, since it decides the outcome."""
    try:
        return {tensor.name: decode_tensor(tensor, limits) for tensor in response.outputs}, None
    except MqinferError as error:
        return {}, BadEncoding(f"the reply can't be decoded: {error}")

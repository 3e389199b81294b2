"""The nouns that travel: requests, replies, and what they are made of.

Field names follow the Open Inference Protocol v2 where it has a word for the thing
(https://github.com/kserve/open-inference-protocol). Times are whole nanoseconds unless a name says otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from sys import float_info
from typing import Annotated

from msgspec import Meta, Struct

from mqinfer.protocol.datatypes import Buffer, Datatype
from mqinfer.protocol.errors import BadTensor, Outcome
from mqinfer.protocol.trace import TraceContext

__all__ = [
    "NO_CAPTURE",
    "Buffer",
    "Capture",
    "Count",
    "EncodedTensor",
    "ErrorInfo",
    "Finite",
    "InferRequest",
    "InferResponse",
    "Integer",
    "Outcome",
    "Positive",
    "RequestedOutput",
    "Scalar",
    "Stage",
    "TensorSpec",
    "Timings",
    "WorkerLoad",
]

Scalar = bool | int | float | str


class Stage(StrEnum):
    """Which part of a cascade answered."""

    WORKER = "worker"
    """The model that was asked for, in a worker."""
    EDGE = "edge"
    """A small model, on the edge or for it."""
    REUSE = "edge-reuse"
    """Nobody anew: the answer is that of another frame, which hardly differs."""


# Numbers with bounds, checked where a message is decoded; plain numbers for the type checker.
Count = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
Positive = Annotated[int, Meta(ge=1, le=(1 << 63) - 1)]
Integer = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
Finite = Annotated[float, Meta(ge=-float_info.max, le=float_info.max)]


class TensorSpec(Struct, frozen=True):
    """Name, datatype and shape of a model's input or output.

    Attributes:
        name: As the model file calls it.
        datatype: Open Inference Protocol datatype.
        shape: One entry an axis, -1 where any size will do. The batch axis is included.
    """

    name: str
    datatype: Datatype
    shape: tuple[Annotated[int, Meta(ge=-1)], ...]


class EncodedTensor(Struct, frozen=True, eq=False):
    """A tensor as it travels: what the array is, and the bytes that a codec makes it from.

    Attributes:
        name: Name of the model's input or output.
        datatype: Of the decoded array.
        shape: Of the decoded array; every entry is 0 or more.
        encoding: Name of the codec (`raw`, `lz4`, `shuffle-lz4`, `mask`, `jpeg`, `png`).
        data: The encoded bytes; on the receiving side a view of the payload.
        parameters: Further parameters of the tensor. `image_encoding` (a ROS name such as `rgb8`) marks a picture:
            the worker then applies the model's image contract to it.
    """

    name: str
    datatype: Datatype
    shape: tuple[int, ...]
    encoding: str
    data: Buffer
    parameters: Mapping[str, Scalar] = {}


class RequestedOutput(Struct, frozen=True, gc=False):
    """An output that the sender requests.

    Attributes:
        name: Name of the output.
        encoding: Codec to send it in, or None for the worker's choice.
        classification: 0 for the output as it is; n above 0 for its n largest elements instead, as text
            `value:index[:label]`, the largest first (Triton's classification extension).
    """

    name: str
    encoding: str | None = None
    classification: int = 0

    def __post_init__(self) -> None:
        if self.classification < 0:
            raise BadTensor(f"output {self.name!r}: classification is {self.classification}; expected 0 or more")


class Capture(Struct, frozen=True, gc=False):
    """Where and when a frame was captured; a result repeats it unchanged.

    Attributes:
        source: Stream, camera or ROS topic.
        sequence: Number of the frame within its stream, from 0.
        capture_time_ns: Capture stamp (a ROS header's stamp) since the epoch, or None.
        frame_id: Coordinate frame of the sensor, as in a ROS header.
    """

    source: str = ""
    sequence: Count | None = None
    capture_time_ns: Integer | None = None
    frame_id: str = ""


NO_CAPTURE = Capture()


class InferRequest(Struct, frozen=True, eq=False):
    """One request for inference.

    Attributes:
        id: Identifies the request; every retry repeats it. mqinfer's own clients use 32 hex digits (16 bytes).
        model_name: The model.
        model_version: A version, or None for the default one of the model's policy.
        inputs: Tensors in the order in which their bytes follow.
        outputs: The requested outputs; empty for all.
        timeout_us: Microseconds that were left when this was sent, or None for no deadline.
        priority: 1 is the highest, 0 the model's default (Triton's convention).
        attempt: 1 for the first sending.
        response_topic: Where the reply goes.
        capture: Where the frame came from.
        parameters: Any further parameters.
        trace: Where it belongs in a trace; it travels beside the payload.
    """

    id: str
    model_name: str
    inputs: tuple[EncodedTensor, ...]
    model_version: str | None = None
    outputs: tuple[RequestedOutput, ...] = ()
    timeout_us: int | None = None
    priority: int = 0
    attempt: int = 1
    response_topic: str | None = None
    capture: Capture = NO_CAPTURE
    parameters: Mapping[str, Scalar] = {}
    trace: TraceContext | None = None


class Timings(Struct, frozen=True, gc=False):
    """How long each stage of a request took, in nanoseconds; the worker fills in its part, the client the rest.

    The split is that of the latency formula T_n + T_cq + T_sq + T_sc of Distributed NoScope: `transmission`,
    `client_queue`, `server_queue`, and the five stages of computation.
    """

    client_queue: Count = 0
    transmission: Count = 0
    server_queue: Count = 0
    decode: Count = 0
    preprocess: Count = 0
    inference: Count = 0
    postprocess: Count = 0
    encode: Count = 0

    @property
    def server(self) -> int:
        """Time from the worker's receipt of the request to its reply, in nanoseconds."""
        return self.server_queue + self.decode + self.preprocess + self.inference + self.postprocess + self.encode

    @property
    def total(self) -> int:
        """Sum of all stages, in nanoseconds."""
        return self.client_queue + self.transmission + self.server


class WorkerLoad(Struct, frozen=True, gc=False):
    """How busy a worker is; every reply reports it.

    Attributes:
        depth: Requests that it had accepted and not answered when it sent the reply, running ones included.
        service_time_us: Smoothed time of one request in the worker, in microseconds.
        window: How many requests this client may have in flight at the worker; 0 for unknown.
    """

    depth: Count = 0
    service_time_us: Count = 0
    window: Count = 0


class ErrorInfo(Struct, frozen=True, gc=False):
    """Why a request failed: a wire code of `mqinfer.protocol.errors` and a sentence."""

    code: str
    message: str = ""


class InferResponse(Struct, frozen=True, eq=False):
    """The reply to one request, as it travels.

    Attributes:
        id: Id of the request.
        model_name: The model that answered.
        model_version: The version that answered.
        outcome: How the request ended.
        outputs: Tensors, empty unless the outcome is `ok`.
        error: Set unless the outcome is `ok`.
        model_hash: Content hash of the model's files.
        worker: Name of the worker.
        stage: Which part of a cascade answered; see `Stage`.
        timings: How long each stage took, the worker's part.
        load: How busy the worker was when it replied.
        attempt: The attempt that this reply answers.
        capture: That of the request, unchanged.
        parameters: Any further parameters.
    """

    id: str
    model_name: str
    model_version: str = ""
    outcome: Outcome = Outcome.OK
    outputs: tuple[EncodedTensor, ...] = ()
    error: ErrorInfo | None = None
    model_hash: str = ""
    worker: str = ""
    stage: str = Stage.WORKER.value
    timings: Timings = Timings()
    load: WorkerLoad = WorkerLoad()
    attempt: int = 1
    capture: Capture = NO_CAPTURE
    parameters: Mapping[str, Scalar] = {}

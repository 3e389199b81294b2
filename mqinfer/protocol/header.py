"""Requests and replies as maps in the Open Inference Protocol's words, and back; shared by both content types.

Fields at their default are left out. Unknown fields of a map are ignored, so that a newer peer may add some; unknown
parameters are kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from msgspec import Meta, Struct

from mqinfer.protocol.decoding import check, prepare, scalars
from mqinfer.protocol.errors import BadEnvelope
from mqinfer.protocol.types import (
    NO_CAPTURE,
    Buffer,
    Capture,
    Count,
    EncodedTensor,
    ErrorInfo,
    InferRequest,
    InferResponse,
    Outcome,
    Positive,
    RequestedOutput,
    Scalar,
    Timings,
    WorkerLoad,
)

JSON_TYPE = "application/json"
"""Content Type of the protocol's JSON; its other parameters, such as a character set, stand behind it."""

RETRY_AFTER = "retry_after"
"""Parameter of a `rejected` reply: microseconds after which the worker expects to have room."""

QUEUE_FULL = "queue_full"
"""Parameter of a `rejected` reply: true where the model's own `max_queue_size` is reached."""

FALLBACK = "fallback"
"""Parameter of an answer that a cascade's edge gave alone: the error code of why the model in the cloud did not."""

IMAGE_ENCODING = "image_encoding"
"""Parameter that marks a tensor as a picture: its value is a ROS name such as `rgb8`."""

DEMOSAIC = "demosaic"
"""Parameter of a Bayer mosaic: the method of demosaicing, one of `Demosaic`; bilinear without it."""

BIT_DEPTH = "bit_depth"
"""Parameter of a picture of 16-bit samples: how many bits of them the camera uses; 16 without it."""

CHAIN = "chain"
"""Parameter of a picture that is encoded against those before it: the number of its chain, which a key frame begins;
that of a later key frame of the stream is larger."""

POSITION = "position"
"""Parameter of such a picture: its number in the chain; 0 is the key frame."""

DIGEST = "digest"
"""Parameter of a tensor: the XXH3 of its bytes, in hex, where a decoder might not notice that some are missing."""

OUTPUT_ENCODING = "output_encoding"
"""Request parameter: the codec for every output that the request does not name one for."""

SIGNATURE = "signature_name"
"""Request parameter: the signature of a SavedModel that is to run; without it the model's own choice."""

TIMESTAMPS = "timestamps"
"""Request parameter: true asks for the next two in the reply."""

RECEIVED_TIME = "received_time_ns"
"""Reply parameter: when the worker received the request, in nanoseconds since the epoch by its own clock."""

SENT_TIME = "sent_time_ns"
"""Reply parameter: when it sent the reply, likewise."""

RAW_SIZE = "raw_size"
"""Parameter of a compressed BYTES tensor: bytes of its raw form."""

Parameters = Annotated[dict[str, Any], Meta(max_length=128)]
"""Parameters as received: known ones are checked against a shape of their own, others by `decoding.scalars`."""

_MESSAGE_BYTES = 4000
"""Longest error message that is sent: below the receiver's `string_bytes`, which would refuse the reply."""


class _OutputParameters(Struct, frozen=True, gc=False):
    encoding: str = ""
    classification: Count = 0
    binary_data: Any = False


class OutputShape(Struct, gc=False):
    """One output that a request asks for."""

    name: str
    parameters: _OutputParameters | None = None


class _ResponseParameters(Capture, frozen=True, gc=False):
    """What a reply repeats of its request: the capture, and which attempt it was."""

    attempt: Positive = 1


class _RequestParameters(_ResponseParameters, frozen=True, gc=False):
    timeout: Count | None = None
    priority: Count = 0
    response_topic: str | None = None


class ReplyShape(Struct, gc=False):
    """What a reply adds to the Open Inference Protocol: header fields in one content type, parameters in the other."""

    outcome: Outcome = Outcome.OK
    model_hash: str = ""
    worker: str = ""
    stage: str = "worker"
    timings: Timings | None = None
    load: WorkerLoad | None = None


prepare(_RequestParameters, _ResponseParameters)

TENSOR_PARAMETERS = frozenset(("encoding", "binary_data_size"))
"""Parameters of a tensor that are fields of `EncodedTensor`."""

_CAPTURE = frozenset(Capture.__struct_fields__)
_REQUEST = frozenset(_RequestParameters.__struct_fields__)
_RESPONSE = frozenset((*_ResponseParameters.__struct_fields__, *ReplyShape.__struct_fields__, "error_code"))
_NO_PARAMETERS = _ResponseParameters()
_NO_TIMINGS = Timings()
_NO_LOAD = WorkerLoad()


def is_json(content_type: str | None, payload: Buffer) -> bool:
    """Return whether the Content Type is JSON, or the first byte where there is none (`mosquitto_pub` sends none)."""
    if content_type:
        return content_type.startswith(JSON_TYPE)
    return bytes(payload[:16]).lstrip()[:1] == b"{"


def request_parameters(request: InferRequest) -> dict[str, Any]:
    """Return a request's parameters: its fields that travel as parameters, and the further ones."""
    found = _further(request.parameters, _REQUEST) if request.parameters else {}
    if request.timeout_us is not None:
        found["timeout"] = request.timeout_us
    if request.priority:
        found["priority"] = request.priority
    if request.attempt != 1:
        found["attempt"] = request.attempt
    if request.response_topic is not None:
        found["response_topic"] = request.response_topic
    if request.capture is not NO_CAPTURE:
        _add_capture(found, request.capture)
    return found


def response_parameters(response: InferResponse) -> dict[str, Any]:
    """Return a reply's parameters: what it repeats of the request, and the further ones."""
    found = _further(response.parameters, _RESPONSE) if response.parameters else {}
    if response.attempt != 1:
        found["attempt"] = response.attempt
    if response.capture is not NO_CAPTURE:
        _add_capture(found, response.capture)
    return found


def requested_outputs(outputs: Sequence[RequestedOutput]) -> list[dict[str, Any]]:
    """Return the requested outputs as maps."""
    found = []
    for output in outputs:
        parameters: dict[str, Any] = {}
        if output.encoding:
            parameters["encoding"] = output.encoding
        if output.classification:
            parameters["classification"] = output.classification
        found.append({"name": output.name} | ({"parameters": parameters} if parameters else {}))
    return found


def reply_fields(response: InferResponse, found: dict[str, Any]) -> None:
    """Add to `found` the fields of `ReplyShape` that are not at their default."""
    if response.outcome is not Outcome.OK:
        found["outcome"] = response.outcome
    if response.model_hash:
        found["model_hash"] = response.model_hash
    if response.worker:
        found["worker"] = response.worker
    if response.stage != "worker":
        found["stage"] = response.stage
    timings = _timings(response.timings)
    if any(timings.values()):
        found["timings"] = timings
    load = response.load
    if load.depth or load.service_time_us or load.window:
        found["load"] = record = {"depth": load.depth, "service_time_us": load.service_time_us}
        if load.window:
            record["window"] = load.window


def error_message(message: str) -> str:
    """Return a message that every receiver accepts: cut to 4000 bytes, and with whatever UTF-8 lacks escaped."""
    return message.encode("utf-8", "backslashreplace")[:_MESSAGE_BYTES].decode("utf-8", "ignore")


def make_request(
    request_id: str,
    model: tuple[str, str | None],
    inputs: tuple[EncodedTensor, ...],
    outputs: Sequence[OutputShape] | None,
    parameters: dict[str, Any] | None,
) -> InferRequest:
    """Return the request that a decoded header describes.

    Args:
        request_id: Its id.
        model: Name and version.
        inputs: The decoded inputs.
        outputs: The requested outputs.
        parameters: As received.

    Raises:
        BadEnvelope: A parameter has the wrong type or value.
    """
    name, version = model
    requested = tuple(map(_requested, outputs)) if outputs else ()
    if not parameters:
        return InferRequest(request_id, name, inputs, version, requested)
    known = check(parameters, _RequestParameters, "request")
    return InferRequest(
        request_id,
        name,
        inputs,
        version,
        requested,
        known.timeout,
        known.priority,
        known.attempt,
        known.response_topic,
        NO_CAPTURE if _CAPTURE.isdisjoint(parameters) else _capture(known),
        {} if _REQUEST.issuperset(parameters) else scalars(parameters, _REQUEST, "request"),
    )


def make_response(
    names: tuple[str, str, str],
    reply: ReplyShape,
    outputs: tuple[EncodedTensor, ...],
    error: ErrorInfo | None,
    parameters: dict[str, Any] | None,
) -> InferResponse:
    """Return the reply that a decoded header describes.

    Args:
        names: Of the request, the model and its version.
        reply: The fields that mqinfer adds.
        outputs: The decoded outputs.
        error: The decoded error.
        parameters: As received.

    Raises:
        BadEnvelope: A parameter has the wrong type or value.
    """
    known, capture = _NO_PARAMETERS, NO_CAPTURE
    further: Mapping[str, Scalar] = {}
    if parameters:
        known = check(parameters, _ResponseParameters, "reply")
        capture = NO_CAPTURE if _CAPTURE.isdisjoint(parameters) else _capture(known)
        further = {} if _RESPONSE.issuperset(parameters) else scalars(parameters, _RESPONSE, "reply")
    return InferResponse(
        *names,
        reply.outcome,
        outputs,
        error,
        reply.model_hash,
        reply.worker,
        reply.stage,
        reply.timings or _NO_TIMINGS,
        reply.load or _NO_LOAD,
        known.attempt,
        capture,
        further,
    )


def _further(parameters: Mapping[str, Scalar], reserved: frozenset[str]) -> dict[str, Any]:
    clash = reserved.intersection(parameters)
    if clash:
        raise BadEnvelope(f"parameter {min(clash)!r} is a field of the message; set the field instead")
    return dict(parameters)


def _add_capture(found: dict[str, Any], capture: Capture) -> None:
    if capture.source:
        found["source"] = capture.source
    if capture.sequence is not None:
        found["sequence"] = capture.sequence
    if capture.capture_time_ns is not None:
        found["capture_time_ns"] = capture.capture_time_ns
    if capture.frame_id:
        found["frame_id"] = capture.frame_id


def _capture(known: _ResponseParameters) -> Capture:
    return Capture(known.source, known.sequence, known.capture_time_ns, known.frame_id)


def _requested(output: OutputShape) -> RequestedOutput:
    known = output.parameters
    if known is None:
        return RequestedOutput(output.name)
    return RequestedOutput(output.name, known.encoding or None, known.classification)


def _timings(timings: Timings) -> dict[str, int]:
    found = {
        "server_queue": timings.server_queue,
        "decode": timings.decode,
        "preprocess": timings.preprocess,
        "inference": timings.inference,
        "postprocess": timings.postprocess,
        "encode": timings.encode,
    }
    if timings.client_queue:
        found["client_queue"] = timings.client_queue
    if timings.transmission:
        found["transmission"] = timings.transmission
    return found

"""Requests and replies as maps in the Open Inference Protocol's words, and back; shared by both content types.

Fields at their default are left out. Fields of a map that are not known are ignored, so that a newer peer may add some;
parameters that are not known are kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mqinfer.protocol.errors import BadEnvelope
from mqinfer.protocol.fields import Record, integer, record, records, scalars, text
from mqinfer.protocol.types import (
    NO_CAPTURE,
    Capture,
    EncodedTensor,
    ErrorInfo,
    InferRequest,
    InferResponse,
    Outcome,
    RequestedOutput,
    Scalar,
    Timings,
    WorkerLoad,
)

__all__ = [
    "REPLY_FIELDS",
    "RETRY_AFTER",
    "error_message",
    "make_request",
    "make_response",
    "reply_fields",
    "request_parameters",
    "requested_outputs",
    "response_parameters",
]

REPLY_FIELDS = ("outcome", "model_hash", "worker", "stage", "timings", "load")
"""What a reply adds to the Open Inference Protocol: header fields in one content type, parameters in the other."""

RETRY_AFTER = "retry_after"
"""Parameter of a `rejected` reply: microseconds after which the worker expects to have room."""

_CAPTURE = frozenset(("source", "sequence", "capture_time_ns", "frame_id"))
_REQUEST = _CAPTURE | {"timeout", "priority", "attempt", "response_topic"}
_RESPONSE = _CAPTURE | {"attempt", "error_code", *REPLY_FIELDS}
_OUTCOMES: dict[object, Outcome] = {outcome.value: outcome for outcome in Outcome}
_NO_TIMINGS = Timings()
_NO_LOAD = WorkerLoad()
_ANY_SIGN = -(1 << 63)
_MESSAGE_BYTES = 4000
"""Longest error message sent: below the receiver's `string_bytes`, or the reply itself would be refused."""


def request_parameters(request: InferRequest) -> dict[str, Any]:
    """Gather a request's parameters: its fields that travel as such, and the further ones."""
    found = _further(request.parameters, _REQUEST)
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
    """Gather a reply's parameters: what it repeats of the request, and the further ones."""
    found = _further(response.parameters, _RESPONSE)
    if response.attempt != 1:
        found["attempt"] = response.attempt
    if response.capture is not NO_CAPTURE:
        _add_capture(found, response.capture)
    return found


def requested_outputs(outputs: tuple[RequestedOutput, ...]) -> list[dict[str, Any]]:
    """List the outputs that are wanted."""
    return [_requested_output(output) for output in outputs]


def reply_fields(response: InferResponse) -> dict[str, Any]:
    """Gather what a reply adds to the Open Inference Protocol's (`REPLY_FIELDS`)."""
    found: dict[str, Any] = {}
    if response.outcome is not Outcome.OK:
        found["outcome"] = response.outcome
    if response.model_hash:
        found["model_hash"] = response.model_hash
    if response.worker:
        found["worker"] = response.worker
    if response.stage != "worker":
        found["stage"] = response.stage
    if response.timings != _NO_TIMINGS:
        found["timings"] = _timings(response.timings)
    if response.load != _NO_LOAD:
        found["load"] = _load_record(response.load)
    return found


def error_message(message: str) -> str:
    """Cut a message to what every receiver accepts, and make it encodable whatever it holds."""
    return message.encode("utf-8", "backslashreplace")[:_MESSAGE_BYTES].decode("utf-8", "ignore")


def make_request(
    header: Record, request_id: str, model: tuple[str, str | None], inputs: tuple[EncodedTensor, ...]
) -> InferRequest:
    """Make a request of a decoded header.

    Args:
        header: With `parameters` and `outputs`; changed by this.
        request_id: Its id.
        model: Name and version.
        inputs: The decoded inputs.

    Raises:
        BadEnvelope: A field has the wrong type or value.
    """
    where = "request"
    parameters = record(header, "parameters", where)
    return InferRequest(
        request_id,
        model[0],
        inputs,
        model[1],
        _parse_outputs(header),
        timeout_us=integer(parameters, "timeout", where) if "timeout" in parameters else None,
        priority=integer(parameters, "priority", where, 0),
        attempt=integer(parameters, "attempt", where, 1, 1),
        response_topic=text(parameters, "response_topic", where) if "response_topic" in parameters else None,
        capture=_parse_capture(parameters, where),
        parameters=_rest(parameters, _REQUEST, where),
    )


def make_response(
    header: Record, reply: Record, outputs: tuple[EncodedTensor, ...], error: ErrorInfo | None
) -> InferResponse:
    """Make a reply of a decoded header.

    Args:
        header: With `id`, `model_name`, `model_version` and `parameters`; changed by this.
        reply: Where the `REPLY_FIELDS` stand.
        outputs: The decoded outputs.
        error: The decoded error.

    Raises:
        BadEnvelope: A field has the wrong type or value.
    """
    where = "reply"
    parameters = record(header, "parameters", where)
    return InferResponse(
        text(header, "id", where),
        text(header, "model_name", where, ""),
        text(header, "model_version", where, ""),
        _parse_outcome(reply),
        outputs,
        error,
        model_hash=text(reply, "model_hash", where, ""),
        worker=text(reply, "worker", where, ""),
        stage=text(reply, "stage", where, "worker"),
        timings=_parse_timings(reply),
        load=_parse_load(reply),
        attempt=integer(parameters, "attempt", where, 1, 1),
        capture=_parse_capture(parameters, where),
        parameters=_rest(parameters, _RESPONSE, where),
    )


def _requested_output(output: RequestedOutput) -> dict[str, Any]:
    parameters: dict[str, Any] = {}
    if output.encoding:
        parameters["encoding"] = output.encoding
    if output.classification:
        parameters["classification"] = output.classification
    return {"name": output.name} | ({"parameters": parameters} if parameters else {})


def _further(parameters: Mapping[str, Scalar], reserved: frozenset[str]) -> dict[str, Any]:
    if not parameters:
        return {}
    clash = reserved.intersection(parameters)
    if clash:
        raise BadEnvelope(f"parameter {min(clash)!r} has a field of its own; set that instead")
    return dict(parameters)


def _rest(parameters: dict[str, Any], reserved: frozenset[str], where: str) -> Mapping[str, Scalar]:
    further = {key: value for key, value in parameters.items() if key not in reserved} if parameters else parameters
    return scalars(further, where)


def _add_capture(found: dict[str, Any], capture: Capture) -> None:
    if capture.source:
        found["source"] = capture.source
    if capture.sequence is not None:
        found["sequence"] = capture.sequence
    if capture.capture_time_ns is not None:
        found["capture_time_ns"] = capture.capture_time_ns
    if capture.frame_id:
        found["frame_id"] = capture.frame_id


def _parse_capture(parameters: dict[str, Any], where: str) -> Capture:
    if _CAPTURE.isdisjoint(parameters):
        return NO_CAPTURE
    return Capture(
        text(parameters, "source", where, ""),
        integer(parameters, "sequence", where) if "sequence" in parameters else None,
        integer(parameters, "capture_time_ns", where, None, _ANY_SIGN) if "capture_time_ns" in parameters else None,
        text(parameters, "frame_id", where, ""),
    )


def _parse_outputs(header: Record) -> tuple[RequestedOutput, ...]:
    if "outputs" not in header:
        return ()
    found = []
    for output in records(header, "outputs", "request"):
        name = text(output, "name", "requested output")
        where = f"requested output {name!r}"
        parameters = record(output, "parameters", where)
        encoding = text(parameters, "encoding", where, "")
        found.append(RequestedOutput(name, encoding or None, integer(parameters, "classification", where, 0)))
    return tuple(found)


def _parse_outcome(reply: Record) -> Outcome:
    name = text(reply, "outcome", "reply", "ok")
    if name not in _OUTCOMES:
        raise BadEnvelope(f"reply: unknown outcome {name[:40]!r}; known are {', '.join(Outcome)}")
    return _OUTCOMES[name]


def _timings(timings: Timings) -> dict[str, int]:
    return {
        "server_queue": timings.server_queue,
        "decode": timings.decode,
        "preprocess": timings.preprocess,
        "inference": timings.inference,
        "postprocess": timings.postprocess,
        "encode": timings.encode,
        **({"client_queue": timings.client_queue} if timings.client_queue else {}),
        **({"transmission": timings.transmission} if timings.transmission else {}),
    }


def _parse_timings(reply: Record) -> Timings:
    if "timings" not in reply:
        return _NO_TIMINGS
    found, where = record(reply, "timings", "reply"), "timings"
    return Timings(
        integer(found, "client_queue", where, 0),
        integer(found, "transmission", where, 0),
        integer(found, "server_queue", where, 0),
        integer(found, "decode", where, 0),
        integer(found, "preprocess", where, 0),
        integer(found, "inference", where, 0),
        integer(found, "postprocess", where, 0),
        integer(found, "encode", where, 0),
    )


def _parse_load(reply: Record) -> WorkerLoad:
    if "load" not in reply:
        return _NO_LOAD
    found = record(reply, "load", "reply")
    return WorkerLoad(
        integer(found, "depth", "load", 0),
        integer(found, "service_time_us", "load", 0),
        integer(found, "window", "load", 0),
    )


def _load_record(load: WorkerLoad) -> dict[str, int]:
    found = {"depth": load.depth, "service_time_us": load.service_time_us}
    return {**found, "window": load.window} if load.window else found

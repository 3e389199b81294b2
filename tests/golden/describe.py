"""Golden files in neutral words, `golden.json`: so that a client in any language can check itself.

Each entry has the file, what it is, its content type and checksum, all fields of its header by their names on the wire,
and its tensors with their values. Integers of 64 bits are decimal strings, BYTES are base64, NaN and the infinities are
strings. Many values are run lengths (`[value, count]`) or, where that is longer, the first ones and the SHA-256 of the
raw form. `tolerance` marks values of a lossy codec: another decoder may differ by so much.
"""

from __future__ import annotations

import base64
import hashlib
from itertools import groupby
from typing import Any

import numpy as np
import xxhash
from msgspec.structs import asdict

from mqinfer.protocol.datatypes import Array, Datatype, datatype_of, raw_bytes
from mqinfer.protocol.types import EncodedTensor, InferRequest, InferResponse

MANY = 64
"""Values or runs from which on they are not listed."""
TOLERANCE = {"jpeg": 2}
"""By lossy encoding: what decoders differ by."""
_FIRST = 8
_LONG = frozenset((Datatype.UINT64, Datatype.INT64))


def describe_file(name: str, payload: bytes, content_type: str) -> dict[str, Any]:
    """Describe a file as a whole."""
    return {
        "file": name,
        "content_type": content_type,
        "bytes": len(payload),
        "xxh3": xxhash.xxh3_64_hexdigest(payload),
    }


def describe_request(request: InferRequest) -> dict[str, Any]:
    """Describe the fields of a request; empty ones are left out."""
    outputs = [
        _stated({"name": output.name, "encoding": output.encoding, "classification": output.classification})
        for output in request.outputs
    ]
    return _stated(
        {
            "id": request.id,
            "model_name": request.model_name,
            "model_version": request.model_version,
            "outputs": outputs,
            "timeout": request.timeout_us,
            "priority": request.priority,
            "attempt": request.attempt,
            "response_topic": request.response_topic,
            "capture": _capture(request),
            "parameters": dict(request.parameters),
        }
    )


def describe_reply(reply: InferResponse) -> dict[str, Any]:
    """Describe the fields of a reply; empty ones are left out."""
    timings, load = (
        {name: value for name, value in asdict(each).items() if value} for each in (reply.timings, reply.load)
    )
    error = {"code": reply.error.code, "message": reply.error.message} if reply.error else None
    return _stated(
        {
            "id": reply.id,
            "model_name": reply.model_name,
            "model_version": reply.model_version,
            "outcome": str(reply.outcome),
            "error": error,
            "model_hash": reply.model_hash,
            "worker": reply.worker,
            "stage": str(reply.stage),
            "timings": timings,
            "load": load,
            "attempt": reply.attempt,
            "capture": _capture(reply),
            "parameters": dict(reply.parameters),
        }
    )


def describe_tensor(tensor: EncodedTensor, array: Array) -> dict[str, Any]:
    """Describe a tensor: as it travels, and the values of its array."""
    found = {
        "name": tensor.name,
        "datatype": str(datatype_of(array.dtype)),
        "shape": list(array.shape),
        "encoding": tensor.encoding,
        "parameters": dict(tensor.parameters),
    }
    if tensor.encoding in TOLERANCE:
        raw = base64.b64encode(raw_bytes("", array)).decode()
        return found | {"tolerance": TOLERANCE[tensor.encoding], "raw": raw}
    return found | _values(array)


def _values(array: Array) -> dict[str, Any]:
    values = [_value(value, datatype_of(array.dtype)) for value in array.ravel().tolist()]
    if len(values) <= MANY:
        return {"values": values}
    runs = [[value, len(list(run))] for value, run in groupby(values)]
    if len(runs) <= MANY:
        return {"run_lengths": runs}
    return {"first": values[:_FIRST], "sha256": hashlib.sha256(raw_bytes("", array)).hexdigest()}


def _value(value: object, datatype: Datatype) -> object:
    if datatype is Datatype.BYTES:
        return base64.b64encode(value if isinstance(value, bytes) else str(value).encode()).decode()
    if datatype in _LONG:
        return str(value)
    if isinstance(value, float) and not np.isfinite(value):
        return "NaN" if np.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def _capture(message: InferRequest | InferResponse) -> dict[str, Any]:
    capture = message.capture
    stamp = None if capture.capture_time_ns is None else str(capture.capture_time_ns)
    fields = {"source": capture.source, "sequence": capture.sequence, "capture_time_ns": stamp}
    return _stated(fields | {"frame_id": capture.frame_id})


def _stated(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value not in (None, "", [], {})}

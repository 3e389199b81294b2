"""From the result of a request to the body of the reply: JSON, with the bytes of binary outputs behind it."""

from __future__ import annotations

from typing import Any

import numpy as np
import orjson

from mqinfer.client.result import InferResult
from mqinfer.gateway.rest.request import RestRequest
from mqinfer.protocol.datatypes import Array, Buffer, Datatype, datatype_of, little_endian, raw_bytes
from mqinfer.protocol.errors import BadTensor
from mqinfer.protocol.oip_json import data_of_array

__all__ = ["write_reply"]


def write_reply(request: RestRequest, result: InferResult) -> tuple[bytes, int | None]:
    """Return the body of a reply, and the length of its JSON where binary outputs follow.

    Raises:
        BadTensor: An output can't be written as JSON: FP16, or strings that are not UTF-8.
    """
    tail: list[Buffer] = []
    outputs = [
        _output(name, array, tail if name in request.binary or (request.all_binary and not request.outputs) else None)
        for name, array in result.outputs.items()
    ]
    body: dict[str, Any] = {"id": request.id} if request.id else {}
    body |= {"model_name": result.model_name, "model_version": result.model_version, "outputs": outputs}
    # 28 times as fast as `json` for an array of floats.
    head = orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY)
    return (b"".join((head, *tail)), len(head)) if tail else (head, None)


def _output(name: str, array: Array, tail: list[Buffer] | None) -> dict[str, Any]:
    datatype = datatype_of(array.dtype)
    entry: dict[str, Any] = {"name": name, "datatype": str(datatype), "shape": array.shape}
    if tail is None:
        return entry | {"data": _data(name, datatype, array)}
    data = raw_bytes(name, little_endian(array))
    tail.append(data)
    return entry | {"parameters": {"binary_data_size": memoryview(data).nbytes}}


def _data(name: str, datatype: Datatype, array: Array) -> Any:
    if datatype is Datatype.FP16:
        raise BadTensor(
            f"sending FP16 data via JSON is not supported. Please use the binary data format for output {name}"
        )
    if datatype is Datatype.BYTES or (array.dtype.kind == "f" and not np.isfinite(array).all()):
        return data_of_array(name, array)
    return np.ascontiguousarray(array).reshape(-1)

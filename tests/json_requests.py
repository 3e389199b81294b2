"""Requests in the JSON of the Open Inference Protocol, as scripts and Node-RED write them."""

from __future__ import annotations

from typing import Any

from mqinfer.protocol.datatypes import from_raw
from mqinfer.protocol.decoding import write_json
from mqinfer.protocol.header import request_parameters, requested_outputs
from mqinfer.protocol.oip_json import data_of_array
from mqinfer.protocol.types import EncodedTensor, InferRequest


def encode_request(request: InferRequest, *, binary: bool = False) -> tuple[bytes, int | None]:
    """Return a request as JSON and, with `binary`, the tensors' bytes behind it; and then the length of the JSON."""
    body: dict[str, Any] = {"id": request.id} if request.id else {}
    inputs = [_input(tensor, binary=binary) for tensor in request.inputs]
    body |= {"parameters": request_parameters(request), "inputs": inputs}
    if request.outputs:
        body["outputs"] = requested_outputs(request.outputs)
    written = write_json(body, "request")
    if not binary or not request.inputs:
        return written, None
    return b"".join((written, *(tensor.data for tensor in request.inputs))), len(written)


def _input(tensor: EncodedTensor, *, binary: bool) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": tensor.name, "datatype": tensor.datatype, "shape": tensor.shape}
    parameters = dict(tensor.parameters)
    if binary:
        parameters["binary_data_size"] = memoryview(tensor.data).nbytes
        if tensor.encoding != "raw":
            parameters["encoding"] = tensor.encoding
    if parameters:
        entry["parameters"] = parameters
    if not binary:
        array = from_raw(tensor.name, tensor.datatype, tensor.shape, tensor.data)
        entry["data"] = data_of_array(tensor.name, array)
    return entry

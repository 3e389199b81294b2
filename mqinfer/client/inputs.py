"""From a caller's arrays to a request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt

from mqinfer.codecs import encode_tensor
from mqinfer.protocol.types import NO_CAPTURE, Capture, EncodedTensor, InferRequest, RequestedOutput

__all__ = ["OUTPUT_ENCODING", "InferOptions", "Input", "make_request"]

Input = npt.NDArray[Any] | EncodedTensor
OUTPUT_ENCODING = "output_encoding"
"""Request parameter: the codec for every output that the request does not name one for."""


class InferOptions(TypedDict, total=False):
    """What may be said with a request, beside its model, inputs and timeout.

    Attributes:
        version: Of the model; without it the one that the model's policy prefers.
        encoding: Codec of the inputs, such as `raw` (the default), `lz4`, `jpeg:90`.
        outputs: Names of the outputs wanted; without it all, or those that the next two name.
        classification: By output, how many of its top classes are to come in its place, as `value:index[:label]`.
        output_encoding: Codec of the outputs, such as `raw` (the default), `mask` or `lz4`; or one for each, by name.
        capture: Where the frame came from; the result repeats it.
        priority: 1 is the highest, 0 the model's default.
    """

    version: str | int | None
    encoding: str
    outputs: Sequence[str]
    classification: Mapping[str, int]
    output_encoding: str | Mapping[str, str] | None
    capture: Capture
    priority: int


def make_request(model: str, inputs: Mapping[str, Input], options: InferOptions) -> InferRequest:
    """Encode the inputs and make the request that carries them; the requester adds its id.

    Raises:
        BadTensor: An array has a dtype that the protocol has no word for.
        BadEncoding: The codec is unknown, or can't carry the array.
    """
    version = options.get("version")
    encoding = options.get("encoding", "raw")
    wish = options.get("output_encoding")
    return InferRequest(
        id="",
        model_name=model,
        model_version=None if version is None else str(version),
        inputs=tuple(_encode(name, value, encoding) for name, value in inputs.items()),
        outputs=_requested(options.get("outputs", ()), options.get("classification", {}), wish),
        priority=options.get("priority", 0),
        capture=options.get("capture", NO_CAPTURE),
        parameters={OUTPUT_ENCODING: wish} if isinstance(wish, str) and wish else {},
    )


def _requested(
    names: Sequence[str], classification: Mapping[str, int], wish: str | Mapping[str, str] | None
) -> tuple[RequestedOutput, ...]:
    encodings = {} if wish is None or isinstance(wish, str) else wish
    default = wish if isinstance(wish, str) else None
    wanted = dict.fromkeys([*names, *classification, *(() if names else encodings)])
    return tuple(RequestedOutput(name, encodings.get(name, default), classification.get(name, 0)) for name in wanted)


def _encode(name: str, value: Input, encoding: str) -> EncodedTensor:
    if isinstance(value, EncodedTensor):
        return value if value.name == name else replace(value, name=name)
    return encode_tensor(name, np.asarray(value), encoding)

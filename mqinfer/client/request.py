"""From a caller's arrays to the messages that a client publishes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import lru_cache
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from mqinfer.broker.link import Message
from mqinfer.broker.packets import buffer_size
from mqinfer.client.dispatch.pending import EncodedMessage, PendingRequest
from mqinfer.codecs import encode_tensor
from mqinfer.images.placement import Placement
from mqinfer.images.sending import PictureInput, offer_contract, picture_tensor
from mqinfer.protocol.card import ModelCard
from mqinfer.protocol.checksum import checksum
from mqinfer.protocol.control import Cancellation
from mqinfer.protocol.envelope import CONTENT_TYPE, request_pieces
from mqinfer.protocol.errors import BadTensor, Cancelled, ModelNotFound, Superseded
from mqinfer.protocol.header import OUTPUT_ENCODING, SIGNATURE, TIMESTAMPS
from mqinfer.protocol.limits import DEFAULT_LIMITS, Limits
from mqinfer.protocol.topics import Topics
from mqinfer.protocol.trace import read_trace
from mqinfer.protocol.types import NO_CAPTURE, Capture, EncodedTensor, InferRequest, Outcome, RequestedOutput, Scalar

Input = npt.NDArray[Any] | EncodedTensor
_FRESH_S = 0.001
"""A first publication this soon after `submit` repeats the request's `timeout_us`: it is a safety margin, no clock."""
_CACHED = 1024
"""Topics kept ready, for as many models and workers."""


class InferOptions(TypedDict, total=False):
    """Optional properties of a request.

    Attributes:
        version: Version of the model, or a label such as `stable`; without it the default one, or the canary for the
            share of the requests that operators have set.
        encoding: Codec of the inputs, such as `raw` (the default), `lz4`, `jpeg:90`.
        outputs: Names of the outputs wanted; without it all, or those that the next two name.
        classification: By output, how many top classes replace it, as `value:index[:label]`.
        output_encoding: Codec of the outputs, such as `raw` (the default), `mask` or `lz4`; or one for each, by name.
        capture: Where the frame came from; the result repeats it.
        priority: 1 is the highest, 0 the model's default.
        signature: Of a SavedModel, the one to run; the card names them.
        timestamps: Whether the reply states, in `parameters`, when the worker received the request and replied, by its
            own clock: `received_time_ns` and `sent_time_ns`.
        traceparent: W3C trace context of the caller, whose trace the request continues; a malformed one is ignored.
        tracestate: W3C trace state beside it.
    """

    version: str | int | None
    encoding: str
    outputs: Sequence[str]
    classification: Mapping[str, int]
    output_encoding: str | Mapping[str, str] | None
    capture: Capture
    priority: int
    signature: str
    timestamps: bool
    traceparent: str
    tracestate: str


_OPTIONS = frozenset(InferOptions.__annotations__)
_PARAMETERS = frozenset(("output_encoding", "signature", "timestamps"))


def make_request(model: str, inputs: Mapping[str, Input], options: InferOptions) -> InferRequest:
    """Encode the inputs and return the request that carries them; the requester adds its id.

    Raises:
        BadTensor: The protocol has no datatype for an array's dtype.
        BadEncoding: The codec is unknown, or can't carry the array.
        TypeError: There is no such option, or the inputs are no mapping.
    """
    if not options.keys() <= _OPTIONS:
        raise _unknown(options.keys() - _OPTIONS)
    try:
        pairs = inputs.items()
    except AttributeError:
        what = type(inputs).__name__
        raise TypeError(f"inputs: expected arrays by input name, such as {{'input': array}}, got {what}") from None
    tensors = [_encode(name, value, options.get("encoding", "raw")) for name, value in pairs]
    if not options:
        return InferRequest("", model, tuple(tensors))
    version, parent = options.get("version"), options.get("traceparent")
    return InferRequest(
        id="",
        model_name=model,
        model_version=None if version is None else str(version),
        inputs=tuple(tensors),
        outputs=_requested(options),
        priority=options.get("priority", 0),
        capture=options.get("capture", NO_CAPTURE),
        parameters=_parameters(options) if options.keys() & _PARAMETERS else {},
        trace=read_trace(parent, options.get("tracestate", "")) if parent else None,
    )


def picture_inputs(
    card: ModelCard, picture: PictureInput | Sequence[PictureInput], options: InferOptions
) -> tuple[dict[str, Input], Placement]:
    """Return the inputs of a request with a picture, or with one for each `[[image]]`, and where the first one lies.

    Raises:
        BadTensor: The model takes no pictures or another number of them, or something is none.
        OSError: A file can't be read.
    """
    contracts = card.pictures
    given = picture if isinstance(picture, list | tuple) else [picture]
    if not contracts:
        raise BadTensor(offer_contract(card))
    if len(given) != len(contracts):
        names = ", ".join(each.input for each in contracts)
        raise BadTensor(f"{len(given)} pictures: model {card.name!r} takes {len(contracts)} in one request: {names}")
    encoding = options.get("encoding", "raw")
    sent = [picture_tensor(each, contract, encoding) for each, contract in zip(given, contracts, strict=True)]
    return {tensor.name: tensor for tensor, _ in sent}, sent[0][1]


def with_labelled_version(request: InferRequest, card: ModelCard) -> InferRequest:
    """Return a request for the version that has the label which it names.

    Raises:
        ModelNotFound: The model has no version of that label.
    """
    label = request.model_version or ""
    if label not in card.parameters.labels:
        known = ", ".join(sorted(card.parameters.labels)) or "none"
        raise ModelNotFound(
            f"model {request.model_name!r} has no version labelled {label[:80]!r} (labels: {known}); "
            "expected a number, or set a label with mqinfer models traffic"
        )
    return replace(request, model_version=card.parameters.labels[label])


def names_label(request: InferRequest) -> bool:
    """Return whether a request names its version by a label."""
    return request.model_version is not None and request.model_version.isidentifier()


def _unknown(names: Iterable[str]) -> TypeError:
    name = min(names)
    known = ["timeout", *sorted(_OPTIONS)]
    close = get_close_matches(name, known, 1)
    hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known)}"
    return TypeError(f"unexpected argument {name!r}; {hint}")


def _parameters(options: InferOptions) -> dict[str, Scalar]:
    found = {
        OUTPUT_ENCODING: options.get("output_encoding") or "",
        SIGNATURE: options.get("signature", ""),
        TIMESTAMPS: bool(options.get("timestamps")),
    }
    return {name: value for name, value in found.items() if isinstance(value, str | bool) and value}


def _requested(options: InferOptions) -> tuple[RequestedOutput, ...]:
    names, classification = options.get("outputs", ()), options.get("classification", {})
    chosen = options.get("output_encoding")
    encodings = {} if chosen is None or isinstance(chosen, str) else chosen
    default = chosen if isinstance(chosen, str) else None
    wanted = dict.fromkeys([*names, *classification, *(() if names else encodings)])
    return tuple([RequestedOutput(name, encodings.get(name, default), classification.get(name, 0)) for name in wanted])


def _encode(name: str, value: Input, encoding: str) -> EncodedTensor:
    if isinstance(value, EncodedTensor):
        return value if value.name == name else replace(value, name=name)
    return encode_tensor(name, np.asarray(value), encoding)


class Messages:
    """Makes what one client publishes; names are checked, and topics made, once per model and worker.

    Args:
        name: The client's name in its topics.
        topics: Below the root of the site.
        limits: Bounds of a request's header.
    """

    def __init__(self, name: str, topics: Topics, limits: Limits = DEFAULT_LIMITS) -> None:
        cached = lru_cache(_CACHED)
        self._limits = limits
        self._address = cached(
            lambda model, version: (topics.infer(model, name, version), topics.result(model, name, "_")[:-1])
        )
        self._lane = cached(lambda worker, model: topics.lane(worker, model, name))
        self._cancel = cached(lambda model: topics.cancel(model, name))

    def own(self, request: InferRequest, request_id: str, timeout: float) -> InferRequest:
        """Return a request with its id, its time in seconds, and the topic of its reply.

        Raises:
            BadTopic: The model's name or version breaks the naming rules.
        """
        _, results = self._address(request.model_name, request.model_version)
        return replace(
            request, id=request_id, timeout_us=max(0, int(timeout * 1e6)), response_topic=results + request_id
        )

    def encode(self, entry: PendingRequest) -> None:
        """Encode an entry's next message.

        Raises:
            BadEnvelope: A field or parameter can't be packed.
            LimitExceeded: The header is too long.
            ConfigError: A tensor's bytes are not contiguous in memory.
        """
        pieces = request_pieces(entry.request, self._limits)
        size = len(pieces[0]) if len(pieces) == 1 else sum(map(buffer_size, pieces))
        entry.message = EncodedMessage(pieces, size)

    def publication(self, entry: PendingRequest) -> Message:
        """Return the message of an entry's next attempt, whose number and time left are set in the entry's request.

        Raises:
            MqinferError: It can't be sent, now or later: a name outside the rules, or arrays that can't be packed.
        """
        left = entry.deadline - entry.sent
        if entry.attempts > 1 or entry.sent - entry.submitted > _FRESH_S:
            entry.request = replace(entry.request, attempt=entry.attempts, timeout_us=max(0, int(left * 1e6)))
            self.encode(entry)
        request, (pieces, size) = entry.request, entry.message
        payload, *tail = pieces
        if entry.lane is not None:
            topic = self._lane(entry.lane.worker, request.model_name)
        else:
            topic, _ = self._address(request.model_name, request.model_version)
        trace = request.trace if entry.spans is None else entry.spans.sent(topic, size, entry.sent)
        entry.trail.bytes_sent += size
        properties = () if trace is None else trace.properties()
        return Message(
            topic=topic,
            payload=payload,
            content_type=CONTENT_TYPE,
            response_topic=request.response_topic,
            correlation_data=bytes.fromhex(request.id),
            expiry_s=max(1, math.ceil(left)),
            user_properties=(*properties, checksum(pieces)),
            tail=tuple(tail),
        )

    def cancellation(self, request: InferRequest, why: Cancelled | Superseded) -> Message:
        """Return the message that makes workers skip a request."""
        outcome = Outcome.SUPERSEDED if isinstance(why, Superseded) else Outcome.CANCELLED
        return Message(self._cancel(request.model_name), Cancellation((request.id,), outcome).to_json())

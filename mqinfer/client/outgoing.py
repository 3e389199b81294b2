"""What a client publishes: a request that becomes its own, each sending of it, and what takes it back."""

from __future__ import annotations

import math
from dataclasses import replace

from mqinfer.broker.link import Message
from mqinfer.client.options import RequesterConfig
from mqinfer.client.pending import Entry
from mqinfer.protocol.checksum import checksum
from mqinfer.protocol.control import Cancellation
from mqinfer.protocol.envelope import CONTENT_TYPE, request_pieces
from mqinfer.protocol.errors import Cancelled, Superseded
from mqinfer.protocol.types import InferRequest, Outcome

__all__ = ["cancellation", "sending", "stamped"]

_FRESH_S = 0.001
"""A first sending within this time of the asking needs no new `timeout`: the field is a safety margin, not a clock."""


def stamped(request: InferRequest, request_id: str, timeout: float, config: RequesterConfig) -> InferRequest:
    """Give a request its id, its time in seconds, and the topic of its reply.

    Raises:
        BadTopic: The model's name breaks the naming rules.
    """
    return InferRequest(  # written out: `replace` takes twice the time
        id=request_id,
        model_name=request.model_name,
        inputs=request.inputs,
        model_version=request.model_version,
        outputs=request.outputs,
        timeout_us=max(0, int(timeout * 1e6)),
        priority=request.priority,
        attempt=request.attempt,
        response_topic=config.topics.result(request.model_name, config.name, request_id),
        capture=request.capture,
        parameters=request.parameters,
    )


def sending(entry: Entry, config: RequesterConfig) -> Message:
    """Make the message of an entry's next sending, and note in the entry what it says.

    Raises:
        MqinferError: It can't be sent, and won't be later: a name outside the rules, or arrays that can't be encoded.
    """
    left = entry.deadline - entry.sent
    if entry.attempts > 1 or entry.sent - entry.submitted > _FRESH_S:
        entry.request = replace(entry.request, attempt=entry.attempts, timeout_us=max(0, int(left * 1e6)))
    request = entry.request
    payload, *tail = pieces = request_pieces(request)
    return Message(
        topic=_topic(entry, config),
        payload=payload,
        content_type=CONTENT_TYPE,
        response_topic=request.response_topic,
        correlation_data=bytes.fromhex(request.id),
        expiry_s=max(1, math.ceil(left)),
        user_properties=(checksum(pieces),),
        tail=tuple(tail),
    )


def _topic(entry: Entry, config: RequesterConfig) -> str:
    request, topics = entry.request, config.topics
    if entry.lane:
        return topics.lane(entry.lane.worker, request.model_name, config.name)
    return topics.infer(request.model_name, config.name, request.model_version)


def cancellation(request: InferRequest, why: Cancelled | Superseded, config: RequesterConfig) -> Message:
    """Make the message that tells workers to skip a request."""
    outcome = Outcome.SUPERSEDED if isinstance(why, Superseded) else Outcome.CANCELLED
    topic = config.topics.cancel(request.model_name, config.name)
    return Message(topic, Cancellation((request.id,), outcome).to_json())

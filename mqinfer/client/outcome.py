"""From the end of a request, however it came, to the one result that its caller gets."""

from __future__ import annotations

from collections.abc import Mapping

from mqinfer.client.pending import Entry
from mqinfer.client.result import InferResult
from mqinfer.codecs import decode_tensor
from mqinfer.protocol.datatypes import Array
from mqinfer.protocol.errors import BadEncoding, Cancelled, Expired, MqinferError, Poison, Rejected, Superseded
from mqinfer.protocol.limits import Limits
from mqinfer.protocol.types import ErrorInfo, InferResponse, Outcome, Timings

__all__ = ["answered", "decode_outputs", "expiry", "failed", "poison"]

_OUTCOMES: Mapping[str, Outcome] = {
    Expired.code: Outcome.EXPIRED,
    Rejected.code: Outcome.REJECTED,
    Cancelled.code: Outcome.CANCELLED,
    Superseded.code: Outcome.SUPERSEDED,
}


def decode_outputs(response: InferResponse, limits: Limits) -> tuple[dict[str, Array], MqinferError | None]:
    """Decode a reply's tensors; give what went wrong instead of raising it, since it decides the outcome."""
    try:
        return {tensor.name: decode_tensor(tensor, limits) for tensor in response.outputs}, None
    except MqinferError as error:
        return {}, BadEncoding(f"the reply can't be decoded: {error}")


def answered(
    entry: Entry,
    response: InferResponse,
    outputs: Mapping[str, Array],
    problem: MqinferError | None,
    received: float,
) -> InferResult:
    """Make the result of a reply.

    Args:
        entry: The request it is for.
        response: The reply.
        outputs: Its tensors, decoded.
        problem: Why they could not be decoded, or None.
        received: When the reply came, by the table's clock, in seconds.
    """
    return InferResult(
        id=response.id,
        outcome=response.outcome if problem is None else Outcome.ERROR,
        model_name=response.model_name,
        model_version=response.model_version,
        model_hash=response.model_hash,
        outputs=outputs,
        error=response.error if problem is None else ErrorInfo(problem.code, str(problem)),
        worker=response.worker,
        stage=response.stage,
        timings=_timings(entry, response, received),
        capture=entry.request.capture,
        attempts=entry.attempts,
        bytes_sent=entry.bytes_sent,
        parameters=response.parameters,
    )


def failed(entry: Entry, why: MqinferError) -> InferResult:
    """Make the result of a request that got no reply."""
    return InferResult(
        id=entry.request.id,
        outcome=_OUTCOMES.get(why.code, Outcome.ERROR),
        model_name=entry.request.model_name,
        error=ErrorInfo(why.code, f"model {entry.request.model_name!r}: {why}"),
        capture=entry.request.capture,
        attempts=entry.attempts,
        bytes_sent=entry.bytes_sent,
    )


def expiry(entry: Entry) -> Expired:
    """Say why a request has expired."""
    seconds = entry.deadline - entry.submitted
    if entry.attempts == 0:
        return Expired(f"expired after {seconds:.3g} s before it could be sent (window full, or not connected)")
    turned_away = "" if entry.refused_since is None else ", some of them turned away (no worker, or busy ones)"
    return Expired(f"no reply within {seconds:.3g} s and {entry.attempts} attempt(s){turned_away}")


def poison(entry: Entry) -> Poison:
    """Say which workers died on a request."""
    return Poison(f"the workers {', '.join(sorted(worker for worker, _ in entry.deaths))} died while they had it")


def _timings(entry: Entry, response: InferResponse, received: float) -> Timings:
    """Add the client's part: its own queue, and as transmission what the worker's stages don't explain."""
    worker = response.timings
    elapsed = round((received - entry.sent) * 1e9)
    return Timings(
        client_queue=round((entry.sent - entry.submitted) * 1e9),
        transmission=max(0, elapsed - worker.server),
        server_queue=worker.server_queue,
        decode=worker.decode,
        preprocess=worker.preprocess,
        inference=worker.inference,
        postprocess=worker.postprocess,
        encode=worker.encode,
    )

"""The metrics port of a gateway, and what the gateway states as pending.

`/metrics` is for Prometheus, `/lag` for KEDA's `metrics-api` scaler (`valueLocation: "seg.wanted"`).
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial

from aiohttp import web
from msgspec.structs import replace

from mqinfer.gateway.access import Access
from mqinfer.gateway.core import Core
from mqinfer.gateway.settings import GatewaySettings
from mqinfer.metrics.client import add_client
from mqinfer.metrics.endpoint import make_registry
from mqinfer.metrics.inference import add_triton
from mqinfer.metrics.lag import add_lag, lag, to_record
from mqinfer.metrics.samples import Samples
from mqinfer.metrics.scaling import SiteScaler
from mqinfer.protocol.control import ModelStatistics
from mqinfer.protocol.errors import MqinferError
from mqinfer.protocol.states import PendingRequests


def pending_calls(core: Core) -> list[PendingRequests]:
    """Return what waits for each model: calls that wait for their turn, and requests of the client; thread-safe."""
    found = {each.model: each for each in core.client.connection.requester.pending()}
    now = time.monotonic()
    for model, (count, since) in core.inference.admission.waiting().items():
        sent = found.get(model, PendingRequests(model))
        oldest = max(sent.oldest_ms, round(max(0.0, now - since) * 1e3))
        found[model] = PendingRequests(model, sent.queued + count, sent.in_flight, oldest)
    return list(found.values())


def make_metrics(
    core: Core, access: Access, settings: GatewaySettings
) -> Callable[[web.Request], Awaitable[web.Response]]:
    """Return what answers with the metrics, in the format that the caller accepts.

    Raises:
        MissingExtra: prometheus-client is not installed.
    """
    found: dict[tuple[str, str], ModelStatistics] = {}
    registry = make_registry(partial(_read, core, access, found))
    from prometheus_client.exposition import choose_encoder

    async def answer(request: web.Request) -> web.Response:
        if settings.triton_metrics:
            counted = await _statistics(core)
            found.clear()
            found.update(counted)
        encoder, content_type = choose_encoder(request.headers.get("Accept", ""))
        return web.Response(body=encoder(registry), headers={"Content-Type": content_type})

    return answer


async def _statistics(core: Core) -> dict[tuple[str, str], ModelStatistics]:
    """Return what all workers count by model and version, with what is pending here; nothing where none replies."""
    with suppress(MqinferError):
        found = dict(map(ModelStatistics.from_record, await core.statistics()))
        for each in pending_calls(core):
            card = core.client.connection.registry.known.card(each.model)
            if card is not None and (card.name, card.version) in found:
                counted = found[card.name, card.version]
                found[card.name, card.version] = replace(counted, depth=each.queued + each.in_flight)
        return found
    return {}


def make_metrics_app(core: Core, access: Access, settings: GatewaySettings) -> web.Application:
    """Return what answers on the metrics port; may raise as `make_metrics`."""
    registry, scaler = core.client.connection.registry, SiteScaler()

    async def answer_lag(_request: web.Request) -> web.Response:
        if not registry.is_complete:  # a zero would scale the workers down
            return web.json_response({"error": "not connected to the broker; what waits is not known"}, status=503)
        lags = lag(registry.known, now := time.monotonic())
        wanted = scaler.update(registry.known, lags, now)
        return web.json_response({name: {**each, "wanted": wanted[name]} for name, each in to_record(lags).items()})

    app = web.Application()
    app.router.add_get("/metrics", make_metrics(core, access, settings))
    app.router.add_get("/lag", answer_lag)
    return app


def _read(core: Core, access: Access, counted: Mapping[tuple[str, str], ModelStatistics], samples: Samples) -> None:
    connection = core.client.connection
    add_client(samples, connection.requester)
    found = core.inference
    for (model, code), count in found.outcomes.items():
        samples.count("gateway_requests", "Calls for inference by outcome.", count, model=model, outcome=code)
    for model, times in found.times.items():
        times.add_to(samples, model)
    admission = found.admission
    samples.count("gateway_accepted", "Requests for inference that were accepted.", admission.accepted)
    for caller, (count, size) in list(admission.of_keys.items()):
        samples.count("gateway_caller_accepted", "Of these, those of a caller with a key.", count, caller=caller)
        samples.count("gateway_caller_accepted_bytes", "Bytes of their inputs.", size, caller=caller)
    for caller, count in list(admission.over_quota.items()):
        samples.count("gateway_caller_over_quota", "Requests above a caller's quota.", count, caller=caller)
    for reason, count in admission.refused.items():
        samples.count("gateway_refused", "Calls for inference for which there was no room.", count, reason=reason)
    for reason, count in access.refused.items():
        samples.count("gateway_denied", "Calls of callers who may not make them.", count, reason=reason)
    for reason, count in core.arriving.given_up.items():
        samples.count("gateway_dropped_messages", "Calls whose message was not waited for.", count, reason=reason)
    samples.gauge("gateway_arriving_bytes", "Requests that arrive or are worked on.", core.arriving.bytes)
    for reason, count in core.unsent.given_up.items():
        samples.count("gateway_dropped_replies", "Replies that their callers did not take.", count, reason=reason)
    samples.gauge("gateway_unsent_bytes", "Replies that their callers have not taken yet.", core.unsent.bytes)
    samples.gauge("gateway_running_requests", "Calls that were handed to the client.", admission.running)
    samples.gauge("gateway_queued_requests", "Calls that wait for their turn.", admission.queued)
    samples.gauge("gateway_pending_bytes", "Inputs of the calls without an outcome.", admission.bytes)
    for (model, version), statistics in counted.items():
        add_triton(samples, statistics, {"model": model, "version": version})
    add_lag(samples, connection.registry)

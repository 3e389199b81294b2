"""`/lag`: how much waits for each model, as KEDA's `metrics-api` scaler reads it (`valueLocation: "seg.pending"`)."""

from __future__ import annotations

import time

from aiohttp import web

from mqinfer.client.connection import LiveRegistry
from mqinfer.metrics.lag import lag, to_record

__all__ = ["add_lag"]


def add_lag(app: web.Application, registry: LiveRegistry) -> None:
    """Answer `GET /lag`.

    Args:
        app: Of the metrics port.
        registry: It watches clients.
    """

    async def answer(_request: web.Request) -> web.Response:
        if not registry.is_complete:  # a zero would scale the workers down
            return web.json_response({"error": "not connected to the broker; what waits is not known"}, status=503)
        return web.json_response(to_record(lag(registry.known, time.monotonic())))

    app.router.add_get("/lag", answer)

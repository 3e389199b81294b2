"""Whether and where spans are exported: an option, or OpenTelemetry's own variables."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from mqinfer.extras import check_packages
from mqinfer.protocol.errors import ConfigError

if TYPE_CHECKING:
    from mqinfer.telemetry.tracer import Tracer

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
"""Variable of the collector's URL, to which `/v1/traces` is added."""
_TRACES_ENDPOINT = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
_PATH = "/v1/traces"
_PACKAGES = dict.fromkeys(
    ("opentelemetry.exporter.otlp.proto.http", "opentelemetry.sdk"), "opentelemetry-exporter-otlp-proto-http"
)


def check_endpoint(endpoint: str | None) -> str | None:
    """Return the URL that spans are sent to; None where they are not exported.

    Args:
        endpoint: URL of a collector, as of `OTEL_EXPORTER_OTLP_ENDPOINT`; None for what the environment says.

    Raises:
        ConfigError: It is no URL of HTTP.
        MissingExtra: The packages of the extra `telemetry` are not installed.
    """
    url = _traces_url(endpoint)
    if not url or os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"--otlp-endpoint {url}: expected the URL of a collector, such as http://127.0.0.1:4318")
    check_packages(_PACKAGES, "telemetry")
    return url


def _traces_url(endpoint: str | None) -> str | None:
    """Return the URL of the option, else of the environment, where the variable for traces alone comes first."""
    general, own = os.environ.get(ENDPOINT), os.environ.get(_TRACES_ENDPOINT)
    endpoint = endpoint or general
    if own and endpoint in {None, "", general}:
        return own
    return endpoint and endpoint.rstrip("/").removesuffix(_PATH) + _PATH


def make_tracer(service: str, instance: str, url: str | None) -> Tracer | None:
    """Return what makes spans and exports them, until its `close`.

    Args:
        service: Name of the service, unless the environment's `OTEL_SERVICE_NAME` states one.
        instance: The process's name in topics.
        url: From `check_endpoint`; None for no spans, and None is returned.
    """
    if url is None:
        return None
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    from mqinfer.telemetry.tracer import Tracer, make_resource

    return Tracer(OTLPSpanExporter(endpoint=url), url, make_resource(service, instance))

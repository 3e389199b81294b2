"""The HTTP port that Prometheus and probes read: `/metrics` and the health of a program, on a thread of its own."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from mqinfer._version import __version__
from mqinfer.extras import missing_extra
from mqinfer.metrics.nvml import add_gpus
from mqinfer.metrics.samples import Samples
from mqinfer.protocol.errors import ConfigError

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric

log = logging.getLogger("mqinfer.metrics")
LOOPBACK = "127.0.0.1"
_SILENCE_S = 5.0
"""How long a connection may say nothing: one is served at a time."""
_LIVE, _READY = "/v2/health/live", "/v2/health/ready"
"""Paths for probes, as those of the gateway."""
Read = Callable[[Samples], None]
"""Adds the samples of a program."""
IsReady = Callable[[], bool]


class _Collector:
    """What prometheus-client calls at each scrape."""

    def __init__(self, read: Read) -> None:
        self._read = read

    def describe(self) -> Iterable[Metric]:
        """Return nothing: without this method a scrape would be made at the start."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """Return all samples; where reading fails, those that were there before."""
        samples = Samples()
        samples.gauge("build_info", "The version that runs.", 1, version=__version__)
        try:
            self._read(samples)
            add_gpus(samples)
        except Exception:  # a defect: what else there is, is still of use
            log.exception("a part of the metrics could not be read")
        return samples.families()


def make_registry(read: Read) -> CollectorRegistry:
    """Return a registry of one program's metrics, and of its process's.

    Raises:
        MissingExtra: prometheus-client is not installed.
    """
    try:
        from prometheus_client import CollectorRegistry, ProcessCollector
    except ImportError as error:
        raise missing_extra("prometheus-client", "telemetry") from error
    registry = CollectorRegistry()
    registry.register(_Collector(read))
    ProcessCollector(registry=registry)
    return registry


class _Handler(WSGIRequestHandler):
    """Answers one request; a connection that says nothing is closed."""

    timeout = _SILENCE_S

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name in the standard library
        """Log at the level of debugging."""
        log.debug("%s %s", self.address_string(), format % args)


class _Server(WSGIServer):
    """Logs what goes wrong with a connection."""

    def handle_error(self, _request: Any, client_address: Any) -> None:
        """Log it."""
        log.debug("a request from %s failed: %r", client_address, sys.exception())


@contextmanager
def serving_metrics(
    read: Read, port: int | None, bind: str = LOOPBACK, *, is_ready: IsReady = lambda: True
) -> Iterator[int]:
    """Answer `/metrics`, `/v2/health/live` and `/v2/health/ready` while the context lasts.

    Args:
        read: Adds the samples; called on the thread `mqinfer-metrics`, one scrape at a time.
        port: 0 for a free one; None for no endpoint.
        bind: Address that it listens on.
        is_ready: Whether the program can do its work now; called on the same thread.

    Yields:
        The port; 0 without an endpoint.

    Raises:
        MissingExtra: prometheus-client is not installed.
        ConfigError: The port can't be opened.
    """
    if port is None:
        yield 0
        return
    registry = make_registry(read)
    from prometheus_client import make_wsgi_app

    try:
        server = make_server(bind, port, _application(make_wsgi_app(registry), is_ready), _Server, _Handler)
    except OSError as error:
        raise ConfigError(
            f"can't serve metrics on {bind}:{port}: {error.strerror or error}; choose another --metrics-port"
        ) from error
    thread = threading.Thread(target=server.serve_forever, name="mqinfer-metrics", daemon=True)
    thread.start()
    try:
        log.info("metrics: http://%s:%d/metrics", bind, server.server_port)
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _application(metrics: Callable[..., Any], is_ready: IsReady) -> Callable[..., Any]:
    """Return an application that answers the paths above, and no other."""

    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        path = environ["PATH_INFO"]
        if path == "/metrics":
            return metrics(environ, start_response)
        status, text = "404 Not Found", f"not found; there are /metrics, {_LIVE} and {_READY}"
        if path == _LIVE or (path == _READY and is_ready()):
            status, text = "200 OK", "ok"
        elif path == _READY:
            status, text = "503 Service Unavailable", "not ready"
        start_response(status, [("Content-Type", "text/plain; charset=utf-8")])
        return [f"{text}\n".encode()]

    return answer

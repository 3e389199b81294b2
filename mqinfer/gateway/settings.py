"""What an operator sets about a gateway."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mqinfer.protocol.limits import DEFAULT_LIMITS
from mqinfer.web.tls import TlsFiles

__all__ = ["GatewaySettings"]


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """How a gateway serves. Times in seconds; a port of 0 switches its front off.

    Attributes:
        bind: Address that it listens on.
        metrics_bind: The same for the metrics.
        http_port: Open Inference Protocol over HTTP.
        grpc_port: Open Inference Protocol over gRPC.
        metrics_port: Prometheus.
        tfs_grpc_port: TensorFlow Serving over gRPC.
        tfs_rest_port: TensorFlow Serving over HTTP.
        tfs_rest_timeout: Of a call of TensorFlow Serving's REST API, where it is shorter than `timeout`.
        tfs_cors: Whether pages of any origin may call that API.
        server_name: What it calls itself in metadata.
        timeout: Of a call that states none.
        max_pending: Calls without an outcome that it accepts at a time.
        max_bytes: Bytes of their inputs.
        max_connections: Connections of callers to each port at a time.
        max_input_bytes: The largest body, also after decompression.
        drain: How long calls may go on after SIGTERM.
        tls: For all ports but that of the metrics; None: they are not encrypted.
        keys: File of the callers and their keys; None: everybody may call.
        restrict: Calls that need a header, as `access.read_restrictions` takes them.
        model_control: Whether callers may load and unload models.
        strict_readiness: Whether it is ready only while every model has a worker that is.
    """

    bind: str = "127.0.0.1"
    metrics_bind: str = "127.0.0.1"
    http_port: int = 8000
    grpc_port: int = 8001
    metrics_port: int = 8002
    tfs_grpc_port: int = 8500
    tfs_rest_port: int = 8501
    tfs_rest_timeout: float = 30.0
    tfs_cors: bool = False
    server_name: str = "mqinfer"
    timeout: float = 60.0
    max_pending: int = 1024
    max_bytes: int = 1 << 30
    max_connections: int = 8192
    max_input_bytes: int = DEFAULT_LIMITS.payload_bytes
    drain: float = 10.0
    tls: TlsFiles | None = None
    keys: Path | None = None
    restrict: tuple[str, ...] = ()
    model_control: bool = False
    strict_readiness: bool = False

"""What an operator sets about a gateway."""

from __future__ import annotations

from dataclasses import dataclass

from mqinfer.protocol.limits import DEFAULT_LIMITS

__all__ = ["GatewaySettings"]


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """How a gateway serves. Times in seconds; a port of 0 switches its front off.

    Attributes:
        bind: Address that it listens on.
        http_port: Open Inference Protocol over HTTP.
        grpc_port: Open Inference Protocol over gRPC.
        metrics_port: Prometheus.
        tfs_grpc_port: TensorFlow Serving over gRPC.
        tfs_rest_port: TensorFlow Serving over HTTP.
        server_name: What it calls itself in metadata.
        timeout: Of a call that states none.
        max_pending: Calls without an outcome that it accepts at a time.
        max_bytes: Bytes of their inputs.
        max_input_bytes: The largest body, also after decompression.
        drain: How long calls may go on after SIGTERM.
    """

    bind: str = "127.0.0.1"
    http_port: int = 8000
    grpc_port: int = 8001
    metrics_port: int = 8002
    tfs_grpc_port: int = 8500
    tfs_rest_port: int = 8501
    server_name: str = "mqinfer"
    timeout: float = 60.0
    max_pending: int = 1024
    max_bytes: int = 1 << 30
    max_input_bytes: int = DEFAULT_LIMITS.payload_bytes
    drain: float = 10.0

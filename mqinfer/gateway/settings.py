"""What an operator sets about a gateway: each field is an option of `mqinfer gateway`, with its help, here alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from mqinfer.protocol.errors import ConfigError
from mqinfer.protocol.limits import DEFAULT_LIMITS
from mqinfer.web.tls import TlsFiles


def _port(what: str) -> Any:
    """Return the option of a port."""
    return typer.Option(help=f"Port of {what}; 0 switches it off.", min=0, max=65535)


@dataclass(frozen=True, slots=True)
class GatewayPorts:
    """Where it listens."""

    http_port: Annotated[int, _port("the Open Inference Protocol over HTTP")] = 8000
    grpc_port: Annotated[int, _port("the Open Inference Protocol over gRPC")] = 8001
    metrics_port: Annotated[int, _port("Prometheus' metrics and of /lag")] = 8002
    metrics_bind: Annotated[str, typer.Option(help="Address that the metrics are served on.")] = "127.0.0.1"
    tfs_grpc_port: Annotated[int, _port("TensorFlow Serving's gRPC API")] = 8500
    tfs_rest_port: Annotated[int, _port("TensorFlow Serving's REST API")] = 8501
    tfs_grpc_socket: Annotated[
        Path | None, typer.Option(help="Path of a Unix socket for TensorFlow Serving's gRPC API, beside its port.")
    ] = None
    zmq_port: Annotated[int, _port("Frigate's detector zmq, which has neither TLS nor keys")] = 0
    zmq_bind: Annotated[str, typer.Option(help="Address that this detector is served on.")] = "127.0.0.1"
    bind: Annotated[
        str, typer.Option(help="Address to listen on. Without --keys, any other than loopback is open to everyone.")
    ] = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class GatewayBounds:
    """How much it accepts, and for how long."""

    timeout: Annotated[
        float, typer.Option(help="Longest time of a call, in seconds; a caller may state a shorter one.", min=0.001)
    ] = 60.0
    tfs_rest_timeout: Annotated[
        float, typer.Option(help="Longest time of a call to TensorFlow Serving's REST API, in seconds.", min=0.001)
    ] = 30.0
    max_pending: Annotated[
        int, typer.Option(help="Calls that each process accepts at a time; it answers further ones with 429.", min=1)
    ] = 1024
    max_bytes: Annotated[
        int, typer.Option(help="Bytes of the inputs of those calls; it answers further calls with 429.", min=1)
    ] = 512 << 20
    max_connections: Annotated[
        int, typer.Option(help="Connections to each port of each process; further ones are refused.", min=1)
    ] = 8192
    http_max_input_size: Annotated[
        int, typer.Option(help="Largest request in bytes, also once it is decompressed.", min=1)
    ] = DEFAULT_LIMITS.payload_bytes
    drain: Annotated[
        float, typer.Option(help="Time for the accepted calls to end after SIGTERM, in seconds.", min=0)
    ] = 10.0


@dataclass(frozen=True, slots=True)
class GatewayCallers:
    """Who may call what.

    Raises:
        ConfigError: Of the files for TLS some are missing.
    """

    tls_cert: Annotated[Path | None, typer.Option(help="PEM file of the certificate that callers see.")] = None
    tls_key: Annotated[Path | None, typer.Option(help="PEM file of its private key.")] = None
    client_ca: Annotated[
        Path | None, typer.Option(help="PEM file of the CA whose certificates callers must have; none by default.")
    ] = None
    keys: Annotated[
        Path | None, typer.Option(help="TOML file of callers, their keys and rights; it is read again when changed.")
    ] = None
    restrict: Annotated[
        list[str] | None,
        typer.Option(
            help="Calls that need a header, as CALLS:KEY=VALUE, such as model-repository,statistics:admin=secret; may "
            "be repeated. Over gRPC the header is triton-grpc-protocol-KEY."
        ),
    ] = None
    model_control: Annotated[bool, typer.Option("--model-control", help="Let callers load and unload models.")] = False
    tfs_cors: Annotated[
        bool, typer.Option("--tfs-cors", help="Let web pages of any origin call TensorFlow Serving's REST API.")
    ] = False

    def __post_init__(self) -> None:
        if (self.tls_cert is None) is not (self.tls_key is None) or (self.client_ca and not self.tls_cert):
            raise ConfigError("--tls-cert and --tls-key belong together, and --client-ca needs them; state both")

    @property
    def tls(self) -> TlsFiles | None:
        """The files for TLS of all ports but that of the metrics; None: they are not encrypted."""
        return TlsFiles(self.tls_cert, self.tls_key, self.client_ca) if self.tls_cert and self.tls_key else None


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """How a gateway serves."""

    ports: GatewayPorts = field(default_factory=GatewayPorts)
    bounds: GatewayBounds = field(default_factory=GatewayBounds)
    callers: GatewayCallers = field(default_factory=GatewayCallers)
    server_name: Annotated[
        str, typer.Option(help="Name in the server's metadata; some of Triton's clients expect triton.")
    ] = "mqinfer"
    triton_metrics: Annotated[
        bool,
        typer.Option("--triton-metrics", help="Add what all workers count of inference under Triton's names (nv_...)."),
    ] = False
    detection_model: Annotated[
        str,
        typer.Option(help="Model of DeepStack's /v1/vision/detection; by default the only one that finds boxes."),
    ] = ""
    strict_readiness: Annotated[
        bool, typer.Option("--strict-readiness", help="Be ready only while every model has a worker that is ready.")
    ] = False

"""`mqinfer gateway`."""

from __future__ import annotations

import secrets
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from mqinfer import logs
from mqinfer.broker.connect import resolve
from mqinfer.cli.options import ConnectionOptions, OtlpEndpoint, with_connection, with_group
from mqinfer.gateway.settings import GatewaySettings
from mqinfer.protocol.errors import ConfigError
from mqinfer.protocol.topics import check_name
from mqinfer.telemetry.exporting import check_endpoint
from mqinfer.web.tls import TlsFiles

__all__ = ["gateway"]

_OFF = "0 switches it off."
_OPTIONS = {
    "http_port": typer.Option(help=f"Port of the Open Inference Protocol over HTTP; {_OFF}", min=0, max=65535),
    "grpc_port": typer.Option(help=f"Port of the Open Inference Protocol over gRPC; {_OFF}", min=0, max=65535),
    "metrics_port": typer.Option(help=f"Port of Prometheus' metrics and of /lag; {_OFF}", min=0, max=65535),
    "metrics_bind": typer.Option(help="Address that the metrics are served on."),
    "tfs_grpc_port": typer.Option(help=f"Port of TensorFlow Serving's gRPC API; {_OFF}", min=0, max=65535),
    "tfs_rest_port": typer.Option(help=f"Port of TensorFlow Serving's REST API; {_OFF}", min=0, max=65535),
    "tfs_rest_timeout": typer.Option(
        help="Longest time of a call to TensorFlow Serving's REST API, in seconds.", min=0.001
    ),
    "tfs_cors": typer.Option("--tfs-cors", help="Let web pages of any origin call TensorFlow Serving's REST API."),
    "bind": typer.Option(help="Address to listen on. Without --keys, any other than loopback is open to everyone."),
    "server_name": typer.Option(help="Name in the server's metadata; some of Triton's clients expect triton."),
    "timeout": typer.Option(help="Longest time of a call, in seconds; a caller may state a shorter one.", min=0.001),
    "max_pending": typer.Option(
        help="Calls that each process accepts at a time; it answers further ones with 429.", min=1
    ),
    "max_bytes": typer.Option(help="Bytes of the inputs of those calls; it answers further calls with 429.", min=1),
    "max_connections": typer.Option(help="Connections to each port of each process; further ones are refused.", min=1),
    "max_input_bytes": typer.Option(
        "--http-max-input-size", help="Largest request in bytes, also once it is decompressed.", min=1
    ),
    "strict_readiness": typer.Option(
        "--strict-readiness", help="Be ready only while every model has a worker that is ready."
    ),
    "drain": typer.Option(help="Time for the accepted calls to end after SIGTERM, in seconds.", min=0),
    "keys": typer.Option(help="TOML file of callers, their keys and rights; it is read again when changed."),
    "model_control": typer.Option("--model-control", help="Let callers load and unload models."),
}
"""Options of the fields of `GatewaySettings`, which has their types and defaults."""


@with_connection
@with_group("settings", GatewaySettings, _OPTIONS)
def gateway(
    connection: ConnectionOptions,
    settings: GatewaySettings,
    processes: Annotated[
        int,
        typer.Option(help="Processes that share the ports; number N has its metrics on --metrics-port + N.", min=1),
    ] = 1,
    tls_cert: Annotated[Path | None, typer.Option(help="PEM file of the certificate that callers see.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="PEM file of its private key.")] = None,
    client_ca: Annotated[
        Path | None, typer.Option(help="PEM file of the CA whose certificates callers must have; none by default.")
    ] = None,
    restrict: Annotated[
        list[str] | None,
        typer.Option(
            help="Calls that need a header, as CALLS:KEY=VALUE, such as model-repository,statistics:admin=secret; may "
            "be repeated. Over gRPC the header is triton-grpc-protocol-KEY."
        ),
    ] = None,
    otlp_endpoint: OtlpEndpoint = None,
) -> None:
    """Serve clients of the Open Inference Protocol and of TensorFlow Serving until Ctrl-C, by workers at the broker."""
    settings = replace(settings, tls=_tls(tls_cert, tls_key, client_ca), restrict=tuple(restrict or ()))
    address = resolve(connection.address())
    name = check_name("client", connection.name or address.login_name or f"gateway-{secrets.token_hex(4)}")
    logs.rename_process(name)
    from mqinfer.gateway.serving.fronts import check_ports
    from mqinfer.gateway.serving.process import GatewaySpec, check_packages
    from mqinfer.gateway.serving.processes import run_alone, run_several

    spec = GatewaySpec(address, name, connection.root, settings, otlp=check_endpoint(otlp_endpoint))
    check_packages()
    check_ports(settings)
    if processes == 1:
        run_alone(spec)
    else:
        run_several(spec, processes)


def _tls(cert: Path | None, key: Path | None, client_ca: Path | None) -> TlsFiles | None:
    if cert is None and key is None and client_ca is None:
        return None
    if cert is None or key is None:
        raise ConfigError("--tls-cert and --tls-key belong together, and --client-ca needs them; state both")
    return TlsFiles(cert, key, client_ca)

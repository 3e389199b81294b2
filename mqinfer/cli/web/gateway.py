"""`mqinfer gateway`."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Annotated

import typer

from mqinfer import logs
from mqinfer.broker.connect import resolve
from mqinfer.cli.options import ConnectionOptions, MetricsBind, OtlpEndpoint, with_connection
from mqinfer.gateway.settings import GatewaySettings
from mqinfer.protocol.errors import ConfigError
from mqinfer.protocol.limits import DEFAULT_LIMITS
from mqinfer.protocol.topics import check_name
from mqinfer.telemetry.exporting import check_endpoint
from mqinfer.web.tls import TlsFiles

__all__ = ["gateway"]

_DEFAULTS = GatewaySettings()
_OFF = "0 switches it off."


@with_connection
def gateway(
    connection: ConnectionOptions,
    http_port: Annotated[
        int, typer.Option(help=f"Port of the Open Inference Protocol over HTTP; {_OFF}", min=0, max=65535)
    ] = _DEFAULTS.http_port,
    grpc_port: Annotated[
        int, typer.Option(help=f"Port of the Open Inference Protocol over gRPC; {_OFF}", min=0, max=65535)
    ] = _DEFAULTS.grpc_port,
    metrics_port: Annotated[
        int,
        typer.Option(
            envvar="MQINFER_METRICS_PORT", help=f"Port of Prometheus' metrics and of /lag; {_OFF}", min=0, max=65535
        ),
    ] = _DEFAULTS.metrics_port,
    metrics_bind: MetricsBind = _DEFAULTS.metrics_bind,
    tfs_grpc_port: Annotated[
        int, typer.Option(help=f"Port of TensorFlow Serving's gRPC API; {_OFF}", min=0, max=65535)
    ] = _DEFAULTS.tfs_grpc_port,
    tfs_rest_port: Annotated[
        int, typer.Option(help=f"Port of TensorFlow Serving's REST API; {_OFF}", min=0, max=65535)
    ] = _DEFAULTS.tfs_rest_port,
    tfs_rest_timeout: Annotated[
        float,
        typer.Option(help="Longest time of a call to TensorFlow Serving's REST API, in seconds.", min=0.001),
    ] = _DEFAULTS.tfs_rest_timeout,
    tfs_cors: Annotated[
        bool, typer.Option("--tfs-cors", help="Let web pages of any origin call TensorFlow Serving's REST API.")
    ] = _DEFAULTS.tfs_cors,
    bind: Annotated[
        str, typer.Option(help="Address to listen on. Without --keys, any other than loopback is open to everyone.")
    ] = _DEFAULTS.bind,
    processes: Annotated[
        int,
        typer.Option(help="Processes that share the ports; number N has its metrics on --metrics-port + N.", min=1),
    ] = 1,
    server_name: Annotated[
        str, typer.Option(help="Name in the server's metadata; some of Triton's clients expect triton.")
    ] = _DEFAULTS.server_name,
    timeout: Annotated[
        float, typer.Option(help="Longest time of a call, in seconds; a caller may state a shorter one.", min=0.001)
    ] = _DEFAULTS.timeout,
    max_pending: Annotated[
        int, typer.Option(help="Calls that each process accepts at a time; it answers further ones with 429.", min=1)
    ] = _DEFAULTS.max_pending,
    max_bytes: Annotated[
        int, typer.Option(help="Bytes of the inputs of those calls; it answers further calls with 429.", min=1)
    ] = _DEFAULTS.max_bytes,
    max_connections: Annotated[
        int, typer.Option(help="Connections to each port of each process; further ones are refused.", min=1)
    ] = _DEFAULTS.max_connections,
    http_max_input_size: Annotated[
        int, typer.Option(help="Largest request in bytes, also once it is decompressed.", min=1)
    ] = DEFAULT_LIMITS.payload_bytes,
    strict_readiness: Annotated[
        bool, typer.Option("--strict-readiness", help="Be ready only while every model has a worker that is ready.")
    ] = False,
    drain: Annotated[
        float, typer.Option(help="Time for the accepted calls to end after SIGTERM, in seconds.", min=0)
    ] = _DEFAULTS.drain,
    tls_cert: Annotated[Path | None, typer.Option(help="PEM file of the certificate that callers see.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="PEM file of its private key.")] = None,
    client_ca: Annotated[
        Path | None, typer.Option(help="PEM file of the CA whose certificates callers must have; none by default.")
    ] = None,
    keys: Annotated[
        Path | None,
        typer.Option(help="TOML file of callers, their keys and rights; it is read again when changed."),
    ] = None,
    restrict: Annotated[
        list[str] | None,
        typer.Option(
            help="Calls that need a header, as CALLS:KEY=VALUE, such as model-repository,statistics:admin=secret; may "
            "be repeated. Over gRPC the header is triton-grpc-protocol-KEY."
        ),
    ] = None,
    model_control: Annotated[bool, typer.Option("--model-control", help="Let callers load and unload models.")] = False,
    otlp_endpoint: OtlpEndpoint = None,
) -> None:
    """Serve clients of the Open Inference Protocol and of TensorFlow Serving until Ctrl-C, by workers at the broker."""
    settings = GatewaySettings(
        bind=bind,
        metrics_bind=metrics_bind,
        http_port=http_port,
        grpc_port=grpc_port,
        metrics_port=metrics_port,
        tfs_grpc_port=tfs_grpc_port,
        tfs_rest_port=tfs_rest_port,
        tfs_rest_timeout=tfs_rest_timeout,
        tfs_cors=tfs_cors,
        server_name=server_name,
        timeout=timeout,
        max_pending=max_pending,
        max_bytes=max_bytes,
        max_connections=max_connections,
        max_input_bytes=http_max_input_size,
        drain=drain,
        tls=_tls(tls_cert, tls_key, client_ca),
        keys=keys,
        restrict=tuple(restrict or ()),
        model_control=model_control,
        strict_readiness=strict_readiness,
    )
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

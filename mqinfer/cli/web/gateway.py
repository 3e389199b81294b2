"""`mqinfer gateway`."""

from __future__ import annotations

import secrets
from typing import Annotated

import typer

from mqinfer import logs
from mqinfer.broker.connect import resolve
from mqinfer.cli.options import ConnectionOptions, OtlpEndpoint, with_connection, with_group
from mqinfer.extras import check_packages
from mqinfer.gateway.settings import GatewaySettings
from mqinfer.protocol.topics import check_name
from mqinfer.telemetry.exporting import check_endpoint

_PACKAGES = {
    "grpc": "grpcio",
    "aiohttp": "aiohttp",
    "google.protobuf": "protobuf",
    "orjson": "orjson",
    "prometheus_client": "prometheus-client",
}
"""Distributions of the extra `gateway` by the modules that are imported."""


@with_connection
@with_group("settings", GatewaySettings)
def gateway(
    connection: ConnectionOptions,
    settings: GatewaySettings,
    processes: Annotated[
        int,
        typer.Option(help="Processes that share the ports; number N has its metrics on --metrics-port + N.", min=1),
    ] = 1,
    otlp_endpoint: OtlpEndpoint = None,
) -> None:
    """Answer clients of the Open Inference Protocol and of TensorFlow Serving until Ctrl-C, by the broker's workers."""
    address = resolve(connection.address())
    name = check_name("client", connection.name or address.login_name or f"gateway-{secrets.token_hex(4)}")
    logs.rename_process(name)
    otlp = check_endpoint(otlp_endpoint)
    check_packages(_PACKAGES, "gateway")
    from mqinfer.gateway.serving.fronts import check_ports
    from mqinfer.gateway.serving.process import GatewaySpec
    from mqinfer.gateway.serving.processes import run_alone, run_several

    spec = GatewaySpec(address, name, connection.root, settings, otlp=otlp)
    check_ports(settings)
    if processes == 1:
        run_alone(spec)
    else:
        run_several(spec, processes)

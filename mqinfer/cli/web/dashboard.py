"""`mqinfer dashboard`."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import typer

from mqinfer.broker.connect import resolve
from mqinfer.cli.options import ConnectionOptions, MetricsBind, MetricsPort, with_connection, with_group
from mqinfer.dashboard.settings import MOST_OF_LOGIN, DashboardSettings, PageOptions, check_settings
from mqinfer.extras import check_packages
from mqinfer.metrics.endpoint import LOOPBACK
from mqinfer.protocol.errors import ConfigError
from mqinfer.web.tls import TlsFiles


@with_connection
@with_group("page", PageOptions)
def dashboard(
    connection: ConnectionOptions,
    page: PageOptions,
    host: Annotated[
        list[str] | None,
        typer.Option(
            help="Name under which browsers reach the page, such as fleet.example.org, with the port unless it is "
            "the usual one; may be repeated. Needed behind a proxy."
        ),
    ] = None,
    tls_cert: Annotated[Path | None, typer.Option(help="PEM file of the certificate that browsers see.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="PEM file of its private key.")] = None,
    max_connections: Annotated[
        int | None,
        typer.Option(
            help="Browsers that are connected to the broker at a time; 256 by default, and 16 with a login of this "
            "command, as many as mqinfer's broker allows one login.",
            min=1,
        ),
    ] = None,
    metrics_port: MetricsPort = None,
    metrics_bind: MetricsBind = LOOPBACK,
) -> None:
    """Serve a page with live pictures, results and workers to browsers until Ctrl-C.

    Browsers log in to the broker themselves. With a login of this command, such as a user in --broker, all of them use
    that one, and can only watch.
    """
    check_packages({"aiohttp": "aiohttp"}, "dashboard")
    if (tls_cert is None) is not (tls_key is None):
        raise ConfigError("--tls-cert and --tls-key belong together; state both")
    settings = DashboardSettings(
        address=resolve(connection.address()),
        root=connection.root,
        hosts=tuple(host or ()),
        tls=TlsFiles(tls_cert, tls_key) if tls_cert and tls_key else None,
        metrics_port=metrics_port,
        metrics_bind=metrics_bind,
        **asdict(page),
    )
    check_settings(settings)
    if max_connections is None:
        of_login = MOST_OF_LOGIN - (metrics_port is not None)  # its connection is of the same login
        max_connections = of_login if settings.login == "relay" else settings.max_connections
    settings = replace(settings, max_connections=max_connections)
    from mqinfer.dashboard.serving import run

    run(settings)

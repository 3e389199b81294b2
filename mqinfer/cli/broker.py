"""`mqinfer broker`, and `mqinfer broker init|add|remove|list` for one that lets nobody in unasked."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Annotated

import typer

from mqinfer.broker.mosquitto import BrokerFolder
from mqinfer.broker.mosquitto.configuration import render
from mqinfer.broker.mosquitto.server import MosquittoServer
from mqinfer.broker.mosquitto.serving import keep_current, secured
from mqinfer.cli.broker_access import add_to
from mqinfer.cli.options import until_signal
from mqinfer.protocol.errors import BrokerUnreachable, ConfigError

__all__ = ["app"]

app = typer.Typer(help="Start a private Mosquitto, or set one up with certificates and access rules.")
add_to(app)


@app.callback(invoke_without_command=True)
def broker(
    context: typer.Context,
    port: Annotated[
        int | None, typer.Option(help="Port to listen on, 1883 by default; 0 for a free one.", min=0, max=65535)
    ] = None,
    websockets_port: Annotated[int | None, typer.Option(help="Port for browsers, with MQTT over WebSockets.")] = None,
    bind: Annotated[str, typer.Option(help="Address to listen on. Others than loopback let anybody in.")] = "127.0.0.1",
    config: Annotated[Path | None, typer.Option(help="Folder that `mqinfer broker init` has made.")] = None,
) -> None:
    """Start a private Mosquitto with mqinfer's configuration, until Ctrl-C; with --config one with access rules."""
    if context.invoked_subcommand is not None:
        return
    if config is not None:
        if websockets_port is not None or bind != "127.0.0.1":
            raise ConfigError("--config says where to listen; change mosquitto.conf there")
        folder = BrokerFolder(config)
        _run(secured(folder, port), folder)
        return

    def configuration(chosen: int) -> str:
        return render(chosen, websockets_port=websockets_port, bind=bind)

    _run(MosquittoServer(1883 if port is None else port or None, bind=bind, configuration=configuration))


def _run(server: MosquittoServer, folder: BrokerFolder | None = None) -> None:
    stop = until_signal()
    with server:
        typer.echo(f"broker ready at {server.url}")
        ended: list[int] = []
        threading.Thread(target=_watch, args=(server, ended, stop), name="mqinfer-broker-watch", daemon=True).start()
        if folder is None:
            stop.wait()
        else:
            keep_current(server, folder, stop)
        if any(ended):  # with 0 it was told to end, as by a Ctrl-C that reaches the whole group
            raise BrokerUnreachable(f"Mosquitto ended with status {ended[0]}; it said:\n{server.log().strip()}")


def _watch(server: MosquittoServer, ended: list[int], stop: threading.Event) -> None:
    ended.append(server.wait())
    stop.set()

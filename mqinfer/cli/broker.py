"""`mqinfer broker`."""

from __future__ import annotations

import threading
from typing import Annotated

import typer

from mqinfer.broker.configuration import render
from mqinfer.broker.server import MosquittoServer
from mqinfer.cli.options import until_signal
from mqinfer.protocol.errors import BrokerUnreachable

__all__ = ["broker"]


def broker(
    port: Annotated[int, typer.Option(help="Port to listen on; 0 for a free one.", min=0, max=65535)] = 1883,
    websockets_port: Annotated[int | None, typer.Option(help="Port for browsers, with MQTT over WebSockets.")] = None,
    bind: Annotated[str, typer.Option(help="Address to listen on. Others than loopback let anybody in.")] = "127.0.0.1",
) -> None:
    """Start a private Mosquitto with mqinfer's configuration, until Ctrl-C."""
    stop = until_signal()

    def configuration(chosen: int) -> str:
        return render(chosen, websockets_port=websockets_port, bind=bind)

    with MosquittoServer(port or None, bind=bind, configuration=configuration) as server:
        typer.echo(f"broker ready at {server.url}")
        ended: list[int] = []
        threading.Thread(target=_watch, args=(server, ended, stop), name="mqinfer-broker-watch", daemon=True).start()
        stop.wait()
        if any(ended):  # with 0 it was told to end, as by a Ctrl-C that reaches the whole group
            raise BrokerUnreachable(f"Mosquitto ended with status {ended[0]}; it said:\n{server.log().strip()}")


def _watch(server: MosquittoServer, ended: list[int], stop: threading.Event) -> None:
    ended.append(server.wait())
    stop.set()

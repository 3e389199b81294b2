"""`mqinfer broker`: a private Mosquitto; `mqinfer broker init|add|remove|list`: one with TLS and access rules."""

from __future__ import annotations

import shlex
import socket
import threading
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated

import typer

from mqinfer.broker.mosquitto import BrokerFolder, Login, Ports, Role
from mqinfer.broker.mosquitto.access import DEFAULT_PROCESSES
from mqinfer.broker.mosquitto.configuration import render
from mqinfer.broker.mosquitto.folder import DEFAULT_DAYS
from mqinfer.broker.mosquitto.server import MosquittoServer
from mqinfer.broker.mosquitto.serving import guarded, guarded_open, keep_current
from mqinfer.cli.options import Root, until_signal, with_log_options
from mqinfer.protocol.errors import BrokerUnreachable, ConfigError
from mqinfer.protocol.topics import Topics

__all__ = ["app"]

Directory = Annotated[Path, typer.Argument(help="Folder of the broker's configuration.")]
Days = Annotated[int, typer.Option(help="Validity of new certificates, in days.", min=1, max=3650)]

app = typer.Typer(help="Start a private Mosquitto, or set one up with TLS and access rules.")


@app.callback(invoke_without_command=True)
@with_log_options
def broker(
    context: typer.Context,
    port: Annotated[
        int | None, typer.Option(help="MQTT port; 1883 by default, 0 picks a free port.", min=0, max=65535)
    ] = None,
    websockets_port: Annotated[int | None, typer.Option(help="Port for MQTT over WebSockets, for browsers.")] = None,
    bind: Annotated[
        str,
        typer.Option(help="Address to listen on. Without access rules, any other than loopback is open to everyone."),
    ] = "127.0.0.1",
    config: Annotated[
        Path | None, typer.Option(help="Folder made by `mqinfer broker init`: use its TLS and access rules.")
    ] = None,
) -> None:
    """Run a private Mosquitto with mqinfer's configuration until Ctrl-C."""
    if context.invoked_subcommand is not None:
        return
    if config is not None:
        if websockets_port is not None or bind != "127.0.0.1":
            raise ConfigError(
                "--bind and --websockets-port have no effect with --config; edit mosquitto.conf in its folder"
            )
        folder = BrokerFolder(config)
        _run(guarded(folder, port), folder)
        return

    def configuration(chosen: int) -> str:
        return render(chosen, websockets_port=websockets_port, bind=bind)

    _run(guarded_open(MosquittoServer(1883 if port is None else port or None, bind=bind, configuration=configuration)))


@app.command()
def init(
    directory: Directory,
    host: Annotated[
        list[str] | None,
        typer.Option(help="Host name or address of the broker, for its certificate; may be repeated."),
    ] = None,
    client: Annotated[
        list[str] | None, typer.Option(help="Client to add, as ROLE:NAME, such as vehicle:car-1; may be repeated.")
    ] = None,
    port: Annotated[int, typer.Option(help="Port for clients with certificates.", min=1, max=65535)] = 8883,
    password_port: Annotated[
        int | None, typer.Option(help="Port for clients with passwords; none by default.", min=1, max=65535)
    ] = None,
    websockets_port: Annotated[
        int | None, typer.Option(help="Port for browsers (WebSockets, passwords); none by default.", min=1, max=65535)
    ] = None,
    bind: Annotated[str, typer.Option(help="Address to listen on; all addresses by default.")] = "",
    days: Days = DEFAULT_DAYS,
    root: Root = "mqinfer/v1",
) -> None:
    """Write a configuration with TLS, a private CA and access rules. Run again to renew the certificate."""
    wanted = [_role_and_name(text) for text in client or ()]
    topics = Topics(root)
    folder = BrokerFolder(directory)
    folder.init(host or (), Ports(port, password_port, websockets_port, bind), days)
    for role, name in wanted:
        _print_login(folder, role, folder.add(role, name, topics=topics, days=days))
    typer.echo(f"start it with: mqinfer broker --config {shlex.quote(str(directory))}")


@app.command()
def add(
    directory: Directory,
    role: Annotated[Role, typer.Argument(help="Role of the client, which sets its access rights.")],
    name: Annotated[str, typer.Argument(help="User name of the client; also its --name in topics.")],
    password: Annotated[bool, typer.Option("--password", help="Create a password instead of a certificate.")] = False,
    processes: Annotated[int, typer.Option(help="Largest number of processes of a worker.", min=1)] = DEFAULT_PROCESSES,
    days: Days = DEFAULT_DAYS,
    root: Root = "mqinfer/v1",
) -> None:
    """Grant a client access, or renew its certificate or password. A running broker applies it within a second."""
    folder = BrokerFolder(directory)
    login = folder.add(role, name, topics=Topics(root), processes=processes, days=days, by_password=password)
    _print_login(folder, role, login)
    if len(folder.certificates(name)) > 1:
        typer.echo(
            f"its earlier certificates stay good until they run out; if a key was lost, remove {name} and add it again"
        )


@app.command()
def remove(directory: Directory, name: Annotated[str, typer.Argument(help="User name of the client.")]) -> None:
    """Remove a client: its rights, its password and its certificates. A running broker applies it within a second."""
    revoked = BrokerFolder(directory).remove(name)
    typer.echo(f"removed {name}; revoked certificates: {revoked}")


@app.command("list")
def list_clients(directory: Directory) -> None:
    """List the clients and their roles."""
    for name, role in sorted(BrokerFolder(directory).clients().items()):
        typer.echo(f"{role:10} {name}")


def _role_and_name(text: str) -> tuple[Role, str]:
    role, colon, name = text.partition(":")
    if not colon or role not in set(Role):
        raise ConfigError(f"--client {text!r}: expected ROLE:NAME, with a role of {', '.join(Role)}")
    return Role(role), name


def _print_login(folder: BrokerFolder, role: Role, login: Login) -> None:
    """Print the options with which a client connects."""
    user = f"{login.name}:{login.password}@" if login.password else ""
    kind = "passwords" if login.password else "certificates"
    port = next((each.port for each in folder.listeners() if each.kind == kind), folder.listeners()[-1].port)
    options = ["--broker", f"mqtts://{user}{socket.gethostname()}:{port}", "--ca-file", str(login.ca_file)]
    if login.cert_file and login.key_file:
        options += ["--cert-file", str(login.cert_file), "--key-file", str(login.key_file)]
    if role is Role.WORKER and (group := folder.group()):
        options += ["--group", group]
    note = "password shown only once: the broker keeps its hash" if login.password else login.cert_file
    typer.echo(f"{role} {login.name} ({note}) connects with")
    typer.echo(f"  {shlex.join([*options, '--name', login.name])}")


def _run(broker: AbstractContextManager[MosquittoServer], folder: BrokerFolder | None = None) -> None:
    stop = until_signal()
    with broker as server:
        typer.echo(f"broker ready at {server.url}")
        ended: list[int] = []
        threading.Thread(target=_watch, args=(server, ended, stop), name="mqinfer-broker-watch", daemon=True).start()
        if folder is None:
            stop.wait()
        else:
            keep_current(server, folder, stop)
        if any(ended):  # status 0 is a requested end, such as a Ctrl-C that reaches the whole process group
            raise BrokerUnreachable(f"Mosquitto ended with status {ended[0]}; its log:\n{server.log().strip()}")


def _watch(server: MosquittoServer, ended: list[int], stop: threading.Event) -> None:
    ended.append(server.wait())
    stop.set()

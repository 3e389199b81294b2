"""`mqinfer broker init|add|remove|list`."""

from __future__ import annotations

import shlex
import socket
from pathlib import Path
from typing import Annotated

import typer

from mqinfer.broker.mosquitto import BrokerFolder, Login, Ports, Role
from mqinfer.broker.mosquitto.access import DEFAULT_PROCESSES
from mqinfer.broker.mosquitto.folder import DEFAULT_DAYS
from mqinfer.cli.options import Root
from mqinfer.protocol.errors import ConfigError
from mqinfer.protocol.topics import Topics

__all__ = ["add_to"]

Directory = Annotated[Path, typer.Argument(help="Folder of the broker's configuration.")]
Days = Annotated[int, typer.Option(help="Days that new certificates are good for.", min=1, max=3650)]
_SHOWN_ONCE = "its password is shown only now: only the hash is kept"


def add_to(app: typer.Typer) -> None:
    """Add the subcommands."""
    for name, command in (("init", init), ("add", add), ("remove", remove), ("list", list_clients)):
        app.command(name)(command)


def init(
    directory: Directory,
    host: Annotated[
        list[str] | None,
        typer.Option(help="Name or address under which clients reach the broker; may be repeated."),
    ] = None,
    client: Annotated[
        list[str] | None, typer.Option(help="ROLE:NAME to add, such as vehicle:car-1; may be repeated.")
    ] = None,
    port: Annotated[int, typer.Option(help="For clients with certificates.", min=1, max=65535)] = 8883,
    password_port: Annotated[
        int | None, typer.Option(help="For clients with passwords; none by default.", min=1, max=65535)
    ] = None,
    websockets_port: Annotated[
        int | None, typer.Option(help="For browsers, with passwords; none by default.", min=1, max=65535)
    ] = None,
    bind: Annotated[str, typer.Option(help="Address to listen on; all by default.")] = "",
    days: Days = DEFAULT_DAYS,
    root: Root = "mqinfer/v1",
) -> None:
    """Write a configuration with TLS, a private authority and access rules; a second time, renew the certificate."""
    wanted = [_role_and_name(text) for text in client or ()]
    topics = Topics(root)
    folder = BrokerFolder(directory)
    folder.init(host or (), Ports(port, password_port, websockets_port, bind), days)
    for role, name in wanted:
        _say(folder, role, folder.add(role, name, topics=topics, days=days))
    typer.echo(f"start it with: mqinfer broker --config {shlex.quote(str(directory))}")


def add(
    directory: Directory,
    role: Annotated[Role, typer.Argument(help="What the client is.")],
    name: Annotated[str, typer.Argument(help="Its user name, and its name in topics (--name).")],
    password: Annotated[bool, typer.Option("--password", help="A password in place of a certificate.")] = False,
    processes: Annotated[int, typer.Option(help="Processes of a worker, at most.", min=1)] = DEFAULT_PROCESSES,
    days: Days = DEFAULT_DAYS,
    root: Root = "mqinfer/v1",
) -> None:
    """Let a client in, or renew its certificate or password; a broker that runs takes notice within a second."""
    folder = BrokerFolder(directory)
    login = folder.add(role, name, topics=Topics(root), processes=processes, days=days, by_password=password)
    _say(folder, role, login)


def remove(directory: Directory, name: Annotated[str, typer.Argument(help="Of the client.")]) -> None:
    """Take all rights from a client."""
    BrokerFolder(directory).remove(name)
    typer.echo(f"removed {name}")


def list_clients(directory: Directory) -> None:
    """List the clients and their roles."""
    for name, role in sorted(BrokerFolder(directory).clients().items()):
        typer.echo(f"{role:10} {name}")


def _role_and_name(text: str) -> tuple[Role, str]:
    role, colon, name = text.partition(":")
    if not colon or role not in set(Role):
        raise ConfigError(f"--client {text!r} is to be ROLE:NAME; roles are {', '.join(Role)}")
    return Role(role), name


def _say(folder: BrokerFolder, role: Role, login: Login) -> None:
    """Print the options with which a client gets in."""
    user = f"{login.name}:{login.password}@" if login.password else ""
    kind = "passwords" if login.password else "certificates"
    port = next((each.port for each in folder.listeners() if each.kind == kind), folder.listeners()[-1].port)
    options = ["--broker", f"mqtts://{user}{socket.gethostname()}:{port}", "--ca-file", str(login.ca_file)]
    if login.cert_file and login.key_file:
        options += ["--cert-file", str(login.cert_file), "--key-file", str(login.key_file)]
    typer.echo(f"{role} {login.name} ({_SHOWN_ONCE if login.password else login.cert_file}) gets in with")
    typer.echo(f"  {shlex.join([*options, '--name', login.name])}")

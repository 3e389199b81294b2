"""`mqinfer broker`: a private Mosquitto or NATS; its subcommands set up TLS and access rules, and check any broker."""

from __future__ import annotations

import json
import shlex
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from mqinfer.broker.abilities import Abilities, Ability
from mqinfer.broker.address import BrokerAddress
from mqinfer.broker.connect import make_link, resolve
from mqinfer.broker.link import ConnectionHandler, Link, Message
from mqinfer.broker.mosquitto import BrokerFolder, Login, Role
from mqinfer.broker.mosquitto.check import Checker, Finding, check_certificate, enter_without_login
from mqinfer.broker.mosquitto.configuration import listeners_of, render, with_port
from mqinfer.broker.mosquitto.expiry import entries
from mqinfer.broker.mosquitto.folder import DEFAULT_DAYS
from mqinfer.broker.mosquitto.server import MosquittoServer
from mqinfer.broker.mosquitto.serving import guarded, guarded_open, keep_current
from mqinfer.broker.nats.secured import keep_running, secured
from mqinfer.broker.nats.server import NatsServers
from mqinfer.broker.presence import make_client_id
from mqinfer.broker.roles import BROKER, DEFAULT_GATEWAY_PROCESSES, DEFAULT_PROCESSES, DEFAULT_SUBS
from mqinfer.cli.exit_codes import ExitCode
from mqinfer.cli.options import (
    ConnectionOptions,
    MetricsBind,
    MetricsPort,
    Root,
    with_connection,
    with_group,
    with_log_options,
)
from mqinfer.interrupts import until_signal
from mqinfer.logs import LogLevel, printable, settings
from mqinfer.metrics.endpoint import LOOPBACK, serving_metrics
from mqinfer.protocol.errors import BrokerUnreachable, ConfigError
from mqinfer.protocol.topics import Topics, check_name

if TYPE_CHECKING:
    from mqinfer.broker.bridge import Bridge
    from mqinfer.broker.bridge.far_workers import MakeLink
    from mqinfer.metrics.samples import Samples

Directory = Annotated[Path, typer.Argument(help="Folder of the broker's configuration.")]
Days = Annotated[int, typer.Option(help="Validity of new certificates, in days.", min=1, max=3650)]


class Engine(StrEnum):
    """What carries the messages."""

    MOSQUITTO = "mosquitto"
    NATS = "nats"


class _Place(NamedTuple):
    """Where a broker listens, as its options have it."""

    port: int | None
    bind: str
    websockets_port: int | None
    nodes: int

    def port_or(self, usual: int) -> int | None:
        """Return the port, the usual one by default, or None for a free one."""
        return usual if self.port is None else self.port or None


Engines = Annotated[Engine, typer.Option(help="What carries the messages.")]

app = typer.Typer()


@app.callback(invoke_without_command=True)
@with_log_options
def broker(
    context: typer.Context,
    port: Annotated[
        int | None,
        typer.Option(help="Port; 1883 by default, 4222 with NATS. 0 picks a free one.", min=0, max=65535),
    ] = None,
    websockets_port: Annotated[int | None, typer.Option(help="Port for MQTT over WebSockets, for browsers.")] = None,
    bind: Annotated[
        str,
        typer.Option(help="Address to listen on. Without access rules, any other than loopback is open to everyone."),
    ] = "127.0.0.1",
    config: Annotated[
        Path | None, typer.Option(help="Folder made by `mqinfer broker init`: use its TLS and access rules.")
    ] = None,
    engine: Engines = Engine.MOSQUITTO,
    nodes: Annotated[
        int, typer.Option(help="Servers of NATS, on ports that follow each other; one of 3 may fail.", min=1, max=9)
    ] = 1,
) -> None:
    """Run a private Mosquitto or NATS with mqinfer's configuration until Ctrl-C; -v shows the broker's log too."""
    if context.invoked_subcommand is not None:
        return
    if config is not None and (websockets_port is not None or bind != "127.0.0.1"):
        raise ConfigError(
            "--bind and --websockets-port have no effect with --config; edit mosquitto.conf in its folder"
        )
    _check_engine(engine, nodes, websockets_port)
    run = _run_nats if engine is Engine.NATS else _run_mosquitto
    on_line = _show if settings().level is LogLevel.DEBUG else None
    run(_Place(port, bind, websockets_port, nodes), BrokerFolder(config) if config else None, on_line)


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
    port: Annotated[
        int | None, typer.Option(help="Port for clients with certificates; 8883 by default.", min=1, max=65535)
    ] = None,
    password_port: Annotated[
        int | None, typer.Option(help="Port for clients with passwords; none by default.", min=1, max=65535)
    ] = None,
    websockets_port: Annotated[
        int | None, typer.Option(help="Port for browsers (WebSockets, passwords); none by default.", min=1, max=65535)
    ] = None,
    bind: Annotated[str | None, typer.Option(help="Address to listen on; all addresses by default.")] = None,
    user: Annotated[
        str | None, typer.Option(help="User that runs the broker and gets the files that it reads; needs root.")
    ] = None,
    days: Days = DEFAULT_DAYS,
    root: Root = "mqinfer/v1",
    engine: Engines = Engine.MOSQUITTO,
) -> None:
    """Write a configuration with TLS, a private CA and access rules. Run again to change its ports or host names.

    Certificates and rules are good for both engines, also at the same time; `--engine` says which to print.
    """
    wanted = [_role_and_name(text) for text in client or ()]
    folder = BrokerFolder(directory)
    given: dict[str, Any] = {
        "certificates": port,
        "passwords": password_port,
        "websockets": websockets_port,
        "bind": bind,
    }
    is_new, before = not folder.configuration_file.exists(), folder.ports()
    ports = replace(before, **{name: each for name, each in given.items() if each is not None})
    logins = folder.init(host or (), ports, days, wanted, Topics(root), user=user)
    for (role, _), login in zip(wanted, logins, strict=True):
        _print_login(folder, role, login, engine)
    if ports != before and not is_new:
        typer.echo("a broker that runs keeps its ports until it is started again")
    more = " --engine nats" if engine is Engine.NATS else ""
    typer.echo(f"start it with: mqinfer broker --config {shlex.quote(str(directory))}{more}")


@app.command()
def add(
    directory: Directory,
    role: Annotated[Role, typer.Argument(help="Role of the client, which sets its access rights.")],
    name: Annotated[str, typer.Argument(help="User name of the client; also its --name in topics.")],
    password: Annotated[bool, typer.Option("--password", help="Create a password instead of a certificate.")] = False,
    sub: Annotated[
        list[str] | None,
        typer.Option(
            help=f"Sub-name of a vehicle's process, beside {', '.join(DEFAULT_SUBS)}: with rear, NAME may be called "
            "NAME.rear too. May be repeated."
        ),
    ] = None,
    homeassistant: Annotated[
        bool,
        typer.Option("--homeassistant", help="Let a vehicle that you trust introduce its streams to Home Assistant."),
    ] = False,
    processes: Annotated[
        int | None,
        typer.Option(
            help=f"Largest number of processes of a worker ({DEFAULT_PROCESSES} by default) or of a gateway "
            f"({DEFAULT_GATEWAY_PROCESSES}).",
            min=1,
        ),
    ] = None,
    days: Days = DEFAULT_DAYS,
    root: Root = "mqinfer/v1",
    engine: Engines = Engine.MOSQUITTO,
) -> None:
    """Grant a client access, or renew its certificate or password. A running broker applies it within a second."""
    folder = BrokerFolder(directory)
    if (sub or homeassistant) and role is not Role.VEHICLE:
        raise ConfigError(
            "--sub and --homeassistant are for vehicles; workers and gateways have --processes, and other clients need "
            "neither"
        )
    if password and engine is Engine.NATS:
        raise ConfigError("--password is for Mosquitto; NATS takes certificates")
    login = folder.add(
        role,
        name,
        topics=Topics(root),
        processes=processes,
        subs=(*DEFAULT_SUBS, *(sub or ())),
        homeassistant=homeassistant,
        days=days,
        by_password=password,
    )
    _print_login(folder, role, login, engine)
    if len(folder.certificates(name)) > 1:
        typer.echo(
            f"its earlier certificates stay good until they run out; if a key was lost, remove {name} and add it again"
        )


@app.command()
def remove(directory: Directory, name: Annotated[str, typer.Argument(help="User name of the client.")]) -> None:
    """Remove a client: its rights, its password and its certificates. A running broker applies it within a second."""
    revoked = BrokerFolder(directory).remove(name)
    typer.echo(f"removed {name}; revoked certificates: {revoked}")


@app.command()
def renew(
    directory: Directory,
    name: Annotated[list[str] | None, typer.Argument(help="Clients; `broker` for the broker's own.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Renew all certificates that clients and broker have.")] = False,
    days: Days = DEFAULT_DAYS,
) -> None:
    """Write new certificates. Rights stay, and the earlier certificates stay good until they end."""
    folder = BrokerFolder(directory)
    if every == bool(name):
        raise ConfigError("expected names of clients, or `broker`, or --all")
    with_end = [each for each in entries(folder) if each.end or not each.password]
    names = name or [BROKER, *(each.name for each in with_end if each.name)]
    for path in folder.renew(names, days):
        typer.echo(f"wrote {path} and its key, good for {days} days")
    typer.echo("give each client its new files; a broker that runs takes its own within a second")


@app.command("list")
def list_clients(directory: Directory) -> None:
    """List the clients, their roles, and when their certificates end."""
    now = datetime.now(UTC)
    found = entries(BrokerFolder(directory))
    width = max(len(each.name) for each in found)
    for each in found:
        ends = [f"certificate until {each.end:%Y-%m-%d}"] if each.end else []
        typer.echo(f"{each.role:10} {each.name:{width}}  {', '.join([*ends, *['password'] * each.password]) or '-'}")
    for warning in filter(None, (each.warning(now) for each in found)):
        typer.echo(f"warning: {warning}", err=True)


@app.command()
@with_connection
def check(
    connection: ConnectionOptions,
    group: Annotated[str, typer.Option(help="Group of workers that an attacker would try to join.")] = "workers",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object in place of lines.")] = False,
) -> None:
    """Try with a vehicle's login what access rules should refuse, and what mqinfer needs of a broker.

    Exit with 1 if anything works that should be refused, or if the broker lacks something. The name (--name) may not
    be that of a running process.

    With TLS it also reports a certificate that Python 3.13 and later will refuse.

    On a broker in use the workers' group is tried with a few requests; those of others that it takes are sent again.
    """
    from mqinfer.client.connection import default_name

    where = resolve(connection.address())
    chosen = check_name("client", connection.name or default_name(where))
    findings = [enter_without_login(where)]
    if where.tls:
        findings.append(check_certificate(where))
    with closing(make_link(where, client_id=make_client_id(chosen))) as link:
        link.open()
        findings += Checker(link, Topics(connection.root), chosen, check_name("worker group", group)).run()
    abilities = Abilities(where, Topics(connection.root), chosen).run()
    is_bad = any(each.result.worked for each in findings) or any(each.holds is False for each in abilities)
    if as_json:
        found = {
            "findings": [
                {"attempt": each.attempt, "worked": each.result.worked, "words": each.result.words} for each in findings
            ],
            "abilities": [each._asdict() for each in abilities],
        }
        typer.echo(json.dumps(found, indent=2))
    else:
        _print_check(findings, abilities)
    if is_bad:
        raise typer.Exit(ExitCode.FAILED)


@dataclass(frozen=True, slots=True)
class BridgeLogins:
    """What a bridge logs in with at its two brokers; each field is an option."""

    ca_file: Annotated[Path | None, typer.Option(help="PEM file of the CA of the site's broker.")] = None
    cert_file: Annotated[Path | None, typer.Option(help="PEM file of the certificate for the site's broker.")] = None
    key_file: Annotated[Path | None, typer.Option(help="PEM file of its private key.")] = None
    password_file: Annotated[Path | None, typer.Option(help="File with the password of the user in NEAR.")] = None
    far_ca_file: Annotated[Path | None, typer.Option(help="PEM file of the CA of the far broker.")] = None
    far_cert_file: Annotated[Path | None, typer.Option(help="PEM file of the certificate for the far broker.")] = None
    far_key_file: Annotated[Path | None, typer.Option(help="PEM file of its private key.")] = None
    far_password_file: Annotated[Path | None, typer.Option(help="File with the password of the user in FAR.")] = None

    def make_link(self, end: str, url: str, site: str) -> MakeLink:
        """Return what makes links to one end: `` for the near one, `far_` for the other.

        Raises:
            ConfigError: The URL or the combination of files is wrong.
        """
        files = {each: getattr(self, end + each) for each in ("ca_file", "cert_file", "key_file", "password_file")}
        where = resolve(BrokerAddress.parse(url, **files))

        def make(will: Message | None, on_connection: ConnectionHandler) -> Link:
            return make_link(where, client_id=make_client_id(f"bridge-{site}"), will=will, on_connection=on_connection)

        return make


@app.command()
@with_log_options
@with_group("logins", BridgeLogins)
def bridge(
    near: Annotated[str, typer.Argument(help="URL of the site's broker, where the clients are.")],
    far: Annotated[str, typer.Argument(help="URL of the broker where the workers are.")],
    site: Annotated[str, typer.Option(help="Name of the site, unique at the far broker; its bridges share it.")],
    logins: BridgeLogins,
    group: Annotated[str, typer.Option(help="Group of the workers at the site's broker.")] = "workers",
    metrics_port: MetricsPort = None,
    metrics_bind: MetricsBind = LOOPBACK,
    root: Root = "mqinfer/v1",
) -> None:
    """Carry requests of a site to workers at another broker, and their replies and states back, until Ctrl-C."""
    from mqinfer.broker.bridge import Bridge

    check_name("site", site)
    ends = logins.make_link("", near, site), logins.make_link("far_", far, site)
    with until_signal(lambda: "the site's broker publishes the wills of the far workers") as stop:
        carrier = Bridge(*ends, site, Topics(root), group=check_name("worker group", group), on_end=stop.set)
        with carrier, serving_metrics(partial(add_bridge, carrier), metrics_port, metrics_bind):
            typer.echo(f"bridge of {site} ready", err=True)
            stop.wait()
            if carrier.failure is not None:
                raise carrier.failure
    typer.echo(json.dumps(carrier.counters()), err=True)


def add_bridge(bridge: Bridge, samples: Samples) -> None:
    """Add what became of the messages of a bridge, for Prometheus."""
    samples.gauge("bridge_workers", "Far workers that the site's clients reach.", bridge.workers)
    for direction, counters in bridge.counters().items():
        for outcome, count in counters.items():
            text = "Messages of a bridge, carried or dropped."
            samples.count("bridge_messages", text, count, direction=direction, outcome=outcome)


def _print_check(findings: Sequence[Finding], abilities: Sequence[Ability]) -> None:
    for finding in findings:
        mark = {True: "PROBLEM", False: "ok", None: "unknown"}[finding.result.worked]
        typer.echo(f"{mark:8} {finding.attempt}: {finding.result.words}")
    for ability in abilities:
        mark = {True: "ok", False: "LACKING", None: "unknown"}[ability.holds]
        lost = f"; lost: {ability.lost}" if ability.holds is False else ""
        typer.echo(f"{mark:8} {ability.what}: {printable(ability.words)}{lost}")
    for advice in dict.fromkeys(finding.advice for finding in findings if finding.result.worked):
        typer.echo(f"to do: {advice}", err=True)


def _role_and_name(text: str) -> tuple[Role, str]:
    role, colon, name = text.partition(":")
    if not colon or role not in set(Role):
        raise ConfigError(f"--client {text!r}: expected ROLE:NAME, with a role of {', '.join(Role)}")
    return Role(role), name


def _print_login(folder: BrokerFolder, role: Role, login: Login, engine: Engine) -> None:
    """Print the options with which a client connects, none of them a secret but the workers' group."""
    user = f"{login.name}@" if login.password_file else ""
    ports = folder.ports()
    port = (login.password_file and (ports.passwords or ports.websockets)) or ports.certificates
    host = folder.host()
    scheme, port = ("tls", 4222) if engine is Engine.NATS else ("mqtts", port)
    address = f"{scheme}://{user}{f'[{host}]' if ':' in host else host}:{port}"
    typer.echo(f"{role} {login.name} ({login.password_file or login.cert_file}) connects with")
    typer.echo(f"  {shlex.join(_login_options(folder, role, login, address))}")


def _login_options(folder: BrokerFolder, role: Role, login: Login, address: str) -> list[str]:
    options = ["--ca-file", str(login.ca_file), *_proof(login)]
    if role is Role.SITE:  # the second broker of `mqinfer broker bridge NEAR FAR`
        return [address, *(f"--far-{each[2:]}" if each.startswith("--") else each for each in options)]
    if role in {Role.WORKER, Role.BRIDGE}:
        options += ["--group", folder.group()]
    return [address, *options] if role is Role.BRIDGE else ["--broker", address, *options]


def _proof(login: Login) -> list[str]:
    """Return the options that prove who a client is: certificate and key, or its password."""
    options = []
    if login.cert_file and login.key_file:
        options += ["--cert-file", str(login.cert_file), "--key-file", str(login.key_file)]
    if login.password_file:
        options += ["--password-file", str(login.password_file)]
    return options


def _show(line: str) -> None:
    """Print a line of Mosquitto's log; a client's id in it may hold anything."""
    typer.echo(printable(line.rstrip("\n")), err=True)


def _run(broker: AbstractContextManager[MosquittoServer], folder: BrokerFolder | None = None) -> None:
    servers: list[MosquittoServer] = []
    with until_signal(partial(_kill, servers)) as stop, broker as server:
        servers.append(server)
        if folder is not None:
            typer.echo(f"listening on {_places(folder, server.port)}")
        typer.echo(f"broker ready at {server.url}")
        ended: list[int] = []
        threading.Thread(target=_watch, args=(server, ended, stop), name="mqinfer-broker-watch", daemon=True).start()
        if folder is None:
            stop.wait()
        else:
            keep_current(server, folder, stop)
        if any(ended):  # status 0 is a requested end, such as a Ctrl-C that reaches the whole process group
            raise BrokerUnreachable(f"Mosquitto ended with status {ended[0]}; its log:\n{server.log().strip()}")


def _check_engine(engine: Engine, nodes: int, websockets_port: int | None) -> None:
    if engine is Engine.NATS and websockets_port is not None:
        raise ConfigError("--websockets-port is Mosquitto's: browsers and MQTT clients can't use NATS")
    if engine is not Engine.NATS and nodes != 1:
        raise ConfigError("--nodes is for --engine nats; Mosquitto has standbys (docs/reference/faults.md)")


def _run_mosquitto(place: _Place, folder: BrokerFolder | None, on_line: Callable[[str], None] | None) -> None:
    if folder is not None:
        _run(guarded(folder, place.port, on_line), folder)
        return

    def configuration(chosen: int) -> str:
        return render(chosen, websockets_port=place.websockets_port, bind=place.bind)

    server = MosquittoServer(place.port_or(1883), bind=place.bind, configuration=configuration, on_line=on_line)
    _run(guarded_open(server))


def _run_nats(place: _Place, folder: BrokerFolder | None, on_line: Callable[[str], None] | None) -> None:
    servers: list[NatsServers] = []
    port = place.port_or(4222)
    made: AbstractContextManager[NatsServers] = (
        NatsServers(port, nodes=place.nodes, bind=place.bind, on_line=on_line)
        if folder is None
        else secured(folder, port, place.nodes, on_line)
    )
    with until_signal(partial(_kill, servers)) as stop, made as running:
        servers.append(running)
        typer.echo(f"broker ready at {running.url}")
        if status := keep_running(running, stop):
            raise BrokerUnreachable(f"nats-server ended with status {status}; its log:\n{running.log().strip()}")


def _kill(servers: Sequence[MosquittoServer | NatsServers]) -> str:
    for server in servers:
        server.kill_at_once()
    return "the broker was killed"


def _places(folder: BrokerFolder, certificates: int) -> str:
    """Return where the broker of a folder listens, on a port for certificates that may be another than the folder's."""
    text = with_port(folder.configuration(), certificates)
    return ", ".join(f"{each.bind or 'every address'} port {each.port} ({each.kind})" for each in listeners_of(text))


def _watch(server: MosquittoServer, ended: list[int], stop: threading.Event) -> None:
    ended.append(server.wait())
    stop.set()

"""`mqinfer models`: manages the models of running servers; builds, optimises and profiles models in a repository."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from msgspec import Struct

from mqinfer.cli.models.optimize import optimize
from mqinfer.cli.models.profile import profile
from mqinfer.cli.options import AsJson, ConnectionOptions, with_connection, with_group, with_log_options
from mqinfer.client import Client
from mqinfer.client.control import ControlClient, ControlReply, TrafficOrder, check_replies
from mqinfer.client.control.merging import merge_index
from mqinfer.logs import printable
from mqinfer.models.repository import publishing, shared
from mqinfer.protocol.card import card_to_json
from mqinfer.protocol.control import Call, Operation
from mqinfer.protocol.topics import instead_of

Model = Annotated[str, typer.Argument(help="Name of the model.")]
Worker = Annotated[str, typer.Argument(help="A server (its `mqinfer worker --name`), or one process, such as gpu-1.0.")]
Address = Annotated[str, typer.Argument(help="Shared repository: s3://, gs://, az://, https:// or file://.")]
Directory = Annotated[Path, typer.Argument(help="Model repository: a folder of MODEL/VERSION/FILE.")]
Timeout = Annotated[float, typer.Option(help="Seconds to wait for the replies.", min=0.001, max=1e6)]


class _Loaded(Struct):
    versions: list[str]


class _Ready(Struct):
    ready: bool


class _Shadow(Struct):
    share: int


class _Directed(Struct):
    labels: dict[str, str]
    traffic: dict[str, int]
    watch: bool = False
    shadow: _Shadow | None = None


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Which servers are asked, how long their replies are waited for, and how these are printed."""

    server: Annotated[
        str | None, typer.Option(help="Server to address (its `mqinfer worker --name`); all by default.")
    ] = None
    as_json: AsJson = False
    timeout: Timeout = 10

    def ask(self, connection: ConnectionOptions, call: Call) -> list[ControlReply]:
        """Return the servers' replies to a call."""
        with _control(connection) as control:
            return check_replies(control.ask(call, server=self.server, timeout=self.timeout))

    def print(self, replies: Sequence[ControlReply], describe: Callable[[ControlReply], str]) -> None:
        """Print the replies as JSON, or a line of each."""
        if self.as_json:
            _print_json([reply.content for reply in replies])
            return
        for reply in replies:
            typer.echo(printable(f"{reply.server}: {describe(reply)}"))


app = typer.Typer(no_args_is_help=True)
app.command()(with_log_options(optimize))
app.command()(with_log_options(profile))


@app.command()
@with_connection
@with_group("asked", ServerOptions, timeout=300)
def load(connection: ConnectionOptions, asked: ServerOptions, model: Model) -> None:
    """Load a model, or reload a changed one. New processes serve before the old ones stop."""
    with _control(connection) as control:
        replies = control.load(model, server=asked.server, timeout=asked.timeout)
    asked.print(replies, lambda reply: f"loaded {model} version {', '.join(reply.read(_Loaded).versions)}")


@app.command()
@with_connection
@with_group("asked", ServerOptions, timeout=60)
def unload(connection: ConnectionOptions, asked: ServerOptions, model: Model) -> None:
    """Unload a model. Its processes answer the requests they have accepted, then exit."""
    with _control(connection) as control:
        replies = control.unload(model, server=asked.server, timeout=asked.timeout)
    asked.print(replies, lambda _: f"unloaded {model}")


@app.command()
@with_connection
@with_group("asked", ServerOptions, timeout=300)
def traffic(
    connection: ConnectionOptions,
    asked: ServerOptions,
    model: Model,
    stable: Annotated[int | None, typer.Option(help="Version for requests that name none.", min=0)] = None,
    canary: Annotated[int | None, typer.Option(help="Version that gets --share of these requests.", min=0)] = None,
    share: Annotated[
        int | None, typer.Option(help="Share of these requests for the canary, in per cent.", min=0, max=100)
    ] = None,
    watch: Annotated[
        bool | None, typer.Option(help="Take the canary back when it fails or is slow more often than the stable one.")
    ] = None,
    shadow: Annotated[
        int | None, typer.Option(help="Version that gets copies of these requests; nobody gets its answers.", min=0)
    ] = None,
    shadow_share: Annotated[
        int | None, typer.Option(help="Share of them to copy for the shadow, in per cent; 0 ends it.", min=0, max=100)
    ] = None,
    tolerance: Annotated[
        float | None, typer.Option(help="By how much an answer of the shadow may differ.", min=0, max=1)
    ] = None,
) -> None:
    """Set which version is stable, the canary or the shadow, and their shares; without options print them.

    Labelled versions are served whatever the version policy selects. Each server keeps this in MODEL/traffic.toml.
    """
    stated: dict[str, float | None] = {"stable": stable, "canary": canary, "share": share, "watch": watch}
    stated |= {"shadow": shadow, "shadow_share": shadow_share, "tolerance": tolerance}
    given: TrafficOrder = {key: each for key, each in stated.items() if each is not None}  # type: ignore[assignment] # the keys are its own
    if not given:
        with Client(connection.address(), name=connection.name, root=connection.root) as client:
            card = client.card(model, asked.timeout)
        labels, shares = card.parameters.labels, card.parameters.traffic
        if asked.as_json:
            _print_json({"labels": labels, "traffic": shares, "version": card.version})
        else:
            typer.echo(printable(_traffic(model, labels, shares) if labels else f"{model}: version {card.version}"))
        return
    with _control(connection) as control:
        replies = control.traffic(model, server=asked.server, timeout=asked.timeout, **given)
    asked.print(replies, partial(_traffic_of, model))


@app.command()
@with_connection
@with_group("asked", ServerOptions, timeout=300)
def rollback(connection: ConnectionOptions, asked: ServerOptions, model: Model) -> None:
    """Remove a model's canary; without one, make the previous stable version the default again."""
    with _control(connection) as control:
        replies = control.rollback(model, server=asked.server, timeout=asked.timeout)
    asked.print(replies, partial(_traffic_of, model))


def _traffic_of(model: str, reply: ControlReply) -> str:
    found = reply.read(_Directed)
    watched = ", watched" if found.watch else ""
    copied = f"; the shadow gets copies of {found.shadow.share} %" if found.shadow else ""
    return _traffic(model, found.labels, found.traffic) + watched + copied


def _traffic(model: str, labels: Mapping[str, str], shares: Mapping[str, int]) -> str:
    listed = [f"{label} {version} ({shares.get(version, 0)} %)" for label, version in labels.items()]
    alone = [f"{label} {version}" for label, version in labels.items()]
    return f"{model}: {', '.join(listed if shares else alone)}"


@app.command()
@with_connection
def drain(
    connection: ConnectionOptions,
    worker: Worker,
    timeout: Annotated[
        float, typer.Option(help="Seconds to wait; the worker keeps draining after that.", min=0.001, max=1e6)
    ] = 60,
) -> None:
    """Stop a worker from accepting requests, and wait until it has answered those that it has: before an upgrade.

    It stays connected, and `undrain` makes it serve again. A process that is started anew serves.
    """
    with _control(connection) as control:
        names = control.drain(worker, timeout=timeout)
    typer.echo(printable(f"drained {', '.join(names)}"))


@app.command()
@with_connection
def undrain(connection: ConnectionOptions, worker: Worker, timeout: Timeout = 10) -> None:
    """Make a drained worker serve again."""
    with _control(connection) as control:
        names = control.drain(worker, on=False, timeout=timeout)
    typer.echo(printable(f"serves again: {', '.join(names)}"))


@app.command()
@with_connection
@with_group("asked", ServerOptions)
def ready(
    connection: ConnectionOptions,
    asked: ServerOptions,
    model: Model,
    version: Annotated[str | None, typer.Option(help="Version of the model.")] = None,
) -> None:
    """Print whether a model is ready on each server. Exit code 1 if it is ready on none."""
    replies = asked.ask(connection, Call(Operation.MODEL_READY, model, version))
    asked.print(replies, lambda reply: "ready" if reply.read(_Ready).ready else "not ready")
    if not any(reply.read(_Ready).ready for reply in replies):
        known = {entry.name for entry in merge_index(asked.ask(connection, Call(Operation.INDEX)))}
        if model not in known:
            typer.echo(f"no repository has a model {model!r}; models there: {instead_of(model, known)}", err=True)
        raise typer.Exit(1)


@app.command()
@with_connection
def card(
    connection: ConnectionOptions,
    model: Model,
    timeout: Annotated[
        float | None,
        typer.Option(
            help="Seconds to wait for the card; 5 by default, fewer if the name is mistyped.", min=0.001, max=1e6
        ),
    ] = None,
) -> None:
    """Print a model's card as JSON: inputs, outputs, image format, classes, hash, engine and device."""
    with Client(connection.address(), name=connection.name, root=connection.root) as client:
        _print_json(json.loads(card_to_json(client.card(model, timeout))))


@app.command()
@with_log_options
def build(
    directory: Directory = Path("models"),
    model: Annotated[list[str] | None, typer.Option(help="Model to build; may be repeated. All by default.")] = None,
    listing: Annotated[bool, typer.Option("--list", help="List the models that can be built, and build none.")] = False,
    train: Annotated[
        bool,
        typer.Option(
            "--train", help="Train the drive models here, which takes minutes, instead of copying trained weights."
        ),
    ] = False,
) -> None:
    """Build the model zoo into a repository. Models already there stay as they are."""
    from mqinfer.lab import zoo
    from mqinfer.lab.drives.lessons import lesson_drive, lessons_key
    from mqinfer.lab.drives.synthetic import CLASSES

    if listing:
        for name, purpose in zoo.catalogue().items():
            typer.echo(f"{name:40} {purpose}")
        return
    lessons = zoo.Lessons(lesson_drive, CLASSES, lessons_key())
    for built in zoo.build(directory, model, lessons=lessons, again=train, progress=typer.echo):
        typer.echo(f"{built.path}")


@app.command()
@with_log_options
def push(
    folder: Annotated[Path, typer.Argument(help="A model's folder in a repository: REPOSITORY/MODEL.")],
    url: Address,
) -> None:
    """Upload the versions of a model that a shared repository lacks; workers get one when all of it is there."""
    names = publishing.push(folder, url)
    typer.echo(f"pushed {len(names)} files of {folder.resolve().name} to {url}" if names else "all of it is there")


@app.command()
@with_log_options
def pull(
    url: Address,
    directory: Directory = Path("models"),
    model: Annotated[list[str] | None, typer.Option(help="Model to pull; may be repeated. All by default.")] = None,
) -> None:
    """Download models of a shared repository into a folder; versions that are only there stay."""
    shared.pull(url, directory, model or ())
    typer.echo(f"{directory} has what {url} has")


@app.command()
@with_log_options
def withdraw(
    url: Address,
    model: Annotated[str, typer.Argument(help="Name of the model.")],
    version: Annotated[int, typer.Argument(help="Number of the version.")],
) -> None:
    """Take a version out of a shared repository; workers that look there stop serving it."""
    publishing.withdraw(url, model, version)
    typer.echo(f"{url} has version {version} of {model} no more")


def _control(connection: ConnectionOptions) -> ControlClient:
    return ControlClient(connection.address(), name=connection.name, root=connection.root)


def _print_json(content: Any) -> None:
    typer.echo(json.dumps(content, indent=2))

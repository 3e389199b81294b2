"""`mqinfer models`: manages the models of running servers; builds, optimises and profiles models in a repository."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from mqinfer.broker.address import BrokerAddress
from mqinfer.cli.models.optimize import optimize
from mqinfer.cli.models.profile import profile
from mqinfer.cli.options import Broker, CaFile, CertFile, KeyFile, Name, PasswordFile, Root, address, with_log_options
from mqinfer.cli.status import print_table
from mqinfer.client import Client
from mqinfer.client.control import ControlClient, ControlReply, check_replies
from mqinfer.protocol.card import card_to_json
from mqinfer.protocol.control import Call, Operation

__all__ = ["app"]

Server = Annotated[str | None, typer.Option(help="Server to address (its `mqinfer worker --name`); all by default.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Model = Annotated[str, typer.Argument(help="Name of the model.")]
Timeout = Annotated[float, typer.Option(help="Seconds to wait for the replies.", min=0.001, max=1e6)]

_STAGES = ("queue", "compute_input", "compute_infer", "compute_output")


app = typer.Typer(
    help="Manage the models of running servers; build, optimise and profile models.", no_args_is_help=True
)
app.command()(with_log_options(optimize))
app.command()(with_log_options(profile))


@app.command("list")
@with_log_options
def list_models(
    broker: Broker = "mqtt://127.0.0.1:1883",
    server: Server = None,
    as_json: AsJson = False,
    timeout: Timeout = 10,
    name: Name = None,
    root: Root = "mqinfer/v1",
    ca_file: CaFile = None,
    cert_file: CertFile = None,
    key_file: KeyFile = None,
    password_file: PasswordFile = None,
) -> None:
    """List the models in the servers' repositories and their states."""
    where = address(broker, ca_file, cert_file, key_file, password_file)
    replies = check_replies(_ask(where, name, root, Call(Operation.INDEX), server, timeout))
    entries = [entry for reply in replies for entry in reply.content]
    if as_json:
        _print_json(entries)
        return
    print_table(
        ("server", "model", "version", "state", "reason"),
        [(e["server"], e["name"], e["version"], e["state"], e["reason"]) for e in entries],
    )


@app.command()
@with_log_options
def load(
    model: Model,
    broker: Broker = "mqtt://127.0.0.1:1883",
    server: Server = None,
    as_json: AsJson = False,
    timeout: Timeout = 300,
    name: Name = None,
    root: Root = "mqinfer/v1",
    ca_file: CaFile = None,
    cert_file: CertFile = None,
    key_file: KeyFile = None,
    password_file: PasswordFile = None,
) -> None:
    """Load a model, or reload a changed one. New processes serve before the old ones stop."""
    where = address(broker, ca_file, cert_file, key_file, password_file)
    with ControlClient(where, name=name, root=root) as control:
        replies = control.load(model, server=server, timeout=timeout)
    _print_replies(replies, as_json, lambda reply: f"loaded {model} version {', '.join(reply.content['versions'])}")


@app.command()
@with_log_options
def unload(
    model: Model,
    broker: Broker = "mqtt://127.0.0.1:1883",
    server: Server = None,
    as_json: AsJson = False,
    timeout: Timeout = 60,
    name: Name = None,
    root: Root = "mqinfer/v1",
    ca_file: CaFile = None,
    cert_file: CertFile = None,
    key_file: KeyFile = None,
    password_file: PasswordFile = None,
) -> None:
    """Unload a model. Its processes answer the requests they have accepted, then exit."""
    where = address(broker, ca_file, cert_file, key_file, password_file)
    with ControlClient(where, name=name, root=root) as control:
        replies = control.unload(model, server=server, timeout=timeout)
    _print_replies(replies, as_json, lambda _: f"unloaded {model}")


@app.command()
@with_log_options
def ready(
    model: Model,
    broker: Broker = "mqtt://127.0.0.1:1883",
    version: Annotated[str | None, typer.Option(help="Version of the model.")] = None,
    server: Server = None,
    as_json: AsJson = False,
    timeout: Timeout = 10,
    name: Name = None,
    root: Root = "mqinfer/v1",
    ca_file: CaFile = None,
    cert_file: CertFile = None,
    key_file: KeyFile = None,
    password_file: PasswordFile = None,
) -> None:
    """Print whether a model is ready on each server. Exit code 1 if it is ready on none."""
    where = address(broker, ca_file, cert_file, key_file, password_file)
    replies = check_replies(_ask(where, name, root, Call(Operation.MODEL_READY, model, version), server, timeout))
    _print_replies(replies, as_json, lambda reply: "ready" if reply.content["ready"] else "not ready")
    if not any(reply.content["ready"] for reply in replies):
        raise typer.Exit(1)


@app.command()
@with_log_options
def stats(
    model: Annotated[str, typer.Argument(help="Name of the model; all by default.")] = "",
    broker: Broker = "mqtt://127.0.0.1:1883",
    server: Server = None,
    as_json: AsJson = False,
    timeout: Timeout = 10,
    name: Name = None,
    root: Root = "mqinfer/v1",
    ca_file: CaFile = None,
    cert_file: CertFile = None,
    key_file: KeyFile = None,
    password_file: PasswordFile = None,
) -> None:
    """Show request counts, runs and the mean time of each stage, by model."""
    where = address(broker, ca_file, cert_file, key_file, password_file)
    call = Call(Operation.STATS, model) if model else Call(Operation.ALL_STATS)
    replies = check_replies(_ask(where, name, root, call, server, timeout))
    if as_json:
        _print_json([reply.content for reply in replies])
        return
    columns = ("server", "model", "version", "ok", "failed", "rows", "runs")
    print_table(
        (*columns, *(f"{stage.removeprefix('compute_')} ms" for stage in _STAGES), "MiB"),
        [_figures(reply.server, entry) for reply in replies for entry in reply.content["model_stats"]],
    )


@app.command()
@with_log_options
def card(
    model: Model,
    broker: Broker = "mqtt://127.0.0.1:1883",
    timeout: Timeout = 5,
    name: Name = None,
    root: Root = "mqinfer/v1",
    ca_file: CaFile = None,
    cert_file: CertFile = None,
    key_file: KeyFile = None,
    password_file: PasswordFile = None,
) -> None:
    """Print a model's card as JSON: inputs, outputs, image format, classes, hash, engine and device."""
    with Client(address(broker, ca_file, cert_file, key_file, password_file), name=name, root=root) as client:
        _print_json(json.loads(card_to_json(client.card(model, timeout))))


@app.command()
@with_log_options
def build(
    directory: Annotated[Path, typer.Argument(help="Model repository: a folder of MODEL/VERSION/FILE.")] = Path(
        "models"
    ),
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


def _ask(
    where: BrokerAddress, name: str | None, root: str, call: Call, server: str | None, timeout: float
) -> list[ControlReply]:
    with ControlClient(where, name=name, root=root) as control:
        return control.ask(call, server=server, timeout=timeout)


def _print_replies(replies: Sequence[ControlReply], as_json: bool, describe: Callable[[ControlReply], str]) -> None:
    if as_json:
        _print_json([reply.content for reply in replies])
        return
    for reply in replies:
        typer.echo(f"{reply.server}: {describe(reply)}")


def _print_json(content: Any) -> None:
    typer.echo(json.dumps(content, indent=2))


def _figures(server: str, entry: dict[str, Any]) -> tuple[str, ...]:
    stages = entry["inference_stats"]
    memory = sum(part["byte_size"] for part in entry["memory_usage"]) / 2**20
    counts = (stages["success"]["count"], stages["fail"]["count"], entry["inference_count"], entry["execution_count"])
    return (
        server,
        entry["name"],
        entry["version"],
        *map(str, counts),
        *(_mean_ms(stages[stage]) for stage in _STAGES),
        f"{memory:.0f}",
    )


def _mean_ms(duration: dict[str, int]) -> str:
    return f"{duration['ns'] / duration['count'] / 1e6:.3f}" if duration["count"] else "-"

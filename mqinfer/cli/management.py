"""`mqinfer models list|load|unload|ready|stats|card`: manages servers through the broker."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from mqinfer.broker.address import BrokerAddress
from mqinfer.cli.options import Broker, CaFile, CertFile, KeyFile, Name, Root, address
from mqinfer.client import Client
from mqinfer.client.control import ControlClient, ControlReply, check_replies
from mqinfer.protocol.card import card_to_json
from mqinfer.protocol.control import Call, ModelState, Operation

__all__ = ["add_to"]

Server = Annotated[str | None, typer.Option(help="Name of the server (mqinfer worker --name); all by default.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Model = Annotated[str, typer.Argument(help="Name of the model.")]
Timeout = Annotated[float, typer.Option(help="Seconds to wait.", min=0.001, max=1e6)]

_COLOURS = {ModelState.READY: "green", ModelState.UNAVAILABLE: "red"}
_STAGES = ("queue", "compute_input", "compute_infer", "compute_output")


def add_to(app: typer.Typer) -> None:
    """Add the subcommands."""
    for name, command in (("list", list_models), ("load", load), ("unload", unload), ("ready", ready)):
        app.command(name)(command)
    app.command("stats")(stats)
    app.command("card")(card)


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
) -> None:
    """List the models in the servers' repositories, and their states."""
    where = address(broker, ca_file, cert_file, key_file)
    replies = check_replies(_ask(where, name, root, Call(Operation.INDEX), server, timeout))
    entries = [entry for reply in replies for entry in reply.content]
    if as_json:
        _print_json(entries)
        return
    _print_table(
        ("server", "model", "version", "state", "reason"),
        [(e["server"], e["name"], e["version"], _coloured(e["state"]), e["reason"]) for e in entries],
    )


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
) -> None:
    """Load a model, or swap in what has changed of it: the new serves before the old goes."""
    where = address(broker, ca_file, cert_file, key_file)
    with ControlClient(where, name=name, root=root) as control:
        replies = control.load(model, server=server, timeout=timeout)
    _say(replies, as_json, lambda reply: f"loaded {model} version {', '.join(reply.content['versions'])}")


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
) -> None:
    """Unload a model: it finishes what it has in hand, and its processes end."""
    where = address(broker, ca_file, cert_file, key_file)
    with ControlClient(where, name=name, root=root) as control:
        replies = control.unload(model, server=server, timeout=timeout)
    _say(replies, as_json, lambda _: f"unloaded {model}")


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
) -> None:
    """Say whether a model is ready; exit code 1 where no server has it so."""
    where = address(broker, ca_file, cert_file, key_file)
    replies = check_replies(_ask(where, name, root, Call(Operation.MODEL_READY, model, version), server, timeout))
    _say(replies, as_json, lambda reply: "ready" if reply.content["ready"] else "not ready")
    if not any(reply.content["ready"] for reply in replies):
        raise typer.Exit(1)


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
) -> None:
    """Show what models have done: requests, runs, and the mean time of each stage."""
    where = address(broker, ca_file, cert_file, key_file)
    call = Call(Operation.STATS, model) if model else Call(Operation.ALL_STATS)
    replies = check_replies(_ask(where, name, root, call, server, timeout))
    if as_json:
        _print_json([reply.content for reply in replies])
        return
    heads = ("server", "model", "version", "ok", "failed", "rows", "runs")
    _print_table(
        (*heads, *(f"{stage.removeprefix('compute_')} ms" for stage in _STAGES), "MiB"),
        [_figures(reply.server, entry) for reply in replies for entry in reply.content["model_stats"]],
    )


def card(
    model: Model,
    broker: Broker = "mqtt://127.0.0.1:1883",
    timeout: Timeout = 5,
    name: Name = None,
    root: Root = "mqinfer/v1",
    ca_file: CaFile = None,
    cert_file: CertFile = None,
    key_file: KeyFile = None,
) -> None:
    """Print a model's card: inputs, outputs, image contract, classes, hash, engine and device."""
    with Client(address(broker, ca_file, cert_file, key_file), name=name, root=root) as client:
        _print_json(json.loads(card_to_json(client.card(model, timeout))))


def _ask(
    where: BrokerAddress, name: str | None, root: str, call: Call, server: str | None, timeout: float
) -> list[ControlReply]:
    with ControlClient(where, name=name, root=root) as control:
        return control.ask(call, server=server, timeout=timeout)


def _say(replies: Sequence[ControlReply], as_json: bool, words: Any) -> None:
    if as_json:
        _print_json([reply.content for reply in replies])
        return
    for reply in replies:
        typer.echo(f"{reply.server}: {words(reply)}")


def _print_json(content: Any) -> None:
    typer.echo(json.dumps(content, indent=2))


def _print_table(heads: Iterable[str], rows: Iterable[Sequence[str]]) -> None:
    table = Table(*heads, box=None, header_style="bold", pad_edge=False)
    for row in rows:
        table.add_row(*row)
    Console().print(table, soft_wrap=True)


def _coloured(state: str) -> str:
    colour = _COLOURS.get(ModelState(state), "yellow") if state in set(ModelState) else "yellow"
    return f"[{colour}]{state}[/]"


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

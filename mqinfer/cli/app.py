"""The `mqinfer` command: its subcommands and its handling of errors."""

from __future__ import annotations

import platform
import sys
from typing import Annotated

import typer

from mqinfer._version import __version__
from mqinfer.cli import bag, bench, broker, cascade, demo, infer, models, worker
from mqinfer.cli.edge import compare, replay
from mqinfer.cli.exit_codes import EXIT_CODES, exit_code, print_error
from mqinfer.cli.options import with_log_options
from mqinfer.cli.settings import SOURCES, FirstConfigFile, SourcedGroup
from mqinfer.cli.watching import lag, status, top, watch
from mqinfer.cli.web import dashboard, gateway
from mqinfer.logs import LogSettings, set_up
from mqinfer.protocol.errors import MqinferError

_END = f"{SOURCES}\n\n{EXIT_CODES}"
"""The last lines of each help."""

app = typer.Typer(
    name="mqinfer",
    cls=SourcedGroup,
    help="Inference over MQTT: edge agents send frames, cloud workers reply, each request has exactly one outcome.",
    epilog=_END,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode=None,  # markup would remove the brackets in mqtt://[user:password@]host
)
for each in (
    with_log_options(demo.demo),
    worker.worker,
    replay.replay,
    replay.edge,
    compare.compare,
    infer.infer,
    gateway.gateway,
    dashboard.dashboard,
    status.status,
    top.top,
    lag.lag,
    watch.watch,
):
    app.command()(each)
app.add_typer(broker.app, name="broker")
app.add_typer(models.app, name="models")
app.add_typer(bag.app, name="bag")
app.add_typer(bench.app, name="bench")
app.add_typer(cascade.app, name="cascade")


def _end_help(group: typer.Typer) -> None:
    for command in group.registered_commands:
        command.epilog = _END
    for subgroup in group.registered_groups:
        subgroup.epilog = _END
        if subgroup.typer_instance is not None:
            _end_help(subgroup.typer_instance)


_end_help(app)


@app.callback(invoke_without_command=True)
def _options(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
    config_file: FirstConfigFile = None,  # noqa: ARG001 - click has taken what is in it
) -> None:
    if version:
        typer.echo(f"mqinfer {__version__} (Python {platform.python_version()})")
        raise typer.Exit


def main() -> None:
    """Run the command; print an mqinfer error as one message, and exit with its code."""
    set_up(LogSettings())  # for the subcommands that have no options for it
    try:
        app()
    except MqinferError as error:
        print_error(error)
        sys.exit(exit_code(error))

"""The `mqinfer` command: a table of its subcommands, which are imported when they are asked for, and its errors."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from mqinfer._version import __version__
from mqinfer.cli.exit_codes import EXIT_CODES, ExitCode, exit_code, print_error
from mqinfer.cli.settings import SOURCES, FirstConfigFile, SourcedGroup, add_sources, commands_of
from mqinfer.logs import LogSettings, set_up
from mqinfer.protocol.errors import MqinferError

_END = f"{SOURCES}\n\n{EXIT_CODES}"
"""The last lines of each help."""
_GROUPS = {
    "Run": {
        "demo": ("demo", "Replay two synthetic drives to two workers, in about a minute."),
        "worker": ("worker", "Serve the models of a repository."),
        "replay": ("edge.replay", "Send the frames of a recorded drive to a model."),
        "edge": ("edge.replay", "Send the frames of cameras to a model, as a service."),
        "infer": ("infer", "Send one request to a model and print the result."),
    },
    "Watch": {
        "status": ("watching.status", "Show servers, models, workers, streams, drops, once or live."),
        "watch": ("watching.watch", "Show the results of other clients as they come."),
        "support-bundle": ("support", "Write an archive for those who are to help, without secrets."),
        "dashboard": ("web.dashboard", "Serve a page with live pictures, results and workers."),
    },
    "Recordings": {
        "bag": ("bag", "Inspect, repair and create recordings."),
        "collect": ("edge.collect", "Upload the frames that edges keep, and ask them for more."),
    },
    "Models": {
        "models": ("models", "Load, roll out, build, optimise and profile models."),
        "cascade": ("cascade", "Train a small model that answers part of the frames on the edge."),
    },
    "Site": {
        "broker": ("broker", "Start a private Mosquitto, or set one up with TLS and access rules."),
        "gateway": ("web.gateway", "Serve clients of the Open Inference Protocol over HTTP and gRPC."),
    },
    "Measure": {
        "compare": ("edge.compare", "Compare the results of models over a recording."),
        "bench": ("bench", "Measure a model on its site, or batching and encodings here."),
    },
}
"""Module and summary of each subcommand, by the heading that it stands under in the help."""
_MOVED = {
    "top": "status --watch",
    "lag": "status",
    "models list": "status",
    "models stats": "status",
}
"""Subcommands of earlier versions, and what does the same."""
_NO_THREAD = "can't start new thread"
"""How Python reports that the system has no room for one more."""


class _Commands(Mapping[str, Any]):
    """The subcommands by name; the module of each is imported when it is taken."""

    def __init__(self) -> None:
        self._entries = {name: entry for group in _GROUPS.values() for name, entry in group.items()}
        self._loaded: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._loaded:
            module, summary = self._entries[name]
            self._loaded[name] = _load(name, import_module(f"mqinfer.cli.{module}"), summary)
        return self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


def _load(name: str, module: Any, summary: str) -> Any:
    """Return click's command for the subcommand in a module: a function of its name, or a group, `app`."""
    part = typer.Typer(pretty_exceptions_enable=False, rich_markup_mode=None)
    if hasattr(module, "app"):
        part.add_typer(module.app, name=name, help=summary)
    else:
        part.command(name)(getattr(module, name.replace("-", "_")))
    command: Any = typer.main.get_group(part).commands[name]
    for path, each in commands_of(command, (name,)):
        add_sources(path, each)
        each.epilog, each.format_options = _END, partial(_write_options, each)
    return command


def _write_options(command: Any, ctx: typer.Context, formatter: Any) -> None:
    """Write the help of arguments and options, each under the heading of its group; then the subcommands."""
    sections: dict[str, list[Any]] = {"Arguments": [], "Options": []}
    for each in command.get_params(ctx):
        heading = "Arguments" if each.param_type_name == "argument" else getattr(each, "rich_help_panel", None)
        if record := each.get_help_record(ctx):
            sections.setdefault(heading or "Options", []).append(record)
    for heading, records in sections.items():
        if records:
            with formatter.section(heading):
                formatter.write_dl(records)
    if hasattr(command, "commands"):
        command.format_commands(ctx, formatter)


class _Root(SourcedGroup):
    """The command as a whole: its help lists the subcommands under headings, and imports none of them."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = _Commands()  # type: ignore[assignment] # nothing is added to them

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - click's
        """List the names of the subcommands."""
        return list(self.commands)

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """Complete the name of a subcommand by the table, which imports none."""
        whole, names = self.commands, {name: each for group in _GROUPS.values() for name, each in group.items()}
        self.commands = {name: TyperCommand(name, help=summary) for name, (_, summary) in names.items()}
        try:
            return super().shell_complete(ctx, incomplete)
        finally:
            self.commands = whole

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the subcommand that is asked for; say which one does now what an earlier one did."""
        for old, new in _MOVED.items():
            if args[: len(old.split())] == old.split():
                ctx.fail(f"mqinfer {old} is now mqinfer {new}.")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 - click's
        """Write the subcommands, each with its summary."""
        for heading, group in _GROUPS.items():
            with formatter.section(heading):
                formatter.write_dl([(name, summary) for name, (_, summary) in group.items()])


app = typer.Typer(
    name="mqinfer",
    cls=_Root,
    help="Inference over MQTT: edge agents send frames, cloud workers reply, each request has exactly one outcome.",
    epilog=_END,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # markup would remove the brackets in mqtt://[user:password@]host
)


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
    except OSError as error:
        if (path := error.filename2 or error.filename) is None:
            raise
        print_error(MqinferError(f"{path}: {error.strerror}; check the path, its permissions and the room on its disk"))
        sys.exit(ExitCode.FAILED)
    except (ImportError, MemoryError, RuntimeError) as error:
        if not (why := _shortage(error)):
            raise
        print_error(MqinferError(f"{why}; give it more memory or processes (ulimit -v, ulimit -u, or its container's)"))
        os._exit(ExitCode.FAILED)  # threads that did start may wait for one that did not


def _shortage(error: BaseException | None) -> str:
    """Return what an error, or one that was handled meanwhile, says that the system refused; empty if neither does."""
    while error is not None and str(error) != _NO_THREAD:
        if isinstance(error, MemoryError) or "failed to map segment" in str(error):
            return "no memory is left"
        error = error.__context__
    return str(error or "")

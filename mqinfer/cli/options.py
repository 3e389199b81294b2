"""Options that several subcommands share."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import MISSING, dataclass, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_type_hints

import typer

from mqinfer.cli.settings import CONFIG_FILE, ConfigFile
from mqinfer.logs import LogFormat, LogLevel, LogSettings, set_up
from mqinfer.protocol.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from mqinfer.broker.address import BrokerAddress

_Number = TypeVar("_Number", int, float)
_KINDS: Mapping[object, str] = {int: "whole numbers", float: "numbers"}
_EMPTY = inspect.Parameter.empty
"""Default of an option that must be stated."""
_WIDE = 10_000
"""Width of what is no terminal: a table takes as much as its cells need."""

_WORD = re.compile("(?<=[a-z])(?=[A-Z])")
"""Where a word of a group's name begins; the name is the group's heading in the help."""
_LOGGING_OPTIONS = "Logging options"

TakeOver = Annotated[
    bool,
    typer.Option("--take-over", help="End another process of the same name; without it this one is refused."),
]
MetricsPort = Annotated[
    int | None,
    typer.Option(help="Port of the metrics for Prometheus; none by default.", min=0, max=65535),
]
MetricsBind = Annotated[str, typer.Option(help="Address that the metrics are served on.")]
OtlpEndpoint = Annotated[
    str | None,
    typer.Option(help="URL of an OpenTelemetry collector, OTLP over HTTP, for traces; none by default."),
]
TritonMetrics = Annotated[
    bool, typer.Option("--triton-metrics", help="Add the metrics of inference under Triton's names (nv_...), too.")
]
AsJson = Annotated[
    bool,
    typer.Option("--json", help="Print one JSON document; where results come one after another, one a line."),
]
Root = Annotated[str, typer.Option(help="Prefix of all topics.")]
_LogLevel = Annotated[
    LogLevel, typer.Option(rich_help_panel=_LOGGING_OPTIONS, help="Least level of the messages on standard error.")
]
_LogFormat = Annotated[
    LogFormat,
    typer.Option(rich_help_panel=_LOGGING_OPTIONS, help="Format of these messages: json is one object a line."),
]
_Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", rich_help_panel=_LOGGING_OPTIONS, help="Short for --log-level debug.")
]
_FILE: Mapping[str, tuple[Any, Any]] = {CONFIG_FILE: (ConfigFile, None)}
_LOGGING: Mapping[str, tuple[Any, Any]] = {
    "log_level": (_LogLevel, LogLevel.INFO),
    "log_format": (_LogFormat, LogFormat.TEXT),
    "verbose": (_Verbose, False),
}


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """What a command line states about the connection; each field is an option."""

    broker: Annotated[
        str,
        typer.Option(
            help="Broker URL: mqtt://[user@]host[:port][,standby[:port]], mqtts://, ws://, wss://, nats://, tls://. "
            "For the user's password see --password-file.",
        ),
    ] = "mqtt://127.0.0.1:1883"
    name: Annotated[
        str | None,
        typer.Option(
            help="Name in topics, unique on the broker; by default that of the certificate or login, else a random one."
        ),
    ] = None
    root: Root = "mqinfer/v1"
    ca_file: Annotated[Path | None, typer.Option(help="PEM file of the CA that signed the broker's certificate.")] = (
        None
    )
    cert_file: Annotated[Path | None, typer.Option(help="PEM file of this client's certificate.")] = None
    key_file: Annotated[Path | None, typer.Option(help="PEM file of this client's private key.")] = None
    password_file: Annotated[
        Path | None,
        typer.Option(
            help="File with the password of the user in the broker URL; or set MQINFER_PASSWORD. Other users of this "
            "machine can read what is in a URL.",
        ),
    ] = None

    def address(self) -> BrokerAddress:
        """Return the address of the broker.

        Raises:
            ConfigError: The URL or the combination of files is wrong.
        """
        from mqinfer.broker.address import BrokerAddress

        files = {"ca_file": self.ca_file, "cert_file": self.cert_file, "key_file": self.key_file}
        return BrokerAddress.parse(self.broker, **files, password_file=self.password_file)


def with_connection(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of a connection and of logging to a subcommand, which takes the former as `connection`."""
    return with_log_options(with_group("connection", ConnectionOptions)(command))


def with_group(
    parameter: str, group: type[Any], **defaults: object
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that adds the options of a group to a subcommand, which takes them together.

    Args:
        parameter: That of the subcommand that takes the group.
        group: A dataclass; each field is an option, with its annotation, or a group within the group.
        **defaults: What this subcommand has instead of the group's defaults.
    """
    added = {name: (hint, defaults.get(name, default)) for name, (hint, default) in options_of(group).items()}

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        def run(**given: Any) -> None:
            command(**{parameter: make_group(group, {each: given.pop(each) for each in added})}, **given)

        return _with_options(command, run, added, replaced=parameter)

    return decorate


def options_of(group: Any) -> dict[str, tuple[Any, Any]]:
    """Return annotation and default of each option of a group, and of the groups within it."""
    found: dict[str, tuple[Any, Any]] = {}
    hints, heading = _hints(group), _WORD.sub(" ", group.__name__).capitalize()
    for each in fields(group):
        hint, default = hints[each.name], _EMPTY if each.default is MISSING else each.default
        found |= options_of(hint) if is_dataclass(hint) else {each.name: (_under(heading, hint), default)}
    return found


def _under(heading: str, hint: Any) -> Any:
    """Return the annotation of an option that stands under a heading of the help."""
    option = copy(hint.__metadata__[0])
    option.rich_help_panel = heading
    return Annotated[hint.__origin__, option]


def make_group(group: Any, given: Mapping[str, Any]) -> Any:
    """Return a group, and those within it, with these values of options."""
    hints = _hints(group)
    inner = {name: make_group(hint, given) for name, hint in hints.items() if is_dataclass(hint)}
    own = {name: given[name] for name in hints if name in given}
    return group(**own | inner)  # a group may have the name of an option within it


def _hints(group: Any) -> dict[str, Any]:
    """Return the annotations of a group, whose module need not import typer."""
    return get_type_hints(group, localns={"typer": typer}, include_extras=True)


def with_log_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add --log-level, --log-format, -v and --config to a subcommand; logging is set up before it runs.

    One that has a --config of its own keeps that. In each line of the log the process has the name of the subcommand,
    until the subcommand knows a better one.
    """

    def run(**options: Any) -> None:
        level = LogLevel.DEBUG if options.pop("verbose") else options.pop("log_level")
        options.pop("log_level", None)
        options.pop(CONFIG_FILE, None)  # click has taken what is in it
        set_up(LogSettings(level, options.pop("log_format"), command.__name__.replace("_", "-")))
        command(**options)

    has_own = "config" in inspect.signature(command).parameters
    return _with_options(command, run, _LOGGING if has_own else {**_LOGGING, **_FILE})


def _with_options(
    command: Callable[..., None], run: Callable[..., None], added: Mapping[str, tuple[Any, Any]], replaced: str = ""
) -> Callable[..., None]:
    """Return `run` with the name, the help and the options of a command, and further options.

    Args:
        command: The command.
        run: Calls it.
        added: Annotation and default of each further option, by the parameter's name.
        replaced: A parameter of the command that these make up.
    """
    signature = inspect.signature(command, eval_str=True)
    own = [each for each in signature.parameters.values() if each.name != replaced]
    further = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        for name, (annotation, default) in added.items()
    ]
    wrapped = functools.wraps(command)(run)
    wrapped.__signature__ = signature.replace(parameters=[*own, *further])  # type: ignore[attr-defined] # typer reads it
    wrapped.__annotations__ = {each.name: each.annotation for each in (*own, *further)}
    return wrapped


def plain_console(*, stderr: bool = False) -> Console:
    """Return a console that prints text as it is: no `[word]` is a style in it, and no `:word:` a picture."""
    from rich.console import Console

    return Console(stderr=stderr, highlight=False, markup=False, emoji=False)


def table_console() -> Console:
    """Return a console for standard output; in a pipe it is so wide that nothing is cut, or broken over two lines."""
    console = plain_console()
    if not console.is_terminal:
        console.width = _WIDE
    return console


def numbers(
    option: str, given: Sequence[str | float], kind: Callable[[str], _Number], most: int = 1_000_000
) -> tuple[_Number, ...]:
    """Return the numbers of an option that lists them, separated by commas.

    Args:
        option: Its name, for the error.
        given: Each time that it was stated.
        kind: `int` or `float`.
        most: Greatest number.

    Raises:
        ConfigError: One is no number, or not above 0 and up to `most`.
    """
    texts = [each for text in given for each in str(text).split(",")]
    try:
        found = tuple(map(kind, texts))
    except ValueError:
        found = ()
    if len(found) < len(texts) or not all(0 < each <= most for each in found):
        expected = f"{_KINDS[kind]} above 0 and up to {most:,}"
        raise ConfigError(f"{option} {','.join(texts)!r}: expected {expected}, separated by commas")
    return found

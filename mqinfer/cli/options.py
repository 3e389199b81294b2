"""Options that several subcommands share."""

from __future__ import annotations

import functools
import inspect
import signal
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from mqinfer.broker.address import BrokerAddress
from mqinfer.broker.environment import Variable
from mqinfer.cli.settings import CONFIG_FILE, ConfigFile
from mqinfer.logs import LogFormat, LogLevel, LogSettings, set_up
from mqinfer.telemetry.exporting import ENDPOINT

__all__ = [
    "Broker",
    "CaFile",
    "CertFile",
    "ConnectionOptions",
    "KeyFile",
    "MetricsBind",
    "MetricsPort",
    "Name",
    "OtlpEndpoint",
    "PasswordFile",
    "Root",
    "TakeOver",
    "TritonMetrics",
    "plain_console",
    "table_console",
    "until_signal",
    "with_connection",
    "with_log_options",
    "with_options",
]

_WIDE = 10_000
"""Width of what is no terminal: a table takes as much as its cells need."""

Broker = Annotated[
    str,
    typer.Option(
        envvar=Variable.BROKER,
        help="Broker URL: mqtt://[user@]host[:port], mqtts://, ws://, wss://. For the user's password see "
        "--password-file.",
    ),
]
CaFile = Annotated[
    Path | None,
    typer.Option(envvar=Variable.CA_FILE, help="PEM file of the CA that signed the broker's certificate."),
]
CertFile = Annotated[
    Path | None, typer.Option(envvar=Variable.CERT_FILE, help="PEM file of this client's certificate.")
]
KeyFile = Annotated[Path | None, typer.Option(envvar=Variable.KEY_FILE, help="PEM file of this client's private key.")]
PasswordFile = Annotated[
    Path | None,
    typer.Option(
        envvar=Variable.PASSWORD_FILE,
        help="File with the password of the user in the broker URL; or set MQINFER_PASSWORD. Other users of this "
        "machine can read what is in a URL.",
    ),
]
Name = Annotated[
    str | None,
    typer.Option(
        envvar=Variable.NAME,
        help="Name in topics, unique on the broker; by default that of the certificate or login, else a random one.",
    ),
]
TakeOver = Annotated[
    bool,
    typer.Option("--take-over", help="End another process of the same name; without it this one is refused."),
]
MetricsPort = Annotated[
    int | None,
    typer.Option(
        envvar="MQINFER_METRICS_PORT", help="Port of the metrics for Prometheus; none by default.", min=0, max=65535
    ),
]
MetricsBind = Annotated[
    str, typer.Option(envvar="MQINFER_METRICS_BIND", help="Address that the metrics are served on.")
]
OtlpEndpoint = Annotated[
    str | None,
    typer.Option(
        envvar=ENDPOINT, help="URL of an OpenTelemetry collector, OTLP over HTTP, for traces; none by default."
    ),
]
TritonMetrics = Annotated[
    bool, typer.Option("--triton-metrics", help="Add the metrics of inference under Triton's names (nv_...), too.")
]
Root = Annotated[str, typer.Option(help="Prefix of all topics.")]
_LogLevel = Annotated[
    LogLevel, typer.Option(envvar="MQINFER_LOG_LEVEL", help="Least level of the messages on standard error.")
]
_LogFormat = Annotated[
    LogFormat, typer.Option(envvar="MQINFER_LOG_FORMAT", help="Format of these messages: json is one object a line.")
]
_Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Short for --log-level debug.")]
_CONNECTION: Mapping[str, tuple[Any, Any]] = {
    "broker": (Broker, "mqtt://127.0.0.1:1883"),
    "name": (Name, None),
    "root": (Root, "mqinfer/v1"),
    "ca_file": (CaFile, None),
    "cert_file": (CertFile, None),
    "key_file": (KeyFile, None),
    "password_file": (PasswordFile, None),
}
_FILE: Mapping[str, tuple[Any, Any]] = {CONFIG_FILE: (ConfigFile, None)}
_LOGGING: Mapping[str, tuple[Any, Any]] = {
    "log_level": (_LogLevel, LogLevel.INFO),
    "log_format": (_LogFormat, LogFormat.TEXT),
    "verbose": (_Verbose, False),
}


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """What a command line states about the connection.

    Attributes:
        broker: URL of the broker.
        name: Name in topics; None for that of the certificate or login.
        root: Prefix of all topics.
        ca_file: Of the authority that signed the broker's certificate.
        cert_file: This client's certificate.
        key_file: Its key.
        password_file: Holds the password of the user in the URL.
    """

    broker: str
    name: str | None
    root: str
    ca_file: Path | None
    cert_file: Path | None
    key_file: Path | None
    password_file: Path | None

    def address(self) -> BrokerAddress:
        """Return the address of the broker.

        Raises:
            ConfigError: The URL or the combination of files is wrong.
        """
        files = {"ca_file": self.ca_file, "cert_file": self.cert_file, "key_file": self.key_file}
        return BrokerAddress.parse(self.broker, **files, password_file=self.password_file)


def with_connection(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of a connection to a subcommand, which takes them together as `connection`."""

    def run(**options: Any) -> None:
        command(connection=ConnectionOptions(**{each: options.pop(each) for each in _CONNECTION}), **options)

    return with_options(command, run, _CONNECTION, replaced="connection")


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
    return with_options(command, run, _LOGGING if has_own else {**_LOGGING, **_FILE})


def with_options(
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
    return Console(stderr=stderr, highlight=False, markup=False, emoji=False)


def table_console() -> Console:
    """Return a console for standard output; in a pipe it is so wide that nothing is cut, or broken over two lines."""
    console = plain_console()
    if not console.is_terminal:
        console.width = _WIDE
    return console


def until_signal() -> threading.Event:
    """Return an event that SIGINT and SIGTERM set; a second SIGINT interrupts at once."""
    stop = threading.Event()

    def on_signal(number: int, _frame: object) -> None:
        stop.set()
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    signal.signal(signal.SIGINT, on_signal)
    signal.signal(signal.SIGTERM, on_signal)
    return stop

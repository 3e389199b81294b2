"""Options that several subcommands share."""

from __future__ import annotations

import functools
import inspect
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from mqinfer.broker.address import BrokerAddress
from mqinfer.broker.environment import Variable
from mqinfer.logs import LogFormat, LogLevel, LogSettings, set_up

__all__ = [
    "Broker",
    "CaFile",
    "CertFile",
    "KeyFile",
    "Name",
    "PasswordFile",
    "Root",
    "TakeOver",
    "address",
    "table_console",
    "until_signal",
    "with_log_options",
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
Root = Annotated[str, typer.Option(help="Prefix of all topics.")]
_LogLevel = Annotated[
    LogLevel, typer.Option(envvar="MQINFER_LOG_LEVEL", help="Least level of the messages on standard error.")
]
_LogFormat = Annotated[
    LogFormat, typer.Option(envvar="MQINFER_LOG_FORMAT", help="Format of these messages: json is one object a line.")
]
_Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Short for --log-level debug.")]


def address(
    broker: str,
    ca_file: Path | None,
    cert_file: Path | None,
    key_file: Path | None,
    password_file: Path | None = None,
) -> BrokerAddress:
    """Return the address of a broker from its URL, TLS files and password.

    Raises:
        ConfigError: The URL or the combination of files is wrong.
    """
    return BrokerAddress.parse(
        broker, ca_file=ca_file, cert_file=cert_file, key_file=key_file, password_file=password_file
    )


def with_log_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add --log-level, --log-format and -v to a subcommand; logging is set up before it runs.

    In each line the process has the name of the subcommand, until the subcommand knows a better one.
    """

    @functools.wraps(command)
    def run(**options: Any) -> None:
        level = LogLevel.DEBUG if options.pop("verbose") else options.pop("log_level")
        options.pop("log_level", None)
        set_up(LogSettings(level, options.pop("log_format"), command.__name__.replace("_", "-")))
        command(**options)

    added = {
        "log_level": (_LogLevel, LogLevel.INFO),
        "log_format": (_LogFormat, LogFormat.TEXT),
        "verbose": (_Verbose, False),
    }
    signature = inspect.signature(command, eval_str=True)
    parameters = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        for name, (annotation, default) in added.items()
    ]
    signature = signature.replace(parameters=[*signature.parameters.values(), *parameters])
    run.__signature__ = signature  # type: ignore[attr-defined] # what typer reads
    run.__annotations__ = {name: each.annotation for name, each in signature.parameters.items()}
    return run


def table_console() -> Console:
    """Return a console for standard output; in a pipe it is so wide that nothing is cut, or broken over two lines."""
    console = Console(highlight=False)
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

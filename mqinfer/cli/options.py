"""Options that several subcommands share."""

from __future__ import annotations

import logging
import signal
import threading
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.logging import RichHandler

from mqinfer.broker.address import BrokerAddress

__all__ = [
    "Broker",
    "CaFile",
    "CertFile",
    "KeyFile",
    "Name",
    "PasswordFile",
    "Root",
    "TakeOver",
    "Verbose",
    "address",
    "set_up_logging",
    "until_signal",
]

Broker = Annotated[
    str,
    typer.Option(
        envvar="MQINFER_BROKER",
        help="Broker URL: mqtt://[user@]host[:port], mqtts://, ws://, wss://. For the user's password see "
        "--password-file.",
    ),
]
CaFile = Annotated[
    Path | None,
    typer.Option(envvar="MQINFER_CA_FILE", help="PEM file of the CA that signed the broker's certificate."),
]
CertFile = Annotated[
    Path | None, typer.Option(envvar="MQINFER_CERT_FILE", help="PEM file of this client's certificate.")
]
KeyFile = Annotated[Path | None, typer.Option(envvar="MQINFER_KEY_FILE", help="PEM file of this client's private key.")]
PasswordFile = Annotated[
    Path | None,
    typer.Option(
        envvar="MQINFER_PASSWORD_FILE",
        help="File with the password of the user in the broker URL; or set MQINFER_PASSWORD. Other users of this "
        "machine can read what is in a URL.",
    ),
]
Name = Annotated[
    str | None,
    typer.Option(
        envvar="MQINFER_NAME",
        help="Name in topics, unique on the broker; by default that of the certificate or login, else a random one.",
    ),
]
TakeOver = Annotated[
    bool,
    typer.Option("--take-over", help="End another process of the same name; without it this one is refused."),
]
Root = Annotated[str, typer.Option(help="Prefix of all topics.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Log debug messages to standard error.")]


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


class _LogConsole(Console):
    """A console that ignores a closed standard error: serving continues without a log."""

    def on_broken_pipe(self) -> None:
        """Do nothing, where rich would end the thread that logs."""


def set_up_logging(*, verbose: bool) -> None:
    """Log warnings to standard error; with `verbose`, all messages of mqinfer."""
    handler = RichHandler(console=_LogConsole(stderr=True), show_path=False, log_time_format="%H:%M:%S")
    logging.basicConfig(level=logging.WARNING, format="%(message)s", handlers=[handler])
    if verbose:
        logging.getLogger("mqinfer").setLevel(logging.DEBUG)


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

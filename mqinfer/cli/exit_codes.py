"""The exit codes of every subcommand."""

from __future__ import annotations

import logging
from enum import IntEnum

from mqinfer import interrupts
from mqinfer.logs import is_json, printable
from mqinfer.protocol.errors import BadTopic, ConfigError, MissingExtra, MqinferError, NameTaken, NotAuthorized

log = logging.getLogger("mqinfer.cli")


class ExitCode(IntEnum):
    """What the end of a process means to a shell or a service manager."""

    OK = 0
    FAILED = 1
    """Something failed that may succeed when it is tried again."""
    USAGE = 2
    """The command line or a configuration file is wrong."""
    INCOMPLETE = 3
    """The source broke off or was damaged: what was read has its outcome, the rest is missing."""
    REFUSED = 78
    """It fails in the same way however often it is restarted (EX_CONFIG of sysexits.h)."""
    INTERRUPTED = interrupts.INTERRUPTED
    """Stopped by a signal before the end of a recording (128 + SIGINT, as shells do)."""


EXIT_CODES = (
    "Exit codes: 0 done; 1 failed, another try may succeed; 2 wrong options or configuration; 3 incomplete: the source "
    "broke off or was damaged; 78 refused, do not restart: not authorised, the name is in use, or an "
    "extra is not installed; 130 interrupted before the end."
)
"""The last lines of each subcommand's help."""

_USAGE = (ConfigError, BadTopic)
_REFUSED = (NotAuthorized, NameTaken, MissingExtra)


def exit_code(error: MqinferError) -> ExitCode:
    """Return the exit code for an error that ends a command."""
    if isinstance(error, _USAGE):
        return ExitCode.USAGE
    return ExitCode.REFUSED if isinstance(error, _REFUSED) else ExitCode.FAILED


def print_error(error: MqinferError) -> None:
    """Print an error as one message to standard error, a record where the log is JSON; nothing changes the terminal."""
    if is_json():
        log.error("%s", error)
        return
    from mqinfer.cli.options import plain_console

    console = plain_console(stderr=True)
    console.print("error:", style="bold red", end=" ")
    console.print("\n".join(map(printable, str(error).splitlines())), soft_wrap=True)

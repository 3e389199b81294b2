"""One format for the log lines of every process: the command, its worker processes and the libraries in them.

A program that imports mqinfer sets up its own logging; only the command calls `set_up`.
"""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any


class LogLevel(StrEnum):
    """Least level of the messages that are logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(StrEnum):
    """Format of the log: lines for people, or one JSON object a line."""

    TEXT = "text"
    JSON = "json"


@dataclass(frozen=True, slots=True)
class LogSettings:
    """How a process logs.

    Attributes:
        level: Of mqinfer's own messages; other libraries log warnings and errors only.
        format: Of the lines.
        process: Name of the process in each line.
    """

    level: LogLevel = LogLevel.INFO
    format: LogFormat = LogFormat.TEXT
    process: str = "mqinfer"


@dataclass(frozen=True, slots=True)
class Notice:
    """A message about a configuration, from a process that does not log it itself.

    Attributes:
        logger: Name of the logger.
        level: Its level, as a number of `logging`.
        text: The message.
    """

    logger: str
    level: int
    text: str


_audit = logging.getLogger("mqinfer.audit")
_LOGIN = re.compile(r"(?<=://)[^\s/]*@|(?<=\.mcap)\?[^\s'\"]*")
"""User and password of a URL, and what signs that of a recording."""
_COLOURS = {"DEBUG": "2", "INFO": "32", "WARNING": "33", "ERROR": "31", "CRITICAL": "1;31"}
_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
"""Attributes of every record; the others are the fields of one message (`extra`)."""
_LONGEST, _LONGEST_REASON, _LONGEST_NAME = 4096, 1000, 100
"""Characters of a message that are logged, and of what an error of others says: they may repeat all that they got."""
_settings = LogSettings()
_MOST_NOTICES = 4096
"""Notices of which this process knows that they were logged; then it forgets them all."""
_logged: set[Notice] = set()
_forward: Callable[[Notice], None] | None = None


class _TextFormatter(logging.Formatter):
    """Time, level, process and message on one line; a traceback follows on lines of its own, indented."""

    def __init__(self, process: str, *, is_coloured: bool = False) -> None:
        super().__init__()
        self._process = process
        self._is_coloured = is_coloured

    def format(self, record: logging.LogRecord) -> str:
        """Return the lines of a record; a control character in the text is written as its escape sequence."""
        level = f"{record.levelname:<7}"
        if self._is_coloured:
            level = f"\x1b[{_COLOURS.get(record.levelname, '0')}m{level}\x1b[0m"
        lines = [f"{_time(record)} {level} {self._process}: {printable(_text(record))}"]
        lines += [f"    {printable(line)}" for line in _traceback(self, record).splitlines()]
        return "\n".join(lines)


class _JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, process, message, the fields of the message, exception."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        """Return the object of a record as text."""
        fields = {key: value for key, value in vars(record).items() if key not in _OWN}
        line: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "process": self._process,
            "message": _text(record),
        }
        if traceback := _traceback(self, record):
            line["exception"] = traceback
        return json.dumps({**line, **fields, **line}, default=str)


class _Stderr(logging.Handler):
    """Writes to standard error as it is at the moment: a progress display may have taken its place."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record in one piece, so that the lines of several processes do not mix."""
        try:
            sys.stderr.write(self.format(record) + "\n")
            sys.stderr.flush()
        except (OSError, ValueError, AttributeError):  # closed, or none at all: work goes on without a log
            return
        except Exception:  # noqa: BLE001 - a defect of a message must not end the thread that logs
            self.handleError(record)


def set_up(wanted: LogSettings) -> None:
    """Log to standard error from now on; replaces the handler of an earlier call, and no other."""
    global _settings  # noqa: PLW0603 - logging is one for the whole process
    _settings = wanted
    handler = _Stderr()
    handler.setFormatter(_formatter(wanted))
    root, level = logging.getLogger(), logging.getLevelNamesMapping()[wanted.level.upper()]
    for earlier in [each for each in root.handlers if isinstance(each, _Stderr)]:
        root.removeHandler(earlier)
    root.addHandler(handler)
    root.setLevel(max(level, logging.WARNING))
    logging.getLogger("mqinfer").setLevel(level)
    logging.captureWarnings(capture=True)  # Python's, which libraries print as lines of their own
    # gRPC writes to standard error itself, what peers send included, as lines of its own; it reads this when imported.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    # So does OpenCV with the FFmpeg in it; what it can't open or read is an error of mqinfer's own.
    os.environ.setdefault("OPENCV_LOG_LEVEL", "SILENT")
    os.environ.setdefault("OPENCV_FFMPEG_LOGLEVEL", "-8")


def log_line(message: str) -> str:
    """Return a warning as the line of it in the log, for a process that may not wait for the log's locks any more."""
    record = logging.LogRecord("mqinfer", logging.WARNING, "", 0, message, (), None)
    return _formatter(_settings).format(record) + "\n"


def is_json() -> bool:
    """Return whether each line that this process prints is to be a JSON object."""
    return _settings.format is LogFormat.JSON


def settings() -> LogSettings:
    """Return what `set_up` was called with last, for a process that is to log alike."""
    return _settings


def rename_process(name: str) -> None:
    """Log under this name of the process from now on."""
    set_up(replace(_settings, process=name))


def is_logged(number: int) -> bool:
    """Return whether the message of this number is logged: the 1st, 2nd, 4th, 8th, … of a kind."""
    return number & (number - 1) == 0


def log_dropped(log: logging.Logger, what: str, reason: str, number: int) -> None:
    """Log a message that is dropped, as `is_logged` decides, so that a flood of them fills no disk.

    Args:
        log: Logger of the caller.
        what: Was dropped, and why.
        reason: Under which it is counted.
        number: How many were dropped for that reason, this one included.
    """
    if is_logged(number):
        log.warning("dropped %s (%s: %d)", what, reason, number, extra={"reason": reason, "count": number})


def log_call(  # noqa: PLR0913 - what a line has
    caller: str,
    what: str,
    reply: object,
    *,
    changes: Mapping[str, object] | None,
    proven: bool | None,
    behalf: str = "",
) -> None:
    """Log a control call: who made it, what it asked for, and what came of it.

    Args:
        caller: Name that the topic states.
        what: Was asked for.
        reply: To the call; its `code` is the outcome where it has one.
        changes: What it changes, as far as that is known; None for a question, which is logged for debugging alone.
        proven: Whether the broker vouches for the caller, by its access rules; None where this process can't know.
        behalf: Whom the caller says that it calls for, of any content; empty for itself.
    """
    outcome = str(reply.get("code", "ok")) if isinstance(reply, dict) else "ok"
    doubt = {True: "", False: " (name not proven: the broker asks for no login)", None: ""}[proven]
    if behalf := printable(behalf[:_LONGEST_NAME]):
        doubt += f' on behalf of "{behalf}"'
    _audit.log(
        logging.DEBUG if changes is None else logging.INFO,
        "control call of %s%s: %s: %s%s",
        caller,
        doubt,
        what,
        outcome,
        f" {json.dumps(changes, default=str)}" if changes else "",
        extra={"caller": caller, "proven": proven, "on_behalf_of": behalf, "call": what, "outcome": outcome},
    )


def log_once(log: logging.Logger, level: int, message: str, *values: object) -> None:
    """Log a message about a configuration once, however often that is read, and by however many processes.

    Args:
        log: Logger of the caller.
        level: A number of `logging`.
        message: With a `%s` for each of the values.
        values: Texts or numbers.
    """
    notice = Notice(log.name, level, message % values)
    if _forward is not None:
        _forward(notice)
    elif notice not in _logged:
        if len(_logged) >= _MOST_NOTICES:
            _logged.clear()
        _logged.add(notice)
        log.log(level, "%s", notice.text)


def forward_notices(receive: Callable[[Notice], None] | None) -> None:
    """Call `receive` with what `log_once` would log; None logs it in this process again."""
    global _forward  # noqa: PLW0603 - as above
    _forward = receive


def without_logins(text: str) -> str:
    """Leave out user and password of each URL in a text."""
    return _LOGIN.sub("", text)


def printable(text: str) -> str:
    """Write control characters as escape sequences, so that the text stays on its line and changes no terminal."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def encodable(text: str) -> str:
    """Return a text with escape sequences for what UTF-8 has no bytes for, such as in names of files."""
    return text.encode(errors="backslashreplace").decode()


def reason(error: BaseException) -> str:
    """Return on one line what an error says, in words also where it makes no sentence of them, or its name."""
    is_raw = str(error) == str(error.args)
    said = " ".join((", ".join(map(str, error.args)) if is_raw else str(error)).split())
    return said[:_LONGEST_REASON] or type(error).__name__


def _formatter(wanted: LogSettings) -> logging.Formatter:
    if wanted.format is LogFormat.JSON:
        return _JsonFormatter(wanted.process)
    return _TextFormatter(wanted.process, is_coloured=_can_show_colours())


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created).astimezone().isoformat(timespec="milliseconds")


def _text(record: logging.LogRecord) -> str:
    text = without_logins(record.getMessage())
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ... ({len(text)} characters)"


def _traceback(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    text = formatter.formatException(record.exc_info) if record.exc_info and record.exc_info[0] else ""
    return without_logins(text)


def _can_show_colours() -> bool:
    is_wanted = "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
    return is_wanted and sys.stderr is not None and sys.stderr.isatty()


_FILTER = """
import sys
for line in sys.stdin.buffer:
    if not line.startswith(tuple(each.encode() for each in sys.argv[1:])):
        sys.stderr.buffer.write(line)
        sys.stderr.buffer.flush()
"""
_FILTER_ENDS_S = 2.0


@contextmanager
def without_lines(prefixes: Sequence[str]) -> Iterator[None]:
    """Leave out lines that begin so, which a library's native code writes to standard error as it is loaded.

    A process of its own reads the lines, so that the last ones are passed on if loading ends this process, as where the
    CPU lacks instructions.
    """
    command = [sys.executable, "-I", "-S", "-c", _FILTER, *prefixes]
    with ExitStack() as ends:  # the last one first
        with suppress(OSError):  # no stderr, or no room for a process: the lines are no reason to fail
            saved = os.dup(2)
            ends.callback(os.close, saved)
            # A session of its own: Ctrl-C is for this process, which then ends its lines.
            filtering = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)  # noqa: S603 - this interpreter
            ends.callback(_wait, filtering)
            with filtering.stdin as lines:  # type: ignore[union-attr] # a pipe
                ends.callback(os.dup2, saved, 2)
                os.dup2(lines.fileno(), 2)
        yield


def _wait(filtering: subprocess.Popen[bytes]) -> None:
    with suppress(subprocess.TimeoutExpired):  # a process that was started meanwhile has its stderr
        filtering.wait(_FILTER_ENDS_S)

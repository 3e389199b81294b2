from __future__ import annotations

import json
import logging
import re
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mqinfer.cli.watching.status import print_table
from mqinfer.logs import LogFormat, LogLevel, LogSettings, Notice, forward_notices, log_dropped, log_once, set_up
from tests.commands import mqinfer

LOG = logging.getLogger("mqinfer.tests")
TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}[+-]\d\d:\d\d"


@pytest.fixture
def log_to(capfd: pytest.CaptureFixture[str]) -> Callable[..., Callable[[], list[str]]]:
    """Set up logging as the command does; return a function that returns the lines so far."""

    def start(**settings: Any) -> Callable[[], list[str]]:
        set_up(LogSettings(process="gpu-0.1", **settings))
        return lambda: capfd.readouterr().err.splitlines()  # noqa: PLW0108 - read when it is called

    return start


def test_a_line_of_text(log_to: Callable[..., Callable[[], list[str]]]) -> None:
    """Time, level, process and message; no markup is read in it, nothing wraps it, and no text can forge a line."""
    lines = log_to()
    LOG.warning("model %s: no operator [/x] in [bold]%s", "m", "y" * 300)
    LOG.info("a\n2026-01-01T00:00:00.000+00:00 INFO gpu-0.1: forged \x1b[31mred\x1b[0m")
    LOG.debug("left out")
    logging.getLogger("other").info("left out")
    logging.getLogger("other").warning("can't read rtsp://ann:s3@c:ret@cam/1 or mqtt://u@h")
    first, second, third = lines()
    assert re.fullmatch(TIME + r" WARNING gpu-0\.1: model m: no operator \[/x\] in \[bold\]y{300}", first)
    assert re.fullmatch(TIME + r" INFO    gpu-0\.1: a\\n2026-.* forged \\x1b\[31mred\\x1b\[0m", second)
    assert third.endswith("gpu-0.1: can't read rtsp://cam/1 or mqtt://h")


@pytest.mark.parametrize("kind", LogFormat)
def test_a_long_text_is_cut(log_to: Callable[..., Callable[[], list[str]]], kind: LogFormat) -> None:
    """Whatever a stranger's topic is: a line stays one that can be read."""
    lines = log_to(format=kind)
    LOG.warning("dropped a message on %s", "x" * 60_000)
    (line,) = lines()
    assert len(line) < 5000
    assert "x ... (60021 characters)" in line


def test_a_traceback_is_indented(log_to: Callable[..., Callable[[], list[str]]]) -> None:
    """Each line that does not begin with a time belongs to the message above it."""
    lines = log_to()
    try:
        raise ValueError("first\n2026-01-01T00:00:00.000+00:00 forged")  # noqa: TRY301 - what is logged
    except ValueError:
        LOG.exception("it failed")
    message, *rest = lines()
    assert message.endswith("ERROR   gpu-0.1: it failed")
    assert rest
    assert all(line.startswith("    ") for line in rest)


def test_a_warning_of_python(log_to: Callable[..., Callable[[], list[str]]]) -> None:
    """What a library warns of is a record, too, which would be two lines of text."""
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        lines = log_to(format=LogFormat.JSON)
        warnings.warn("this engine is old", stacklevel=1)
    (record,) = map(json.loads, lines())
    assert (record["level"], record["logger"]) == ("warning", "py.warnings")
    assert "UserWarning: this engine is old" in record["message"]


def test_a_line_of_json(log_to: Callable[..., Callable[[], list[str]]]) -> None:
    """One object a line, with the fields of the message; its own fields can't be replaced."""
    lines = log_to(format=LogFormat.JSON)
    LOG.warning("two\nlines to mqtt://u:p@h", extra={"event": "crashed", "worker": "w.0", "time": 3})
    try:
        raise OSError("rtsp://a:b@c")  # noqa: TRY301 - what is logged
    except OSError:
        LOG.exception("failed")
    crashed, failed = map(json.loads, lines())
    assert re.fullmatch(TIME, crashed.pop("time"))
    assert crashed == {
        "level": "warning",
        "logger": "mqinfer.tests",
        "process": "gpu-0.1",
        "message": "two\nlines to mqtt://h",
        "event": "crashed",
        "worker": "w.0",
    }
    assert failed["exception"].endswith("OSError: rtsp://c")


@pytest.mark.parametrize(
    ("level", "own", "others"),
    [
        (LogLevel.DEBUG, ["debug", "info", "warning", "error"], ["warning", "error"]),
        (LogLevel.INFO, ["info", "warning", "error"], ["warning", "error"]),
        (LogLevel.WARNING, ["warning", "error"], ["warning", "error"]),
        (LogLevel.ERROR, ["error"], ["error"]),
    ],
)
def test_levels(
    log_to: Callable[..., Callable[[], list[str]]], level: LogLevel, own: list[str], others: list[str]
) -> None:
    """The level is mqinfer's; of other libraries only warnings and errors are logged."""
    lines = log_to(level=level)
    for name in ("mqinfer.tests", "other"):
        for each in LogLevel:
            logging.getLogger(name).log(logging.getLevelNamesMapping()[each.upper()], "%s", each.value)
    assert [line.rpartition(" ")[2] for line in lines()] == own + others


def test_drops_are_thinned_out(caplog: pytest.LogCaptureFixture) -> None:
    """Of a thousand drops for one reason ten are logged."""
    for number in range(1, 1001):
        log_dropped(LOG, "a message", "flood", number)
    assert caplog.messages == [f"dropped a message (flood: {2**n})" for n in range(10)]


def test_a_message_about_a_configuration_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """However often it is read; where another process is to log it, it is handed over each time."""
    for _ in range(3):
        log_once(LOG, logging.WARNING, "%s: without effect here: %s", "config.pbtxt", "x")
    assert caplog.messages == ["config.pbtxt: without effect here: x"]
    received: list[Notice] = []
    forward_notices(received.append)
    try:
        log_once(LOG, logging.WARNING, "%s: without effect here: %s", "config.pbtxt", "x")
    finally:
        forward_notices(None)
    assert received == [Notice(LOG.name, logging.WARNING, "config.pbtxt: without effect here: x")]
    assert len(caplog.messages) == 1


def test_a_closed_standard_error_stops_nothing() -> None:
    """Who reads the log may end; the program goes on."""
    script = (
        "import logging, os, sys; from mqinfer.logs import *; set_up(LogSettings())\n"
        "os.close(2)\n"
        "for _ in range(3): logging.getLogger('mqinfer').warning('lost')\n"
        "print('on')"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout == "on\n"


@pytest.mark.parametrize(
    ("options", "environment", "words"),
    [
        ((), {}, ["ERROR   ", " not served: half: ", "[/x]"]),
        (("--log-level", "error"), {}, [" not served: half: "]),
        ((), {"MQINFER_LOG_FORMAT": "json"}, ['"level": "error"', '"model": "half"']),
        ((), {"MQINFER_LOG_LEVEL": "loud"}, ["loud"]),
    ],
)
def test_the_options_reach_the_log(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: tuple[str, ...],
    environment: dict[str, str],
    words: list[str],
) -> None:
    """On the command line or in the environment; a level that there is not is refused."""
    (tmp_path / "half" / "1").mkdir(parents=True)
    (tmp_path / "half" / "config.pbtxt").write_text("[/x] is no configuration")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    done = mqinfer("worker", "--repository", tmp_path, "--broker", "mqtt://127.0.0.1:1", *options)
    assert done.returncode in {1, 2}, done.stderr
    for word in words:
        assert word in done.stderr


HANGS = """
import threading
from mqinfer.cli import worker
from mqinfer.cloud_worker.supervision.supervisor import Supervisor
worker._END_S = 1
worker._stop_on_signals(Supervisor([]))
print("on", flush=True)
while True:
    threading.Event().wait(5)  # a signal just before it is looked at behind it
"""


def test_sigterm_ends_a_worker_command_that_hangs() -> None:
    """Whatever its main thread is in: the system ends it, a minute after the signal (here a second)."""
    with subprocess.Popen([sys.executable, "-c", HANGS], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            assert process.stdout.readline() == "on\n"
            process.terminate()
            assert process.wait(60) == -signal.SIGALRM
        finally:
            process.kill()


def test_a_table_reads_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    """In a pipe each cell is as long as it is, on one line."""
    name, reason = "n" * 90, "no operator [/x] in [red]graph[/]\nand \x1b[2Jmore"
    print_table(("model", "state", "reason"), [(name, "READY", reason)])
    first, second = capsys.readouterr().out.splitlines()
    assert first.split() == ["model", "state", "reason"]
    assert second == f"{name}  READY  no operator [/x] in [red]graph[/]\\nand \\x1b[2Jmore"

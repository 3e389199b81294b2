"""`mqinfer dashboard` as a command: it serves until SIGTERM, and says in one line what is wrong."""

from __future__ import annotations

import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from mqinfer.cli.app import main
from mqinfer.cli.exit_codes import ExitCode
from mqinfer.dashboard.settings import DashboardSettings
from mqinfer.extras import install_command
from tests.dashboard.served import PATIENCE

READY = r"ready: (http://127\.0\.0\.1:\d+/), broker mqtt://127\.0\.0\.1:1$"


def lines_of(process: subprocess.Popen[str]) -> Iterator[str]:
    """List the lines of a command's log as they come."""
    assert process.stderr is not None
    return iter(process.stderr.readline, "")


@pytest.mark.slow
def test_it_serves_until_sigterm() -> None:
    """It names the page once it is open, serves it, and ends with 0; no password is in its log."""
    command = [sys.executable, "-m", "mqinfer", "dashboard", "--port=0", "--broker=mqtt://wall:secret-word@127.0.0.1:1"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        lines = lines_of(process)
        seen = [next(lines)]
        while not (found := re.search(READY, seen[-1].strip())):
            seen.append(next(lines))
        with urllib.request.urlopen(found[1], timeout=PATIENCE) as reply:  # noqa: S310 - a URL of loopback
            assert (reply.status, reply.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
        with urllib.request.urlopen(f"{found[1]}config.json", timeout=PATIENCE) as reply:  # noqa: S310
            assert b'"login": "relay"' in reply.read()
        process.terminate()
        seen += lines
        assert process.wait(PATIENCE) == 0
    assert "secret-word" not in "".join(seen)


WRONG: Mapping[str, tuple[list[str], int, str]] = {
    "half of TLS": (["--tls-cert", "x"], ExitCode.USAGE, "--tls-cert and --tls-key belong together"),
    "memory": (["--broker", "memory://x"], ExitCode.USAGE, "no browser can reach"),
    "websockets": (["--broker", "ws://127.0.0.1:9001"], ExitCode.USAGE, "--direct ws://127.0.0.1:9001/mqtt"),
    "open": (["--bind", "0.0.0.0"], ExitCode.USAGE, "add --tls-cert and --tls-key"),  # noqa: S104
    "direct": (["--direct", "broker.example.org"], ExitCode.USAGE, "expected wss://"),
    "no page": ([], ExitCode.USAGE, "scripts/build-page"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_options(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line, and the exit code of wrong options."""
    further, code, message = WRONG[case]
    monkeypatch.setattr("mqinfer.dashboard.page.read_page.__defaults__", (tmp_path,))
    monkeypatch.setattr(sys, "argv", ["mqinfer", "dashboard", "--port", "0", *further])
    with pytest.raises(SystemExit) as ended:
        main()
    printed = capsys.readouterr().err
    assert (ended.value.code, printed.count("\n")) == (code, 1)
    assert message in printed


@pytest.mark.parametrize(("broker", "most"), [("mqtt://h", 256), ("mqtt://wall:x@h", 16)])
def test_connections_of_one_login(monkeypatch: pytest.MonkeyPatch, broker: str, most: int) -> None:
    """With its own login the relay connects no more browsers than mqinfer's broker allows a login."""
    made: list[DashboardSettings] = []
    monkeypatch.setattr("mqinfer.dashboard.serving.run", made.append)
    monkeypatch.setattr(sys, "argv", ["mqinfer", "dashboard", "--broker", broker])
    with pytest.raises(SystemExit):
        main()
    assert made[0].max_connections == most


def test_the_extra_is_missing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Without aiohttp it names what installs it."""
    monkeypatch.setattr("mqinfer.extras.find_spec", lambda _: None)
    monkeypatch.setattr(sys, "argv", ["mqinfer", "dashboard"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == ExitCode.REFUSED
    assert install_command("dashboard") in capsys.readouterr().err

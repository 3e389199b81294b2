"""The `mqinfer` command as a user runs it: in a process of its own, or in this one."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from mqinfer.cli import main

__all__ = ["command", "mqinfer", "run_main"]


def command(*arguments: object) -> list[str]:
    """Return the command line of a subcommand, for a process of its own."""
    return [sys.executable, "-m", "mqinfer", *map(str, arguments)]


def mqinfer(*arguments: object, timeout: float = 300) -> subprocess.CompletedProcess[str]:
    """Run a subcommand in a process of its own, to its end."""
    return subprocess.run(command(*arguments), capture_output=True, text=True, timeout=timeout, check=False)


def run_main(*arguments: object) -> int:
    """Run a subcommand in this process; return its exit code."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["mqinfer", *map(str, arguments)])
        try:
            main()
        except SystemExit as end:
            return end.code if isinstance(end.code, int) else int(end.code is not None)
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
    return 0

"""Functions in a process of their own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

from mqinfer.protocol.errors import ModelNotLoadable

__all__ = ["Program"]


class Program:
    """A function of a module that runs in a process of its own until its standard input is closed.

    Args:
        main: The function. Its first line on standard output means that it is ready.
        arguments: Passed to it, as text.

    Raises:
        ModelNotLoadable: It ended before it was ready.
    """

    def __init__(self, main: Callable[..., None], *arguments: object) -> None:
        self._name = f"{main.__module__}.{main.__name__}"
        code = f"import sys; from {main.__module__} import {main.__name__} as main; main(*sys.argv[1:])"
        command = [sys.executable, "-c", code, *map(str, arguments)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)  # noqa: S603 - our own function
        self.pid = self._process.pid
        self.first_line = self._read_line()

    def ask(self, line: str) -> str:
        """Write a line to its standard input and return the line that it answers.

        Raises:
            ModelNotLoadable: It ended.
        """
        if self._process.stdin is not None:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        return self._read_line()

    def close(self) -> None:
        """Close its standard input, and wait until it has ended."""
        self._process.communicate()

    def _read_line(self) -> str:
        line = self._process.stdout.readline().strip() if self._process.stdout else ""
        if not line:
            self.close()
            raise ModelNotLoadable(f"the bench's process {self._name} ended; its error is printed above")
        return line

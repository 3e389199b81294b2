"""Two bridges of one site, each a process."""

from __future__ import annotations

import subprocess
from typing import Self

from mqinfer.protocol.topics import Topics
from tests.commands import command

__all__ = ["Bridges"]


class Bridges:
    """Runs both; a context manager.

    Args:
        near: URL of the site's broker.
        far: That of the workers'.
        topics: The topics, on both sides.
    """

    def __init__(self, near: str, far: str, topics: Topics) -> None:
        self._line = command("broker", "bridge", near, far, "--site", "site", "--root", topics.root)
        self._running: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Self:
        try:
            for _ in range(2):
                self._running.append(self._start())
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._running:
            each.kill()
            each.communicate()

    def kill(self, number: int) -> None:
        """Kill one, and start another in its place."""
        self._running[number].kill()
        self._running[number].communicate()
        self._running[number] = self._start()

    def _start(self) -> subprocess.Popen[str]:
        started = subprocess.Popen(self._line, stderr=subprocess.PIPE, text=True)
        assert started.stderr
        while "ready" not in (line := started.stderr.readline()):
            assert line, f"a bridge ended with {started.wait()}"
        return started

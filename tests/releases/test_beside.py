"""The last release and this tree beside each other on one broker: clients of both, while workers change versions.

The wheel is that of version 0.1.0, built from the commit that closed its section of CHANGELOG.md. It has no page.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest

from tests.patience import wait_until

pytestmark = [pytest.mark.broker, pytest.mark.slow]

HERE = Path(__file__).parent
ENOUGH = 20
"""Replies of a worker to each client, after which it counts as one that serves."""


@pytest.fixture(scope="module")
def trees(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders that hold the package `mqinfer` of each version."""
    folder = tmp_path_factory.mktemp("release")
    (wheel,) = HERE.glob("*.whl")
    with ZipFile(wheel) as archive:
        archive.extractall(folder)
    return {"old": folder, "new": HERE.parents[1]}


class Asking:
    """A client of one version in a process of its own.

    Attributes:
        package: File of the package that it runs.
        replies: How many replies came from each server so far.
        failed: Errors of the requests without a result.
    """

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.replies: Counter[str] = Counter()
        self.failed: list[str] = []
        self.package = self._line()
        self._thread = threading.Thread(target=self._read, name="asking")
        self._thread.start()

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def _read(self) -> None:
        while line := self._line():
            if line.startswith("failed"):
                self.failed.append(line)
            else:
                self.replies[line.rpartition(".")[0]] += 1

    def finish(self) -> None:
        """End its input, and wait for what is in flight."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._thread.join()
        assert self._process.wait(60) == 0


@pytest.fixture
def run(trees: dict[str, Path], tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start Python with the package of a version: `run("old", "-m", "mqinfer", …)`."""
    with ExitStack() as stack:

        def start(version: str, *arguments: object, **streams: Any) -> subprocess.Popen[str]:
            environment = {**os.environ, "PYTHONPATH": str(trees[version])}
            # Not from the tree's folder, which would come first on the path.
            process = subprocess.Popen(
                [sys.executable, *map(str, arguments)], cwd=tmp_path, env=environment, text=True, **streams
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            return process

        yield start


@pytest.mark.parametrize(("first", "second"), [("old", "new"), ("new", "old")])
def test_one_takes_the_others_place(
    first: str,
    second: str,
    run: Callable[..., subprocess.Popen[str]],
    trees: dict[str, Path],
    write_echo: Callable[..., Path],
    broker_url: str,
    unique: Callable[[str], str],
    tmp_path: Path,
) -> None:
    """An upgrade, and the way back: a worker of the other version joins and the first leaves, and no request fails."""
    repository, root = write_echo("echo", delay_ms=5), unique("test")

    def serve(version: str) -> subprocess.Popen[str]:
        options = ("--name", version, "--repository", repository, "--device", "cpu")
        with (tmp_path / f"{version}.log").open("w", encoding="utf-8") as log:
            command = ("-m", "mqinfer", "worker", "--broker", broker_url, "--root", root, *options)
            process = run(version, *command, stderr=log)
        wait_until(lambda: " ready: echo" in Path(log.name).read_text(encoding="utf-8"))
        return process

    def ask(version: str) -> Asking:
        streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        return Asking(run(version, HERE / "asking.py", broker_url, root, **streams))

    leaving = serve(first)
    clients = {version: ask(version) for version in trees}
    for version, client in clients.items():
        assert Path(client.package).is_relative_to(trees[version])

    def await_replies(*servers: str) -> None:
        least = {(version, name): clients[version].replies[name] + ENOUGH for version in clients for name in servers}
        wait_until(lambda: all(clients[version].replies[name] >= count for (version, name), count in least.items()))

    try:
        await_replies(first)
        serve(second)
        await_replies(first, second)
        leaving.terminate()
        assert leaving.wait(60) == 0
        await_replies(second)
    finally:
        for client in clients.values():
            client.finish()
    assert {version: client.failed for version, client in clients.items()} == {"old": [], "new": []}

"""Publishers of ROS 2 in processes of their own, on this machine alone."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

LOOPBACK = '<General><Interfaces><NetworkInterface address="127.0.0.1"/></Interfaces></General>'


class Publisher:
    """The process of `publisher.py`."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.ros2.publisher"],
            cwd=Path(__file__).parents[2],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def tell(self, *commands: str) -> None:
        """Give commands, and wait until they are done."""
        assert self.process.stdin
        assert self.process.stdout
        for each in commands:
            self.process.stdin.write(f"{each}\n")
            self.process.stdin.flush()
            assert self.process.stdout.readline() == "done\n"

    def kill(self) -> None:
        """End it at once."""
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def topic() -> str:
    """Return a topic that no other test has."""
    return f"/camera_{uuid.uuid4().hex}/image_raw"


@pytest.fixture
def domain(monkeypatch: pytest.MonkeyPatch) -> int:
    """Return the domain of this test, whose processes find each other on this machine alone."""
    pytest.importorskip("cyclonedds")
    number = 10 + os.getpid() % 100
    monkeypatch.setenv("ROS_DOMAIN_ID", str(number))
    monkeypatch.setenv("CYCLONEDDS_URI", LOOPBACK)
    return number


@pytest.fixture
def publish(domain: int) -> Iterator[Callable[[], Publisher]]:
    """Start publishers in the domain."""
    assert domain
    started: list[Publisher] = []

    def run() -> Publisher:
        started.append(Publisher())
        return started[-1]

    yield run
    for each in started:
        each.kill()

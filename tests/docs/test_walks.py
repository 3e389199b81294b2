"""The two walks in ARCHITECTURE.md are those that a frame takes."""

from __future__ import annotations

import re
import runpy
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import mqinfer
from mqinfer.cloud_worker.serving.worker import Worker
from mqinfer.lab.drives.recording import write_drive

_PACKAGE = Path(mqinfer.__file__).parent
_ARCHITECTURE = _PACKAGE.parent / "ARCHITECTURE.md"
_MOST = 15
_OUT = {"ThreadPoolExecutor.submit", "Loop.wake"}
"""Functions that hand a frame to another thread on its way out."""


def walk(title: str) -> list[str]:
    """Return the files of a walk, in its order."""
    text = _ARCHITECTURE.read_text(encoding="utf-8")
    return re.findall(r"^\d+\. `([^`]+)`", text.split(f"{title}:\n", 1)[1].split("\n\n", 1)[0], re.MULTILINE)


class Passage:
    """The files that frames pass through.

    Attributes:
        called: Files of which a function was called.
        handed: By the end of the way (`socket`, `sink`): files on the stack wherever a frame was handed on.
    """

    def __init__(self) -> None:
        self.called: set[str] = set()
        self.handed: dict[str, set[str]] = {"socket": set(), "sink": set()}

    @contextmanager
    def traced(self) -> Iterator[None]:
        """Look at every call of this thread, and of those that it starts."""
        threading.setprofile(self._look)
        sys.setprofile(self._look)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    def _look(self, frame: FrameType, event: str, function: Any) -> None:
        if event == "call":
            self.called.add(_short(frame))
            starts_threads = frame.f_back is not None and frame.f_back.f_code.co_name == "started_pool"
            is_out = frame.f_code.co_qualname in _OUT and not starts_threads
            if is_out and (found := _stack(frame)) & {"edge_agent/remote.py"}:
                self.handed["sink" if "broker/paho/client.py" in found else "socket"] |= found
        elif event == "c_call" and function.__name__ == "sendmsg":
            self.handed["socket"] |= _stack(frame)
        elif event == "c_call" and function.__name__ in {"put", "write"}:
            found = _stack(frame)
            on_the_way = found & {"client/requester.py", "edge_agent/sinks/jsonl_sink.py"}
            if on_the_way and "cli/edge/running.py" not in found:  # else a part is opened or closed
                self.handed["sink"] |= found


def _short(frame: FrameType) -> str:
    path = Path(frame.f_code.co_filename)
    return str(path.relative_to(_PACKAGE)) if path.is_relative_to(_PACKAGE) else ""


def _stack(frame: FrameType | None) -> set[str]:
    """Return the files on the stack, without those that start any command."""
    found = set()
    while frame is not None:
        found.add(_short(frame))
        frame = frame.f_back
    return {each for each in found if each and (not each.startswith(("cli/", "__")) or each.startswith("cli/edge/"))}


@pytest.mark.broker
@pytest.mark.slow
def test_a_frame_takes_the_two_walks_of_the_architecture(
    tmp_path: Path,
    broker_url: str,
    write_echo: Callable[..., Path],
    serve: Callable[..., Worker],
    unique: Callable[[str], str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No other file hands a frame on, each that is listed takes part, and a walk has at most 15."""
    model = unique("walk")
    serve(broker_url, write_echo(model, ("image", "UINT8", [-1, -1, -1, 3])), model)
    bag = write_drive(tmp_path / "drive", ros=2, frames=5, seed=1, width=64, height=48, truth_topic=False)
    words = ["--broker", broker_url, "--model", model, "--encoding", "lz4", "--output-encoding", "lz4"]
    output = ["--output", str(tmp_path / "out"), "--sink", "jsonl"]
    monkeypatch.setattr(sys, "argv", ["mqinfer", "replay", str(bag), *words, *output])
    passage = Passage()
    with passage.traced(), pytest.raises(SystemExit) as ended:
        runpy.run_module("mqinfer", run_name="__main__")
    assert not ended.value.code
    for title, end in (("From an option to the socket", "socket"), ("From the socket to a sink", "sink")):
        listed = walk(title)
        assert 5 < len(listed) <= _MOST
        assert passage.handed[end] <= {*listed}, f"{title}: {passage.handed[end] - {*listed}} hand frames on, too"
        assert {*listed} <= passage.called, f"{title}: no function of { ({*listed} - passage.called) } is called"

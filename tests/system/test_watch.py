"""`mqinfer watch` with a real broker, a real worker and replays with previews."""

from __future__ import annotations

import base64
import json
import signal
import subprocess
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from mqinfer.bags.repair import repair
from mqinfer.broker import make_link
from mqinfer.broker.link import Link, Message
from mqinfer.codecs import encode_tensor
from mqinfer.lab.drives.recording import write_drive
from mqinfer.protocol.envelope import encode_response
from mqinfer.protocol.topics import Topics
from mqinfer.protocol.types import Capture, InferResponse
from tests.commands import command
from tests.mcap_files import messages
from tests.patience import wait_until
from tests.segmenter import write_segmenter

pytestmark = [pytest.mark.broker, pytest.mark.slow]
FRAMES = 24
PATIENCE = 120.0


class Site:
    """A topic root of a test's own on the session's Mosquitto, and a link that publishes there."""

    def __init__(self, url: str, root: str, link: Link) -> None:
        self.url, self.topics, self.link = url, Topics(root), link
        self.where = ("--broker", url, "--root", root)

    def publish(self, number: int, size: int = 8) -> None:
        """Publish a result, as a worker does."""
        outputs = (encode_tensor("y", np.zeros((1, size, 1, 1), np.uint8)),)
        reply = InferResponse(f"{number:032x}", "seg", "1", outputs=outputs, capture=Capture("/camera", number))
        self.link.publish(Message(self.topics.result("seg", "car-1", reply.id), encode_response(reply)))

    @contextmanager
    def watching(self, errors: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
        """Start `mqinfer watch`, and wait until it receives; it is killed in the end if it still runs.

        Args:
            errors: The file for its standard error.
            options: Of the command.
        """
        with errors.open("w") as file:
            line = command("watch", *self.where, *options)
            with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=file, text=True) as process:
                try:
                    wait_until(lambda: "watching" in errors.read_text())
                    yield process
                finally:
                    process.kill()


@pytest.fixture
def site(broker_url: str, unique: Callable[[str], str]) -> Iterator[Site]:
    """A site without a worker."""
    link = make_link(broker_url, client_id=unique("publisher"))
    link.open()
    yield Site(broker_url, unique("test"), link)
    link.close()


def read(path: Path) -> dict[str, dict[int, dict[str, Any]]]:
    """Return the messages of a recording by kind and sequence number."""
    found: dict[str, dict[int, dict[str, Any]]] = defaultdict(dict)
    for topic, _, message, body in messages(path):
        source, _, kind = topic.rpartition("/mqinfer/")
        assert source in {"/car-1/camera", "/car-1/camera/image_raw"}
        found[kind][message.sequence] = body
    return found


def test_a_recording_of_an_edge(tmp_path: Path, serving: Callable[[Path], Topics], site: Site) -> None:
    """All results of a replay with the masks that the edge has, and previews of their own frames; the same as JSON."""
    drive = write_drive(tmp_path / "drive", ros=2, frames=FRAMES, seed=4, width=192, height=128, truth_topic=False)
    topics = serving(write_segmenter(tmp_path / "models", "seg"))
    site = Site(site.url, topics.root, site.link)
    saving = ("seg", "--save", str(tmp_path / "saved"), "--quiet", "--count", str(FRAMES))
    printing = ("seg", "--json", "--count", str(FRAMES))
    with (
        site.watching(tmp_path / "saving", *saving) as recorder,
        site.watching(tmp_path / "printing", *printing) as printer,
    ):
        options = ("--model", "seg", "--rate", "1", "--preview", "10", "--name", "car-1", "--sink", "jsonl")
        replay = command("replay", str(drive), *site.where, *options, "--output", str(tmp_path / "own"))
        subprocess.run(replay, check=True, capture_output=True, timeout=PATIENCE)
        printed = [json.loads(line) for line in printer.communicate(timeout=PATIENCE)[0].splitlines()]
        out = recorder.communicate(timeout=PATIENCE)[0]
    assert (recorder.returncode, printer.returncode, out) == (0, 0, "")
    own = [json.loads(line) for line in (tmp_path / "own" / "results.jsonl").read_text().splitlines()]
    hashes = {each["sequence"]: each["outputs"]["output"]["hash"] for each in own}
    assert {each["sequence"]: each["outputs"]["output"]["hash"] for each in printed} == hashes
    assert {each["client"] for each in printed} == {"car-1"}
    found = read(tmp_path / "saved" / "results.mcap")
    assert {number: each["outputs"]["output"]["hash"] for number, each in found["result"].items()} == hashes
    stamps = {each["sequence"]: each["capture_time_ns"] for each in own}
    assert {number: each["capture_time_ns"] for number, each in found["result"].items()} == stamps
    assert 1 <= len(found["image"]) <= FRAMES
    assert found["image"].keys() == found["overlay"].keys()
    assert f"recorded {FRAMES} results, {len(found['image'])} with a preview" in (tmp_path / "saving").read_text()
    for number, image in found["image"].items():
        assert image["timestamp"] == found["classes"][number]["timestamp"] == found["annotations"][number]["timestamp"]
        picture = cv2.imdecode(np.frombuffer(base64.b64decode(image["data"]), np.uint8), cv2.IMREAD_COLOR)
        assert picture is not None
        assert picture.shape[:2] == (found["classes"][number]["height"], found["classes"][number]["width"])


def test_signals(site: Site, tmp_path: Path) -> None:
    """Ctrl-C is the end of a watch without an end; before the results that were asked for it is an interruption."""
    for options, expected in (((), 0), (("--count", "5"), 130)):
        with site.watching(tmp_path / "errors", "seg", *options) as process:
            site.link.publish(Message(site.topics.result("seg", "probe", "r"), b"no result"))
            site.publish(1)
            assert process.stdout
            assert "/camera  1  ok" in process.stdout.readline()
            process.send_signal(signal.SIGINT)
            assert process.communicate(timeout=PATIENCE)[0] == ""
        assert process.returncode == expected
        summary = (tmp_path / "errors").read_text()
        assert "received 2; dropped: unreadable 1" in summary
        assert "Traceback" not in summary


def test_a_reader_that_leaves(site: Site, tmp_path: Path) -> None:
    """Where nobody reads the lines any more, as with `head -1`, the command ends without an error; files are whole."""
    numbers = iter(range(1, 10**6))

    def has_ended() -> bool:
        site.publish(next(numbers))
        return process.poll() is not None

    with site.watching(tmp_path / "errors", "seg", "--save", str(tmp_path)) as process:
        assert process.stdout
        site.publish(0)
        process.stdout.readline()
        process.stdout.close()
        wait_until(has_ended)
    assert process.returncode == 0
    assert "Traceback" not in (tmp_path / "errors").read_text()
    assert 0 in read(tmp_path / "results.mcap")["result"]


def memory_of(pid: int) -> int:
    """Return the resident memory of a process, in bytes."""
    line = next(each for each in Path(f"/proc/{pid}/status").read_text().splitlines() if each.startswith("VmRSS"))
    return int(line.split()[1]) << 10


def test_a_reader_that_is_slow(site: Site, tmp_path: Path) -> None:
    """While nobody reads 200 MB, memory stays bounded; what is dropped is counted, the newest results come at last."""
    with site.watching(tmp_path / "errors", "seg", "--json", "--tensors", "--buffer", "16") as process:
        before = memory_of(process.pid)
        for number in range(1000):
            site.publish(number, size=200_000)
        acknowledged = threading.Event()
        site.link.publish(Message(site.topics.result("seg", "probe", "r"), b""), lambda _: acknowledged.set())
        assert acknowledged.wait(PATIENCE)
        assert memory_of(process.pid) - before < 150 << 20
        process.send_signal(signal.SIGINT)
        out = process.communicate(timeout=PATIENCE)[0]
    assert process.returncode == 0
    numbers = [json.loads(line)["sequence"] for line in out.splitlines()]
    assert numbers == sorted(set(numbers))
    assert "overflow" in (tmp_path / "errors").read_text()


def test_a_kill(site: Site, tmp_path: Path) -> None:
    """What was recorded until about a second before is in the file, which can be repaired and read."""
    saved, repaired = tmp_path / "saved", tmp_path / "repaired.mcap"
    with site.watching(tmp_path / "errors", "seg", "--save", str(saved), "--quiet") as process:
        for number in range(10):
            site.publish(number)
        file = saved / "results.mcap"
        wait_until(lambda: file.exists() and file.stat().st_size > 4000)
        process.kill()
        process.wait(PATIENCE)
    repair(file, repaired)
    found = read(repaired)["result"]
    assert found.keys() == set(range(len(found)))
    assert found

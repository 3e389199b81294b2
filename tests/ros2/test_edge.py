"""`mqinfer edge ros2:TOPIC`: the whole command between a publisher of ROS 2, a broker and a worker."""

from __future__ import annotations

import json
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from mqinfer.bags.ros2.source import SLOW
from mqinfer.bags.writer import BagWriter
from mqinfer.broker.mosquitto.server import MosquittoServer
from mqinfer.edge_agent.sinks.ros.messages import message
from tests.commands import command, mqinfer
from tests.patience import wait_until
from tests.ros2.picture import FRAME_ID, HEIGHT, LENS, NANOSECONDS, WIDTH, pixels

pytestmark = [pytest.mark.broker, pytest.mark.slow]

ECHO = ("image", "UINT8", [-1, HEIGHT, WIDTH, 3])
CONFIG = f'[image]\ninput = "image"\nwidth = {WIDTH}\nheight = {HEIGHT}\n'
FILES = ("--sink", "jsonl", "--sink", "npz", "--encoding", "lz4", "--output-encoding", "lz4")


@pytest.fixture
def edge(tmp_path: Path, server: MosquittoServer) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Start the command with a topic of ROS 2; its results are in `out`, its standard error in `log`."""
    started: list[subprocess.Popen[bytes]] = []

    def run(topic: str, *options: object) -> subprocess.Popen[bytes]:
        words = ("--broker", server.url, "--model", "echo", "--policy", "all", "--output", tmp_path / "out", *FILES)
        with (tmp_path / "log").open("wb") as log:
            line = command("edge", "--source", f"ros2:{topic}", *words, *options)
            started.append(subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=log))
        return started[-1]

    yield run
    for process in started:
        process.kill()
        process.wait()


def results(folder: Path) -> list[dict[str, Any]]:
    """Return the whole lines of the results."""
    path = folder / "results.jsonl"
    content = path.read_bytes() if path.exists() else b""
    return [json.loads(line) for line in content[: content.rfind(b"\n") + 1].splitlines()]


def number_of(line: dict[str, Any]) -> int:
    """Return the number of a result's picture."""
    number, rest = divmod(line["capture_time_ns"], 10**9)
    assert (line["outcome"], line["frame_id"], rest) == ("ok", FRAME_ID, NANOSECONDS)
    return int(number)


def seen(folder: Path) -> list[Any]:
    """Return the pictures that the model got, in their order."""
    return [np.load(path)["image"][0] for path in sorted((folder / "outputs").glob("*/*.npz"))]


def end(process: subprocess.Popen[bytes], log: Path) -> None:
    """Stop the command as its operator does."""
    process.send_signal(signal.SIGTERM)
    assert process.wait(90) == 0, log.read_text()


def test_a_thousand_pictures(
    tmp_path: Path,
    edge: Callable[..., subprocess.Popen[bytes]],
    server: MosquittoServer,
    serve: Any,
    write_echo: Callable[..., Path],
    publish: Callable[[], Any],
    topic: str,
    domain: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of a publisher that is killed, and one after it: pixels are equal, in order, and each came or is in the counts.

    The model is slower than they are. Pictures on the same topic of another domain do not come.
    """
    serve(server.url, write_echo("echo", ECHO, config=CONFIG, delay_ms=3))
    process = edge(topic, "--window", 1, "--summary", tmp_path / "summary.json")
    first = publish()
    first.tell(f"publish {topic} Image 0", f"wait {topic}")
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("ROS_DOMAIN_ID", str(domain + 100))
        publish().tell(f"publish {topic} Image 1", f"send {topic} 5000 10 0")

    def wait_for(number: int) -> None:
        def has_come() -> bool:
            assert process.poll() is None, (tmp_path / "log").read_text()
            return any(number_of(line) == number for line in results(tmp_path / "out")[-1:])

        wait_until(has_come)

    first.tell(f"send {topic} 0 500 1")
    wait_for(499)  # what a killed publisher has not sent by then, nobody can count
    first.kill()
    second = publish()
    second.tell(f"publish {topic} Image 0", f"wait {topic}", f"send {topic} 500 500 1")
    wait_for(999)
    end(process, tmp_path / "log")
    lines, pictures = results(tmp_path / "out"), seen(tmp_path / "out")
    numbers = [number_of(line) for line in lines]
    assert numbers == sorted(set(numbers))
    assert [line["sequence"] for line in lines] == list(range(len(lines)))
    for number, picture in zip(numbers, pictures, strict=True):
        assert picture[..., 0].tobytes() == picture[..., 2].tobytes() == pixels(number)
    missed: Counter[str] = Counter()
    for line in lines:
        missed.update(line.get("missed", {}).get(topic, {}))
    assert set(missed) == {SLOW}
    assert len(lines) + missed.total() == 1000
    assert json.loads((tmp_path / "summary.json").read_text())["missed"] == {topic: missed}


def test_a_lens_and_compressed_pictures(
    tmp_path: Path,
    edge: Callable[..., subprocess.Popen[bytes]],
    server: MosquittoServer,
    serve: Any,
    write_echo: Callable[..., Path],
    publish: Callable[[], Any],
    topic: str,
) -> None:
    """What the model gets with `--rectify` is what it gets of a bag with the same messages."""
    serve(server.url, write_echo("echo", ECHO, config=CONFIG))
    compressed, lens = f"{topic}/compressed", f"{topic.removesuffix('/image_raw')}/camera_info"
    process = edge(compressed, "--rectify")
    publisher = publish()
    publisher.tell(f"publish {lens} CameraInfo 1", f"send {lens} 1 1 0", f"publish {compressed} CompressedImage 0")
    publisher.tell(f"wait {compressed}", f"wait {lens}")

    def is_rectified() -> bool:  # the lens may come a moment after the first picture
        publisher.tell(f"send {compressed} 3 1 0")
        return any(not np.array_equal(each[..., 0], plain(3)) for each in seen(tmp_path / "out"))

    wait_until(is_rectified)
    publisher.tell(f"send {compressed} 4 3 0")
    wait_until(lambda: any(number_of(line) == 6 for line in results(tmp_path / "out")[-1:]))
    end(process, tmp_path / "log")
    write_bag(tmp_path / "bag", compressed, lens, range(4, 7))
    words = ("--broker", server.url, "--model", "echo", "--output", tmp_path / "of-bag", "--rectify", *FILES)
    replayed = mqinfer("replay", tmp_path / "bag", *words)
    assert replayed.returncode == 0, replayed.stderr
    of_bag = seen(tmp_path / "of-bag")
    assert len(of_bag) == 3
    assert not np.array_equal(of_bag[0][..., 0], plain(4))
    assert np.array_equal(of_bag, seen(tmp_path / "out")[-3:])


def plain(number: int) -> Any:
    """Return the pixels of a picture."""
    return np.frombuffer(pixels(number), np.uint8).reshape(HEIGHT, WIDTH)


def write_bag(path: Path, compressed: str, lens: str, numbers: range) -> None:
    """Write what the publisher sends."""

    def header(number: int) -> Any:
        return message("std_msgs/msg/Header", message("builtin_interfaces/msg/Time", number, NANOSECONDS), FRAME_ID)

    matrices = (LENS.distortion, LENS.intrinsic, LENS.rectification, LENS.projection)
    region = message("sensor_msgs/msg/RegionOfInterest", 0, 0, 0, 0, False)
    bag = BagWriter(path, "mcap")
    camera = (LENS.height, LENS.width, LENS.distortion_model, *map(np.array, matrices), 0, 0, region)
    bag.add(lens, message("sensor_msgs/msg/CameraInfo", header(1), *camera), 10**9)
    for number in numbers:
        png = np.frombuffer(cv2.imencode(".png", plain(number))[1].tobytes(), np.uint8)
        picture = message("sensor_msgs/msg/CompressedImage", header(number), "mono8; png compressed mono8", png)
        bag.add(compressed, picture, number * 10**9)
    bag.close()


def test_a_topic_of_another_type_is_refused(
    server: MosquittoServer, publish: Callable[[], Any], topic: str, domain: int
) -> None:
    """By its name; a command that does not wait for its sources ends with that."""
    publisher = publish()
    publisher.tell(f"publish {topic} Range 0")
    ended = mqinfer("replay", f"ros2:{topic}", "--model", "echo", "--broker", server.url)
    assert ended.returncode != 0
    assert f"ros2:{topic} has sensor_msgs/msg/Range, no pictures in domain {domain};" in ended.stderr

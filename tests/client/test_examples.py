"""The scripts of examples/, run as a user runs them: with a broker, a worker, and the environment's variables."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import threading
from array import array
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.client.conftest import Serve, WriteEcho

EXAMPLES = Path(__file__).parents[2] / "examples"
pytestmark = pytest.mark.broker


def run(example: str, model: str, broker_url: str) -> list[str]:
    """Run a script, and return the lines that it prints."""
    found = subprocess.run(
        [sys.executable, EXAMPLES / example, model],
        env={**os.environ, "MQINFER_BROKER": broker_url},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    assert not found.stderr
    return found.stdout.splitlines()


@pytest.fixture
def model(broker_url: str, serve: Serve, write_echo: WriteEcho, unique: Callable[[str], str]) -> str:
    """The name of a model that is served; its card says what to send."""
    name = unique("echo")
    serve(broker_url, write_echo(name, ("x", "FP32", [-1, 4]), delay_ms=15), name)
    return name


def test_blocking(broker_url: str, model: str) -> None:
    """One request, and twenty at once."""
    first, *_, last = run("blocking.py", model, broker_url)
    assert first.startswith("x: float32 (1, 4) from ")
    assert last == "20 of 20 answered"


def test_asyncio(broker_url: str, model: str) -> None:
    """Twenty tasks, each with its result."""
    lines = run("asyncio_client.py", model, broker_url)
    assert [line.split()[1] for line in lines] == ["ok"] * 20


def test_stream(broker_url: str, model: str) -> None:
    """A hundred frames, each with its outcome; the model is slower than the source, and no frame fails."""
    *frames, counts = run("stream.py", model, broker_url)
    found = {outcome: int(count) for count, outcome in (part.split() for part in counts.split(", "))}
    assert sum(found.values()) == 100
    assert found["ok"] == len(frames)
    assert set(found) <= {"ok", "superseded"}


class StandInNode:
    """What the example uses of a `rclpy.node.Node`."""

    def __init__(self, parameters: dict[str, Any]) -> None:
        self._parameters = parameters
        self.published: list[Any] = []
        self.warnings: list[str] = []
        self.callbacks: dict[str, Callable[[Any], None]] = {}
        self.received = threading.Event()

    def declare_parameter(self, name: str, value: Any) -> Any:
        """Return the parameter, with the value of the command line if there is one."""
        return SimpleNamespace(value=self._parameters.get(name, value))

    def get_logger(self) -> Any:
        """Return a logger."""
        return SimpleNamespace(warning=self.warnings.append)

    def create_publisher(self, kind: type, topic: str, depth: int) -> Any:
        """Return a publisher whose messages the test reads."""
        assert (kind, topic, depth) == (StandInImage, "mask", 10)

        def publish(message: Any) -> None:
            assert type(message) is StandInImage
            self.published.append(message)
            self.received.set()

        return SimpleNamespace(publish=publish)

    def create_subscription(self, _kind: type, topic: str, callback: Callable[[Any], None], _qos: Any) -> None:
        """Keep the callback for `spin`."""
        self.callbacks[topic] = callback

    def destroy_node(self) -> None:
        """Forget the callbacks."""
        self.callbacks.clear()


class StandInImage:
    """A `sensor_msgs/msg/Image`: made of keywords, its data an `array` of bytes as rclpy's messages have it."""

    def __init__(self, **fields: Any) -> None:
        self.header = SimpleNamespace(stamp=SimpleNamespace(sec=0, nanosec=0), frame_id="")
        self.height = self.width = self.step = 0
        self.encoding, self.is_bigendian = "", 0
        self._data = array("B")
        for name, value in fields.items():
            assert hasattr(self, name), name
            setattr(self, name, value)

    @property
    def data(self) -> array[int]:
        """The pixels."""
        return self._data

    @data.setter
    def data(self, value: array[int]) -> None:
        assert value.typecode == "B"
        self._data = value


class ShutdownError(Exception):
    """What `rclpy.spin` raises on SIGINT in newer distributions; in older ones it is KeyboardInterrupt."""


@pytest.mark.parametrize("end", [KeyboardInterrupt, ShutdownError])
def test_the_ros_2_node(
    broker_url: str,
    serve: Serve,
    write_echo: WriteEcho,
    unique: Callable[[str], str],
    monkeypatch: pytest.MonkeyPatch,
    end: type[BaseException],
) -> None:
    """Pictures with padded rows come back under their stamp and frame; one of a wrong encoding costs only itself."""
    model = unique("echo")
    config = '[image]\ninput = "x"\nlayout = "NHWC"\nwidth = 6\nheight = 4\nscale = 1.0\n'
    serve(broker_url, write_echo(model, ("x", "UINT8", [-1, 4, 6, 3]), config=config), model)
    node = StandInNode({"model": model})
    pixels = np.random.default_rng(1).integers(0, 256, (4, 6, 3), np.uint8)

    def spin(spun: StandInNode) -> None:
        for encoding, stamp in (("nonsense", 1), ("rgb8", 2), ("bgr8", 3)):
            picture = StandInImage(height=4, width=6, step=20, encoding=encoding)
            picture.data = array("B", np.pad(pixels.reshape(4, 18), ((0, 0), (0, 2))).tobytes())
            picture.header.stamp.sec, picture.header.stamp.nanosec, picture.header.frame_id = stamp, 5, "front"
            spun.received.clear()
            spun.callbacks["image"](picture)
            assert encoding == "nonsense" or spun.received.wait(30)
        raise end

    rclpy = {"init": lambda **_: None, "create_node": lambda _: node, "spin": spin, "try_shutdown": lambda: None}
    modules: dict[str, dict[str, object]] = {
        "rclpy": {**rclpy},
        "rclpy.executors": {"ExternalShutdownException": ShutdownError},
        "rclpy.qos": {"qos_profile_sensor_data": object()},
        "sensor_msgs": {},
        "sensor_msgs.msg": {"Image": StandInImage},
    }
    for name, members in modules.items():
        module = ModuleType(name)
        module.__dict__.update(members)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setenv("MQINFER_BROKER", broker_url)
    spec = importlib.util.spec_from_file_location("ros2_node", EXAMPLES / "ros2_node.py")
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    example.main()
    assert len(node.warnings) == 1
    assert "nonsense" in node.warnings[0]
    for message, stamp, sent in zip(node.published, (2, 3), (pixels, pixels[..., ::-1]), strict=True):
        assert (message.header.stamp.sec, message.header.stamp.nanosec, message.header.frame_id) == (stamp, 5, "front")
        # The echo returns the picture, of which a mask would have one channel.
        assert (message.height, message.width, message.step, message.encoding) == (4, 6, 6, "mono8")
        assert bytes(message.data) == sent.tobytes()

from __future__ import annotations

import logging
import sys
import threading
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import islice
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from mqinfer.bags.frame import Frame, FrameSource, StreamInfo, TimeRange
from mqinfer.bags.live import returning
from mqinfer.bags.live.camera import CameraSource
from mqinfer.bags.live.returning import ReturningSource
from mqinfer.bags.several import LiveSources, MergedSources, NamedSource
from mqinfer.bags.sources import is_live, open_source, open_sources
from mqinfer.images.picture import RawImage
from mqinfer.protocol.errors import ConfigError, MissingExtra, SourceError

IMAGE = RawImage("mono8", 1, 1, 1, is_bigendian=False, data=b"x")


class Recorded:
    """A source of frames with these log times, which breaks off at a None."""

    def __init__(self, name: str, times: Sequence[int | None]) -> None:
        self.name, self.times, self.is_closed = name, times, False

    def streams(self) -> tuple[StreamInfo, ...]:
        """Return the one stream."""
        return (StreamInfo(self.name, "camera", "mono8", 1, 1, None, None),)

    def frames(self) -> Iterator[Frame]:
        """Yield the frames."""
        for number, time_ns in enumerate(self.times):
            if time_ns is None:
                raise SourceError(f"{self.name} broke off")
            yield Frame(self.name, number, time_ns, time_ns, "", IMAGE)

    def close(self) -> None:
        """Remember it."""
        self.is_closed = True


def opening(*each: FrameSource | None) -> Callable[[], FrameSource]:
    """Return a function that opens one source after the other; None for one that is away, and so are all later ones."""
    left = iter(each)

    def reopen() -> FrameSource:
        if (source := next(left, None)) is None:
            raise SourceError("nothing is there")
        return source

    return reopen


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """No long pauses between attempts."""
    monkeypatch.setattr(returning, "_SHORTEST_PAUSE_S", 0.001)
    monkeypatch.setattr(returning, "_LONGEST_PAUSE_S", 0.002)


class TestReturning:
    """A live source that drops is opened again."""

    def test_a_camera_of_the_network(self, stalling: Callable[[int], str], caplog: pytest.LogCaptureFixture) -> None:
        """Its stream stalls twice: frames go on under one name and numbers; two lines an outage."""
        with closing(ReturningSource("front", partial(CameraSource, stalling(20), timeout=0.5))) as source:
            frames = list(islice(source.frames(), 45))
        assert [(frame.source, frame.sequence) for frame in frames] == [("front", number) for number in range(45)]
        assert [frame.log_time_ns for frame in frames] == sorted(frame.log_time_ns for frame in frames)
        lines = [record.getMessage() for record in caplog.records]
        assert len([line for line in lines if line.endswith("trying again")]) == 2
        assert len([line for line in lines if line.startswith("front is back after")]) == 2

    def test_away_at_the_start(self, caplog: pytest.LogCaptureFixture) -> None:
        """A service waits for it, with one line; anybody else gets the error at once."""
        with pytest.raises(SourceError, match="nothing is there"):
            ReturningSource("front", opening(None))
        attempts = iter([None] * 5 + [Recorded("x", [1, 2])])

        def reopen() -> FrameSource:
            return opening(next(attempts))()

        source = ReturningSource("front", reopen, waits=True)
        assert [stream.source for stream in source.streams()] == ["front"]
        assert [frame.sequence for frame in source.frames()] == [0, 1]
        assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING][0:1] == [
            "front: nothing is there; trying again"
        ]
        assert len(caplog.records) == 2

    def test_what_breaks_off_is_closed(self) -> None:
        """Before it is opened again: a device has one owner."""
        first, second = Recorded("x", [1, None]), Recorded("x", [2])
        source = ReturningSource("x", opening(first, second))
        frames = source.frames()
        assert (next(frames).sequence, first.is_closed) == (0, False)
        assert (next(frames).sequence, first.is_closed) == (1, True)
        source.close()
        assert second.is_closed

    def test_a_stop_ends_an_outage(self) -> None:
        """By the question that is asked again and again, or from another thread."""
        stop = threading.Event()
        source = ReturningSource("x", opening(Recorded("x", [1, None])), is_stopped=stop.is_set)
        frames = source.frames()
        next(frames)
        stop.set()
        assert list(frames) == []
        source = ReturningSource("x", opening(Recorded("x", [1, None])))
        thread = threading.Thread(target=list, args=(source.frames(),), name="test-outage")
        thread.start()
        source.halt()
        thread.join()

    def test_the_duration_holds_beyond_an_outage(self) -> None:
        """It counts from the first attempt, whatever comes between; nothing waits longer."""
        clock = iter(range(0, 10**12, 10**8)).__next__
        source = ReturningSource("x", opening(Recorded("x", [1, 2, None])), span=TimeRange(duration=2.0), clock=clock)
        assert len(list(source.frames())) == 2

    def test_a_file_of_the_network_ends(self) -> None:
        """A stream that states its length is not read again from its beginning."""

        class File(Recorded):
            def streams(self) -> tuple[StreamInfo, ...]:
                return (StreamInfo(self.name, "camera", "mono8", 1, 1, 2, None),)

        source = ReturningSource("x", opening(File("x", [1, 2, None]), Recorded("x", [3])))
        with pytest.raises(SourceError, match="broke off"):
            list(source.frames())


class _Heads(BaseHTTPRequestHandler):
    """A camera whose first picture has heads without end."""

    def do_GET(self) -> None:
        """Send them until the client leaves."""
        self.send_response(200)
        self.send_header("Content-Type", "multipart/x-mixed-replace; boundary=b")
        self.end_headers()
        self.wfile.write(b"--b\r\n")
        with suppress(ConnectionError):
            while True:
                self.wfile.write(b"X-Head: 1\r\n" * 99)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@pytest.fixture
def heads() -> Iterator[str]:
    """URL of such a camera."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Heads) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, name="heads-camera")
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


def test_a_camera_that_never_comes_to_a_picture(
    heads: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It can be opened: an error in words, or an outage as any other where it is waited for."""
    monkeypatch.setattr("mqinfer.bags.live.camera._OPENED_MS", 500)
    with pytest.raises(SourceError, match="it can be opened and no picture comes; check what is sent there"):
        open_source(heads)
    span = TimeRange(duration=2.0)
    with (
        closing(open_sources([f"front={heads}"], span=span, waits=True)) as source,
        pytest.raises(SourceError, match="no frame came of it"),
    ):
        list(source.frames())
    (line,) = [record.getMessage() for record in caplog.records if record.name == "mqinfer.bags"]
    assert line.startswith("front: http://127.0.0.1")
    assert line.endswith("; trying again")


def test_a_live_source_that_sent_nothing() -> None:
    """The end of the time that was asked for is an error then; a stop is none."""
    stop = threading.Event()

    def opened(is_stopped: Callable[[], bool]) -> list[Frame]:
        source = open_sources(["camera:99"], span=TimeRange(duration=0.01), is_stopped=is_stopped, waits=True)
        with closing(source):
            return list(source.frames())

    with pytest.raises(SourceError, match="camera:99: no frame came of it"):
        opened(stop.is_set)
    stop.set()
    assert opened(stop.is_set) == []


def test_logins_are_not_shown(stalling: Callable[[int], str]) -> None:
    """User and password of a URL are in no name of a stream, and in no error."""
    with pytest.raises(SourceError, match=r"^rtsp://127\.0\.0\.1:1/none: can't") as failed:
        open_source("rtsp://driver:secret@127.0.0.1:1/none")
    assert "secret" not in str(failed.value)
    url = stalling(5).replace("http://", "http://driver:secret@")
    with closing(open_source(url)) as source:
        assert next(source.frames()).source == source.streams()[0].source == stalling(5)


class TestSeveral:
    """Several sources as one."""

    def test_recordings_are_merged_by_log_time(self) -> None:
        """One that breaks off is left out, the others go on, and the error comes at the end."""
        a, b = Recorded("a", [1, 4, None]), Recorded("b", [2, 3, 5])
        got: list[int] = []
        with closing(MergedSources([a, b])) as source, pytest.raises(SourceError, match="a broke off"):
            got.extend(frame.log_time_ns for frame in source.frames())
        assert got == [1, 2, 3, 4, 5]
        assert a.is_closed
        assert b.is_closed

    def test_names(self) -> None:
        """Two streams of one name are refused, since nobody could tell them apart; a name makes them two."""
        same = [Recorded("/image", [1]), Recorded("/image", [2])]
        with pytest.raises(ConfigError, match="stream /image; give each source a name of its own: NAME=SOURCE"):
            MergedSources(same)
        named = MergedSources([NamedSource("left", same[0]), same[1]])
        assert [frame.source for frame in named.frames()] == ["left", "/image"]
        assert [stream.source for stream in named.streams()] == ["left", "/image"]

    def test_live_ones_go_on_without_one(self) -> None:
        """Each is read on its own; one that ends by a defect is named at the end."""

        class Faulty(Recorded):
            def frames(self) -> Iterator[Frame]:
                raise ZeroDivisionError

        each = [
            ReturningSource(name, opening(source))
            for name, source in (("a", Recorded("a", [1, 2])), ("b", Faulty("b", [])))
        ]
        got: list[int] = []
        with closing(LiveSources(each)) as source, pytest.raises(Exception, match="ZeroDivisionError"):
            got.extend(frame.sequence for frame in source.frames())
        assert got == [0, 1]

    def test_closing_joins_what_waits(self, stalling: Callable[[int], str]) -> None:
        """One camera delivers, one is away, one has a frame that nobody takes: closing ends all three."""
        delivers = partial(CameraSource, stalling(1000), timeout=0.5)
        away = ReturningSource("away", opening(Recorded("away", [None])))
        source = LiveSources([ReturningSource("a", delivers), ReturningSource("b", delivers), away])
        with closing(source):
            frames = source.frames()
            missing = {"a", "b"}
            while missing:
                missing -= {next(frames).source}
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("mqinfer-source")]

    def test_kinds_that_do_not_go_together(self) -> None:
        """Live sources and recordings have different clocks."""
        with pytest.raises(ConfigError, match="replay them apart"):
            open_sources(["camera:0", "drive.bag"])


@pytest.mark.parametrize(
    ("spec", "live"),
    [
        ("camera:0", True),
        ("front=rtsp://host/1", True),
        ("ros2:/image", True),
        ("rclpy:/image", True),
        ("a=b.mp4", False),
        ("x.bag", False),
    ],
)
def test_what_is_live(spec: str, live: bool) -> None:  # noqa: FBT001 - a parameter of the test
    """With a name or without."""
    assert is_live(spec) is live


class StandInRos:
    """What `RclpySource` uses of rclpy: a context, a node and an executor, which delivers one message a turn."""

    def __init__(self, topics: dict[str, list[str]], messages: Sequence[Any]) -> None:
        self.topics, self.messages, self.is_up = topics, list(messages), True
        self.callback: Callable[[Any], None] = lambda _: None

    def modules(self) -> dict[str, dict[str, object]]:
        """Return the members of the modules."""
        node = SimpleNamespace(
            get_topic_names_and_types=lambda: list(self.topics.items()),
            create_subscription=self._subscribe,
            destroy_node=lambda: None,
        )
        context = SimpleNamespace(ok=lambda: self.is_up, try_shutdown=lambda: setattr(self, "is_up", False))
        executor = SimpleNamespace(add_node=lambda _: None, shutdown=lambda: None, spin_once=self._turn)
        functions = {"Context": context, "init": None, "create_node": node}
        return {
            "rclpy": {name: partial(_returned, made) for name, made in functions.items()},
            "rclpy.executors": {"SingleThreadedExecutor": partial(_returned, executor)},
            "rclpy.qos": {"qos_profile_sensor_data": object()},
            "sensor_msgs": {},
            "sensor_msgs.msg": {"Image": object, "CompressedImage": object},
        }

    def _subscribe(self, _kind: type, _topic: str, callback: Callable[[Any], None], _qos: object) -> None:
        self.callback = callback

    def _turn(self, timeout_sec: float) -> None:
        assert timeout_sec < 1
        if self.messages:
            self.callback(self.messages.pop(0))
        else:
            self.is_up = False


def _returned(made: object, *_: object, **__: object) -> object:
    return made


def message(stamp: int, **fields: Any) -> Any:
    """Return a message with a header, its data as rclpy has it."""
    header = SimpleNamespace(stamp=SimpleNamespace(sec=stamp, nanosec=5), frame_id="front")
    return SimpleNamespace(header=header, data=array("B", [1, 2, 3, 4]), **fields)


class TestRclpy:
    """Topics of a running ROS 2, with a stand-in for rclpy: ROS 2 itself is not installed where the tests run."""

    @pytest.fixture
    def install(self, monkeypatch: pytest.MonkeyPatch) -> Callable[[StandInRos], None]:
        """Install a stand-in."""

        def install(stand_in: StandInRos) -> None:
            for name, members in stand_in.modules().items():
                module = ModuleType(name)
                module.__dict__.update(members)
                monkeypatch.setitem(sys.modules, name, module)

        return install

    def test_pictures(self, install: Callable[[StandInRos], None]) -> None:
        """They have the header's stamp and frame, and the number of their coming; a shutdown is an outage."""
        raw = message(7, encoding="mono8", height=2, width=2, step=2, is_bigendian=0)
        install(StandInRos({"/image": ["sensor_msgs/msg/Image"]}, [raw, message(8, format="jpeg")]))
        stop = threading.Event()
        with closing(open_sources(["left=rclpy:/image"], is_stopped=stop.is_set)) as source:
            frames = list(islice(source.frames(), 2))
            stop.set()
        assert [(frame.source, frame.sequence, frame.capture_time_ns, frame.frame_id) for frame in frames] == [
            ("left", 0, 7_000_000_005, "front"),
            ("left", 1, 8_000_000_005, "front"),
        ]
        assert bytes(frames[0].image.data) == bytes(frames[1].image.data) == b"\1\2\3\4"

    def test_a_topic_without_pictures(self, install: Callable[[StandInRos], None]) -> None:
        """The error lists those that have some."""
        topics = {"/scan": ["sensor_msgs/msg/LaserScan"], "/image": ["sensor_msgs/msg/CompressedImage"]}
        for topic, what in (("/scan", "has no pictures"), ("/none", "is published by nobody")):
            install(StandInRos(topics, []))
            with pytest.raises(SourceError, match=f"rclpy:{topic} {what}; topics with pictures: /image"):
                open_sources([f"rclpy:{topic}"], is_stopped=lambda: True)

    def test_without_ros(self) -> None:
        """What is missing is named, and where to run this."""
        with pytest.raises(MissingExtra, match=r"rclpy can't be imported .* setup\.bash"):
            open_source("rclpy:/image")

"""Which frames are collected, within which bytes, and that none is kept twice or half."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from rosbags.highlevel import AnyReader
from rosbags.typesys import Stores, get_typestore

from mqinfer.bags.frame import Frame
from mqinfer.bags.sources import open_source, open_sources
from mqinfer.client.connection import connect
from mqinfer.client.requester import Requester
from mqinfer.client.result import InferResult
from mqinfer.edge_agent.collecting.collector import Collected, Collector, CollectSettings, Why
from mqinfer.edge_agent.collecting.store import Drop, Store
from mqinfer.edge_agent.collecting.upload import upload
from mqinfer.edge_agent.control import EdgeControl
from mqinfer.edge_agent.metrics import add_edge
from mqinfer.edge_agent.model_run import ModelRun
from mqinfer.edge_agent.output_files import lock
from mqinfer.edge_agent.reporting.report import published_words
from mqinfer.edge_agent.session import run_sessions
from mqinfer.edge_agent.settings import ReplayOptions
from mqinfer.images.picture import CameraInfo, CompressedImage, RawImage
from mqinfer.judging.settings import CascadeSettings, Reference, SmallModel
from mqinfer.lab.drives.recording import write_drive
from mqinfer.metrics.samples import Samples
from mqinfer.protocol.control import Operation
from mqinfer.protocol.datatypes import Array
from mqinfer.protocol.errors import ConfigError
from mqinfer.protocol.header import FALLBACK
from mqinfer.protocol.types import ErrorInfo, Outcome, Stage
from tests.bags.point_messages import cloud, field, imu
from tests.commands import run_main
from tests.edge_agent.test_sinks_mqtt import BOXES, FINDINGS, SCHEMA, view
from tests.settings import settings_of

HEIGHT, WIDTH = 24, 32
SIZE = 3 * HEIGHT * WIDTH
ROOM = (64 << 10) + SIZE
"""Bytes that have to be free for a frame: what its file may take at most, and hardly does."""
CAMERA = CameraInfo(WIDTH, HEIGHT, "plumb_bob", (0.1,) * 5, (1.0,) * 9, (2.0,) * 9, (3.0,) * 12)
NO_IMAGE = RawImage("", 0, 0, 0, is_bigendian=False, data=b"")
CASCADE = CascadeSettings(Reference("yolo"), "car", small=SmallModel("is-car", 0.9, repository=Path()))
NOTHING: dict[str, Array] = {"x": np.zeros((1, 3), np.float32)}
CAR, ROAD = BOXES, {**BOXES, "classes": np.array([1, 1], np.int64)}
DAY_S = 86400.0


def frame(number: int = 0, source: str = "/camera/image") -> Frame:
    """Make a frame of noise that depends on its number, taken a second after the one before."""
    pixels = np.random.default_rng(number).integers(0, 256, SIZE, np.uint8).tobytes()
    image = RawImage("bayer_rggb8", 3 * HEIGHT, WIDTH, WIDTH, is_bigendian=False, data=pixels)
    return Frame(source, number, 10**18 + number * 10**9, 10**18 + number * 10**9 + 7, "front", image)


def result(outputs: Mapping[str, Array], outcome: Outcome = Outcome.OK, code: str = "", **more: Any) -> InferResult:
    """Make a result."""
    error = ErrorInfo(code, "why") if code else None
    return InferResult("1", outcome, "net", "3", "sha256:a", outputs, error, **{"stage": Stage.WORKER.value, **more})


def collect(collector: Collector, *numbers: int, outputs: Mapping[str, Array] = NOTHING, **more: Any) -> None:
    """Write one result a frame."""
    sink = collector.sink(more.pop("cascade", None))
    for number in numbers:
        sink.write(frame(number), view(dict(outputs)), result(outputs, **more))


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[..., Collector]]:
    """Open the folder `kept`: `opened(models=2, rates={"": 10})`."""
    made: list[Collector] = []

    def start(**settings: Any) -> Collector:
        for each in made:
            each.close()
        made[:] = [Collector(CollectSettings(tmp_path / "kept", **settings))]
        return made[0]

    yield start
    for each in made:
        each.close()


def kept(folder: Path) -> list[Frame]:
    """Return the frames of a folder, by what reads recordings; each file has one."""
    files = list(folder.glob("*.mcap"))
    for file in files:
        with closing(open_source(str(file))) as source:
            assert len(list(source.frames())) == 1
    with closing(open_source(str(folder))) as source:
        found = list(source.frames())
    assert len(found) == len(files)
    return found


def numbers(folder: Path) -> list[int]:
    """Return the numbers of the frames of a folder, whose pixels are whole."""
    found = [(each.capture_time_ns - 10**18) // 10**9 for each in kept(folder)]
    for number, each in zip(found, kept(folder), strict=True):
        assert bytes(each.image.data) == bytes(frame(number).image.data)
    return found


def answers(path: Path) -> dict[str, Any]:
    """Return what stands beside a frame."""
    with AnyReader([path]) as reader:
        texts = [each for each in reader.connections if each.topic.endswith("/mqinfer/result")]
        ((connection, _, raw),) = reader.messages(texts)
        message: Any = reader.deserialize(raw, connection.msgtype)
        found: dict[str, Any] = json.loads(message.data)
    return found


def test_a_frame_is_kept_as_it_was_read_with_its_answer(tmp_path: Path, opened: Callable[..., Collector]) -> None:
    """Samples, stamps, calibration and the frame that goes with it; words, and the elements of larger outputs."""
    jpeg = CompressedImage("jpeg", b"\xff\xd8 no picture")
    other = replace(frame(5, "/rear/image"), image=jpeg)
    given = replace(frame(1), camera=CAMERA, joined=(other,))
    outputs = {**FINDINGS["boxes"], "latent": np.arange(100, dtype=np.float32)}
    opened(rates={"": 1}).sink().write(given, view(outputs), result(outputs))
    (path,) = (tmp_path / "kept").glob("*.mcap")
    with closing(open_source(str(path))) as source:
        found = {each.source: each for each in source.frames()}
    one, joined = found["/camera/image"], found["/rear/image"]
    assert isinstance(one.image, RawImage)
    assert (one.image.encoding, bytes(one.image.data)) == ("bayer_rggb8", bytes(frame(1).image.data))
    assert (one.capture_time_ns, one.log_time_ns, one.frame_id) == (10**18 + 10**9, 10**18 + 10**9 + 7, "front")
    assert one.camera == CAMERA
    assert (joined.capture_time_ns, bytes(joined.image.data)) == (other.capture_time_ns, b"\xff\xd8 no picture")
    beside = answers(path)
    assert beside["collected"] == ["rate"]
    (answer,) = beside["results"]
    assert [each["class"] for each in answer["detections"]] == ["car", "road"]
    assert answer["elements"].keys() == {"latent"}
    assert set(answer) - {"elements"} <= set(SCHEMA["properties"])


@pytest.mark.parametrize("store", [Stores.ROS1_NOETIC, Stores.ROS2_HUMBLE])
def test_points_beside_a_picture(tmp_path: Path, opened: Callable[..., Collector], store: Stores) -> None:
    """A cloud and the samples of an IMU are kept as they were read, of either ROS."""
    types: Any = get_typestore(store).types

    def make(kind: str, *fields: Any) -> Any:
        return types[kind](*fields)

    data = np.arange(24, dtype=np.float32).tobytes()
    fields = [field(name, 4 * place, 7, make=make) for place, name in enumerate("xyz")]
    given: dict[str, tuple[Any, ...]] = {
        "/lidar": (cloud(fields, (8, 1), (12, 96), data, 5, make=make),),
        "/imu": (imu(1, 3, make), imu(2, 4, make)),
    }
    joined = tuple(replace(frame(0, topic), image=NO_IMAGE, points=points) for topic, points in given.items())
    opened(rates={"": 1}).sink().write(replace(frame(0), joined=joined), view(NOTHING), result(NOTHING))
    (path,) = (tmp_path / "kept").glob("*.mcap")
    with closing(open_sources([str(path)], ("/camera/image", *given), points=True)) as source:
        found = list(source.frames())
    assert {each.source for each in found} == {"/camera/image", *given}
    (kept,) = (each for each in found if each.source == "/lidar")
    assert (kept.capture_time_ns, bytes(kept.points[0].data)) == (5, data)
    samples = [each for each in found if each.source == "/imu"]
    assert [each.capture_time_ns for each in samples] == [3, 4]
    assert [each.points[0].orientation.w for each in samples] == [0.125, 0.25]


UNSURE, SURE, ALONE, REUSED = (
    {"cascade": CASCADE},
    {"cascade": CASCADE, "stage": Stage.EDGE.value},
    {"cascade": CASCADE, "stage": Stage.EDGE.value, "parameters": {FALLBACK: "no_worker"}},
    {"cascade": CASCADE, "stage": Stage.REUSE.value, "parameters": {FALLBACK: "no_worker"}},
)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (UNSURE, Why.UNSURE),
        (SURE, None),
        (ALONE, Why.UNSURE),
        (REUSED, None),
        ({"cascade": replace(CASCADE, small=None)}, None),
        ({}, None),
        ({"outcome": Outcome.ERROR, "code": "model_failed"}, Why.ERROR),
        ({"outcome": Outcome.ERROR, "code": "bad_image"}, Why.ERROR),
        ({"outcome": Outcome.ERROR, "code": "no_worker"}, None),
        ({"outcome": Outcome.ERROR, "code": "not_connected"}, None),
        ({"outcome": Outcome.EXPIRED, "code": "expired"}, None),
        ({**UNSURE, "outcome": Outcome.SUPERSEDED, "code": "superseded"}, None),
    ],
)
def test_which_frames_matter(opened: Callable[..., Collector], given: dict[str, Any], why: Why | None) -> None:
    """Those that the small model was not sure of, and those that failed by themselves."""
    collector = opened()
    collect(collector, 1, **given)
    assert collector.counts == (Collected({why: 1}, {}, 1) if why else Collected())


@pytest.mark.parametrize(
    ("one", "other", "differ"),
    [
        (CAR, CAR, False),
        (CAR, ROAD, True),
        (CAR, FINDINGS["no objects"], True),
        (FINDINGS["classes"], {"scores": np.array([[0.75, 0.25]], np.float32)}, True),
        (FINDINGS["classes"], {"scores": np.array([[0.45, 0.55]], np.float32)}, False),
        (FINDINGS["mask"], {"mask": 1 - FINDINGS["mask"]["mask"]}, True),
        (FINDINGS["mask"], FINDINGS["mask"], False),
    ],
)
def test_models_that_disagree(tmp_path: Path, one: Any, other: Any, *, differ: bool) -> None:
    """Where two models found different things, the frame is kept once, with both answers."""
    collector = Collector(CollectSettings(tmp_path / "kept"), 2)
    first, second = collector.sink(), collector.sink()
    first.write(frame(1), view(one), result(one))
    first.write(frame(2), view(one), result(one))
    second.write(frame(1), view(other), result(other))
    assert collector.counts == (Collected({Why.DISAGREE: 1}, {}, 1) if differ else Collected())
    collector.close()
    for path in (tmp_path / "kept").glob("*.mcap"):
        assert len(answers(path)["results"]) == 2


def test_several_models_of_a_run(
    tmp_path: Path, edge: Callable[..., Requester], write_echo: Callable[..., Path]
) -> None:
    """The frame is kept once, with the answers of all; the summary of each and Prometheus have what was kept."""
    image = ("image", "UINT8", [-1, 64, 64, 3])
    for name in ("one", "two"):
        repository = write_echo(name, image)
    source = write_drive(tmp_path / "d.bag", ros=1, frames=4, seed=1, width=64, height=64, truth_topic=False)
    collect, runs, samples = CollectSettings(tmp_path / "kept", rates={"": 1}), list[ModelRun](), Samples()
    requester = edge(repository, "one", "two")
    reports = run_sessions(
        settings_of(source, ReplayOptions("one"), collect=collect),
        ["one", "two"],
        requester,
        broker="memory",
        stop=threading.Event(),
        console=Console(quiet=True),
        on_runs=runs.extend,
    )
    add_edge(requester, runs, samples)
    (found,) = [each.samples for each in samples.families() if each.name == "mqinfer_edge_frames_collected"]
    assert [(each.labels, each.value) for each in found] == [({"reason": "rate"}, 1)]
    assert [each.reading.collected for each in reports] == [Collected({Why.RATE: 1}, {}, 1)] * 2
    assert [dict(each) for each in map(published_words, reports)] == [{"collected": "1 frames, 1 rate"}] * 2
    (path,) = (tmp_path / "kept").glob("*.mcap")
    assert {each["model_name"] for each in answers(path)["results"]} == {"one", "two"}


def test_a_model_that_ended_early_holds_up_no_other(tmp_path: Path) -> None:
    """Beyond 64 frames that wait for it the oldest goes on without, and so do all at the end."""
    collector = Collector(CollectSettings(tmp_path / "kept"), 2)
    collect(collector, *range(70), outcome=Outcome.ERROR, code="model_failed")
    assert collector.counts.frames == 70 - 64
    collector.close()
    assert collector.counts.frames == 70


def test_samples_by_class_and_of_any_frame(tmp_path: Path, opened: Callable[..., Collector]) -> None:
    """So many an hour of the frames' own time; a rerun takes the same ones and keeps none again."""

    def run() -> Collected:
        collector = opened(rates={"": 60, "car": 360})
        for number in range(150):
            collect(collector, number, outputs=CAR if number >= 100 else NOTHING)
        return collector.counts

    assert run() == Collected({Why.RATE: 7}, {}, 7)
    assert numbers(tmp_path / "kept") == [0, 60, 100, 110, 120, 130, 140]
    assert run() == Collected({}, {Drop.THERE: 7}, 0)


def test_stamps_that_go_back_make_one_sample_due(tmp_path: Path, opened: Callable[..., Collector]) -> None:
    """As those of a camera whose clock is set."""
    collector = opened(rates={"": 1})
    collect(collector, 9000, 9001, 1, 2, 3)
    assert numbers(tmp_path / "kept") == [1, 9000]


def test_an_operator_asks_for_the_next_frames(tmp_path: Path, opened: Callable[..., Collector]) -> None:
    """So many with an answer are kept, whatever is in them, and the reply has the counts."""
    collector = opened()
    collect(collector, 0)
    assert collector.answer({"frames": 2})["asked"] == 2
    collect(collector, 1, outcome=Outcome.EXPIRED, code="expired")
    collect(collector, 2, 3, 4)
    found = collector.answer({})
    assert numbers(tmp_path / "kept") == [2, 3]
    size = sum(path.stat().st_size for path in (tmp_path / "kept").glob("*.mcap"))
    used = {"bytes": size, "bytes_today": size, "asked": 0}
    assert found == {"frames": 2, "kept": {"asked": 2}, "dropped": {}, **used}
    for wrong in ({"frames": -1}, {"frames": "2"}, {"frames": True}, {"frames": 1, "seconds": 2}):
        with pytest.raises(ConfigError, match="collect takes `frames`"):
            collector.answer(wrong)


@pytest.mark.broker
def test_the_command_asks_by_the_edges_name(
    broker_url: str, unique: Callable[[str], str], opened: Callable[..., Collector], capsys: pytest.CaptureFixture[str]
) -> None:
    """It shows what was collected, and asks for frames; an edge that does not collect is named."""
    collector, name, broker = opened(), unique("edge"), ("--broker", broker_url)
    with closing(connect(broker_url, name)) as requester:
        with closing(EdgeControl(requester, Operation.COLLECT, collector.answer)):
            assert run_main("collect", "ask", name, "--frames", 3, *broker) == 0
            collect(collector, 1)
            capsys.readouterr()
            assert run_main("collect", "ask", name, *broker) == 0
            found = json.loads(capsys.readouterr().out)
            assert (found["frames"], found["kept"], found["asked"]) == (1, {"asked": 1}, 2)
            assert run_main("collect", "ask", name, "--frames", -1, *broker) == 2
        capsys.readouterr()
        assert run_main("collect", "ask", name, *broker) == 1
    assert f"no edge named '{name}' runs with --collect" in " ".join(capsys.readouterr().err.split())


def test_a_frame_of_the_spool_is_counted(opened: Callable[..., Collector]) -> None:
    """The disk has what travels, so there is nothing to keep of what was read."""
    collector = opened(rates={"": 1})
    without = replace(frame(1), image=replace(frame(1).image, data=b""))
    collector.sink().write(without, view(dict(NOTHING)), result(NOTHING))
    assert collector.counts == Collected({}, {Drop.NO_PIXELS: 1}, 0)


@pytest.mark.parametrize("text", ["0", "car", "car=0", "=", "3601", "car=1.5"])
def test_a_wrong_rate(tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The message has what is expected."""
    words = "replay", tmp_path, "--model", "net", "--collect-rate", text
    assert run_main(*words, "--collect", tmp_path / "kept") == 2
    assert "samples an hour, 1 to 3600, such as 10 or car=10" in " ".join(capsys.readouterr().err.split())
    assert run_main(*words[:-1], "10") == 2
    assert "name its folder" in capsys.readouterr().err


def test_stamps_and_names_that_ros_has_no_room_for(opened: Callable[..., Collector], tmp_path: Path) -> None:
    """A stamp is counted, and the run goes on; what is no text in a name is replaced."""
    collector = opened(rates={"": 3600})
    sink = collector.sink()
    sink.write(replace(frame(1), capture_time_ns=1 << 70), view(dict(NOTHING)), result(NOTHING))
    assert collector.counts == Collected({}, {Drop.FAILED: 1}, 0)
    sink.write(frame(1, "/in\udcff"), view(dict(NOTHING)), result(NOTHING))
    assert collector.counts == Collected({Why.RATE: 1}, {Drop.FAILED: 1}, 1)
    assert [each.source for each in kept(tmp_path / "kept")] == ["/in?"]


class Clocks:
    """The clocks of a machine: one that can be set, and one that only goes on."""

    def __init__(self) -> None:
        self.wall, self.monotonic = 20_000.5 * DAY_S, 7.0

    def go_on(self, seconds: float) -> None:
        """Let time pass."""
        self.wall += seconds
        self.monotonic += seconds

    def open(self, folder: Path, max_bytes: int = 1 << 30, day_bytes: int = 1 << 30) -> closing[Store]:
        """Open a store."""
        return closing(Store(folder, max_bytes, day_bytes, lambda: self.wall, lambda: self.monotonic))


def keep(store: Store, *given: int) -> list[Drop | None]:
    """Store frames."""
    return [store.keep(frame(each), lambda: "{}") for each in given]


def entries(folder: Path) -> int:
    """Return the bytes of all entries; nothing else is there but the budget."""
    assert {path.suffix for path in folder.iterdir()} <= {".mcap", ".json"}
    return sum(path.stat().st_size for path in folder.glob("*.mcap"))


def test_the_bytes_of_the_folder(tmp_path: Path) -> None:
    """What is there from earlier runs counts, and what an upload takes away makes room within a second."""
    clocks, target = Clocks(), tmp_path / "target"
    with clocks.open(tmp_path / "kept", max_bytes=3 * ROOM) as store:
        dropped = keep(store, *range(60))
        assert dropped.index(Drop.FOLDER) > 20
        assert set(dropped) == {None, Drop.FOLDER}
        assert entries(tmp_path / "kept") == store.bytes <= 3 * ROOM
    with clocks.open(tmp_path / "kept", max_bytes=3 * ROOM) as store:
        assert keep(store, 100) == [Drop.FOLDER]
        assert all(upload(tmp_path / "kept", str(target)))
        clocks.go_on(1)
        assert keep(store, 101) == [None]


def test_the_bytes_of_a_day(tmp_path: Path) -> None:
    """Uploads and restarts give no more of them; the next day does."""
    clocks = Clocks()
    with clocks.open(tmp_path / "kept", day_bytes=2 * ROOM) as store:
        assert keep(store, *range(40))[-1] is Drop.DAY
        first = entries(tmp_path / "kept")
        assert ROOM < first <= 2 * ROOM
        assert all(upload(tmp_path / "kept", str(tmp_path / "target")))
    with clocks.open(tmp_path / "kept", day_bytes=2 * ROOM) as store:
        clocks.go_on(0.4 * DAY_S)
        assert keep(store, 100) == [Drop.DAY]
        clocks.go_on(0.2 * DAY_S)
        assert keep(store, *range(100, 140))[-1] is Drop.DAY
    assert ROOM < entries(tmp_path / "kept") <= 2 * ROOM


@pytest.mark.parametrize("restarts", [True, False])
@pytest.mark.parametrize("by", [-1.0, -20_000.0, 0.9])
def test_a_clock_that_is_set_gives_no_further_bytes(tmp_path: Path, *, restarts: bool, by: float) -> None:
    """Not one that is set back, and, while the process runs, not one that is set forward."""
    clocks = Clocks()
    with clocks.open(tmp_path / "kept", day_bytes=2 * ROOM) as store:
        assert keep(store, *range(40))[-1] is Drop.DAY
        before = entries(tmp_path / "kept")
        for number in range(40, 50):
            clocks.wall += by * DAY_S
            assert keep(store, number) == [Drop.DAY]
    if restarts and by < 0:
        for number in range(50, 60):
            clocks.wall += by * DAY_S
            with clocks.open(tmp_path / "kept", day_bytes=2 * ROOM) as store:
                assert keep(store, number) == [Drop.DAY]
    assert entries(tmp_path / "kept") == before
    clocks.wall = 20_000.5 * DAY_S if restarts else clocks.wall
    with clocks.open(tmp_path / "kept", day_bytes=2 * ROOM) as store:
        clocks.go_on(0.6 * DAY_S)
        assert keep(store, 100) == [None]


DEEP = b'{"now": 1, "used": 0, "x":' + b"[" * 10**5
WRONG = b"", b"{", b"[]", b'{"now": NaN, "used": 0}', b'{"now": 1, "used": -1}', DEEP, bytes(2 << 20)


@pytest.mark.parametrize("content", [None, *WRONG], ids=lambda each: str(each)[:30])
def test_a_budget_that_is_not_known(tmp_path: Path, content: bytes | None) -> None:
    """All that is there counts as of today."""
    with Clocks().open(tmp_path, day_bytes=2 * ROOM) as store:
        assert keep(store, *range(40))[-1] is Drop.DAY
    if content is None:
        (tmp_path / "budget.json").unlink()
    else:
        (tmp_path / "budget.json").write_bytes(content)
    with Clocks().open(tmp_path, day_bytes=2 * ROOM) as store:
        assert keep(store, 100) == [Drop.DAY]


@pytest.mark.parametrize("at", range(6))
@pytest.mark.parametrize("name", ["fsync", "replace", "write_bytes"])
def test_a_write_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, at: int) -> None:
    """Wherever the disk is full, nothing half is left, the frame is counted, and the budget has what is there."""
    where: Any = os if name == "fsync" else Path
    calls, real = iter(range(10**6)), getattr(where, name)

    def failing(*given: Any, **more: Any) -> Any:
        if next(calls) == at:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(*given, **more)

    with Clocks().open(tmp_path) as store:
        with monkeypatch.context() as patch:
            patch.setattr(where, name, failing)
            dropped = keep(store, *range(6))
        assert dropped.count(Drop.FAILED) == 1
        assert entries(tmp_path) <= store.used_today
        assert set(keep(store, *range(6))) <= {None, Drop.THERE}
    assert numbers(tmp_path) == [*range(6)]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of a megabyte, which takes the permission to mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1M", "tmpfs", str(folder)]
    try:
        mounted = subprocess.run(mount, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        mounted = False
    if not mounted:
        pytest.skip("no permission to mount a small disk")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_disk_that_is_full(small_disk: Path, tmp_path: Path) -> None:
    """Frames that find no room are counted, those before are whole, and room lets it go on."""
    ballast = small_disk / "of-others"
    ballast.write_bytes(bytes(900_000))
    with Clocks().open(small_disk / "kept") as store:
        dropped = keep(store, *range(60))
        assert 5 < dropped.index(Drop.FAILED) < 60
        assert entries(small_disk / "kept") <= store.used_today
        before = numbers(small_disk / "kept")
        assert before == [number for number, drop in enumerate(dropped) if drop is None]
        with ballast.open("ab", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(4096))
        (small_disk / "target").mkdir()
        with pytest.raises(ConfigError, match="No space left"):
            list(upload(small_disk / "kept", str(small_disk / "target")))
        assert not list((small_disk / "target").glob("*.new"))
        ballast.unlink()
        assert keep(store, *range(100, 110)) == [None] * 10
    assert set(upload(small_disk / "kept", str(tmp_path / "target"))) == {True}
    uploaded = [*(small_disk / "target").iterdir(), *(tmp_path / "target").iterdir()]
    assert len({path.name for path in uploaded}) == len(uploaded) == len(before) + 10


def test_a_folder_that_cannot_be_used(tmp_path: Path) -> None:
    """A file in its place, and one that another edge uses."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot write"):
        Store(tmp_path / "file", 1, 1)
    with closing(Store(tmp_path, 1, 1)), pytest.raises(ConfigError, match="locked by another process"):
        Store(tmp_path, 1, 1)


def test_what_others_have_in_the_folder(tmp_path: Path) -> None:
    """What is no plain file of the store is neither counted, read, uploaded nor removed, whatever its name is."""
    here, secret, target = tmp_path / "kept", tmp_path / "secret", tmp_path / "target"
    (here / "photos.new").mkdir(parents=True)
    (here / "drive.mcap.new").write_text("of others")
    secret.write_text("secret")
    names = [here / f"{number:020d}-camera-{'0' * 16}.mcap" for number in range(4)]
    names[0].mkdir()
    os.mkfifo(names[1])
    names[2].symlink_to(secret)
    names[3].touch()
    os.mkfifo(here / "budget.json")
    before = {path.name for path in here.iterdir()}
    with Clocks().open(here) as store:
        assert (store.bytes, store.used_today) == (0, 0)
        assert keep(store, 1) == [None]
    assert {path.name for path in here.iterdir()} > before
    assert list(upload(here, str(target))) == [True, True]
    assert {path.stat().st_size for path in target.iterdir()} == {0, store.bytes}
    assert (len(list(here.iterdir())), secret.read_text()) == (len(before) - 1, "secret")


def test_names_that_are_longer_than_pixels(tmp_path: Path) -> None:
    """They count like pixels do: neither bound is passed for them."""
    noise = np.random.default_rng(1).bytes(1 << 20).hex()
    long = replace(frame(1), frame_id=noise)
    fields = [field(noise[at : at + 1000], 0, 7) for at in range(0, 900_000, 1000)]
    points = replace(frame(2, "/lidar"), image=NO_IMAGE, points=(cloud(fields, (1, 1), (4, 4), bytes(4)),))
    with Clocks().open(tmp_path, 3 * ROOM, 3 * ROOM) as store:
        for given in (long, replace(frame(2), joined=(points,))):
            assert store.keep(given, lambda: "{}") is Drop.FAILED
        assert keep(store, 3) == [None]
        assert entries(tmp_path) == store.bytes == store.used_today


def test_uploads_of_one_frame_from_two_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each writes a file of its own before it takes the name, so what has the name is whole."""
    for name, text in (("a", "[1]"), ("b", json.dumps([*range(1000)]))):
        with Clocks().open(tmp_path / name) as store:
            assert store.keep(frame(1), partial(str, text)) is None
    target, real = tmp_path / "target", shutil.copyfileobj
    written: list[bytes] = []

    def slowly(source: Any, file: Any) -> None:
        monkeypatch.setattr(shutil, "copyfileobj", real)
        content = source.read()
        file.write(content[: len(content) // 2])
        file.flush()
        written.extend([content, *(path.read_bytes() for path in (tmp_path / "b").glob("*.mcap"))])
        assert list(upload(tmp_path / "b", str(target))) == [True]
        file.write(content[len(content) // 2 :])

    monkeypatch.setattr(shutil, "copyfileobj", slowly)
    assert list(upload(tmp_path / "a", str(target))) == [True]
    assert [path.read_bytes() for path in target.iterdir()] == written[:1]
    assert written[0] != written[1]


def test_a_folder_of_a_frames_name(tmp_path: Path) -> None:
    """Where it is to be uploaded is no frame that is there: the frame stays."""
    with Clocks().open(tmp_path / "kept") as store:
        keep(store, 1)
    (name,) = (path.name for path in (tmp_path / "kept").glob("*.mcap"))
    (tmp_path / "target" / name).mkdir(parents=True)
    with pytest.raises(ConfigError, match="Is a directory"):
        list(upload(tmp_path / "kept", str(tmp_path / "target")))
    assert numbers(tmp_path / "kept") == [1]


def test_an_upload_brings_each_frame_once(tmp_path: Path) -> None:
    """What is there already is not sent again, whoever kept it once more, and leaves the vehicle all the same."""
    target = tmp_path / "target"
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "drive.mcap").write_bytes(b"of others")
    for expected in (True, False):
        with Clocks().open(tmp_path / "kept") as store:
            assert store.bytes == 0
            assert keep(store, 1, 2, 3) == [None] * 3
            assert list(upload(tmp_path / "kept", f"file://{target}")) == [expected] * 3
            assert [path.name for path in (tmp_path / "kept").glob("*.mcap")] == ["drive.mcap"]
    assert numbers(target) == [1, 2, 3]


def test_uploads_that_are_refused(tmp_path: Path) -> None:
    """A folder that is none, one to itself, an address that is none, and two at a time."""
    (tmp_path / "kept").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "kept")
    with Clocks().open(tmp_path / "kept") as store:
        keep(store, 1, 2)
    for folder, url, message in (
        ("none", str(tmp_path / "target"), "is no folder; name that of --collect"),
        ("kept", str(tmp_path / "link"), "is the folder of --collect itself"),
        ("kept", "gopher://host/folder", "expected a folder, or one of s3://"),
    ):
        with pytest.raises(ConfigError, match=message):
            list(upload(tmp_path / folder, url))
    handle = lock(min((tmp_path / "kept").glob("*.mcap")))
    with pytest.raises(ConfigError, match="locked by another process"):
        next(upload(tmp_path / "kept", str(tmp_path / "target")))
    os.close(handle)
    assert list(upload(tmp_path / "kept", str(tmp_path / "target"))) == [True, True]

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from mqinfer import Outcome
from mqinfer.bags.sources import open_source
from mqinfer.bags.writer import BagWriter
from mqinfer.broker import make_link
from mqinfer.broker.link import Message
from mqinfer.broker.memory import MemoryLink
from mqinfer.client.announcer import ClientAnnouncer
from mqinfer.client.connection import connect
from mqinfer.client.requester import Requester
from mqinfer.cloud_worker.serving.worker import Worker
from mqinfer.codecs import encode_tensor
from mqinfer.edge_agent.metrics import pending_frames
from mqinfer.edge_agent.model_run import ModelRun
from mqinfer.edge_agent.reporting.report import SessionReport, summary
from mqinfer.edge_agent.session import run_sessions
from mqinfer.edge_agent.settings import ReplayOptions, ReplaySettings
from mqinfer.edge_agent.spooling.spool import Spool, SpooledFrame
from mqinfer.images.picture import RawImage
from mqinfer.lab.drives.recording import write_drive
from mqinfer.protocol.errors import ConfigError, ModelNotFound, NameTaken, SourceError
from mqinfer.protocol.states import ClientState, PendingRequests
from mqinfer.protocol.topics import Topics
from mqinfer.protocol.types import Capture
from tests.patience import PATIENCE_S
from tests.settings import changed, run_session, settings_of

Serve = Callable[..., Worker]
WriteEcho = Callable[..., Path]
FRAMES = 12


@pytest.fixture(scope="session", params=[1, 2])
def drive(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small synthetic drive, as a ROS 1 and as a ROS 2 bag."""
    path = tmp_path_factory.mktemp("drive") / ("drive.bag" if request.param == 1 else "drive")
    return write_drive(path, ros=request.param, frames=FRAMES, seed=3, width=96, height=64)


@pytest.fixture
def requester(edge: Callable[..., Requester], write_echo: WriteEcho) -> Requester:
    """A client of an echo model that takes pictures."""
    return edge(write_echo("echo", ("image", "UINT8", [-1, 32, 48, 3])))


def settings_for(source: Path | str, **changes: object) -> ReplaySettings:
    """Make settings of a replay by one topic."""
    options = ReplayOptions("echo", window=4, card_timeout=PATIENCE_S)
    return changed(settings_of(source, options, topics=("/camera/image_raw",)), **changes)


def test_damaged_frames_of_the_spool_are_reported(drive: Path, requester: Requester, tmp_path: Path) -> None:
    """What an earlier run left and the disk damaged is counted in the summary; the rest is sent first."""
    with closing(Spool(tmp_path)) as spool:
        for number in range(5):
            tensor = encode_tensor(
                "image", np.full((1, 32, 48, 3), number, np.uint8), "lz4", {"image_encoding": "rgb8"}
            )
            spool.put(SpooledFrame(Capture("/camera/image_raw", number, number, "cam"), 288, number, tensors=(tensor,)))
    for path in sorted(tmp_path.glob("*.frame"))[1:3]:
        path.write_bytes(path.read_bytes()[::-1])
    report = run_session(settings_for(drive, spool=tmp_path), requester)
    assert summary(report)["spool_damaged"] == report.spool_damaged == 2
    assert report.snapshot.outcomes[Outcome.OK] == report.snapshot.frames_read == 3 + FRAMES
    assert not list(tmp_path.glob("*.frame"))
    assert len(list(tmp_path.glob("*.damaged"))) == 2


@pytest.mark.parametrize("encoding", [None, "lz4", "png", "raw"])
def test_a_drive_from_beginning_to_end(drive: Path, requester: Requester, tmp_path: Path, encoding: str | None) -> None:
    """Every frame is ok exactly once, and the results carry the header stamps to the nanosecond."""
    report = run_session(
        settings_for(drive, encoding=encoding, folder=tmp_path, sinks=("jsonl", "mcap", "pictures")), requester
    )
    snapshot = report.snapshot
    assert snapshot.frames_read == snapshot.requests == snapshot.outcomes[Outcome.OK] == FRAMES
    assert report.broke_off is None
    assert report.encoding == (encoding or "jpeg:90")
    assert all(path.exists() for path in report.files)
    lines = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    recorded = open_source(str(drive), topics=["/camera/image_raw"])
    stamps = [frame.capture_time_ns for frame in recorded.frames()]
    recorded.close()
    assert [line["capture_time_ns"] for line in lines] == stamps
    assert [line["sequence"] for line in lines] == list(range(FRAMES))
    assert {line["outcome"] for line in lines} == {"ok"}
    assert snapshot.bytes_raw == FRAMES * 32 * 48 * 3


def test_both_topics(drive: Path, requester: Requester) -> None:
    """Without a choice all image topics are replayed, each with its own counters."""
    snapshot = run_session(settings_for(drive, topics=()), requester).snapshot
    assert {stream.source: stream.outcomes[Outcome.OK] for stream in snapshot.streams} == {
        "/camera/image_raw": FRAMES,
        "/camera/labels": FRAMES,
    }


def test_a_part_of_a_drive(drive: Path, requester: Requester) -> None:
    """Start and duration choose the frames by their log times."""
    snapshot = run_session(settings_for(drive, start=0.25, duration=0.5), requester).snapshot
    assert 4 <= snapshot.outcomes[Outcome.OK] == snapshot.frames_read <= 6


def test_a_connection_that_fails_for_good_ends_the_replay(drive: Path, requester: Requester) -> None:
    """The books balance, and the report says why."""
    ended: list[SessionReport] = []
    settings = settings_for(drive, loop=True)
    thread = threading.Thread(target=lambda: ended.append(run_session(settings, requester)))
    thread.start()
    while not requester.counters().outcomes[Outcome.OK]:
        threading.Event().wait(0.001)
    requester.give_up(NameTaken("another one has it"))
    thread.join(30)
    (report,) = ended
    assert isinstance(report.broke_off, NameTaken)
    assert report.snapshot.done == report.snapshot.frames_read


def test_stopping_a_loop(drive: Path, requester: Requester) -> None:
    """A replay without end ends when it is told to, with balanced books."""
    stop = threading.Event()
    submit, sent = requester.submit, [0]

    def counted(*arguments, **options):  # type: ignore[no-untyped-def]  # noqa: ANN002, ANN003, ANN202
        sent[0] += 1
        if sent[0] == 3 * FRAMES:
            stop.set()
        return submit(*arguments, **options)

    requester.submit = counted  # type: ignore[method-assign]
    snapshot = run_session(settings_for(drive, loop=True), requester, stop=stop).snapshot
    assert snapshot.frames_read == snapshot.outcomes[Outcome.OK] >= 3 * FRAMES


def test_stopping_a_paced_replay(drive: Path, requester: Requester) -> None:
    """The pacer's wait ends with the stop."""
    stop = threading.Event()
    stop.set()
    assert run_session(settings_for(drive, rate=0.001), requester, stop=stop).snapshot.frames_read <= 1


def test_a_bad_frame_in_a_bag(requester: Requester, tmp_path: Path) -> None:
    """An image whose data is shorter than its header says is one error; the others are ok."""
    good = RawImage("rgb8", 32, 48, 144, is_bigendian=False, data=bytes(32 * 144))
    with BagWriter(tmp_path / "mixed.bag", "bag") as writer:
        for number in range(6):
            image = replace(good, data=bytes(100)) if number == 2 else good
            writer.write("/camera/image_raw", image, number, number + 1)
    snapshot = run_session(settings_for(tmp_path / "mixed.bag"), requester).snapshot
    assert (snapshot.outcomes[Outcome.OK], snapshot.outcomes[Outcome.ERROR]) == (5, 1)


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"sources": ["/no/such.bag"]}, SourceError, "no such file"),
        ({"topics": ("/nothing",)}, SourceError, "/camera/image_raw"),
        ({"options": ReplayOptions("ecko", card_timeout=1.0)}, ModelNotFound, "models on this broker: echo"),
        ({"encoding": "zip"}, ConfigError, "unknown encoding 'zip'"),
        ({"options": ReplayOptions("echo", output_encoding="zip")}, ConfigError, "unknown encoding 'zip'"),
        ({"folder": Path("/proc/nowhere")}, ConfigError, "/proc/nowhere"),
        ({"sinks": ("film",)}, ConfigError, "unknown sink 'film'"),
        ({"rate": float("nan")}, ConfigError, "rate is nan"),
    ],
)
def test_wrong_settings_are_said_before_the_first_frame(
    drive: Path,
    requester: Requester,
    tmp_path: Path,
    changes: dict[str, Any],
    error: type[Exception],
    words: str,
) -> None:
    """Each mistake gives its own message, and nothing is sent."""
    settings = settings_for(drive, **{"folder": tmp_path, "sinks": ("jsonl",), **changes})
    with pytest.raises(error, match=words):
        run_session(settings, requester)
    assert requester.counters().submitted == 0


def test_a_model_without_pictures(
    drive: Path, url: str, requester: Requester, serve: Serve, write_echo: WriteEcho
) -> None:
    """The message lists the inputs that it does take."""
    serve(url, write_echo("numbers"), "numbers")
    with pytest.raises(ConfigError, match=r"'numbers' takes no pictures; its inputs are x FP32\[-1, 4\]"):
        run_session(settings_for(drive, options=ReplayOptions("numbers")), requester)


def test_an_edge_says_of_itself_that_it_is_there(url: str, unique: Callable[[str], str]) -> None:
    """`ready` at each connection, retained; `lost` by its will."""
    seen: list[dict[str, object]] = []
    watcher = make_link(url, client_id=unique("watcher"))
    watcher.open()

    def note(message: Message) -> None:
        seen.append(json.loads(bytes(message.payload)))

    name, topics = unique("edge"), Topics()
    watcher.subscribe(topics.client_state(name), note)
    announcer = ClientAnnouncer(name, topics, "drive.bag", "echo", window=3, incarnation=17)
    edge = connect(url, name, topics, announcer=announcer)
    link = edge.link
    assert isinstance(link, MemoryLink)
    link.drop()
    link.restore()
    link.settle()
    edge.close()
    watcher.close()
    assert [state["status"] for state in seen] == ["claiming", "ready", "lost", "ready"]
    assert seen[1] == {
        "client": name,
        "status": "ready",
        "boot": 17,
        "source": "drive.bag",
        "model": "echo",
        "window": 3,
        "pending": [],
    }


def test_an_edge_says_what_waits_in_it(
    drive: Path, url: str, serve: Serve, write_echo: WriteEcho, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """Frames in its spool count before there is a card or a worker; at the end nothing waits."""
    announcer = ClientAnnouncer(unique("edge"), Topics(), "drive.bag", "echo", refresh_s=0.01)
    edge = connect(url, unique("edge"), announcer=announcer)
    kept = threading.Event()

    def receive(message: Message) -> None:
        state = ClientState.from_json(message.payload)
        for each in state.pending or ():
            if each.queued == FRAMES:
                seen.append(each)
                kept.set()

    seen: list[PendingRequests] = []
    watcher = make_link(url, client_id=unique("watcher"))
    watcher.open()
    watcher.subscribe(Topics().client_state.filter(), receive)
    settings = settings_for(drive, spool=tmp_path / "spool", card_timeout=300)
    runs: list[ModelRun] = []
    announcer.pending = partial(pending_frames, edge, runs)
    console, stop = Console(file=StringIO()), threading.Event()
    thread = threading.Thread(
        target=lambda: run_sessions(
            settings, ["echo"], edge, broker="memory", stop=stop, console=console, on_runs=runs.extend
        )
    )
    thread.start()
    assert kept.wait(120)
    assert (seen[0].model, seen[0].in_flight) == ("echo", 0)
    serve(url, write_echo("echo", ("image", "UINT8", [-1, 32, 48, 3])))
    thread.join(120)
    assert announcer.pending() == []
    edge.close()
    watcher.close()

"""How a replay ends, and what its report says: refused, interrupted, broken off, without a connection."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from mqinfer import Outcome
from mqinfer.bags import sources
from mqinfer.bags.frame import Frame, FrameSource, StreamInfo
from mqinfer.client.connection import Unconnected, connect
from mqinfer.client.requester import Requester
from mqinfer.client.window import Policy
from mqinfer.edge_agent import session
from mqinfer.edge_agent.replay import Pacer
from mqinfer.edge_agent.reporting.report import Ending, SessionReport, failure_lines, summary
from mqinfer.edge_agent.session import run_sessions
from mqinfer.edge_agent.settings import ReplayOptions
from mqinfer.lab.drives.recording import write_drive
from mqinfer.protocol.errors import BrokerUnreachable, LinkError, NoWorker, SourceError
from tests.patience import PATIENCE_S
from tests.settings import settings_of

Serve = Callable[..., object]
WriteEcho = Callable[..., Path]
FRAMES = 12
OPTIONS = ReplayOptions("echo", window=4)
PICTURE = ("image", "UINT8", [-1, 32, 48, 3])


@pytest.fixture(scope="module")
def drive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small synthetic drive."""
    path = tmp_path_factory.mktemp("drive") / "drive.bag"
    return write_drive(path, ros=1, frames=FRAMES, seed=3, width=96, height=64, truth_topic=False)


@pytest.fixture
def requester(edge: Callable[..., Requester], write_echo: WriteEcho) -> Requester:
    """A client of two echo models, one with smaller pictures."""
    write_echo("small", ("image", "UINT8", [-1, 16, 24, 3]))
    return edge(write_echo("echo", PICTURE), "echo", "small", patience=0.05)


class Recorded:
    """A recording that calls something before some of its frames, and may break off at its end."""

    def __init__(self, source: FrameSource) -> None:
        self.at: dict[int, Callable[[], object]] = {}
        self.error: Exception | None = None
        self.read = 0
        self._source = source

    def streams(self) -> tuple[StreamInfo, ...]:
        """List those of the recording."""
        return self._source.streams()

    def frames(self) -> Iterator[Frame]:
        """Yield those of the recording."""
        for number, frame in enumerate(self._source.frames()):
            self.at.get(number, lambda: None)()
            self.read += 1
            yield frame
        if self.error:
            raise self.error

    def close(self) -> None:
        """Close the recording."""
        self._source.close()


@pytest.fixture
def recorded(drive: Path, monkeypatch: pytest.MonkeyPatch) -> Recorded:
    """The recording that the next session opens."""
    made = Recorded(sources.open_source(str(drive)))
    monkeypatch.setattr(session, "open_sources", lambda *_, **__: made)
    return made


def run(
    requester: Requester,
    drive: Path,
    *models: str,
    stop: threading.Event | None = None,
    connect: Callable[[float], None] | None = None,
    options: ReplayOptions = OPTIONS,
    card_timeout: float | None = None,
    **settings: object,
) -> list[SessionReport]:
    """Run a session quietly; its counters add up."""
    if card_timeout is None:
        card_timeout = 0.2 if connect is never else PATIENCE_S
    asked = settings_of(drive, options, card_timeout=card_timeout, **settings)
    reports = run_sessions(
        asked,
        models or ("echo",),
        requester,
        broker="memory",
        stop=stop or threading.Event(),
        console=Console(file=StringIO()),
        connect=connect,
    )
    for report in reports:
        assert report.snapshot.frames_read == report.snapshot.requests == report.snapshot.done
    return reports


def lines(path: Path) -> list[dict[str, object]]:
    """Read JSON lines."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_run_to_the_end(requester: Requester, drive: Path) -> None:
    """It is complete, without a reason and without failures."""
    (report,) = run(requester, drive)
    content = summary(report)
    assert (content["ended"], content["reason"], content["failures"]) == ("complete", None, [])


def test_several_models_read_the_recording_once(
    requester: Requester, drive: Path, recorded: Recorded, tmp_path: Path
) -> None:
    """Each has every frame, its own counters and its own files; the source is read once."""
    reports = run(requester, drive, "echo", "small", folder=tmp_path, sinks=("jsonl",))
    assert recorded.read == FRAMES
    assert [report.model for report in reports] == ["echo", "small"]
    for report, shape in zip(reports, ([1, 32, 48, 3], [1, 16, 24, 3]), strict=True):
        assert report.snapshot.outcomes[Outcome.OK] == FRAMES
        assert report.files[0] == tmp_path / report.model / "results.jsonl"
        written = lines(report.files[0])
        assert [line["sequence"] for line in written] == list(range(FRAMES))
        assert {json.dumps(line["outputs"]["image"]["shape"]) for line in written} == {json.dumps(shape)}  # type: ignore[index]


def test_a_version_that_nobody_serves_ends_the_run(requester: Requester, drive: Path) -> None:
    """Few frames are sent, and the report names the reason."""
    options = ReplayOptions("echo", version="9", window=4)
    (refused,) = run(requester, drive, options=options)
    assert refused.ended is Ending.FAILED
    assert isinstance(refused.broke_off, NoWorker)
    assert refused.snapshot.outcomes[Outcome.OK] == 0
    (line, *_) = failure_lines(refused.snapshot)
    assert re.match("[1-4] x no_worker: model 'echo': no worker serves it", line), line
    assert refused.reason == str(refused.broke_off)


@pytest.mark.parametrize("loop", [False, True])
def test_a_stop_before_the_end(requester: Requester, drive: Path, recorded: Recorded, *, loop: bool) -> None:
    """A recording is interrupted; a loop has no other end, and is complete."""
    stop = threading.Event()
    recorded.at[FRAMES // 2] = stop.set
    (report,) = run(requester, drive, stop=stop, loop=loop)
    assert report.ended is (Ending.COMPLETE if loop else Ending.INTERRUPTED)
    assert report.is_stopped is loop
    assert report.broke_off is None
    assert 0 < report.snapshot.frames_read < FRAMES


def test_a_stop_while_there_is_no_card(requester: Requester, drive: Path) -> None:
    """Nobody serves the model yet: the wait ends with the stop, and no frame was read."""
    stop = threading.Event()
    stop.set()
    (report,) = run(requester, drive, "nobody", stop=stop, card_timeout=600.0)
    assert (report.ended, report.snapshot.frames_read) == (Ending.INTERRUPTED, 0)


def test_a_start_behind_the_end(requester: Requester, drive: Path) -> None:
    """A run without a single frame is no success."""
    (report,) = run(requester, drive, start=3600.0)
    assert report.ended is Ending.FAILED
    assert "no frame from 3600 s on" in report.reason


def test_a_source_that_breaks_off(requester: Requester, drive: Path, recorded: Recorded) -> None:
    """What was read has its outcome; the report says that the rest is missing."""
    recorded.error = SourceError("damaged at byte 4711")
    (report,) = run(requester, drive)
    assert report.ended is Ending.INCOMPLETE
    assert report.broke_off is recorded.error
    assert report.snapshot.outcomes[Outcome.OK] == FRAMES


@pytest.mark.parametrize(
    ("policy", "rate", "expected"),
    [(Policy.LATEST, None, 1.0), (Policy.LATEST, 0.0, 0.0), (Policy.ALL, None, 0.0), (Policy.ALL, 2.0, 2.0)],
)
def test_the_newest_frames_of_a_recording_are_played_as_recorded(
    requester: Requester,
    drive: Path,
    monkeypatch: pytest.MonkeyPatch,
    policy: Policy,
    rate: float | None,
    expected: float,
) -> None:
    """Unless told otherwise; superseded frames are no failure."""
    rates: list[float] = []

    def pacer(rate: float, **_: object) -> Pacer:
        rates.append(rate)
        return Pacer(0)

    monkeypatch.setattr(session, "Pacer", pacer)
    (report,) = run(requester, drive, options=ReplayOptions("echo", window=1, policy=policy), rate=rate)
    assert rates == [expected]
    assert (report.ended, report.snapshot.failed, report.snapshot.failures) == (Ending.COMPLETE, 0, ())


def never(_: float) -> None:
    """Find no broker."""
    raise BrokerUnreachable("no broker answers")


def test_without_any_connection_every_frame_is_kept(
    url: str, drive: Path, serve: Serve, write_echo: WriteEcho, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """The run says so and fails; the next one sends what was kept first, prepared as the model wants it."""
    client = Unconnected(url, unique("edge"))
    (report,) = run(client.requester, drive, connect=never, spool=tmp_path / "spool", folder=tmp_path / "out")
    client.requester.close()
    assert len(list((tmp_path / "spool").glob("*.frame"))) == FRAMES == report.snapshot.outcomes[Outcome.CANCELLED]
    assert report.ended is Ending.FAILED
    assert isinstance(report.broke_off, LinkError)
    assert f"{FRAMES} frames are kept in the spool" in report.reason

    serve(url, write_echo("echo", PICTURE))
    with closing(connect(url, unique("edge"))) as requester:
        (report,) = run(requester, drive, spool=tmp_path / "spool", folder=tmp_path / "out", sinks=("jsonl",))
    assert report.snapshot.outcomes[Outcome.OK] == 2 * FRAMES
    assert not list((tmp_path / "spool").glob("*.frame"))
    written = lines(tmp_path / "out" / "results.jsonl")
    assert [line["sequence"] for line in written] == [*range(FRAMES), *range(FRAMES)]
    assert {json.dumps(line["outputs"]["image"]["shape"]) for line in written} == {"[1, 32, 48, 3]"}  # type: ignore[index]
    times = [line["log_time_ns"] for line in written]
    assert times[:FRAMES] == times[FRAMES:]


def test_a_source_that_breaks_off_before_there_is_a_connection(
    url: str, drive: Path, recorded: Recorded, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """What was read is kept, and the report names the damage."""
    recorded.error = SourceError("damaged at byte 4711")
    client = Unconnected(url, unique("edge"))
    with closing(client.requester):
        (report,) = run(client.requester, drive, connect=never, spool=tmp_path)
    assert (report.ended, report.broke_off) == (Ending.INCOMPLETE, recorded.error)
    assert len(list(tmp_path.glob("*.frame"))) == FRAMES == report.snapshot.outcomes[Outcome.CANCELLED]


@pytest.mark.parametrize("encoding", [None, "lz4", "png"])
def test_a_connection_that_comes_late(
    url: str,
    drive: Path,
    recorded: Recorded,
    serve: Serve,
    write_echo: WriteEcho,
    unique: Callable[[str], str],
    tmp_path: Path,
    encoding: str | None,
) -> None:
    """Frames are kept from the first one; once there is a worker all come out in order, each under its own number."""
    client = Unconnected(url, unique("edge"))
    is_up = threading.Event()

    def find(timeout: float) -> None:
        if not is_up.wait(0.01):
            never(timeout)
        client.open(timeout)

    def start() -> None:
        serve(url, write_echo("echo", PICTURE))
        is_up.set()

    recorded.at[FRAMES // 2] = start
    with closing(client.requester):
        (report,) = run(
            client.requester,
            drive,
            connect=find,
            card_timeout=20.0,
            spool=tmp_path / "spool",
            folder=tmp_path / "out",
            sinks=("jsonl",),
            encoding=encoding,
        )
    assert report.ended is Ending.COMPLETE
    assert report.snapshot.outcomes[Outcome.OK] == FRAMES
    assert [line["sequence"] for line in lines(tmp_path / "out" / "results.jsonl")] == list(range(FRAMES))

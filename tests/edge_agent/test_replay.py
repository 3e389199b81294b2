from __future__ import annotations

import gc
import logging
import random
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from mqinfer import InferResult, Outcome
from mqinfer.bags.frame import Frame
from mqinfer.broker.memory import MemoryBroker, MemoryLink
from mqinfer.client.connection import connect
from mqinfer.client.options import ClientOptions
from mqinfer.client.requester import Requester
from mqinfer.client.window import Policy
from mqinfer.cloud_worker.serving.worker import Worker
from mqinfer.codecs import encode_tensor
from mqinfer.edge_agent.frames.view import FrameView
from mqinfer.edge_agent.preparing.preparer import Preparer
from mqinfer.edge_agent.replay import Replay
from mqinfer.edge_agent.reporting.statistics import ReplayStatistics, Snapshot
from mqinfer.edge_agent.settings import ReplayOptions
from mqinfer.edge_agent.sinks.jsonl_sink import JsonlSink
from mqinfer.edge_agent.spooling.spool import Spool
from mqinfer.images.picture import CompressedImage, RawImage
from mqinfer.models.backends.echo import EchoBackend
from mqinfer.models.loading import LoadedModel, load_model
from mqinfer.models.repository import Repository
from mqinfer.protocol.card import ImageContract
from mqinfer.protocol.datatypes import Array
from mqinfer.protocol.errors import ConfigError, MqinferError, NoWorker, SourceError
from mqinfer.protocol.topics import Topics
from tests.edge_agent.kept import Kept
from tests.patience import wait_until

Serve = Callable[..., Worker]
HEIGHT, WIDTH = 8, 12


class UnevenEcho(EchoBackend):
    """An echo whose runs take differently long."""

    def infer(self, inputs: Mapping[str, Array], outputs: Sequence[str] = ()) -> dict[str, Array]:
        """Return the inputs after a moment."""
        threading.Event().wait(random.random() * 0.004)  # noqa: S311  to mix up the order
        return super().infer(inputs, outputs)


def picture_of(number: int) -> RawImage:
    """Make a picture that tells its number."""
    pixels = np.full((HEIGHT, WIDTH, 3), number % 256, np.uint8)
    return RawImage("rgb8", HEIGHT, WIDTH, 3 * WIDTH, is_bigendian=False, data=pixels.tobytes())


def frame_of(number: int, image: RawImage | CompressedImage | None = None) -> Frame:
    """Make a frame of one of two streams."""
    source = ("/left", "/right")[number % 2]
    return Frame(
        source, number // 2, 1_000_000_007 * number, 2_000_000_007 * number, "cam", image or picture_of(number)
    )


@dataclass
class Notes(Kept):
    """A sink that keeps what it gets, and may fail."""

    fails_at: int | None = None
    error: Exception = field(default_factory=lambda: ConfigError("cannot write results: no space left on device"))

    def write(self, frame: Frame, view: FrameView, result: InferResult) -> None:
        """Keep one result."""
        if len(self.written) == self.fails_at:
            raise self.error
        super().write(frame, view, result)

    def numbers(self) -> list[int]:
        """Numbers of the frames, in the order in which they came."""
        return [2 * frame.sequence + (frame.source == "/right") for frame, _, _ in self.written]


Run = Callable[..., Snapshot]


@pytest.fixture
def requester(url: str, serve: Serve, write_echo: Callable[..., Path], edge: Callable[..., Requester]) -> Requester:
    """A client of two uneven workers over an in-memory broker."""
    repository = write_echo("echo", ("image", "UINT8", [-1, HEIGHT, WIDTH, 3]))
    for _ in range(2):
        model = load_model(Repository(repository).models()[0], device="cpu")
        serve(url, LoadedModel(UnevenEcho(model.backend.inputs), model.card, model.config))
    return edge(window=8)


@pytest.fixture
def run(requester: Requester) -> Run:
    """Replay frames, and give the counters, which must balance."""

    def replay(
        frames: Iterable[Frame],
        sink: Notes | None,
        is_stopped: Callable[[], bool] = lambda: False,
        *,
        window: int = 8,
        timeout: float = 30.0,
        encoding: str = "lz4",
        error: type[MqinferError] | None = None,
    ) -> Snapshot:
        statistics = ReplayStatistics()
        preparer = Preparer(ImageContract("image", WIDTH, HEIGHT), encoding)
        job = Replay(requester, preparer, ReplayOptions("echo", window=window, timeout=timeout), statistics, sink)
        if error:
            with pytest.raises(error):
                job.run(frames, is_stopped)
        else:
            job.run(frames, is_stopped)
        snapshot = statistics.snapshot()
        snapshot.check()
        assert snapshot.pending == 0
        assert snapshot.frames_read == snapshot.requests == snapshot.done
        return snapshot

    return replay


@pytest.mark.parametrize("window", [1, 3, 16])
def test_every_frame_has_one_outcome_in_the_order_of_reading(run: Run, window: int) -> None:
    """Workers answer in any order; the sink gets each frame once, in order, with its own pixels and stamps."""
    sink = Notes()
    snapshot = run(map(frame_of, range(100)), sink, window=window)
    assert snapshot.outcomes[Outcome.OK] == 100
    assert sink.numbers() == list(range(100))
    for number, (frame, view, result) in enumerate(sink.written):
        assert result.outputs["image"].ravel()[0] == view.pixels.ravel()[0] == number
        assert result.capture.capture_time_ns == frame.capture_time_ns == 1_000_000_007 * number
        assert (result.capture.source, result.capture.sequence, result.capture.frame_id) == (
            frame.source,
            frame.sequence,
            "cam",
        )
    assert {stream.source: stream.done for stream in snapshot.streams} == {"/left": 50, "/right": 50}


def test_nothing_to_read(run: Run) -> None:
    """An empty source is a run without frames."""
    assert run([], Notes()).frames_read == 0


def test_nobody_wants_the_results(run: Run) -> None:
    """Without a sink no picture is made, and the counters are the result."""
    assert run(map(frame_of, range(10)), None).outcomes[Outcome.OK] == 10


def test_bad_frames_in_the_middle_have_their_outcome_and_the_rest_go_on(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    """Short data, an unknown encoding, a broken JPEG: each costs one frame, named in the log."""
    images: dict[int, RawImage | CompressedImage] = {
        3: RawImage("rgb8", HEIGHT, WIDTH, 3 * WIDTH, is_bigendian=False, data=b"short"),
        7: RawImage("no_such", HEIGHT, WIDTH, 3 * WIDTH, is_bigendian=False, data=bytes(HEIGHT * WIDTH * 3)),
        8: CompressedImage("jpeg", b"\xff\xd8\xff ten by"),
    }
    sink = Notes()
    with caplog.at_level(logging.WARNING, "mqinfer.edge_agent"):
        snapshot = run((frame_of(number, images.get(number)) for number in range(20)), sink)
    assert (snapshot.outcomes[Outcome.OK], snapshot.outcomes[Outcome.ERROR]) == (17, 3)
    assert sink.numbers() == list(range(20))
    for number, (_, view, result) in enumerate(sink.written):
        assert (result.outcome is Outcome.ERROR) is (number in images)
        if number in images:
            assert result.error
            assert result.error.code == "bad_image"
            assert view.pixels.size == 0
            assert result.capture.capture_time_ns == 1_000_000_007 * number
    assert "/right, frame 1:" in caplog.text


def test_a_jpeg_that_fits_reaches_the_worker_byte_by_byte(run: Run, requester: Requester) -> None:
    """A recorded JPEG of the model's size is not decoded on its way; a broken one costs only its own frame."""
    picture = np.random.default_rng(0).integers(0, 255, (HEIGHT, WIDTH, 3), np.uint8)
    data = bytes(encode_tensor("x", picture, "jpeg:75").data)
    sent: list[bytes] = []
    submit = requester.submit

    def noted(request, timeout, settle, **how):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN003, ANN202
        sent.append(bytes(request.inputs[0].data))
        return submit(request, timeout, settle, **how)

    requester.submit = noted  # type: ignore[method-assign]
    broken = data[: len(data) * 3 // 4]
    sink = Notes()
    frames = [frame_of(n, CompressedImage("jpeg", broken if n == 2 else data)) for n in range(6)]
    snapshot = run(frames, sink, encoding="jpeg:90")
    assert sent.count(data) == 5
    assert sink.numbers() == list(range(6))
    assert snapshot.outcomes[Outcome.OK] == 5
    assert sink.written[2][2].outcome is Outcome.ERROR
    assert sink.written[2][1].pixels.size == 0


def breaking_off(after: int) -> Iterator[Frame]:
    """Yield frames until the source is found to be damaged."""
    yield from map(frame_of, range(after))
    raise SourceError("drive.bag: damaged at byte 4711")


@pytest.mark.parametrize("after", [0, 1, 25])
def test_a_source_that_breaks_off(run: Run, after: int) -> None:
    """What was read before has its outcome, in the sink too; then the error is raised."""
    sink = Notes()
    snapshot = run(breaking_off(after), sink, error=SourceError)
    assert snapshot.outcomes[Outcome.OK] == after
    assert sink.numbers() == list(range(after))


def test_a_defect_in_a_source_comes_out_too(requester: Requester) -> None:
    """Whatever the source raises is raised once everything has ended."""
    sink = Notes()
    job = Replay(requester, Preparer(ImageContract("image"), "lz4"), ReplayOptions("echo"), ReplayStatistics(), sink)

    def frames() -> Iterator[Frame]:
        yield frame_of(0)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        job.run(frames())
    assert sink.numbers() == [0]


@pytest.mark.parametrize(
    "error", [ConfigError("cannot write it: no space left on device"), ZeroDivisionError("defect")]
)
def test_a_sink_that_fails_ends_the_run(run: Run, error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    """Reading stops, what is in flight ends, and the reason is raised."""
    read: list[int] = []

    def frames() -> Iterator[Frame]:
        for number in range(10_000):
            read.append(number)
            yield frame_of(number)

    sink = Notes(fails_at=5, error=error)
    with caplog.at_level(logging.CRITICAL, "mqinfer"):
        run(frames(), sink, window=2, error=MqinferError)
    assert sink.numbers() == list(range(5))
    assert len(read) < 100


def test_a_full_disk_is_said_by_name(requester: Requester, tmp_path: Path) -> None:
    """A real sink on a full device: the path and the system's word are in the message."""
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    (tmp_path / "results.jsonl").symlink_to("/dev/full")
    sink = JsonlSink(tmp_path)
    preparer = Preparer(ImageContract("image"), "lz4")
    with pytest.raises(ConfigError, match=r"cannot write .*results.jsonl: No space left on device"):
        Replay(requester, preparer, ReplayOptions("echo"), ReplayStatistics(), sink).run(map(frame_of, range(50)))
    with pytest.raises(ConfigError, match="No space left"):
        sink.close()


def test_stopping(run: Run) -> None:
    """After the stop no frame is read; what was read has its outcome."""
    stop = threading.Event()

    def frames() -> Iterator[Frame]:
        for number in range(10_000):
            if number == 30:
                stop.set()
            yield frame_of(number)

    sink = Notes()
    snapshot = run(frames(), sink, stop.is_set)
    assert snapshot.frames_read == 31
    assert sink.numbers() == list(range(31))


def test_a_slow_consumer_holds_the_reader(run: Run) -> None:
    """No more frames are in hand than the permits allow, however slow the sink is."""
    read = 0
    ahead: list[int] = []

    def frames() -> Iterator[Frame]:
        nonlocal read
        for number in range(60):
            read += 1
            yield frame_of(number)

    class Slow(Notes):
        def write(self, frame: Frame, view: FrameView, result: InferResult) -> None:
            ahead.append(read - len(self.written))
            threading.Event().wait(0.001)
            super().write(frame, view, result)

    run(frames(), Slow(), window=4)
    assert max(ahead) <= 2 * 4 + 2


def test_closing_the_client_ends_a_run(run: Run, requester: Requester, caplog: pytest.LogCaptureFixture) -> None:
    """When the client is closed under a run, every frame still has its outcome, and the run ends."""
    sink = Notes()

    def frames() -> Iterator[Frame]:
        for number in range(40):
            if number == 20:
                requester.close()
            yield frame_of(number)

    with caplog.at_level(logging.CRITICAL, "mqinfer"):
        snapshot = run(frames(), sink)
    assert sink.numbers() == list(range(40))
    assert snapshot.done == 40
    assert snapshot.outcomes[Outcome.OK] < 40


def test_frames_expire_without_a_worker(run: Run, requester: Requester) -> None:
    """Nobody answers in time: each frame is expired, and the run ends."""
    requester.link.drop()  # type: ignore[attr-defined]
    snapshot = run(map(frame_of, range(10)), Notes(), timeout=0.01)
    assert snapshot.outcomes[Outcome.EXPIRED] == 10


@pytest.fixture
def replay_away(
    serve: Serve, write_echo: Callable[..., Path], unique: Callable[[str], str], tmp_path: Path
) -> Iterator[Callable[..., Snapshot]]:
    """Replay 20 frames to a worker that leaves before the sixth; the next one comes once four found no worker.

    `stops` ends the run while there is none, with a spool of so many bytes once every frame was read.
    """
    url = f"memory://{unique('broker')}"
    repository = write_echo("echo", ("image", "UINT8", [-1, HEIGHT, WIDTH, 3]))
    worker = serve(url, repository)
    requester = connect(url, unique("edge"), options=ClientOptions(patience=0.01))
    wait_until(lambda: requester.registry.models.is_ready("echo"))

    def run(*, spool_bytes: int = 0, comes_back: bool = True, stops: bool = False, **options: object) -> Snapshot:
        def is_enough() -> bool:
            return requester.counters().outcomes[NoWorker.outcome] >= 4

        def is_stopped() -> bool:
            return stops and (statistics.snapshot().frames_read == 20 if spool_bytes else is_enough())

        def frames() -> Iterator[Frame]:
            for number in range(20):
                if number == 5:  # with frames in flight the reader would wait for their end
                    wait_until(lambda: statistics.snapshot().done == 5)
                    worker.stop()
                if number == 6:
                    wait_until(is_enough)
                    if comes_back:
                        serve(url, repository)
                yield frame_of(number)

        statistics = ReplayStatistics()
        with ExitStack() as stack:
            spool = stack.enter_context(closing(Spool(tmp_path / "spool", spool_bytes))) if spool_bytes else None
            preparer = Preparer(ImageContract("image", WIDTH, HEIGHT), "lz4")
            sent = ReplayOptions("echo", window=2, **options)  # type: ignore[arg-type]
            Replay(requester, preparer, sent, statistics, None, spool=spool).run(frames(), is_stopped)
        snapshot = statistics.snapshot()
        snapshot.check()
        return snapshot

    yield run
    requester.close()


@pytest.mark.parametrize(
    "options",
    [{}, {"spool_bytes": 10**6}, {"spool_bytes": 1000}, {"spool_bytes": 10**6, "policy": Policy.LATEST}],
    ids=["all", "spool", "full spool", "latest with spool"],
)
def test_frames_wait_for_a_worker(replay_away: Callable[..., Snapshot], options: dict[str, object]) -> None:
    """Where frames are kept, none ends because the only worker is away: each is sent again until one is there."""
    snapshot = replay_away(timeout=60.0, **options)
    newer = snapshot.outcomes[Outcome.SUPERSEDED] if "policy" in options else 0
    assert snapshot.outcomes[Outcome.OK] + newer == 20


def test_frames_wait_no_longer_than_their_time(replay_away: Callable[..., Snapshot]) -> None:
    """With no worker until then, they end."""
    snapshot = replay_away(timeout=0.2, comes_back=False)
    assert snapshot.outcomes[NoWorker.outcome] + snapshot.outcomes[Outcome.EXPIRED] >= 15


@pytest.mark.parametrize("policy", list(Policy))
def test_frames_that_wait_for_a_worker_stay_in_the_spool(replay_away: Callable[..., Snapshot], policy: Policy) -> None:
    """The reader goes on while no worker is there; a run that is stopped then leaves them to the next one."""
    snapshot = replay_away(timeout=600.0, comes_back=False, stops=True, spool_bytes=10**6, policy=policy)
    assert snapshot.frames_read == 20
    assert snapshot.outcomes[NoWorker.outcome] == 0
    assert snapshot.outcomes[Outcome.CANCELLED] >= 1


def test_a_stop_ends_the_wait_for_a_worker(replay_away: Callable[..., Snapshot]) -> None:
    """Without a spool frames that nobody can answer end for that reason, and not when their time is over."""
    snapshot = replay_away(timeout=600.0, comes_back=False, stops=True)
    assert snapshot.done < 20
    assert {failure.code for failure in snapshot.failures} in ({"cancelled"}, {"no_worker"}, {"cancelled", "no_worker"})


def test_a_stop_ends_the_wait_for_the_connection(run: Run, requester: Requester) -> None:
    """The same where it is the broker that is away."""
    stop = threading.Event()

    def frames() -> Iterator[Frame]:
        requester.link.drop()  # type: ignore[attr-defined]
        yield frame_of(0)
        stop.set()
        yield frame_of(1)

    snapshot = run(frames(), Notes(), stop.is_set, timeout=600.0)
    assert snapshot.outcomes[Outcome.CANCELLED] == 2


def test_only_frames_of_a_version_that_was_there_wait(replay_away: Callable[..., Snapshot]) -> None:
    """A version that no worker has ever served ends the run at once, also with `all`."""
    with pytest.raises(NoWorker):
        replay_away(timeout=600.0, version="9")


def entries(*roots: object) -> int:
    """Count the entries of all containers that objects hold, however deep; histograms, which are bounded, not."""
    seen: set[int] = set()
    found, todo = 0, list(roots)
    while todo:
        each = todo.pop()
        if id(each) in seen or isinstance(each, type | ModuleType):
            continue
        seen.add(id(each))
        if type(each) in {dict, set, list, tuple, deque}:
            found += len(each)  # type: ignore[arg-type]  # mypy does not narrow by a set of types
        elif not type(each).__module__.startswith("mqinfer"):
            continue
        todo += gc.get_referents(each)
    return found


@pytest.mark.parametrize("image", [picture_of(1), RawImage("no_such", 1, 1, 3, is_bigendian=False, data=b"123")])
def test_frames_that_are_refused_leave_nothing_behind(unique: Callable[[str], str], image: RawImage) -> None:
    """After 1,000 frames that are too large for the broker, or can't be decoded, nothing holds more than before."""
    broker = MemoryBroker(max_packet_size=300)
    requester = Requester(
        lambda handler: MemoryLink(broker, client_id=unique("edge"), on_connection=handler),
        unique("edge"),
        Topics(),
        ClientOptions(window=8),
    )
    requester.open()
    statistics = ReplayStatistics()
    replay = Replay(
        requester, Preparer(ImageContract("image"), "raw"), ReplayOptions("echo", window=2), statistics, None
    )
    held: list[int] = []

    def frames() -> Iterator[Frame]:
        for number in range(1200):
            if number in (200, 1199):
                while replay.pending:
                    threading.Event().wait(0.001)
                held.append(entries(replay, requester))
            yield frame_of(number, image)

    with closing(requester):
        replay.run(frames())
    assert statistics.snapshot().outcomes[Outcome.ERROR] == 1200
    assert replay.pending == 0
    assert held[1] - held[0] < 500, (
        "the client drops timers of requests that ended some time later, nothing else is held"
    )


def test_a_frame_that_cannot_be_sent_gives_way_to_a_newer_one(requester: Requester) -> None:
    """With `latest` and no connection the newest frame is the one that is sent when there is a link; each ends once."""
    link, statistics, notes = requester.link, ReplayStatistics(), Notes()
    assert isinstance(link, MemoryLink)
    link.drop()

    def frames() -> Iterator[Frame]:
        yield frame_of(0)
        while not requester.counters().pending:  # until it is prepared
            threading.Event().wait(0.001)
        yield frame_of(2)
        while requester.counters().submitted < 2:
            threading.Event().wait(0.001)
        link.restore()

    preparer = Preparer(ImageContract("image", WIDTH, HEIGHT), "lz4")
    Replay(requester, preparer, ReplayOptions("echo", policy=Policy.LATEST), statistics, notes).run(frames())
    assert [result.outcome for _, _, result in notes.written] == [Outcome.SUPERSEDED, Outcome.OK]
    snapshot = statistics.snapshot()
    snapshot.check()
    assert snapshot.outcomes[Outcome.SUPERSEDED] == snapshot.outcomes[Outcome.OK] == 1

from __future__ import annotations

import errno
import json
import os
import resource
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from mqinfer import InferResult, Outcome
from mqinfer.bags.frame import Frame
from mqinfer.broker.memory import MemoryLink
from mqinfer.client.requester import Requester
from mqinfer.client.window import Policy
from mqinfer.codecs import decode_tensor, encode_tensor
from mqinfer.edge_agent.preparing.preparer import Preparer
from mqinfer.edge_agent.replay import Replay
from mqinfer.edge_agent.reporting.statistics import ReplayStatistics, Snapshot
from mqinfer.edge_agent.settings import ReplayOptions
from mqinfer.edge_agent.spooling import backlog, before_card
from mqinfer.edge_agent.spooling.spool import Spool, SpoolBusy, SpooledFrame
from mqinfer.images.picture import CompressedImage, RawImage
from mqinfer.images.placement import Placement
from mqinfer.protocol.card import ImageContract
from mqinfer.protocol.checksum import checksum
from mqinfer.protocol.errors import ConfigError, NameTaken
from mqinfer.protocol.types import Capture, InferRequest
from tests.edge_agent.kept import Kept
from tests.patience import wait_until

HEIGHT, WIDTH = 8, 12


def tensor_of(number: int) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """Make a picture that tells its number."""
    return np.full((1, HEIGHT, WIDTH, 3), number, np.uint8)


def store(spool: Spool, number: int) -> int | None:
    """Put a frame into the spool."""
    tensor = encode_tensor("image", tensor_of(number), "lz4", {"image_encoding": "rgb8"})
    return spool.put(
        SpooledFrame(Capture("/left", number, 1_000_000_007 * number, "cam"), 288, number, tensors=(tensor,))
    )


def test_frames_come_back_as_they_were_also_after_a_crash(tmp_path: Path) -> None:
    """Bytes, shape, parameters and stamps, oldest first, from a file that was never closed cleanly."""
    with closing(Spool(tmp_path / "spool")) as spool:
        numbers = [store(spool, each) for each in range(3)]
        assert None not in numbers
        spool.remove(numbers[0] or 0)
    with closing(Spool(tmp_path / "spool")) as again:
        assert len(again) == 2
        found = again.after(0)
        assert found is not None
        assert found.capture == Capture("/left", 1, 1_000_000_007, "cam")
        assert (found.tensors[0].encoding, found.tensors[0].shape) == ("lz4", (1, HEIGHT, WIDTH, 3))
        assert dict(found.tensors[0].parameters) == {"image_encoding": "rgb8"}
        assert found.tensors[0].data == encode_tensor("image", tensor_of(1), "lz4").data
        second = again.after(found.number)
        assert second is not None
        assert again.after(second.number) is None


def test_the_pictures_of_one_request_come_back_together(tmp_path: Path) -> None:
    """Each with its own bytes and codec, and where the second one was taken."""
    tensors = tuple(encode_tensor(name, tensor_of(each), "lz4") for each, name in enumerate(("left", "right")))
    captures = Capture("/left", 3, 70, "l"), Capture("/right", 4, 71, "r")
    with closing(Spool(tmp_path)) as spool:
        spool.put(SpooledFrame(captures[0], 576, 80, captures[1:], tensors=tensors))
        found = spool.after(0)
    assert found is not None
    assert (found.capture, *found.joined) == captures
    assert [(each.name, bytes(each.data)) for each in found.tensors] == [
        (each.name, bytes(each.data)) for each in tensors
    ]


def test_a_frame_of_an_older_version_is_read(tmp_path: Path) -> None:
    """It was stored with one tensor, described beside its stamps."""
    head = {"name": "image", "datatype": "UINT8", "shape": [1, 1, 1, 3], "encoding": "raw", "parameters": {}}
    capture = {"source": "/left", "sequence": 1, "capture_time_ns": 7, "frame_id": ""}
    fields = {**head, "capture": capture, "bytes_raw": 3, "log_time_ns": 8, "number": 5}
    body = json.dumps(fields).encode() + b"\nabc"
    (tmp_path / "000000000005.frame").write_bytes(" ".join(checksum((body,))).encode() + b"\n" + body)
    with closing(Spool(tmp_path)) as spool:
        found = spool.after(0)
    assert found is not None
    assert (found.number, found.capture.source, found.tensors[0].name) == (5, "/left", "image")
    assert (bytes(found.tensors[0].data), found.joined) == (b"abc", ())


def test_the_bound_is_kept(tmp_path: Path) -> None:
    """What does not fit is not taken, until something has left; one frame always fits."""
    with closing(Spool(tmp_path, max_bytes=1)) as spool:
        first = store(spool, 0)
        assert first is not None
        assert store(spool, 1) is None
        spool.remove(first)
        assert store(spool, 2) is not None


def test_what_cannot_be_deleted_now_is_deleted_later(tmp_path: Path) -> None:
    """A frame that has its outcome counts until it is gone; when the spool is closed it gets its last chance."""
    with closing(Spool(tmp_path)) as spool:
        numbers = [store(spool, each) or 0 for each in range(3)]
        in_the_way = next(iter(sorted(tmp_path.glob("*.frame"))))
        in_the_way.unlink()
        in_the_way.mkdir()  # a folder can't be unlinked
        spool.remove(numbers[0])
        assert len(spool) == 3
        in_the_way.rmdir()
        spool.remove(numbers[1])
        assert len(spool) == 1
        spool.remove(numbers[2])
    with closing(Spool(tmp_path)) as again:
        assert len(again) == 0


def test_a_folder_that_cannot_be_used(tmp_path: Path) -> None:
    """A file in its place, or another process, is said at once."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="give another folder"):
        Spool(tmp_path / "file")
    with closing(Spool(tmp_path / "taken")), pytest.raises(ConfigError, match="locked"):
        Spool(tmp_path / "taken")


def test_frames_that_may_not_be_redacted_are_not_sent_by_a_run_that_redacts(tmp_path: Path) -> None:
    """It says so before it sends one; what a run that redacts has left is sent by the next one, and by others."""
    with closing(Spool(tmp_path)) as spool:
        number = store(spool, 1) or 0
    with pytest.raises(ConfigError, match="1 frames in it were kept without --redact; give another folder"):
        Spool(tmp_path, redacts=True)
    with closing(Spool(tmp_path)) as spool:
        spool.remove(number)
    for _ in range(2):
        with closing(Spool(tmp_path, redacts=True)) as spool:
            store(spool, 2)
    Spool(tmp_path).close()  # and may have got others
    with pytest.raises(ConfigError, match="2 frames in it were kept without --redact"):
        Spool(tmp_path, redacts=True)


def test_files_of_others_stay(tmp_path: Path) -> None:
    """Also those that look unfinished."""
    (tmp_path / "photos.new").mkdir()
    (tmp_path / "notes.new").write_text("")
    (tmp_path / "000000000003.new").write_text("")
    Spool(tmp_path).close()
    assert {path.name for path in tmp_path.iterdir()} == {"photos.new", "notes.new"}


def test_use_in_a_forked_child_is_an_error(tmp_path: Path) -> None:
    """Each method refuses in the child, and the parent's spool and its lock are as before."""
    with closing(Spool(tmp_path)) as spool:
        store(spool, 1)
        child = os.fork()
        if not child:
            refused = 0
            try:
                for use in (lambda: store(spool, 2), lambda: spool.after(0), lambda: spool.remove(1), spool.close):
                    with pytest.raises(ConfigError, match="was opened in process"):
                        use()
                    refused += 1
            finally:
                os._exit(refused)  # whatever happens, the child does not go on with the tests
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 4
        assert len(list(tmp_path.glob("*.frame"))) == 1
        with pytest.raises(ConfigError, match="locked"):
            Spool(tmp_path)
        assert spool.after(0) is not None


FLIPS = 300


def pictures_in(spool: Spool) -> list[int]:
    """Return the number of every frame; assert that each is what was stored under its number."""
    found, frame = [], spool.after(0)
    while frame:
        number = frame.capture.sequence or 0
        assert frame.capture == Capture("/left", number, 1_000_000_007 * number, "cam")
        assert np.array_equal(decode_tensor(frame.tensors[0]), tensor_of(number))
        assert (frame.tensors[0].name, frame.bytes_raw) == ("image", 288)
        assert dict(frame.tensors[0].parameters) == {"image_encoding": "rgb8"}
        found.append(number)
        frame = spool.after(frame.number)
    return found


@pytest.mark.parametrize("damage", ["flip", "cut", "append", "empty", "swap"])
def test_damage_costs_one_frame_and_nothing_else(tmp_path: Path, damage: str) -> None:
    """Whatever bit of a file is flipped, it is counted and set aside; all others come back as they were."""
    random = Random(11)  # noqa: S311 - a seed, no secret
    for attempt in range(FLIPS if damage == "flip" else 8):
        folder = tmp_path / str(attempt)
        with closing(Spool(folder)) as spool:
            for number in range(4):
                store(spool, number)
        hit = random.randrange(4)
        path, other = sorted(folder.glob("*.frame"))[hit], sorted(folder.glob("*.frame"))[hit - 1]
        content = bytearray(path.read_bytes())
        if damage == "flip":
            place = random.randrange(8 * len(content))
            content[place // 8] ^= 1 << place % 8
        path.write_bytes(
            {
                "flip": bytes(content),
                "cut": bytes(content[: random.randrange(1, len(content))]),
                "append": bytes(content) + b"0",
                "empty": b"",
                "swap": other.read_bytes(),  # a whole frame under another's name
            }[damage]
        )
        with closing(Spool(folder)) as spool:
            assert pictures_in(spool) == [number for number in range(4) if number != hit]
            assert spool.damaged == 1
            assert len(spool) == 3
        assert [each.stem for each in folder.glob("*.damaged")] == [path.stem]
        with closing(Spool(folder)) as again:
            assert (len(again), again.damaged) == (3, 0)


def test_damaged_files_are_bounded(tmp_path: Path) -> None:
    """The newest sixteen are kept for the operator."""
    with closing(Spool(tmp_path)) as spool:
        for number in range(40):
            store(spool, number)
        for path in tmp_path.glob("*.frame"):
            path.write_bytes(b"x")
        assert spool.after(0) is None
        assert spool.damaged == 40
    assert [int(path.stem) for path in sorted(tmp_path.glob("*.damaged"))] == list(range(25, 41))


def test_numbers_far_apart(requester: Requester, tmp_path: Path) -> None:
    """A file with a huge number, whole or not, costs no more time than any other."""
    with closing(Spool(tmp_path)) as spool:
        store(spool, 0)
    (tmp_path / f"{10**15}.frame").write_bytes(b"of a name that rotted")
    with closing(Spool(tmp_path)) as spool:
        notes, snapshot = replay(
            requester, spool, frames(20, {5: link_of(requester).drop, 15: link_of(requester).restore})
        )
        assert (len(spool), spool.damaged) == (0, 1)
    assert snapshot.outcomes[Outcome.OK] == 21
    assert [number for number, _, _ in notes.seen] == [0, *range(20)]


def test_what_a_killed_process_had_not_finished_is_removed(tmp_path: Path) -> None:
    """A file without its name is no frame, and foreign files stay."""
    (tmp_path / "000000000007.new").write_bytes(b"half of a fra")
    (tmp_path / "notes.frame").write_bytes(b"of others")
    with closing(Spool(tmp_path)) as spool:
        assert len(spool) == 0
        store(spool, 3)
        assert pictures_in(spool) == [3]
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".frame", ".frame"]


@pytest.fixture
def requester(edge: Callable[..., Requester], write_echo: Callable[..., Path]) -> Requester:
    """A client of one worker over an in-memory broker."""
    return edge(write_echo("echo", ("image", "UINT8", [-1, HEIGHT, WIDTH, 3])), window=4)


def frames(count: int, at: dict[int, Callable[[], object]]) -> Iterator[Frame]:
    """Yield frames, and call something before some of them."""
    for number in range(count):
        at.get(number, lambda: None)()
        pixels = tensor_of(number)[0]
        image = RawImage("rgb8", HEIGHT, WIDTH, 3 * WIDTH, is_bigendian=False, data=pixels.tobytes())
        yield Frame("/left", number, 1_000_000_007 * number, 2_000_000_007 * number, "cam", image)


def replay(
    requester: Requester,
    spool: Spool,
    source: Iterator[Frame],
    is_stopped: Callable[[], bool] = lambda: False,
    timeout: float = 60.0,
    policy: Policy = Policy.ALL,
) -> tuple[Kept, Snapshot]:
    """Run a replay with a spool; its counters must balance."""
    notes, statistics = Kept(), ReplayStatistics()
    preparer = Preparer(ImageContract("image", WIDTH, HEIGHT), "lz4")
    options = ReplayOptions("echo", window=2, timeout=timeout, policy=policy)
    Replay(requester, preparer, options, statistics, notes, spool=spool).run(source, is_stopped)
    snapshot = statistics.snapshot()
    snapshot.check()
    assert snapshot.frames_read == snapshot.requests == snapshot.done
    return notes, snapshot


@pytest.mark.parametrize("codec", ["", "jpeg:95", "png"])
def test_spooled_frames_have_their_recorded_size(requester: Requester, tmp_path: Path, codec: str) -> None:
    """What was sent is brought back to it; the recorded bytes, of a JPEG too, don't stay in memory."""
    link, views, statistics = link_of(requester), Kept(), ReplayStatistics()
    at: dict[int, Callable[[], object]] = {2: link.drop, 8: link.restore}

    def wide() -> Iterator[Frame]:
        for frame in frames(10, at):
            pixels = np.full((2 * HEIGHT, 3 * WIDTH, 3), 20 * frame.sequence, np.uint8)
            image = RawImage("rgb8", *pixels.shape[:2], 9 * WIDTH, is_bigendian=False, data=pixels.tobytes())
            encoded = CompressedImage("any", bytes(encode_tensor("x", pixels, codec).data)) if codec else None
            yield replace(frame, image=encoded or image)

    preparer, options = Preparer(ImageContract("image", WIDTH, HEIGHT), "lz4"), ReplayOptions("echo", window=2)
    with closing(Spool(tmp_path)) as spool:
        Replay(requester, preparer, options, statistics, views, spool=spool).run(wide())
    assert any(not frame.image.data for frame, _, _ in views.written)  # from the spool
    for number, (_, view, result) in enumerate(views.written):
        assert result.outcome is Outcome.OK
        assert view.pixels.shape == (2 * HEIGHT, 3 * WIDTH, 3)
        assert view.placement == Placement.of((3 * WIDTH, 2 * HEIGHT), (WIDTH, HEIGHT))
        assert abs(int(view.pixels.mean()) - 20 * number) <= 2


def link_of(requester: Requester) -> MemoryLink:
    """Return the link, which a test can break."""
    assert isinstance(requester.link, MemoryLink)
    return requester.link


def test_an_outage_loses_no_frame_and_does_not_hold_the_reader(requester: Requester, tmp_path: Path) -> None:
    """Thirty frames are read while there is no connection, far more than are let into memory; all come out in order."""
    link = link_of(requester)
    with closing(Spool(tmp_path)) as spool:
        notes, snapshot = replay(requester, spool, frames(50, {10: link.drop, 40: link.restore}))
        assert len(spool) == 0
    assert snapshot.outcomes[Outcome.OK] == 50
    assert notes.seen == [(number, number, Outcome.OK) for number in range(50)]


def test_what_was_sent_before_an_outage_outlives_its_time(requester: Requester, tmp_path: Path) -> None:
    """A frame under way when the connection goes expires meanwhile: it is kept, and sent again with the next one."""
    link, submit, calls = link_of(requester), requester.submit, count(1)

    def submit_and_lose(
        request: InferRequest, timeout: float, settle: Callable[[InferResult], None], **how: Any
    ) -> str:
        def notice(result: InferResult) -> None:
            settle(result)
            if result.outcome is Outcome.EXPIRED:
                link.restore()

        if next(calls) == 10:
            link.drop()
        return submit(request, timeout, notice, **how)

    requester.submit = submit_and_lose  # type: ignore[method-assign, assignment]
    with closing(Spool(tmp_path)) as spool:
        notes, snapshot = replay(requester, spool, frames(20, {}), timeout=0.2)
        assert len(spool) == 0
    assert requester.counters().outcomes[Outcome.EXPIRED] > 0
    assert snapshot.outcomes[Outcome.OK] == 20
    assert notes.seen == [(number, number, Outcome.OK) for number in range(20)]


def test_what_a_stopped_run_left_goes_first_in_the_next(requester: Requester, tmp_path: Path) -> None:
    """It is said to be kept, and comes back under its own stamps, before anything new."""
    link = link_of(requester)
    stopped = threading.Event()
    with closing(Spool(tmp_path)) as spool:
        source = frames(21, {5: link.drop, 20: stopped.set})
        notes, snapshot = replay(requester, spool, source, stopped.is_set)
        kept = [number for number, _, outcome in notes.seen if outcome is Outcome.CANCELLED]
        assert len(kept) == snapshot.outcomes[Outcome.CANCELLED] == len(spool) > 0
    link.restore()
    with closing(Spool(tmp_path)) as spool:
        notes, snapshot = replay(requester, spool, frames(3, {}))
        assert len(spool) == 0
    numbers = [number for number, _, _ in notes.seen]
    assert sorted(numbers[:-3]) == sorted(kept)  # stored by two threads, so neighbours may have changed places
    assert numbers[-3:] == [0, 1, 2]
    assert all(pixel == number for number, pixel, _ in notes.seen)
    assert snapshot.outcomes[Outcome.OK] == len(kept) + 3


def test_a_connection_that_fails_for_good_leaves_everything_in_the_spool(requester: Requester, tmp_path: Path) -> None:
    """Also where the link itself stands, since another process has the name: what was not answered is kept."""
    link = link_of(requester)

    def fail() -> None:
        requester.give_up(NameTaken("another one has it"))
        link.restore()

    with closing(Spool(tmp_path)) as spool:
        source = frames(21, {5: link.drop, 20: fail})
        _, snapshot = replay(requester, spool, source, lambda: requester.failure is not None)
        kept = len(spool)
    assert kept == snapshot.outcomes[Outcome.CANCELLED] > 0
    assert kept + snapshot.outcomes[Outcome.OK] == snapshot.frames_read


def test_a_run_that_is_stopped_while_nothing_more_fits(requester: Requester, tmp_path: Path) -> None:
    """The reader waits for room, and a stop ends the run all the same; a frame is kept, or its outcome says why not."""
    link = link_of(requester)
    with closing(Spool(tmp_path, max_bytes=500)) as spool:
        notes, snapshot = replay(requester, spool, frames(100, {5: link.drop}), lambda: bool(spool.refusal))
        kept = len(spool)
    assert snapshot.frames_read < 100
    assert kept == sum("kept in the spool for the next run" in said for said in notes.said) > 0
    lost = [said for said in notes.said if "not kept in the spool (its bound" in said]
    assert len(lost) == snapshot.outcomes[Outcome.CANCELLED] - kept > 0
    assert all("give another --spool" in said for said in lost)


def test_a_full_spool_holds_the_reader_until_the_connection_is_back(requester: Requester, tmp_path: Path) -> None:
    """The spool takes a few frames and the others wait in memory; with the connection all of them come out in order."""
    link = link_of(requester)

    def restore_once_full() -> bool:
        if spool.refusal:
            link.restore()
        return False

    with closing(Spool(tmp_path, max_bytes=500)) as spool:
        notes, snapshot = replay(requester, spool, frames(60, {5: link.drop}), restore_once_full)
        assert len(spool) == 0
    assert snapshot.outcomes[Outcome.OK] == 60
    assert [number for number, _, _ in notes.seen] == list(range(60))


def test_with_latest_the_oldest_frame_makes_room(requester: Requester, tmp_path: Path) -> None:
    """What the disk has no room for in an outage is superseded, oldest first, and counted; the reader never waits."""
    link = link_of(requester)

    def restore() -> None:
        wait_until(lambda: any(path.stem.endswith("59") for path in tmp_path.glob("*.frame")))
        link.restore()

    with closing(Spool(tmp_path, max_bytes=2000)) as spool:
        source = frames(60, {0: link.drop, 59: restore})
        notes, snapshot = replay(requester, spool, source, policy=Policy.LATEST)
        assert len(spool) == 0
    assert [number for number, _, _ in notes.seen] == list(range(60))
    kept = [number for number, _, outcome in notes.seen if outcome is Outcome.OK]
    dropped = [said for said in notes.said if "the spool was full" in said]
    assert len(kept) == snapshot.outcomes[Outcome.OK] > 1
    assert len(dropped) == snapshot.outcomes[Outcome.SUPERSEDED] == 60 - len(kept) > 10
    assert sum(number <= 50 for number in kept) <= 1  # one that was taken to be sent is not dropped


def test_a_frame_that_is_damaged_while_it_waits_has_its_outcome(requester: Requester, tmp_path: Path) -> None:
    """Three frames rot on the disk in an outage: each is an error that names the spool, and all others are ok."""
    link = link_of(requester)

    def rot() -> None:
        for path in sorted(tmp_path.glob("*.frame"))[-3:]:
            path.write_bytes(path.read_bytes()[:-1] + b"?")
        link.restore()

    with closing(Spool(tmp_path)) as spool:
        notes, snapshot = replay(requester, spool, frames(50, {10: link.drop, 40: rot}))
        assert (len(spool), spool.damaged) == (0, 3)
    assert (snapshot.outcomes[Outcome.OK], snapshot.outcomes[Outcome.ERROR]) == (47, 3)
    assert [number for number, _, _ in notes.seen] == list(range(50))
    assert all(pixel == number for number, pixel, outcome in notes.seen if outcome is Outcome.OK)
    assert sum("damaged in the spool" in said for said in notes.said) == 3


NUMBERS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO, errno.EINTR, errno.EROFS)
NOT_NOW = [
    *(OSError(each, os.strerror(each)) for each in NUMBERS),
    PermissionError(errno.EACCES, os.strerror(errno.EACCES)),
    MemoryError(),
]
FULL = [OSError(each, os.strerror(each)) for each in (errno.ENOSPC, errno.EDQUOT)]


def fails(monkeypatch: pytest.MonkeyPatch, suffix: str, error: Exception, when: Callable[[Path], bool]) -> None:
    """Let no file with this suffix be opened while it is so: `.frame` is read, and `.new` is written."""
    opening = Path.open

    def failing(self: Path, *args: Any, **how: Any) -> Any:
        if self.suffix == suffix and when(self):
            raise error
        return opening(self, *args, **how)

    monkeypatch.setattr(Path, "open", failing)


@contextmanager
def without_descriptors() -> Iterator[None]:
    """Let nothing more be opened."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("error", NOT_NOW, ids=repr)
def test_a_frame_that_cannot_be_read_or_written_now_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """It stays in its place, and what is offered is refused; a moment later both go on as if nothing had been."""
    with closing(Spool(tmp_path)) as spool:
        store(spool, 0)
        with monkeypatch.context() as patch:
            fails(patch, ".frame", error, lambda _: True)
            fails(patch, ".new", error, lambda _: True)
            with pytest.raises(SpoolBusy):
                spool.after(0)
            assert store(spool, 1) is None
            assert spool.refusal
            assert not spool.is_full
        assert store(spool, 1)
        assert (pictures_in(spool), spool.damaged) == ([0, 1], 0)


def test_without_descriptors_no_frame_is_lost(tmp_path: Path) -> None:
    """A spool that can't be listed is not taken for an empty one, whose next frame would replace the first."""
    with closing(Spool(tmp_path)) as spool:
        for number in range(3):
            store(spool, number)
        with without_descriptors():
            with pytest.raises(SpoolBusy, match="open files"):
                spool.after(0)
            assert store(spool, 3) is None
    with without_descriptors(), pytest.raises(ConfigError, match="open files"):
        Spool(tmp_path)
    with closing(Spool(tmp_path)) as spool:
        assert pictures_in(spool) == [0, 1, 2]


def test_a_name_that_is_no_file_is_not_opened(tmp_path: Path) -> None:
    """A pipe would hold up the run for ever; the numbers go on behind it."""
    os.mkfifo(tmp_path / "000000000002.frame")
    with closing(Spool(tmp_path)) as spool:
        assert store(spool, 7) == 3
        assert (pictures_in(spool), spool.damaged) == ([7], 0)


@pytest.mark.parametrize(
    "name", ["1.frame", "00000000000000000001.frame", "00000000000\N{FULLWIDTH DIGIT ONE}.frame", "x\n.frame"]
)
def test_a_name_that_the_spool_writes_none_of_is_let_alone(tmp_path: Path, name: str) -> None:
    """It would be looked for under another one, again with each run, and never be found."""
    (tmp_path / name).write_bytes(b"x")
    with closing(Spool(tmp_path)) as spool:
        assert (len(spool), store(spool, 7)) == (0, 1)
        assert (pictures_in(spool), spool.damaged) == ([7], 0)
    assert (tmp_path / name).read_bytes() == b"x"


@pytest.mark.parametrize("error", [*NOT_NOW, *FULL], ids=repr)
def test_frames_wait_while_the_disk_gives_none(
    requester: Requester, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """A few readings fail behind an outage, and a few writings in it: all frames come out, in their order."""
    link, read, written = link_of(requester), count(), count()
    fails(monkeypatch, ".frame", error, lambda _: next(read) < 2)
    fails(monkeypatch, ".new", error, lambda _: next(written) < 2)
    with closing(Spool(tmp_path)) as spool:
        notes, snapshot = replay(requester, spool, frames(40, {5: link.drop, 30: link.restore}))
        assert (len(spool), spool.damaged) == (0, 0)
    assert snapshot.outcomes[Outcome.OK] == 40
    assert [number for number, _, _ in notes.seen] == list(range(40))


@pytest.mark.parametrize("policy", [Policy.ALL, Policy.LATEST])
@pytest.mark.parametrize("error", [NOT_NOW[-3], FULL[0]], ids=repr)
def test_a_disk_that_takes_none_fills_no_memory(
    requester: Requester, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, policy: Policy
) -> None:
    """A disk that is full of others' files, or read-only, holds the reader at a bound; then all frames are sent."""
    link, taken, refused, held = link_of(requester), list[int](), list[int](), list[int]()

    def watched() -> Iterator[Frame]:
        for frame in frames(200, {0: link.drop}):
            taken.append(frame.sequence)
            yield frame

    def refuse(_: Path) -> bool:
        refused.append(len(taken))
        return True

    def restore() -> None:
        wait_until(lambda: len(refused) > 100 and refused[-100] == len(taken))
        held.append(len(taken))
        link.restore()

    fails(monkeypatch, ".new", error, refuse)
    monkeypatch.setattr(backlog, "FULL_CHECK_S", 0.01)
    waiting = threading.Thread(target=restore)
    waiting.start()
    with closing(Spool(tmp_path)) as spool:
        _, snapshot = replay(requester, spool, watched(), policy=policy)
    waiting.join()
    assert held[0] < 100
    newer = snapshot.outcomes[Outcome.SUPERSEDED] if policy is Policy.LATEST else 0  # a reader may outrun the worker
    assert snapshot.outcomes[Outcome.OK] + newer == 200


def test_with_latest_no_frame_makes_room_where_there_is_room(
    requester: Requester, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Writing fails for a moment, which no older frame's end would change."""
    link, tried = link_of(requester), count()
    fails(monkeypatch, ".new", OSError(errno.EMFILE, "Too many open files"), lambda _: next(tried) in {3, 4})

    def restore() -> None:
        wait_until(lambda: any(path.stem.endswith("30") for path in tmp_path.glob("*.frame")))
        link.restore()

    with closing(Spool(tmp_path)) as spool:
        _, snapshot = replay(requester, spool, frames(31, {0: link.drop, 30: restore}), policy=Policy.LATEST)
    assert snapshot.outcomes[Outcome.OK] == 31


def test_what_cannot_be_read_for_long_is_left_for_the_next_run(
    requester: Requester, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is no damage and holds up no other frame; this run says that it is kept, and the next one sends it."""
    monkeypatch.setattr(backlog, "_BUSY_S", 0.3)
    monkeypatch.setattr(backlog, "_LEAVING_S", 0.3)
    link = link_of(requester)
    with monkeypatch.context() as patch, closing(Spool(tmp_path)) as spool:
        fails(patch, ".frame", OSError(errno.EIO, "Input/output error"), lambda path: path.stem.endswith("3"))
        notes, snapshot = replay(requester, spool, frames(30, {5: link.drop, 20: link.restore}))
        kept = len(spool)
        assert (kept, spool.damaged) == (sum("can't be read now: Input" in said for said in notes.said), 0)
    assert snapshot.outcomes[Outcome.CANCELLED] == kept > 0
    assert snapshot.outcomes[Outcome.OK] == 30 - kept
    with monkeypatch.context() as patch, closing(Spool(tmp_path)) as spool:
        fails(patch, ".frame", OSError(errno.EIO, "Input/output error"), lambda path: path.stem.endswith("3"))
        replay(requester, spool, frames(1, {}))
        assert (len(spool), spool.damaged) == (kept, 0)
    with closing(Spool(tmp_path)) as spool:
        _, snapshot = replay(requester, spool, frames(1, {}))
        assert (snapshot.outcomes[Outcome.OK], len(spool)) == (kept + 1, 0)


def test_what_cannot_be_written_at_the_end_is_tried_again(
    requester: Requester, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stop comes while nothing can be opened: each frame is kept all the same a moment later."""
    link, stopped, tried = link_of(requester), threading.Event(), count()
    fails(monkeypatch, ".new", OSError(errno.EMFILE, "Too many open files"), lambda _: next(tried) < 4)
    with closing(Spool(tmp_path)) as spool:
        source = frames(9, {5: link.drop, 8: stopped.set})
        _, snapshot = replay(requester, spool, source, stopped.is_set)
        assert len(spool) == snapshot.outcomes[Outcome.CANCELLED] > 0
        assert pictures_in(spool)


@pytest.mark.parametrize("error", [NOT_NOW[0], MemoryError()], ids=repr)
def test_before_there_is_a_card_what_cannot_be_written_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """The reader waits that long, and goes on: it does not wait for the card."""
    monkeypatch.setattr(before_card, "FULL_CHECK_S", 0.01)
    tried, statistics = count(), ReplayStatistics()
    fails(monkeypatch, ".new", error, lambda _: next(tried) in {1, 2})
    with closing(Spool(tmp_path)) as spool:
        preparer, stop = Preparer(ImageContract(""), "lz4"), threading.Event()
        find = lambda _: len(spool) == 5  # noqa: E731
        before = before_card.BeforeCard("echo", preparer, spool, statistics, find=find, stop=stop)
        left = before.keep(frames(5, {}), 60)
        assert (list(left or ()), len(spool), before.is_read) == ([], 5, True)


@pytest.mark.parametrize("error", [NOT_NOW[0], MemoryError()], ids=repr)
def test_a_frame_that_cannot_be_prepared_now_is_tried_again(
    requester: Requester, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """A codec's library can't be opened, or memory is short, for a moment: the frames come out all the same."""
    prepare, tried = Preparer.prepare, count()

    def failing(self: Preparer, *args: Any, **how: Any) -> Any:
        if next(tried) in {1, 2}:
            raise error
        return prepare(self, *args, **how)

    monkeypatch.setattr(Preparer, "prepare", failing)
    with closing(Spool(tmp_path)) as spool:
        _, snapshot = replay(requester, spool, frames(6, {}))
    assert snapshot.outcomes[Outcome.OK] == 6

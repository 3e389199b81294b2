from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from mqinfer.bags.frame import Frame
from mqinfer.edge_agent.session import FanOut
from mqinfer.images.picture import CompressedImage
from mqinfer.protocol.errors import SourceError

FRAMES = 200


def frames(count: int, read: list[int], error: Exception | None = None) -> Iterator[Frame]:
    """Yield frames, note each, and break off at the end if there is an error."""
    for number in range(count):
        read.append(number)
        yield Frame("/left", number, number, number, "", CompressedImage("jpeg", b""))
    if error:
        raise error


def test_every_reader_has_every_frame_and_each_is_read_once() -> None:
    """Three readers on threads of their own, in any order."""
    read: list[int] = []
    fan = FanOut(frames(FRAMES, read), 3)

    def collect(index: int) -> list[int]:
        with fan.reader(index) as reader:
            return [frame.sequence for frame in reader]

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(collect, range(3))) == [list(range(FRAMES))] * 3
    assert read == list(range(FRAMES))


def test_a_fast_reader_waits_for_a_slow_one_that_reads() -> None:
    """The frames in memory are bounded; once the slow reader has left, the other has them all."""
    read: list[int] = []
    fan = FanOut(frames(FRAMES, read), 2)
    got: list[int] = []
    with fan.reader(0) as fast:
        thread = threading.Thread(target=lambda: got.extend(frame.sequence for frame in fast))
        thread.start()
        with fan.reader(1) as slow:
            for number in range(50):
                assert next(slow).sequence == number
                assert len(read) <= number + 6
        thread.join(30)
    assert got == list(range(FRAMES))


def test_an_error_of_the_source_is_raised_in_each_reader() -> None:
    """After all the frames before it."""
    fan = FanOut(frames(3, [], SourceError("damaged")), 2)
    with fan.reader(0) as one, fan.reader(1) as other:
        for _ in range(3):
            assert next(one).sequence == next(other).sequence
        for reader in (one, other):
            with pytest.raises(SourceError, match="damaged"):
                next(reader)

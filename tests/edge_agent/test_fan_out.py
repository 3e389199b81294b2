from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

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
    readers = FanOut(frames(FRAMES, read), 3).readers

    def collect(index: int) -> list[int]:
        with closing(readers[index]):
            return [frame.sequence for frame in readers[index]]

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(collect, range(3))) == [list(range(FRAMES))] * 3
    assert read == list(range(FRAMES))


def test_a_fast_reader_waits_for_a_slow_one_that_reads() -> None:
    """The frames in memory are bounded; once the slow reader has left, the other has them all."""
    read: list[int] = []
    fast, slow = FanOut(frames(FRAMES, read), 2).readers
    got: list[int] = []
    thread = threading.Thread(target=lambda: got.extend(frame.sequence for frame in fast))
    thread.start()
    for number in range(50):
        assert next(slow).sequence == number
        assert len(read) <= number + 6
    slow.close()
    thread.join(30)
    assert got == list(range(FRAMES))


def test_an_error_of_the_source_is_raised_in_each_reader() -> None:
    """After all the frames before it."""
    readers = FanOut(frames(3, [], SourceError("damaged")), 2).readers
    for _ in range(3):
        assert next(readers[0]).sequence == next(readers[1]).sequence
    for reader in readers:
        with pytest.raises(SourceError, match="damaged"):
            next(reader)

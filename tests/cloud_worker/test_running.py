"""The block in which a worker names the requests that it works on."""

from __future__ import annotations

import ctypes
import multiprocessing
import os

import pytest

from mqinfer.cloud_worker.serving.pipeline import RunningRequests

ONE, TWO, THREE = (bytes([number]) * 16 for number in (1, 2, 3))


def test_what_is_written_is_read_until_it_is_finished() -> None:
    """Each thread has its slot; a request that two of them name is named once."""
    running = RunningRequests()
    assert running.read() == ()
    running.write(0, [ONE, TWO])
    running.write(RunningRequests.SLOTS - 1, [THREE])
    running.write(1, [TWO])
    assert running.read() == (ONE.hex(), TWO.hex(), THREE.hex())
    running.write(0, [])
    assert running.read() == (TWO.hex(), THREE.hex())


@pytest.mark.parametrize("ids", [[None], [b""], [b"short"], [ONE, None], [ONE * 2], [ONE] * 255])
def test_one_that_can_not_be_named_hides_all(ids: list[bytes | None]) -> None:
    """Else the others would be blamed for it."""
    running = RunningRequests()
    running.write(0, [TWO])
    running.write(1, ids)
    assert running.read() == ()
    running.write(1, [])
    assert running.read() == (TWO.hex(),)


def test_a_state_stays_small() -> None:
    """More requests than a report holds are not named."""
    running = RunningRequests()
    for slot in range(4):
        running.write(slot, [bytes([slot, number]) * 8 for number in range(200)])
    assert running.read() == ()


def write_and_die(memory: ctypes.Array[ctypes.c_ubyte]) -> None:
    """Begin a request and end at once."""
    RunningRequests(memory).write(0, [ONE])
    os._exit(1)


def test_a_process_that_ends_leaves_what_it_wrote() -> None:
    """No close and no flush: the memory is its server's."""
    context = multiprocessing.get_context("fork")
    memory = context.RawArray(ctypes.c_ubyte, RunningRequests.SIZE)
    process = context.Process(target=write_and_die, args=(memory,))
    process.start()
    process.join(60)
    assert process.exitcode == 1
    assert RunningRequests(memory).read() == (ONE.hex(),)

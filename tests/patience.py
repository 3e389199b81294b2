"""What keeps tests independent of how fast the machine is: a client that waits long, and waiting for a condition."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace

from mqinfer.client.options import ClientOptions, Silence

__all__ = ["LONG_SILENCE", "PATIENCE_S", "PATIENT", "STEADY", "until", "wait_until"]

PATIENCE_S = 60.0

LONG_SILENCE = Silence(attempt=60.0, attempt_shared=60.0, attempt_unknown=60.0)
"""A request is sent again once its worker or its connection is lost, and not because a busy machine is slow."""
PATIENT = ClientOptions(timeout=2 * PATIENCE_S, silence=LONG_SILENCE)
STEADY = replace(PATIENT, silence=replace(LONG_SILENCE, doubt=60.0))
"""A worker that is held up gets further requests, too: a stream leaves the one with its pictures once that is lost."""


def wait_until(is_so: Callable[[], bool]) -> None:
    """Wait for a condition that nothing reports."""
    end = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.01)


async def until(is_so: Callable[[], object]) -> None:
    """Wait for a condition that nothing reports, without holding up the loop."""
    async with asyncio.timeout(PATIENCE_S):
        while not is_so():  # noqa: ASYNC110 - nothing reports it
            await asyncio.sleep(0.005)

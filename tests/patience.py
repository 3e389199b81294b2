"""What keeps tests independent of how fast the machine is: a client that waits long, and waiting for a condition."""

from __future__ import annotations

import time
from collections.abc import Callable

from mqinfer.client.options import ClientOptions, Silence

__all__ = ["LONG_SILENCE", "PATIENCE_S", "PATIENT", "wait_until"]

PATIENCE_S = 60.0

LONG_SILENCE = Silence(attempt=60.0, attempt_shared=60.0, attempt_unknown=60.0)
"""A request is sent again once its worker or its connection is lost, and not because a busy machine is slow."""
PATIENT = ClientOptions(silence=LONG_SILENCE)


def wait_until(is_so: Callable[[], bool]) -> None:
    """Wait for a condition that nothing reports."""
    end = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.01)

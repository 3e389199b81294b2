"""Waiting for the workers of a bench."""

from __future__ import annotations

from queue import Empty, SimpleQueue

from mqinfer.cloud_worker.supervision.supervisor import Event
from mqinfer.protocol.errors import ModelNotLoadable

__all__ = ["next_ready"]


def next_ready(events: SimpleQueue[Event], timeout: float) -> Event:
    """Wait until the next worker serves.

    Args:
        events: What a supervisor tells.
        timeout: In seconds.

    Raises:
        ModelNotLoadable: It does not start, or not in time.
    """
    try:
        event = events.get(timeout=timeout)
    except Empty as error:
        raise ModelNotLoadable(f"a worker of the bench was not ready within {timeout:g} s") from error
    if event.kind != "ready":
        raise ModelNotLoadable(f"worker {event.worker} of the bench did not start: {event.kind}: {event.detail}")
    return event

"""Worker processes under a supervisor, for the benches."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from queue import Empty, SimpleQueue

from mqinfer.cloud_worker.supervision.process import ProcessSpec
from mqinfer.cloud_worker.supervision.supervisor import Event, Supervisor
from mqinfer.protocol.errors import ModelNotLoadable

_START_TIMEOUT_S = 300.0


@contextmanager
def worker_processes(
    specs: Sequence[ProcessSpec], on_ready: Callable[[Event], None] = lambda _: None
) -> Iterator[Supervisor]:
    """Run worker processes while the body runs, which starts once all of them serve.

    Args:
        specs: One for each process.
        on_ready: Called for each process that serves.

    Raises:
        ModelNotLoadable: A process does not start, or takes longer than 5 minutes.
    """
    events: SimpleQueue[Event] = SimpleQueue()
    supervisor = Supervisor(specs, events.put)
    thread = threading.Thread(target=supervisor.run, name="mqinfer-bench-supervisor")
    thread.start()
    try:
        for _ in specs:
            on_ready(_next_ready(events))
        yield supervisor
    finally:
        supervisor.stop()
        thread.join()


def _next_ready(events: SimpleQueue[Event]) -> Event:
    try:
        event = events.get(timeout=_START_TIMEOUT_S)
    except Empty as error:
        raise ModelNotLoadable(f"a worker of the bench was not ready within {_START_TIMEOUT_S:g} s") from error
    if event.kind != "ready":
        raise ModelNotLoadable(f"worker {event.worker} of the bench did not start: {event.kind}: {event.detail}")
    return event

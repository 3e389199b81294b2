"""A worker process with a defect, to see that it is noticed."""

from __future__ import annotations

import time
from multiprocessing.connection import Connection

from mqinfer.broker.paho.session import Session
from mqinfer.cloud_worker.supervision.process import ProcessSpec, run_process

__all__ = ["run_and_fail"]


def run_and_fail(spec: ProcessSpec, pipe: Connection) -> None:
    """Be a worker process whose connection's thread dies a second after its start."""
    tick, until = Session.tick, time.monotonic() + 1.0

    def failing(session: Session) -> None:
        if time.monotonic() > until:
            raise RuntimeError("a defect, for the test")
        tick(session)

    Session.tick = failing  # type: ignore[method-assign,assignment]
    run_process(spec, pipe)

"""Spans that can't be made cost no request its outcome."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from itertools import count
from typing import ParamSpec

from mqinfer.logs import log_dropped

__all__ = ["harmless"]

log = logging.getLogger("mqinfer.telemetry")
P = ParamSpec("P")
_failures = count(1)


def harmless(method: Callable[P, None]) -> Callable[P, None]:
    """Return a method that logs its failures and raises nothing: it runs on threads that deliver replies."""

    @functools.wraps(method)
    def run(*args: P.args, **named: P.kwargs) -> None:
        try:
            method(*args, **named)
        except Exception as error:  # noqa: BLE001 - a defect, or no memory: the request is served all the same
            log_dropped(log, f"the spans of a request: {error!r}", "spans_failed", next(_failures))

    return run

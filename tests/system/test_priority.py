"""Priorities from the caller to a model with levels, with a real broker and worker."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mqinfer import Client
from mqinfer.protocol.topics import Topics
from tests.patience import PATIENT

pytestmark = pytest.mark.broker
X = {"x": np.ones((1, 4), np.float32)}
LEVELS = """max_batch_size = 1
[dynamic_batching]
priority_levels = 2
highest_priority = { "bus-*" = 2 }
"""
EACH = 20


@pytest.mark.parametrize(("name", "goes_first"), [("truck", False), ("bus-7", False), ("car", True)])
def test_what_goes_first(
    serving: Callable[[Path], Topics],
    write_echo: Callable[..., Path],
    broker_url: str,
    unique: Callable[[str], str],
    name: str,
    *,
    goes_first: bool,
) -> None:
    """Requests of priority 1 overtake those of a client without one that came before; those of a bus may not."""
    root = serving(write_echo(delay_ms=50, config=LEVELS)).root
    answered: list[str] = []

    def note(who: str) -> Callable[[Any], None]:
        return lambda _: answered.append(who)

    priority = 0 if name == "truck" else 1
    with (
        Client(broker_url, root=root, options=PATIENT, name=unique("tram")) as first,
        Client(broker_url, root=root, options=PATIENT, name=unique(name)) as second,
    ):
        for client in (first, second):
            client.infer("echo", X, timeout=60)
        early = [first.submit("echo", X, timeout=60) for _ in range(EACH)]
        late = [second.submit("echo", X, timeout=60, priority=priority) for _ in range(EACH)]
        for who, futures in (("early", early), ("late", late)):
            for each in futures:
                each.add_done_callback(note(who))
        for each in early + late:
            each.result(60)
    last = max(number for number, who in enumerate(answered) if who == "late")
    behind = len(answered) - 1 - last  # of the client that came first
    assert (behind >= EACH // 4) is goes_first, answered

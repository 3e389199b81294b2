"""An edge's client over an in-memory broker; see `edge`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mqinfer.client.connection import connect
from mqinfer.client.requester import Requester
from mqinfer.cloud_worker.serving.worker import Worker
from tests.patience import PATIENT


@pytest.fixture
def edge(url: str, serve: Callable[..., Worker], unique: Callable[[str], str]) -> Iterator[Callable[..., Requester]]:
    """Serve models and return a client of theirs: `edge(repository, "echo", "small", window=4)`.

    Every request must have had one outcome.
    """
    made: list[Requester] = []

    def start(repository: Path | None = None, *models: str, **options: Any) -> Requester:
        if repository is not None:
            for model in models or ("echo",):
                serve(url, repository, model)
        made.append(connect(url, unique("edge"), options=replace(PATIENT, **options)))
        return made[-1]

    yield start
    for each in made:
        each.close()
        counters = each.counters()
        assert counters.submitted == sum(counters.outcomes.values())
        assert counters.pending == 0

"""A timed reference: servers that sleep in YOLOv2's place, so that many work on few cores."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from mqinfer.bench.processes import say, worker_specs
from mqinfer.broker.address import BrokerAddress
from mqinfer.cloud_worker.supervision.process import serve
from mqinfer.models.repository import Repository

ANSWER = "answer"
"""The timed reference returns this input; what it is belongs to the scene, and not to the time that it takes."""


def write_timed(repository: Path, side: int, delay_ms: float, counts: Sequence[int]) -> None:
    """Write the models: one of one server each, to draw from, and one for each number of servers, to share.

    Args:
        repository: Folder to write to.
        side: Side of their pictures, in pixels.
        delay_ms: How long each sleeps for a request.
        counts: Numbers of servers.
    """
    image = f'[[input]]\nname = "image"\ndatatype = "FP32"\nshape = [-1, {side}, {side}, 3]\n'
    answer = f'[[input]]\nname = "{ANSWER}"\ndatatype = "FP32"\nshape = [-1, 1]\n'
    names = [*map(drawn, range(max(counts))), *map(shared, counts)]
    for name in names:
        version = repository / name / "1"
        version.mkdir(parents=True)
        (version / "model.echo").write_text(f'delay_ms = {delay_ms:g}\noutput = ["{ANSWER}"]\n{image}{answer}')
        size = f'[image]\ninput = "image"\nwidth = {side}\nheight = {side}\n'
        (version.parent / "model.toml").write_text(f"max_batch_size = 1\n{size}")


def drawn(number: int) -> str:
    """Return the model that only server `number` has."""
    return f"server-{number}"


def shared(servers: int) -> str:
    """Return the model that so many servers have."""
    return f"of-{servers}"


def serve_timed(url: str, folder: str, *counts: str) -> None:
    """Run the workers of the timed reference in this process until its standard input ends: they sleep.

    Args:
        url: Of the broker.
        folder: Model repository.
        counts: Numbers of servers.
    """
    numbers = [int(count) for count in counts]
    wanted = {drawn(number): 1 for number in range(max(numbers))} | {shared(count): count for count in numbers}
    models, broker = Repository(folder), BrokerAddress.parse(url)
    with ExitStack() as stack:
        for model, count in wanted.items():
            for spec in worker_specs(models.find(model), broker, count):
                stack.callback(serve(spec).stop)
        say(str(len(wanted)))
        sys.stdin.read()

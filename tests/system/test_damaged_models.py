"""Seeded damaged copies of a model of each format; MQINFER_DAMAGED_COPIES=40 makes more of them.

A server loads the first copy of each format, one process of the tests the others: an engine is imported once there.

`--log-level=INFO --log-cli-level=INFO` lists what was done to each copy, and what became of it.
"""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest

from mqinfer import Client
from mqinfer.client.control import ControlClient
from mqinfer.errors import MqinferError
from mqinfer.models.loading import load_model
from mqinfer.models.repository import Repository
from mqinfer.models.warmup import warm_up
from mqinfer.protocol.card import ModelCard
from mqinfer.protocol.control import Call, Operation
from tests.system.small_models import BUILDERS, CHANNELS, SIDE, build, damage, truth

pytestmark = [pytest.mark.broker, pytest.mark.slow]

log = logging.getLogger(__name__)
COPIES = int(os.environ.get("MQINFER_DAMAGED_COPIES", "5"))
_LOAD_S = 300


@dataclass(frozen=True, slots=True)
class Server:
    """A worker as a process of its own, with a model that stays whole."""

    url: str
    root: str
    repository: Path
    temporary: Path
    log: Path


@pytest.fixture(scope="module")
def server(broker_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """`mqinfer worker`, which must end in order, print no traceback, and leave no process and no temporary file."""
    folder, root = tmp_path_factory.mktemp("damaged"), f"damaged-{os.getpid()}"
    made = Server(broker_url, root, folder / "models", folder / "temporary", folder / "log")
    build(made.repository, "whole", "onnx")
    made.temporary.mkdir()
    command: list[str] = [sys.executable, "-m", "mqinfer", "worker", "--repository", str(made.repository), "--no-load"]
    command += ["--broker", broker_url, "--root", root, "--name", root]
    environment = os.environ | {"TMPDIR": str(made.temporary)}
    with made.log.open("w") as console:
        worker = subprocess.Popen(command, stderr=console, stdout=console, env=environment, start_new_session=True)
    try:
        with ControlClient(broker_url, root=root) as control:
            control.wait_for(root, timeout=120)
            control.load("whole")
        yield made
    finally:
        worker.terminate()
        assert worker.wait(timeout=120) == 0
    assert b"Traceback" not in made.log.read_bytes()  # engines may print bytes of what they read
    left = {each.name for each in made.temporary.iterdir()}
    assert left <= {".ses"}  # the one that ONNX Runtime makes wherever it is imported
    for _ in range(600):  # helpers of Python's own end by themselves
        if not _is_running(worker.pid):
            return
        Event().wait(0.1)
    pytest.fail("a process of the server's group is left")


def _is_running(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture(scope="module")
def trial(server: Server) -> Iterator[Callable[[str], str]]:
    """Return a function that tries a copy in one process, and in another one where a copy has ended it."""

    def start() -> ProcessPoolExecutor:
        return ProcessPoolExecutor(1, get_context("spawn"), _use_temporary, (str(server.temporary),))

    def attempt(model: str) -> str:
        try:
            return pools[-1].submit(tried, server.repository, model).result(timeout=_LOAD_S)
        except BrokenProcessPool:
            pools.append(start())
            return "given up: it ended the process"

    pools = [start()]
    yield attempt
    for pool in pools:
        pool.shutdown()


def _use_temporary(folder: str) -> None:
    os.environ["TMPDIR"] = folder


def tried(repository: Path, model: str) -> str:
    """Load a copy in this process and run it; return what it turned out to be, or the error, as a server states it."""
    try:
        found = Repository(repository).find(model)
        loaded = load_model(found, device="cpu")
        warm_up(loaded.backend, loaded.card, found.config.model_warmup.count)
        became = judged(loaded.card, loaded.backend.infer(ones(loaded.card)))
        loaded.backend.close()
    except MqinferError as error:
        return f"{error.code}: {error}"
    return became


def ones(card: ModelCard) -> dict[str, np.ndarray[Any, Any]]:
    """Make inputs that fit a card."""
    shapes = [tuple(1 if size == -1 else size for size in spec.shape) for spec in card.inputs]
    return {
        spec.name: np.ones(shape, spec.datatype.name.lower().replace("fp", "float"))
        for spec, shape in zip(card.inputs, shapes, strict=True)
    }


def answer(client: Client, model: str) -> str:
    """Send a request that fits the card, and return what the model turned out to be."""
    card = client.card(model)
    return judged(card, client.infer(model, ones(card), timeout=120).outputs)


def judged(card: ModelCard, outputs: Mapping[str, np.ndarray[Any, Any]]) -> str:
    """Check the shapes of an answer, and return what the model turned out to be."""
    for spec in card.outputs:
        found = outputs[spec.name].shape
        assert len(found) == len(spec.shape), (spec, found)
        assert all(stated in {-1, size} for stated, size in zip(spec.shape, found, strict=True)), (spec, found)
    return "ready and right" if _is_right(card, outputs) else "ready"


def _is_right(card: ModelCard, outputs: Mapping[str, np.ndarray[Any, Any]]) -> bool:
    (spec,) = card.outputs[:1]
    expected = truth(np.ones((1, SIDE, SIDE, CHANNELS), np.float32))
    return outputs[spec.name].shape == expected.shape and bool(np.allclose(outputs[spec.name], expected, 1e-3, 1e-3))


def settled(control: ControlClient, model: str) -> str:
    """Return why a model is not served, once its server does not start it again."""
    while True:
        (reply,) = control.ask(Call(Operation.INDEX))
        (entry,) = [each for each in reply.content if each["name"] == model]
        if "restart in" not in entry["reason"] and entry["state"] != "LOADING":
            return str(entry["reason"])
        Event().wait(0.5)


def outcome(server: Server, control: ControlClient, client: Client, model: str) -> str:
    """Load a copy, use it and unload it, or learn why it is not served; return what became of it."""
    try:
        control.load(model, timeout=_LOAD_S)
        ended = answer(client, model)
    except MqinferError as error:
        ended = settled(control, model) or str(error)
    if ended.startswith("ready"):
        control.unload(model)
    shutil.rmtree(server.repository / model)
    return ended


@pytest.mark.full
@pytest.mark.parametrize("kind", BUILDERS)
def test_each_copy_is_ready_or_has_failed_with_a_reason(
    server: Server, trial: Callable[[str], str], tmp_path: Path, kind: str
) -> None:
    """A whole model serves and answers right; a damaged one too, or it says why not; other models serve meanwhile."""
    model = build(tmp_path, kind, kind)
    shutil.copytree(model, server.repository / kind)
    names = [f"{kind}-{seed}" for seed in range(COPIES)]
    damages = [damage(model, server.repository / name, seed) for seed, name in enumerate(names)]
    with (
        ControlClient(server.url, root=server.root) as control,
        Client(server.url, root=server.root) as client,
        ThreadPoolExecutor(2) as pool,
    ):
        assert outcome(server, control, client, kind) == "ready and right"
        first = pool.submit(outcome, server, control, client, names[0])
        rest = pool.submit(lambda: [trial(name) for name in names[1:]])
        under_way: list[Future[Any]] = [first, rest]
        while wait(under_way, timeout=0.5).not_done:
            assert answer(client, "whole") == "ready and right"
        ended = [first.result(), *rest.result()]
    for did, became in zip(damages, ended, strict=True):
        log.info("%s: %s", did, became)
        assert became.startswith(("ready", "model_not_loadable: ", "config_error: ")) or "given up" in became, did

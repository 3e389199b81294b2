"""Clients in forked children: each use is an error at once, and the parent's requests are not disturbed."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from mqinfer import AsyncClient, Client, ClientOptions
from mqinfer.broker.mosquitto.server import MosquittoServer
from mqinfer.client.control import ControlClient
from mqinfer.client.result import InferResult
from mqinfer.protocol.control import Call, Operation
from tests.asynchronous import in_loop
from tests.client.conftest import MakeClient, Serve, WriteEcho
from tests.onnx_files import save_onnx

pytestmark = [
    pytest.mark.broker,
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),  # Python 3.12 on fork
]

PATIENCE = 60
ECHO = ("x", "INT64", [-1, 2])
_inherited: list[Client] = []
"""What the processes of a pool find, which receive nothing but picklable arguments."""


FORKING_CALLBACK = """
import os, signal, sys, threading
import numpy as np
import onnxruntime
from mqinfer import Client, ClientOptions, Outcome

url, name, patience, model = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
session = onnxruntime.InferenceSession(model)  # its threads, which no child has, are waited for at the end of a process
children, forks = {}, threading.Semaphore(0)

def fork(_):
    pid = os.fork()
    if pid:
        children[pid] = threading.current_thread().name
        forks.release()
    else:
        signal.alarm(patience)  # ends a child that hangs

with Client(url, name=name, options=ClientOptions(window=8, patience=patience)) as client:
    inputs = [{"x": np.full((1, 2), number, np.int64)} for number in range(100)]
    expiring = client.submit("echo", inputs[0], timeout=0.1)
    expiring.add_done_callback(fork)
    assert expiring.exception(patience) is not None
    futures = [client.submit("echo", each, timeout=patience) for each in inputs]
    futures[20].add_done_callback(fork)  # before there is a worker: a future that is done calls back in this thread
    futures.append(client.submit("echo", {"x": np.full((1, 2), 100)}, timeout=patience, output_encoding="lz4"))
    futures[100].add_done_callback(fork)
    print("asked", flush=True)
    for number, future in enumerate(futures):
        assert future.result(patience).outputs["x"][0, 0] == number
    assert all(forks.acquire(timeout=patience) for _ in range(3))
    for pid, thread in children.items():
        print(thread.rpartition("_")[0] or thread, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
    assert client.infer("echo", inputs[7], timeout=patience).outputs["x"][0, 0] == 7
print("fine")
"""
"""A program of its own, whose threads and libraries are known; its children go on behind the callback."""


def end_after_patience() -> None:
    """Let the kernel end this process if it hangs: the handler that pytest has for its own time limit would go on."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(PATIENCE)


class Child:
    """A forked process that does something and reports what came of it."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._reader, writer = os.pipe()
        self.pid = os.fork()
        if self.pid:
            os.close(writer)
            return
        try:
            end_after_patience()  # a child that hangs reports nothing
            os.write(writer, json.dumps(work()).encode())
        finally:
            os._exit(0)

    def report(self) -> Any:
        """What it reported; None if it hung or failed."""
        with os.fdopen(self._reader, "rb") as reader:
            said = reader.read()
        os.waitpid(self.pid, 0)
        return json.loads(said) if said else None


def outcome(use: Callable[[], Any]) -> str:
    """What came of a use, as text."""
    try:
        return f"returned {use()!r}"
    except Exception as error:  # noqa: BLE001 - it is reported to the parent
        return f"{type(error).__name__}: {error}"


def value(number: int) -> dict[str, Any]:
    """The inputs of one request."""
    return {"x": np.full((1, 2), number, np.int64)}


def uses(client: Client) -> dict[str, Callable[[], Any]]:
    """Every use that a client has."""
    return {
        "infer": lambda: client.infer("echo", value(-1), timeout=2),
        "submit": lambda: client.submit("echo", value(-2), timeout=2).result(2),
        "card": lambda: client.card("echo", 2),
        "counters": client.counters,
        "close": client.close,
        "exit": lambda: client.__exit__(None, None, None),
        "second infer": lambda: client.infer("echo", value(-3), timeout=2),
    }


def run(loop: asyncio.AbstractEventLoop, use: Callable[[], Any]) -> Any:
    """Run a coroutine to its end."""
    return loop.run_until_complete(use())


def refused(report: dict[str, str] | None, child: int) -> None:
    """Assert that each use was refused at once, with both processes and the way out named."""
    assert report is not None, "the child hung"
    for use, what in report.items():
        assert what.startswith("RuntimeError: "), f"{use}: {what}"
        assert f"was made in process {os.getpid()} " in what
        assert f"used in process {child}," in what
        assert "make a new one in this process" in what


@pytest.fixture
def client(server: MosquittoServer, make_client: MakeClient, serve: Serve, write_echo: WriteEcho) -> Client:
    """A client of an echo model over a real broker."""
    serve(server.url, write_echo("echo", ECHO, delay_ms=1))
    return make_client(server.url, options=ClientOptions(window=8))


def test_children_disturb_nothing(client: Client, server: MosquittoServer) -> None:
    """While eight children try everything, the parent's 400 requests get their own numbers, over one connection."""
    results: list[Future[InferResult]] = []
    wrong: list[int] = []
    stop = threading.Event()

    def load() -> None:  # in threads, so that some lock is held at most forks
        while not stop.is_set():
            number = len(results)
            results.append(client.submit("echo", value(number), timeout=PATIENCE))

    threads = [threading.Thread(target=load) for _ in range(2)]

    def try_all() -> dict[str, str]:
        return {name: outcome(use) for name, use in uses(client).items()}

    first = [client.submit("echo", value(number), timeout=PATIENCE) for number in range(100)]
    results.append(first[0])
    for thread in threads:
        thread.start()
    children = [Child(try_all) for _ in range(8)]
    reports = [child.report() for child in children]
    stop.set()
    for thread in threads:
        thread.join()
    last = [client.submit("echo", value(number), timeout=PATIENCE) for number in range(300)]
    for numbered in (first, last):
        for number, future in enumerate(numbered):
            with suppress(Exception):
                wrong += [] if (future.result(PATIENCE).outputs["x"] == number).all() else [number]
    for future in results:
        future.result(PATIENCE)
    for child, report in zip(children, reports, strict=True):
        refused(report, child.pid)
    assert not wrong
    assert all(future.exception() is None for future in (*first, *last))
    assert server.log().count(f"as {client.name}~") == 1


def test_a_new_client_in_a_child_works(client: Client, server: MosquittoServer) -> None:
    """A child that connects by itself gets its own results, and so does the parent meanwhile."""

    def ask() -> list[int]:
        with Client(server.url) as own:
            return [int(own.infer("echo", value(n), timeout=PATIENCE).outputs["x"][0, 0]) for n in range(50)]

    client.infer("echo", value(0), timeout=PATIENCE)
    children = [Child(ask) for _ in range(2)]
    for number in range(100):
        assert client.infer("echo", value(number), timeout=PATIENCE).outputs["x"][0, 0] == number
    assert [child.report() for child in children] == [list(range(50))] * 2


def infer_in_pool(number: int) -> tuple[int, str]:
    """Use the client that the pool's process inherited."""
    return os.getpid(), outcome(lambda: _inherited[-1].infer("echo", value(number), timeout=2))


def test_a_pool_and_a_process_by_fork(client: Client) -> None:
    """The processes of a pool that was made while a client is open, and those of `multiprocessing`, are refused too."""
    _inherited.append(client)
    context = multiprocessing.get_context("fork")
    try:
        client.infer("echo", value(0), timeout=PATIENCE)
        with ProcessPoolExecutor(2, mp_context=context) as pool:
            for pid, what in pool.map(infer_in_pool, range(6)):
                refused({"pool": what}, pid)
        queue = context.SimpleQueue()
        process = context.Process(target=lambda: queue.put(infer_in_pool(0)))
        process.start()
        pid, what = queue.get()
        process.join()
        refused({"process": what}, pid)
    finally:
        _inherited.clear()
    assert client.infer("echo", value(7), timeout=PATIENCE).outputs["x"][0, 0] == 7


@in_loop
async def test_an_asyncio_client(server: MosquittoServer) -> None:
    """One that was made and not opened, and one that is open: no child can open, use or close either."""
    unopened = AsyncClient(server.url)
    async with AsyncClient(server.url) as opened:

        def try_all() -> dict[str, str]:
            loop = asyncio.new_event_loop()  # the parent's loop runs: no child can use that one
            asyncio.events._set_running_loop(None)
            each: dict[str, Callable[[], Any]] = {
                "open": unopened.open,
                "infer": lambda: opened.infer("echo", value(0), timeout=2),
                "card": lambda: opened.card("echo", 2),
                "close": opened.close,
            }
            told = {name: outcome(partial(run, loop, use)) for name, use in each.items()}
            return told | {"counters": outcome(opened.counters)}

        child = Child(try_all)
        refused(await asyncio.to_thread(child.report), child.pid)
        await unopened.open()
        await unopened.close()


def test_a_control_client(server: MosquittoServer) -> None:
    """It gives no orders from a child, and the parent's connection stays."""
    with ControlClient(server.url, name="ann") as control:

        def try_all() -> dict[str, str]:
            return {
                "ask": outcome(lambda: control.ask(Call(Operation.INDEX), timeout=2)),
                "wait_for": outcome(lambda: control.wait_for("gpu", 2)),
                "close": outcome(control.close),
            }

        child = Child(try_all)
        refused(child.report(), child.pid)
        assert outcome(lambda: control.ask(Call(Operation.INDEX), timeout=2)).startswith("NoWorker")
    end = time.monotonic() + PATIENCE
    while "Client ann~" not in server.log() and time.monotonic() < end:
        time.sleep(0.01)  # Mosquitto's log is read by a thread
    assert server.log().count("as ann~") == 1
    assert server.log().count("Client ann~") == 1, "one end of the connection, by DISCONNECT"


def test_a_callback_that_forks_and_returns(
    server: MosquittoServer, serve: Serve, write_echo: WriteEcho, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """On each thread that calls back: the child does nothing for the parent's requests, and ends.

    Those of ONNX Runtime waited for ever, for threads that a child does not have.
    """
    end = TensorProto.FLOAT, [1]
    save_onnx(tmp_path / "model.onnx", [helper.make_node("Neg", ["x"], ["y"])], {"x": end}, {"y": end})
    name = unique("client")
    command = [sys.executable, "-c", FORKING_CALLBACK, server.url, name, str(PATIENCE), str(tmp_path / "model.onnx")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            assert process.stdout.readline() == "asked\n"
            serve(server.url, write_echo("echo", ECHO, delay_ms=1))
            *ends, last = process.communicate(timeout=4 * PATIENCE)[0].splitlines()
        finally:
            process.kill()
    assert last == "fine"
    assert sorted(each.split("-")[1] + each[-2:] for each in ends) == ["client 0", "client 0", "link 0"]
    assert server.log().count(f"as {name}~") == 1

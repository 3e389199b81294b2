"""What a user's script does with mqinfer's names; type checkers read it in strict mode, and nothing runs it."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from typing import Any, assert_type

import numpy as np
import numpy.typing as npt

import mqinfer
from mqinfer import (
    AsyncClient,
    AsyncStream,
    AsyncWatch,
    Capture,
    Client,
    ClientOptions,
    ControlClient,
    DropReason,
    InferResult,
    Outcome,
    Policy,
    SeenPreview,
    SeenResult,
    Stream,
    Timings,
    TlsOptions,
    Watch,
    WatchCounters,
)
from mqinfer.errors import Expired, MqinferError, NotAuthorized, Unanswered, error_from_code


def blocking(frame: npt.NDArray[np.uint8]) -> None:
    """Ask with a blocking client."""
    options = ClientOptions(timeout=5.0, window=4)
    tls = TlsOptions(ca_file="ca.crt", cert_file="car-1.crt", key_file="car-1.key")
    with Client("mqtts://broker.example.org", name="car-1", tls=tls, options=options) as client:
        result = client.infer("seg", {"input": frame}, timeout=None, version=2, capture=Capture("/camera", 1))
        assert_type(result, InferResult)
        mask: npt.NDArray[np.uint8] = result.outputs["mask"].astype(np.uint8)
        print(mask.shape, result.worker, result.timings.total, result.outcome is Outcome.OK)
        future = client.submit("seg", {"input": frame}, encoding="jpeg:90", output_encoding={"mask": "mask"})
        future.add_done_callback(done)
        print(client.card("seg").classes, client.counters().outcomes[Outcome.OK])
        try:
            assert_type(future.result(1.0), InferResult)
        except Expired as error:
            print(error.code, error.outcome)
        except (NotAuthorized, Unanswered):
            raise
        except MqinferError as error:
            raise error_from_code(error.code, str(error)) from error


def recording() -> None:
    """Watch results of others."""
    with Client.from_env() as client, client.watch("seg", client="car-1", buffer=8) as results:
        assert_type(results, Watch[SeenResult])
        for seen in results:
            assert_type(seen.decode(), InferResult)
            print(seen.client, seen.request_id, seen.received_ns, results.counters().dropped[DropReason.OVERFLOW])
    with Client.from_env() as client, client.watch(None, with_previews=True) as both:
        each = both.next(1.0)
        if isinstance(each, SeenPreview):
            print(each.decode().shape, each.picture)


async def recording_in_a_loop() -> None:
    """Watch results of others with asyncio."""
    async with AsyncClient.from_env() as client, client.watch("seg") as results:
        assert_type(results, AsyncWatch[SeenResult])
        async for seen in results:
            counters: WatchCounters = results.counters()
            print(seen.response.outcome, counters.disconnected, await results.next(1.0))


def done(future: Future[InferResult]) -> None:
    """Read a future in a callback."""
    timings: Timings = future.result().timings
    print(timings)


def live(frame: npt.NDArray[Any]) -> None:
    """Send live frames."""
    with Client.from_env() as client, client.stream("seg", policy="latest", window=2) as stream:
        assert_type(stream, Stream)
        stream.put({"input": frame}, capture=Capture("/camera"))
        stream.close()
        for result in stream:
            print(result.capture.sequence, result.error.message if result.error else "")


async def asynchronous(frame: npt.NDArray[np.float32]) -> None:
    """Ask from an asyncio loop."""
    async with AsyncClient.from_env(options=ClientOptions(timeout=2)) as client:
        task = client.submit("seg", {"input": frame})
        assert_type(task, asyncio.Task[InferResult])
        results = await asyncio.gather(task, client.infer("seg", {"input": frame}, priority=1))
        print([each.outputs for each in results], (await client.card("seg")).inputs[0].shape)
        async with client.stream("seg", policy=Policy.ALL) as stream:
            assert_type(stream, AsyncStream)
            await stream.put({"input": frame})
            stream.close()
            async for result in stream:
                print(result.outcome)


def operator() -> None:
    """Manage servers."""
    with ControlClient("mqtt://127.0.0.1", tls=None) as control:
        print([reply.server for reply in control.load("seg")], mqinfer.__version__)

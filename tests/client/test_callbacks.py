"""Callbacks of futures: they run where the replies are delivered, so waiting there is an error at once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest

from mqinfer import Client, ClientOptions, ControlClient, InferResult, Outcome
from mqinfer.errors import Rejected
from tests.client.conftest import MakeClient, Serve, WriteEcho
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.usefixtures("patient")

X = np.arange(4, dtype=np.float32).reshape(1, 4)


class Callback:
    """A callback that does something, and what came of it."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._work = work
        self._done: Future[Any] = Future()
        self.thread = ""

    def __call__(self, _: Future[InferResult]) -> None:
        """Do it, as the future's callback."""
        self.thread = threading.current_thread().name
        try:
            self._done.set_result(self._work())
        except BaseException as error:  # noqa: BLE001 - it is what the test looks at
            self._done.set_exception(error)

    def result(self) -> Any:
        """Wait for it."""
        return self._done.result(PATIENCE_S)


@pytest.fixture(params=["memory", pytest.param("mosquitto", marks=pytest.mark.broker)])
def place(request: pytest.FixtureRequest, url: str) -> str:
    """A broker within the process, and a real one."""
    return url if request.param == "memory" else str(request.getfixturevalue("broker_url"))


def waits(client: Client, control: ControlClient) -> dict[str, Callable[[], Any]]:
    """Everything that would wait."""
    return {
        "infer()": lambda: client.infer("echo", {"x": X}, timeout=60),
        "result()": lambda: client.submit("echo", {"x": X}, timeout=60).result(),
        "exception()": lambda: client.submit("echo", {"x": X}, timeout=60).exception(),
        "card()": lambda: client.card("another", timeout=60),
        "close()": client.close,
        "next() of a stream": lambda: next(client.stream("echo")),
        "a call of a control client": lambda: control.load("echo"),
        "wait_for()": lambda: control.wait_for("server", 60),
    }


def on_the_links_thread(client: Client, model: str, work: Callable[[], Any]) -> Callback:
    """Do it in a callback of a reply on its way.

    A reply that is faster than `add_done_callback` calls back on this thread, where `work` would really wait, some
    of it for ever: it is not begun, and another request is made.
    """
    here = threading.current_thread()
    while True:
        callback = Callback(lambda: None if threading.current_thread() is here else work())
        future = client.submit(model, {"x": X})
        future.add_done_callback(callback)
        future.result(PATIENCE_S)
        if callback.thread != here.name:
            return callback


def test_what_waits_is_an_error_in_a_callback(
    place: str, make_client: MakeClient, serve: Serve, write_echo: WriteEcho, unique: Callable[[str], str]
) -> None:
    """Each says at once that it would wait for itself; the client goes on, and nothing is left pending."""
    model = unique("echo")
    serve(place, write_echo(model), model)
    client, other, control = make_client(place), make_client(place), ControlClient(place)
    for asked in (client, other):  # another client's thread would stop this one's replies, and the other way round
        for what, wait in waits(asked, control).items():
            callback = on_the_links_thread(client, model, wait)
            with pytest.raises(
                RuntimeError, match=r"can't be called in a callback.*call `submit` with another"
            ) as raised:
                callback.result()
            assert str(raised.value).startswith(what)
    control.close()
    assert client.infer(model, {"x": X}, timeout=10).outcome is Outcome.OK


def test_the_error_comes_on_the_links_thread(client: Client, hand: Any) -> None:
    """While the future is pending when the callback is added, it runs on the thread that delivers the replies."""
    callback = Callback(lambda: client.infer("manual", {"x": X}))
    future = client.submit("manual", {"x": X})
    future.add_done_callback(callback)
    hand.answer(hand.next(), {"y": X})
    with pytest.raises(RuntimeError, match=r"^infer\(\) can't be called in a callback"):
        callback.result()
    assert callback.thread != threading.current_thread().name
    assert hand.requests.empty()


@pytest.mark.usefixtures("echo")
def test_submit_works_in_a_callback(client: Client) -> None:
    """A chain of requests, each submitted by the callback of the one before; the results reach their futures."""
    numbers: list[float] = []
    end = threading.Event()

    def go_on(future: Future[InferResult]) -> None:
        numbers.append(float(future.result().outputs["x"][0, 0]))
        if len(numbers) == 50:
            end.set()
        else:
            client.submit("echo", {"x": X + len(numbers)}).add_done_callback(go_on)

    client.submit("echo", {"x": X}).add_done_callback(go_on)
    assert end.wait(30)
    assert numbers == list(range(50))


def test_waiting_is_allowed_again_after_a_callback(client: Client, hand: Any) -> None:
    """A future that is done calls back on the caller's own thread, where waiting does no harm."""
    future = client.submit("manual", {"x": X})
    hand.answer(hand.next(), {"y": X})
    future.result(PATIENCE_S)
    answers = threading.Thread(target=lambda: hand.answer(hand.next(), {"y": X}))
    answers.start()
    callback = Callback(lambda: client.infer("manual", {"x": X}, timeout=10))
    future.add_done_callback(callback)
    answers.join()
    assert callback.thread == threading.current_thread().name
    assert callback.result().outcome is Outcome.OK


def test_a_callback_does_not_wait_for_room(url: str, make_client: MakeClient, hand: Any) -> None:
    """`submit` is refused at once in a callback while `max_pending` requests are pending."""
    client = make_client(url, options=ClientOptions(max_pending=2, timeout=60))

    def submit_two() -> list[Any]:
        client.submit("manual", {"x": X})  # in the room of the request that has just ended
        return [client.submit("manual", {"x": X})]

    callback = Callback(submit_two)
    future = client.submit("manual", {"x": X})
    future.add_done_callback(callback)
    client.submit("manual", {"x": X})
    hand.answer(hand.next(), {"y": X})
    with pytest.raises(Rejected, match=r"2 requests are pending, and a callback can't wait"):
        callback.result()
    hand.next()
    hand.answer(hand.next(), {"y": X})


def test_a_callback_that_raises_is_reported(client: Client, hand: Any, caplog: pytest.LogCaptureFixture) -> None:
    """The error of a callback is in the log, with its words; the next reply is delivered."""
    future = client.submit("manual", {"x": X})
    future.add_done_callback(lambda _: client.infer("manual", {"x": X}).raise_for_outcome())
    hand.answer(hand.next(), {"y": X})
    future.result(PATIENCE_S)
    other = client.submit("manual", {"x": X})
    hand.answer(hand.next(), {"y": X})
    other.result(PATIENCE_S)
    assert "infer() can't be called in a callback" in caplog.text

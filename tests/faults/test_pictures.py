"""Pictures as they are while workers are killed: whoever asks again after a time-out has one answer to each."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from xxhash import xxh3_128_hexdigest

from benchmarks.faults.workers import Workers
from mqinfer.broker import make_link
from mqinfer.broker.link import Link, Message
from mqinfer.client.connection import random_name
from mqinfer.protocol.topics import Topics
from tests.faults.figures import Figures

Start = Callable[..., Any]
CLIENTS, CONNECTIONS, KILLS = 200, 10, 4
TIMEOUT_S = 3.0
"""After so long without an answer a client asks again."""


class Asker:
    """Asks with one picture after the other, without any property of MQTT 5, as a camera would."""

    def __init__(self, link: Link, topics: Topics, name: str, pictures: range) -> None:
        self.answers: Counter[str] = Counter()
        self.wanted: list[str] = []
        self.wrong: list[Any] = []
        self.again = 0
        self.asked_at = 0.0
        self._link, self._topic = link, topics.infer("eye", name)
        self._rest = iter(pictures)
        self._lock = threading.Lock()
        self._payload = b""
        link.subscribe(topics.answers("eye", name, "picture"), self._on_answer)

    @property
    def is_done(self) -> bool:
        """Whether each of its pictures has an answer."""
        return not self._payload and bool(self.wanted)

    def ask(self) -> None:
        """Ask with the next picture, if there is one."""
        number = next(self._rest, None)
        if number is None:
            self._payload = b""
            return
        pixels = np.random.default_rng(number).integers(0, 256, (8, 8, 3), np.uint8)
        self._payload = cv2.imencode(".png", pixels[:, :, ::-1])[1].tobytes()
        self.wanted.append(f"xxh3:{xxh3_128_hexdigest(pixels.tobytes())}")
        self._publish()

    def ask_again(self) -> None:
        """Ask once more, where the answer has not come in time."""
        with self._lock:
            if self._payload and time.monotonic() - self.asked_at > TIMEOUT_S:
                self.again += 1
                self._publish()

    def _publish(self) -> None:
        self.asked_at = time.monotonic()
        self._link.publish(Message(self._topic, self._payload))

    def _on_answer(self, message: Message) -> None:
        found = json.loads(bytes(message.payload))
        with self._lock:
            if found["outcome"] == "rejected":  # no room just now: the time-out asks again
                return
            if found["outcome"] != "ok":
                self.wrong.append(found)
                return
            (output,) = found["outputs"].values()
            self.answers[output["hash"]] += 1
            if output["hash"] == self.wanted[-1] and self.answers[output["hash"]] == 1:
                self.ask()


def test_pictures_while_workers_are_killed(
    workers: Start, broker_url: str, topics: Topics, write_echo: Callable[..., Path], figure: Figures, pick: Start
) -> None:
    """Four kills: each picture of a client that asks again has its answer, and nothing is answered unasked."""
    repository = write_echo("eye", ("image", "UINT8", [-1, 8, 8, 3]), delay_ms=1)
    crew: Workers = workers(1, 1, repository=repository)
    each = pick(5, 50)
    with ExitStack() as stack:
        links = [make_link(broker_url, client_id=random_name()) for _ in range(CONNECTIONS)]
        for link in links:
            stack.enter_context(closing(link)).open()
        askers = [
            Asker(links[number % CONNECTIONS], topics, f"cam-{number}", range(number * each, (number + 1) * each))
            for number in range(CLIENTS)
        ]
        for asker in askers:
            asker.ask()
        killed = 0
        ended = threading.Event()
        while not all(asker.is_done for asker in askers):
            ended.wait(0.05)
            if killed < KILLS and sum(map(len, (a.answers for a in askers))) >= (killed + 1) * each * CLIENTS // 5:
                crew.wait_until_ready(2 + killed)
                killed += crew.kill(killed % 2)
            for asker in askers:
                asker.ask_again()
    counted = sum((asker.answers for asker in askers), Counter[str]())
    assert set(counted) == {digest for asker in askers for digest in asker.wanted}
    assert all(not asker.wrong for asker in askers)
    row = f"{CLIENTS * each} pictures as they are, {CLIENTS} clients, SIGKILL of 1 of 2 workers {KILLS} times"
    again, twice = sum(asker.again for asker in askers), sum(count - 1 for count in counted.values())
    figure.every(row, "answered", len(counted), CLIENTS * each)
    figure.bound(row, "answered twice, of those that were asked again", twice, again, ".0f")
    assert killed == crew.crashes == KILLS
    assert twice <= again

"""Publishes what edges and workers would, without models: loads for the page, and what no party of good will sends."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Self
from uuid import uuid4

import numpy as np
import numpy.typing as npt

from mqinfer.broker import BrokerAddress, Message, make_link
from mqinfer.codecs import encode_tensor
from mqinfer.protocol.card import CardParameters, ClassInfo, ModelCard, card_to_json
from mqinfer.protocol.checksum import checksum
from mqinfer.protocol.datatypes import Datatype
from mqinfer.protocol.envelope import CONTENT_TYPE, encode_response
from mqinfer.protocol.states import ClientState, ProcessStatus, ServedModel, WorkerState, WorkerStatus
from mqinfer.protocol.topics import Topics
from mqinfer.protocol.types import Capture, EncodedTensor, InferResponse, TensorSpec, Timings

__all__ = ["Frames", "Load", "Publisher", "Stream", "loaded"]

Picture = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Stream:
    """One stream of one client to one model."""

    client: str
    source: str
    model: str
    worker: str = "made-up.0"

    def capture(self, sequence: int) -> Capture:
        """Return what a frame of it has."""
        return Capture(self.source, sequence, 1_700_000_000_000_000_000 + sequence * 50_000_000, "camera")


class Publisher:
    """A connection that publishes; QoS 0 for results and previews, states and cards retained."""

    def __init__(self, url: str | BrokerAddress, topics: Topics | None = None) -> None:
        """Connect.

        Args:
            url: Of the broker.
            topics: The site's; those of the default root if omitted.
        """
        self.topics = topics or Topics()
        self._link = make_link(url, client_id=f"publisher-{uuid4().hex[:8]}")
        self._link.open()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._link.close()

    def send(
        self,
        topic: str,
        payload: bytes,
        *,
        retain: bool = False,
        properties: Sequence[tuple[str, str]] = (),
        qos: int = 0,
    ) -> None:
        """Publish bytes, whatever they are."""
        self._link.publish(
            Message(
                topic, payload, qos=qos, retain=retain, content_type=CONTENT_TYPE, user_properties=tuple(properties)
            )
        )

    def flush(self) -> None:
        """Wait until the broker has what was published so far; it may refuse the message that asks for this."""
        done = threading.Event()
        message = Message(f"{self.topics.root}/flush", b"", qos=1)
        self._link.publish(message, lambda _: done.set())
        assert done.wait(60)

    def card(self, model: str, classes: Sequence[ClassInfo] = (), **fields: Any) -> None:
        """Publish the card of a model that makes masks."""
        image = TensorSpec("input", Datatype.UINT8, (-1, 64, 96, 3))
        mask = TensorSpec("output", Datatype.UINT8, (-1, 64, 96))
        card = ModelCard(
            name=model,
            versions=("1",),
            platform="onnx_onnxv1",
            inputs=(image,),
            outputs=(mask,),
            parameters=CardParameters(classes=tuple(classes), **fields),
        )
        self.send(self.topics.card(model), card_to_json(card), retain=True, qos=1)

    def worker(self, name: str, *models: str, status: WorkerStatus = WorkerStatus.READY, **fields: Any) -> None:
        """Publish the state of a worker."""
        served = tuple(ServedModel(each, "1", device="cpu") for each in models)
        state = WorkerState(name, status, 1, served, capacity=64, **fields)
        self.send(self.topics.worker_state(name), state.to_json(), retain=True, qos=1)

    def client(self, name: str, status: ProcessStatus = ProcessStatus.READY, **fields: Any) -> None:
        """Publish the state of an edge."""
        self.send(self.topics.client_state(name), ClientState(name, status, 1, **fields).to_json(), retain=True, qos=1)

    def forget(self, *topics: str) -> None:
        """Remove what is retained there."""
        for topic in topics:
            self.send(topic, b"", retain=True, qos=1)

    def result(self, stream: Stream, sequence: int, *outputs: EncodedTensor, **fields: Any) -> None:
        """Publish a result."""
        request = uuid4().hex
        fields.setdefault(
            "timings", Timings(1_000_000, 2_000_000, 500_000, 700_000, 300_000, 4_000_000, 200_000, 100_000)
        )
        response = InferResponse(
            request,
            stream.model,
            "1",
            outputs=outputs,
            worker=stream.worker,
            capture=stream.capture(sequence),
            **fields,
        )
        payload = encode_response(response)
        topic = self.topics.result(stream.model, stream.client, request)
        self.send(topic, payload, properties=[checksum([payload])])

    def preview(self, stream: Stream, sequence: int, picture: EncodedTensor, size: tuple[int, int]) -> None:
        """Publish a preview.

        Args:
            stream: Its stream.
            sequence: Of the frame.
            picture: Encoded as JPEG.
            size: Width and height of the model's picture.
        """
        response = InferResponse(
            uuid4().hex,
            stream.model,
            outputs=(picture,),
            capture=stream.capture(sequence),
            parameters={"picture_width": size[0], "picture_height": size[1]},
        )
        payload = encode_response(response)
        topic = f"{self.topics.root}/clients/{stream.client}/preview/{stream.source.strip('/').replace('/', '_')}"
        self.send(topic, payload, properties=[checksum([payload])])


@dataclass(frozen=True, slots=True)
class Frames:
    """Frames that a load repeats, encoded once; frame n of a stream is picture and mask n modulo their number."""

    masks: tuple[EncodedTensor, ...]
    pictures: tuple[EncodedTensor, ...]
    size: tuple[int, int]

    @classmethod
    def of(cls, masks: Sequence[Picture], pictures: Sequence[Picture]) -> Frames:
        """Encode them.

        Args:
            masks: `[height, width]`.
            pictures: `[height, width, 3]`, RGB.
        """
        height, width = masks[0].shape
        return cls(
            tuple(encode_tensor("output", each, "mask") for each in masks),
            tuple(encode_tensor("preview", each, "jpeg:90") for each in pictures),
            (width, height),
        )


@dataclass(slots=True)
class Load:
    """Publishes results and previews of several streams at a rate, in a thread.

    Attributes:
        url: Of the broker; with access rules, the edge's.
        streams: Each gets `rate` results a second.
        frames: What they hold.
        rate: Results a second of each stream.
        preview_every: A preview for each so-manieth result; 0 for none.
        results: The worker's own address, where only it may publish results.
        sent: Results that were published.
    """

    url: str | BrokerAddress
    streams: Sequence[Stream]
    frames: Frames
    rate: float = 20.0
    preview_every: int = 4
    results: str | BrokerAddress | None = None
    sent: int = 0
    _stop: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        """Publish until it is stopped; what is late is published at once."""
        with Publisher(self.url) as edge, Publisher(self.results or self.url) as worker:
            due, sequence = time.monotonic(), 0
            while not self._stop.wait(max(0.0, due - time.monotonic())):
                for stream in self.streams:
                    self._publish(edge, worker, stream, sequence)
                sequence += 1
                due += 1 / self.rate

    def _publish(self, edge: Publisher, worker: Publisher, stream: Stream, sequence: int) -> None:
        turn = sequence % len(self.frames.masks)
        if self.preview_every and sequence % self.preview_every == 0:
            edge.preview(stream, sequence, self.frames.pictures[turn], self.frames.size)
        worker.result(stream, sequence, self.frames.masks[turn])
        self.sent += 1

    def stop(self) -> None:
        """Let it end."""
        self._stop.set()


@contextmanager
def loaded(load: Load) -> Iterator[Load]:
    """Run a load for the time of this context."""
    with ThreadPoolExecutor(1, "load") as thread:
        running = thread.submit(load.run)
        try:
            yield load
        finally:
            load.stop()
    running.result()

"""What a caller gets back, and what a client counts."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from mqinfer.answers.answer import PictureAnswer
from mqinfer.answers.outputs import DetectedBox, Mask, TopClass
from mqinfer.broker.link import Message
from mqinfer.images.placement import Placement
from mqinfer.protocol.card import ClassInfo
from mqinfer.protocol.datatypes import Array, Buffer
from mqinfer.protocol.errors import MqinferError, error_from_code
from mqinfer.protocol.topics import Topics
from mqinfer.protocol.types import NO_CAPTURE, Capture, ErrorInfo, Outcome, Scalar, Timings
from mqinfer.value_object import value_object

log = logging.getLogger("mqinfer.client")
T = TypeVar("T")
_MOST_TOPICS = 1024
"""Topics of which a client logs that it ignored a message there."""


@value_object(eq=False)
class InferResult:
    """The one outcome of one request.

    Attributes:
        id: The request's.
        outcome: How it ended.
        model_name: Name of the model that was asked.
        model_version: The version that answered, empty where none did.
        model_hash: Content hash of that model's files.
        outputs: Decoded arrays by name, empty unless the outcome is `ok`.
        error: Set unless the outcome is `ok`.
        worker: Name of the worker that answered, empty where none did.
        stage: Which part of a cascade answered.
        timings: Where the time went.
        capture: Where the frame came from.
        attempts: How often the request was sent.
        bytes_sent: Size of the request message, counted once per attempt.
        parameters: Any further response parameters.
        submitted: When the client accepted the request, in seconds of its monotonic clock; 0 where it never did.
    """

    id: str
    outcome: Outcome
    model_name: str
    model_version: str = ""
    model_hash: str = ""
    outputs: Mapping[str, Array] = field(default_factory=dict)
    error: ErrorInfo | None = None
    worker: str = ""
    stage: str = ""
    timings: Timings = field(default_factory=Timings)
    capture: Capture = NO_CAPTURE
    attempts: int = 0
    bytes_sent: int = 0
    parameters: Mapping[str, Scalar] = field(default_factory=dict)
    submitted: float = 0.0

    def raise_for_outcome(self) -> None:
        """Raise the error of a request that failed; do nothing where the outcome is `ok`.

        Raises:
            MqinferError: The class that the error's code stands for.
        """
        if self.outcome is not Outcome.OK:
            error = self.error or ErrorInfo(self.outcome.value, f"the request ended as {self.outcome}")
            raise error_from_code(error.code, error.message)


@dataclass(frozen=True, eq=False)
class PictureResult:
    """What a model found in a picture, in the pixels of the picture itself; each is worked out once.

    Attributes:
        result: As `infer` returns it.
        placement: Where the picture lies in what the model saw.
        classes: Of the model's card.
    """

    result: InferResult
    placement: Placement
    classes: tuple[ClassInfo, ...] = ()

    @cached_property
    def answer(self) -> PictureAnswer:
        """What the outputs mean, in pixels of the picture."""
        return PictureAnswer(self.result.outputs, self.placement, self.classes)

    @property
    def detections(self) -> tuple[DetectedBox, ...]:
        """The boxes, the best first, with the names of their classes."""
        return self.answer.boxes

    @property
    def mask(self) -> Mask | None:
        """The class number of each pixel, `[height, width]`, 255 where the model did not see it; None without."""
        return self.answer.mask

    @property
    def shares(self) -> dict[str, float]:
        """The share of each class in the pixels of the mask, 0 to 1; empty without a mask."""
        return self.answer.shares

    @property
    def top(self) -> tuple[TopClass, ...]:
        """The best classes of a classifier, each with name, number and score."""
        return self.answer.top

    @cached_property
    def depth(self) -> npt.NDArray[np.float64] | None:
        """A number for each pixel, `[height, width]`, NaN where the model did not see it; None without."""
        found = self.answer.depth
        return None if found is None else self.placement.mask_to_frame(found.values.astype(np.float64), math.nan)


@dataclass(frozen=True, slots=True)
class Counters:
    """What became of a client's requests; `submitted == sum(outcomes.values()) + pending` holds at any time.

    Attributes:
        submitted: Requests accepted.
        pending: Requests without an outcome.
        in_flight: Requests that are published and unanswered.
        outcomes: Requests by outcome.
        retries: Publications beyond each request's first.
        withheld: Retries that the retry budget delayed.
        late: Replies to requests that already had an outcome, duplicates among them.
        malformed: Replies that could not be read, or were damaged on the network.
        mismatched: Replies that name another model, version or worker than was asked, or came on another topic.
        retained: Replies that the broker had kept: they are of an earlier time.
        bad_states: States of workers that could not be read, or name another worker than their topic.
    """

    submitted: int
    pending: int
    in_flight: int
    outcomes: Mapping[Outcome, int]
    retries: int
    withheld: int
    late: int
    malformed: int
    mismatched: int = 0
    retained: int = 0
    bad_states: int = 0


class Ignored:
    """Counts the messages of one kind that are ignored, and logs the first one of each topic. One thread calls it.

    Attributes:
        count: How many there were.
    """

    def __init__(self, what: str) -> None:
        self.count = 0
        self._what = what
        self._topics: set[str] = set()

    def add(self, topic: str, why: object) -> None:
        """Count a message; log it where its topic had none before."""
        self.count += 1
        if topic not in self._topics and len(self._topics) < _MOST_TOPICS:
            self._topics.add(topic)
            log.warning("ignored %s on %r: %s; further ones there are only counted", self._what, topic, why)

    def read(self, reader: Callable[[Topics, str, Buffer], T], topics: Topics, message: Message) -> T | None:
        """Return what a message holds; None, once it is counted, where that can't be read."""
        try:
            return reader(topics, message.topic, message.payload)
        except MqinferError as error:
            self.add(message.topic, error)
            return None

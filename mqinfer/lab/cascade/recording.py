"""Asks models for their answers to the frames of a recording, and keeps what calibration and training need."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass
from itertools import islice, pairwise

import numpy as np
import numpy.typing as npt

from mqinfer.answers.outputs import PRESENT, find_mask
from mqinfer.bags.frame import Frame
from mqinfer.bags.sources import open_source
from mqinfer.client.client import Client
from mqinfer.client.result import InferResult
from mqinfer.edge_agent.cascade.small import SmallInput, SmallNetwork, image_contract_of
from mqinfer.edge_agent.preparing.choices import choose_encoding, choose_output_encoding
from mqinfer.edge_agent.preparing.preparer import Preparer
from mqinfer.judging.results import ResultMaker
from mqinfer.judging.thumbnail import Thumbnail, difference, thumbnail
from mqinfer.lab.cascade.scores import Costs, Scores
from mqinfer.protocol.errors import ConfigError

Pixels = npt.NDArray[np.uint8]
_WINDOW = 4
_POINTS = 64
"""Masks are compared at so many points a row and column: a frame's mask takes kilobytes then, not megabytes."""


@dataclass(frozen=True, slots=True, eq=False)
class Answered:
    """A frame with the reference's answer.

    Attributes:
        frame: As recorded.
        seen: Its thumbnail.
        answer: 0 or 1 for a target, uint8 [1]; or the whole mask, uint8 [h,w].
        inference_ms: Time that the reference ran.
    """

    frame: Frame
    seen: Thumbnail
    answer: Pixels
    inference_ms: float


def read_part(spec: str, topic: str | None, skip: int, count: int) -> Iterator[Frame]:
    """Yield `count` frames of one stream of a recording after the first `skip`.

    Raises:
        SourceError: It can't be read.
        ConfigError: It has several image streams, or no frame there.
    """
    with closing(open_source(spec, topics=(topic,) if topic else (), depth=False)) as source:
        streams = [stream.source for stream in source.streams() if stream.is_image]
        if len(streams) > 1:
            raise ConfigError(f"{spec}: choose one image topic with --topic; its image topics are {', '.join(streams)}")
        is_empty = True
        for frame in islice(source.frames(), skip, skip + count):
            is_empty = False
            yield frame
        if is_empty:
            after = f" after the first {skip}" if skip else ""
            raise ConfigError(f"{spec}: there are no frames{after}; choose another recording or fewer frames before")


def ask_reference(
    client: Client, answers: ResultMaker, frames: Iterable[Frame], timeout: float, report: Callable[[int], None]
) -> Iterator[Answered]:
    """Yield each frame with the reference model's answer, in order.

    Args:
        client: Connected.
        answers: Names the reference model, and brings its results to one form.
        frames: Of one stream.
        timeout: Of each request, in seconds.
        report: Called with the number of answers so far.

    Raises:
        MqinferError: A request fails, or the model's outputs are no answer.
    """
    card, reference = answers.reference, answers.settings.reference
    if card.image is None:
        raise ConfigError(f"model {card.name!r} takes no pictures; the reference of a cascade must")
    preparer = Preparer(card.image, choose_encoding(None, card))
    output_encoding = choose_output_encoding(None, card, reference.version)
    pending: deque[tuple[Frame, Future[InferResult]]] = deque()
    count = 0
    for frame in frames:
        tensor = preparer.prepare(frame, lambda _, __: None).tensors[0]
        inputs = {tensor.name: tensor}
        asked = client.submit(
            card.name, inputs, timeout=timeout, version=reference.version, output_encoding=output_encoding
        )
        pending.append((frame, asked))
        if len(pending) > _WINDOW:
            count += 1
            report(count)
            yield _answered(answers, *pending.popleft())
    for left in pending:
        count += 1
        report(count)
        yield _answered(answers, *left)


def _answered(answers: ResultMaker, frame: Frame, asked: Future[InferResult]) -> Answered:
    result = asked.result()
    result.raise_for_outcome()
    found = answers.of_reference(result)
    found.raise_for_outcome()
    answer = found.outputs[PRESENT].astype(np.uint8) if answers.settings.target is not None else _mask(found)
    return Answered(frame, thumbnail(frame.image), answer, found.timings.inference / 1e6)


def _mask(result: InferResult) -> Pixels:
    mask = find_mask(result.outputs)
    if mask is None:
        shapes = ", ".join(f"{name} {array.dtype} {list(array.shape)}" for name, array in result.outputs.items())
        raise ConfigError(
            f"model {result.model_name!r} returns no mask but {shapes}; state what to look for with --target"
        )
    return mask[1]


def grid_of(mask: Pixels, size: tuple[int, int] | None = None) -> Pixels:
    """Return the class numbers of a mask at up to 64x64 points spread evenly over it, uint8 [p].

    Args:
        mask: Class numbers, [h,w].
        size: Height and width of the mask whose points count, if it shows the same in another size.
    """
    counts = [min(count, _POINTS) for count in size or mask.shape]
    rows, columns = (
        np.linspace(0, length - 1, count).round().astype(int) for length, count in zip(mask.shape, counts, strict=True)
    )
    return np.asarray(mask[np.ix_(rows, columns)]).ravel()


def _difference_ms(answered: Sequence[Answered]) -> float:
    """Return the median time of a comparison; the thumbnail is not in it, since the small model takes it too."""
    spent = []
    for one, other in pairwise(answered):
        began = time.perf_counter_ns()
        difference(one.seen, other.seen)
        spent.append(time.perf_counter_ns() - began)
    return float(np.median(spent or [0])) / 1e6


def record_scores(answered: Sequence[Answered], answers: ResultMaker, network: SmallNetwork) -> Scores:
    """Run the small model on frames with the reference's answers, and return what calibration needs of them.

    Args:
        answered: Consecutive frames.
        answers: Brings the small model's outputs to one form; has its card.
        network: The small model.

    Raises:
        ModelFailed: Its outputs are no answer.
        ConfigError: There are no frames.
    """
    settings, card = answers.settings, network.card
    small = SmallInput(card.name, Preparer(image_contract_of(card), "raw"))
    confidences, masks, spent_ms = [], [], []
    for each in answered:
        outputs, timings = network.run(small.prepare(each.frame, each.seen))
        found, confidence = answers.of_small(outputs)
        confidences.append(confidence)
        spent_ms.append(timings.total / 1e6)
        if settings.target is None and (mask := find_mask(found)):
            masks.append(grid_of(mask[1], each.answer.shape))
    if not answered:
        raise ConfigError("there are no frames to record; choose a longer part of the recording")
    costs = Costs(
        _difference_ms(answered),
        float(np.median(spent_ms)),
        float(np.median([each.inference_ms for each in answered])),
    )
    return Scores(
        np.stack([each.seen for each in answered]),
        np.array(confidences, np.float32),
        np.stack([each.answer if settings.target is not None else grid_of(each.answer) for each in answered]),
        np.stack(masks) if settings.target is None else None,
        costs,
    )

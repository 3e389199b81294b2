"""Scores the masks of a replay against the truth of a synthetic drive, pixel by pixel."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mqinfer.bags.sources import open_source
from mqinfer.extras import import_extra
from mqinfer.images.decode import to_array
from mqinfer.lab.drives.recording import TRUTH_TOPIC
from mqinfer.lab.drives.synthetic import CLASSES
from mqinfer.lab.scores import SegmentationScore, confusion, segmentation_score
from mqinfer.protocol.errors import MqinferError

Mask = npt.NDArray[np.uint8]


def score_replays(replays: Sequence[tuple[Path, Path]]) -> SegmentationScore:
    """Return the intersection over union of each class over all frames of some drives, and the mean.

    Masks and truth are paired by their capture stamps.

    Args:
        replays: Pairs of a drive's bag and the `results.mcap` of its replay.

    Raises:
        MqinferError: A frame has no mask.
        MissingExtra: mcap is not installed.
    """
    counts = sum((_count_pixels(bag, results) for bag, results in replays), np.zeros((len(CLASSES),) * 2, np.int64))
    return segmentation_score(counts, [info.name for info in CLASSES])


def _count_pixels(bag: Path, results: Path) -> npt.NDArray[np.int64]:
    """Count pixels by true class (rows) and predicted class (columns) over all frames of a drive."""
    found = dict(_masks(results))
    counts = np.zeros((len(CLASSES), len(CLASSES)), np.int64)
    with closing(open_source(str(bag), topics=[TRUTH_TOPIC])) as source:
        for frame in source.frames():
            mask = found.get(frame.capture_time_ns)
            if mask is None:
                raise MqinferError(f"{results} has no mask for the frame of {bag} at {frame.capture_time_ns} ns")
            counts += confusion(mask, to_array(frame.image).astype(np.uint8), len(CLASSES))
    return counts


def _masks(results: Path) -> Iterator[tuple[int, Mask]]:
    """Yield the capture stamp and the class numbers of each result."""
    make_reader = import_extra("mcap.reader", "edge").make_reader
    with results.open("rb") as file:
        for _, channel, message in make_reader(file).iter_messages():
            if channel.topic.endswith("/mqinfer/classes"):
                image = json.loads(message.data)
                stamp = image["timestamp"]["sec"] * 10**9 + image["timestamp"]["nsec"]
                pixels = np.frombuffer(base64.b64decode(image["data"]), np.uint8)
                yield stamp, pixels.reshape(image["height"], image["step"])

"""Score the masks of a replay against the ground truth of a synthetic drive, on /camera/labels.

    python examples/score_against_truth.py drive.bag=results.mcap [BAG=MCAP ...] [--require-iou 0.80]

Masks and truth are paired by their capture stamps. Prints the intersection over union of each class and the mean over
the classes that occur. Exits with 1 if the mean is below the required one, or if a frame has no mask.
"""

from __future__ import annotations

import argparse
import base64
import json
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import numpy.typing as npt
from mcap.reader import make_reader

from mqinfer.bags.sources import open_source
from mqinfer.images.decode import to_array
from mqinfer.lab.drives.synthetic import CLASSES
from mqinfer.lab.optimize.parity import confusion, segmentation_score

Mask = npt.NDArray[np.uint8]


def masks(mcap: Path) -> Iterator[tuple[int, Mask]]:
    """Yield the capture stamp and the class numbers of each result."""
    with mcap.open("rb") as file:
        for _, channel, message in make_reader(file).iter_messages():
            if channel.topic.endswith("/mqinfer/classes"):
                image = json.loads(message.data)
                stamp = image["timestamp"]["sec"] * 10**9 + image["timestamp"]["nsec"]
                pixels = np.frombuffer(base64.b64decode(image["data"]), np.uint8)
                yield stamp, pixels.reshape(image["height"], image["step"])


def count_pixels(bag: str, mcap: Path) -> npt.NDArray[np.int64]:
    """Count pixels by true class (rows) and predicted class (columns) over all frames of a drive."""
    found = dict(masks(mcap))
    counts = np.zeros((len(CLASSES), len(CLASSES)), np.int64)
    with closing(open_source(bag, topics=["/camera/labels"])) as source:
        for frame in source.frames():
            truth = to_array(frame.image).astype(np.uint8)
            mask = found.get(frame.capture_time_ns)
            if mask is None:
                sys.exit(f"{mcap} has no mask for the frame of {bag} captured at {frame.capture_time_ns} ns")
            counts += confusion(mask, truth, len(CLASSES))
    return counts


def main() -> int:
    """Print the scores; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("pairs", nargs="+", metavar="BAG=MCAP")
    parser.add_argument("--require-iou", type=float, default=0.0)
    options = parser.parse_args()
    pairs = [pair.rpartition("=") for pair in options.pairs]
    counts = np.sum([count_pixels(bag, Path(mcap)) for bag, _, mcap in pairs], axis=0)
    scores = segmentation_score(counts, [info.name for info in CLASSES])
    for name, score in scores.per_class.items():
        print(f"  {name:12} {score:.3f}")
    print(f"mean IoU over {len(scores.per_class)} classes: {scores.mean_iou:.3f} (required: {options.require_iou:.2f})")
    return 0 if scores.mean_iou >= options.require_iou else 1


if __name__ == "__main__":
    sys.exit(main())

"""Send the pictures of a live source to a model, always the newest one, and print what becomes of each.

    MQINFER_BROKER=mqtt://127.0.0.1:1883 python examples/stream.py MODEL

A thread stands for the camera: it puts 100 frames into the stream, faster than most models run. Of the frames that come
while the model is busy only the newest is sent; the others end as `superseded`. The results come in the order of the
frames.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter

import numpy as np

from mqinfer import Capture, Client, Outcome, Stream
from mqinfer.protocol.card import ModelCard
from mqinfer.protocol.datatypes import dtype_of

RATE_HZ = 100


def camera(card: ModelCard, stream: Stream) -> None:
    """Put a frame into the stream a hundred times a second."""
    inputs = {
        spec.name: np.zeros([max(size, 1) for size in spec.shape], dtype_of(spec.datatype)) for spec in card.inputs
    }
    for number in range(100):
        stream.put(inputs, capture=Capture("camera", number, time.time_ns()))
        time.sleep(1 / RATE_HZ)
    stream.close()  # the loop below ends after the last frame's result


def main(model: str) -> None:
    """Read the results while the camera runs."""
    counts: Counter[Outcome] = Counter()
    with Client.from_env() as client, client.stream(model, policy="latest", timeout=2.0) as stream:
        source = threading.Thread(target=camera, args=(client.card(model), stream))
        source.start()
        for result in stream:
            counts[result.outcome] += 1
            if result.outcome is Outcome.OK:
                age = time.time_ns() - (result.capture.capture_time_ns or 0)
                print(f"frame {result.capture.sequence}: {age / 1e6:.1f} ms after it was captured")
        source.join()
    print(", ".join(f"{count} {outcome}" for outcome, count in counts.items()))


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Read samples for calibration and evaluation: frames of a recording with their truth, pictures, or arrays."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from mqinfer.bags.frame import Frame, FrameSource
from mqinfer.bags.sources import open_source
from mqinfer.edge_agent.output_files import read_npz
from mqinfer.images.decode import to_array, to_rgb
from mqinfer.lab.optimize.samples import Sample
from mqinfer.logs import reason
from mqinfer.protocol.errors import ConfigError

_TRUTH = "truth"


def read_frames(spec: str, topic: str | None, truth: str | None, count: int) -> tuple[Sample, ...]:
    """Return frames of a recording, spread evenly over it.

    Args:
        spec: A bag, video, folder of pictures or picture.
        topic: Image topic of a bag; None for the only one beside the truth.
        truth: Topic of class masks with the stamps of the frames; None if there is none.
        count: Upper bound of the samples.

    Raises:
        SourceError: It cannot be read.
        ConfigError: There are several image topics and none was chosen, or there is no frame.
    """
    with closing(open_source(spec)) as whole:
        chosen, frames = _choose(spec, whole, topic, truth)
    named = (chosen, truth) if truth else (chosen,) if topic else ()
    with closing(open_source(spec, topics=named)) as source:
        samples = _paired(source, chosen, step=max(frames // count, 1))
    if not samples:
        raise ConfigError(f"{spec}: no frame on {chosen}")
    return tuple(samples[:count])


def _choose(spec: str, whole: FrameSource, topic: str | None, truth: str | None) -> tuple[str, int]:
    """Return the topic of the pictures and how many frames it has."""
    total = {stream.source: stream.count or 0 for stream in whole.streams()}
    pictures = [stream.source for stream in whole.streams() if stream.is_image and stream.source != truth]
    chosen = pictures[0] if topic is None and len(pictures) == 1 else topic
    if chosen not in total:
        raise ConfigError(
            f"{spec}: choose one image topic with --topic; its image topics are {', '.join(pictures) or 'none'}"
        )
    return chosen, total[chosen]


def _paired(source: FrameSource, topic: str, step: int) -> list[Sample]:
    """Pair frames and masks of the same stamp; the truth of a frame without a mask is None."""
    pictures: dict[int, Frame] = {}
    masks: dict[int, Frame] = {}
    for frame in source.frames():
        if frame.sequence % step == 0:
            (pictures if frame.source == topic else masks)[frame.capture_time_ns] = frame
    return [
        Sample(to_rgb(frame.image), truth=to_array(masks[stamp].image) if stamp in masks else None)
        for stamp, frame in pictures.items()
    ]


def read_arrays(path: Path, count: int) -> tuple[Sample, ...]:
    """Read an `.npz` of arrays by input, each `[samples, …]`; an optional array `truth` holds class numbers.

    Raises:
        ConfigError: It cannot be read, or the arrays differ in length.
    """
    try:
        arrays = read_npz(path)
    except Exception as error:  # of NumPy's reader, of ZIP files and what packed them
        raise ConfigError(
            f"--samples {path}: can't be read: {reason(error)}; expected an .npz file or a folder"
        ) from error
    lengths = {len(array) if array.ndim else 0 for array in arrays.values()}
    if len(lengths) != 1 or 0 in lengths:
        raise ConfigError(f"--samples {path}: arrays of {sorted(lengths)} samples; expected the same number in each")
    (total,), truth = lengths, arrays.pop(_TRUTH, None)
    return tuple(
        Sample(
            inputs={name: array[n : n + 1] for name, array in arrays.items()}, truth=None if truth is None else truth[n]
        )
        for n in range(0, total, max(total // count, 1))[:count]
    )

"""The frames of document 004's experiments: a synthetic street, or a video of a fixed camera with its labels."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from mqinfer.codecs.opencv import opencv
from mqinfer.images.decode import to_rgb
from mqinfer.images.picture import CompressedImage
from mqinfer.lab.cascade.recording import read_part
from mqinfer.lab.drives.street import StreetCamera
from mqinfer.logs import reason
from mqinfer.protocol.errors import ConfigError

TARGET = "car"
SEED, _RATE = 7, 30.0
"""The street, and the frames a second of its camera, as many as the document's video has."""
_QUALITY = 90


def read_scene(
    source: str | None, numbers: Sequence[int], side: int, report: Callable[[str], None]
) -> list[CompressedImage]:
    """Return frames as JPEG pictures of one size.

    Args:
        source: Recording of a fixed camera; None for a synthetic street.
        numbers: Of the frames, ascending.
        side: Width and height, in pixels.
        report: Called with a line about each step.

    Raises:
        ConfigError: The recording has fewer frames.
        SourceError: It can't be read.
    """
    report(f"reading {len(numbers)} frames of {source or 'a synthetic street'}")
    cv2, frames = opencv(), []
    for pixels in _pictures(source, numbers, side):
        sized = cv2.resize(pixels, (side, side), interpolation=cv2.INTER_AREA)
        _, jpeg = cv2.imencode(".jpg", cv2.cvtColor(sized, cv2.COLOR_RGB2BGR), [cv2.IMWRITE_JPEG_QUALITY, _QUALITY])
        frames.append(CompressedImage("jpeg", jpeg.tobytes()))
    if len(frames) < len(numbers):
        raise ConfigError(f"{source}: there is no frame {numbers[len(frames)]}; the experiment takes {numbers[-1] + 1}")
    return frames


def _pictures(source: str | None, numbers: Sequence[int], side: int) -> Iterator[Any]:
    if source is None:
        camera = StreetCamera(SEED, side, side, _RATE)
        yield from (camera.scene(number).picture for number in numbers)
        return
    wanted = frozenset(numbers)
    for number, frame in enumerate(read_part(source, None, 0, numbers[-1] + 1)):
        if number in wanted:
            yield to_rgb(frame.image)


def read_labels(path: Path, target: str = TARGET) -> frozenset[int]:
    """Return the numbers of the frames in which an object is, of NoScope's own file of labels.

    Args:
        path: CSV with the columns `frame` and `object_name`: one line for each object of each frame.
        target: Name of the object.

    Raises:
        ConfigError: It can't be read, or has other columns.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return frozenset(
                int(float(line["frame"])) for line in csv.DictReader(file) if line["object_name"] == target
            )
    except (OSError, ValueError, TypeError, csv.Error) as error:
        raise ConfigError(f"{path}: can't be read as labels: {reason(error)}") from error
    except KeyError as error:
        raise ConfigError(f"{path}: no column {error}; expected the columns frame and object_name") from error

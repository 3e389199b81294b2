"""Find the truth of a recording: label pictures or boxes on a topic, a folder of label pictures, or labels in files."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from mqinfer.answers.outputs import DetectedBox
from mqinfer.bags.folder_source import LARGEST_PICTURE, list_pictures
from mqinfer.bags.frame import Frame
from mqinfer.bags.rosbag import IMAGE_TYPES, Rosbag, is_bag, message_type, refuse_pipes
from mqinfer.bags.rosbag_source import RosbagSource
from mqinfer.images.decode import to_array
from mqinfer.images.picture import CompressedImage, RawImage
from mqinfer.lab.comparing.coco import read_coco
from mqinfer.lab.comparing.labels import TrueBox, TrueFrame, number_of, read_csv, read_kitti
from mqinfer.protocol.card import ClassInfo
from mqinfer.protocol.errors import BadImage, ConfigError, SourceError
from mqinfer.toml_files import read_bytes

_DETECTIONS = "vision_msgs/msg/Detection2DArray"
_SLACK_NS = 2_000_000_000
"""A truth is logged at most so long before or after its frame."""


class Truth(Protocol):
    """Looks up frames in the order of their log times.

    Attributes:
        categories: COCO's numbers of classes, by name; empty where the truth has none.
    """

    @property
    def categories(self) -> Mapping[str, int]: ...  # noqa: D102 - as above

    def of(self, frame: Frame) -> TrueFrame | None:
        """Return the truth of a frame; None where there is none.

        Raises:
            ConfigError: It is no truth.
            SourceError: It can't be read.
        """

    def close(self) -> None:
        """Close files."""


def open_truth(spec: str, source: str) -> Truth:
    """Open the truth of a recording.

    Args:
        spec: A topic of the recording, a folder of label pictures or of KITTI's labels, a file of COCO's annotations
            (`.json`), or a CSV file.
        source: The recording.

    Raises:
        ConfigError: There is no such file and no such topic, or it holds no truth.
        SourceError: It can't be read.
    """
    path = Path(spec)
    if path.is_dir() or path.is_file():
        return _open_files(path, Path(source))
    if not is_bag(Path(source)):
        raise ConfigError(f"--truth {spec}: no such file or folder, and {source} is no bag, which would have topics")
    with closing(Rosbag(Path(source))) as bag:
        types = {each.topic: message_type(each) for each in bag.connections}
    found = types.get(spec)
    if found in IMAGE_TYPES:
        return _StampedTruth(_label_pictures(source, spec))
    if found == _DETECTIONS:
        return _StampedTruth(_detections(source, spec))
    known = ", ".join(topic for topic, kind in sorted(types.items()) if kind in {*IMAGE_TYPES, _DETECTIONS})
    what = f"no file, and not a topic of {source}" if found is None else f"{found} holds no truth"
    raise ConfigError(f"--truth {spec}: {what}; expected label pictures, {_DETECTIONS}, or a file; it has {known}")


def _open_files(path: Path, recording: Path) -> Truth:
    if path.is_dir():
        refuse_pipes(path)
        return read_kitti(path, recording) if any(path.glob("*.txt")) else _FolderTruth(path)
    return read_coco(path, recording) if path.suffix.lower() == ".json" else read_csv(path)


def _mask(image: RawImage | CompressedImage, where: str) -> TrueFrame:
    try:
        array = to_array(image)
    except BadImage as error:
        raise ConfigError(f"{where}: {error}") from error
    if array.ndim != 2 or array.dtype.kind not in "ui" or (array.size and (array.min() < 0 or array.max() > 255)):
        raise ConfigError(
            f"{where}: {'x'.join(map(str, array.shape))} of {array.dtype} is no label picture; expected class numbers "
            "of 0 to 255 in one channel"
        )
    return TrueFrame(mask=array.astype(np.uint8))


_Messages = Generator[tuple[int, int, Callable[[], TrueFrame]], None, None]
"""Stamp, log time, and what makes the truth."""


@dataclass
class _StampedTruth:
    """Truth with stamps; of messages as far apart as `_SLACK_NS` from the frame only few are held."""

    messages: _Messages
    categories: Mapping[str, int] = field(default_factory=dict)
    _kept: dict[int, tuple[int, Callable[[], TrueFrame]]] = field(default_factory=dict)
    _read_to: int | None = None
    _is_over: bool = False

    def of(self, frame: Frame) -> TrueFrame | None:
        """Return what has the frame's stamp."""
        while not self._is_over and (self._read_to is None or self._read_to <= frame.log_time_ns + _SLACK_NS):
            message = next(self.messages, None)
            if message is None:
                self._is_over = True
                break
            stamp, self._read_to, content = message
            if self._read_to >= frame.log_time_ns - _SLACK_NS:
                self._kept[stamp] = self._read_to, content
        for stamp in [each for each, (logged, _) in self._kept.items() if logged < frame.log_time_ns - _SLACK_NS]:
            del self._kept[stamp]
        found = self._kept.get(frame.capture_time_ns)
        return found[1]() if found else None

    def close(self) -> None:
        """Close the bag."""
        self.messages.close()


def _label_pictures(source: str, topic: str) -> _Messages:
    with closing(RosbagSource(Path(source), topics=[topic])) as bag:
        for frame in bag.frames():
            yield (
                frame.capture_time_ns,
                frame.log_time_ns,
                partial(_mask, frame.image, f"{topic}, frame {frame.sequence}"),
            )


def _detections(source: str, topic: str) -> _Messages:
    with closing(Rosbag(Path(source))) as bag:
        chosen = [each for each in bag.connections if each.topic == topic]
        for connection, log_time_ns, raw in bag.messages(chosen):
            message = bag.decode(connection, raw)
            stamp = message.header.stamp
            boxes = tuple(_true_box(each) for each in message.detections if each.results)
            yield stamp.sec * 1_000_000_000 + stamp.nanosec, log_time_ns, partial(TrueFrame, boxes=boxes)


def _true_box(detection: Any) -> TrueBox:
    """Return a `vision_msgs/Detection2D`, of ROS 2 (`hypothesis`, `position`) or of ROS 1."""
    best = max((getattr(each, "hypothesis", each) for each in detection.results), key=lambda each: each.score)
    label = best.class_id if hasattr(best, "class_id") else best.id
    centre = getattr(detection.bbox.center, "position", detection.bbox.center)
    across, down = detection.bbox.size_x / 2, detection.bbox.size_y / 2
    return TrueBox((centre.x - across, centre.y - down, centre.x + across, centre.y + down), str(label))


class _FolderTruth:
    """A folder of label pictures, in the natural order of their names: the n-th is that of frame n."""

    def __init__(self, path: Path) -> None:
        self.categories: Mapping[str, int] = {}
        self._pictures = list_pictures(path)
        if not self._pictures:
            raise ConfigError(f"--truth {path}: there is no picture in this folder; expected one PNG a frame")

    def of(self, frame: Frame) -> TrueFrame | None:
        """Return the picture of a frame's number."""
        if frame.sequence >= len(self._pictures):
            return None
        path = self._pictures[frame.sequence]
        try:
            return _mask(CompressedImage(path.suffix.lower().lstrip("."), read_bytes(path, LARGEST_PICTURE)), str(path))
        except OSError as error:
            raise SourceError(f"{path}: {error.strerror}") from error

    def close(self) -> None:
        """Do nothing: no file stays open."""


def detected(
    boxes: Sequence[TrueBox], classes: Sequence[ClassInfo], renamed: Mapping[str, str]
) -> tuple[list[DetectedBox], list[DetectedBox]]:
    """Return the boxes of the truth with the numbers of a model's classes, and its regions, with None for all classes.

    Raises:
        ConfigError: The model has no such class.
    """
    found: tuple[list[DetectedBox], list[DetectedBox]] = [], []
    for each in boxes:
        number = None if each.label is None else number_of(each.label, classes, renamed)
        if number is not None or each.label is None:
            found[each.is_region].append(DetectedBox(each.box, 1.0, number))
    return found

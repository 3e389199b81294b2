"""COCO's formats: annotations as the truth, and results for its evaluations (https://cocodataset.org/#format-data)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TextIO, TypeVar

import msgspec

from mqinfer.answers.outputs import DetectedBox
from mqinfer.edge_agent.output_files import set_aside, writing
from mqinfer.lab.comparing.labels import Box, Labels, TrueBox, TrueFrame, frame_numbers, number_of
from mqinfer.protocol.card import ClassInfo
from mqinfer.protocol.errors import ConfigError

_MOST_BYTES = 1 << 30
"""Largest file that is read; that of COCO's 118,287 pictures for training has 470 MB."""
_NEWLINE = b"\n"


class _Image(msgspec.Struct):
    id: int
    file_name: str
    width: int = 0
    height: int = 0


class _Annotation(msgspec.Struct):
    image_id: int
    category_id: int
    bbox: Box
    iscrowd: int | bool = False


class _Category(msgspec.Struct):
    id: int
    name: str


class _Coco(msgspec.Struct):
    images: list[msgspec.Raw]
    annotations: list[msgspec.Raw]
    categories: list[msgspec.Raw]


_Shape = TypeVar("_Shape")


def read_coco(path: Path, recording: Path) -> Labels:
    """Read the annotations of COCO's object detection (https://cocodataset.org/#format-data): one JSON file.

    A picture is found by its `file_name`, without folder and suffix, in a recording that is a folder of pictures; in
    others the n-th picture, in the natural order of these names, is frame n.

    Raises:
        ConfigError: It can't be read or holds something else, or fits no frame.
    """
    whole = _decoded(_read(path), _Coco, str(path))
    images = _each(whole.images, _Image, f"{path}, images")
    names = {each.id: each.name for each in _each(whole.categories, _Category, f"{path}, categories")}
    boxes: dict[int, list[TrueBox]] = {each.id: [] for each in images}
    if len(boxes) < len(images):
        raise ConfigError(f"{path}, images: two have the same id; give each its own")
    for n, each in enumerate(_each(whole.annotations, _Annotation, f"{path}, annotations")):
        if problem := _problem(each, boxes, names):
            raise ConfigError(f"{path}, annotations[{n}]: {problem}")
        left, top, width, height = each.bbox
        box = left, top, left + width, top + height
        boxes[each.image_id].append(TrueBox(box, names[each.category_id], bool(each.iscrowd)))
    return Labels(_frames(path, recording, images, boxes), {name: category for category, name in names.items()})


def _frames(
    path: Path, recording: Path, images: Sequence[_Image], boxes: Mapping[int, Sequence[TrueBox]]
) -> dict[tuple[str, int], TrueFrame]:
    number = frame_numbers([each.file_name for each in images], recording, path)
    found = [(number(image.file_name), image) for image in images]
    numbered = [(n, image) for n, image in found if n is not None]
    frames = {("", n): _true_frame(image, boxes[image.id]) for n, image in numbered}
    if len(frames) < len(numbered):
        raise ConfigError(f"{path}, images: two have one file_name, without folder and suffix; rename one")
    return frames


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            text = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    if len(text) > _MOST_BYTES:
        raise ConfigError(f"{path}: more than {_MOST_BYTES >> 20} MiB; expected the annotations of COCO's format")
    return text


def _true_frame(image: _Image, boxes: Sequence[TrueBox]) -> TrueFrame:
    size = (image.width, image.height) if image.width and image.height else None
    return TrueFrame(boxes=tuple(boxes), size=size, image_id=image.id)


def _problem(each: _Annotation, images: Mapping[int, object], names: Mapping[int, str]) -> str:
    if each.image_id not in images:
        return f"image_id {each.image_id} is none of its images; remove it, or add the image"
    if each.category_id not in names:
        return f"category_id {each.category_id} is none of its categories; remove it, or add the category"
    if min(each.bbox[2:]) < 0:
        return f"bbox {list(each.bbox)} ends before it begins; expected left, top, width, height"
    return ""


def _each(entries: Sequence[msgspec.Raw], shape: type[_Shape], where: str) -> list[_Shape]:
    return [_decoded(each, shape, f"{where}[{n}]") for n, each in enumerate(entries)]


def _decoded(text: bytes | msgspec.Raw, shape: type[_Shape], where: str) -> _Shape:
    try:
        return msgspec.json.decode(text, type=shape)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        at = re.search(r"\(byte ([0-9]+)\)", str(error))
        line = f", line {bytes(text).count(_NEWLINE, 0, int(at[1])) + 1}" if at else ""
        expected = "expected the annotations of COCO's object detection: images, annotations with bbox, categories"
        raise ConfigError(f"{where}{line}: {error}; {expected}") from error


class CocoResults:
    """A file of results: a JSON array, a line a box."""

    def __init__(self, path: Path, categories: Mapping[int, int] | None) -> None:
        """Prepare; the file is made by the first frame.

        Args:
            path: The file; an earlier one is kept under a number.
            categories: COCO's number of each of the model's classes, and boxes of others are left out; None for the
                model's own numbers.
        """
        self._path = path
        self._categories = categories
        self._file: TextIO | None = None
        self._is_first = True

    def add(self, image_id: int, boxes: Sequence[DetectedBox]) -> None:
        """Write the boxes of a picture.

        Raises:
            ConfigError: The file can't be written.
        """
        with writing(self._path):
            if self._file is None:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                set_aside(self._path)
                self._file = self._path.open("w", encoding="utf-8")
                self._file.write("[")
            for each in boxes:
                number = each.number or 0
                category = number if self._categories is None else self._categories.get(number)
                if category is not None:
                    line = {"image_id": image_id, "category_id": category, "bbox": _bbox(each), "score": each.score}
                    self._file.write(("\n" if self._is_first else ",\n") + json.dumps(line))
                    self._is_first = False

    def close(self) -> tuple[Path, ...]:
        """End the file and return it; none where there was no frame with boxes."""
        if self._file is None:
            return ()
        with writing(self._path), self._file:
            self._file.write("\n]\n")
        self._file = None
        return (self._path,)


def _bbox(each: DetectedBox) -> list[float]:
    """Return left, top, width and height."""
    left, top, right, bottom = each.box
    return [round(side, 3) for side in (left, top, right - left, bottom - top)]


def category_ids(
    categories: Mapping[str, int], classes: Sequence[ClassInfo], renamed: Mapping[str, str]
) -> dict[int, int] | None:
    """Return COCO's number of each of a model's classes that the truth has; None without categories."""
    found: dict[int, int] = {}
    for name, category in categories.items():
        try:
            number = number_of(name, classes, renamed)
        except ConfigError:  # said when a frame has it
            continue
        if number is not None:
            found.setdefault(number, category)
    return found if categories else None

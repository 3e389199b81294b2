"""Labels of pictures: what is true of a frame, read from a CSV file or from KITTI's text files."""

from __future__ import annotations

import csv
import math
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from mqinfer.answers.outputs import Mask
from mqinfer.bags.folder_source import list_pictures, natural_order
from mqinfer.bags.frame import Frame
from mqinfer.logs import printable
from mqinfer.protocol.card import ClassInfo
from mqinfer.protocol.errors import ConfigError
from mqinfer.toml_files import read_text

Box = tuple[float, float, float, float]
_LONGEST_LINE, _MOST_SHOWN = 1 << 20, 200
"""Characters that are read of a line of CSV, and that an error shows of its columns."""
_BOX_COLUMNS = ("left", "top", "right", "bottom")
_DONT_CARE = "DontCare"
_KITTI_FIELDS, _TRACKING_FIELDS = (15, 16), (17, 18)


@dataclass(frozen=True, slots=True)
class TrueBox:
    """A box of the truth.

    Attributes:
        box: Left, top, right and bottom in pixels of the frame.
        label: Name or number of its class; None for all classes, of a region.
        is_region: Whether it is a region in which found boxes are neither right nor wrong: COCO's crowds, and what
            KITTI doesn't care about.
    """

    box: Box
    label: str | None
    is_region: bool = False


@dataclass(frozen=True, slots=True)
class TrueFrame:
    """What is true of one frame; what is None is not known.

    Attributes:
        mask: Class numbers in pixels of the recorded frame.
        label: Name or number of the class of the whole frame.
        boxes: All objects in it.
        size: Width and height of the picture that was labelled.
        image_id: Its number in COCO's file.
    """

    mask: Mask | None = None
    label: str | None = None
    boxes: Sequence[TrueBox] | None = None
    size: tuple[int, int] | None = None
    image_id: int | None = None


@dataclass(frozen=True, slots=True)
class Labels:
    """The truth of frames by their number, read at once.

    Attributes:
        frames: By source (empty: of each one) and number.
        categories: COCO's numbers of classes, by name.
    """

    frames: Mapping[tuple[str, int], TrueFrame]
    categories: Mapping[str, int] = field(default_factory=dict)

    def of(self, frame: Frame) -> TrueFrame | None:
        """Return what is true of a frame."""
        return self.frames.get((frame.source, frame.sequence)) or self.frames.get(("", frame.sequence))

    def close(self) -> None:
        """Do nothing: no file stays open."""


OTHERS = "*"
"""Stands for all classes of the truth that the model doesn't have."""


def parse_classes(texts: Sequence[str] | None) -> dict[str, str]:
    """Parse `TRUTH=CLASS`: which class of the models a class of the truth is; without CLASS it is left out.

    Raises:
        ConfigError: A text is of another form.
    """
    pairs = [text.partition("=") for text in texts or ()]
    for name, equals, _ in pairs:
        if not (name and equals):
            raise ConfigError(
                f"--truth-class {name!r}: expected TRUTH=CLASS, TRUTH= to leave it out, or *= for all others"
            )
    return {name: known for name, _, known in pairs}


def number_of(label: str, classes: Sequence[ClassInfo], renamed: Mapping[str, str]) -> int | None:
    """Return the number of a class, by its name on the model's card, whatever its case, or as it is.

    Args:
        label: Of the truth.
        classes: Of the model.
        renamed: As `parse_classes` returns it.

    Returns:
        None for a class that is left out.

    Raises:
        ConfigError: The model has no such class.
    """
    names = [each.name.casefold() for each in classes]
    tried = (renamed.get(label, label), renamed.get(OTHERS, label))
    for name in tried:
        if name.casefold() in names:
            return names.index(name.casefold())
        if not name:
            return None
        if name.isascii() and name.isdigit():
            return int(name)
    known = ", ".join(each.name for each in classes) or "numbers only"
    raise ConfigError(
        f"the truth has the class {label!r}, the model has {known}; say which one it is, --truth-class {label}=CLASS, "
        f"or leave it out, --truth-class {label}="
    )


def read_csv(path: Path) -> Labels:
    """Read a CSV file with the columns `sequence` and `class`, for boxes also `left`, `top`, `right` and `bottom`.

    `source` is optional. A frame without objects has one row whose other columns are empty.

    Raises:
        ConfigError: It can't be read, or is no such file.
    """
    frames: dict[tuple[str, int], TrueFrame] = {}
    boxes: defaultdict[tuple[str, int], list[TrueBox]] = defaultdict(list)
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = csv.DictReader(iter(partial(file.readline, _LONGEST_LINE), ""))
            columns = set(rows.fieldnames or ())
            has_boxes = columns.issuperset(_BOX_COLUMNS)
            if not columns.issuperset({"sequence", "class"}) or (not has_boxes and columns & {*_BOX_COLUMNS}):
                shown = printable(", ".join(sorted(columns))[:_MOST_SHOWN]) or "none"
                raise ConfigError(
                    f"{path}: its columns are {shown}; expected sequence and class, "
                    "for boxes also left, top, right, bottom"
                )
            for row in rows:
                _add_row(frames, row, boxes, has_boxes=has_boxes, where=f"{path}, line {rows.line_num}")
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"{path}: {error}; expected a CSV file of the truth") from error
    return Labels(frames)


def _add_row(
    frames: dict[tuple[str, int], TrueFrame],
    row: dict[str, str],
    boxes: defaultdict[tuple[str, int], list[TrueBox]],
    *,
    has_boxes: bool,
    where: str,
) -> None:
    try:
        key, label = _frame_and_class(row)
        box = _sides([row[name] for name in _BOX_COLUMNS]) if label and has_boxes else None
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{where}: {error}; expected numbers in sequence, left, top, right and bottom") from error
    if key in frames and not has_boxes:
        raise ConfigError(f"{where}: a second class of frame {key[1]}; leave one out")
    frames.setdefault(key, TrueFrame(boxes=boxes[key]) if has_boxes else TrueFrame(label=label))
    if box:
        boxes[key].append(TrueBox(box, label))


def _frame_and_class(row: dict[str, str]) -> tuple[tuple[str, int], str]:
    """Return what a row is about; many have the same source and class."""
    return (sys.intern(row.get("source") or ""), int(row["sequence"])), sys.intern((row["class"] or "").strip())


def _sides(texts: Iterable[str]) -> Box:
    left, top, right, bottom = map(_finite, texts)
    return left, top, right, bottom


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is no place in a picture")
    return number


def read_kitti(folder: Path, recording: Path) -> Labels:
    """Read a `label_2` of KITTI's object detection: a text file a picture, a line an object.

    The file of a picture has its name, in a recording that is a folder of pictures; of others its number: `000007.txt`
    is frame 7. A line is that of KITTI's `readme.txt`: type, truncated, occluded, alpha, left, top, right, bottom and
    seven figures in space, a result's score after them.

    Raises:
        ConfigError: A file can't be read or holds something else, or fits no frame.
    """
    files = sorted(folder.glob("*.txt"), key=natural_order)
    number = frame_numbers([each.stem for each in files], recording, folder)
    frames = {}
    for path in files:
        sequence = number(path.stem) if recording.is_dir() else _whole(path)
        try:
            lines = read_text(path).splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path}: {error}; expected a text file of KITTI's label_2") from error
        boxes = [_kitti_box(line.split(), f"{path}, line {n}") for n, line in enumerate(lines, 1) if line.strip()]
        if sequence is not None:
            frames["", sequence] = TrueFrame(boxes=tuple(boxes))
    return Labels(frames)


def _whole(path: Path) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", path.stem):
        raise ConfigError(f"{path}: its name is no number of a frame; expected one such as 000007.txt")
    return int(path.stem)


def _kitti_box(words: Sequence[str], where: str) -> TrueBox:
    if len(words) in _TRACKING_FIELDS and words[0].isdigit():
        raise ConfigError(
            f"{where}: a line of KITTI's tracking, with frame and track first; write a file a frame without these two"
        )
    expected = "expected the 15 of KITTI's label_2: type, truncated, occluded, alpha, left, top, right, bottom, …"
    if len(words) not in _KITTI_FIELDS:
        raise ConfigError(f"{where}: it has {len(words)} words; {expected}")
    try:
        box = _sides(words[4:8])
    except ValueError as error:
        raise ConfigError(f"{where}: {error}; {expected}") from error
    is_region = words[0] == _DONT_CARE
    return TrueBox(box, None if is_region else words[0], is_region)


def frame_numbers(names: Sequence[str], recording: Path, labels: Path) -> Callable[[str], int | None]:
    """Return what finds the frame of a labelled picture by its name; None where the recording has no such picture.

    Raises:
        ConfigError: The recording has none of them.
    """
    if not recording.is_dir() or not (pictures := list_pictures(recording)):
        order = {name: n for n, name in enumerate(sorted(names, key=lambda each: natural_order(Path(each))))}
        return order.get
    known = {each.stem: n for n, each in enumerate(pictures)}
    if names and not any(Path(each).stem in known for each in names):
        raise ConfigError(
            f"--truth {labels}: it labels {names[0][:_MOST_SHOWN]} and others, of which {recording} has none, but "
            f"{pictures[0].name}; expected the names of the recording's pictures"
        )
    return lambda name: known.get(Path(name).stem)

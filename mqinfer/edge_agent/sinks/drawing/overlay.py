"""Draw class masks and boxes over pictures, with a caption and a legend below.

Pictures are RGB, `[height, width, 3]`. What draws on one leaves it as it is, and returns a new one of the same size.
"""

from __future__ import annotations

import colorsys
import re
import struct
import zlib
from collections.abc import Sequence
from functools import cache, lru_cache

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from mqinfer.answers.depth import Depth
from mqinfer.answers.keypoints import drawn_keypoints
from mqinfer.answers.outputs import MOST_BOXES, PRESENT, DetectedBox, Mask, Picture, label, top_label
from mqinfer.bags.frame import Frame
from mqinfer.client.result import InferResult
from mqinfer.codecs.opencv import opencv
from mqinfer.edge_agent.frames.view import FrameView
from mqinfer.images.placement import UNKNOWN
from mqinfer.protocol.card import ClassInfo
from mqinfer.protocol.errors import BadImage
from mqinfer.protocol.header import FALLBACK
from mqinfer.protocol.types import Stage

MINIMUM_WIDTH = 640
"""Narrower pictures get a margin up to this width in pixels, so that the caption is legible."""

_BACKGROUND = (24, 24, 24)
_INK = (235, 235, 235)
_LINE_HEIGHT = 22
_MARGIN = 8
_CHIP = 12
_SCALE = 120
_FONT_SCALE = 0.45
_LONGEST_LEGEND = 100
"""A legend of more classes would be larger than the picture, and is left out."""
_BRIGHT = 400
"""Labels are black on colours whose three parts sum to more than this, and white on others."""
_MEANS_BACKGROUND = re.compile(
    r"[\W_]*(background|bg|unlabel+ed|unknown|void|ignored?|none|other)[\W_]*", re.IGNORECASE
).fullmatch
_FAR = 1 << 14
"""Coordinates are clamped to this many pixels, beyond which OpenCV draws wrongly."""


def palette(classes: Sequence[ClassInfo]) -> npt.NDArray[np.uint8]:
    """Return the RGB colour of each of the 256 class numbers, `[256, 3]`.

    Classes of the card have its colours. Other numbers get hues that are the golden ratio apart, so that neighbours
    differ; so does class 0 where it has the default colour, black, and its name does not mean a background.
    """
    colours = _hues().copy()
    if classes:
        colours[: len(classes)] = [info.colour for info in classes[:256]]
        if not any(classes[0].colour) and not _MEANS_BACKGROUND(classes[0].name):
            colours[0] = _hues()[0]
    return colours


@lru_cache(maxsize=16)
def visible(classes: tuple[ClassInfo, ...]) -> tuple[ClassInfo, ...]:
    """Return classes of objects with another colour for black, which is that of a mask's background."""
    hues = _hues().tolist()
    return tuple(
        info if any(info.colour) else replace(info, colour=tuple(hues[number % 256]))
        for number, info in enumerate(classes)
    )


@cache
def _hues() -> npt.NDArray[np.uint8]:
    """Return the colours of numbers without a class; made once, since it takes 1,600 calls."""
    hues = (number * 0.618033988749895 % 1.0 for number in range(256))
    return np.array([[round(255 * part) for part in colorsys.hsv_to_rgb(hue, 0.65, 0.95)] for hue in hues], np.uint8)


def colour_mask(mask: Mask, classes: Sequence[ClassInfo]) -> Picture:
    """Paint a mask in its classes' colours, `[height, width]` to `[height, width, 3]`."""
    painted: Picture = opencv().applyColorMap(mask, palette(classes)[:, np.newaxis])
    return painted


def encode_mask(mask: Mask, classes: Sequence[ClassInfo], *, is_partial: bool = False) -> bytes:
    """Encode a mask as PNG: its pixels are the class numbers, its palette holds the classes' colours.

    A fifth of the time and less than half the bytes of the same picture in RGB.

    Args:
        mask: Class numbers.
        classes: Names and colours from the model's card.
        is_partial: Whether pixels that are `UNKNOWN` have no class; they are transparent.
    """
    height, width = mask.shape
    rows = np.zeros((height, width + 1), np.uint8)  # each begins with a 0: not filtered
    rows[:, 1:] = mask
    chunks = {
        b"IHDR": struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0),  # 8 bits, palette
        b"PLTE": palette(classes).tobytes(),
        **({b"tRNS": b"\xff" * UNKNOWN + b"\0"} if is_partial else {}),
        b"IDAT": zlib.compress(rows.tobytes(), 1),
        b"IEND": b"",
    }
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks.items()
    )


def draw_overlay(
    picture: Picture,
    mask: Mask,
    classes: Sequence[ClassInfo],
    seen: npt.NDArray[np.bool_] | None = None,
) -> Picture:
    """Lay a mask's colours over a picture, as much of the one as of the other.

    Args:
        picture: Below them.
        mask: Class numbers; one of another size is stretched, each pixel to its nearest neighbour.
        classes: Names and colours from the model's card.
        seen: Which pixels of the picture have a class, and a colour; None if all have one.
    """
    cv2 = opencv()
    height, width = picture.shape[:2]
    if mask.shape != (height, width):
        mask = cv2.resize(mask, (width, height), interpolation=cv2.INTER_NEAREST)
    blended: Picture = cv2.addWeighted(picture, 0.5, colour_mask(mask, classes), 0.5, 0.0)
    return blended if seen is None else np.where(seen[:, :, np.newaxis], blended, picture)


def draw_boxes(picture: Picture, boxes: Sequence[DetectedBox], classes: Sequence[ClassInfo]) -> Picture:
    """Draw boxes, in pixels of the picture, with labels and key points, the best on top; parts outside are cut off."""
    cv2 = opencv()
    drawn = picture.copy()
    colours = palette(visible(tuple(classes)))
    for each in reversed(boxes):
        left, top, right, bottom = (round(min(max(side, -_FAR), _FAR)) for side in each.box)
        colour = colours[(each.number or 0) % 256].tolist()
        cv2.rectangle(drawn, (left, top), (right - 1, bottom - 1), colour, 2)
        _draw_keypoints(drawn, each, classes, colour)
        text = label(each, classes)
        baseline = top - 4 if top >= _LINE_HEIGHT else top + _LINE_HEIGHT - 6
        width = _text_width(text)
        x = max(0, min(left - 1, picture.shape[1] - width - 6))
        cv2.rectangle(drawn, (x, baseline - 13), (x + width + 6, baseline + 4), colour, cv2.FILLED)
        ink = (0, 0, 0) if sum(colour) > _BRIGHT else (255, 255, 255)
        _put_text(drawn, text, x + 3, baseline, ink)
    return drawn


def _draw_keypoints(
    drawn: Picture, box: DetectedBox, classes: Sequence[ClassInfo], colour: tuple[int, int, int]
) -> None:
    """Draw the points of an object that are in sight, and the lines between them."""
    cv2 = opencv()
    points, lines = drawn_keypoints(box, classes)
    for ends in lines:
        (first, second) = ((int(x), int(y)) for x, y, _ in ends)
        cv2.line(drawn, first, second, colour, 2, cv2.LINE_AA)
    for x, y, _ in points:
        cv2.circle(drawn, (int(x), int(y)), 4, _BACKGROUND, cv2.FILLED, cv2.LINE_AA)
        cv2.circle(drawn, (int(x), int(y)), 3, colour, cv2.FILLED, cv2.LINE_AA)


def add_strip(picture: Picture, line: str, classes: Sequence[ClassInfo] = ()) -> Picture:
    """Add a dark strip with one line of text and a legend below a picture.

    Its size depends on the size of the picture and the classes alone, so that all frames of a video agree.

    Args:
        picture: Above the strip.
        line: The caption; cut off if it does not fit.
        classes: Entries of the legend.
    """
    cv2 = opencv()
    height, width = picture.shape[:2]
    canvas_width = max(width, MINIMUM_WIDTH) + width % 2 * (width >= MINIMUM_WIDTH)
    chips = _place_chips([_text_width(info.name) for info in classes], canvas_width)
    rows = 1 + (chips[-1][1] + 1 if chips else 0)
    strip_height = rows * _LINE_HEIGHT + _MARGIN
    canvas = np.full((height + strip_height + (height + strip_height) % 2, canvas_width, 3), _BACKGROUND, np.uint8)
    canvas[:height, :width] = picture
    _put_text(canvas, _fit(line, canvas_width - 2 * _MARGIN), _MARGIN, height + _LINE_HEIGHT - 5)
    colours = palette(classes)[: len(classes)].tolist()
    for info, colour, (x, row) in zip(classes, colours, chips, strict=True):
        baseline = height + (row + 2) * _LINE_HEIGHT - 5
        cv2.rectangle(canvas, (x, baseline - _CHIP + 1), (x + _CHIP, baseline + 1), colour, cv2.FILLED)
        _put_text(canvas, info.name, x + _CHIP + 5, baseline)
    return canvas


def draw_result(frame: Frame, view: FrameView, result: InferResult) -> Picture:
    """Draw a result over the recorded frame, with a caption whatever the outcome."""
    return draw_answer(view, caption(frame, result))


def draw_answer(view: FrameView, line: str) -> Picture:
    """Draw what a model found over the recorded frame: areas, boxes, best classes; a line and the legend below."""
    shown = draw_areas(view)
    shown = draw_boxes(shown, view.answer.boxes, view.classes) if view.answer.boxes else shown
    shown = draw_lines(shown, [top_label(each) for each in view.answer.top]) if view.answer.top else shown
    classes = visible(tuple(view.classes)) if "boxes" in view.outputs else view.classes
    return add_strip(shown, line, classes if len(classes) <= _LONGEST_LEGEND else ())


def draw_areas(view: FrameView) -> Picture:
    """Lay over the recorded frame what a result has for each pixel: its mask or else its depth, and masks of objects.

    Returns the frame itself if there is nothing to lay over it.
    """
    shown = view.pixels
    if view.answer.mask is not None:
        shown = draw_overlay(shown, view.answer.mask, view.classes, seen=view.answer.seen)
    elif view.answer.depth is not None and view.depth_levels is not None:
        shown = draw_depth(shown, view.depth_levels, view.answer.depth)
    return draw_instances(shown, view) if view.answer.boxes else shown


def draw_depth(picture: Picture, levels: Mask, depth: Depth) -> Picture:
    """Lay colours for numbers over a picture, with their scale in the lower left corner.

    Args:
        picture: Below them.
        levels: Of its pixels, 0 to 254; others stay as they are.
        depth: The least and the greatest number.
    """
    cv2 = opencv()
    height, width = picture.shape[:2]
    if levels.shape != (height, width):  # the frame could not be decoded
        levels = cv2.resize(levels, (width, height), interpolation=cv2.INTER_NEAREST)
    colours = cv2.cvtColor(cv2.applyColorMap(levels, cv2.COLORMAP_TURBO), cv2.COLOR_BGR2RGB)
    blended = cv2.addWeighted(picture, 0.2, colours, 0.8, 0.0)
    drawn: Picture = np.where(levels[:, :, np.newaxis] < UNKNOWN, blended, picture)
    return _draw_scale(drawn, f"{depth.least:.4g}", f"{depth.greatest:.4g}")


def _draw_scale(drawn: Picture, least: str, greatest: str) -> Picture:
    """Draw all colours between the numbers that the first and the last stand for, where the picture has room."""
    cv2 = opencv()
    left, right = (_text_width(text) for text in (least, greatest))
    width, top = left + right + _SCALE + 20, drawn.shape[0] - _LINE_HEIGHT - _MARGIN
    if top < 0 or width + 2 * _MARGIN > drawn.shape[1]:
        return drawn
    cv2.rectangle(drawn, (_MARGIN, top), (_MARGIN + width, top + _LINE_HEIGHT), _BACKGROUND, cv2.FILLED)
    first, baseline = _MARGIN + left + 10, top + _LINE_HEIGHT - 7
    ramp = np.linspace(0, UNKNOWN - 1, _SCALE).astype(np.uint8)[np.newaxis]
    colours = cv2.cvtColor(cv2.applyColorMap(ramp, cv2.COLORMAP_TURBO), cv2.COLOR_BGR2RGB)
    drawn[top + 5 : top + _LINE_HEIGHT - 4, first : first + _SCALE] = colours
    _put_text(drawn, least, _MARGIN + 5, baseline)
    _put_text(drawn, greatest, first + _SCALE + 5, baseline)
    return drawn


def draw_instances(picture: Picture, view: FrameView) -> Picture:
    """Lay the masks of detected objects over a picture, each in the colour of its class, the best on top.

    Args:
        picture: The recorded frame; returned itself if there are no masks.
        view: The result, whose `masks` `[n, height, width]` belong to its `boxes`.
    """
    masks, numbers = view.outputs.get("masks"), view.outputs.get("classes")
    if masks is None or masks.ndim != 3 or not masks.size or masks.dtype.kind not in "bu":
        return picture
    shown = np.zeros(masks.shape[1:], np.uint8)  # 0: nothing; n: the instance n - 1
    for number in reversed(range(min(len(masks), MOST_BOXES))):
        shown[masks[number] != 0] = number + 1
    colours = np.zeros((256, 3), np.uint8)
    known = np.zeros(len(masks))
    if numbers is not None and numbers.dtype.kind in "iuf" and np.isfinite(numbers).all():
        known = np.mod(numbers.reshape(-1), 256)
    count = min(len(known), MOST_BOXES)
    colours[1 : count + 1] = palette(visible(tuple(view.classes)))[known[:count].astype(np.int64)]
    placed = view.placement.mask_to_frame(shown, outside=0)
    blended = opencv().addWeighted(picture, 0.5, colours[placed], 0.5, 0.0)
    drawn: Picture = np.where(placed[:, :, np.newaxis] > 0, blended, picture)
    return drawn


def draw_lines(picture: Picture, lines: Sequence[str]) -> Picture:
    """Write lines of text into the upper left corner of a picture, each cut off if it does not fit."""
    cv2 = opencv()
    drawn = picture.copy()
    for number, line in enumerate(lines):
        text = _fit(line, picture.shape[1] - 2 * _MARGIN)
        top = _MARGIN + number * _LINE_HEIGHT
        corner = (_MARGIN + _text_width(text) + 6, top + _LINE_HEIGHT - 2)
        cv2.rectangle(drawn, (_MARGIN, top), corner, _BACKGROUND, cv2.FILLED)
        _put_text(drawn, text, _MARGIN + 3, top + _LINE_HEIGHT - 7)
    return drawn


def _place_chips(widths: Sequence[int], canvas_width: int) -> list[tuple[int, int]]:
    """Return x and row of each entry of the legend, from left to right in as many rows as it takes."""
    places: list[tuple[int, int]] = []
    x, row = _MARGIN, 0
    for width in widths:
        needed = _CHIP + 5 + width + 14
        if x > _MARGIN and x + needed > canvas_width:
            x, row = _MARGIN, row + 1
        places.append((x, row))
        x += needed
    return places


def _text_width(text: str) -> int:
    cv2 = opencv()
    return int(cv2.getTextSize(text, cv2.FONT_HERSHEY_SIMPLEX, _FONT_SCALE, 1)[0][0])


def _fit(text: str, width: int) -> str:
    """Join the lines of a text, and cut it to a width in pixels."""
    text = " ".join(text.split())[:300]
    if _text_width(text) <= width:
        return text
    while text and _text_width(text + "...") > width:
        text = text[:-1]
    return text + "..."


def _put_text(canvas: Picture, text: str, x: int, baseline: int, ink: tuple[int, int, int] = _INK) -> None:
    cv2 = opencv()
    cv2.putText(canvas, text, (x, baseline), cv2.FONT_HERSHEY_SIMPLEX, _FONT_SCALE, ink, 1, cv2.LINE_AA)


def stamp(nanoseconds: int) -> str:
    """Return a time as seconds with nine decimals, as ROS writes it."""
    return f"{nanoseconds // 1_000_000_000}.{nanoseconds % 1_000_000_000:09d}"


def caption(frame: Frame, result: InferResult) -> str:
    """Return one line of ASCII: model, frame, stamp, outcome, who answered what, latency and error."""
    words = [
        f"{result.model_name} {result.model_version}".strip(),
        f"frame {frame.sequence}",
        stamp(frame.capture_time_ns),
        str(result.outcome),
    ]
    if result.worker:
        words.append(result.worker)
    words += _answer(result)
    if result.timings.total:
        words.append(f"{result.timings.total / 1e6:.1f} ms")
    if result.error:
        code = "" if result.error.code == result.outcome else f"{result.error.code}: "
        words.append(code + result.error.message)
    return " | ".join(words)


def _answer(result: InferResult) -> list[str]:
    """Return which stage of a cascade answered, if it was not the model in a worker, and whether a target is there."""
    words = [] if result.stage in {"", Stage.WORKER.value} else [result.stage]
    if FALLBACK in result.parameters:
        words.append(f"alone: {result.parameters[FALLBACK]}")
    if (there := result.outputs.get(PRESENT)) is not None:
        words.append("present" if there.any() else "absent")
    return words


def encode_picture(picture: Picture, suffix: str, quality: int = 90) -> bytes:
    """Encode a picture as bytes of an image file.

    Args:
        picture: Of any size.
        suffix: `.png` or `.jpg`.
        quality: Of a JPEG, 1 to 100.

    Raises:
        BadImage: OpenCV cannot encode it.
        MissingExtra: OpenCV is not installed.
    """
    cv2 = opencv()
    options = [cv2.IMWRITE_JPEG_QUALITY, quality] if suffix == ".jpg" else [cv2.IMWRITE_PNG_COMPRESSION, 1]
    try:
        done, encoded = cv2.imencode(suffix, cv2.cvtColor(picture, cv2.COLOR_RGB2BGR), options)
    except cv2.error as error:
        raise BadImage(f"a picture of shape {picture.shape} can't be encoded as {suffix}: {error}") from error
    if not done:
        raise BadImage(f"a picture of shape {picture.shape} can't be encoded as {suffix}")
    return bytes(encoded.tobytes())

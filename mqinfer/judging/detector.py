"""Find for each frame of a stream an earlier one that it hardly differs from."""

from __future__ import annotations

from pathlib import Path
from typing import Generic, TypeVar

from mqinfer.images.picture import CompressedImage
from mqinfer.judging.settings import FIRST, LAST, DifferenceDetector
from mqinfer.judging.thumbnail import Thumbnail, difference, thumbnail
from mqinfer.protocol.errors import BadImage, ConfigError
from mqinfer.protocol.limits import DEFAULT_LIMITS
from mqinfer.toml_files import read_bytes

T = TypeVar("T")


def read_picture(settings: DifferenceDetector) -> Thumbnail | None:
    """Return the picture that frames are compared with; None where it is another frame.

    Raises:
        ConfigError: The file can't be read, or is no picture.
    """
    if settings.against in {LAST, FIRST}:
        return None
    path, why = Path(settings.against), "no such file"
    try:
        if path.is_file():
            return thumbnail(CompressedImage(path.suffix, read_bytes(path, DEFAULT_LIMITS.payload_bytes)))
    except OSError as error:
        why = error.strerror or str(error)
    except BadImage as error:
        why = str(error)
    raise ConfigError(
        f"difference.against = {settings.against!r}: {why}; expected 'last', 'first' or the path of a JPEG or PNG file"
    )


class Detector(Generic[T]):
    """The difference detector of one stream. Not thread-safe."""

    def __init__(self, picture: Thumbnail | None = None) -> None:
        """Start without a frame.

        Args:
            picture: What frames are compared with; None for another frame.
        """
        self._thumbnail = picture
        self._holder: T | None = None  # the frame whose answer is that of all that hardly differ
        self._size = (0, 0)  # of that frame

    def leader(
        self, settings: DifferenceDetector, seen: Thumbnail, frame: T, size: tuple[int, int] = (0, 0)
    ) -> T | None:
        """Return the frame whose answer a frame gets, or None if it needs one of its own.

        Args:
            settings: As they are for this frame.
            seen: The frame's thumbnail.
            frame: The frame.
            size: Its width and height: an answer is in pixels, so it is none for a frame of another size.
        """
        known = self._thumbnail
        is_alike = known is not None and difference(known, seen, settings.blocks) < settings.t_diff
        if is_alike and self._holder is not None and size == self._size:
            return self._holder
        if known is None or settings.against == LAST:
            self._thumbnail = seen
        elif not is_alike:
            return None
        self._holder, self._size = frame, size
        return None

    def forget(self, frame: T) -> None:
        """Handle a frame that got no answer: no other one gets its answer any more."""
        if self._holder is frame:
            self._holder = None

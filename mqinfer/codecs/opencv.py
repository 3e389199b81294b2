"""OpenCV, imported when the first frame is touched and not before."""

from __future__ import annotations

from functools import cache
from threading import Lock
from typing import Any

from mqinfer.extras import missing_extra

_importing = Lock()


@cache
def opencv() -> Any:
    """Return the `cv2` module.

    It is `Any` on purpose: the stubs of OpenCV 4 and 5 disagree about nearly every overload.

    Raises:
        MissingExtra: opencv-python-headless is not installed.
    """
    try:
        with _importing:  # where it can't be imported, a second thread would get what the first one had of it
            import cv2
    except ImportError as missing:
        raise missing_extra("opencv-python-headless", "edge") from missing
    return cv2

"""Read frames from a camera at this machine or in the network, with OpenCV."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from mqinfer.bags.frame import Frame, StreamInfo
from mqinfer.bags.videos.source import raw_bgr
from mqinfer.codecs.opencv import opencv
from mqinfer.logs import without_logins
from mqinfer.protocol.errors import SourceError

_OPENED_MS = 10_000
"""A stream that is not open after this time is refused."""
_STALLED_S = 5.0
"""A stream that yields no frame for so long has stopped; OpenCV would wait 30 s, and no signal is handled meanwhile."""


class CameraSource:
    """Frames of a live source, stamped when they arrive.

    Args:
        spec: `camera:0` for a local device, or the URL of a stream (RTSP, HTTP).
        clock: Nanoseconds since the epoch.
        timeout: How long to wait for a frame of a stream, in seconds; also bounds how long a stop takes.

    Raises:
        SourceError: The device or stream cannot be opened.
    """

    def __init__(self, spec: str, *, clock: Callable[[], int] = time.time_ns, timeout: float = _STALLED_S) -> None:
        self._name = without_logins(spec)  # names of streams are published, and kept
        self._clock = clock
        self._capture = _open(spec, timeout)

    def streams(self) -> tuple[StreamInfo, ...]:
        """List the camera as one stream; only a file that a server sends has a length."""
        cv2, get = opencv(), self._capture.get
        width, height = int(get(cv2.CAP_PROP_FRAME_WIDTH)), int(get(cv2.CAP_PROP_FRAME_HEIGHT))
        count = max(0, int(get(cv2.CAP_PROP_FRAME_COUNT))) or None
        return (StreamInfo(self._name, "camera", "bgr8", width, height, count, get(cv2.CAP_PROP_FPS) or None),)

    def frames(self) -> Iterator[Frame]:
        """Yield frames without end.

        Raises:
            SourceError: The camera stopped.
        """
        sequence = 0
        while True:
            is_read, picture = self._capture.read()
            now = self._clock()
            if not is_read:
                raise SourceError(
                    f"{self._name}: the camera stopped or stalled after {sequence} frames; check that it is connected"
                )
            yield Frame(self._name, sequence, now, now, "", raw_bgr(picture))
            sequence += 1

    def close(self) -> None:
        """Close the device."""
        self._capture.release()


def _open(spec: str, timeout: float) -> Any:
    cv2 = opencv()
    if spec.startswith("camera:"):
        capture = cv2.VideoCapture(int(spec.removeprefix("camera:")))  # Video4Linux waits 10 s for a frame
    else:
        limits = [cv2.CAP_PROP_OPEN_TIMEOUT_MSEC, _OPENED_MS, cv2.CAP_PROP_READ_TIMEOUT_MSEC, round(1000 * timeout)]
        capture = cv2.VideoCapture(spec, cv2.CAP_FFMPEG, limits)
    name = without_logins(spec)
    if not capture.isOpened():
        raise SourceError(f"{name}: can't be opened; check that the device or URL exists and no other program holds it")
    if not (capture.get(cv2.CAP_PROP_FRAME_WIDTH) or capture.grab()):  # what sends heads without end is open, too
        capture.release()
        raise SourceError(f"{name}: it can be opened and no picture comes; check what is sent there")
    return capture

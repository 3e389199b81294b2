"""A camera at this machine or in the network, through OpenCV."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from mqinfer.bags.frame import Frame, StreamInfo
from mqinfer.bags.span import WHOLE, Span
from mqinfer.bags.video_source import raw_bgr
from mqinfer.codecs.opencv import opencv
from mqinfer.protocol.errors import ConfigError, SourceError

__all__ = ["CameraSource"]


class CameraSource:
    """Frames as they come, stamped when they arrive.

    Args:
        spec: `camera:0` for a local device, or the URL of a stream (RTSP, HTTP).
        span: How long to read; a live source can't begin later.
        clock: Nanoseconds since the epoch.

    Raises:
        SourceError: The device or stream can't be opened.
        ConfigError: A start was asked for.
    """

    def __init__(self, spec: str, *, span: Span = WHOLE, clock: Callable[[], int] = time.time_ns) -> None:
        if span.start:
            raise ConfigError(f"{spec}: a live source begins now; leave out the start of {span.start} s")
        self._spec = spec
        self._span = span
        self._clock = clock
        self._capture = _open(spec)

    def streams(self) -> tuple[StreamInfo, ...]:
        """List the camera as one stream of unknown length."""
        cv2, get = opencv(), self._capture.get
        width, height = int(get(cv2.CAP_PROP_FRAME_WIDTH)), int(get(cv2.CAP_PROP_FRAME_HEIGHT))
        return (StreamInfo(self._spec, "camera", "bgr8", width, height, None, get(cv2.CAP_PROP_FPS) or None),)

    def frames(self) -> Iterator[Frame]:
        """Yield frames until the duration is over.

        Raises:
            SourceError: The camera stopped.
        """
        _, end = self._span.bounds(self._clock())
        sequence = 0
        while True:
            is_read, picture = self._capture.read()
            now = self._clock()
            if end is not None and now >= end:
                return
            if not is_read:
                raise SourceError(f"{self._spec}: no more frames after {sequence}; is the camera still connected?")
            yield Frame(self._spec, sequence, now, now, "", raw_bgr(picture))
            sequence += 1

    def close(self) -> None:
        """Close the device."""
        self._capture.release()


def _open(spec: str) -> Any:
    device: int | str = int(spec.removeprefix("camera:")) if spec.startswith("camera:") else spec
    capture = opencv().VideoCapture(device)
    if not capture.isOpened():
        raise SourceError(f"{spec}: can't be opened; check that the device or URL exists and no other program holds it")
    return capture

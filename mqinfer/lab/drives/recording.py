"""Records a synthetic drive as a bag."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np

from mqinfer.bags.writer import START_NS, BagWriter, Storage
from mqinfer.images.lens import Distortion
from mqinfer.images.picture import CameraInfo
from mqinfer.images.rectification import rectification
from mqinfer.lab.drives.camera import PinholeCamera
from mqinfer.lab.drives.mosaic import raw_image
from mqinfer.lab.drives.synthetic import Scene, SyntheticDrive
from mqinfer.protocol.errors import ConfigError

IMAGE_TOPIC = "/camera/image_raw"
TRUTH_TOPIC = "/camera/labels"
CAMERA_TOPIC = "/camera/camera_info"

_NS = 1_000_000_000
_LENSES = {
    Distortion.PLUMB_BOB: (-0.3, 0.08, 0.0005, -0.0004, 0.0),
    Distortion.RATIONAL_POLYNOMIAL: (0.3, 0.02, 0.0005, -0.0004, 0.0, 0.62, 0.1, 0.0),
    Distortion.EQUIDISTANT: (-0.05, 0.01, 0.0, 0.0),
}
_REACH, _ZOOM = 1.2, 1.16
"""Factors on the focal length: the rendered picture reaches the corners of the bent one, and that one those of the
rectified one."""


def write_drive(  # noqa: PLR0913  the options of one command
    path: Path | str,
    *,
    ros: Literal[1, 2],
    frames: int,
    seed: int,
    rate: float = 10.0,
    width: int = 968,
    height: int = 608,
    encoding: str = "bayer_rggb8",
    bits: int = 16,
    lens: Distortion | None = None,
    truth_topic: bool = True,
    storage: Storage | None = None,
    compression: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Path:
    """Record a synthetic drive: mosaics on `/camera/image_raw`, class masks on `/camera/labels`.

    With a lens both are bent as it bends them, and its calibration is on `/camera/camera_info`.

    A frame is logged 8 to 23 ms after its capture stamp, like a driver's.

    Args:
        path: A new `.bag` file for ROS 1, a new directory for ROS 2.
        ros: 1 or 2.
        frames: Number of frames.
        seed: Seed of the drive.
        rate: Frames a second.
        width: Width in pixels.
        height: Height in pixels.
        encoding: `rgb8`, or `bayer_<pattern>8` or `bayer_<pattern>16`.
        bits: True bit depth of 16-bit mosaics.
        lens: Kind of the lens; None for one that bends nothing, without a calibration.
        truth_topic: Whether to write the masks.
        storage: For ROS 2: `mcap` (the default) or `sqlite3`.
        compression: As in `BagWriter`.
        progress: Called with (done, all) after each frame.

    Returns:
        Path of the bag.

    Raises:
        ConfigError: An argument is outside its bounds.
        SourceError: The path exists or can't be written.
    """
    drive = SyntheticDrive(seed, width, height, rate)
    chosen = _storage(ros, frames, storage)
    delays = np.random.default_rng([seed, 5]).integers(8_000_000, 23_000_000, frames)
    camera = None if lens is None else _camera(lens, width, height, _ZOOM)
    with BagWriter(path, chosen, compression) as writer:
        for index in range(frames):
            scene = drive.scene(index)
            capture = START_NS + seed % 1000 * 1000 * _NS + round(index * _NS / rate)
            log = capture + int(delays[index])
            if lens is not None and camera is not None:
                scene = _through(lens, scene)
                writer.write_camera(CAMERA_TOPIC, camera, capture, log)
            writer.write(IMAGE_TOPIC, raw_image(scene.picture, encoding, bits), capture, log)
            if truth_topic:
                writer.write(TRUTH_TOPIC, raw_image(scene.mask, "mono8"), capture, log)
            if progress:
                progress(index + 1, frames)
    return Path(path)


def _camera(lens: Distortion, width: int, height: int, zoom: float = 1.0) -> CameraInfo:
    """Make a camera with a lens, whose rectified pictures are those that the drive renders, enlarged."""
    focal, centre = PinholeCamera.FOCAL * width, (width / 2 - 0.5, height / 2 - 0.5)
    k, p = _REACH * focal, zoom * focal
    return CameraInfo(
        width,
        height,
        lens,
        _LENSES[lens],
        (k, 0.0, centre[0], 0.0, k, centre[1], 0.0, 0.0, 1.0),
        (1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0),
        (p, 0.0, centre[0], 0.0, 0.0, p, centre[1], 0.0, 0.0, 0.0, 1.0, 0.0),
    )


def _storage(ros: Literal[1, 2], frames: int, storage: Storage | None) -> Storage:
    if ros not in (1, 2) or frames < 1:
        raise ConfigError(f"ros {ros}, frames {frames}: expected ros 1 or 2, and 1 frame or more")
    return "bag" if ros == 1 else storage or "mcap"


def _through(lens: Distortion, scene: Scene) -> Scene:
    height, width = scene.mask.shape
    bent = rectification(_camera(lens, width, height), width, height)
    return Scene(bent.to_recorded(scene.picture, 0), bent.to_recorded(scene.mask, 0))

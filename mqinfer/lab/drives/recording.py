"""Records a synthetic drive as a bag."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np

from mqinfer.bags.writer import BagWriter, Storage
from mqinfer.lab.drives.mosaic import raw_image
from mqinfer.lab.drives.synthetic import SyntheticDrive
from mqinfer.protocol.errors import ConfigError

__all__ = ["IMAGE_TOPIC", "TRUTH_TOPIC", "write_drive"]

IMAGE_TOPIC = "/camera/image_raw"
TRUTH_TOPIC = "/camera/labels"

_START_NS = 1_700_000_000_000_000_000  # a fixed time keeps bags reproducible
_NS = 1_000_000_000


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
    truth_topic: bool = True,
    storage: Storage | None = None,
    compression: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Path:
    """Record a synthetic drive: mosaics on `/camera/image_raw`, class masks on `/camera/labels`.

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
    if ros not in (1, 2) or frames < 1:
        raise ConfigError(f"ros {ros}, frames {frames}: expected ros 1 or 2, and 1 frame or more")
    chosen: Storage = "bag" if ros == 1 else storage or "mcap"
    delays = np.random.default_rng([seed, 5]).integers(8_000_000, 23_000_000, frames)
    with BagWriter(path, chosen, compression) as writer:
        for index in range(frames):
            scene = drive.scene(index)
            capture = _START_NS + seed % 1000 * 1000 * _NS + round(index * _NS / rate)
            log = capture + int(delays[index])
            writer.write(IMAGE_TOPIC, raw_image(scene.picture, encoding, bits), capture, log)
            if truth_topic:
                writer.write(TRUTH_TOPIC, raw_image(scene.mask, "mono8"), capture, log)
            if progress:
                progress(index + 1, frames)
    return Path(path)

"""Light at an hour of the day: colours of sky and haze, strength of the sun, and the response of the sensor."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mqinfer.codecs.opencv import opencv
from mqinfer.lab.drives.canvas import Colour, Pixels


@dataclass(frozen=True, slots=True)
class Hour:
    """Light of one hour.

    Attributes:
        zenith: Colour of the sky above.
        haze: Colour of the sky at the horizon, which distant objects fade into.
        tint: Gain of each channel.
        shadow: Brightness of the ground in a shadow, as a share; 1 under an overcast sky.
        clarity: Distance in metres at which 63 % of a colour has faded.
        cloudiness: Share of white in the thickest clouds.
    """

    zenith: Colour
    haze: Colour
    tint: Colour
    shadow: float
    clarity: float
    cloudiness: float


HOURS = (
    Hour((58, 112, 190), (188, 210, 228), (1.0, 1.0, 1.0), 0.55, 260, 0.7),  # noon
    Hour((84, 138, 204), (222, 222, 214), (1.05, 1.0, 0.92), 0.6, 190, 0.5),  # afternoon
    Hour((152, 160, 168), (198, 202, 204), (0.9, 0.92, 0.95), 1.0, 130, 0.35),  # overcast
    Hour((92, 112, 162), (244, 200, 154), (1.08, 0.95, 0.82), 0.7, 170, 0.45),  # evening
    Hour((120, 150, 186), (226, 214, 206), (0.96, 0.94, 0.94), 0.8, 115, 0.3),  # misty morning
)


def clouds(rng: np.random.Generator, width: int, height: int) -> Pixels:
    """Return the thickness of clouds from three octaves of smoothed noise, uint8 [height, width]."""
    cv2 = opencv()
    sheet = np.zeros((height, width), np.float32)
    for octave, weight in ((4, 0.55), (9, 0.3), (22, 0.15)):
        coarse = rng.random((octave, octave * 2), dtype=np.float32)
        sheet += weight * cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)
    return np.asarray(np.clip((sheet - 0.45) * 700, 0, 255), np.uint8)


@dataclass(frozen=True, slots=True, eq=False)
class Sensor:
    """Exposure drift, vignetting and noise, reproducible by seed and frame.

    Attributes:
        seed: Seed of the drive.
        grain: Noise, larger than the picture, int16; each frame uses another part of it.
        vignette: Brightness after the lens, uint8 [H,W,3], 255 for full brightness.
        tint: Gain of each channel.
    """

    seed: int
    grain: np.ndarray[tuple[int, ...], np.dtype[np.int16]]
    vignette: Pixels
    tint: Colour

    @classmethod
    def make(cls, seed: int, width: int, height: int, tint: Colour) -> Sensor:
        """Create noise and vignette for a picture size; the noise has a standard deviation of 3 of 255."""
        cv2 = opencv()
        rng = np.random.default_rng([seed, 77])
        grain = np.rint(rng.normal(0, 3.0, (height + 64, width + 64, 3)).astype(np.float32)).astype(np.int16)
        across = np.linspace(-1, 1, width, dtype=np.float32)[None, :] ** 2
        along = np.linspace(-1, 1, height, dtype=np.float32)[:, None] ** 2
        vignette = (255 * (1 - 0.11 * (across + along))).astype(np.uint8)
        return cls(seed, grain, cv2.merge([vignette] * 3), tint)

    def expose(self, picture: Pixels, index: int) -> Pixels:
        """Return the picture as the sensor reads it, uint8 [H,W,3]."""
        cv2 = opencv()
        height, width = picture.shape[:2]
        rng = np.random.default_rng([self.seed, 78, index])
        down, right = rng.integers(0, 64, 2)
        gain = 1 + 0.07 * np.sin(0.11 * index + self.seed % 7) + rng.normal(0, 0.008)
        curve = np.arange(256)[:, None] * (gain * np.array(self.tint))[None, :]
        table = np.clip(curve, 0, 250).astype(np.uint8)[None]
        exposed = cv2.LUT(cv2.multiply(picture, self.vignette, scale=1 / 255), table)
        part = self.grain[down : down + height, right : right + width]
        return np.asarray(cv2.add(exposed, part, dtype=cv2.CV_8U))

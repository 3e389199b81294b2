"""Pictures as bytes of an image file."""

from __future__ import annotations

from mqinfer.codecs.opencv import opencv
from mqinfer.edge_agent.sinks.sink import Picture
from mqinfer.protocol.errors import BadImage

__all__ = ["encode_picture"]


def encode_picture(picture: Picture, suffix: str, quality: int = 90) -> bytes:
    """Encode a picture.

    Args:
        picture: RGB `[height, width, 3]`.
        suffix: `.png` or `.jpg`.
        quality: Of a JPEG, 1 to 100.

    Raises:
        BadImage: OpenCV can't encode it.
        MissingExtra: OpenCV is not installed.
    """
    cv2 = opencv()
    options = [cv2.IMWRITE_JPEG_QUALITY, quality] if suffix == ".jpg" else [cv2.IMWRITE_PNG_COMPRESSION, 1]
    try:
        done, encoded = cv2.imencode(suffix, cv2.cvtColor(picture, cv2.COLOR_RGB2BGR), options)
    except cv2.error as error:
        raise BadImage(f"a picture of shape {picture.shape} can't be written as {suffix}: {error}") from error
    if not done:
        raise BadImage(f"a picture of shape {picture.shape} can't be written as {suffix}")
    return bytes(encoded.tobytes())

"""The way in which frames travel, as `--encoding` states it."""

from __future__ import annotations

from mqinfer.codecs import available_encodings, parse_encoding, traits_of
from mqinfer.codecs.chain import StreamHalves
from mqinfer.extras import missing_extra
from mqinfer.protocol.card import BAYER
from mqinfer.protocol.errors import BadEncoding
from mqinfer.value_object import value_object

SMALLEST = "png"
"""Carries a mosaic where nothing else is asked for: of the lossless codecs its bytes are fewest."""
AUTO = "auto"
_MOSAIC = 1 / 3
"""Bytes of a mosaic in proportion to those of its colours."""


@value_object()
class FrameEncoding:
    """How frames travel, as `--encoding` states it.

    Attributes:
        text: As it was stated.
        codec: Of a frame on its own, such as `jpeg:90`.
        is_mosaic: Whether Bayer mosaics travel as recorded, for the worker to demosaic.
        stream: State of each stream, where frames are encoded against others; None where each stands alone.
        quality: JPEG quality of the frames; None if they do not travel as JPEG.
    """

    text: str
    codec: str
    is_mosaic: bool = False
    stream: StreamHalves | None = None
    quality: int | None = None

    @classmethod
    def parse(cls, text: str) -> FrameEncoding:
        """Read an encoding such as `jpeg:90`, `bayer` or `bayer:lz4`.

        Raises:
            BadEncoding: There is no such encoding.
            MissingExtra: It needs a package that is not installed.
        """
        name, _, codec = text.partition(":")
        if name == BAYER:
            codec = codec or SMALLEST
            if traits_of(codec).is_lossy:
                raise BadEncoding(f"encoding {text[:60]!r}: mosaics travel without loss, as {name}:png or {name}:lz4")
            return cls(text, codec, is_mosaic=True)
        try:
            parse_encoding(name)
        except BadEncoding as error:
            raise BadEncoding(f"{error}, {BAYER} and {AUTO}") from error
        traits = traits_of(text)
        if traits.stream and name not in available_encodings():
            raise missing_extra(traits.package, "edge")
        quality = (parse_encoding(text).level or traits.default_level) if name == "jpeg" else None
        return cls(text, text, stream=traits.stream, quality=quality)

    @property
    def names(self) -> tuple[str, ...]:
        """What the worker's card must list."""
        return (*((BAYER,) if self.is_mosaic else ()), parse_encoding(self.codec).name)

    @property
    def expected(self) -> tuple[bool, float]:
        """Whether something is lost, and the share of a raw frame's bytes, to start with."""
        traits = traits_of(self.codec)
        return traits.is_lossy, traits.share * (_MOSAIC if self.is_mosaic else 1.0)

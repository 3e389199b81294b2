"""From a recorded frame to the tensor that travels."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from numpy.typing import NDArray

from mqinfer.bags.frame import Frame
from mqinfer.codecs import (
    Encoding,
    available_encodings,
    encode_tensor,
    encoded_image,
    parse_encoding,
    probe_image,
)
from mqinfer.edge_agent.bit_depths import BitDepths
from mqinfer.edge_agent.quality_ladder import FULL_QUALITY, QualityStep
from mqinfer.edge_agent.sinks.outputs import Picture
from mqinfer.edge_agent.statistics import EdgeStage
from mqinfer.images.decode import as_image, depth_name, is_depth, to_depth, to_rgb
from mqinfer.images.demosaic import Demosaic
from mqinfer.images.picture import CompressedImage
from mqinfer.images.placement import Placement
from mqinfer.images.resize import fit, place
from mqinfer.protocol.card import ImageContract, ModelCard
from mqinfer.protocol.datatypes import Datatype
from mqinfer.protocol.errors import BadEncoding, BadImage, ConfigError, MqinferError
from mqinfer.protocol.header import IMAGE_ENCODING
from mqinfer.protocol.types import EncodedTensor
from mqinfer.protocol.value import value_object

__all__ = ["PreparedFrame", "Preparer", "RecordStage", "choose_encoding", "choose_output_encoding"]

RecordStage = Callable[[EdgeStage, int], None]
"""Receives a stage and its duration in nanoseconds."""
_JPEG_QUALITY = 90
_COLOURS = "rgb8"
_RGB = {IMAGE_ENCODING: _COLOURS}
_LOSSLESS = "lz4"
_LOSSY = ("jpeg", "mask")
"""Codecs that can't carry distances."""
_MASKS = (Datatype.UINT8, Datatype.BOOL)


@value_object(eq=False)
class PreparedFrame:
    """A frame as it will be sent.

    Attributes:
        tensor: The model's image input.
        placement: Where the recorded frame lies in what the model will see.
        picture: Returns the recorded frame as RGB, for the sinks. One that was resized is decoded again by this call,
            so that waiting frames take no memory for their pixels; so is an untouched JPEG.
        bytes_raw: Size of the pixels before encoding.
    """

    tensor: EncodedTensor
    placement: Placement
    picture: Callable[[], Picture]
    bytes_raw: int


@dataclass(frozen=True, slots=True)
class Preparer:
    """Turns frames into the image input of one model. Thread-safe.

    Attributes:
        contract: Size and name of the input.
        encoding: Codec, such as `jpeg:90`.
        demosaic: For Bayer mosaics.
        bit_depths: True bits of 16-bit samples, by source.
    """

    contract: ImageContract
    encoding: str
    demosaic: Demosaic = Demosaic.BILINEAR
    bit_depths: BitDepths = field(default_factory=BitDepths)

    @property
    def quality(self) -> int | None:
        """JPEG quality of the frames; None if they do not travel as JPEG."""
        encoding = parse_encoding(self.encoding)
        return (encoding.level or _JPEG_QUALITY) if encoding.name == "jpeg" else None

    def prepare(self, frame: Frame, record: RecordStage, step: QualityStep = FULL_QUALITY) -> PreparedFrame:
        """Demosaic, resize and encode; a JPEG that fits as it is passes untouched, and depth stays depth.

        Args:
            frame: As recorded.
            record: Called with the duration of each stage.
            step: JPEG quality and size to send; the worker resizes a smaller picture to the model's size.

        Raises:
            BadImage: The frame cannot be decoded, or holds distances where the model takes colours, or the reverse.
            BadEncoding: The codec cannot encode pictures.
        """
        if isinstance(frame.image, CompressedImage) and step is FULL_QUALITY:
            untouched = self._pass_through(frame.image)
            if untouched:
                return untouched
        started = time.perf_counter_ns()
        pixels, kind = self._decode(frame)
        decoded = time.perf_counter_ns()
        picture = place(pixels, self.contract)
        height, width = picture.shape[:2]
        sent = fit(picture, max(1, round(width * step.scale)), max(1, round(height * step.scale)))
        resized = time.perf_counter_ns()
        encoding = self.encoding if step.quality is None else f"jpeg:{step.quality}"
        if kind != _COLOURS:
            sent, encoding = sent[:, :, None], _LOSSLESS if parse_encoding(encoding).name in _LOSSY else encoding
        tensor = encode_tensor(self.contract.input, sent[None], encoding, {IMAGE_ENCODING: kind})
        record(EdgeStage.DEMOSAIC, decoded - started)
        record(EdgeStage.RESIZE, resized - decoded)
        record(EdgeStage.ENCODE, time.perf_counter_ns() - resized)
        is_shown = picture is pixels and kind == _COLOURS
        recorded = (lambda: pixels) if is_shown else partial(self._shown, frame)
        placement = self.placement(pixels.shape[1], pixels.shape[0])
        return PreparedFrame(tensor, placement, recorded, picture.nbytes)

    def placement(self, width: int, height: int) -> Placement:
        """Return where a picture of a size, in pixels, lies in what the model sees."""
        size = self.contract.width or width, self.contract.height or height
        return Placement.of((width, height), size, self.contract.resize)

    def _decode(self, frame: Frame) -> tuple[NDArray[Any], str]:
        """Return a frame as the model takes it, colours or distances, and the encoding's name."""
        depth = is_depth(frame.image)
        if self.contract.takes_depth or (depth and not self.contract.input):  # kept until the card is there
            distances = to_depth(frame.image)
            return distances, depth_name(distances)
        if depth:
            raise BadImage(
                f"{frame.source} has depth pictures, and the model takes colours; "
                'if it does take depth, its model.toml needs colour = "depth" under [image]'
            )
        return to_rgb(frame.image, method=self.demosaic, bit_depth=self.bit_depths.of(frame)), _COLOURS

    def _shown(self, frame: Frame) -> Picture:
        pixels, kind = self._decode(frame)
        return to_rgb(as_image(pixels, kind))

    def _pass_through(self, image: CompressedImage) -> PreparedFrame | None:
        """Return the recorded JPEG bytes if their size fits and JPEG is the codec asked for, else None."""
        if parse_encoding(self.encoding).name != "jpeg" or "bayer" in image.format:
            return None
        try:
            info = probe_image(image.data)
        except MqinferError:
            return None  # the decoder reports the fault in more detail
        fits = (self.contract.width or info.width, self.contract.height or info.height) == (info.width, info.height)
        if info.format != "jpeg" or info.channels != 3 or info.progressive or not fits:
            return None
        tensor = encoded_image(self.contract.input, image.data, _RGB)
        placement = self.placement(info.width, info.height)
        return PreparedFrame(tensor, placement, lambda: to_rgb(image), info.width * info.height * 3)


def choose_encoding(wish: str | None, card: ModelCard) -> str:
    """Check that the worker decodes a codec, or choose one.

    Args:
        wish: Such as `jpeg:90`; None for JPEG at quality 90 if the worker decodes it, else lossless LZ4; so for depth.
        card: The model's.

    Raises:
        ConfigError: The codec is unknown, the worker cannot decode it, or it can't carry depth.
    """
    takes_depth = card.image is not None and card.image.takes_depth
    if wish is None:
        if takes_depth:
            return _LOSSLESS
        return "jpeg:90" if "jpeg" in card.encodings and "jpeg" in available_encodings() else "lz4"
    name = _parsed(wish).name
    if name not in card.encodings:
        raise ConfigError(
            f"the worker of {card.name!r} can't decode {name!r}; choose one of {', '.join(card.encodings)}"
        )
    if takes_depth and name in _LOSSY:
        left = ", ".join(each for each in card.encodings if each not in _LOSSY)
        raise ConfigError(f"{card.name!r} takes depth pictures, which {name!r} can't carry; choose one of {left}")
    return wish


def choose_output_encoding(wish: str | None, card: ModelCard, version: str | None = None) -> str | Mapping[str, str]:
    """Check a codec for the results, or choose one for each output.

    Args:
        wish: Such as `lz4`; None for `mask` if an output may be a class mask (UINT8 or BOOL), else `lz4`. Both are
            lossless for every output of bytes.
        card: The model's.
        version: Version asked for; if it is not the card's, its outputs are unknown and `lz4` is chosen.

    Returns:
        One codec for all outputs, or one for each by name.

    Raises:
        ConfigError: The codec is unknown.
    """
    if wish is not None:
        _parsed(wish)
        return wish
    if version not in (None, card.version) or "mask" not in card.encodings:
        return "lz4"
    chosen = {spec.name: "mask" if spec.datatype in _MASKS else "lz4" for spec in card.outputs}
    return chosen if "mask" in chosen.values() else "lz4"


def _parsed(wish: str) -> Encoding:
    try:
        return parse_encoding(wish)
    except BadEncoding as error:
        raise ConfigError(str(error)) from error

"""What happens between a placed picture and the tensor that travels: codec, quality step, and what a stream remembers.

Most encodings carry each frame on its own. Some need frames before it, which a worker keeps: a `ChainEncoder` holds
what the edge knows of them, one for each stream and input. A worker that lacks what a tensor is encoded against
replies `reference_lost`, and the edge sends that frame again on its own (`whole`), so no frame is lost.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from mqinfer.client.result import InferResult
from mqinfer.codecs import encode_tensor, encoded_image, parse_encoding, probe_image, traits_of
from mqinfer.codecs.chain import Addressed, ChainEncoder, StreamHalves
from mqinfer.edge_agent.frames.encoding import AUTO, FrameEncoding
from mqinfer.edge_agent.preparing.encoding_choice import EncodingCandidate, EncodingChoice
from mqinfer.edge_agent.preparing.quality_ladder import FULL_QUALITY, QualityStep
from mqinfer.images.picture import CompressedImage
from mqinfer.protocol.errors import MqinferError
from mqinfer.protocol.header import IMAGE_ENCODING
from mqinfer.protocol.types import EncodedTensor, Outcome, Scalar

COLOURS = "rgb8"
"""How pictures travel that are neither distances nor mosaics."""
LOSSLESS = "lz4"
"""Carries any array as it is."""


def listed_encodings(text: str) -> list[str]:
    """Return what `auto:png,jpeg:90` lists, or the one encoding that a text states."""
    name, _, listed = text.partition(":")
    return listed.split(",") if name == AUTO else [text]


class FrameEncoder:
    """Encodes the pictures of all streams of one model. Thread-safe.

    Args:
        encoding: How frames travel, such as `jpeg:90`; `auto:` and several, with commas between them, to choose one by
            what is measured.

    Raises:
        BadEncoding: There is no such encoding.
    """

    def __init__(self, encoding: str) -> None:
        self._encodings = {each: FrameEncoding.parse(each) for each in listed_encodings(encoding)}
        self._first, *others = self._encodings.values()
        self._is_choosing = bool(others)
        self._lock = threading.Lock()
        self._streams: dict[tuple[str, str, str], ChainEncoder] = {}
        self._choices: dict[str, EncodingChoice] = {}
        self.is_in_order = any(each.stream for each in self._encodings.values())
        """Whether the frames of a stream must be prepared and sent one after the other."""
        self.is_told = self._is_choosing or bool(self._first.stream)
        """Whether the encoder depends on what becomes of the frames."""

    @property
    def quality(self) -> int | None:
        """Highest JPEG quality of the frames; None if they do not travel as JPEG."""
        return max((each.quality for each in self._encodings.values() if each.quality), default=None)

    def choose(self, source: str, *, is_mosaic: bool) -> FrameEncoding:
        """Return how the next frame of a stream travels.

        Args:
            source: The stream.
            is_mosaic: Whether the frame is a Bayer mosaic that the worker may demosaic.
        """
        if not self._is_choosing:
            return self._first
        possible = [name for name, each in self._encodings.items() if is_mosaic or not each.is_mosaic]
        with self._lock:
            if source not in self._choices:
                candidates = [EncodingCandidate(name, *each.expected) for name, each in self._encodings.items()]
                self._choices[source] = EncodingChoice(candidates)
            return self._encodings[self._choices[source].next(time.monotonic(), possible or list(self._encodings))]

    def encoded(self, source: str, how: FrameEncoding, sizes: tuple[int, int], seconds: float) -> None:
        """Record what preparing a frame took, and its bytes: as it travels, and raw."""
        if self._is_choosing:
            with self._lock:
                self._choices[source].encoded(how.text, *sizes, seconds)

    def encode(  # noqa: PLR0913 - what a picture is, and how it is sent
        self,
        how: FrameEncoding,
        name: str,
        source: str,
        pixels: NDArray[Any],
        kind: str,
        *,
        step: QualityStep = FULL_QUALITY,
        further: Mapping[str, Scalar] | None = None,
        whole: bool = False,
    ) -> Addressed:
        """Encode a picture as it will travel.

        Args:
            how: From `choose`.
            name: The model's input.
            source: The stream.
            pixels: `[H, W, C]`, or `[H, W]` for distances and mosaics.
            kind: Their encoding, a ROS name.
            step: JPEG quality to send.
            further: Parameters of the tensor beyond its kind.
            whole: Whether any worker must be able to decode it, since the one that could is gone.

        Raises:
            BadEncoding: The codec cannot encode pictures of this kind.
        """
        codec = how.codec if step.quality is None else f"jpeg:{step.quality}"
        if kind != COLOURS:
            pixels, codec = pixels[:, :, None], LOSSLESS if traits_of(codec).is_lossy else codec
        parameters = {IMAGE_ENCODING: kind, **(further or {})}
        if how.stream and step.quality is None:
            return self._stream(how, how.stream, source, name).encode(name, pixels[None], parameters, whole=whole)
        return encode_tensor(name, pixels[None], codec, parameters), ""

    @staticmethod
    def untouched(
        how: FrameEncoding, name: str, image: CompressedImage, size: tuple[int | None, int | None]
    ) -> EncodedTensor | None:
        """Return the recorded JPEG bytes if their size fits and JPEG is the codec asked for, else None.

        Args:
            how: From `choose`.
            name: The model's input.
            image: As recorded.
            size: Width and height that the model takes; None for any.
        """
        if how.quality is None or "bayer" in image.format:
            return None
        try:
            info = probe_image(image.data)
        except MqinferError:
            return None  # the decoder reports the fault in more detail
        fits = (size[0] or info.width, size[1] or info.height) == (info.width, info.height)
        is_plain = info.format == "jpeg" and info.channels == 3 and not info.progressive
        return encoded_image(name, image.data, {IMAGE_ENCODING: COLOURS}) if fits and is_plain else None

    def on_result(self, source: str, how: FrameEncoding, tensors: Sequence[EncodedTensor], result: InferResult) -> None:
        """Learn from the outcome of a frame; called on any thread."""
        if how.stream:
            has_it = result.worker if result.outcome is Outcome.OK else None
            for tensor in tensors:
                self._stream(how, how.stream, source, tensor.name).settled(tensor, has_it)
        if self._is_choosing:
            times = result.timings
            with self._lock:
                choice = self._choices[source]
                if result.outcome is Outcome.OK:
                    worker = times.decode + times.preprocess
                    choice.answered(how.text, result.bytes_sent, times.transmission / 1e9, worker / 1e9)
                elif result.outcome is Outcome.EXPIRED and result.submitted:
                    choice.lost(result.bytes_sent, time.monotonic() - result.submitted)

    def _stream(self, how: FrameEncoding, state: StreamHalves, source: str, name: str) -> ChainEncoder:
        key = (how.text, source, name)
        with self._lock:
            if key not in self._streams:
                self._streams[key] = state.encoder(parse_encoding(how.codec).level)
            return self._streams[key]

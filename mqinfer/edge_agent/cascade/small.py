"""The small model of a cascade: loaded into this process, as often as there are replicas, or asked for in the cloud."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from weakref import finalize

from mqinfer.bags.frame import Frame
from mqinfer.codecs import decode_tensor, encode_tensor
from mqinfer.edge_agent.frames.table import PreparedFrame
from mqinfer.edge_agent.preparing.preparer import Preparer
from mqinfer.images.compressed import picture_size
from mqinfer.images.decode import to_rgb
from mqinfer.images.picture import RawImage
from mqinfer.images.placement import to_model_input
from mqinfer.judging.settings import SmallModel
from mqinfer.judging.thumbnail import SIDE, Thumbnail, thumbnail
from mqinfer.models.backend import Backend
from mqinfer.models.loading import load_model
from mqinfer.models.postprocess.stage import network_of
from mqinfer.models.repository import ModelVersion, Repository
from mqinfer.protocol.card import ColourOrder, ImageContract, ModelCard, Resize
from mqinfer.protocol.datatypes import Array
from mqinfer.protocol.errors import ConfigError
from mqinfer.protocol.header import IMAGE_ENCODING
from mqinfer.protocol.types import TensorSpec, Timings


def image_contract_of(card: ModelCard) -> ImageContract:
    """Return how a picture becomes the small model's only input.

    Raises:
        ConfigError: It has none, or further inputs.
    """
    if card.image is None or len(card.inputs) != 1:
        inputs = ", ".join(f"{spec.name} {spec.datatype}{list(spec.shape)}" for spec in card.inputs)
        raise ConfigError(f"small model {card.name!r}: expected one picture as its input; its inputs are {inputs}")
    return card.image


def shown_as(preparer: Preparer, frame: Frame) -> partial[Thumbnail]:
    """Return a call that decodes a recorded frame for the sinks."""
    return partial(to_rgb, frame.image, method=preparer.demosaic, bit_depth=preparer.bit_depths.of(frame))


def size_of(frame: Frame) -> tuple[int, int]:
    """Return width and height of a frame as it was recorded; `(0, 0)` if they can't be read."""
    image = frame.image
    return (image.width, image.height) if isinstance(image, RawImage) else picture_size(image)


@dataclass(frozen=True, slots=True)
class SmallInput:
    """Prepares frames for the small model. Thread-safe.

    Attributes:
        model: Its name.
        preparer: Of its image input, with a lossless codec.
    """

    model: str
    preparer: Preparer

    @property
    def takes_thumbnails(self) -> bool:
        """Whether the model's pictures are those that the difference detector compares."""
        contract = self.preparer.contract
        size = contract.width, contract.height
        return size == (SIDE, SIDE) and contract.resize is Resize.STRETCH and contract.colour is not ColourOrder.DEPTH

    def prepare(self, frame: Frame, small: Thumbnail | None) -> PreparedFrame:
        """Return a frame as the small model takes it; where that is its thumbnail, one that was made already is used.

        Raises:
            BadImage: The frame can't be decoded.
        """
        preparer = self.preparer
        if not (self.takes_thumbnails and preparer.framing.is_whole(frame)):
            return preparer.prepare(frame, lambda _, __: None)
        if small is None:
            small = thumbnail(frame.image, preparer.bit_depths.of(frame))
        tensor = encode_tensor(preparer.contract.input, small[None], preparer.encoding, {IMAGE_ENCODING: "rgb8"})
        return PreparedFrame((tensor,), preparer.placement(*size_of(frame)), shown_as(preparer, frame), small.nbytes)


class SmallNetwork:
    """The small model in this process. Thread-safe; as many callers at a time as there are replicas.

    Args:
        settings: Which model, and how often.
        repository: That has it.
        is_raw: Whether to return the network's own outputs, without the mask that `model.toml` makes of them.

    Raises:
        ConfigError: There is no such repository, or the model takes no picture.
        ModelNotLoadable: There is no such model, or it can't be loaded.
    """

    def __init__(self, settings: SmallModel, repository: Path, *, is_raw: bool) -> None:
        self.replicas = settings.replicas
        version = settings.version
        if version is not None and not version.isdecimal():
            raise ConfigError(f"small.version = {version!r}: expected a number, such as '3'")
        found = Repository(repository).find(settings.model, None if version is None else int(version))
        self._free: SimpleQueue[Backend] = SimpleQueue()
        with ExitStack() as resources:
            loaded = [self._load(found, resources, is_raw=is_raw) for _ in range(settings.replicas)]
            self.card = loaded[0]
            image_contract_of(self.card)
            self._input: TensorSpec = self.card.inputs[0]
            self._release = finalize(self, resources.pop_all().close)  # of one that was replaced, after its last frame
            self._release.atexit = False

    def _load(self, found: ModelVersion, resources: ExitStack, *, is_raw: bool) -> ModelCard:
        loaded = load_model(found)
        resources.callback(loaded.backend.close)
        self._free.put(network_of(loaded.backend) if is_raw else loaded.backend)
        return loaded.card

    def run(self, prepared: PreparedFrame) -> tuple[dict[str, Array], Timings]:
        """Run it on a prepared frame; return its outputs, and how long that took.

        Raises:
            ModelFailed: The engine raised.
            BadTensor: The picture does not fit the model.
        """
        tensor = prepared.tensors[0]
        began = time.perf_counter_ns()
        pixels = decode_tensor(tensor)[0]
        kind = str(tensor.parameters[IMAGE_ENCODING])
        array = to_model_input(pixels, kind, image_contract_of(self.card), self._input.datatype)
        ready = time.perf_counter_ns()
        backend = self._free.get()
        try:
            running = time.perf_counter_ns()
            outputs = backend.infer({tensor.name: array})
        finally:
            self._free.put(backend)
        queued, inference = running - ready, time.perf_counter_ns() - running
        return outputs, Timings(client_queue=queued, preprocess=ready - began, inference=inference)

    def close(self) -> None:
        """Release it."""
        self._release()

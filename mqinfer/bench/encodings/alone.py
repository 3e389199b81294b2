"""Encode and decode in this process: bytes, processor time of both sides, and the picture that the model gets."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from mqinfer.bags.frame import Frame
from mqinfer.broker.packets import buffer_size
from mqinfer.client.result import InferResult
from mqinfer.cloud_worker.serving.service import InferenceService
from mqinfer.edge_agent.preparing.preparer import Preparer
from mqinfer.models.loading import load_model
from mqinfer.models.repository import Repository
from mqinfer.protocol.card import ImageContract, Resize
from mqinfer.protocol.datatypes import Array
from mqinfer.protocol.types import Capture, InferRequest, Outcome

_MODEL, _INPUT = "picture", "x"
_WHITE = 255.0


@dataclass(frozen=True, slots=True)
class Alone:
    """One encoding without a network.

    Attributes:
        frame_bytes: Of the tensor of one frame, mean.
        edge_ms: Processor time of the edge for one frame, median: demosaicing, resizing, encoding.
        worker_ms: Processor time of the worker for one frame, median: decoding, demosaicing, resizing.
        psnr_db: Of the pictures that the model gets against those of `raw`; None where they are the same.
    """

    frame_bytes: float
    edge_ms: float
    worker_ms: float
    psnr_db: float | None


def measure_alone(preparer: Preparer, frames: Sequence[Frame], pictures: Sequence[Array]) -> Alone:
    """Pass frames through an edge's preparation and a worker's, one after the other, as if each was answered.

    Args:
        preparer: Of the encoding, for the contract of `pictures`.
        frames: Of one stream, in their order.
        pictures: What the model gets of each without loss, from `pictures_of`.
    """
    sizes, edge, worker, error = [], [], [], 0.0
    for expected, (found, size, times) in zip(pictures, _pass(preparer, frames), strict=True):
        sizes.append(size)
        edge.append(times[0])
        worker.append(times[1])
        error += float(np.mean(np.square(np.subtract(found, expected, dtype=np.float64))))
    noise = error / len(pictures)
    psnr = None if noise == 0 else 10 * math.log10(_WHITE**2 / noise)
    return Alone(float(np.mean(sizes)), 1e3 * float(np.median(edge)), 1e3 * float(np.median(worker)), psnr)


def pictures_of(contract: ImageContract, frames: Sequence[Frame]) -> list[Array]:
    """Return what a model gets of frames that travel without loss: UINT8 `[1, H, W, 3]`."""
    return [found for found, _, _ in _pass(Preparer(contract, "raw"), frames)]


def _pass(preparer: Preparer, frames: Sequence[Frame]) -> list[tuple[Array, int, tuple[float, float]]]:
    """Return of each frame the model's picture, the bytes that travelled, and the processor time of both sides."""
    found = []
    with TemporaryDirectory(prefix="mqinfer-bench-") as folder:
        service = _service(preparer.contract, Path(folder))
        for frame in frames:
            began = time.process_time()
            prepared = preparer.prepare(frame, lambda *_: None)
            sent = time.process_time()
            request = InferRequest("", _MODEL, prepared.tensors, capture=Capture(frame.source, frame.sequence))
            picture = service.prepare(request, "bench").inputs[prepared.tensors[0].name]
            times = sent - began, time.process_time() - sent
            preparer.on_result(frame, prepared, InferResult("", Outcome.OK, _MODEL, worker="bench"))
            size = sum(buffer_size(tensor.data) for tensor in prepared.tensors)
            found.append((picture.copy(), size, times))
    return found


def _service(contract: ImageContract, folder: Path) -> InferenceService:
    """Return a service whose model's input is the picture itself, of the contract's size and way of resizing."""
    version = folder / _MODEL / "1"
    version.mkdir(parents=True)
    shape = [-1, contract.height or -1, contract.width or -1, 3]
    declared = f'[[input]]\nname = "{contract.input or _INPUT}"\ndatatype = "UINT8"\nshape = {shape}\n'
    (version / "model.echo").write_text(declared, encoding="utf-8")
    if contract.resize is not Resize.STRETCH:
        text = f'[image]\nresize = "{contract.resize}"\nfill = {contract.fill}\n'
        (folder / _MODEL / "model.toml").write_text(text, encoding="utf-8")
    return InferenceService(load_model(Repository(folder).models()[0], device="cpu"))

"""JPEG decoding on an NVIDIA GPU by nvImageCodec (https://docs.nvidia.com/cuda/nvimagecodec/).

In a worker whose model runs on a GPU it takes the place of OpenCV, which leaves the CPU's cores to other work. The
pixels are copied to the host, where pictures become the model's input.

A test picture is decoded first: if the library has no driver or no device, or decodes other colours, OpenCV is used and
a warning is logged once. What the GPU can't decode later goes to OpenCV.
"""

from __future__ import annotations

import logging
import os
import threading
from importlib import import_module
from typing import Any

import numpy as np

from mqinfer.codecs.image import ImageCodec, ImageInfo, ReadPicture, probe_image, read_with_opencv
from mqinfer.logs import log_once, without_lines
from mqinfer.protocol.datatypes import Array
from mqinfer.protocol.errors import MqinferError
from mqinfer.protocol.types import Buffer

log = logging.getLogger("mqinfer.codecs")

_TOLERANCE = 8
"""Allowed difference, of 255: decoders round the cosine transform and enlarge the chroma planes differently."""

_OTHER_FORMATS = ("Failed to load nvjpeg2k ", "Failed to load nvtiff ", "Note: If using nvImageCodec")
"""What it prints about libraries for formats other than JPEG, which nobody misses."""


def jpeg_reader(device: str) -> ReadPicture:
    """Return the decoder of JPEGs for a process whose model runs on `device`: `cpu` or `cuda:N`, as in its card."""
    kind, _, index = device.partition(":")
    if kind != "cuda":
        return read_with_opencv
    os.environ.setdefault("PYNVIMGCODEC_VERBOSITY", "0")  # its errors come as exceptions; it would print them too
    try:
        with without_lines(_OTHER_FORMATS):
            nvimgcodec = import_module("nvidia.nvimgcodec")
    except ImportError:
        return read_with_opencv
    try:
        on_gpu = _OnGpu(nvimgcodec, int(index or 0))
        _try_out(on_gpu)
    except (RuntimeError, MqinferError) as error:
        reason = " ".join(str(error).split())
        log_once(log, logging.WARNING, "nvImageCodec can't be used on %s (%s): OpenCV decodes JPEGs", device, reason)
        return read_with_opencv
    log_once(log, logging.INFO, "JPEGs are decoded on %s by nvImageCodec %s", device, nvimgcodec.__version__)
    return on_gpu


class _OnGpu:
    """A decoder with its buffers on a GPU. A lock guards it, since nvImageCodec does not promise thread safety."""

    def __init__(self, nvimgcodec: Any, index: int) -> None:
        self._library = nvimgcodec
        self._lock = threading.Lock()
        # As OpenCV's libjpeg-turbo enlarges chroma planes, so that it makes no difference which of the two decoded.
        self._decoder = nvimgcodec.Decoder(device_id=index, max_num_cpu_threads=1, options=":fancy_upsampling=1")
        colours = {1: nvimgcodec.ColorSpec.GRAY, 3: nvimgcodec.DecodeParams().color_spec}  # the default is sRGB
        self._params = {
            channels: nvimgcodec.DecodeParams(apply_exif_orientation=False, color_spec=colour)
            for channels, colour in colours.items()
        }

    def __call__(self, data: Buffer, info: ImageInfo) -> Array | None:
        """Decode a picture; what the GPU can't decode goes to OpenCV, which raises the error for a corrupt one."""
        try:
            picture = self.decode(data, info)
        except RuntimeError as error:
            log.debug("nvImageCodec: %s", error)
            picture = None
        return read_with_opencv(data, info) if picture is None else picture

    def decode(self, data: Buffer, info: ImageInfo) -> Array | None:
        """Decode to [H, W, channels] in host memory; return None where nvImageCodec can't, or for CMYK.

        Raises:
            RuntimeError: It failed.
        """
        if info.channels not in self._params:
            return None
        with self._lock:
            stream = self._library.CodeStream(np.frombuffer(data, np.uint8))
            image = self._decoder.decode(stream, params=self._params[info.channels])
            host = None if image is None else image.cpu()
        return None if host is None else np.asarray(host)


def _try_out(on_gpu: _OnGpu) -> None:
    """Decode a colour gradient and compare it with what OpenCV decodes.

    Raises:
        RuntimeError: It can't be decoded, or its pixels differ.
        MissingExtra: OpenCV is not installed.
    """
    ramp = np.arange(0, 256, 8, dtype=np.uint8)
    gradient = np.stack(np.broadcast_arrays(ramp[:, None], ramp[None], np.uint8(128)), axis=2)
    data = ImageCodec("jpeg").encode("trial", gradient, 95).data
    info = probe_image(data)
    mine, reference = on_gpu.decode(data, info), read_with_opencv(data, info)
    if mine is None or reference is None or mine.shape != reference.shape:
        raise RuntimeError("it can't decode a plain JPEG")
    difference = int(np.abs(mine.astype(int) - reference.astype(int)).max())
    if difference > _TOLERANCE:
        raise RuntimeError(f"its pixels differ from OpenCV's by {difference}")

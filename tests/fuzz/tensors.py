"""Encoded tensors and pictures: bytes behind a short head that says what is declared."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from struct import Struct
from types import SimpleNamespace
from typing import Any

import cv2  # noqa: F401  here, so that its import does not count as the first picture's memory

from mqinfer.cloud_worker.serving.service import InferenceService
from mqinfer.codecs import decode_tensor, encoded_image, probe_image
from mqinfer.codecs.chain import ChainDecoder
from mqinfer.codecs.h264 import H264Decoder
from mqinfer.codecs.image import check_complete
from mqinfer.protocol.card import CardParameters, ColourOrder, ImageContract, ModelCard
from mqinfer.protocol.datatypes import Datatype
from mqinfer.protocol.errors import MqinferError
from mqinfer.protocol.header import CHAIN, IMAGE_ENCODING, POSITION, RAW_SIZE
from mqinfer.protocol.limits import Limits
from mqinfer.protocol.types import EncodedTensor, InferRequest, TensorSpec

__all__ = ["ENCODINGS", "HEAD", "NEXT", "SIZES", "head", "picture", "pixels", "probe", "tensor_of", "video"]

HEAD = Struct("<BBHHHI")
"""Datatype, number of axes, three of them (others are 1), and the parameter `raw_size`."""
_LIMITS = Limits(tensor_bytes=4 << 20, image_pixels=1 << 20)
_DATATYPES = tuple(Datatype)
SIZES = ((32, 48), (48, 32), (31, 47), (1, 1), (1024, 1024), (1 << 15, 1 << 15))
"""Heights and widths that a picture of video may be declared with; it begins with the number of one."""
NEXT = b"next picture"
"""Between two pictures of a stream."""
_SPEC = TensorSpec("x", Datatype.FP32, (-1, 7, 9, 3))
_CONTRACTS = (ImageContract("x", 9, 7), ImageContract("x", 9, 7, ColourOrder.BGR, mean=(1.0, 2.0, 3.0)))
ENCODINGS = (
    *("rgb8", "bgr8", "mono8", "mono16", "rgb16", "bgr16", "rgba8", "bgra8", "bayer_rggb8", "bayer_grbg16", "16UC1"),
    *("8UC3", "32FC1", "yuv422", "yuv422_yuy2", "nv21", "nv24", "64FC2", "8UC9", "", "no such"),
)
"""What a tensor of raw samples may say that it is."""


def _service(contract: ImageContract) -> InferenceService:
    """Set up a worker's service for a model that takes pictures; nothing runs it."""
    card = ModelCard(
        name="m",
        versions=("1",),
        platform="p",
        inputs=(_SPEC,),
        parameters=CardParameters(max_batch_size=1, image=contract),
    )
    model: Any = SimpleNamespace(card=card, backend=None, signatures={})
    return InferenceService(model, _LIMITS)


_SERVICES = tuple(map(_service, _CONTRACTS))


def head(datatype: Datatype, shape: tuple[int, ...], raw_size: int = 0) -> bytes:
    """Write the head of an input."""
    axes = (*shape, 1, 1, 1)[:3]
    return HEAD.pack(_DATATYPES.index(datatype), len(shape), *axes, raw_size)


def tensor_of(encoding: str) -> Callable[[bytes], None]:
    """Make the target of a codec: a tensor of any declared datatype and shape."""

    def run(data: bytes) -> None:
        if len(data) < HEAD.size:
            return
        kind, count, *axes, raw_size = HEAD.unpack_from(data)
        shape = (*axes, *[1] * 20)[: count % 20]
        datatype = _DATATYPES[kind % len(_DATATYPES)]
        parameters = {RAW_SIZE: raw_size} if raw_size else {}
        tensor = EncodedTensor("x", datatype, shape, encoding, memoryview(data)[HEAD.size :], parameters)
        array = decode_tensor(tensor, _LIMITS)
        assert array.shape == shape

    return run


def picture(data: bytes) -> None:
    """Wrap a JPEG or PNG as a client does, and decode it as a worker does."""
    tensor = encoded_image("x", data)
    array = decode_tensor(tensor, _LIMITS)
    assert array.shape == tensor.shape


def pixels(data: bytes) -> None:
    """Make a model's input of raw samples in an encoding that ROS knows, as a worker does."""
    if len(data) < HEAD.size:
        return
    kind, count, *axes, name = HEAD.unpack_from(data)
    encoding = ENCODINGS[name % len(ENCODINGS)]
    parameters = {IMAGE_ENCODING: encoding}
    datatype = _DATATYPES[kind % len(_DATATYPES)]
    tensor = EncodedTensor("x", datatype, (1, *axes)[: count % 5], "raw", data[HEAD.size :], parameters)
    prepared = _SERVICES[name % 2].prepare(InferRequest("r", "m", (tensor,)))
    assert prepared.inputs["x"].shape == (1, 7, 9, 3)


def video(data: bytes) -> None:
    """Decode the pictures of a stream as a worker does, one behind the other, whatever became of those before."""
    decoder = ChainDecoder(H264Decoder, ahead_s=0)
    for position, each in enumerate(data.split(NEXT)[:8]):
        height, width = SIZES[each[0] % len(SIZES)] if each else SIZES[0]
        shape = (1, height, width, 3)
        tensor = EncodedTensor("x", Datatype.UINT8, shape, "h264", each[1:], {CHAIN: 1, POSITION: position})
        with suppress(MqinferError):
            assert decoder.decode(tensor, _LIMITS).shape == shape


def probe(data: bytes) -> None:
    """Look at a picture without decoding it."""
    check_complete(data, probe_image(data))

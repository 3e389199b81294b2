"""A Bayer mosaic that the worker demosaics gives the model the picture that demosaicing at the edge gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from mqinfer.bags.frame import Frame
from mqinfer.cloud_worker.serving.service import InferenceService
from mqinfer.codecs import encode_tensor
from mqinfer.edge_agent.frames.table import PreparedFrame
from mqinfer.edge_agent.preparing.choices import choose_encoding
from mqinfer.edge_agent.preparing.framing import BitDepths
from mqinfer.edge_agent.preparing.preparer import Preparer
from mqinfer.edge_agent.preparing.quality_ladder import QualityStep
from mqinfer.images.picture import CompressedImage, RawImage
from mqinfer.images.pixel_format import Demosaic
from mqinfer.models.loading import LoadedModel
from mqinfer.protocol.card import with_parameters
from mqinfer.protocol.datatypes import Array
from mqinfer.protocol.errors import BadEncoding, BadImage, BadTensor, ConfigError
from mqinfer.protocol.types import InferRequest, Scalar

Gated = Callable[..., tuple[LoadedModel, Any]]
ROWS, COLUMNS = 12, 20


def image_of(pattern: str, bits: int, used: int) -> RawImage:
    """Make a mosaic whose samples use so many bits, in rows with padding."""
    samples = np.random.default_rng(3).integers(0, 1 << used, (ROWS, COLUMNS + 2)).astype(f"u{bits // 8}")
    step = samples.strides[0]
    return RawImage(f"bayer_{pattern}{bits}", ROWS, COLUMNS, step, is_bigendian=False, data=samples.tobytes())


def frame_of(image: RawImage | CompressedImage) -> Frame:
    """Put a picture into a frame."""
    return Frame("/camera", 0, 1, 2, "front", image)


def prepared(service: InferenceService, encoding: str, image: RawImage | CompressedImage, **how: Any) -> PreparedFrame:
    """Prepare a picture for the model of a service."""
    contract = service.model.card.image
    assert contract is not None
    preparer = Preparer(contract, choose_encoding(encoding, service.model.card), **how)
    return preparer.prepare(frame_of(image), lambda *_: None)


def seen(service: InferenceService, frame: PreparedFrame, **parameters: Scalar) -> Array:
    """Return what the model sees of a frame, with further parameters of its tensor."""
    tensor = frame.tensors[0]
    tensor = structs.replace(tensor, parameters={**tensor.parameters, **parameters})
    return service.prepare(InferRequest("1", "echo", (tensor,))).inputs["x"]


@pytest.fixture
def small(gated: Gated) -> InferenceService:
    """A model that takes pictures of another size, with margins."""
    config = '[image]\nresize = "letterbox"\n'
    return InferenceService(gated("echo", ("x", "FP32", [-1, 8, 8, 3]), config=config)[0])


@pytest.mark.parametrize("method", list(Demosaic))
@pytest.mark.parametrize(("bits", "used"), [(8, 8), (16, 12), (16, 16)])
@pytest.mark.parametrize("codec", ["bayer", "bayer:lz4", "bayer:shuffle-lz4", "bayer:raw"])
def test_the_model_sees_the_same_picture(
    small: InferenceService, method: Demosaic, bits: int, used: int, codec: str
) -> None:
    """Method and bit depth travel with the mosaic, which is the only thing that is sent, in its own size."""
    for pattern in ("rggb", "bggr", "gbrg", "grbg"):
        image = image_of(pattern, bits, used)
        how = {"demosaic": method, "bit_depths": BitDepths(used)}
        at_worker, at_edge = prepared(small, codec, image, **how), prepared(small, "raw", image, **how)
        assert at_worker.tensors[0].shape == (1, ROWS, COLUMNS, 1)
        assert at_worker.placement == at_edge.placement
        np.testing.assert_array_equal(seen(small, at_worker), seen(small, at_edge))
        np.testing.assert_array_equal(at_worker.picture(), at_edge.picture())


def test_a_compressed_mosaic_travels_as_recorded(small: InferenceService) -> None:
    """One that a driver has compressed as PNG is a mosaic like any other."""
    image = image_of("gbrg", 8, 8)
    samples = np.frombuffer(image.data, np.uint8).reshape(ROWS, -1)[:, :COLUMNS]
    png = bytes(encode_tensor("x", samples, "png").data)
    compressed = CompressedImage("bayer_gbrg8; png compressed bayer_gbrg8", png)
    found = prepared(small, "bayer", compressed)
    assert found.tensors[0].parameters["image_encoding"] == "bayer_gbrg8"
    np.testing.assert_array_equal(seen(small, found), seen(small, prepared(small, "raw", image)))


def test_other_pictures_travel_as_pixels(small: InferenceService) -> None:
    """`bayer` changes nothing for frames that are no mosaics, and a lower size of the quality ladder sends pixels."""
    pixels = np.zeros((8, 8, 3), np.uint8)
    rgb = RawImage("rgb8", 8, 8, 24, is_bigendian=False, data=pixels.tobytes())
    assert prepared(small, "bayer:lz4", rgb).tensors[0].shape == (1, 8, 8, 3)
    contract = small.model.card.image
    assert contract is not None
    half = Preparer(contract, "bayer").prepare(
        frame_of(image_of("rggb", 8, 8)), lambda *_: None, QualityStep(scale=0.5)
    )
    assert half.tensors[0].shape == (1, 4, 4, 3)


def test_what_can_not_be_demosaiced_is_refused(small: InferenceService) -> None:
    """A method that does not exist, and bit depths that no sample has, name the value and what is expected."""
    frame = prepared(small, "bayer", image_of("rggb", 16, 12))
    with pytest.raises(BadTensor, match="demosaic is 'nearest'; expected one of bilinear, edge-aware, vng"):
        seen(small, frame, demosaic="nearest")
    with pytest.raises(BadImage, match="a bit depth of 17 is not possible for bayer_rggb16: expected 8 to 16"):
        seen(small, frame, bit_depth=17)
    with pytest.raises(BadTensor, match="bit_depth is 'twelve'; expected a number from 8 to 16"):
        seen(small, frame, bit_depth="twelve")


def test_a_worker_that_takes_no_mosaics(small: InferenceService) -> None:
    """Without `bayer` in the card nothing is sent as a mosaic; lossy codecs can't carry one."""
    card = with_parameters(small.model.card, encodings=("raw", "png"))
    with pytest.raises(ConfigError, match="can't decode 'bayer'; choose one of raw, png"):
        choose_encoding("bayer:png", card)
    with pytest.raises(ConfigError, match="mosaics travel without loss, as bayer:png or bayer:lz4"):
        choose_encoding("bayer:jpeg:90", small.model.card)
    with pytest.raises(BadEncoding, match="unknown encoding 'no'"):
        Preparer(small.model.card.image, "bayer:no")  # type: ignore[arg-type] # it has one

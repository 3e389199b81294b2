"""The zoo's networks at small sizes: shapes, published parameter counts, the same weights for the same seed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mqinfer.errors import MissingExtra
from mqinfer.lab.zoo import small_models
from mqinfer.lab.zoo.networks.mobilenet_v3 import Size, mobilenet_v3
from mqinfer.lab.zoo.networks.segmentation import deeplab_v3_plus, encoder_decoder, mobilenet_v3_segmentation
from mqinfer.lab.zoo.onnx_graph import OnnxGraph
from mqinfer.protocol.datatypes import Array

HEIGHT, WIDTH = 96, 128
FRAME = (1, 608, 968)

Make = Callable[[], OnnxGraph]
Build = Callable[..., Any]

MAKERS = [small_models.small_16, small_models.frame_mask, small_models.classifier_224, small_models.vae_like]


def run(path: Path, array: Array) -> dict[str, Any]:
    """Run an ONNX model on its one input and return the outputs by name."""
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = 2
    session = onnxruntime.InferenceSession(path, settings, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, {"input": array}), strict=True))


def written(make: Make, folder: Path) -> Path:
    """Write a model into a folder."""
    path = folder / "model.onnx"
    make().write(path)
    return path


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize(
    ("make", "shape", "outputs"),
    [
        (small_models.small_16, (16,), {"output": (16,)}),
        (small_models.classifier_224, (3, 224, 224), {"output": (1000,)}),
        (small_models.vae_like, (100, 3), {"output": (100, 3), "score": ()}),
    ],
)
def test_batches(
    make: Make, shape: tuple[int, ...], outputs: dict[str, tuple[int, ...]], batch: int, tmp_path: Path
) -> None:
    """The batch axis is dynamic, outputs are finite float32, and rows are independent."""
    rows = np.random.default_rng(1).random((batch, *shape), np.float32)
    path = written(make, tmp_path)
    results = run(path, rows)
    assert {name: array.shape for name, array in results.items()} == {
        name: (batch, *rest) for name, rest in outputs.items()
    }
    alone = run(path, rows[-1:])
    for name, array in results.items():
        assert array.dtype == np.float32
        assert np.isfinite(array).all()
        np.testing.assert_allclose(array[-1:], alone[name], rtol=1e-4, atol=1e-4)


def test_frame_mask_is_the_green_of_each_block(tmp_path: Path) -> None:
    """Each pixel of the mask is the upper half of the green byte at the centre of its 8x8 block."""
    picture = np.random.default_rng(2).integers(0, 256, (*FRAME, 3), np.uint8)
    mask = run(written(small_models.frame_mask, tmp_path), picture)["output"]
    expected = (picture[:, 4::8, 4::8, 1] >> 4).repeat(8, axis=1).repeat(8, axis=2)
    assert mask.dtype == np.uint8
    np.testing.assert_array_equal(mask, expected)


def test_vae_scores_by_error_and_divergence(tmp_path: Path) -> None:
    """The score is at least the squared error, since a divergence is never negative; unusual inputs score more."""
    events = np.random.default_rng(3).normal(size=(2, 100, 3)).astype(np.float32)
    events[1] *= 5
    result = run(written(small_models.vae_like, tmp_path), events)
    error = ((events - result["output"]) ** 2).sum(axis=(1, 2))
    assert (result["score"] >= error).all()
    assert result["score"][1] > result["score"][0]


@pytest.mark.parametrize("make", MAKERS)
def test_onnx_missing(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without onnx, the error names the extra that brings it."""
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(MissingExtra, match=r"install .*\[bench\]"):
        make()


@pytest.fixture(scope="module")
def keras() -> Any:
    """Keras, imported as mqinfer imports it."""
    from mqinfer.lab.zoo.layers import keras as imported

    return imported()


def trainable(model: Any) -> int:
    """Return the number of trainable weights."""
    return sum(int(np.prod(variable.shape)) for variable in model.trainable_variables)


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.parametrize(("size", "count"), [("small", 927_008), ("large", 2_971_952)])
def test_backbone_has_the_published_number_of_weights(keras: Any, size: Size, count: int) -> None:
    """The number is that of torchvision's `mobilenet_v3_*().features`, for any output stride."""
    picture = keras.Input((HEIGHT, WIDTH, 3))
    for output_stride in (8, 32):
        low, last = mobilenet_v3(picture, size, output_stride=output_stride)
        assert trainable(keras.Model(picture, last)) == count
        assert low.shape[1:3] == (HEIGHT // 4, WIDTH // 4)
        assert last.shape[1:3] == (HEIGHT // output_stride, WIDTH // output_stride)


@pytest.mark.slow
def test_strides_become_dilations(keras: Any) -> None:
    """Blocks after the first dropped stride have a dilation of two, those after the second of four."""
    picture = keras.Input((HEIGHT, WIDTH, 3))
    _, last = mobilenet_v3(picture, "large")
    layers = keras.Model(picture, last).layers
    rates = [layer.dilation_rate[0] for layer in layers if isinstance(layer, keras.layers.DepthwiseConv2D)]
    assert rates == [1] * 7 + [2] * 6 + [4] * 2


@pytest.mark.slow
def test_narrow_tail(keras: Any) -> None:
    """Half a tail has half as many last features."""
    picture = keras.Input((HEIGHT, WIDTH, 3))
    _, last = mobilenet_v3(picture, "large", tail=0.5)
    assert last.shape[-1] == 480


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.parametrize(
    ("build", "megabytes"),
    [
        (lambda *shape: mobilenet_v3_segmentation("small", *shape), 4.6),
        (lambda *shape: mobilenet_v3_segmentation("large", *shape), 8.6),
        (deeplab_v3_plus, 49.7),
        (encoder_decoder, 29.4),
    ],
    ids=["small", "large", "deeplab", "encoder-decoder"],
)
def test_segmentation_networks(keras: Any, build: Build, megabytes: float) -> None:
    """Logits have full size, for odd sizes too; the number of weights fits the files, within a tenth."""
    model = build(HEIGHT + 8, WIDTH + 8)
    pixels = np.random.default_rng(4).random((2, HEIGHT + 8, WIDTH + 8, 3), np.float32)
    logits = np.asarray(model(pixels, training=False))
    assert logits.shape == (2, HEIGHT + 8, WIDTH + 8, 19)
    assert logits.dtype == np.float32
    assert np.isfinite(logits).all()
    assert model.count_params() * 4e-6 == pytest.approx(megabytes, rel=0.1)
    assert isinstance(model, keras.Model)


@pytest.mark.full
@pytest.mark.slow
def test_the_same_weights_each_time() -> None:
    """They come from one seed."""
    first, again = (mobilenet_v3_segmentation("small", HEIGHT, WIDTH).get_weights() for _ in range(2))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))

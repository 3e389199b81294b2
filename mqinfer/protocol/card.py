"""What a model says of itself: the card that workers publish, retained, as JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from mqinfer.protocol.types import TensorSpec

__all__ = ["ClassInfo", "ColourOrder", "ImageContract", "Layout", "ModelCard"]


class ColourOrder(StrEnum):
    """Order of the channels that a model wants."""

    RGB = "rgb"
    BGR = "bgr"
    MONO = "mono"


class Layout(StrEnum):
    """Order of the axes that a model wants (Triton: FORMAT_NHWC, FORMAT_NCHW)."""

    NHWC = "NHWC"
    NCHW = "NCHW"
    NHW = "NHW"


@dataclass(frozen=True, slots=True)
class ImageContract:
    """How a picture becomes one of the model's inputs.

    The value that the model sees is `(pixel * scale - mean) / std`, with `pixel` of 0 to 255; the sender does the
    resizing, the worker the rest, so that uint8 travels.

    Attributes:
        input: Name of the input.
        width: In pixels; None where the model takes any.
        height: In pixels; None where the model takes any.
        colour: Order of the channels.
        layout: Order of the axes.
        scale: Factor on the pixel.
        mean: Subtracted after scaling: one number a channel, or one for all.
        std: Divided by after that: one number a channel, or one for all.
    """

    input: str
    width: int | None = None
    height: int | None = None
    colour: ColourOrder = ColourOrder.RGB
    layout: Layout = Layout.NHWC
    scale: float = 1.0
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)


@dataclass(frozen=True, slots=True)
class ClassInfo:
    """A class of a classifier or of a segmentation mask: its name, and the RGB colour to draw it in."""

    name: str
    colour: tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class ModelCard:
    """Model metadata in the Open Inference Protocol's words, and what else a sender needs to know.

    Attributes:
        name: The model.
        version: The version that this card describes.
        versions: All versions being served.
        platform: `tensorflow_graphdef`, `tensorflow_savedmodel`, `onnx_onnxv1`, …
        inputs: With their batch axis, -1 where any size will do.
        outputs: Likewise.
        max_batch_size: 0 where the model has no batch axis (Triton's meaning).
        encodings: Codecs that the worker can decode.
        image: How a picture becomes an input, or None where the model takes no pictures.
        classes: Of the mask or of the classifier, in the order of their numbers.
        model_hash: Content hash of the model's files, `sha256:` and 64 hex digits.
        precision: Of the computation, such as `fp32`.
        backend: What runs it, with its version.
        device: What it really runs on, such as `cpu` or `cuda:0`.
    """

    name: str
    version: str
    versions: tuple[str, ...]
    platform: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    max_batch_size: int = 0
    encodings: tuple[str, ...] = ("raw",)
    image: ImageContract | None = None
    classes: tuple[ClassInfo, ...] = field(default=())
    model_hash: str = ""
    precision: str = "fp32"
    backend: str = ""
    device: str = "cpu"

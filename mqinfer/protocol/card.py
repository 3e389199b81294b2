"""Model cards: the metadata of a model, which its workers publish retained, as JSON.

The JSON is the Open Inference Protocol's model metadata, with everything else under `parameters`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any

from msgspec import Meta, Struct, to_builtins
from msgspec.structs import replace

from mqinfer.protocol.datatypes import Datatype
from mqinfer.protocol.decoding import check, parse_json, prepare, write_json
from mqinfer.protocol.errors import LimitExceeded
from mqinfer.protocol.limits import DEFAULT_LIMITS
from mqinfer.protocol.topics import Topics, check_same
from mqinfer.protocol.types import Buffer, Count, Finite, Positive, TensorSpec

MAX_CARD_BYTES = 1 << 20
BAYER = "bayer"
"""Among the encodings of a card: the worker demosaics as a picture's parameters `demosaic` and `bit_depth` say."""
POINTS_WITH_BATCH = 3
"""Axes of an input for points that has a batch axis, whatever the model's `max_batch_size` is."""
_Channels = Annotated[tuple[Finite, ...], Meta(min_length=1)]
_Level = Annotated[int, Meta(ge=0, le=255)]


class ColourOrder(StrEnum):
    """What the channels are that a model expects, in their order."""

    RGB = "rgb"
    BGR = "bgr"
    MONO = "mono"
    DEPTH = "depth"
    """One channel: distances in metres."""


class Layout(StrEnum):
    """Order of the axes that a model expects (Triton: FORMAT_NHWC, FORMAT_NCHW)."""

    NHWC = "NHWC"
    NCHW = "NCHW"
    NHW = "NHW"


class Resize(StrEnum):
    """How a picture gets the size of the model's input."""

    STRETCH = "stretch"
    """Each axis by its own factor."""
    LETTERBOX = "letterbox"
    """Both axes by the same factor, centred, with a margin on two sides."""
    CROP = "crop"
    """Both axes by the same factor, centred, with two sides cut off."""


class ImageContract(Struct, frozen=True):
    """How a picture becomes one of the model's inputs.

    The model gets `(pixel * scale - mean) / std`, with `pixel` from 0 to 255, or in metres for depth. The sender
    resizes and the worker does the rest, so that uint8 travels, or depth as it was recorded.

    Attributes:
        input: Name of the input.
        width: In pixels; None where the model takes any.
        height: In pixels; None where the model takes any.
        colour: Order of the channels, or depth.
        layout: Order of the axes.
        scale: Factor on the pixel.
        mean: Subtracted after scaling: one number a channel, or one for all.
        std: Divisor after that: one number a channel, or one for all.
        resize: How a picture of another size fits in.
        fill: Grey level of a letterbox's margins, before scaling; those of depth are 0.
    """

    input: str
    width: Positive | None = None
    height: Positive | None = None
    colour: ColourOrder = ColourOrder.RGB
    layout: Layout = Layout.NHWC
    scale: Finite = 1.0
    mean: _Channels = (0.0,)
    std: _Channels = (1.0,)
    resize: Resize = Resize.STRETCH
    fill: _Level = 114

    @property
    def channels(self) -> int:
        """Number of channels."""
        return 1 if self.colour in {ColourOrder.MONO, ColourOrder.DEPTH} else 3


class NotFinite(StrEnum):
    """What becomes of a point with NaN or infinity in one of its fields."""

    DROP = "drop"
    """It is left out."""
    PAD = "pad"
    """Padding stands in its place."""
    KEEP = "keep"
    """It stays as it is."""


class PointsContract(Struct, frozen=True, omit_defaults=True):
    """How points, such as those of a laser, or the last samples of an IMU become one of the model's inputs.

    The sender does all of it: of more points it takes number `i * there // count` for each `i` below `count`, of more
    samples the last ones, and puts padding behind fewer.

    Attributes:
        input: Name of the input, `[points, fields]` behind a batch axis where the model has one.
        fields: Names of a point's fields, in the order of the input.
        count: How many points it takes; None for as many as there are.
        padding: Value of all fields of a point that is not there.
        mask: Name of an input, `[points]`, which is 1 for each point and 0 for padding; empty for none.
        not_finite: What becomes of a point with NaN or infinity in one of these fields.
        fields_first: Whether the input is `[fields, points]`.
    """

    input: str
    fields: Annotated[tuple[str, ...], Meta(min_length=1)]
    count: Positive | None = None
    padding: Finite = 0.0
    mask: str = ""
    not_finite: NotFinite = NotFinite.DROP
    fields_first: bool = False


class ClassInfo(Struct, frozen=True, omit_defaults=True):
    """A class of a classifier, a detector or a segmentation mask.

    Attributes:
        name: Of the class.
        colour: RGB, to draw it in.
        keypoints: Names of its objects' key points, in their order; empty for COCO's, where there are 17.
        skeleton: Lines between key points, each by two of these names.
    """

    name: str
    colour: tuple[_Level, _Level, _Level]
    keypoints: tuple[str, ...] = ()
    skeleton: tuple[tuple[str, str], ...] = ()


class SignatureTensor(Struct, frozen=True):
    """An input or output of a signature, as the model's file states it.

    Attributes:
        name: By which requests and replies name it.
        datatype: Open Inference Protocol datatype.
        shape: -1 where any size will do; None where the file leaves the number of axes open.
        tensor: Its name in the model's graph, such as `x:0`.
    """

    name: str
    datatype: Datatype
    shape: tuple[Annotated[int, Meta(ge=-1)], ...] | None
    tensor: str = ""


class Signature(Struct, frozen=True):
    """One of the functions of a SavedModel; the request parameter `signature_name` chooses it.

    Attributes:
        name: Such as `serving_default`.
        method: Its `method_name`, such as `tensorflow/serving/predict`.
        inputs: What it takes.
        outputs: What it returns.
        max_batch_size: The most rows that a request may have; 0 where it has no batch axis.
    """

    name: str
    method: str = ""
    inputs: tuple[SignatureTensor, ...] = ()
    outputs: tuple[SignatureTensor, ...] = ()
    max_batch_size: Count = 0


class CardParameters(Struct, frozen=True, kw_only=True):
    """What a sender needs beyond the Open Inference Protocol's model metadata.

    Attributes:
        version: The version that this card describes; None for the last one of those that are served.
        max_batch_size: 0 where the model has no batch axis (Triton's meaning).
        encodings: Codecs that the worker can decode, and `bayer` among them where it takes mosaics with their
            parameters.
        model_hash: Content hash of the model's files, `sha256:` and 64 hex digits.
        precision: Of the computation, such as `fp32`.
        backend: The engine that runs it, with its version.
        device: The device that it runs on, such as `cpu` or `cuda:0`.
        image: How a picture becomes an input, or None where the model has no input for pictures.
        images: Where it has several, those of all in the order of a request's pictures; the first is `image`.
        classes: Classes of the mask or of the classifier, in the order of their numbers.
        signatures: Of a SavedModel, those that can be asked for; first the one that runs without `signature_name`.
        labels: Versions by label: `stable`, `canary`, and any others that the model's folder names.
        traffic: Per cent of the requests that name no version by version; empty where all go to the default one.
        remote_steps: Of an ensemble, the models that it has other workers run, those that these ask for included.
        points: How points beside a picture become inputs, in the order of a request's.
    """

    version: str | None = None
    max_batch_size: Count = 0
    encodings: tuple[str, ...] = ("raw",)
    model_hash: str = ""
    precision: str = "fp32"
    backend: str = ""
    device: str = "cpu"
    image: ImageContract | None = None
    images: tuple[ImageContract, ...] = ()
    classes: tuple[ClassInfo, ...] = ()
    signatures: tuple[Signature, ...] = ()
    labels: Mapping[str, str] = {}
    traffic: Mapping[str, int] = {}
    remote_steps: tuple[str, ...] = ()
    points: tuple[PointsContract, ...] = ()


class ModelCard(Struct, frozen=True, kw_only=True):
    """The Open Inference Protocol's model metadata, and what else a sender needs; its fields are those of the JSON.

    Attributes:
        name: The model.
        versions: All versions that are served.
        platform: `tensorflow_graphdef`, `tensorflow_savedmodel`, `onnx_onnxv1`, …
        inputs: With their batch axis, -1 where any size will do.
        outputs: Likewise.
        parameters: Everything else.
    """

    name: str
    versions: tuple[str, ...] = ()
    platform: str
    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    parameters: CardParameters = CardParameters()

    @property
    def version(self) -> str:
        """The version that this card describes."""
        known = self.parameters.version
        return "".join(self.versions[-1:]) if known is None else known

    @property
    def max_batch_size(self) -> int:
        """The most rows that a request may have; 0 where the model has no batch axis."""
        return self.parameters.max_batch_size

    @property
    def least_axes(self) -> dict[str, int]:
        """The inputs that take any number of axes, which `inputs` can't say, each with the fewest that it takes."""
        own = self.parameters.signatures[0].inputs if self.parameters.signatures else ()
        return {tensor.name: int(self.max_batch_size > 0) for tensor in own if tensor.shape is None}

    @property
    def image(self) -> ImageContract | None:
        """How a picture becomes an input, or None where the model has no input for pictures."""
        return self.parameters.image

    @property
    def pictures(self) -> tuple[ImageContract, ...]:
        """The contracts of all inputs that take pictures."""
        return self.parameters.images or ((self.image,) if self.image is not None else ())

    @property
    def classes(self) -> tuple[ClassInfo, ...]:
        """Classes of the mask or of the classifier, in the order of their numbers."""
        return self.parameters.classes


_OPTIONAL = ("image", "images", "classes", "signatures", "labels", "traffic", "remote_steps", "points")
"""The parameters that a card leaves out where there are none."""


def card_to_json(card: ModelCard) -> bytes:
    """Return a card as JSON.

    Raises:
        BadEnvelope: A value can't be written as JSON.
    """
    record: dict[str, Any] = to_builtins(card)
    parameters = record["parameters"]
    parameters["version"] = card.version
    for key in _OPTIONAL:
        if not parameters[key]:
            del parameters[key]
    for image in (*parameters.get("images", ()), *([parameters["image"]] if card.image else ())):
        _drop_defaults(image)
    return write_json(record, f"card of model {card.name!r}")


def _drop_defaults(image: dict[str, Any]) -> None:
    """Remove from a contract's record what it leaves open, and what has no effect on its kind of resizing."""
    dropped = [key for key in ("width", "height") if image[key] is None]
    if image["resize"] != Resize.LETTERBOX:
        dropped.append("fill")
    if image["resize"] == Resize.STRETCH:
        dropped.append("resize")
    for key in dropped:
        del image[key]


def card_from_json(payload: Buffer) -> ModelCard:
    """Decode a card from JSON.

    Raises:
        BadEnvelope: A field is missing or has the wrong type.
        BadTensor: A datatype does not exist.
        LimitExceeded: It is longer than 1 MiB, or asks for larger pictures or more points than receivers accept.
    """
    record = parse_json(payload, "model card", MAX_CARD_BYTES)
    if isinstance(record, dict) and record.get("parameters") is None:
        record.pop("parameters", None)  # other servers may write null
    card = check(record, ModelCard, "model card")
    for image in (card.image, *card.parameters.images):
        if image is not None:
            _check_size(image)
    for each in card.parameters.points:
        check_points(each)
    return card if card.parameters.encodings else with_parameters(card, encodings=("raw",))


def with_parameters(card: ModelCard, **changes: Any) -> ModelCard:
    """Return a card with other parameters, given by name."""
    return replace(card, parameters=replace(card.parameters, **changes))


def read_card(topics: Topics, topic: str, payload: Buffer) -> tuple[str, ModelCard | None]:
    """Return the model that a card topic names, and its card; None where an empty payload removes it.

    Raises:
        BadTopic: It is no topic of a card, or the card names another model.
        BadEnvelope, BadTensor, LimitExceeded: As for `card_from_json`.
    """
    model = topics.card.parse(topic)["model"]
    card = card_from_json(payload) if payload else None
    return check_same("model", model, card.name if card else model), card


def _check_size(image: ImageContract) -> None:
    pixels = (image.width or 1) * (image.height or 1)
    if pixels > DEFAULT_LIMITS.image_pixels:  # senders resize their pictures to it
        raise LimitExceeded(
            f"model card: pictures of {image.width}x{image.height} pixels; at most {DEFAULT_LIMITS.image_pixels} are"
            " accepted"
        )


def check_points(contract: PointsContract) -> None:
    """Check that a contract asks for no more points than receivers accept, all of 8 bytes a field.

    Raises:
        LimitExceeded: It does.
    """
    most = DEFAULT_LIMITS.tensor_bytes // (8 * len(contract.fields))
    if (contract.count or 0) > most:
        raise LimitExceeded(f"model card: {contract.count} points of {len(contract.fields)} fields; at most {most} fit")


prepare(ModelCard)

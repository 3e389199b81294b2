"""Make the card that a worker publishes of a model, with its batch size and its image contract."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from mqinfer.codecs import available_encodings
from mqinfer.models.backend import Backend
from mqinfer.models.repository import ModelVersion
from mqinfer.models.repository.content_hash import content_hash
from mqinfer.protocol.card import (
    BAYER,
    POINTS_WITH_BATCH,
    CardParameters,
    ColourOrder,
    ImageContract,
    Layout,
    ModelCard,
    PointsContract,
    Resize,
    check_points,
)
from mqinfer.protocol.datatypes import FLOATS, Datatype
from mqinfer.protocol.errors import ConfigError
from mqinfer.protocol.types import TensorSpec

DEFAULT_MAX_BATCH_SIZE = 8
_COLOURS = {3: ColourOrder.RGB, 1: ColourOrder.MONO}


def make_card(model: ModelVersion, backend: Backend, versions: Sequence[int] = ()) -> ModelCard:
    """Describe a loaded model.

    Args:
        model: The version from the repository.
        backend: The back end that it was loaded into.
        versions: All versions that are served; empty: this one.

    Raises:
        ConfigError: `model.toml` contradicts the model.
    """
    config = model.config
    images = image_contracts(backend.inputs, config.pictures.image, config.pictures.images)
    image = images[0] if images else image_contract(backend.inputs, config.pictures.image)
    batch = max_batch_size(backend.inputs, backend.outputs, config.max_batch_size)
    takes_mosaics = image is not None and image.colour is not ColourOrder.DEPTH
    return ModelCard(
        name=model.name,
        versions=tuple(str(version) for version in versions or (model.version,)),
        platform=backend.platform,
        inputs=backend.inputs,
        outputs=backend.outputs,
        parameters=CardParameters(
            version=str(model.version),
            max_batch_size=batch,
            encodings=(*available_encodings(), *((BAYER,) if takes_mosaics else ())),
            image=image,
            classes=config.pictures.classes,
            model_hash=content_hash(model),
            precision=backend.precision,
            backend=backend.engine,
            device=backend.device,
            labels=model.traffic.labels,
            traffic=model.traffic.shares,
            images=images,
            points=points_contracts(backend.inputs, config.pictures.points, has_batch=batch > 0),
        ),
    )


def max_batch_size(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], configured: int | None = None) -> int:
    """Return the most rows that one run of the model may have: Triton's `max_batch_size`, discovered or checked.

    Args:
        inputs: The model's inputs, batch axis included.
        outputs: Its outputs.
        configured: `max_batch_size` of `model.toml`; None: discover it.

    Returns:
        0 without a batch axis, 1 for one fixed at 1, otherwise `configured` or 8.

    Raises:
        ConfigError: The inputs' first axes do not allow `configured`.
    """
    if configured is None:
        return _discover(inputs, outputs)
    for spec in inputs:
        first = spec.shape[0] if spec.shape else 0
        if configured > 0 and first != -1 and not configured == first == 1:
            raise ConfigError(
                f"model.toml: max_batch_size = {configured}: input {spec.name!r} has the shape {list(spec.shape)}; "
                f"{_possible(first)} is possible (0 = no batch axis)"
            )
    return configured


def _discover(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> int:
    firsts = {spec.shape[:1] for spec in inputs}
    if firsts == {(1,)}:
        return 1
    if firsts == {(-1,)} and all(spec.shape[:1] == (-1,) for spec in outputs):
        return DEFAULT_MAX_BATCH_SIZE
    return 0


def _possible(first: int) -> str:
    return f"at most {int(first == 1)}" if first < 2 else f"0 or, if all outputs have that first axis too, {first}"


def image_contract(inputs: Sequence[TensorSpec], configured: ImageContract | None) -> ImageContract | None:
    """Return how a picture becomes the model's input; None if the model takes no picture.

    Args:
        inputs: The model's inputs.
        configured: The `[image]` table; it has priority, is completed from the input's shape and checked against it.

    Raises:
        ConfigError: The table contradicts the model.
    """
    if configured is None:
        return discover_contract(inputs)
    if not configured.input:
        discovered = discover_contract(inputs)
        name = inputs[0].name if len(inputs) == 1 else discovered.input if discovered else ""
        configured = replace(configured, input=name)
    return _named(inputs, configured)


def _named(inputs: Sequence[TensorSpec], configured: ImageContract) -> ImageContract:
    by_name = {spec.name: spec for spec in inputs}
    if configured.input not in by_name:
        raise ConfigError(f"model.toml: image.input = {configured.input!r}: expected one of {', '.join(by_name)}")
    return _complete(configured, by_name[configured.input])


def image_contracts(
    inputs: Sequence[TensorSpec], configured: ImageContract | None, several: Sequence[ImageContract] = ()
) -> tuple[ImageContract, ...]:
    """Return how the pictures of one request become the model's inputs; empty unless it takes several.

    Args:
        inputs: The model's inputs.
        configured: The `[image]` table; with one the model takes a single picture.
        several: The `[[image]]` tables, each with its `input`.

    Raises:
        ConfigError: A table contradicts the model, or two are for one input.
    """
    if several:
        names = [each.input for each in several]
        if not all(names) or len(set(names)) < len(names):
            known = ", ".join(spec.name for spec in inputs)
            raise ConfigError(f"model.toml: each [[image]] needs an input of its own; the model has {known}")
        return tuple(_named(inputs, each) for each in several)
    found = [] if configured else [contract for contract in map(_recognise, inputs) if contract]
    return tuple(found) if len(found) > 1 else ()


def _complete(configured: ImageContract, spec: TensorSpec) -> ImageContract:
    configured = _by_shape(configured, spec)
    axes = _fitting(configured, spec)
    if axes is None:
        possible = [
            f'layout = "{layout}" with colour = "{colour}"'
            for layout in Layout
            for colour in ColourOrder
            if _fitting(replace(configured, layout=layout, colour=colour), spec)
        ]
        raise ConfigError(
            f"model.toml: image: layout {configured.layout} with colour {configured.colour} does not fit "
            f"the input {spec.name!r} of shape {list(spec.shape)}; "
            + (f"expected {' or '.join(possible)}" if possible else "it takes no pictures")
        )
    height = _side("image.height", configured.height, axes[0])
    width = _side("image.width", configured.width, axes[1])
    if configured.resize is not Resize.STRETCH and None in (height, width):
        raise ConfigError(
            f"model.toml: image.resize = '{configured.resize}': the input {spec.name!r} takes any size; "
            "set width and height"
        )
    return replace(configured, height=height, width=width)


def _by_shape(configured: ImageContract, spec: TensorSpec) -> ImageContract:
    """Return the contract with layout and colour by the input's shape, where the table leaves them at their defaults.

    An axis of 3 or 1 decides before one of any size does. NHW is never assumed.
    """
    layouts = (Layout.NHWC, Layout.NCHW) if configured.layout is Layout.NHWC else (configured.layout,)
    colours = (ColourOrder.RGB, ColourOrder.MONO) if configured.colour is ColourOrder.RGB else (configured.colour,)
    possible = [replace(configured, layout=layout, colour=colour) for layout in layouts for colour in colours]
    found = [(axes[2] == -1, each) for each in possible if (axes := _fitting(each, spec))]
    return min(found, key=lambda each: each[0])[1] if found else configured


def _fitting(contract: ImageContract, spec: TensorSpec) -> tuple[int, int, int] | None:
    """Return height, width and channels of the input; None if the contract's layout and colour do not fit it."""
    axes = _axes(spec.shape, contract.layout)
    return axes if axes and axes[2] in {-1, contract.channels} else None


def _side(key: str, configured: int | None, size: int) -> int | None:
    if configured is not None and size not in {-1, configured}:
        raise ConfigError(f"model.toml: {key} = {configured}: the model takes {size} only")
    return configured if size == -1 else size


def _axes(shape: tuple[int, ...], layout: Layout) -> tuple[int, int, int] | None:
    """Return height, width and channels of a shape with or without a batch axis, or None if it has other axes."""
    if layout is Layout.NHW:
        return (*shape[-2:], 1) if len(shape) in {2, 3} else None  # type: ignore[return-value]
    if len(shape) not in {3, 4}:
        return None
    first, second, third = shape[-3:]
    return (first, second, third) if layout is Layout.NHWC else (second, third, first)


def discover_contract(inputs: Sequence[TensorSpec]) -> ImageContract | None:
    """Recognise the image input by its shape, if exactly one input has one of these shapes.

    Four axes with 3 or 1 channels last (NHWC) or second (NCHW), uint8 or float32; or three axes, height, width,
    channels, uint8 only, since float32 with three axes is more often a sequence. Float inputs get the pixels as they
    are, 0 to 255 (scale 1, mean 0, std 1); a model that expects another range needs `[image]`.
    """
    found = [contract for contract in map(_recognise, inputs) if contract]
    return found[0] if len(found) == 1 else None


def _recognise(spec: TensorSpec) -> ImageContract | None:
    datatypes = {4: {Datatype.UINT8, Datatype.FP32}, 3: {Datatype.UINT8}}
    if spec.datatype not in datatypes.get(len(spec.shape), set()):
        return None
    for layout in (Layout.NHWC, Layout.NCHW):
        axes = _axes(spec.shape, layout)
        if axes and axes[2] in _COLOURS:
            height, width, channels = axes
            return ImageContract(spec.name, _known(width), _known(height), _COLOURS[channels], layout)
    return None


def _known(size: int) -> int | None:
    return None if size == -1 else size


def points_contracts(
    inputs: Sequence[TensorSpec], configured: Sequence[PointsContract], *, has_batch: bool
) -> tuple[PointsContract, ...]:
    """Return how points become the model's inputs.

    Args:
        inputs: The model's inputs.
        configured: The `[[points]]` tables, which are completed from the inputs' shapes and checked against them.
        has_batch: Whether the inputs have a batch axis; one of three axes has one in any case.

    Raises:
        ConfigError: A table contradicts the model.
        LimitExceeded: It asks for more points than receivers accept.
    """
    by_name = {spec.name: spec for spec in inputs}
    names = [name for each in configured for name in (each.input, each.mask) if name]
    if wrong := [name for name in names if name not in by_name or names.count(name) > 1]:
        raise ConfigError(f"model.toml: [[points]] names {wrong[0]!r}: expected each once of {', '.join(by_name)}")
    return tuple(_complete_points(each, by_name, has_batch=has_batch) for each in configured)


def _complete_points(
    configured: PointsContract, inputs: Mapping[str, TensorSpec], *, has_batch: bool
) -> PointsContract:
    spec, fields = inputs[configured.input], len(configured.fields)
    if not 0 < fields == len(set(configured.fields)):
        raise ConfigError(f"model.toml: points.fields = {list(configured.fields)}: expected names, each once")
    batch = spec.shape[: has_batch or len(spec.shape) == POINTS_WITH_BATCH]
    axes = _axes_of_points(spec, spec.shape[len(batch) :], fields)
    is_first = configured.fields_first or axes[1] != fields == axes[0]
    _side("number of points.fields", fields, axes[not is_first])
    found = replace(configured, fields_first=is_first, count=_side("points.count", configured.count, axes[is_first]))
    mask, wanted = inputs.get(found.mask), (*batch, found.count or -1)
    if mask and mask.shape not in {wanted, (*batch, -1)}:
        raise ConfigError(
            f"model.toml: points.mask: input {mask.name!r} has the shape {list(mask.shape)}; expected {list(wanted)}"
        )
    check_points(found)
    return found


def _axes_of_points(spec: TensorSpec, axes: tuple[int, ...], fields: int) -> tuple[int, int]:
    """Return the two axes of an input for points, of which a single field may have none."""
    if len(axes) == fields == 1:
        axes = (*axes, 1)
    if len(axes) != 2 or spec.datatype not in FLOATS or not {fields, -1} & {*axes}:
        raise ConfigError(
            f"model.toml: [[points]]: the input {spec.name!r}, {spec.datatype}{list(spec.shape)}, takes no points of "
            f"{fields} fields; expected floating point and [points, {fields}], behind a batch axis or none"
        )
    return axes[0], axes[1]

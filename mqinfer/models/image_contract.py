"""How a picture becomes a model's input: read from the configuration and from the shapes, or from these alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mqinfer.protocol.card import ColourOrder, ImageContract, Layout
from mqinfer.protocol.datatypes import Datatype
from mqinfer.protocol.errors import ConfigError
from mqinfer.protocol.types import TensorSpec

__all__ = ["discover_contract", "image_contract"]

_COLOURS = {3: ColourOrder.RGB, 1: ColourOrder.MONO}


def image_contract(inputs: Sequence[TensorSpec], stated: ImageContract | None) -> ImageContract | None:
    """Find the contract of a model.

    Args:
        inputs: The model's.
        stated: The `[image]` table: it wins, is completed from the input's shape, and is checked against it.

    Raises:
        ConfigError: The table contradicts the model.
    """
    if stated is None:
        return discover_contract(inputs)
    if not stated.input:
        discovered = discover_contract(inputs)
        name = inputs[0].name if len(inputs) == 1 else discovered.input if discovered else ""
        stated = replace(stated, input=name)
    by_name = {spec.name: spec for spec in inputs}
    if stated.input not in by_name:
        raise ConfigError(f"model.toml: image.input = {stated.input!r}: must be one of {', '.join(by_name)}")
    return _complete(stated, by_name[stated.input])


def _complete(stated: ImageContract, spec: TensorSpec) -> ImageContract:
    axes = _axes(spec.shape, stated.layout)
    channels = 1 if stated.colour is ColourOrder.MONO else 3
    if axes is None or axes[2] not in {-1, channels}:
        raise ConfigError(
            f"model.toml: image: layout {stated.layout} with colour {stated.colour} does not fit "
            f"the input {spec.name!r} of shape {list(spec.shape)}"
        )
    height, width = _side("height", stated.height, axes[0]), _side("width", stated.width, axes[1])
    return replace(stated, height=height, width=width)


def _side(key: str, stated: int | None, size: int) -> int | None:
    if stated is not None and size not in {-1, stated}:
        raise ConfigError(f"model.toml: image.{key} = {stated}: the model takes {size} only")
    return stated if size == -1 else size


def _axes(shape: tuple[int, ...], layout: Layout) -> tuple[int, int, int] | None:
    """Give height, width and channels of a shape with or without a batch axis, or None where it has other axes."""
    if layout is Layout.NHW:
        return (*shape[-2:], 1) if len(shape) in {2, 3} else None  # type: ignore[return-value]
    if len(shape) not in {3, 4}:
        return None
    first, second, third = shape[-3:]
    return (first, second, third) if layout is Layout.NHWC else (second, third, first)


def discover_contract(inputs: Sequence[TensorSpec]) -> ImageContract | None:
    """Recognise an image input by its shape: exactly one input that looks like one.

    That is: four axes with 3 or 1 channels last (NHWC) or second (NCHW), uint8 or float32; or three axes, height,
    width, channels, uint8 only, since float32 with three axes is more often a sequence. Float inputs get
    the pixels as they are, 0 to 255 (scale 1, mean 0, std 1): a model that wants something else says so in `[image]`.
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

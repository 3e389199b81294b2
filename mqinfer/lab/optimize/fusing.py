"""Turns a converted model into the graph that all products are made from: pruned, fused, and optimised in fp32."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from mqinfer.lab.conversion import import_onnx
from mqinfer.lab.optimize.passes import fix_batch, fuse_argmax, fuse_normalisation, open_argmax, prune, resize_before
from mqinfer.models.backends.onnx import import_onnxruntime
from mqinfer.models.repository.config import ModelConfig
from mqinfer.protocol.card import ColourOrder, ImageContract, Layout, ModelCard
from mqinfer.protocol.datatypes import Datatype
from mqinfer.protocol.errors import ModelNotLoadable
from mqinfer.protocol.types import TensorSpec

_MOST_CLASSES = 256
_FLOATS = frozenset({Datatype.FP16, Datatype.FP32})


@dataclass(frozen=True, slots=True)
class Fused:
    """A fused graph on disk, and how it differs from the model.

    Attributes:
        path: ONNX file.
        argmax: Axis of the classes, for each output that was logits and is now a mask.
        image: New image contract if the normalisation is now part of the graph.
        notes: Changes of the graph, for the report.
    """

    path: Path
    argmax: Mapping[str, int] = field(default_factory=dict)
    image: ImageContract | None = None
    notes: tuple[str, ...] = ()


def fuse(converted: Any, card: ModelCard, config: ModelConfig, path: Path, *, early: bool = False) -> Fused | None:
    """Move pre- and post-processing into the network's graph, and write the graph.

    Logits named by `[segmentation]`, or with as many classes as `[[classes]]` has, become a uint8 mask. Scale, mean and
    std of an `[image]` table precede a float input, which becomes uint8. A model with `max_batch_size = 1` gets a fixed
    batch axis.

    Args:
        converted: ONNX model; not changed.
        card: Card of the original.
        config: Configuration of the original.
        path: File to write.
        early: Take the argmax before the last resize.

    Returns:
        None if an early argmax is requested and no mask comes directly from a resize.

    Raises:
        MissingExtra: onnxruntime is not installed.
        ModelNotLoadable: ONNX Runtime can't load the fused graph.
    """
    model = _copy(converted)
    masks = _opened_masks(model)
    logits = _logits(card, config)
    finished = _finished_by_the_worker(config)
    moved = [name for name in masks | finished | logits if early and resize_before(model, name) is not None]
    if early and not moved:
        return None
    notes = [f"argmax of {name} is part of the graph" for name in (*logits, *finished)]
    notes += [f"argmax of {name} before the last resize" for name in moved]
    for name, axis in (masks | finished | logits).items():
        fuse_argmax(model, name, axis, early=name in moved)
    image = _fuse_pixels(model, card, config)
    if image is not None:
        notes.append(f"{image.input} takes uint8 pixels; scale, mean and std are part of the graph")
    if card.max_batch_size == 1:
        fix_batch(model, 1)
    return Fused(path, logits, image, (*notes, _write(model, converted, path)))


def fused_inputs(card: ModelCard, fused: Fused) -> tuple[tuple[TensorSpec, ...], ImageContract | None]:
    """Return the inputs of a fused graph and its image contract."""
    if fused.image is None:
        return card.inputs, card.image
    name = fused.image.input
    inputs = (replace(spec, datatype=Datatype.UINT8) if spec.name == name else spec for spec in card.inputs)
    return tuple(inputs), fused.image


def _finished_by_the_worker(config: ModelConfig) -> dict[str, int]:
    """Return the class axis of the logits of `[segmentation]`: the worker computes the mask, and the card lists it."""
    segmentation = config.pictures.segmentation
    return {} if segmentation is None else {segmentation.output: 1 if segmentation.layout is Layout.NCHW else 3}


def _opened_masks(model: Any) -> dict[str, int]:
    """Replace each argmax at an output by its logits; return the class axis of each."""
    names = [output.name for output in model.graph.output]
    return {name: axis for name in names if (axis := open_argmax(model, name)) is not None}


def _logits(card: ModelCard, config: ModelConfig) -> dict[str, int]:
    """Return the class axis of each output that has as many classes as `[[classes]]`."""
    return {spec.name: axis for spec in card.outputs if (axis := _class_axis(spec.shape, spec.datatype, config))}


def _class_axis(shape: tuple[int, ...], datatype: Datatype, config: ModelConfig) -> int | None:
    """Return the class axis of logits [N,H,W,C] or [N,C,H,W]: the one whose length is that of `[[classes]]`."""
    classes = len(config.pictures.classes)
    if len(shape) != 4 or datatype not in _FLOATS or not 2 <= classes <= _MOST_CLASSES:
        return None
    return next((axis for axis in (3, 1) if shape[axis] == classes), None)


def _fuse_pixels(model: Any, card: ModelCard, config: ModelConfig) -> ImageContract | None:
    """Make the graph take pixels; return the contract without normalisation, or None if there is nothing to fuse."""
    image = _fused_image(card, config)
    if image is not None and card.image is not None:
        fuse_normalisation(model, card.image, image.channels)
    return image


def _fused_image(card: ModelCard, config: ModelConfig) -> ImageContract | None:
    """Return the contract without normalisation, or None if there is nothing to fuse."""
    image = card.image
    if config.pictures.image is None or image is None:
        return None
    if image.colour is ColourOrder.DEPTH:  # it has no pixels of 8 bits
        return None
    if card.parameters.images:  # the tables of the other pictures would be lost
        return None
    datatype = next(spec.datatype for spec in card.inputs if spec.name == image.input)
    if datatype not in _FLOATS:
        return None
    return ImageContract(image.input, image.width, image.height, image.colour, image.layout)


def _copy(model: Any) -> Any:
    return import_onnx().ModelProto.FromString(model.SerializeToString())


def _write(model: Any, before: Any, path: Path) -> str:
    """Prune the graph, fold constants and remove transposes with ONNX Runtime, and write it.

    ONNX Runtime's basic level adds only standard operators, so every engine can read the file. Without it the
    transposes that tf2onnx leaves between convolutions halve the speed of OpenVINO.
    """
    prune(model)
    path.parent.mkdir(parents=True, exist_ok=True)
    import_onnx().save(model, str(path))
    _optimise(path)
    nodes = [len(each.graph.node) for each in (before, import_onnx().load(str(path), load_external_data=False))]
    return f"{nodes[0]} nodes became {nodes[1]}"


def _optimise(path: Path) -> None:
    onnxruntime = import_onnxruntime()
    settings = onnxruntime.SessionOptions()
    settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    settings.optimized_model_filepath = str(path)
    settings.log_severity_level = 4
    try:
        onnxruntime.InferenceSession(path.read_bytes(), settings, providers=["CPUExecutionProvider"])
    except Exception as error:  # its classes share no base below Exception
        raise ModelNotLoadable(f"{path.name}: ONNX Runtime can't load the fused graph: {error}") from error

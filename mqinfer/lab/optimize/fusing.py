"""From a converted model to the graph that all products are made of: pruned, fused, and as fast as it gets in fp32."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mqinfer.lab.optimize.graph import import_onnx, prune
from mqinfer.lab.optimize.passes import fix_batch, fuse_argmax, fuse_normalisation, open_argmax, resize_before
from mqinfer.models.repository.config import ModelConfig
from mqinfer.protocol.card import ColourOrder, ImageContract, Layout, ModelCard
from mqinfer.protocol.datatypes import Datatype
from mqinfer.protocol.errors import MissingExtra, ModelNotLoadable
from mqinfer.protocol.types import TensorSpec

__all__ = ["Fused", "fuse", "fused_inputs"]

_MOST_CLASSES = 256
_FLOATS = frozenset({Datatype.FP16, Datatype.FP32})


@dataclass(frozen=True, slots=True)
class Fused:
    """A fused graph on the disk, and what became of the model.

    Attributes:
        path: The ONNX file.
        argmax: Outputs that were logits and now are masks, and the axis that the classes had.
        image: The new contract, where the normalisation went into the graph.
        notes: What was done, for the report.
    """

    path: Path
    argmax: Mapping[str, int] = field(default_factory=dict)
    image: ImageContract | None = None
    notes: tuple[str, ...] = ()


def fuse(converted: Any, card: ModelCard, config: ModelConfig, path: Path, *, early: bool = False) -> Fused | None:
    """Fuse what is before and after the network into its graph, and write it.

    Logits that `[segmentation]` names, or of as many classes as `[[classes]]` names, become a uint8 mask; an `[image]`
    table's scale, mean and std go in front of a float input, which becomes uint8; a model of `max_batch_size = 1` loses
    its open batch axis.

    Args:
        converted: ONNX model; it is left as it is.
        card: Of the original.
        config: Of the original.
        path: File to write.
        early: Take the argmax before the last resize.

    Returns:
        None where an early argmax is wanted and no mask comes straight from a resize.

    Raises:
        MissingExtra: onnxruntime is not installed.
        ModelNotLoadable: ONNX Runtime can't load what came of it.
    """
    model, notes = _copy(converted), []
    masks = {name: axis for name in _outputs(model) if (axis := open_argmax(model, name)) is not None}
    logits = {spec.name: axis for spec in card.outputs if (axis := _class_axis(spec.shape, spec.datatype, config))}
    notes += [f"argmax of {name} goes into the graph" for name in logits]
    if config.segmentation:  # so far the worker makes this mask, and the card shows it
        masks[config.segmentation.output] = 1 if config.segmentation.layout is Layout.NCHW else 3
        notes.append(f"argmax of {config.segmentation.output} goes into the graph")
    moved = [name for name in masks | logits if early and resize_before(model, name) is not None]
    if early and not moved:
        return None
    notes += [f"argmax of {name} before the last resize" for name in moved]
    for name, axis in (masks | logits).items():
        fuse_argmax(model, name, axis, early=name in moved)
    image = _fused_image(card, config)
    if image is not None and card.image is not None:
        fuse_normalisation(model, card.image, 1 if image.colour is ColourOrder.MONO else 3)
        notes.append(f"{image.input} takes uint8 pixels, scale, mean and std go into the graph")
    if card.max_batch_size == 1:
        fix_batch(model, 1)
    return Fused(path, logits, image, (*notes, _write(model, converted, path)))


def fused_inputs(card: ModelCard, fused: Fused) -> tuple[tuple[TensorSpec, ...], ImageContract | None]:
    """Describe what a fused graph takes, and its image contract."""
    if fused.image is None:
        return card.inputs, card.image
    name = fused.image.input
    inputs = (replace(spec, datatype=Datatype.UINT8) if spec.name == name else spec for spec in card.inputs)
    return tuple(inputs), fused.image


def _outputs(model: Any) -> list[str]:
    return [output.name for output in model.graph.output]


def _class_axis(shape: tuple[int, ...], datatype: Datatype, config: ModelConfig) -> int | None:
    """Find the axis of the classes in logits [N,H,W,C] or [N,C,H,W]: the one that is as long as `[[classes]]`."""
    classes = len(config.classes)
    if len(shape) != 4 or datatype not in _FLOATS or not 2 <= classes <= _MOST_CLASSES:
        return None
    return next((axis for axis in (3, 1) if shape[axis] == classes), None)


def _fused_image(card: ModelCard, config: ModelConfig) -> ImageContract | None:
    """Give the contract with nothing left to do but the size, where there is something to fuse."""
    image = card.image
    if config.image is None or image is None:
        return None
    datatype = next(spec.datatype for spec in card.inputs if spec.name == image.input)
    if datatype not in _FLOATS:
        return None
    return ImageContract(image.input, image.width, image.height, image.colour, image.layout)


def _copy(model: Any) -> Any:
    return import_onnx().ModelProto.FromString(model.SerializeToString())


def _write(model: Any, before: Any, path: Path) -> str:
    """Prune, let ONNX Runtime fold constants and undo transposes, and write.

    Its basic level adds only standard operators, so any engine reads the file. Without it the transposes that tf2onnx
    leaves between convolutions cost OpenVINO half of its speed.
    """
    prune(model)
    path.parent.mkdir(parents=True, exist_ok=True)
    import_onnx().save(model, str(path))
    _optimise(path)
    nodes = [len(each.graph.node) for each in (before, import_onnx().load(str(path), load_external_data=False))]
    return f"{nodes[0]} nodes became {nodes[1]}"


def _optimise(path: Path) -> None:
    try:
        import onnxruntime
    except ImportError as error:
        raise MissingExtra.of("onnxruntime", "optimize") from error
    settings = onnxruntime.SessionOptions()
    settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    settings.optimized_model_filepath = str(path)
    settings.log_severity_level = 4
    try:
        onnxruntime.InferenceSession(path.read_bytes(), settings, providers=["CPUExecutionProvider"])
    except Exception as error:  # its classes share no base below Exception
        raise ModelNotLoadable(f"{path.name}: ONNX Runtime can't load the fused graph: {error}") from error

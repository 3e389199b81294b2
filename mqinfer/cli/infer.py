"""`mqinfer infer`: one request to a model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from msgspec.structs import replace
from rich import box
from rich.table import Table

from mqinfer.answers.outputs import DetectedBox, class_name, find_boxes
from mqinfer.cli.options import ConnectionOptions, table_console, with_connection
from mqinfer.client import Client, InferResult
from mqinfer.client.request import Input
from mqinfer.codecs import encode_tensor, encoded_image
from mqinfer.edge_agent.output_files import set_aside
from mqinfer.images.decode import to_rgb
from mqinfer.images.picture import CompressedImage
from mqinfer.images.placement import Placement
from mqinfer.logs import printable
from mqinfer.protocol.card import ModelCard
from mqinfer.protocol.datatypes import Datatype
from mqinfer.protocol.errors import BadEncoding, BadImage, ConfigError
from mqinfer.protocol.header import IMAGE_ENCODING
from mqinfer.protocol.types import EncodedTensor

__all__ = ["infer"]

_PICTURES = (".jpg", ".jpeg", ".png")
_FLOATS = (Datatype.FP16, Datatype.FP32, Datatype.FP64)


@with_connection
def infer(
    connection: ConnectionOptions,
    model: Annotated[str, typer.Argument(help="Model name.")],
    input_: Annotated[
        list[str],
        typer.Option(
            "--input",
            help="Input tensor as NAME=FILE: an .npy array, or a .jpg or .png picture. NAME=@FILE sends the bytes of "
            "any file as one string.",
        ),
    ],
    version: Annotated[
        str | None, typer.Option(help="Model version, or a label such as canary; the default version if omitted.")
    ] = None,
    encoding: Annotated[
        str, typer.Option(help="Encoding of the arrays: raw, lz4, shuffle-lz4, mask, jpeg:QUALITY or png.")
    ] = "raw",
    top: Annotated[
        int | None, typer.Option(help="Print the N best classes of each floating-point output.", min=1)
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(help="File to write the outputs to, in .npz format; one that is there is kept under a number."),
    ] = None,
    timeout: Annotated[float, typer.Option(help="Seconds to wait for the result.", min=0.001, max=1e6)] = 10,
) -> None:
    """Send one request to a model and print the result.

    Boxes found in a picture are listed under `detections`, in the picture's own pixels.
    """
    given = dict(_read(text) for text in input_)
    detections: dict[str, Any] = {}
    with Client(connection.address(), name=connection.name, root=connection.root) as client:
        inputs = _with_strings(given, client.card(model) if any(map(_is_string, given.values())) else None)
        classification = _classification(client.card(model), top) if top else {}
        result = client.infer(
            model, inputs, version=version, encoding=encoding, classification=classification, timeout=timeout
        )
        if find_boxes(result.outputs):
            detections = _detections(client.card(model), inputs, result)
    if output:
        _write(output, result)
    if top:
        table_console().print(_table(result))
    else:
        typer.echo(json.dumps(_describe(result, output) | detections, indent=2))


def _classification(card: ModelCard, top: int) -> dict[str, int]:
    """Request the top classes of every floating-point output."""
    scores = {spec.name: top for spec in card.outputs if spec.datatype in _FLOATS}
    if not scores:
        outputs = ", ".join(f"{spec.name} {spec.datatype}" for spec in card.outputs)
        raise ConfigError(f"--top: model {card.name!r} has no floating-point output; its outputs are {outputs}")
    return scores


def _detections(card: ModelCard, inputs: Mapping[str, Input], result: InferResult) -> dict[str, Any]:
    """Describe boxes in pixels of the picture that they were found in; empty without one."""
    contract = card.image
    picture = inputs.get(contract.input) if contract else None
    if contract is None or not isinstance(picture, EncodedTensor) or IMAGE_ENCODING not in picture.parameters:
        return {}
    height, width = picture.shape[1:3]
    size = contract.width or width, contract.height or height
    found = find_boxes(result.outputs)
    placement = Placement.of((width, height), size, contract.resize)
    boxes = placement.boxes_to_frame(np.array([each.box for each in found])).tolist()
    placed = zip(found, boxes, strict=True)
    return {"detections": [_detection(each, sides, card) for each, sides in placed]}


def _detection(found: DetectedBox, sides: list[float], card: ModelCard) -> dict[str, Any]:
    name = None if found.number is None else class_name(found.number, card.classes)
    return {"class": name, "score": round(found.score, 6), "box": [round(side, 2) for side in sides]}


def _table(result: InferResult) -> Table:
    """Build a table from entries `value:index[:label]`, one row each."""
    table = Table("output", "entry", "rank", "value", "index", "class", box=box.SIMPLE_HEAD)
    table.title = f"{result.model_name} {result.model_version}, {result.timings.total / 1e6:.1f} ms"
    for name, array in result.outputs.items():
        for entry, row in enumerate(array.reshape(-1, array.shape[-1])):
            for rank, text in enumerate(row, start=1):
                value, index, label = (*text.decode(errors="replace").split(":", 2), "")[:3]
                table.add_row(printable(name), str(entry), str(rank), value, index, printable(label))
    return table


def _is_string(given: Input | bytes) -> bool:
    return isinstance(given, bytes)


def _with_strings(given: Mapping[str, Input | bytes], card: ModelCard | None) -> dict[str, Input]:
    """Make an array of each string, with as many axes of 1 as the model's input has."""
    axes = {spec.name: len(spec.shape) for spec in card.inputs} if card else {}
    inputs: dict[str, Input] = {}
    for name, each in given.items():
        if isinstance(each, bytes):
            array = np.empty((1,) * axes.get(name, 1), np.object_)
            array[...] = each
            inputs[name] = array
        else:
            inputs[name] = each
    return inputs


def _read(text: str) -> tuple[str, Input | bytes]:
    name, equals, file = text.partition("=")
    path = Path(file.removeprefix("@"))
    if not equals or not name or not file:
        raise ConfigError(f"--input {text!r}: expected NAME=FILE, such as input=frame.npy")
    try:
        if file.startswith("@"):
            return name, path.read_bytes()
        return name, _picture(name, path) if path.suffix.lower() in _PICTURES else _array(path)
    except (OSError, ValueError, EOFError, BadEncoding, BadImage) as error:
        raise ConfigError(
            f"--input {text!r}: can't read {path}: {error}; expected an .npy array, a .jpg or .png picture, or @FILE "
            "for the bytes of any file"
        ) from error


def _array(path: Path) -> np.ndarray[Any, Any]:
    with path.open("rb") as file:
        array: np.ndarray[Any, Any] = np.lib.format.read_array(file, allow_pickle=False)
    if array.dtype.kind not in "SU":
        return array
    return np.array(
        [value.encode() if isinstance(value, str) else value for value in array.ravel().tolist()], np.object_
    ).reshape(array.shape)


def _picture(name: str, path: Path) -> EncodedTensor:
    data = path.read_bytes()
    try:
        tensor = encoded_image(name, data)
    except BadEncoding:  # of a kind that does not travel, such as one with transparency
        pixels = to_rgb(CompressedImage(path.suffix, data))
        return encode_tensor(name, pixels[np.newaxis], "png", {IMAGE_ENCODING: "rgb8"})
    channels = "rgb" if len(tensor.shape) == 4 else "mono"
    bits = 16 if tensor.datatype is Datatype.UINT16 else 8
    return replace(tensor, parameters={IMAGE_ENCODING: f"{channels}{bits}"})


def _write(output: Path, result: InferResult) -> None:
    try:
        set_aside(output)
        with output.open("wb") as file:
            np.savez(file, allow_pickle=False, **{name: _plain(array) for name, array in result.outputs.items()})
    except OSError as error:
        raise ConfigError(f"--output {output}: can't be written: {error.strerror or error}") from error


def _plain(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Convert strings to a dtype that is stored without pickle."""
    return array.astype(np.bytes_) if array.dtype == np.object_ else array


def _describe(result: InferResult, output: Path | None) -> dict[str, Any]:
    milliseconds = {stage: round(getattr(result.timings, stage) / 1e6, 3) for stage in result.timings.__struct_fields__}
    return {
        "model": result.model_name,
        "version": result.model_version,
        "model_hash": result.model_hash,
        "worker": result.worker,
        "outcome": result.outcome,
        "outputs": {name: _preview(array) for name, array in result.outputs.items()},
        "timings_ms": milliseconds,
        **({"written": str(output)} if output else {}),
    }


def _preview(array: np.ndarray[Any, Any]) -> dict[str, Any]:
    few = array.size <= 16
    values = [value.decode(errors="replace") if isinstance(value, bytes) else value for value in array.ravel().tolist()]
    return {"shape": list(array.shape), "dtype": str(array.dtype), **({"values": values} if few else {})}

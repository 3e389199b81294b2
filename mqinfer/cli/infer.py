"""`mqinfer infer`: one request to a model."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich import box
from rich.table import Table

from mqinfer.answers.outputs import find_top
from mqinfer.answers.words import describe_boxes, describe_outputs, describe_top
from mqinfer.cli.options import ConnectionOptions, table_console, with_connection
from mqinfer.client import Client, InferResult
from mqinfer.client.request import Input
from mqinfer.edge_agent.frames.view import FrameView
from mqinfer.edge_agent.output_files import replacing, set_aside, write_npz, writing
from mqinfer.edge_agent.sinks.drawing.overlay import draw_answer, encode_picture
from mqinfer.images.decode import to_rgb
from mqinfer.images.picture import CompressedImage
from mqinfer.images.placement import Placement
from mqinfer.images.sending import offer_contract, picture_file
from mqinfer.logs import printable, reason
from mqinfer.protocol.card import ColourOrder, ModelCard
from mqinfer.protocol.datatypes import FLOATS
from mqinfer.protocol.errors import ConfigError
from mqinfer.protocol.limits import DEFAULT_LIMITS
from mqinfer.protocol.types import EncodedTensor
from mqinfer.toml_files import read_bytes

_PICTURES = (".jpg", ".jpeg", ".png")


@with_connection
def infer(
    connection: ConnectionOptions,
    model: Annotated[str, typer.Argument(help="Model name.")],
    input_: Annotated[
        list[str],
        typer.Option(
            "--input",
            help="Input tensor as NAME=FILE, or as FILE for the model's picture or only input: an .npy array, or a "
            ".jpg or .png picture. NAME=@FILE sends the bytes of any file as one string.",
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
    picture: Annotated[
        Path | None,
        typer.Option(
            help="File for the picture with the answer drawn in, .png or .jpg; an earlier one is kept under a number."
        ),
    ] = None,
    timeout: Annotated[float, typer.Option(help="Seconds to wait for the result.", min=0.001, max=1e6)] = 10,
    priority: Annotated[
        int,
        typer.Option(
            help="Its place among others, at models with priority_levels: 1 goes first, 0 is the default.", min=0
        ),
    ] = 0,
) -> None:
    """Send one request to a model and print the result.

    Boxes (`detections`) and the shares of a mask's classes are in the picture's own pixels.
    """
    given = [read_input(text) for text in input_]
    with Client(connection.address(), name=connection.name, root=connection.root) as client:
        card = client.card(model)
        inputs = named_inputs(given, card)
        view = _view(inputs, card)
        if picture and not view:
            raise ConfigError(f"--picture {picture}: no --input is a picture")
        classification = _classification(card, top) if top else {}
        result = client.infer(
            model,
            inputs,
            version=version,
            encoding=encoding,
            classification=classification,
            priority=priority,
            timeout=timeout,
        )
    view = replace(view, outputs=result.outputs) if view else None
    if output:
        with writing(output):
            set_aside(output)
        write_npz(output, result.outputs, prefix=_prefix())
    if picture and view:
        _draw(picture, view, result)
    if top:
        table_console().print(_table(result))
    else:
        typer.echo(json.dumps(_describe(result, view, card, (output, picture)), indent=2))


def named_inputs(given: Sequence[tuple[str, Input | bytes]], card: ModelCard) -> dict[str, Input]:
    """Return the inputs by name: pictures without one go to the model's pictures in order, others to its only input.

    Raises:
        ConfigError: There is no input to give one to.
    """
    names = {name for name, _ in given}
    pictures = (each.input for each in card.pictures if each.input not in names)
    known = [spec.name for spec in card.inputs]
    named: dict[str, Input] = {}
    for name, each in given:
        chosen = name or _default(each, pictures, known)
        if not chosen:
            raise ConfigError(f"--input: name each as NAME=FILE; the inputs of {card.name!r} are {', '.join(known)}")
        if chosen in named:
            raise ConfigError(f"--input: {chosen} is given twice; leave one out, or name each as NAME=FILE")
        named[chosen] = _sent(each, chosen, card)
    return named


def _default(given: Input | bytes, pictures: Iterator[str], known: Sequence[str]) -> str:
    found = next(pictures, "") if isinstance(given, EncodedTensor) else ""
    return found or (known[0] if len(known) == 1 else "")


def _sent(given: Input | bytes, name: str, card: ModelCard) -> Input:
    """Return what is sent: of a string an array, with as many axes of 1 as the model's input has."""
    if isinstance(given, EncodedTensor) and not card.pictures:
        raise ConfigError(offer_contract(card))
    if not isinstance(given, bytes):
        return given
    axes = {spec.name: len(spec.shape) for spec in card.inputs}
    array = np.empty((1,) * axes.get(name, 1), np.object_)
    array[...] = given
    return array


def _view(inputs: Mapping[str, Input], card: ModelCard) -> FrameView | None:
    """Return the picture that goes to a model, still without an answer; None if none does."""
    contract = card.image
    picture = inputs.get(contract.input) if contract else None
    if contract is None or not isinstance(picture, EncodedTensor):
        return None
    pixels = to_rgb(CompressedImage("16UC1; png" if contract.colour is ColourOrder.DEPTH else "", picture.data))
    height, width = pixels.shape[:2]
    return FrameView(pixels, Placement.in_model(contract, width, height), classes=card.classes)


def _draw(path: Path, view: FrameView, result: InferResult) -> None:
    suffix = ".jpg" if path.suffix.lower() in {".jpg", ".jpeg"} else ".png"
    line = f"{result.model_name} {result.model_version} | {result.timings.total / 1e6:.1f} ms"
    data = encode_picture(draw_answer(view, line), suffix)
    with replacing(path, prefix=_prefix()) as unfinished:
        set_aside(path)
        unfinished.write_bytes(data)


def _prefix() -> str:
    """Return what names an unfinished file that no other command writes at the same time."""
    return f".{secrets.token_hex(4)}-"


def _classification(card: ModelCard, top: int) -> dict[str, int]:
    """Request the top classes of every floating-point output."""
    scores = {spec.name: top for spec in card.outputs if spec.datatype in FLOATS}
    if not scores:
        outputs = ", ".join(f"{spec.name} {spec.datatype}" for spec in card.outputs)
        raise ConfigError(f"--top: model {card.name!r} has no floating-point output; its outputs are {outputs}")
    return scores


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


def read_input(text: str) -> tuple[str, Input | bytes]:
    """Return name, empty where none is given, and content of an `--input`.

    Raises:
        ConfigError: It can't be read.
    """
    name, equals, file = text.partition("=")
    name, file = (name, file) if equals else ("", text)
    path = Path(file.removeprefix("@"))
    if not file or bool(equals) > bool(name):
        raise ConfigError(f"--input {text!r}: expected FILE or NAME=FILE, such as input=frame.npy")
    try:
        if file.startswith("@"):
            return name, read_bytes(path, DEFAULT_LIMITS.payload_bytes)
        if path.suffix.lower() in _PICTURES:
            return name, picture_file(name, read_bytes(path, DEFAULT_LIMITS.payload_bytes))
        return name, _array(path)
    except Exception as error:  # of NumPy's reader and Python's parsers
        raise ConfigError(
            f"--input {text!r}: can't read {path}: {reason(error)}; expected FILE or NAME=FILE with an .npy array, a "
            ".jpg or .png picture, or @FILE for the bytes of any file"
        ) from error


def _array(path: Path) -> np.ndarray[Any, Any]:
    with path.open("rb") as file:
        if (size := path.stat().st_size) > (most := 4 * DEFAULT_LIMITS.tensor_bytes):  # of text each character has 4
            raise ValueError(f"it has {size} bytes; a tensor has fewer than {most}")
        array: np.ndarray[Any, Any] = np.lib.format.read_array(file, allow_pickle=False)
    if array.dtype.kind not in "SU":
        return array
    return np.array(
        [value.encode() if isinstance(value, str) else value for value in array.ravel().tolist()], np.object_
    ).reshape(array.shape)


def _describe(
    result: InferResult, view: FrameView | None, card: ModelCard, written: Sequence[Path | None]
) -> dict[str, Any]:
    milliseconds = {stage: round(getattr(result.timings, stage) / 1e6, 3) for stage in result.timings.__struct_fields__}
    files = [str(path) for path in written if path]
    return {
        "model": result.model_name,
        "version": result.model_version,
        "model_hash": result.model_hash,
        "worker": result.worker,
        "outcome": result.outcome,
        "outputs": view.outputs_in_words if view else describe_outputs(result.outputs, card.classes),
        **(describe_boxes(view.answer.boxes, card.classes) if view else {}),
        **describe_top(find_top(result.outputs, card.classes)),
        "timings_ms": milliseconds,
        **({"written": ", ".join(files)} if files else {}),
    }

"""Inputs in other forms than the model's own: files of pictures, and the encodings that travel over MQTT.

They go to the worker as they are. Answers to pictures come back in the pictures' own pixels where a call asks for that.
"""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

import numpy as np
from msgspec.structs import replace as changed

from mqinfer.answers.words import describe_answer
from mqinfer.client.result import InferResult, PictureResult
from mqinfer.codecs import ENCODINGS
from mqinfer.gateway.calls import InferCall, joined
from mqinfer.gateway.checks import check_shape
from mqinfer.gateway.errors import Unsupported
from mqinfer.images.pixel_format import parse_encoding
from mqinfer.images.placement import Placement
from mqinfer.images.sending import picture_file
from mqinfer.protocol.card import ImageContract, ModelCard
from mqinfer.protocol.datatypes import Array, Datatype, from_raw
from mqinfer.protocol.decoding import write_json
from mqinfer.protocol.errors import BadEncoding, BadImage, BadTensor, LimitExceeded, MissingExtra
from mqinfer.protocol.header import BIT_DEPTH, CHAIN, DEMOSAIC, DIGEST, IMAGE_ENCODING, POSITION, RAW_SIZE
from mqinfer.protocol.types import EncodedTensor, Scalar

ANSWERS = "answers"
"""Request parameter: true asks for what was found in each picture, in its own pixels; and the output that has it."""
ANSWERS_MASK = "answers_mask"
"""Output with the class of each pixel of a picture, beside `ANSWERS`."""
ENCODING, _SHAPE, _DATATYPE, _STREAM = "encoding", "shape", "datatype", "stream"
_TRAVELLING = frozenset({IMAGE_ENCODING, DEMOSAIC, BIT_DEPTH, CHAIN, POSITION, DIGEST, RAW_SIZE})
TENSOR_PARAMETERS = _TRAVELLING | {ENCODING, _SHAPE, _DATATYPE}
"""Parameters of an input that say what its bytes are; of a request they hold for its picture, or its only input."""
REQUEST_PARAMETERS = TENSOR_PARAMETERS | {_STREAM, ANSWERS}
"""Parameters of a request that this module reads."""
_MOST = 64
"""Pictures of one call: each is a request of its own."""
_IN_BASE64 = (b"/9j/", b"iVBORw0KGgo")
"""How files begin in base64, which JSON needs for them."""
_FILES = ("jpeg", "png")
_PICTURES = (*_FILES, "h264")
"""Encodings that nothing but a picture has."""
_AXES = re.compile(r"\d{1,9}(?:,\d{1,9}){0,15}", re.ASCII)
_LONGEST_STREAM = 100


def split_pictures(call: InferCall, card: ModelCard) -> list[InferCall]:
    """Return a call as one for each picture in its inputs of strings; as one where it has none.

    Args:
        call: With the inputs as they came.
        card: Of the model.

    Raises:
        BadTensor: A string is neither JPEG nor PNG, or the inputs differ in their numbers of pictures.
        BadEncoding: It is one, of a kind that workers refuse, or the bytes are not what the parameters say.
        LimitExceeded: They are too many.
    """
    if type(wanted := call.parameters.get(ANSWERS, False)) is not bool:
        raise BadTensor(f"parameter '{ANSWERS}' is {str(wanted)[:100]!r}; expected true or false")
    takes = {contract.input for contract in card.pictures}
    strings = {spec.name for spec in card.inputs if spec.datatype is Datatype.BYTES}
    inputs = [_opened(tensor, _stated(tensor, call, takes), takes, strings) for tensor in call.inputs]
    call = replace(call, inputs=tuple(inputs), source=_source(call))
    files = {each.name: _strings(each) for each in inputs if each.name in takes and each.datatype is Datatype.BYTES}
    if not files:
        return [call]
    rows = range(_count(call, card, files))
    return [replace(call, inputs=tuple([_of(tensor, files, row) for tensor in call.inputs])) for row in rows]


def joined_answers(parts: Sequence[InferCall], results: Sequence[InferResult], card: ModelCard) -> InferResult:
    """Return the results of requests of one picture each as one, with the answers in their pixels where asked for.

    Beside answers, outputs that fit into no array are left out.

    Raises:
        BadTensor: Outputs can't be joined, or answers to something else than pictures are asked for.
        Unsupported: A mask needs OpenCV, which is not here.
    """
    if not parts[0].parameters.get(ANSWERS):
        return replace(results[0], outputs=joined([each.outputs for each in results], [1] * len(results)))
    found = [_answer(part, result, card) for part, result in zip(parts, results, strict=True)]
    outputs: dict[str, Array] = dict(results[0].outputs)
    if len(results) > 1:
        try:
            outputs = joined([each.outputs for each in results], [1] * len(results))
        except BadTensor:
            outputs = {}
    outputs[ANSWERS] = np.array([write_json(_describe(each), "answer") for each in found], np.object_)
    if len(found) == 1 and (mask := found[0].mask) is not None:
        outputs[ANSWERS_MASK] = mask[np.newaxis]
    return replace(results[0], outputs=outputs)


def _stated(tensor: EncodedTensor, call: InferCall, takes: set[str]) -> dict[str, Scalar]:
    """Return what is stated of an input's encoding."""
    shared = call.parameters if tensor.name in takes or len(call.inputs) == 1 else {}
    return {name: value for name, value in {**shared, **tensor.parameters}.items() if name in TENSOR_PARAMETERS}


def _source(call: InferCall) -> str:
    """Return the name of a call's stream; streams of callers with a key or certificate are their own."""
    stream = str(call.parameters.get(_STREAM, ""))
    if len(stream) > _LONGEST_STREAM or "/" in stream:
        raise BadTensor(f"stream {stream[:_LONGEST_STREAM]!r}: expected up to {_LONGEST_STREAM} characters without '/'")
    owner = call.caller.partition(" ")[2]
    return f"{owner}/{stream}" if owner and stream else stream


def _opened(tensor: EncodedTensor, stated: dict[str, Scalar], takes: set[str], strings: set[str]) -> EncodedTensor:
    """Return an input as it travels, by what is stated of it; the files of pictures are left as strings."""
    if not stated:
        return tensor
    encoding = str(stated.get(ENCODING, "raw"))
    kept = {name: value for name, value in stated.items() if name in _TRAVELLING}
    if encoding not in ENCODINGS:
        kept[IMAGE_ENCODING], encoding = _pixels(tensor.name, encoding), "raw"
    if tensor.datatype is Datatype.BYTES and tensor.name not in strings:
        if tensor.name in takes and _are_files(encoding, stated):
            return changed(tensor, encoding=encoding, parameters=kept)
        tensor = _from_string(tensor, encoding, stated)
    check_shape(tensor.name, tensor.datatype, tensor.shape)
    if tensor.name in takes and encoding in _PICTURES:
        kept.setdefault(IMAGE_ENCODING, _colours(tensor))
    return changed(tensor, encoding=encoding, parameters=kept)


def _are_files(encoding: str, stated: Mapping[str, Scalar]) -> bool:
    """Return whether strings are the files of pictures, which tell their shape, and not the bytes of arrays."""
    return encoding in _FILES or (encoding == "raw" and _SHAPE not in stated)


def _colours(picture: EncodedTensor) -> str:
    bits = 16 if picture.datatype is Datatype.UINT16 else 8
    return f"{'rgb' if picture.shape[-1:] == (3,) else 'mono'}{bits}"


def _pixels(name: str, encoding: str) -> str:
    """Return a name of ROS for pixels as they are, such as those of a mosaic."""
    try:
        parse_encoding(encoding)
    except BadImage:
        known = ", ".join(sorted(ENCODINGS))
        raise BadEncoding(
            f"input '{name}': unknown encoding {encoding[:60]!r}; known are {known}, and ROS names such as bayer_rggb8"
        ) from None
    return encoding


def _from_string(tensor: EncodedTensor, encoding: str, stated: Mapping[str, Scalar]) -> EncodedTensor:
    """Return the tensor whose encoded bytes are another's only string: some clients can send no other bytes."""
    strings = _strings(tensor)
    if len(strings) != 1:
        raise BadTensor(f"input '{tensor.name}' is {len(strings)} strings in {encoding}; expected one a request")
    if encoding in _FILES:
        return _file(tensor.name, encoding, strings[0])
    axes, datatype = str(stated.get(_SHAPE, "")), str(stated.get(_DATATYPE, Datatype.UINT8))
    if not _AXES.fullmatch(axes) or datatype not in set(Datatype):
        raise BadTensor(
            f"input '{tensor.name}' is a string in {encoding}: expected the parameters 'shape', of the decoded array, "
            f"such as '1,480,640,3', and 'datatype', UINT8 without it; not {axes[:100]!r} and {datatype[:20]!r}"
        )
    return EncodedTensor(tensor.name, Datatype(datatype), tuple(map(int, axes.split(","))), encoding, strings[0])


def _count(call: InferCall, card: ModelCard, files: dict[str, Sequence[bytes]]) -> int:
    """Return how many pictures a call has for each input that takes some."""
    counts = {len(each) for each in files.values()}
    count = counts.pop()
    if counts or not count:
        of = ", ".join(f"{len(each)} for '{name}'" for name, each in files.items())
        raise BadTensor(f"model '{call.model}' takes as many pictures for each of its inputs, 1 or more, not {of}")
    if count > 1 and (len(files) < len(call.inputs) or not card.max_batch_size):
        why = "beside other inputs" if card.max_batch_size else "since it has no batch axis"
        raise BadTensor(f"{count} pictures: model '{call.model}' takes one a request {why}; send a request for each")
    return count


def _strings(tensor: EncodedTensor) -> Sequence[bytes]:
    if prod(tensor.shape) > _MOST:
        raise LimitExceeded(f"{prod(tensor.shape)} pictures for '{tensor.name}'; at most {_MOST} are accepted at once")
    found: list[bytes] = from_raw(tensor.name, Datatype.BYTES, tensor.shape, tensor.data).ravel().tolist()
    return found


def _of(tensor: EncodedTensor, files: dict[str, Sequence[bytes]], place: int) -> EncodedTensor:
    if tensor.name not in files:
        return tensor
    try:
        found = _file(tensor.name, tensor.encoding, files[tensor.name][place])
    except (BadEncoding, ValueError) as error:
        raise BadTensor(f"inference input '{tensor.name}', picture {place}: {error}; expected a JPEG or PNG") from error
    return changed(found, parameters={**found.parameters, **tensor.parameters})


def _file(name: str, encoding: str, data: bytes) -> EncodedTensor:
    found = picture_file(name, b64decode(data) if data.startswith(_IN_BASE64) else data)
    if encoding not in {"raw", found.encoding}:
        raise BadEncoding(f"encoding is {encoding}, but the bytes are {found.encoding}")
    return found


def _answer(part: InferCall, result: InferResult, card: ModelCard) -> PictureResult:
    contract = card.image
    tensor = next((each for each in part.inputs if contract and each.name == contract.input), None)
    if contract is None or tensor is None or IMAGE_ENCODING not in tensor.parameters:
        raise BadTensor(f"{ANSWERS}: model '{card.name}' has answers in the pixels of pictures, and was sent none")
    return PictureResult(result, _placement(tensor, contract), card.classes)


def _placement(tensor: EncodedTensor, contract: ImageContract) -> Placement:
    shape = tensor.shape
    is_batch = len(shape) == 4 or (len(shape) == 3 and shape[2] not in {1, 3})
    height, width = shape[1:3] if is_batch else shape[:2]
    return Placement.in_model(contract, width, height)


def _describe(found: PictureResult) -> dict[str, object]:
    width, height = found.placement.frame
    try:
        return {"width": width, "height": height, **describe_answer(found.answer)}
    except MissingExtra as error:
        raise Unsupported(f"{ANSWERS}: the gateway can't follow the masks of objects: {error}") from error

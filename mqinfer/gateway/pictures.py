"""Pictures as files in tensors of strings, where a model takes pictures: they travel as they are to the worker."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Sequence
from dataclasses import replace
from math import prod

from msgspec.structs import replace as changed

from mqinfer.gateway.calls import InferCall
from mqinfer.images.sending import picture_file
from mqinfer.protocol.card import ModelCard
from mqinfer.protocol.datatypes import Datatype, from_raw
from mqinfer.protocol.errors import BadEncoding, BadTensor, LimitExceeded
from mqinfer.protocol.types import EncodedTensor

_MOST = 64
"""Pictures of one call: each is a request of its own."""
_IN_BASE64 = (b"/9j/", b"iVBORw0KGgo")
"""How files begin in base64, which JSON needs for them."""


def split_pictures(call: InferCall, card: ModelCard) -> list[InferCall]:
    """Return a call as one for each picture in its inputs of strings; as it is where it has none.

    Args:
        call: With the inputs as they came.
        card: Of the model.

    Raises:
        BadTensor: A string is neither JPEG nor PNG, or the inputs differ in their numbers of pictures.
        BadEncoding: It is one, of a kind that workers refuse.
        LimitExceeded: They are too many.
    """
    takes = {contract.input for contract in card.pictures}
    strings = [tensor for tensor in call.inputs if tensor.name in takes and tensor.datatype is Datatype.BYTES]
    files = {tensor.name: _files(tensor) for tensor in strings}
    if not files:
        return [call]
    rows = range(_count(call, card, files))
    return [replace(call, inputs=tuple([_of(tensor, files, row) for tensor in call.inputs])) for row in rows]


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


def _files(tensor: EncodedTensor) -> Sequence[bytes]:
    if prod(tensor.shape) > _MOST:
        raise LimitExceeded(f"{prod(tensor.shape)} pictures for '{tensor.name}'; at most {_MOST} are accepted at once")
    found: list[bytes] = from_raw(tensor.name, Datatype.BYTES, tensor.shape, tensor.data).ravel().tolist()
    return found


def _of(tensor: EncodedTensor, files: dict[str, Sequence[bytes]], place: int) -> EncodedTensor:
    if tensor.name not in files:
        return tensor
    data = files[tensor.name][place]
    try:
        found = picture_file(tensor.name, b64decode(data) if data.startswith(_IN_BASE64) else data)
    except (BadEncoding, ValueError) as error:
        raise BadTensor(f"inference input '{tensor.name}', picture {place}: {error}; expected a JPEG or PNG") from error
    return changed(found, parameters={**found.parameters, **tensor.parameters})

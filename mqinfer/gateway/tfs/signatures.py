"""A model's signatures, from its card: which there are, and how tensors meet them.

Of a SavedModel the card names them; any other model has one, `serving_default`.

TensorFlow does not hold requests to the shapes of a signature, and TensorFlow Serving's own clients send `[N]` where it
has `[N, 1]`. So axes of size 1 are added at the end of an input that lacks exactly them, and where every input lacked
as many, that many are removed from the end of each output that has them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from mqinfer.gateway.errors import FailedPrecondition
from mqinfer.protocol.card import ModelCard, Signature, SignatureTensor
from mqinfer.protocol.datatypes import Array
from mqinfer.protocol.errors import InvalidRequest
from mqinfer.protocol.types import TensorSpec

DEFAULT = "serving_default"
_PREDICT = "tensorflow/serving/predict"


def signatures_of(card: ModelCard) -> dict[str, Signature]:
    """Return a model's signatures by name; first the one that runs unless another is requested."""
    named = card.parameters.signatures[0] if card.parameters.signatures else Signature(DEFAULT, _PREDICT)
    # What the model takes and returns may be configured; the names of tensors are the file's.
    own = replace(
        named,
        inputs=_tensors(card.inputs, named.inputs),
        outputs=_tensors(card.outputs, named.outputs),
        max_batch_size=card.max_batch_size,
    )
    return {signature.name: signature for signature in (own, *card.parameters.signatures[1:])}


def _tensors(specs: Sequence[TensorSpec], named: Sequence[SignatureTensor]) -> tuple[SignatureTensor, ...]:
    known = {tensor.name: tensor for tensor in named}
    found = []
    for spec in specs:
        one = known.get(spec.name, SignatureTensor(spec.name, spec.datatype, spec.shape, spec.name))
        found.append(replace(one, datatype=spec.datatype, shape=None if one.shape is None else spec.shape))
    return tuple(found)


def choose(card: ModelCard, name: str) -> Signature:
    """Return the signature that a request asks for; without a name, or where there is no `serving_default`, the own.

    Raises:
        FailedPrecondition: The model has none of that name.
    """
    signatures = signatures_of(card)
    own = next(iter(signatures.values()))
    if not name or (name == DEFAULT and DEFAULT not in signatures):
        return own
    if name not in signatures:
        raise FailedPrecondition(
            f'Serving signature key "{name[:80]}" not found. Model {card.name!r} has {", ".join(signatures)}'
        )
    return signatures[name]


def is_own(card: ModelCard, signature: Signature) -> bool:
    """Return whether a signature is the one that the model runs unless another is requested."""
    return not card.parameters.signatures or signature.name == card.parameters.signatures[0].name


def check_inputs(signature: Signature, names: Sequence[str]) -> None:
    """Check the names of a request's inputs.

    Raises:
        InvalidRequest: One is missing, or unknown.
    """
    sent, wanted = set(names), {tensor.name for tensor in signature.inputs}
    if sent == wanted:
        return
    extra, missing = (",".join(sorted(each)) for each in (sent - wanted, wanted - sent))
    raise InvalidRequest(
        f"input size does not match signature: {len(sent)}!={len(wanted)} len({{{','.join(sorted(sent))}}}) != "
        f"len({{{','.join(sorted(wanted))}}}). Sent extra: {{{extra}}}. Missing but required: {{{missing}}}."
    )


def check_outputs(signature: Signature, names: Sequence[str]) -> None:
    """Check the names of the outputs that a request wants.

    Raises:
        InvalidRequest: One is unknown, or stands twice.
    """
    known = [tensor.name for tensor in signature.outputs]
    for place, name in enumerate(names):
        if name not in known:
            raise InvalidRequest(
                f"output tensor alias not found in signature: {name} Outputs expected to be in the set "
                f"{{{','.join(sorted(known))}}}."
            )
        if name in names[:place]:
            raise InvalidRequest(f"duplicate output tensor alias: {name}")


def widened(signature: Signature, arrays: Mapping[str, Array]) -> tuple[dict[str, Array], int]:
    """Return the inputs with the axes of size 1 that they lack, and how many each lacked; 0 where that differs."""
    found: dict[str, Array] = {}
    added = set()
    for tensor in signature.inputs:
        array = arrays[tensor.name]
        further = () if tensor.shape is None else tensor.shape[array.ndim :]
        if any(size != 1 for size in further):
            further = ()
        found[tensor.name] = array.reshape(array.shape + further)
        added.add(len(further))
    return found, added.pop() if len(added) == 1 else 0


def narrowed(signature: Signature, outputs: Mapping[str, Array], axes: int) -> dict[str, Array]:
    """Return the outputs without as many axes of size 1 at their ends as the inputs lacked."""
    if not axes:
        return dict(outputs)
    declared = {tensor.name: tensor.shape or () for tensor in signature.outputs}
    ones = (1,) * axes
    found = {}
    for name, array in outputs.items():
        is_wider = declared.get(name, ())[-axes:] == array.shape[-axes:] == ones
        found[name] = array.reshape(array.shape[:-axes]) if is_wider else array
    return found

"""What both fronts for TensorFlow Serving's clients ask of the core: a model by its ModelSpec, and runs of it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mqinfer.client.result import InferResult
from mqinfer.codecs import encode_tensor
from mqinfer.gateway.calls import InferCall, joined, outputs_size
from mqinfer.gateway.core import Core
from mqinfer.gateway.inference import Send
from mqinfer.gateway.tfs.signatures import check_inputs, check_outputs, choose, is_own, narrowed, widened
from mqinfer.protocol.card import ModelCard, Signature
from mqinfer.protocol.datatypes import Array
from mqinfer.protocol.errors import InvalidRequest, LimitExceeded, ModelNotFound, NoWorker
from mqinfer.protocol.types import RequestedOutput

_NO_VERSION = "0"
_PARTS = 32
"""Requests of one call that are pending at a time."""
_MOST_PARTS = 16384
"""Requests of one call; each result takes up to a kilobyte beside its outputs."""


@dataclass(frozen=True, slots=True)
class Spec:
    """A ModelSpec.

    Attributes:
        model: Its name.
        version: As a number in decimal digits; None for the default one.
        label: Of a version; empty for none.
        signature: Name of the signature; empty for the model's own.
    """

    model: str
    version: str | None = None
    label: str = ""
    signature: str = ""


@dataclass(frozen=True, slots=True)
class NamedModel:
    """What a ModelSpec names.

    Attributes:
        spec: The ModelSpec, with a version in place of a label.
        card: Of the model and version.
        signature: The requested one, or the model's own.
    """

    spec: Spec
    card: ModelCard
    signature: Signature


async def find(core: Core, spec: Spec) -> NamedModel:
    """Find what a ModelSpec names.

    Raises:
        InvalidRequest: It names no model, or an unknown label.
        ModelNotFound: There is no such model or version, in TensorFlow Serving's words.
        FailedPrecondition: The model has no such signature.
    """
    if not spec.model:
        raise InvalidRequest("ModelSpec has no name specified.")
    try:
        spec = await _resolved(core, spec)
        card = await core.metadata(spec.model, spec.version)
    except ModelNotFound as error:
        wanted = f"Latest({spec.model})" if spec.version is None else f"Specific({spec.model}, {spec.version})"
        raise ModelNotFound(f"Servable not found for request: {wanted}") from error
    return NamedModel(spec, card, choose(card, spec.signature))


async def _resolved(core: Core, spec: Spec) -> Spec:
    """Return a ModelSpec with a version in place of a label, and none in place of the 0 of OpenVINO's clients."""
    if not spec.label:
        is_none = spec.version == _NO_VERSION and _NO_VERSION not in await core.versions(spec.model)
        return replace(spec, version=None) if is_none else spec
    version = (await core.metadata(spec.model)).parameters.labels.get(spec.label)
    if version is None:
        raise InvalidRequest(f"Unrecognized servable version label: {spec.label[:80]}")
    return replace(spec, version=version, label="")


async def version_states(core: Core, spec: Spec) -> dict[str, bool]:
    """Return the versions that a ModelSpec names, each with whether it is ready.

    Raises:
        InvalidRequest: It names no model, or an unknown label.
        ModelNotFound: There is no such model or version.
    """
    if not spec.model:
        raise InvalidRequest("Missing model name in request.")
    try:
        versions = await core.versions(spec.model)
        spec = await _resolved(core, spec)
    except ModelNotFound as error:
        raise ModelNotFound(f"Could not find any versions of model {spec.model}") from error
    if spec.version is None:
        return dict(sorted(versions.items(), key=lambda each: int(each[0]), reverse=True))
    if spec.version not in versions:
        raise ModelNotFound(f"Could not find version {spec.version} of model {spec.model}")
    return {spec.version: versions[spec.version]}


async def infer(
    core: Core, target: NamedModel, inputs: Mapping[str, Array], call: InferCall, wanted: Sequence[str] = ()
) -> tuple[dict[str, Array], str]:
    """Run a model on inputs of any number of rows; return the outputs, and the version that answered.

    Rows beyond `max_batch_size` are sent as several requests of one call, `_PARTS` at a time. The version that answers
    the first answers all; one that fails fails the call, and the others are cancelled. Where a version went away
    meanwhile, and the caller named none, the call starts over once.

    Args:
        core: Of the gateway.
        target: From `find`.
        inputs: By name.
        call: Who calls, in what trace, and with what deadline.
        wanted: Names of the outputs; empty for all.

    Raises:
        LimitExceeded: There are too many rows.
        MqinferError: Whatever else came of it.
    """
    signature = target.signature
    check_inputs(signature, list(inputs))
    check_outputs(signature, wanted)
    arrays, axes = widened(signature, inputs)
    run = _Run(core, target, call, wanted)
    rows, most = _rows(arrays), signature.max_batch_size
    if not 0 < most < rows:
        result = await core.inference.infer(run.call, lambda send: run.one(send, arrays))
        return narrowed(signature, result.outputs, axes), result.model_version
    if rows > most * _MOST_PARTS:
        raise LimitExceeded(
            f"{rows} rows, and model {target.spec.model!r} takes {most} at a time: at most {_MOST_PARTS} requests are "
            "made of one; send less at once, or raise the model's max_batch_size"
        )
    parts = [slice(start, start + most) for start in range(0, rows, most)]

    async def send_all(send: Send) -> tuple[dict[str, Array], str]:
        try:
            results = await run.all(send, arrays, parts)
        except (ModelNotFound, NoWorker):
            if target.spec.version is not None:
                raise
            results = await run.all(send, arrays, parts)
        counts = [min(most, rows - part.start) for part in parts]
        return joined([result.outputs for result in results], counts), results[0].model_version

    outputs, version = await core.inference.infer(run.call, send_all)
    return narrowed(signature, outputs, axes), version


def _rows(arrays: Mapping[str, Array]) -> int:
    """Return how many rows all inputs have; 0 where they differ, which the worker refuses."""
    counts = {array.shape[:1] for array in arrays.values()}
    return next(iter(counts.pop()), 0) if len(counts) == 1 else 0


class _Run:
    """The requests of one call.

    Attributes:
        call: What they have in common.
    """

    def __init__(self, core: Core, target: NamedModel, call: InferCall, wanted: Sequence[str]) -> None:
        self._most_bytes = core.max_bytes
        self._loop = asyncio.get_running_loop()
        self._deadline = self._loop.time() + (call.deadline_s or 0.0)
        self.call = replace(
            call,
            model=target.spec.model,
            version=target.spec.version,
            outputs=tuple(map(RequestedOutput, wanted)),
            signature="" if is_own(target.card, target.signature) else target.signature.name,
        )

    async def one(self, send: Send, arrays: Mapping[str, Array], version: str | None = None) -> InferResult:
        """Send one request."""
        inputs = tuple([encode_tensor(name, array) for name, array in arrays.items()])
        left = max(0.0, self._deadline - self._loop.time())
        return await send(replace(self.call, inputs=inputs, deadline_s=left, version=version or self.call.version))

    async def all(self, send: Send, arrays: Mapping[str, Array], parts: Sequence[slice]) -> list[InferResult]:
        """Send one request for each part of the rows, and return their results in the same order."""

        def of(part: slice) -> dict[str, Array]:
            return {name: array[part] for name, array in arrays.items()}

        first = await self.one(send, of(parts[0]))
        results: list[Any] = [first, *[None] * (len(parts) - 1)]
        left = iter(range(1, len(parts)))
        room = self._most_bytes - outputs_size(first.outputs)

        async def send_next() -> None:
            nonlocal room
            for place in left:
                results[place] = result = await self.one(send, of(parts[place]), first.model_version)
                room -= outputs_size(result.outputs)
                if room < 0:
                    raise LimitExceeded(
                        f"the outputs of {len(parts)} requests take more than {self._most_bytes} bytes; send "
                        "less at once"
                    )

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(_PARTS, len(parts) - 1)):
                    group.create_task(send_next())
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from None
        return results

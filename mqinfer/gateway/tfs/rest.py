"""TensorFlow Serving's REST API: status, metadata, predict, classify and regress.

https://www.tensorflow.org/tfx/serving/api_rest
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from aiohttp import web
from msgspec.structs import replace as changed

from mqinfer.gateway.access import Access, Right
from mqinfer.gateway.calls import InferCall, offload
from mqinfer.gateway.core import Core
from mqinfer.gateway.errors import FailedPrecondition
from mqinfer.gateway.http import (
    AdmittedCall,
    Bodies,
    Endpoint,
    LargeJson,
    json_reply,
    make_application,
)
from mqinfer.gateway.metrics import make_metrics
from mqinfer.gateway.settings import GatewaySettings
from mqinfer.gateway.tfs.calls import NamedModel, Spec, find, infer, version_states
from mqinfer.gateway.tfs.examples import MOST_NAMED, TASK_PREFIX, TASKS, Task, examples_from_json, run_task
from mqinfer.gateway.tfs.json_tensors import (
    dtype_name,
    one_large,
    parse,
    read_predict,
    shown,
    write_json,
    write_predictions,
)
from mqinfer.gateway.tfs.signatures import choose, signatures_of
from mqinfer.protocol.card import Signature, SignatureTensor
from mqinfer.protocol.datatypes import Array, Datatype
from mqinfer.protocol.errors import BadEnvelope, BadTensor, InvalidRequest
from mqinfer.protocol.types import Buffer

_VERSION = r"(?:/versions/(\d+)|/labels/([^/:]+))?"
_PREDICTION = re.compile(rf"/v1/models/([^/:]+){_VERSION}:(classify|regress|predict)", re.IGNORECASE)
_STATUS = re.compile(rf"/v1/models(?:/([^/:]+))?{_VERSION}", re.IGNORECASE)
_METADATA = re.compile(rf"/v1/models/([^/:]+){_VERSION}/metadata", re.IGNORECASE)
_CONFIG = re.compile("/v1/config")
_OTHER = re.compile(r"/v1/.*", re.IGNORECASE | re.DOTALL)
_METRICS = re.compile("/monitoring/prometheus/metrics")
_CORS = {
    "Access-Control-Allow-Origin": "*",
    "Access-Control-Allow-Methods": "POST, GET",
    "Access-Control-Allow-Headers": "Content-Type",
}
_MOST_VERSION = (1 << 63) - 1

_T = TypeVar("_T")
Handler = Callable[[AdmittedCall], Awaitable[web.Response]]


def make_rest_app(
    core: Core,
    access: Access,
    settings: GatewaySettings,
) -> web.Application:
    """Return the application of the REST API; see `gateway.http.make_runner` for what serves it.

    Args:
        core: Answers the calls.
        access: Decides who may call what.
        settings: Of the gateway; its metrics are also where TensorFlow Serving has them, unless they are switched off.
    """
    front = _Front(core, settings)
    monitoring: list[Endpoint] = []
    if settings.ports.metrics_port:
        metrics = make_metrics(core, access, settings)
        monitoring.append(Endpoint(_METRICS, Right.STATISTICS, {"GET": lambda call: metrics(call.request)}))

    def route(pattern: re.Pattern[str], right: Right, method: str, handler: Handler) -> Endpoint:
        others = dict.fromkeys(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"), _malformed)
        return Endpoint(pattern, right, {**others, "OPTIONS": _preflight, method: handler})

    app = make_application(
        [
            route(_PREDICTION, Right.INFERENCE, "POST", front.run),
            route(_METADATA, Right.METADATA, "GET", front.metadata),
            route(_STATUS, Right.METADATA, "GET", front.status),
            route(_CONFIG, Right.METADATA, "GET", front.config),
            route(_OTHER, Right.HEALTH, "GET", _malformed),
            *monitoring,
        ],
        access,
        front.bodies,
    )
    if settings.callers.tfs_cors:
        app.on_response_prepare.append(_allow_origins)
    return app


async def _allow_origins(_: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(_CORS)


async def _malformed(call: AdmittedCall) -> web.Response:
    raise InvalidRequest(f"Malformed request: {call.request.method} {call.request.rel_url.raw_path[:200]}")


async def _preflight(call: AdmittedCall) -> web.Response:
    if not re.match("https?://", call.request.headers.get("Origin", "")):
        raise FailedPrecondition("Origin header is missing in CORS preflight")
    return web.Response(content_type="application/json")


class _Front:
    """Handlers of the paths."""

    def __init__(self, core: Core, settings: GatewaySettings) -> None:
        self._core, self._bounds = core, settings.bounds
        self.bodies = Bodies(settings, core)

    async def status(self, call: AdmittedCall) -> web.Response:
        return json_reply(_statuses(await version_states(self._core, _spec(call))))

    async def config(self, _: AdmittedCall) -> web.Response:
        """Answer what OpenVINO Model Server calls the status of its configuration: that of all models."""
        models = sorted(self._core.client.connection.registry.known.cards)
        return json_reply({name: _statuses(await version_states(self._core, Spec(name))) for name in models})

    async def metadata(self, call: AdmittedCall) -> web.Response:
        spec = _spec(call)
        card = (await find(self._core, spec)).card
        signatures = {name: _signature(signature) for name, signature in signatures_of(card).items()}
        return json_reply(
            {
                "model_spec": {"name": spec.model, "signature_name": "", "version": card.version},
                "metadata": {"signature_def": {"signature_def": signatures}},
            }
        )

    async def run(self, call: AdmittedCall) -> web.Response:
        """Predict, classify or regress."""
        spec, method = _spec(call), call.parts[3].lower()
        task = TASKS.get(f"{TASK_PREFIX}{method}")
        run = partial(self._run_task, task) if task else partial(self._predict, call)
        async with self.bodies.read(call) as body:
            deadline = min(self._bounds.timeout, self._bounds.tfs_rest_timeout)
            reply = await run(spec, body, InferCall(caller=call.caller, deadline_s=deadline, **call.trace))
        return await self.bodies.reply(call.request, reply)

    async def _predict(self, admitted: AdmittedCall, spec: Spec, body: Buffer, call: InferCall) -> bytes | LargeJson:
        own = await find(self._core, spec)
        target, (inputs, rows) = await offload(len(body), _read, body, own, _predict_inputs)
        outputs, _ = await infer(self._core, target, inputs, call)
        return await self.bodies.write(admitted, outputs, partial(write_predictions, outputs, rows=rows))

    async def _run_task(self, task: Task, spec: Spec, body: Buffer, call: InferCall) -> bytes:
        own = await find(self._core, spec)
        target, examples = await offload(len(body), _read, body, own, _examples, MOST_NAMED)
        found, _ = await run_task(self._core, target, task, examples, call)
        return write_json({"results": found})


def _statuses(states: Mapping[str, bool]) -> dict[str, Any]:
    return {
        "model_version_status": [
            {
                "version": version,
                "state": "AVAILABLE" if is_ready else "END",
                "status": {"error_code": "OK", "error_message": ""},
            }
            for version, is_ready in states.items()
        ]
    }


def _read(
    body: Buffer, own: NamedModel, read: Callable[[dict[str, Any], NamedModel], _T], *most: int
) -> tuple[NamedModel, _T]:
    """Return what a body asks for and its arrays; the lists between, which take much more memory, wait for nobody.

    Args:
        body: Of the call.
        own: The model that its path names, with the model's own signature.
        read: Returns the arrays of the parsed body.
        most: Bound of `parse`, where there is one.
    """
    with one_large(body):
        content = parse(body, *most)
        target = _signed(own, _signature_name(content))
        return target, read(content, target)


def _predict_inputs(content: dict[str, Any], target: NamedModel) -> tuple[dict[str, Array], bool]:
    try:
        return read_predict(content, target.signature.inputs)
    except BadTensor:
        takes = [contract.input for contract in target.card.pictures]
        if takes:  # files of pictures stand as binary data where the signature has numbers
            with suppress(BadTensor):
                return read_predict(content, [_strings(each, takes) for each in target.signature.inputs])
        raise


def _strings(tensor: SignatureTensor, takes: Sequence[str]) -> SignatureTensor:
    return changed(tensor, datatype=Datatype.BYTES) if tensor.name in takes else tensor


def _examples(content: dict[str, Any], _: NamedModel) -> Array:
    return examples_from_json(content)


def _signed(own: NamedModel, name: str) -> NamedModel:
    try:
        signature = choose(own.card, name)
    except FailedPrecondition as error:
        raise InvalidRequest(f'Serving signature name: "{name[:80]}" not found in signature def') from error
    return replace(own, spec=replace(own.spec, signature=name), signature=signature)


def _spec(call: AdmittedCall) -> Spec:
    model, version, label = call.parts[:3]
    if version and int(version[:20]) > _MOST_VERSION:
        raise InvalidRequest(f"Failed to convert version: {version[:40]} to numeric.")
    return Spec(model, str(int(version)) if version else None, label)


def _signature_name(content: Mapping[str, Any]) -> str:
    name = content.get("signature_name", "")
    if not isinstance(name, str):
        raise BadEnvelope(
            f"JSON Value: {shown(content)} not formatted correctly. 'signature_name' key must be a string value."
        )
    return name


def _signature(signature: Signature) -> dict[str, Any]:
    return {
        "inputs": {tensor.name: _info(tensor) for tensor in signature.inputs},
        "outputs": {tensor.name: _info(tensor) for tensor in signature.outputs},
        "method_name": signature.method,
        "defaults": {},
    }


def _info(tensor: SignatureTensor) -> dict[str, Any]:
    return {
        "dtype": f"DT_{dtype_name(tensor.datatype).upper()}",
        "tensor_shape": {
            "dim": [{"size": str(size), "name": ""} for size in tensor.shape or ()],
            "unknown_rank": tensor.shape is None,
        },
        "name": tensor.tensor,
    }

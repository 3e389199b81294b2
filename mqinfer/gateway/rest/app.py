"""The paths of the Open Inference Protocol over HTTP, as Triton's server routes them."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, TypeVar

import numpy as np
import orjson
from aiohttp import web
from msgspec import Struct

from mqinfer.client.result import InferResult
from mqinfer.gateway.access import Access, Right
from mqinfer.gateway.calls import LARGE, InferCall, offload, outputs_size
from mqinfer.gateway.core import Core
from mqinfer.gateway.deepstack.calls import deepstack_routes
from mqinfer.gateway.errors import Unsupported
from mqinfer.gateway.http import (
    AdmittedCall,
    Bodies,
    Endpoint,
    LargeJson,
    dump_json,
    json_reply,
    large_json,
    make_application,
)
from mqinfer.gateway.messages import to_record
from mqinfer.gateway.protocol_answers import (
    NO_NAMED_REPOSITORY,
    NO_SHARED_MEMORY,
    check_region,
    config_of,
    describe_model,
    describe_server,
    log_settings,
    trace_settings,
)
from mqinfer.gateway.rest.request import (
    RestRequest,
    expand_raw,
    header_length,
    picture_request,
    read_json,
    read_request,
)
from mqinfer.gateway.settings import GatewaySettings
from mqinfer.images.sending import begins_picture
from mqinfer.protocol.datatypes import Array, Buffer, Datatype, datatype_of, little_endian, raw_bytes
from mqinfer.protocol.decoding import prepare
from mqinfer.protocol.errors import BadTensor
from mqinfer.protocol.oip_json import HEADER_LENGTH, data_of_array

_T = TypeVar("_T")
Handler = Callable[[AdmittedCall], Awaitable[web.Response]]
_MODEL = r"/v2/models/([^/]+)(?:/versions/([0-9]+))?"
_REGION = r"/v2/(system|cuda)sharedmemory(?:/region/([^/]+))?"
_REPOSITORY = r"/v2/repository(?:/([^/]+))?"


def make_app(core: Core, access: Access, settings: GatewaySettings) -> web.Application:
    """Return the application of the Open Inference Protocol and DeepStack's calls; `http.make_runner` serves it."""
    front = _Front(core, settings)
    repository = _Repository(core, front.bodies)

    def route(pattern: str, right: Right, **methods: Handler) -> Endpoint:
        return Endpoint(re.compile(pattern), right, methods)

    return make_application(
        [
            route(f"{_MODEL}/infer", Right.INFERENCE, POST=front.infer),
            route("/v2/health/live", Right.HEALTH, GET=front.live),
            route("/v2/health/ready", Right.HEALTH, GET=front.ready),
            route("/v2/models/stats", Right.STATISTICS, GET=front.statistics),
            route(f"{_MODEL}/stats", Right.STATISTICS, GET=front.statistics),
            route(f"{_MODEL}/ready", Right.HEALTH, GET=front.model_ready),
            route(f"{_MODEL}/config", Right.MODEL_CONFIG, GET=front.config),
            route(_MODEL, Right.METADATA, GET=front.metadata),
            route("/v2/?", Right.METADATA, GET=front.server),
            route(f"{_REPOSITORY}/index", Right.MODEL_REPOSITORY, POST=repository.index),
            route(f"{_REPOSITORY}/models/([^/]+)/load", Right.MODEL_REPOSITORY, POST=repository.load),
            route(f"{_REPOSITORY}/models/([^/]+)/unload", Right.MODEL_REPOSITORY, POST=repository.unload),
            route(f"{_REGION}/status", Right.SHARED_MEMORY, GET=_no_regions),
            route(f"{_REGION}/unregister", Right.SHARED_MEMORY, POST=_nothing),
            route(f"{_REGION}/register", Right.SHARED_MEMORY, POST=_no_shared_memory),
            route(
                r"/v2(?:/models/([^/]+))?/trace/setting",
                Right.TRACE,
                GET=front.trace_settings,
                POST=front.update_trace_settings,
            ),
            route("/v2/logging", Right.LOGGING, GET=_log_settings, POST=front.update_log_settings),
            route(f"{_MODEL}/(generate|generate_stream)", Right.INFERENCE, POST=front.generate),
            *deepstack_routes(core, access, front.bodies, settings.detection_model),
        ],
        access,
        front.bodies,
    )


class _Index(Struct, frozen=True):
    ready: bool = False


class _Load(Struct, frozen=True):
    parameters: dict[str, Any] | None = None


class _UnloadParameters(Struct, frozen=True):
    unload_dependents: bool = False


class _Unload(Struct, frozen=True):
    parameters: _UnloadParameters | None = None


prepare(_Index, _Load, _Unload)


class _Front:
    """Handlers of the paths that need the core or a body."""

    def __init__(self, core: Core, settings: GatewaySettings) -> None:
        self._core, self._settings = core, settings
        self.bodies = Bodies(settings, core)

    async def live(self, _: AdmittedCall) -> web.Response:
        return json_reply({"live": True})

    async def ready(self, _: AdmittedCall) -> web.Response:
        return _state(self._core.ready(), {"ready": True}, "the gateway is not ready")

    async def server(self, _: AdmittedCall) -> web.Response:
        return json_reply(describe_server(self._settings))

    async def model_ready(self, call: AdmittedCall) -> web.Response:
        model, version = _model(call)
        is_ready = self._core.model_ready(model, version)
        return _state(is_ready, {"name": model, "ready": True}, "Model version not ready")

    async def metadata(self, call: AdmittedCall) -> web.Response:
        return json_reply(describe_model(await self._core.metadata(*_model(call))))

    async def config(self, call: AdmittedCall) -> web.Response:
        return json_reply(to_record(await config_of(self._core, *_model(call))))

    async def statistics(self, call: AdmittedCall) -> web.Response:
        model, version = _model(call) if call.parts else ("", None)
        found = await self._core.statistics(model, version)
        return json_reply({"model_stats": [each | {"response_stats": {}} for each in found]})

    async def infer(self, call: AdmittedCall) -> web.Response:
        model, version = _model(call)
        headers = call.request.headers
        async with self.bodies.read(call) as body:
            length = header_length(headers.get(HEADER_LENGTH), len(body))
            if headers.get("Content-Type", "").startswith("image/") or (length and begins_picture(body)):
                request = picture_request(body, await self._core.metadata(model, version), call.request.query)
            elif length or not body:
                request = await offload(length, read_request, body, length, model)
            else:
                request = expand_raw(body, await self._core.metadata(model, version))
            result = await self._core.infer(
                InferCall(
                    model,
                    version,
                    request.inputs,
                    request.outputs,
                    caller=call.caller,
                    timeout_s=request.timeout_s,
                    priority=request.priority,
                    parameters=request.parameters,
                    **call.trace,
                )
            )
        content, head = await self.bodies.write(call, result.outputs, partial(_write_reply, request, result))
        binary = {"Content-Type": "application/octet-stream", HEADER_LENGTH: str(head)}
        return await self.bodies.reply(call.request, content, None if head is None else binary)

    async def generate(self, call: AdmittedCall) -> web.Response:
        await self._core.metadata(*_model(call))
        raise Unsupported(f"{call.parts[2]} is not supported: models here answer each request once; use infer")

    async def trace_settings(self, call: AdmittedCall) -> web.Response:
        if call.parts[0]:
            await self._core.metadata(call.parts[0])
        settings = trace_settings()
        return json_reply({**settings, "trace_level": [settings["trace_level"]]})

    async def update_trace_settings(self, call: AdmittedCall) -> web.Response:
        settings = await _fields(self.bodies, call, dict[str, Any])
        trace_settings([name for name, value in settings.items() if value is not None])
        return await self.trace_settings(call)

    async def update_log_settings(self, call: AdmittedCall) -> web.Response:
        settings = await _fields(self.bodies, call, dict[str, Any])
        log_settings([name for name, value in settings.items() if value is not None])
        return await _log_settings(call)


class _Repository:
    """Handlers of the paths of the model repository."""

    def __init__(self, core: Core, bodies: Bodies) -> None:
        self._core, self._bodies = core, bodies

    async def index(self, call: AdmittedCall) -> web.Response:
        _check_repository(call)
        wanted = await _fields(self._bodies, call, _Index)
        entries = await self._core.index(only_ready=wanted.ready)
        return json_reply([{key: value for key, value in each.items() if value or key != "reason"} for each in entries])

    async def load(self, call: AdmittedCall) -> web.Response:
        _check_repository(call)
        wanted = await _fields(self._bodies, call, _Load)
        await self._core.load(call.parts[1], wanted.parameters, call.caller)
        return web.Response(content_type="application/json")

    async def unload(self, call: AdmittedCall) -> web.Response:
        _check_repository(call)
        await _fields(self._bodies, call, _Unload)
        await self._core.unload(call.parts[1], call.caller)
        return web.Response(content_type="application/json")


async def _fields(bodies: Bodies, call: AdmittedCall, shape: type[_T]) -> _T:
    """Return the fields of a body of JSON, at their defaults where it is empty."""
    async with bodies.read(call) as body:
        return await offload(len(body), read_json, body, shape)


def _check_repository(call: AdmittedCall) -> None:
    if call.parts[0]:
        raise Unsupported(NO_NAMED_REPOSITORY)


def _model(call: AdmittedCall) -> tuple[str, str | None]:
    """Return the model and the version that a path names."""
    return call.parts[0], call.parts[1] or None


def _state(is_so: bool, content: dict[str, Any], otherwise: str) -> web.Response:  # noqa: FBT001
    return json_reply(content) if is_so else json_reply({"error": otherwise}, 400)


async def _no_regions(call: AdmittedCall) -> web.Response:
    kind, region = call.parts
    check_region(kind, region)
    return json_reply([])


async def _nothing(_: AdmittedCall) -> web.Response:
    return web.Response(content_type="application/json")


async def _no_shared_memory(_: AdmittedCall) -> web.Response:
    raise Unsupported(NO_SHARED_MEMORY)


async def _log_settings(_: AdmittedCall) -> web.Response:
    return json_reply(log_settings())


def _write_reply(request: RestRequest, result: InferResult) -> tuple[bytes | LargeJson, int | None]:
    """Return the body of a reply, and the length of its JSON where the bytes of binary outputs follow.

    Raises:
        BadTensor: An output can't be written as JSON: FP16, or strings that are not UTF-8.
    """
    tail: list[Buffer] = []
    outputs = [
        _output(name, array, tail if name in request.binary or (request.all_binary and not request.outputs) else None)
        for name, array in result.outputs.items()
    ]
    body: dict[str, Any] = {"id": request.id} if request.id else {}
    body |= {"model_name": result.model_name, "model_version": result.model_version, "outputs": outputs}
    if not tail and not _is_small(result.outputs):
        return large_json(body, result.outputs), None
    head = orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY) if _is_small(result.outputs) else dump_json(body)
    return (b"".join((head, *tail)), len(head)) if tail else (head, None)


def _is_small(outputs: Mapping[str, Array]) -> bool:
    return outputs_size(outputs) <= LARGE and all(each.dtype.kind != "O" for each in outputs.values())


def _output(name: str, array: Array, tail: list[Buffer] | None) -> dict[str, Any]:
    datatype = datatype_of(array.dtype)
    entry: dict[str, Any] = {"name": name, "datatype": str(datatype), "shape": array.shape}
    if tail is None:
        return entry | {"data": _data(name, datatype, array)}
    data = raw_bytes(name, little_endian(array))
    tail.append(data)
    return entry | {"parameters": {"binary_data_size": memoryview(data).nbytes}}


def _data(name: str, datatype: Datatype, array: Array) -> Any:
    if datatype is Datatype.FP16:
        raise BadTensor(
            f"sending FP16 data via JSON is not supported. Please use the binary data format for output {name}"
        )
    if datatype is Datatype.BYTES or (array.dtype.kind == "f" and not np.isfinite(array).all()):
        return data_of_array(name, array)
    return np.ascontiguousarray(array).reshape(-1)

"""The methods of `inference.GRPCInferenceService` with one request and one reply, but for inference itself."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from typing import Any

from mqinfer.gateway.access import Right
from mqinfer.gateway.core import Core
from mqinfer.gateway.errors import Unsupported
from mqinfer.gateway.grpc_calls import GrpcCaller, Work
from mqinfer.gateway.messages import from_record, message_class, parse
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
from mqinfer.gateway.settings import GatewaySettings
from mqinfer.protocol.errors import LimitExceeded

_MOST_BYTES = 1 << 20
"""Bytes of a request that carries no tensors."""

_caller: ContextVar[str] = ContextVar("caller")
"""Who made the call that a task answers."""
_Fields = Mapping[str, Any]
_Method = Callable[[Core, GatewaySettings, Any], Awaitable[_Fields]]
"""What a method does: from the request's message to the fields of the reply's."""


def make_work(name: str, method: _Method, core: Core, settings: GatewaySettings) -> Work:
    """Return what a method does, from bytes to bytes."""
    request_class, reply_class = message_class(f"inference.{name}Request"), message_class(f"inference.{name}Response")

    async def work(request: bytes, caller: GrpcCaller) -> bytes:
        _caller.set(caller.name)
        if len(request) > _MOST_BYTES:
            raise LimitExceeded(
                f"{_refusal(name)}a request of {len(request)} bytes; at most {_MOST_BYTES} are accepted"
            )
        reply: bytes = reply_class(**await method(core, settings, parse(request_class, request))).SerializeToString()
        return reply

    return work


def _refusal(name: str) -> str:
    return "failed to load: files of models are not accepted; " if name == "RepositoryModelLoad" else ""


async def _server_live(_core: Core, _settings: GatewaySettings, _request: Any) -> _Fields:
    return {"live": True}


async def _server_ready(core: Core, _settings: GatewaySettings, _request: Any) -> _Fields:
    return {"ready": core.ready()}


async def _model_ready(core: Core, _settings: GatewaySettings, request: Any) -> _Fields:
    return {"ready": core.model_ready(request.name, request.version or None)}


async def _server_metadata(_core: Core, settings: GatewaySettings, _request: Any) -> _Fields:
    return describe_server(settings)


async def _model_metadata(core: Core, _settings: GatewaySettings, request: Any) -> _Fields:
    card = await core.metadata(request.name, request.version or None)
    properties = {
        "version": card.version,
        "max_batch_size": str(card.max_batch_size),
        "model_hash": card.parameters.model_hash,
        "precision": card.parameters.precision,
        "backend": card.parameters.backend,
        "device": card.parameters.device,
    }
    return {**describe_model(card), "properties": properties}


async def _model_config(core: Core, _settings: GatewaySettings, request: Any) -> _Fields:
    return {"config": await config_of(core, request.name, request.version or None)}


async def _model_statistics(core: Core, _settings: GatewaySettings, request: Any) -> _Fields:
    found = await core.statistics(request.name, request.version or None)
    return {"model_stats": [from_record("ModelStatistics", each) for each in found]}


async def _repository_index(core: Core, _settings: GatewaySettings, request: Any) -> _Fields:
    if request.repository_name:
        raise Unsupported(NO_NAMED_REPOSITORY)
    keys = ("name", "version", "state", "reason")
    entries = await core.index(only_ready=request.ready)
    return {"models": [{key: each.get(key, "") for key in keys} for each in entries]}


async def _load(core: Core, _settings: GatewaySettings, request: Any) -> _Fields:
    model = _model_of(request)
    await core.load(model, {key: _chosen(value) for key, value in request.parameters.items()}, _caller.get())
    return {"model_name": model, "isLoaded": True}


async def _unload(core: Core, _settings: GatewaySettings, request: Any) -> _Fields:
    model = _model_of(request)
    await core.unload(model, _caller.get())
    return {"model_name": model, "isUnloaded": True}


def _model_of(request: Any) -> str:
    """Return the model to load or unload; KServe's messages have its name where Triton's have the repository's."""
    if request.repository_name and request.model_name:
        raise Unsupported(NO_NAMED_REPOSITORY)
    return str(request.model_name or request.repository_name)


def _chosen(parameter: Any) -> Any:
    kind = parameter.WhichOneof("parameter_choice")
    return getattr(parameter, kind) if kind else ""


async def _no_regions(_core: Core, _settings: GatewaySettings, _request: Any) -> _Fields:
    return {}


def _regions(kind: str) -> _Method:
    async def status(_core: Core, _settings: GatewaySettings, request: Any) -> _Fields:
        check_region(kind, request.name)
        return {}

    return status


async def _no_shared_memory(_core: Core, _settings: GatewaySettings, _request: Any) -> _Fields:
    raise Unsupported(NO_SHARED_MEMORY)


async def _trace_setting(core: Core, _settings: GatewaySettings, request: Any) -> _Fields:
    if request.model_name:
        await core.metadata(request.model_name)  # unknown models are an error
    return {"settings": {key: {"value": [value]} for key, value in trace_settings(request.settings).items()}}


async def _log_settings(_core: Core, _settings: GatewaySettings, request: Any) -> _Fields:
    kinds = {bool: "bool_param", int: "uint32_param", str: "string_param"}
    return {"settings": {key: {kinds[type(value)]: value} for key, value in log_settings(request.settings).items()}}


METHODS: Mapping[str, tuple[Right, _Method]] = {
    "ServerLive": (Right.HEALTH, _server_live),
    "ServerReady": (Right.HEALTH, _server_ready),
    "ModelReady": (Right.HEALTH, _model_ready),
    "ServerMetadata": (Right.METADATA, _server_metadata),
    "ModelMetadata": (Right.METADATA, _model_metadata),
    "ModelConfig": (Right.MODEL_CONFIG, _model_config),
    "ModelStatistics": (Right.STATISTICS, _model_statistics),
    "RepositoryIndex": (Right.MODEL_REPOSITORY, _repository_index),
    "RepositoryModelLoad": (Right.MODEL_REPOSITORY, _load),
    "RepositoryModelUnload": (Right.MODEL_REPOSITORY, _unload),
    "SystemSharedMemoryStatus": (Right.SHARED_MEMORY, _regions("system")),
    "SystemSharedMemoryRegister": (Right.SHARED_MEMORY, _no_shared_memory),
    "SystemSharedMemoryUnregister": (Right.SHARED_MEMORY, _no_regions),
    "CudaSharedMemoryStatus": (Right.SHARED_MEMORY, _regions("cuda")),
    "CudaSharedMemoryRegister": (Right.SHARED_MEMORY, _no_shared_memory),
    "CudaSharedMemoryUnregister": (Right.SHARED_MEMORY, _no_regions),
    "TraceSetting": (Right.TRACE, _trace_setting),
    "LogSettings": (Right.LOGGING, _log_settings),
}
"""Which right callers need for a method, and what it does."""

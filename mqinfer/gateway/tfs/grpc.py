"""TensorFlow Serving's gRPC services: PredictionService and ModelService."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

import grpc

from mqinfer.gateway.access import Access, Right
from mqinfer.gateway.calls import InferCall, offload, outputs_size
from mqinfer.gateway.core import Core
from mqinfer.gateway.errors import Unsupported
from mqinfer.gateway.grpc.reflection import make_reflection
from mqinfer.gateway.grpc_calls import GrpcCaller, unary
from mqinfer.gateway.settings import GatewaySettings
from mqinfer.gateway.tfs.calls import Spec, find, infer, version_states
from mqinfer.gateway.tfs.examples import CLASSIFY, REGRESS, TASKS, examples_of, run_task
from mqinfer.gateway.tfs.messages import SIGNATURE_DEF_URL, parse, tfs_class
from mqinfer.gateway.tfs.signatures import DEFAULT, signatures_of
from mqinfer.gateway.tfs.tensors import NUMBERS, read_tensors, write_tensor
from mqinfer.protocol.card import Signature, SignatureTensor
from mqinfer.protocol.datatypes import Array
from mqinfer.protocol.errors import InvalidRequest, LimitExceeded
from mqinfer.protocol.limits import DEFAULT_LIMITS

_SIGNATURE_DEF = "signature_def"
_AVAILABLE, _END = 30, 50
"""States of a version (`get_model_status.proto`)."""

_Method = Callable[[bytes, GrpcCaller], Awaitable[bytes]]


def make_grpc_handlers(core: Core, access: Access, settings: GatewaySettings) -> list[Any]:
    """Return the handlers of both services, for `grpc_calls.make_server`."""
    front = _Front(core, settings)

    def service(name: str, **methods: tuple[Right, _Method]) -> Any:
        handlers = {method: unary(access, right, work, core) for method, (right, work) in methods.items()}
        return grpc.method_handlers_generic_handler(f"tensorflow.serving.{name}", handlers)

    return [
        service(
            "PredictionService",
            Predict=(Right.INFERENCE, front.predict),
            Classify=(Right.INFERENCE, front.classify),
            Regress=(Right.INFERENCE, front.regress),
            MultiInference=(Right.INFERENCE, front.multi_inference),
            GetModelMetadata=(Right.METADATA, front.metadata),
        ),
        service(
            "ModelService",
            GetModelStatus=(Right.METADATA, front.status),
            HandleReloadConfigRequest=(Right.MODEL_REPOSITORY, _reload),
        ),
        *make_reflection(core, access, ("tensorflow_serving.proto",)),
    ]


class _Front:
    """The methods, each from the bytes of a request to those of the reply."""

    def __init__(self, core: Core, settings: GatewaySettings) -> None:
        self._core, self._bounds = core, settings.bounds

    async def predict(self, data: bytes, caller: GrpcCaller) -> bytes:
        request = await offload(len(data), parse, "PredictRequest", data)
        own = self._call(caller)
        target = await find(self._core, _spec(request))
        inputs = await offload(len(data), read_tensors, request.inputs, self._bounds.http_max_input_size)
        outputs, version = await infer(self._core, target, inputs, own, tuple(request.output_filter))
        return await offload(outputs_size(outputs), _predict_response, target.spec, outputs, version)

    async def classify(self, data: bytes, caller: GrpcCaller) -> bytes:
        response = tfs_class("ClassificationResponse")()
        await self._run_examples("ClassificationRequest", CLASSIFY, data, caller, response)
        return _bytes(response)

    async def regress(self, data: bytes, caller: GrpcCaller) -> bytes:
        response = tfs_class("RegressionResponse")()
        await self._run_examples("RegressionRequest", REGRESS, data, caller, response)
        return _bytes(response)

    async def _run_examples(self, kind: str, method: str, data: bytes, caller: GrpcCaller, response: Any) -> None:
        request = await offload(len(data), parse, kind, data)
        spec = _spec(request)
        own = self._call(caller)
        examples = await offload(len(data), examples_of, request.input)
        version = await self._run_task(spec, method, examples, own, response.result)
        _fill_spec(response.model_spec, spec, version)

    async def _run_task(self, spec: Spec, method: str, examples: Array, call: InferCall, result: Any) -> str:
        """Classify or regress examples, and fill the result with what came of it; return the version."""
        found, version = await run_task(self._core, await find(self._core, spec), TASKS[method], examples, call)
        for each in found:
            if method == CLASSIFY:
                classes = [{"label": label, "score": score} for label, score in each]
                result.classifications.add(classes=classes)
            else:
                result.regressions.add(value=float(each))
        return version

    async def multi_inference(self, data: bytes, caller: GrpcCaller) -> bytes:
        request = await offload(len(data), parse, "MultiInferenceRequest", data)
        _check_tasks(request.tasks)
        own = self._call(caller)
        examples = await offload(len(data), examples_of, request.input)
        response = tfs_class("MultiInferenceResponse")()
        version: str | None = None
        for task in request.tasks:
            spec = _spec(task)
            asked = spec if version is None else replace(spec, version=version, label="")
            result = response.results.add()
            into = result.classification_result if task.method_name == CLASSIFY else result.regression_result
            # The version that answers the first task answers all.
            version = await self._run_task(asked, task.method_name, examples, own, into)
            _fill_spec(result.model_spec, spec, version)
        return _bytes(response)

    async def metadata(self, data: bytes, _: GrpcCaller) -> bytes:
        request = await offload(len(data), parse, "GetModelMetadataRequest", data)
        if not request.HasField("model_spec"):
            raise InvalidRequest("Missing ModelSpec")
        if not request.metadata_field:
            raise InvalidRequest("GetModelMetadataRequest must specify at least one metadata_field")
        for field in request.metadata_field:
            if field != _SIGNATURE_DEF:
                raise InvalidRequest(f"Metadata field {field[:80]} is not supported")
        model = replace(_spec(request), signature="")
        card = (await find(self._core, model)).card
        found = tfs_class("SignatureDefMap")()
        for name, signature in signatures_of(card).items():
            _fill_signature(found.signature_def[name], signature)
        response = tfs_class("GetModelMetadataResponse")()
        response.model_spec.name = model.model
        response.model_spec.version.value = int(card.version)
        response.metadata[_SIGNATURE_DEF].type_url = SIGNATURE_DEF_URL
        response.metadata[_SIGNATURE_DEF].value = found.SerializeToString()
        return _bytes(response)

    async def status(self, data: bytes, _: GrpcCaller) -> bytes:
        request = await offload(len(data), parse, "GetModelStatusRequest", data)
        if not request.HasField("model_spec"):
            raise InvalidRequest("Missing ModelSpec")
        response = tfs_class("GetModelStatusResponse")()
        for version, is_ready in (await version_states(self._core, _spec(request))).items():
            one = response.model_version_status.add(version=int(version), state=_AVAILABLE if is_ready else _END)
            one.status.SetInParent()  # OK
        return _bytes(response)

    def _call(self, caller: GrpcCaller) -> InferCall:
        deadline = self._bounds.timeout if caller.deadline_s is None else min(caller.deadline_s, self._bounds.timeout)
        traceparent, tracestate = (caller.headers.get(name, "") for name in ("traceparent", "tracestate"))
        return InferCall(caller=caller.name, deadline_s=deadline, traceparent=traceparent, tracestate=tracestate)


async def _reload(_: bytes, __: GrpcCaller) -> bytes:
    raise Unsupported(
        "HandleReloadConfigRequest is not supported: a model is never configured by a message; put it into the "
        "repository of the workers"
    )


def _predict_response(spec: Spec, outputs: Mapping[str, Array], version: str) -> bytes:
    response = tfs_class("PredictResponse")()
    for name, array in outputs.items():
        write_tensor(array, response.outputs[name])
    _fill_spec(response.model_spec, spec, version)
    return _bytes(response)


def _spec(message: Any) -> Spec:
    spec = message.model_spec
    version = str(spec.version.value) if spec.WhichOneof("version_choice") == "version" else None
    return Spec(spec.name, version, spec.version_label, spec.signature_name)


def _fill_spec(message: Any, spec: Spec, version: str) -> None:
    message.name, message.signature_name = spec.model, spec.signature or DEFAULT
    message.version.value = int(version)


def _check_tasks(tasks: Any) -> None:
    if len(tasks) > DEFAULT_LIMITS.tensors:
        raise LimitExceeded(f"{len(tasks)} tasks; at most {DEFAULT_LIMITS.tensors} are accepted")
    names = {task.model_spec.name for task in tasks}
    if not names or "" in names:
        raise InvalidRequest("Found ModelSpec with an empty model name.")
    if len(names) > 1:
        raise InvalidRequest("All ModelSpecs in a MultiInferenceRequest must access the same model name.")
    _check_signatures([_spec(task).signature or DEFAULT for task in tasks])
    for task in tasks:
        if task.method_name not in TASKS:
            raise Unsupported(f"Unsupported signature method_name: {task.method_name[:80]}")


def _check_signatures(names: list[str]) -> None:
    for place, name in enumerate(names):
        if name in names[:place]:
            raise InvalidRequest(f"Duplicate evaluation of signature: {name}")


def _fill_signature(message: Any, signature: Signature) -> None:
    message.method_name = signature.method
    for tensors, into in ((signature.inputs, message.inputs), (signature.outputs, message.outputs)):
        for tensor in tensors:
            _fill_info(into[tensor.name], tensor)


def _fill_info(message: Any, tensor: SignatureTensor) -> None:
    message.name, message.dtype = tensor.tensor, NUMBERS[tensor.datatype]
    message.tensor_shape.unknown_rank = tensor.shape is None
    for size in tensor.shape or ():
        message.tensor_shape.dim.add(size=size)


def _bytes(message: Any) -> bytes:
    found: bytes = message.SerializeToString()
    return found

"""What the clients of the contestants do for one frame: from its array to a request, and from the reply to an array."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct

from mqinfer.bench.contestants import script
from mqinfer.bench.contestants.driving import rotated
from mqinfer.bench.contestants.servers import METHOD, OPTIONS
from mqinfer.bench.workloads import Workload
from mqinfer.broker.address import BrokerAddress
from mqinfer.client.aio import AsyncClient
from mqinfer.client.options import ClientOptions
from mqinfer.edge_agent.preparing.encoding import COLOURS, FrameEncoder
from mqinfer.extras import import_extra
from mqinfer.protocol.datatypes import Array, datatype_of
from mqinfer.protocol.errors import ModelFailed, ReferenceLost
from mqinfer.protocol.types import Capture

Connection = Callable[[int], Awaitable[Array]]
"""Sends the frame of a number, and returns the output."""
_TIMEOUT_S = 60.0
_MOST = 4096
"""Requests of one client at a time."""


class Target(Struct, frozen=True):
    """Where a client sends its requests, and how.

    Attributes:
        kind: Which of `WAYS`.
        port: On this machine; 0 where there is none.
        encoding: Of the inputs.
        logins: Of each vehicle, where it needs them: name, the authority's certificate, its own and its key.
        packages: Folder with the packages of a client that is installed elsewhere.
        url: Of a broker in place of the port; each vehicle begins with another server of a cluster.
        announce: What the vehicles say that they are, in states of their own; None for no states.
        first: Number of the first vehicle.
        model: Where it is another one than the workload's.
        command: A program that does what `clients.main` does, in place of it; its arguments follow.
    """

    kind: str
    port: int = 0
    encoding: str = "raw"
    logins: tuple[tuple[str, str, str, str], ...] = ()
    packages: str = ""
    url: str = ""
    announce: str | None = None
    first: int = 0
    model: str = ""
    command: tuple[str, ...] = ()


Way = Callable[[Target, Workload, int], AbstractAsyncContextManager[Connection]]
"""Connects a vehicle of a number."""


@asynccontextmanager
async def _in_process(_: Target, workload: Workload, vehicle: int) -> AsyncIterator[Connection]:  # noqa: ARG001
    run = workload.open_model()

    async def ask(number: int) -> Array:
        return run(workload.frame(number))

    yield ask


@asynccontextmanager
async def _mqtt(target: Target, workload: Workload, vehicle: int) -> AsyncIterator[Connection]:
    name, address = _login(target, target.first + vehicle)
    options = ClientOptions(timeout=_TIMEOUT_S, max_pending=_MOST)
    encoder, source = FrameEncoder(target.encoding), f"vehicle-{target.first + vehicle}"
    model = target.model or workload.model
    how = encoder.choose(source, is_mosaic=False)
    async with AsyncClient(
        address,
        name=name,
        options=options,
        announce=target.announce,
        in_loop=True,
        connect_timeout=_TIMEOUT_S,
    ) as client:

        async def infer(value: Any, number: int, encoding: str) -> Any:
            capture = Capture(source, number)
            return await client.infer(
                model, {workload.input: value}, encoding=encoding, outputs=[workload.output], capture=capture
            )

        async def ask(number: int) -> Array:
            return np.asarray((await infer(workload.frame(number), number, target.encoding)).outputs[workload.output])

        async def ask_in_stream(number: int) -> Array:
            tensor, _ = encoder.encode(how, workload.input, source, workload.frame(number)[0], COLOURS)
            try:
                result = await infer(tensor, number, "raw")
            except ReferenceLost:  # the worker lacks what it is encoded against
                frame = workload.frame(number)[0]
                tensor, _ = encoder.encode(how, workload.input, source, frame, COLOURS, whole=True)
                result = await infer(tensor, number, "raw")
            encoder.on_result(source, how, [tensor], result)
            return np.asarray(result.outputs[workload.output])

        yield ask_in_stream if how.stream else ask


def _login(target: Target, vehicle: int) -> tuple[str | None, BrokerAddress]:
    if target.url:
        scheme, _, places = target.url.partition("://")
        return f"car-{vehicle}", BrokerAddress.parse(f"{scheme}://{','.join(rotated(places.split(','), vehicle))}")
    if not target.logins:
        return None, BrokerAddress.parse(f"mqtt://127.0.0.1:{target.port}")
    name, *files = target.logins[vehicle]
    ca, cert, key = map(Path, files)
    return name, BrokerAddress.parse(f"mqtts://127.0.0.1:{target.port}", ca_file=ca, cert_file=cert, key_file=key)


def request_maker(workload: Workload) -> Callable[[Array], bytes]:
    """Return what makes a request as the field's clients of gRPC do: its output named, its tensor raw."""
    from mqinfer.gateway.messages import message_class
    from mqinfer.protobuf_wire import delimited

    array = workload.array
    described = {"name": workload.input, "datatype": str(datatype_of(array.dtype)), "shape": array.shape}
    request = message_class("inference.ModelInferRequest")(
        model_name=workload.model, inputs=[described], outputs=[{"name": workload.output}]
    )
    head = bytes(request.SerializeToString()) + delimited(7, array.nbytes)
    return lambda frame: b"".join((head, frame.data.cast("B")))


def predict_maker(workload: Workload) -> Callable[[Array], bytes]:
    """Return what makes a request as TensorFlow Serving's clients do: the tensor's content in a field of its own."""
    from mqinfer.gateway.messages import message_class
    from mqinfer.gateway.tfs.tensors import NUMBERS

    kind = NUMBERS[datatype_of(workload.array.dtype)]
    shape = {"dim": [{"size": size} for size in workload.array.shape]}

    def make(frame: Array) -> bytes:
        request = message_class("tensorflow.serving.PredictRequest")(
            model_spec={"name": workload.model}, output_filter=[workload.output]
        )
        content = message_class("tensorflow.serving.TensorProto")(
            dtype=kind, tensor_shape=shape, tensor_content=frame.tobytes()
        )
        request.inputs[workload.input].CopyFrom(content)
        return bytes(request.SerializeToString())

    return make


def _tail(workload: Workload, reply: bytes) -> Array:
    """Return the output that a reply ends with."""
    expected = workload.expected
    array: Array = np.frombuffer(reply, expected.dtype, offset=len(reply) - expected.nbytes).reshape(expected.shape)
    return array


def _predicted(workload: Workload, reply: bytes) -> Array:
    from mqinfer.gateway.messages import message_class

    tensor = message_class("tensorflow.serving.PredictResponse").FromString(reply).outputs[workload.output]
    content = tensor.tensor_content or b"".join(tensor.float_val)
    if content:
        found: Array = np.frombuffer(content, workload.expected.dtype)
    else:  # whole numbers, in as many bytes as each takes
        typed = message_class("tensorflow.serving.TypedTensorProto").FromString(tensor.SerializeToString())
        found = np.array(typed.int_val or typed.int64_val, workload.expected.dtype)
    return found.reshape([each.size for each in tensor.tensor_shape.dim])


def _over_grpc(
    method: str, maker: Callable[[Workload], Callable[[Array], bytes]], decode: Callable[[Workload, bytes], Array]
) -> Way:
    @asynccontextmanager
    async def connect(target: Target, workload: Workload, _: int) -> AsyncIterator[Connection]:
        grpc = import_extra("grpc", "bench", "grpcio")
        options = [*OPTIONS, ("grpc.use_local_subchannel_pool", 1)]  # a connection of its own for each vehicle
        make = maker(workload)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{target.port}", options=options) as channel:
            call = channel.unary_unary(method)

            async def ask(number: int) -> Array:
                try:
                    return decode(workload, await call(make(workload.frame(number)), timeout=_TIMEOUT_S))
                except grpc.RpcError as error:
                    raise ModelFailed(f"{method}: {error.code().name}: {error.details()}") from error

            yield ask

    return connect


def _json_body(workload: Workload, frame: Array) -> tuple[bytes, dict[str, str]]:
    given = {**_described(workload, frame), "data": frame.ravel().tolist()}
    return json.dumps({"inputs": [given], "outputs": [{"name": workload.output}]}).encode(), {}


def _binary_body(workload: Workload, frame: Array) -> tuple[bytes, dict[str, str]]:
    given = {**_described(workload, frame), "parameters": {"binary_data_size": frame.nbytes}}
    wanted = {"name": workload.output, "parameters": {"binary_data": True}}
    head = json.dumps({"inputs": [given], "outputs": [wanted]}).encode()
    return head + frame.tobytes(), {"Inference-Header-Content-Length": str(len(head))}


def _described(workload: Workload, frame: Array) -> dict[str, object]:
    return {"name": workload.input, "datatype": str(datatype_of(frame.dtype)), "shape": frame.shape}


def predict_body(workload: Workload, frame: Array) -> tuple[bytes, dict[str, str]]:
    """Return the body of a request to TensorFlow Serving's REST API, in numbers of text, and its headers."""
    return json.dumps({"inputs": {workload.input: frame.tolist()}}).encode(), {}


def _json_output(workload: Workload, body: bytes) -> Array:
    (output,) = json.loads(body)["outputs"]
    return np.array(output["data"], workload.expected.dtype).reshape(output["shape"])


def _predict_output(workload: Workload, body: bytes) -> Array:
    outputs = json.loads(body)["outputs"]
    return np.array(outputs[workload.output] if isinstance(outputs, dict) else outputs, workload.expected.dtype)


def _over_rest(
    path: str,
    encode: Callable[[Workload, Array], tuple[bytes, dict[str, str]]],
    decode: Callable[[Workload, bytes], Array],
) -> Way:
    @asynccontextmanager
    async def connect(target: Target, workload: Workload, _: int) -> AsyncIterator[Connection]:
        import aiohttp

        url = f"http://127.0.0.1:{target.port}/{path.format(workload.model)}"
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(_TIMEOUT_S)) as session:

            async def ask(number: int) -> Array:
                body, headers = encode(workload, workload.frame(number))
                async with session.post(url, data=body, headers=headers) as reply:
                    content = await reply.read()
                if reply.status != 200:
                    raise ModelFailed(f"{url}: {reply.status} {content[:200].decode(errors='replace')}")
                return decode(workload, content)

            yield ask

    return connect


@asynccontextmanager
async def _triton(target: Target, workload: Workload, vehicle: int) -> AsyncIterator[Connection]:  # noqa: ARG001
    sys.path.append(target.packages)
    triton = import_extra("tritonclient.grpc.aio", "bench", "tritonclient")
    errors = import_extra("tritonclient.utils", "bench", "tritonclient")
    array, wanted = workload.array, [triton.InferRequestedOutput(workload.output)]
    async with triton.InferenceServerClient(f"127.0.0.1:{target.port}") as client:

        async def ask(number: int) -> Array:
            given = triton.InferInput(workload.input, array.shape, str(datatype_of(array.dtype)))
            given.set_data_from_numpy(workload.frame(number))
            try:
                result = await client.infer(workload.model, [given], outputs=wanted, client_timeout=_TIMEOUT_S)
            except errors.InferenceServerException as error:
                raise ModelFailed(str(error)) from error
            return np.asarray(result.as_numpy(workload.output))

        yield ask


INFER = "/inference.GRPCInferenceService/ModelInfer"
_PREDICT = "/tensorflow.serving.PredictionService/Predict"
WAYS: Mapping[str, Way] = {
    "in-process": _in_process,
    "mqtt": _mqtt,
    "script": script.connect,
    "bare": _over_grpc(METHOD, lambda _: lambda frame: frame.tobytes(), _tail),
    "grpc": _over_grpc(INFER, request_maker, _tail),
    "tfs-grpc": _over_grpc(_PREDICT, predict_maker, _predicted),
    "rest-json": _over_rest("v2/models/{}/infer", _json_body, _json_output),
    "rest-binary": _over_rest("v2/models/{}/infer", _binary_body, _tail),
    "tfs-rest": _over_rest("v1/models/{}:predict", predict_body, _predict_output),
    "triton": _triton,
}

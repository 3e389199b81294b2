"""Ask a real Triton and the gateway the same, and print where their answers differ.

    python -m tests.gateway.triton_probes SITE_PACKAGES

SITE_PACKAGES is that of an environment with nvidia-pytriton, whose wheel has Triton's own server; it runs on a CPU.
Both serve models of the same names and configurations: the gateway those of `tests.gateway.models`, Triton the same in
Python.
docs/reference/gateway.md has the differences with their reasons.
"""

# ruff: noqa: E501, T201 - a table with a probe a line, and what is printed of it

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.json_format import MessageToDict

from mqinfer.gateway.messages import message_class
from tests.gateway.models import build_repository
from tests.ports import free_port

_SHAPES = {
    "simple": ("TYPE_INT32", ["INPUT0", "INPUT1"], ["OUTPUT0", "OUTPUT1"], "16"),
    "simple_string": ("TYPE_STRING", ["INPUT0", "INPUT1"], ["OUTPUT0", "OUTPUT1"], "16"),
    "identity_fp32": ("TYPE_FP32", ["INPUT0"], ["OUTPUT0"], "-1, -1"),
    "identity_bytes": ("TYPE_STRING", ["INPUT0"], ["OUTPUT0"], "-1"),
    "slow": ("TYPE_FP32", ["x"], ["x"], "4"),
}
"""Of each model that Triton serves, too: datatype, inputs, outputs and dims of each."""
_MODEL = """
import time
import numpy as np
import triton_python_backend_utils as pb

class TritonPythonModel:
    def initialize(self, args):
        self.name = args["model_name"]

    def execute(self, requests):
        return [pb.InferenceResponse([pb.Tensor(*each) for each in self.run(request)]) for request in requests]

    def run(self, request):
        given = {each.name(): each.as_numpy() for each in request.inputs()}
        if self.name == "slow":
            time.sleep(2)
            return given.items()
        if len(given) == 1:
            return [("OUTPUT0", given["INPUT0"])]
        left, right = given["INPUT0"], given["INPUT1"]
        if left.dtype == object:
            left, right = left.astype(np.int32), right.astype(np.int32)
            return [("OUTPUT0", text(left + right)), ("OUTPUT1", text(left - right))]
        return [("OUTPUT0", left + right), ("OUTPUT1", left - right)]

def text(array):
    return array.astype(str).astype(object)
"""


def given(name: str, datatype: str, shape: list[Any], data: Any = None, **parameters: Any) -> dict[str, Any]:
    """Return an input of JSON."""
    entry = {"name": name, "datatype": datatype, "shape": shape}
    return entry | ({"parameters": parameters} if parameters else {}) | ({} if data is None else {"data": data})


ROW = [*range(16)]
IN0, IN1 = given("INPUT0", "INT32", [1, 16], ROW), given("INPUT1", "INT32", [1, 16], [1] * 16)
SUMS = {"inputs": [IN0, IN1]}
TEXT = given("INPUT0", "BYTES", [1, 2], ["a", "b"])
LATE = {"inputs": [given("x", "FP32", [1, 4], [1, 2, 3, 4])]}


def infer(body: Any, model: str = "simple", **headers: str) -> tuple[str, str, Any, dict[str, str]]:
    """Return a probe of inference."""
    return "POST", f"/v2/models/{model}/infer", body, {name.replace("_", "-"): value for name, value in headers.items()}


def with_tail(body: dict[str, Any], tail: bytes, length: int | None = None) -> tuple[str, str, Any, dict[str, str]]:
    """Return a probe with binary data."""
    head = json.dumps(body).encode()
    return infer(head + tail, Inference_Header_Content_Length=str(len(head) if length is None else length))


def output(name: str, **parameters: Any) -> dict[str, Any]:
    """Return a requested output."""
    return {"name": name, "parameters": parameters} if parameters else {"name": name}


BINARY = {"inputs": [given("INPUT0", "INT32", [1, 16], binary_data_size=64), IN1]}
HTTP: dict[str, tuple[Any, ...]] = {
    "live": ("GET", "/v2/health/live"),
    "ready": ("GET", "/v2/health/ready"),
    "server metadata": ("GET", "/v2"),
    "server metadata, slash": ("GET", "/v2/"),
    "model metadata": ("GET", "/v2/models/simple"),
    "model metadata, version": ("GET", "/v2/models/identity_fp32/versions/2"),
    "model metadata, strings": ("GET", "/v2/models/identity_bytes"),
    "metadata of an unknown model": ("GET", "/v2/models/nope"),
    "metadata of an unknown version": ("GET", "/v2/models/simple/versions/99"),
    "metadata of a version in letters": ("GET", "/v2/models/simple/versions/x"),
    "config": ("GET", "/v2/models/simple/config"),
    "config of an unknown model": ("GET", "/v2/models/nope/config"),
    "model ready": ("GET", "/v2/models/simple/ready"),
    "unknown model ready": ("GET", "/v2/models/nope/ready"),
    "unknown version ready": ("GET", "/v2/models/simple/versions/99/ready"),
    "stats": ("GET", "/v2/models/simple/stats"),
    "stats of all": ("GET", "/v2/models/stats"),
    "stats of an unknown model": ("GET", "/v2/models/nope/stats"),
    "index": ("POST", "/v2/repository/index"),
    "index, ready": ("POST", "/v2/repository/index", {"ready": True}),
    "index, ready no boolean": ("POST", "/v2/repository/index", {"ready": "yes"}),
    "index, GET": ("GET", "/v2/repository/index"),
    "a named repository": ("POST", "/v2/repository/x/index"),
    "unload": ("POST", "/v2/repository/models/simple_string/unload"),
    "unloaded: ready": ("GET", "/v2/models/simple_string/ready"),
    "unloaded: metadata": ("GET", "/v2/models/simple_string"),
    "unloaded: infer": infer({"inputs": []}, "simple_string"),
    "load": ("POST", "/v2/repository/models/simple_string/load"),
    "load of an unknown model": ("POST", "/v2/repository/models/nope/load"),
    "unload of an unknown model": ("POST", "/v2/repository/models/nope/unload"),
    "load of ..": ("POST", "/v2/repository/models/..%2Fx/load"),
    "load with parameters that are none": ("POST", "/v2/repository/models/simple/load", {"parameters": {"x": 1}}),
    "trace": ("GET", "/v2/trace/setting"),
    "trace of a model": ("GET", "/v2/models/simple/trace/setting"),
    "trace of an unknown model": ("GET", "/v2/models/nope/trace/setting"),
    "logging": ("GET", "/v2/logging"),
    "logging of nothing": ("POST", "/v2/logging", {"nope": 1}),
    "shared memory": ("GET", "/v2/systemsharedmemory/status"),
    "shared memory of a region": ("GET", "/v2/systemsharedmemory/region/r/status"),
    "CUDA shared memory": ("GET", "/v2/cudasharedmemory/status"),
    "shared memory, register": ("POST", "/v2/systemsharedmemory/region/r/register", {"key": "/k", "offset": 0, "byte_size": 8}),
    "shared memory, unregister": ("POST", "/v2/systemsharedmemory/unregister"),
    "shared memory as input": infer({"inputs": [given("INPUT0", "INT32", [1, 16], shared_memory_region="r", shared_memory_byte_size=64), IN1]}),
    "no such path": ("GET", "/v3"),
    "wrong method": ("DELETE", "/v2/models/simple"),
    "infer by GET": ("GET", "/v2/models/simple/infer"),
    "infer": infer(SUMS),
    "infer, id": infer(SUMS | {"id": "mine"}),
    "infer, id a number": infer(SUMS | {"id": 7}),
    "infer, version": infer(SUMS, "simple/versions/1"),
    "infer, unknown version": infer(SUMS, "simple/versions/9"),
    "infer, unknown model": infer(SUMS, "nope"),
    "infer, parameters": infer(SUMS | {"parameters": {"a": 1, "b": "x", "c": True, "d": 1.5}}),
    "infer, parameters a list": infer(SUMS | {"parameters": []}),
    "infer, a reserved parameter": infer(SUMS | {"parameters": {"triton_x": 1}}),
    "infer, priority": infer(SUMS | {"parameters": {"priority": 2}}),
    "infer, timeout": infer(LATE | {"parameters": {"timeout": 50000}}, "slow"),
    "infer, timeout no number": infer(SUMS | {"parameters": {"timeout": "x"}}),
    "infer, outputs": infer(SUMS | {"outputs": [output("OUTPUT1")]}),
    "infer, unknown output": infer(SUMS | {"outputs": [output("OUT")]}),
    "infer, an output twice": infer(SUMS | {"outputs": [output("OUTPUT1"), output("OUTPUT1")]}),
    "infer, an output without name": infer(SUMS | {"outputs": [{}]}),
    "infer, binary output": infer(SUMS | {"outputs": [output("OUTPUT1", binary_data=True), output("OUTPUT0")]}),
    "infer, binary data output": infer(SUMS | {"parameters": {"binary_data_output": True}}),
    "infer, binary_data no boolean": infer(SUMS | {"outputs": [output("OUTPUT1", binary_data=3)]}),
    "infer, binary input": with_tail(BINARY, bytes(64)),
    "infer, binary input too short": with_tail(BINARY, bytes(60)),
    "infer, binary input too long": with_tail(BINARY, bytes(68)),
    "infer, binary size of another": with_tail({"inputs": [given("INPUT0", "INT32", [1, 16], binary_data_size=60), IN1]}, bytes(60)),
    "infer, header length too large": with_tail(BINARY, bytes(64), 10_000),
    "infer, header length no number": infer(SUMS, Inference_Header_Content_Length="x"),
    "infer, header length negative": infer(SUMS, Inference_Header_Content_Length="-1"),
    "infer, raw for two inputs": infer(bytes(64), Inference_Header_Content_Length="0"),
    "infer, raw": infer(b"abc", "identity_bytes", Inference_Header_Content_Length="0"),
    "infer, raw, two variable axes": infer(bytes(8), "identity_fp32", Inference_Header_Content_Length="0"),
    "infer, no inputs": infer({"inputs": []}),
    "infer, inputs missing": infer({}),
    "infer, inputs no list": infer({"inputs": {}}),
    "infer, one input missing": infer({"inputs": [IN0]}),
    "infer, unknown input": infer({"inputs": [IN0, IN1 | {"name": "IN"}]}),
    "infer, one too many": infer({"inputs": [IN0, IN1, IN1 | {"name": "IN"}]}),
    "infer, an input twice": infer({"inputs": [IN0, IN0]}),
    "infer, input without name": infer({"inputs": [{k: v for k, v in IN0.items() if k != "name"}, IN1]}),
    "infer, input without shape": infer({"inputs": [{k: v for k, v in IN0.items() if k != "shape"}, IN1]}),
    "infer, input without datatype": infer({"inputs": [{k: v for k, v in IN0.items() if k != "datatype"}, IN1]}),
    "infer, input without data": infer({"inputs": [{k: v for k, v in IN0.items() if k != "data"}, IN1]}),
    "infer, wrong datatype": infer({"inputs": [IN0 | {"datatype": "FP32"}, IN1]}),
    "infer, no such datatype": infer({"inputs": [IN0 | {"datatype": "X"}, IN1]}),
    "infer, wrong shape": infer({"inputs": [given("INPUT0", "INT32", [1, 15], ROW[:15]), IN1]}),
    "infer, wrong rank": infer({"inputs": [given("INPUT0", "INT32", [16], ROW), IN1]}),
    "infer, negative shape": infer({"inputs": [given("INPUT0", "INT32", [-1, 16], ROW), IN1]}),
    "infer, shape in letters": infer({"inputs": [given("INPUT0", "INT32", ["x"], ROW), IN1]}),
    "infer, shape overflows": infer({"inputs": [given("INPUT0", "INT32", [2**62, 16], ROW), IN1]}),
    "infer, batch too large": infer({"inputs": [given("INPUT0", "INT32", [9, 16], ROW * 9), given("INPUT1", "INT32", [9, 16], ROW * 9)]}),
    "infer, batches differ": infer({"inputs": [given("INPUT0", "INT32", [2, 16], ROW * 2), IN1]}),
    "infer, too few data": infer({"inputs": [IN0 | {"data": ROW[:9]}, IN1]}),
    "infer, too many data": infer({"inputs": [IN0 | {"data": [*ROW, 1]}, IN1]}),
    "infer, data of strings": infer({"inputs": [IN0 | {"data": ["a"] * 16}, IN1]}),
    "infer, data of floats": infer({"inputs": [IN0 | {"data": [0.5] * 16}, IN1]}),
    "infer, data too large": infer({"inputs": [IN0 | {"data": [2**40] * 16}, IN1]}),
    "infer, data no list": infer({"inputs": [IN0 | {"data": 3}, IN1]}),
    "infer, data nested": infer({"inputs": [IN0 | {"data": [ROW]}, IN1]}),
    "infer, strings": infer({"inputs": [TEXT]}, "identity_bytes"),
    "infer, strings of numbers": infer({"inputs": [TEXT | {"data": [1, 2]}]}, "identity_bytes"),
    "infer, strings, too few": infer({"inputs": [TEXT | {"data": ["a"]}]}, "identity_bytes"),
    "infer, NaN": infer(b'{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1,2],"data":[NaN,1e39]}]}', "identity_fp32"),
    "infer, empty tensor": infer({"inputs": [given("INPUT0", "FP32", [0, 4], [])]}, "identity_fp32"),
    "infer, no JSON": infer(b"{"),
    "infer, JSON of a list": infer([]),
    "infer, empty body": infer(b""),
    "infer, deep": infer(b"[" * 200 + b"]" * 200),
    "infer, classification": infer(SUMS | {"outputs": [output("OUTPUT0", classification=2)]}),
    "infer, classification of all": infer(SUMS | {"outputs": [output("OUTPUT0", classification=99)]}),
    "infer, classification 0": infer(SUMS | {"outputs": [output("OUTPUT0", classification=0)]}),
    "infer, sequence": infer(SUMS | {"parameters": {"sequence_id": 3, "sequence_start": True}}),
    "infer, br": infer(SUMS, Content_Encoding="br"),
    "infer, no gzip": infer(b"nothing", Content_Encoding="gzip"),
    "generate": ("POST", "/v2/models/simple/generate", {}),
}  # fmt: skip


def raw(value: list[int]) -> bytes:
    """Return integers as raw contents."""
    return b"".join(each.to_bytes(4, "little", signed=True) for each in value)


def typed(**values: Any) -> bytes:
    """Return typed contents, as clients encode them."""
    made: bytes = message_class("inference.InferTensorContents")(**values).SerializeToString()
    return made


def tensor(name: str, shape: list[int], datatype: str = "INT32", **more: Any) -> dict[str, Any]:
    """Return an input of gRPC."""
    return {"name": name, "datatype": datatype, "shape": shape, **more}


T0, T1 = tensor("INPUT0", [1, 16]), tensor("INPUT1", [1, 16])
RAW = [raw(ROW), raw([1] * 16)]
CALL: dict[str, Any] = {"model_name": "simple", "inputs": [T0, T1], "raw_input_contents": RAW}
GRPC: dict[str, tuple[Any, ...]] = {
    "live": ("ServerLive", {}),
    "ready": ("ServerReady", {}),
    "model ready": ("ModelReady", {"name": "simple"}),
    "unknown model ready": ("ModelReady", {"name": "nope"}),
    "model ready, version in letters": ("ModelReady", {"name": "simple", "version": "x"}),
    "server metadata": ("ServerMetadata", {}),
    "model metadata": ("ModelMetadata", {"name": "simple"}),
    "metadata of an unknown model": ("ModelMetadata", {"name": "nope"}),
    "metadata of a version in letters": ("ModelMetadata", {"name": "simple", "version": "x"}),
    "config": ("ModelConfig", {"name": "simple"}),
    "statistics": ("ModelStatistics", {"name": "simple"}),
    "statistics of an unknown model": ("ModelStatistics", {"name": "nope"}),
    "index": ("RepositoryIndex", {}),
    "index of a named repository": ("RepositoryIndex", {"repository_name": "x"}),
    "load of an unknown model": ("RepositoryModelLoad", {"model_name": "nope"}),
    "unload of an unknown model": ("RepositoryModelUnload", {"model_name": "nope"}),
    "shared memory": ("SystemSharedMemoryStatus", {}),
    "shared memory, register": ("SystemSharedMemoryRegister", {"name": "r", "key": "/k", "byte_size": 8}),
    "shared memory, unregister": ("SystemSharedMemoryUnregister", {}),
    "trace": ("TraceSetting", {}),
    "logging": ("LogSettings", {}),
    "infer": ("ModelInfer", CALL),
    "infer, id": ("ModelInfer", CALL | {"id": "mine"}),
    "infer, parameters": ("ModelInfer", CALL | {"parameters": {"a": {"int64_param": 1}, "b": {"string_param": "x"}}}),
    "infer, a reserved parameter": ("ModelInfer", CALL | {"parameters": {"triton_x": {"int64_param": 1}}}),
    "infer, timeout": (
        "ModelInfer",
        {"model_name": "slow", "inputs": [tensor("x", [1, 4], "FP32")], "raw_input_contents": [bytes(16)]}
        | {"parameters": {"timeout": {"int64_param": 50000}}},
    ),
    "infer, typed": (
        "ModelInfer",
        CALL
        | {"raw_input_contents": [], "inputs": [T0 | {"contents": [typed(int_contents=ROW)]}, T1 | {"contents": [typed(int_contents=ROW)]}]},
    ),
    "infer, typed and raw": ("ModelInfer", CALL | {"inputs": [T0 | {"contents": [typed(int_contents=ROW)]}, T1]}),
    "infer, typed in a wrong field": (
        "ModelInfer",
        CALL | {"raw_input_contents": [], "inputs": [T0 | {"contents": [typed(fp32_contents=ROW)]}, T1 | {"contents": [typed(int_contents=ROW)]}]},
    ),
    "infer, raw too short": ("ModelInfer", CALL | {"raw_input_contents": [bytes(60), RAW[1]]}),
    "infer, raw too long": ("ModelInfer", CALL | {"raw_input_contents": [bytes(68), RAW[1]]}),
    "infer, too few raw": ("ModelInfer", CALL | {"raw_input_contents": RAW[:1]}),
    "infer, unknown model": ("ModelInfer", CALL | {"model_name": "nope"}),
    "infer, unknown version": ("ModelInfer", CALL | {"model_version": "9"}),
    "infer, version in letters": ("ModelInfer", CALL | {"model_version": "x"}),
    "infer, one input missing": ("ModelInfer", CALL | {"inputs": [T0], "raw_input_contents": RAW[:1]}),
    "infer, unknown input": ("ModelInfer", CALL | {"inputs": [T0, tensor("IN", [1, 16])]}),
    "infer, wrong datatype": ("ModelInfer", CALL | {"inputs": [tensor("INPUT0", [1, 16], "FP32"), T1]}),
    "infer, wrong shape": ("ModelInfer", CALL | {"inputs": [tensor("INPUT0", [2, 8]), T1]}),
    "infer, negative shape": ("ModelInfer", CALL | {"inputs": [tensor("INPUT0", [-1, 16]), T1]}),
    "infer, unknown output": ("ModelInfer", CALL | {"outputs": [{"name": "OUT"}]}),
    "infer, an output twice": ("ModelInfer", CALL | {"outputs": [{"name": "OUTPUT0"}] * 2}),
    "infer, classification": (
        "ModelInfer",
        CALL | {"outputs": [{"name": "OUTPUT0", "parameters": {"classification": {"int64_param": 2}}}]},
    ),
    "infer, broken strings": (
        "ModelInfer",
        {"model_name": "identity_bytes", "inputs": [tensor("INPUT0", [1, 1], "BYTES")], "raw_input_contents": [b"\x09\0\0\0ab"]},
    ),
    "stream": ("ModelStreamInfer", CALL | {"id": "s"}),
    "stream, unknown model": ("ModelStreamInfer", CALL | {"id": "s", "model_name": "nope"}),
    "stream, one input missing": ("ModelStreamInfer", CALL | {"id": "s", "inputs": [T0], "raw_input_contents": RAW[:1]}),
    "stream, final response asked for": (
        "ModelStreamInfer", CALL | {"id": "s", "parameters": {"triton_enable_empty_final_response": {"bool_param": True}}},
    ),
    "no such method": ("Nope", {}),
}  # fmt: skip


LAST = {
    "infer, classification of strings": infer(
        {"inputs": [TEXT], "outputs": [output("OUTPUT0", classification=1)]}, "identity_bytes"
    )
}
"""What ends Triton (2.51)."""


def write_repositories(folder: Path) -> tuple[Path, Path]:
    """Write the models for the gateway and for Triton; return their folders."""
    ours, theirs = build_repository(folder / "ours"), folder / "theirs"
    for path in ours.iterdir():
        if path.name not in _SHAPES:
            shutil.rmtree(path)
    for name, (kind, inputs, outputs, dims) in _SHAPES.items():
        batch = 0 if name == "identity_fp32" else 8
        ends = [
            f"{end}: [{', '.join(f'{{ name: {json.dumps(each)}, data_type: {kind}, dims: [{dims}] }}' for each in names)}]\n"
            for end, names in (("input", inputs), ("output", outputs))
        ]
        config = f'name: "{name}"\nmax_batch_size: {batch}\nversion_policy: {{ all: {{}} }}\n' + "".join(ends)
        versions = (1, 2) if name == "identity_fp32" else (1,)
        for version in versions:
            (theirs / name / str(version)).mkdir(parents=True)
            (theirs / name / str(version) / "model.py").write_text(_MODEL)
        (theirs / name / "config.pbtxt").write_text(
            config + 'backend: "python"\ninstance_group: [{ kind: KIND_CPU }]\n'
        )
        if name != "slow":
            (ours / name / "config.pbtxt").write_text(config + 'platform: "onnxruntime_onnx"\n')
    return ours, theirs


@contextmanager
def started(command: list[str], log: Path, **environment: str) -> Iterator[None]:
    """Run a program, and end it."""
    with log.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, env=os.environ | environment)
        try:
            yield
        finally:
            process.terminate()
            process.wait(60)


def start_triton(stack: ExitStack, packages: Path, models: Path, folder: Path) -> tuple[int, int]:
    """Start Triton; return its ports."""
    server = packages / "pytriton" / "tritonserver"
    backends = shutil.copytree(server / "backends", folder / "backends")
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    shutil.copy2(server / "python_backend_stubs" / version / "triton_python_backend_stub", backends / "python")
    http, grpc_port = free_port(), free_port()
    command = [
        str(server / "bin" / "tritonserver"), "--model-repository", str(models), "--backend-directory", str(backends),
        "--model-control-mode", "explicit", "--load-model", "*", "--http-port", str(http), "--grpc-port", str(grpc_port),
        "--allow-metrics", "false",
    ]  # fmt: skip
    paths = {"LD_LIBRARY_PATH": str(packages / "nvidia_pytriton.libs"), "PYTHONPATH": str(packages)}
    paths["PATH"] = f"{packages.parents[2] / 'bin'}:{os.environ['PATH']}"  # its numpy: another one gives wrong arrays
    stack.enter_context(started(command, folder / "triton.log", **paths))
    return http, grpc_port


def start_gateway(stack: ExitStack, models: Path, folder: Path) -> tuple[int, int]:
    """Start a broker, a worker and a gateway; return the gateway's ports."""
    broker, http, grpc_port = free_port(), free_port(), free_port()
    mqinfer = [sys.executable, "-m", "mqinfer"]
    ports = ["--http-port", str(http), "--grpc-port", str(grpc_port)]
    ports += [f"--{each}-port=0" for each in ("metrics", "tfs-grpc", "tfs-rest")]
    url = f"mqtt://127.0.0.1:{broker}"
    stack.enter_context(started([*mqinfer, "broker", "--port", str(broker)], folder / "broker.log"))
    _wait(lambda: socket.create_connection(("127.0.0.1", broker), 1).close())
    for program in (
        ["worker", "--repository", str(models), "--broker", url, "--name", "w"],
        ["gateway", "--broker", url, "--name", "g", "--server-name", "triton", "--model-control", *ports],
    ):
        stack.enter_context(started([*mqinfer, *program], folder / f"{program[0]}.log"))
    return http, grpc_port


def _wait(check: Any) -> None:
    end = time.monotonic() + 120
    while True:
        try:
            check()
        except (OSError, AssertionError) as error:
            if time.monotonic() > end:
                raise SystemExit(f"a server does not come: {error}") from None
            time.sleep(0.2)
        else:
            return


def ask_http(port: int, method: str, path: str, body: Any = None, headers: Any = None) -> tuple[Any, ...]:
    """Return status and body of a reply, of JSON its content."""
    data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, headers or {}, method=method)
    if data is None and method == "POST":
        request.data = b""
    try:
        with urllib.request.urlopen(request, timeout=30) as reply:  # noqa: S310
            status, content, length = reply.status, reply.read(), reply.headers.get("Inference-Header-Content-Length")
    except urllib.error.HTTPError as error:
        status, content, length = error.code, error.read(), None
    except OSError as error:
        return (type(error).__name__,)
    size = int(length) if length else len(content)
    with suppress(ValueError):
        return status, json.loads(content[:size]), content[size:]
    return status, content


def ask_grpc(port: int, method: str, fields: Any) -> tuple[Any, ...]:
    """Return the code, and the reply or the text of the error."""
    path, request = f"/inference.GRPCInferenceService/{method}", b""
    if method != "Nope":
        request = message_class(f"inference.{method.replace('Stream', '')}Request")(**fields).SerializeToString()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        try:
            if method == "ModelStreamInfer":
                replies = list(channel.stream_stream(path)(iter([request]), timeout=30))
            else:
                replies = [channel.unary_unary(path)(request, timeout=30)]
        except grpc.RpcError as error:
            return error.code().name, error.details()
    reply = message_class(f"inference.{method}Response")
    return ("OK", *(MessageToDict(reply.FromString(each), preserving_proto_field_name=True) for each in replies))


def half_closed(port: int) -> tuple[Any, ...]:
    """Return what a caller gets that ends its sending after a request that takes its time."""
    body = json.dumps(LATE).encode()
    head = b"POST /v2/models/slow/infer HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
    with socket.create_connection(("127.0.0.1", port), 30) as caller:
        caller.sendall(head + body)
        caller.shutdown(socket.SHUT_WR)
        received = b""
        with suppress(OSError):
            while part := caller.recv(1 << 16):
                received += part
    return tuple(line for line in received.decode().splitlines() if line.startswith("HTTP/"))


def main() -> None:
    """Start both, ask, and print what differs."""
    packages = Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        ours, theirs = write_repositories(folder)
        servers = start_triton(stack, packages, theirs, folder), start_gateway(stack, ours, folder)
        for http, _ in servers:
            for model in _SHAPES:
                _wait(partial(_check_ready, http, model))
        equal = 0
        for probe, asked in HTTP.items():
            equal += _report(f"HTTP: {probe}", *(ask_http(http, *asked) for http, _ in servers))
        for probe, asked in GRPC.items():
            equal += _report(f"gRPC: {probe}", *(ask_grpc(grpc_port, *asked) for _, grpc_port in servers))
        equal += _report("HTTP: half-closed", *(half_closed(http) for http, _ in servers))
        for probe, asked in LAST.items():
            equal += _report(f"HTTP: {probe}", *(ask_http(http, *asked) for http, _ in servers))
        print(f"{equal} of {len(HTTP) + len(GRPC) + 1 + len(LAST)} answers are equal")


def _check_ready(http: int, model: str) -> None:
    assert ask_http(http, "GET", f"/v2/models/{model}/ready")[0] == HTTPStatus.OK


def _report(name: str, triton: tuple[Any, ...], gateway: tuple[Any, ...]) -> bool:
    if triton != gateway:
        print(f"{name}\n    Triton:  {str(triton)[:1500]}\n    gateway: {str(gateway)[:1500]}")
    return triton == gateway


if __name__ == "__main__":
    main()

"""Triton, as the wheel of nvidia-pytriton brings it: its server runs the model by its Python back end."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np

from mqinfer.bench.workloads import Workload
from mqinfer.broker.mosquitto.server import free_port
from mqinfer.models.load_options import default_threads
from mqinfer.protocol.errors import MissingExtra, ModelNotLoadable

_START_S = 120.0
_MODEL = """
import sys

PATH, SOURCE, TARGET, THREADS, PACKAGES = {settings!r}
import triton_python_backend_utils as pb_utils

sys.path.append(PACKAGES)  # the stub reads no PYTHONPATH; numpy has to be the one of its own environment
import onnxruntime


class TritonPythonModel:
    def initialize(self, args):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = THREADS, 1
        self.session = onnxruntime.InferenceSession(PATH, options, providers=["CPUExecutionProvider"])

    def execute(self, requests):
        replies = []
        for request in requests:
            array = pb_utils.get_input_tensor_by_name(request, SOURCE).as_numpy()
            (found,) = self.session.run([TARGET], {{SOURCE: array}})
            replies.append(pb_utils.InferenceResponse([pb_utils.Tensor(TARGET, found)]))
        return replies
"""
_KINDS = {"bool": "TYPE_BOOL", "float32": "TYPE_FP32", "float16": "TYPE_FP16", "float64": "TYPE_FP64"}


def find_packages(given: Path | None) -> Path:
    """Return the folder with the packages of an environment that has nvidia-pytriton.

    Args:
        given: The environment; None for `.venv-peers/triton` here.

    Raises:
        MissingExtra: There is none.
    """
    place = given or Path(".venv-peers") / "triton"
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = place.absolute() / "lib" / version / "site-packages"
    if not (packages / "pytriton" / "tritonserver").is_dir():
        raise MissingExtra(
            f"there is no nvidia-pytriton in {place}; install it into an environment of {version}, and name that "
            "with --triton DIR"
        )
    return packages


@contextmanager
def triton_server(packages: Path, workload: Workload, folder: Path) -> Iterator[tuple[int, Sequence[int]]]:
    """Run Triton with the workload's model while the body runs; yield its port of gRPC and its processes.

    Raises:
        ModelNotLoadable: The model is none of ONNX, or Triton did not start.
    """
    if workload.path.suffix != ".onnx":
        raise ModelNotLoadable(f"{workload.path.name} is no ONNX file: there is no back end for it in nvidia-pytriton")
    server, log = packages / "pytriton" / "tritonserver", folder / "triton.log"
    _write_model(workload, folder / "models" / workload.model)
    backends = shutil.copytree(server / "backends", folder / "backends")
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    shutil.copy2(server / "python_backend_stubs" / version / "triton_python_backend_stub", backends / "python")
    port = free_port("127.0.0.1")
    command = [str(server / "bin" / "tritonserver"), "--model-repository", str(folder / "models")]
    command += ["--backend-directory", str(backends), "--grpc-port", str(port), "--grpc-address", "127.0.0.1"]
    command += ["--allow-http", "false", "--allow-metrics", "false"]
    environment = os.environ | {
        "LD_LIBRARY_PATH": str(packages / "nvidia_pytriton.libs"),
        "PATH": f"{packages.parents[2] / 'bin'}{os.pathsep}{os.environ['PATH']}",
    }
    with log.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, env=environment)  # noqa: S603 - what the user named
    try:
        _await_port(process, port, log)
        yield port, [process.pid, *_children(process.pid)]
    finally:
        process.terminate()
        process.wait()


def _write_model(workload: Workload, folder: Path) -> None:
    def entry(name: str, array: np.typing.NDArray[np.generic]) -> str:
        kind = _KINDS.get(array.dtype.name, f"TYPE_{array.dtype.name.upper()}")
        return f"[{{ name: {json.dumps(name)}, data_type: {kind}, dims: {list(array.shape)} }}]\n"

    (folder / "1").mkdir(parents=True)
    settings = (
        str(workload.path),
        workload.input,
        workload.output,
        default_threads(),
        str(Path(np.__file__).parents[1]),
    )
    (folder / "1" / "model.py").write_text(_MODEL.format(settings=settings), encoding="utf-8")
    (folder / "config.pbtxt").write_text(
        f'name: "{workload.model}"\nbackend: "python"\nmax_batch_size: 0\ninstance_group: [{{ kind: KIND_CPU }}]\n'
        f"input: {entry(workload.input, workload.array)}output: {entry(workload.output, workload.expected)}",
        encoding="utf-8",
    )


def _await_port(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    """Wait until Triton listens, which it does once its models are loaded."""
    end = time.monotonic() + _START_S
    while process.poll() is None and time.monotonic() < end:
        with closing(socket.socket()) as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        try:
            process.wait(0.2)
        except subprocess.TimeoutExpired:
            continue
    last = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
    raise ModelNotLoadable(f"Triton did not start within {_START_S:g} s: {' '.join(last)}")


def _children(pid: int) -> list[int]:
    """Return the processes that a process has started, and theirs."""
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    found = [int(each) for task in tasks for each in task.read_text(encoding="utf-8").split()]
    return found + [other for each in found for other in _children(each)]

"""Runs of an ONNX model on a GPU: their times as `trtexec` takes them, and the memory operations that CUDA records.

`in_process` calls these functions in a process of their own. PyTorch has the events and the recorder (CUPTI).
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mqinfer.extras import import_extra
from mqinfer.lab.model_process import load
from mqinfer.lab.profiling.inputs import RandomInputs
from mqinfer.lab.profiling.memory import gpu_bytes
from mqinfer.models.backend import Backend
from mqinfer.models.backends.onnx import import_onnxruntime
from mqinfer.models.repository import ModelVersion
from mqinfer.protocol.errors import ConfigError

_WARM_UP = 200
_SETTLED_S = 1.5
"""Seconds of runs before the driver is asked: it averages power and use over about one."""
_QUERY = ("memory.used", "memory.total", "power.draw", "power.limit", "temperature.gpu")

Times = npt.NDArray[np.float64]


class MemoryOperation(NamedTuple):
    """A copy or a memset of CUDA: `HtoD`, `DtoH`, `DtoD` or `memset`, its time on the GPU and its size."""

    kind: str
    ns: float
    bytes: int


def card_name() -> str:
    """Return the name of the first NVIDIA GPU.

    Raises:
        ConfigError: There is none, or no driver of it.
    """
    names = _ask_driver("name")
    if not names:
        raise ConfigError("needs an NVIDIA GPU: nvidia-smi shows none here")
    return names[0]


def _ask_driver(*fields: str) -> list[str]:
    """Return what `nvidia-smi` has of the first GPU; nothing where it can't be asked."""
    query = ["nvidia-smi", "-i", "0", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True)  # noqa: S603 - fixed
    except (OSError, subprocess.SubprocessError):
        return []
    return [cell.strip() for cell in done.stdout.strip().split(",")]


def time_runs(model: ModelVersion, count: int) -> dict[str, Times]:
    """Return the milliseconds of single rows on the GPU, one after the other, by what is timed.

    `enqueue` is the call that starts a run, `GPU compute` what the GPU takes for it, `host latency` that with the
    copies of inputs and outputs, and `end to end` the whole as the caller waits for it.

    Raises:
        MissingExtra: PyTorch or ONNX Runtime is not installed.
        ConfigError: One of them can't use the GPU.
    """
    torch = _torch()
    stream = torch.cuda.Stream()
    run, copy_in, copy_out = _bound(torch, model, stream)
    times: dict[str, list[float]] = {"enqueue": [], "GPU compute": [], "host latency": [], "end to end": []}
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(4)]
    with torch.cuda.stream(stream):
        for _ in range(_WARM_UP + count):
            began = time.perf_counter()
            marks[0].record()
            copy_in()
            marks[1].record()
            called = time.perf_counter()
            run()
            returned = time.perf_counter()
            marks[2].record()
            copy_out()
            marks[3].record()
            marks[3].synchronize()
            times["end to end"].append(1e3 * (time.perf_counter() - began))
            times["enqueue"].append(1e3 * (returned - called))
            times["GPU compute"].append(marks[1].elapsed_time(marks[2]))
            times["host latency"].append(marks[0].elapsed_time(marks[3]))
    return {name: np.array(each[_WARM_UP:]) for name, each in times.items()}


def _torch() -> Any:
    torch = import_extra("torch", "torch")
    if not torch.cuda.is_available():
        raise ConfigError(f"needs PyTorch for CUDA: {torch.__version__} here finds no GPU")
    return torch


def _bound(torch: Any, model: ModelVersion, stream: Any) -> tuple[Any, Any, Any]:
    """Return what runs a row in a stream without waiting for it, and what copies its inputs and outputs there."""
    on_cpu = load(model, "onnxruntime")
    feeds = RandomInputs().make(on_cpu.inputs, 1)
    results = on_cpu.infer(feeds)
    on_cpu.close()
    onnxruntime = import_onnxruntime()
    provider = ("CUDAExecutionProvider", {"user_compute_stream": str(stream.cuda_stream)})
    session = onnxruntime.InferenceSession(model.path, providers=[provider, "CPUExecutionProvider"])
    if session.get_providers()[0] != provider[0]:
        raise ConfigError(f"needs ONNX Runtime for CUDA: {onnxruntime.__version__} here can't use the GPU")
    binding = session.io_binding()
    pairs: list[tuple[Any, Any]] = []
    for arrays, bind in ((feeds, binding.bind_input), (results, binding.bind_output)):
        for name, array in arrays.items():
            host = torch.from_numpy(np.ascontiguousarray(array)).pin_memory()
            device = host.cuda()
            bind(name, "cuda", 0, array.dtype.type, list(array.shape), device.data_ptr())
            pairs.append((device, host) if arrays is feeds else (host, device))
    options = onnxruntime.RunOptions()
    options.add_run_config_entry("disable_synchronize_execution_providers", "1")

    def copy(part: Sequence[tuple[Any, Any]]) -> None:
        for to, of in part:
            to.copy_(of, non_blocking=True)

    torch.cuda.synchronize()
    return (
        lambda: session.run_with_iobinding(binding, options),
        lambda: copy(pairs[: len(feeds)]),
        lambda: copy(pairs[len(feeds) :]),
    )


def record_operations(
    model: ModelVersion, rows: int, batch: int, outputs: Sequence[str] = ("reconstruction",)
) -> list[MemoryOperation]:
    """Return CUDA's memory operations while a model is loaded and runs over many rows.

    Args:
        model: Version of a repository.
        rows: Number of rows.
        batch: Rows of a run.
        outputs: What is asked for and copied back.

    Raises:
        MissingExtra: PyTorch or ONNX Runtime is not installed.
        ConfigError: One of them can't use the GPU.
    """
    torch = _torch()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as recorded:
        backend = _on_gpu(model)
        feeds = RandomInputs().make(backend.inputs, batch)
        for _ in range(0, rows, batch):
            backend.infer(feeds, outputs)
    with TemporaryDirectory(prefix="mqinfer-bench-") as folder:
        path = Path(folder) / "trace.json"
        recorded.export_chrome_trace(str(path))
        return read_operations(json.loads(path.read_text(encoding="utf-8")))


def read_operations(trace: Mapping[str, Any]) -> list[MemoryOperation]:
    """Return the copies and memsets of a trace as PyTorch's profiler writes it."""
    found = []
    for event in trace["traceEvents"]:
        category = event.get("cat")
        if category in {"gpu_memcpy", "gpu_memset"}:
            kind = event["name"].split()[1] if category == "gpu_memcpy" else "memset"
            found.append(MemoryOperation(kind, 1e3 * event["dur"], event["args"]["bytes"]))
    return found


def card_in_use(model: ModelVersion, batch: int) -> dict[str, float]:
    """Return what the driver says of the GPU while a model runs there, and of this process.

    Raises:
        ConfigError: ONNX Runtime can't use the GPU.
    """
    backend = _on_gpu(model)
    feeds = RandomInputs().make(backend.inputs, batch)
    until = time.perf_counter() + _SETTLED_S
    while time.perf_counter() < until:
        backend.infer(feeds)
    figures = [float(cell) for cell in _ask_driver(*_QUERY)]
    return dict(zip(_QUERY, figures, strict=True)) | {"process": gpu_bytes() / 2**20}


def _on_gpu(model: ModelVersion) -> Backend:
    backend = load(model, "onnxruntime", "cuda")
    if backend.device == "cpu":
        raise ConfigError(f"needs ONNX Runtime for CUDA: {backend.engine} here can't use the GPU")
    return backend

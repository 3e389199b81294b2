"""Document 002 on a GPU: latency by batch, single runs, CUDA's memory operations, the card; 001's GPU against CPU.

What runs there is in a process of its own (`in_process`). PyTorch has the events, as `trtexec` takes them, and the
recorder of memory operations (CUPTI).
"""

from __future__ import annotations

import json
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mqinfer.bench.seeds.experiment import Bench
from mqinfer.bench.seeds.formulas import event_bytes
from mqinfer.bench.seeds.jets import BATCHES, SETTING, by_batch
from mqinfer.bench.seeds.rows import Measured, of_rounds
from mqinfer.extras import import_extra
from mqinfer.lab.model_process import in_process, load
from mqinfer.lab.profiling.child import Plan, Subject
from mqinfer.lab.profiling.inputs import RandomInputs
from mqinfer.lab.profiling.measure import measure
from mqinfer.lab.profiling.memory import gpu_bytes
from mqinfer.lab.profiling.results import Profile, ratio
from mqinfer.models.backend import Backend
from mqinfer.models.backends.onnx import import_onnxruntime
from mqinfer.models.loading import load_options
from mqinfer.models.repository import ModelVersion
from mqinfer.protocol.errors import ConfigError, ModelFailed

_NETWORKS: Mapping[str, str] = {"002.F4": "conv_vae", "002.F5": "graph_vae"}
_ENGINES: Mapping[str, tuple[str, str]] = {"TensorFlow": ("", "tensorflow"), "ONNX Runtime": ("_onnx", "onnxruntime")}
"""Engine by the suffix of the network's name in its format, and the engine's."""
_RUNS = 2770
"""Runs of the document's `trtexec`."""
_LINES = {"GPU": "GPU compute", "host": "host latency", "end to end": "end to end", "enqueue": "enqueue"}
_JETS, _BATCH = 80_000, 128
"""Jets of the document's recorded run, and of a batch there."""
_KINDS = ("HtoD", "DtoH", "DtoD", "memset")
_COMPARED = (1, 4, 16, 64)
_CARD: Mapping[str, str] = {
    "V100 memory used": "memory.used",
    "V100 memory": "memory.total",
    "V100 process": "process",
    "V100 power": "power.draw",
    "V100 power limit": "power.limit",
    "V100 temperature": "temperature.gpu",
}
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


def latency(bench: Bench) -> Iterator[Measured]:
    """Measure a call of each autoencoder by batch size, in the engines that have a GPU here."""
    _card_name()
    for table, name in _NETWORKS.items():
        plan = Plan(BATCHES, rounds=bench.count(3, 9), seconds=bench.count(1, 4) / 10)
        subjects = [_subject(bench, f"{name}{suffix}", engine, title) for title, (suffix, engine) in _ENGINES.items()]
        for profile in _on_gpu(measure(subjects, plan, bench.progress)):
            yield from (by_batch(table, f"{profile.name}, CUDA,", point) for point in profile.points if point.turns)


def _subject(bench: Bench, name: str, engine: str, title: str, device: str = "cuda") -> Subject:
    model = bench.model(name)
    return Subject(title, model.path, engine, load_options(model.config, device))


def _on_gpu(profiles: Sequence[Profile]) -> list[Profile]:
    """Return those that ran on a GPU.

    Raises:
        ModelFailed: None did.
    """
    found = [each for each in profiles if each.loaded and each.loaded.device != "cpu"]
    if not found:
        reasons = (f"{each.name}: {each.problem or 'it has no support for CUDA'}" for each in profiles)
        raise ModelFailed(f"no engine uses the GPU: {'; '.join(reasons)}")
    return found


def single_runs(bench: Bench) -> Iterator[Measured]:
    """Time single jets on the GPU as `trtexec` does; without one, calls on the CPU."""
    try:
        setting = f"ONNX Runtime on {_card_name()}, one jet, page-locked memory"
    except ConfigError:
        yield from _calls_on_cpu(bench)
        raise
    times = in_process(_time_runs, bench.model("conv_vae_onnx"), _RUNS)
    figures = {
        f"10 runs, line {line + 1}: {word}": times[name][10 * line : 10 * (line + 1)].mean()
        for word, name in _LINES.items()
        for line in range(3)
    }
    figures |= {f"{name} {figure}": value for name, each in times.items() for figure, value in _figures(each).items()}
    total, wall = (times[name].sum() / 1e3 for name in ("GPU compute", "end to end"))
    figures |= {"GPU compute total": total, "wall time": wall, "runs": _RUNS, "runs/s": _RUNS / wall}
    yield from _rows("002.T7", figures, setting, _RUNS, unit="ms")


def _calls_on_cpu(bench: Bench) -> Iterator[Measured]:
    plan = Plan(rounds=bench.count(3, 9), seconds=bench.count(1, 4) / 10)
    (profile,) = measure([_subject(bench, "conv_vae_onnx", "onnxruntime", "ONNX Runtime", "cpu")], plan, bench.progress)
    if point := profile.at(1):
        times = np.concatenate([turn.latencies_ns for turn in point.turns]) / 1e6
        figures = {f"host latency {name}": value for name, value in _figures(times).items()} | {"runs/s": point.rate}
        yield from _rows("002.T7", figures, SETTING, len(times), comment="on this processor")


def _figures(times: Times) -> dict[str, float]:
    named: Mapping[str, Callable[[Times], Any]] = {
        "least": np.min,
        "most": np.max,
        "mean": np.mean,
        "median": np.median,
    }
    return {name: float(of(times)) for name, of in named.items()} | {"p99": float(np.percentile(times, 99))}


def memory_operations(bench: Bench) -> Iterator[Measured]:
    """Record CUDA's memory operations: of the document's run, and of both autoencoders by batch size."""
    yield of_rounds(
        "002.T6", "bytes of a batch of 128", [event_bytes(128, graph=False) / 1024], comment="by the formula"
    )
    setting = f"ONNX Runtime on {_card_name()}, loading included"
    bench.progress(f"  conv_vae, {_JETS:,} jets in batches of {_BATCH}")
    yield from by_kind(in_process(_record_operations, bench.model("conv_vae_onnx"), _JETS, _BATCH), setting)
    rows = bench.count(640, _JETS)
    found = {
        (name, batch): in_process(_record_operations, bench.model(f"{name}_onnx"), rows, batch)
        for name in _NETWORKS.values()
        for batch in _COMPARED
    }
    yield from _compared(found, f"{setting}, {rows:,} jets")


def by_kind(operations: Sequence[MemoryOperation], setting: str) -> Iterator[Measured]:
    """Yield the figures of memory operations by their kind, as Nsight Systems sums them up."""
    times, sizes = defaultdict[str, list[float]](list), defaultdict[str, list[float]](list)
    for each in operations:
        times[each.kind].append(each.ns)
        sizes[each.kind].append(each.bytes / 1024)
    whole = sum(map(sum, times.values()))
    measures: Mapping[str, Callable[[list[float]], Any]] = {
        "mean": np.mean,
        "least": np.min,
        "most": np.max,
        "deviation": np.std,
    }
    for kind in _KINDS:
        for table, figures in (("002.T5", times[kind]), ("002.T6", sizes[kind])):
            found = {"operations": len(figures), "total": sum(figures)}
            found |= {name: of(figures) for name, of in measures.items() if figures}
            yield from _rows(table, {f"{kind} {name}": figure for name, figure in found.items()}, setting)
        if times[kind]:
            yield from _rows("002.T5", {f"{kind} share": 100 * sum(times[kind]) / whole}, setting)
        if times[kind] and kind in {"HtoD", "DtoH"}:
            yield from _rows("002.T6", {f"{kind} rate": 1024 * sum(sizes[kind]) / sum(times[kind])}, setting)


def _rows(table: str, figures: Mapping[str, float], setting: str, samples: int = 1, **words: str) -> Iterator[Measured]:
    for row, figure in figures.items():
        yield of_rounds(table, row, [float(figure)], samples, setting=setting, **words)


def _compared(found: Mapping[tuple[str, int], Sequence[MemoryOperation]], setting: str) -> Iterator[Measured]:
    """Yield mean size and number of operations by network and batch, and one network against the other at the last."""
    sizes = {key: float(np.mean([each.bytes / 1024 for each in of])) for key, of in found.items()}
    kinds = {key: {kind: sum(each.kind == kind for each in of) for kind in _KINDS} for key, of in found.items()}
    for name, batch in found:
        row = f"{name}, batch {batch}"
        yield from _rows("002.F7", {row: sizes[name, batch]}, setting, unit="KiB")
        yield from _rows("002.F8", {row: len(found[name, batch])}, setting, unit="count")
        by_kinds = {f"{name} {kind}, batch {batch}": number for kind, number in kinds[name, batch].items()}
        yield from _rows("002.F9", by_kinds, setting, unit="count")
    conv, graph = ((name, _COMPARED[-1]) for name in _NETWORKS.values())
    ending = f"batch {_COMPARED[-1]}"
    for table, row, share, comment in (
        ("002.F7", "average memory an operation", sizes[conv] / sizes[graph], ending),
        ("002.F8", "number of operations", len(found[conv]) / len(found[graph]), ending),
        ("002.F9", "operations by type", kinds[conv]["HtoD"] / kinds[graph]["HtoD"], f"HtoD, {ending}"),
    ):
        yield from _rows(table, {f"{row}, V100, Conv against graph": share}, setting, comment=comment)


def card(bench: Bench) -> Iterator[Measured]:
    """Ask the driver about the card while the Conv-VAE runs there."""
    setting = f"{_card_name()}, ONNX Runtime, batches of {_BATCH}"
    found = in_process(_card_in_use, bench.model("conv_vae_onnx"), _BATCH)
    yield from _rows("002.T8", {row: found[name] for row, name in _CARD.items()}, setting)


def gpu_against_cpu(bench: Bench) -> Iterator[Measured]:
    """Measure a segmentation network of 968x608 on the GPU against all threads of the CPU."""
    name = _card_name()
    model = "drive_segmentation_onnx"
    subjects = [_subject(bench, model, "onnxruntime", device, device) for device in ("cpu", "cuda")]
    plan = Plan(rounds=bench.count(3, 9), seconds=bench.count(5, 20) / 10)
    on_cpu, other = measure(subjects, plan, bench.progress)
    (on_gpu,) = _on_gpu([other])
    if found := ratio(on_gpu, on_cpu, 1):
        yield from _rows("001.C2", {"GPU against CPU": found}, f"{model} in ONNX Runtime on {name}")


def _card_name() -> str:
    """Return the name of the first NVIDIA GPU."""
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


def _time_runs(model: ModelVersion, count: int) -> dict[str, Times]:
    """Return the milliseconds of single rows on the GPU, one after the other, by what is timed.

    `enqueue` is the call that starts a run, `GPU compute` what the GPU takes for it, `host latency` that with the
    copies of inputs and outputs, and `end to end` the whole as the caller waits for it.
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


def _record_operations(model: ModelVersion, rows: int, batch: int) -> list[MemoryOperation]:
    """Return CUDA's memory operations while a model is loaded and runs over many rows, so many at a time."""
    torch = _torch()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as recorded:
        backend = _loaded(model)
        feeds = RandomInputs().make(backend.inputs, batch)
        for _ in range(0, rows, batch):
            backend.infer(feeds, ("reconstruction",))
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


def _card_in_use(model: ModelVersion, batch: int) -> dict[str, float]:
    """Return what the driver says of the GPU while a model runs there, and of this process."""
    backend = _loaded(model)
    feeds = RandomInputs().make(backend.inputs, batch)
    until = time.perf_counter() + _SETTLED_S
    while time.perf_counter() < until:
        backend.infer(feeds)
    figures = [float(cell) for cell in _ask_driver(*_QUERY)]
    return dict(zip(_QUERY, figures, strict=True)) | {"process": gpu_bytes() / 2**20}


def _loaded(model: ModelVersion) -> Backend:
    backend = load(model, "onnxruntime", "cuda")
    if backend.device == "cpu":
        raise ConfigError(f"needs ONNX Runtime for CUDA: {backend.engine} here can't use the GPU")
    return backend

"""The choice of ONNX Runtime's execution providers, and what becomes of one that isn't there."""

import logging
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from mqinfer.errors import ConfigError
from mqinfer.models.backends.onnx import load
from mqinfer.models.backends.onnx_binding import run_bound
from mqinfer.models.backends.onnx_providers import Attempt, attempts, describe_nodes
from mqinfer.models.load_options import LoadOptions, parse_device
from mqinfer.models.loading import load_model
from mqinfer.models.repository import Repository
from mqinfer.models.repository.config import Accelerator, Accelerators
from mqinfer.models.repository.config_keys import OPTIMIZATION
from mqinfer.models.repository.tables import Place
from mqinfer.protocol.datatypes import Datatype, dtype_of

WriteOnnx = Callable[..., Path]
TENSORRT, CUDA = "TensorrtExecutionProvider", "CUDAExecutionProvider"
OPENVINO, CPU = "OpenVINOExecutionProvider", "CPUExecutionProvider"
NUMBERS = [datatype for datatype in Datatype if datatype is not Datatype.BYTES]

PLACE = Place(Path("model.toml"), "optimization")
OPTIMIZED = {
    "execution_accelerators": {
        "gpu_execution_accelerator": [
            {
                "name": "tensorrt",
                "parameters": {
                    "precision_mode": "FP16",
                    "max_workspace_size_bytes": "1073741824",
                    "trt_engine_cache_enable": True,
                },
            },
            {"name": "cuda", "parameters": {"cudnn_conv_use_max_workspace": "0"}},
        ],
        "cpu_execution_accelerator": [{"name": "openvino"}],
    }
}


def options(device: str, accelerators: Accelerators | None = None, **parameters: str | float) -> LoadOptions:
    """Make the options that a back end gets."""
    return LoadOptions(
        device=parse_device(device), threads=3, accelerators=accelerators or Accelerators(), parameters=parameters
    )


@pytest.mark.parametrize(
    ("device", "available", "expected"),
    [
        ("auto", [CPU], ["cpu"]),
        ("auto", [CUDA, CPU], ["cuda:0", "cpu"]),
        ("cuda:3", [CUDA, CPU], ["cuda:3", "cpu"]),
        ("cuda", [CPU], ["cuda:0", "cpu"]),
        ("cpu", [CUDA, CPU], ["cpu"]),
    ],
)
def test_what_is_tried_without_accelerators(device: str, available: list[str], expected: list[str]) -> None:
    """A requested GPU is always tried, so that its absence is logged; without a request only if there may be one."""
    assert [attempt.label for attempt in attempts(options(device), available)] == expected


@pytest.mark.parametrize(
    ("device", "expected"),
    [
        ("auto", ["cuda:0 with tensorrt", "cuda:0", "cpu with openvino", "cpu"]),
        ("cuda:1", ["cuda:1 with tensorrt", "cuda:1", "cpu with openvino", "cpu"]),
        ("cpu", ["cpu with openvino", "cpu"]),
    ],
)
def test_accelerators_come_first(device: str, expected: list[str]) -> None:
    """In the order of the file, those of the GPU before those of the CPU; `--device cpu` leaves the GPU alone."""
    accelerators = OPTIMIZATION(OPTIMIZED, PLACE)
    assert [attempt.label for attempt in attempts(options(device, accelerators), [CPU])] == expected


def test_parameters_are_translated() -> None:
    """Triton's names become ONNX Runtime's; behind TensorRT stand CUDA and the CPU for what it can't run."""
    accelerators = OPTIMIZATION(OPTIMIZED, PLACE)
    tensorrt, cuda, openvino, _ = attempts(options("cuda:1", accelerators, gpu_mem_limit="4294967296"), [])
    names = [name for name, _ in tensorrt.providers]
    assert names == [TENSORRT, CUDA, CPU]
    assert dict(tensorrt.providers[0][1]) == {
        "trt_fp16_enable": "1",
        "trt_max_workspace_size": "1073741824",
        "trt_engine_cache_enable": "1",
        "device_id": "1",
    }
    assert (tensorrt.precision, cuda.precision) == ("fp16", "fp32")
    assert dict(cuda.providers[0][1]) == {
        "cudnn_conv_algo_search": "HEURISTIC",
        "arena_extend_strategy": "kSameAsRequested",
        "gpu_mem_limit": "4294967296",
        "cudnn_conv_use_max_workspace": "0",
        "device_id": "1",
    }
    assert dict(openvino.providers[0][1]) == {"num_of_threads": "3", "precision": "FP32", "device_type": "CPU"}


def test_counted_choices_of_cuda() -> None:
    """Triton writes numbers where ONNX Runtime has names."""
    configured = options("cuda", cudnn_conv_algo_search="0", arena_extend_strategy="kNextPowerOfTwo")
    settings = attempts(configured, [])[0].providers[0][1]
    assert (settings["cudnn_conv_algo_search"], settings["arena_extend_strategy"]) == ("EXHAUSTIVE", "kNextPowerOfTwo")


@pytest.mark.parametrize(
    ("accelerator", "message"),
    [
        (Accelerator("tensorrt", {"precision_mode": "FP8"}), "FP32, FP16, BF16, INT8"),
        (Accelerator("tensorrt", {"workspace": 1}), "unknown parameter 'workspace'"),
        (Accelerator("tensorrt", {"trt_extra_plugin_lib_paths": "x.so"}), "loads no libraries"),
    ],
)
def test_parameters_that_are_refused(accelerator: Accelerator, message: str) -> None:
    """A wrong parameter is an error of the configuration, found before anything is loaded."""
    with pytest.raises(ConfigError, match=message):
        attempts(options("cuda", Accelerators(gpu=(accelerator,))), [])
    with pytest.raises(ConfigError, match="device_type"):
        attempts(options("cpu", Accelerators(cpu=(Accelerator("openvino", {"device_type": "GPU"}),))), [])


def test_devices_of_openvino() -> None:
    """OpenVINO's own names are for OpenVINO's own back end."""
    with pytest.raises(ConfigError, match=r'AUTO:GPU,CPU.*backend = "openvino"'):
        attempts(options("AUTO:GPU,CPU"), [CPU])


def test_optimization_is_checked() -> None:
    """An accelerator without a name, or an unknown key, is refused with its place."""
    with pytest.raises(ConfigError, match=r"gpu_execution_accelerator\[0\].*'name' is missing"):
        OPTIMIZATION({"execution_accelerators": {"gpu_execution_accelerator": [{}]}}, PLACE)
    with pytest.raises(ConfigError, match="did you mean 'gpu_execution_accelerator'"):
        OPTIMIZATION({"execution_accelerators": {"gpu_execution_acelerator": []}}, PLACE)
    assert OPTIMIZATION({}, PLACE) == Accelerators()


@pytest.mark.parametrize(
    ("name", "device", "nodes", "message"),
    [
        ("cpu", "cpu", {CPU: 7}, ""),
        ("cuda", "cuda:0", {CUDA: 7}, ""),
        ("cuda", "cuda:0", {}, ""),
        ("cuda", "cuda:0", {CPU: 2, CUDA: 118}, " (cuda: 118, cpu: 2 nodes)"),
        ("cuda", "cuda:0", {CPU: 9}, " (cpu)"),
        ("tensorrt", "cuda:0", {TENSORRT: 5}, " (tensorrt)"),
        ("tensorrt", "cuda:0", {}, " (tensorrt)"),
        ("openvino", "cpu", {CPU: 1, OPENVINO: 30}, " (openvino: 30, cpu: 1 nodes)"),
    ],
)
def test_the_engine_says_who_runs_what(name: str, device: str, nodes: dict[str, int], message: str) -> None:
    """Nodes that were left on the CPU are never a secret."""
    assert describe_nodes(Attempt(name, device, ()), Counter(nodes), [TENSORRT, CUDA, OPENVINO, CPU]) == message


@pytest.mark.parametrize("device", ["cuda", "auto"])
def test_what_is_missing_is_logged_in_one_line(
    write_onnx: WriteOnnx, tmp_path: Path, caplog: pytest.LogCaptureFixture, device: str
) -> None:
    """The model serves on the CPU, with one line in the log, if this ONNX Runtime has none of the others."""
    if {TENSORRT, CUDA, OPENVINO} & set(onnxruntime.get_available_providers()):
        pytest.skip("this ONNX Runtime has one of them")
    path = write_onnx(tmp_path / "model.onnx")
    with caplog.at_level(logging.WARNING, "mqinfer.models"):
        backend = load(path, options(device, OPTIMIZATION(OPTIMIZED, PLACE)))
    (line,) = caplog.messages
    assert line.startswith(f"{path}: requested but not available: cuda:0 with tensorrt (not in this ONNX Runtime")
    assert line.endswith("; running on cpu")
    assert (backend.device, backend.engine) == ("cpu", f"onnxruntime {onnxruntime.__version__}")
    assert backend.infer({"x": np.ones((1, 4), np.float32)})["y"].sum() == 4


def test_nothing_requested_nothing_logged(
    write_onnx: WriteOnnx, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A plain model on the CPU leaves no line."""
    with caplog.at_level(logging.INFO, "mqinfer.models"):
        load(write_onnx(tmp_path / "model.onnx"), options("cpu"))
    assert caplog.messages == []


def test_other_engines_have_no_accelerators(write_echo: Callable[..., Path], caplog: pytest.LogCaptureFixture) -> None:
    """If a model requests some, one line in the log has them as left out, and it is served."""
    config = '[optimization.execution_accelerators]\ngpu_execution_accelerator = [{ name = "tensorrt" }]\n'
    (version,) = Repository(write_echo("echo", config=config)).models()
    with caplog.at_level(logging.WARNING, "mqinfer.models"):
        assert load_model(version).card.parameters.device == "cpu"
    (line,) = caplog.messages
    assert line.startswith("model echo: ")
    assert line.endswith("has no execution accelerators; left out: tensorrt")


@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3)])
@pytest.mark.parametrize("datatype", NUMBERS)
def test_bound_tensors(write_onnx: WriteOnnx, tmp_path: Path, datatype: Datatype, shape: tuple[int, ...]) -> None:
    """IO binding returns what `run` returns, for every datatype, views with gaps, 0-d and empty arrays."""
    path = write_onnx(tmp_path / "model.onnx", datatype, [f"axis{index}" for index in range(len(shape))])
    session = onnxruntime.InferenceSession(path, providers=[CPU])
    array: Any = np.arange(np.prod(shape, dtype=int) * 2).astype(dtype_of(datatype)).reshape(*shape, 2)[..., 1]
    (result,) = run_bound(session, ["y"], {"x": array}, "cpu")
    assert (result.dtype, result.shape) == (array.dtype, shape)
    assert np.array_equal(result, array)

"""Choose the execution providers of ONNX Runtime to try for a model, in order, and describe those that it got.

Parameters have the names of Triton's ONNX Runtime back end and are translated to ONNX Runtime's
(https://onnxruntime.ai/docs/execution-providers/). Nothing here imports ONNX Runtime.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from mqinfer.models.load_options import LoadOptions
from mqinfer.models.repository.config import Accelerator
from mqinfer.protocol.errors import ConfigError
from mqinfer.protocol.types import Scalar

PROVIDERS = {
    "tensorrt": "TensorrtExecutionProvider",
    "cuda": "CUDAExecutionProvider",
    "openvino": "OpenVINOExecutionProvider",
    "cpu": "CPUExecutionProvider",
}
_NAMES = {provider: name for name, provider in PROVIDERS.items()}

_TENSORRT = {
    "max_workspace_size_bytes": "trt_max_workspace_size",
    "int8_calibration_table_name": "trt_int8_calibration_table_name",
    "int8_use_native_calibration_table": "trt_int8_use_native_calibration_table",
}
_TENSORRT_PRECISIONS = {"FP32": "", "FP16": "trt_fp16_enable", "BF16": "trt_bf16_enable", "INT8": "trt_int8_enable"}
_TENSORRT_LIBRARIES = "trt_extra_plugin_lib_paths"
# Triton has numbers where ONNX Runtime has names.
_CUDA_CHOICES = {
    "cudnn_conv_algo_search": ("EXHAUSTIVE", "HEURISTIC", "DEFAULT"),
    "arena_extend_strategy": ("kNextPowerOfTwo", "kSameAsRequested"),
}
_CUDA_PARAMETERS = ("gpu_mem_limit", "do_copy_in_default_stream", *_CUDA_CHOICES)
"""Parameters that Triton also reads from the model's `parameters`."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One way to run a model.

    Attributes:
        name: Name of the first provider, a key of `PROVIDERS` (or any requested name).
        device: Device of that provider: `cpu` or `cuda:N`.
        providers: ONNX Runtime's names and options, best first.
        precision: The precision that it computes in.
    """

    name: str
    device: str
    providers: tuple[tuple[str, Mapping[str, str]], ...]
    precision: str = "fp32"

    @property
    def provider(self) -> str:
        """ONNX Runtime's name of the first provider."""
        return PROVIDERS.get(self.name, self.name)

    @property
    def label(self) -> str:
        """Its name in messages: `cuda:0 with tensorrt`."""
        return self.device if self.name in {"cpu", "cuda"} else f"{self.device} with {self.name}"


def attempts(options: LoadOptions, available: Collection[str]) -> list[Attempt]:
    """Return the ways to try, best first; the last one is the plain CPU, which is always available.

    Everything requested is included, even if this ONNX Runtime lacks it, so that the caller can log that. A GPU that
    was not requested is only included if there may be one.

    Args:
        options: Requested device and accelerators.
        available: Names of the execution providers that this ONNX Runtime was built with.

    Raises:
        ConfigError: The accelerator has no such parameter, or the device is one of OpenVINO's own.
    """
    device, accelerators = options.device, options.accelerators
    if device.openvino:
        raise ConfigError(
            f"device {device.openvino!r} is OpenVINO's: ONNX Runtime takes auto, cpu, cuda or cuda:N; "
            'backend = "openvino" has OpenVINO read the ONNX file itself'
        )
    # With `--device cpu` the file's accelerators of a GPU are not requested, so they are not missing.
    may_use_gpu = device.gpu or (device.gpu is None and (bool(accelerators.gpu) or PROVIDERS["cuda"] in available))
    found = _on_gpu(options, device.index) if may_use_gpu else []
    found += [_on_cpu(accelerator, options.threads) for accelerator in accelerators.cpu]
    return [*found, Attempt("cpu", "cpu", _CPU)]


_CPU: tuple[tuple[str, Mapping[str, str]], ...] = ((PROVIDERS["cpu"], {}),)


def _on_gpu(options: LoadOptions, index: int) -> list[Attempt]:
    configured = {key: value for key, value in options.parameters.items() if key in _CUDA_PARAMETERS}
    accelerators = options.accelerators.gpu
    for accelerator in accelerators:
        if accelerator.name == "cuda":
            configured |= accelerator.parameters
    device = f"cuda:{index}"
    cuda = ((PROVIDERS["cuda"], _cuda(configured, index)), *_CPU)
    found = [_with_engine(each, device, index, cuda) for each in accelerators if each.name != "cuda"]
    return [*found, Attempt("cuda", device, cuda)]


def _cuda(configured: Mapping[str, Scalar], index: int) -> dict[str, str]:
    """Return options of the CUDA provider: memory as it is needed, so that several processes can share a GPU.

    With cuDNN's exhaustive search the first inference of every new shape would take seconds.
    """
    chosen = {"cudnn_conv_algo_search": "HEURISTIC", "arena_extend_strategy": "kSameAsRequested"}
    for key, value in configured.items():
        names = _CUDA_CHOICES.get(key, ())
        counted = str(value).isdecimal() and int(value) < len(names)
        chosen[key] = names[int(value)] if counted else _text(value)
    return chosen | {"device_id": str(index)}


def _with_engine(
    accelerator: Accelerator, device: str, index: int, rest: tuple[tuple[str, Mapping[str, str]], ...]
) -> Attempt:
    if accelerator.name != "tensorrt":
        return Attempt(accelerator.name, device, rest)
    options, precision = _tensorrt(accelerator.parameters)
    own = (PROVIDERS["tensorrt"], options | {"device_id": str(index)})
    return Attempt("tensorrt", device, (own, *rest), precision)


def _tensorrt(configured: Mapping[str, Scalar]) -> tuple[dict[str, str], str]:
    """Translate Triton's parameters; names that begin with `trt_` are ONNX Runtime's own."""
    precision = str(configured.get("precision_mode", "FP32"))
    if precision not in _TENSORRT_PRECISIONS:
        raise ConfigError(
            f"tensorrt: precision_mode = {precision!r}: expected one of {', '.join(_TENSORRT_PRECISIONS)}"
        )
    switch = _TENSORRT_PRECISIONS[precision]
    options = {switch: "1"} if switch else {}
    for key, value in configured.items():
        if key == _TENSORRT_LIBRARIES:
            raise ConfigError(f"tensorrt: {key} is refused: a model's configuration loads no libraries")
        if key in _TENSORRT or key.startswith("trt_"):
            options[_TENSORRT.get(key, key)] = _text(value)
        elif key != "precision_mode":
            raise ConfigError(
                f"tensorrt: unknown parameter {key!r}: expected precision_mode, {', '.join(_TENSORRT)}, trt_…"
            )
    return options, precision.lower()


def _on_cpu(accelerator: Accelerator, threads: int) -> Attempt:
    if accelerator.name != "openvino":
        return Attempt(accelerator.name, "cpu", _CPU)
    if "device_type" in accelerator.parameters:
        raise ConfigError("openvino: device_type is not a parameter of a cpu_execution_accelerator: it runs on the CPU")
    configured = {key: _text(value) for key, value in accelerator.parameters.items()}
    # Its own default may be bf16: without a configured precision it must be the model's own, which the card has.
    options = {"num_of_threads": str(threads), "precision": "FP32"} | configured | {"device_type": "CPU"}
    precision = {"FP16": "fp16", "ACCURACY": "fp32"}.get(options["precision"], options["precision"].lower())
    return Attempt("openvino", "cpu", ((PROVIDERS["openvino"], options), *_CPU), precision)


def _text(value: Scalar) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)


def describe_nodes(attempt: Attempt, nodes: Counter[str], got: Sequence[str]) -> str:
    """Return which providers run the model: empty for one plain provider, else its name, or several with their nodes.

    Args:
        attempt: The way the session was opened.
        nodes: Numbers of nodes by ONNX Runtime's name of the provider; empty if it can't report them.
        got: `session.get_providers()`.
    """
    if len(nodes) > 1:
        shares = sorted(nodes.items(), key=lambda share: got.index(share[0]) if share[0] in got else len(got))
        return f" ({', '.join(f'{_NAMES.get(provider, provider)}: {count}' for provider, count in shares)} nodes)"
    ran = next((_NAMES.get(provider, provider) for provider in nodes), attempt.name)
    return "" if ran == attempt.device.partition(":")[0] else f" ({ran})"

"""Run models with OpenVINO: IR, and with `backend = "openvino"` also ONNX, frozen graphs and SavedModels.

A compiled model has several infer requests if `PERFORMANCE_HINT` is `THROUGHPUT`: as many callers run at the same time.
"""

from __future__ import annotations

import queue
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mqinfer.extras import missing_extra
from mqinfer.models.backend import Backend
from mqinfer.models.backends.openvino_reading import (
    read_model,
    reason,
    reshape,
    tensor_specs,
)
from mqinfer.models.backends.openvino_settings import choose_device, properties
from mqinfer.models.engines import platform_of
from mqinfer.models.load_options import LoadOptions
from mqinfer.protocol.datatypes import Array, datatype_of
from mqinfer.protocol.errors import ModelFailed, ModelNotLoadable
from mqinfer.protocol.types import TensorSpec

_HEAVY = frozenset({"Convolution", "Deconvolution", "FullyConnected", "MatMul"})
_OUTER = frozenset({"Const", "Input", "Output", "Reorder", "Result"})


def load(path: Path, options: LoadOptions) -> Backend:
    """Load a model.

    Raises:
        MissingExtra: OpenVINO is not installed.
        ModelNotLoadable: A file is damaged or missing, or OpenVINO can't convert or compile the model.
        ConfigError: `model.toml` contradicts the model, or has a device or property that does not exist.
    """
    try:
        import openvino
    except ImportError as error:
        raise missing_extra("openvino", "openvino") from error
    core = openvino.Core()
    device = choose_device(options.device, core.available_devices)
    settings = properties(options, device)
    model = read_model(openvino, core, path, options)
    inputs = tensor_specs(model.inputs, options.inputs, path, ranked=True)
    reshape(model, inputs, path)
    outputs = tensor_specs(model.outputs, options.outputs, path)
    try:
        compiled = core.compile_model(model, device, settings)
    except RuntimeError as error:
        given = ", ".join(f"{name} = {value}" for name, value in settings.items())
        raise ModelNotLoadable(
            f"{path}: OpenVINO can't compile it for {device} with {given}: {reason(error)}"
        ) from error
    return OpenVinoBackend(compiled, f"openvino {openvino.__version__.partition('-')[0]}", path, inputs, outputs)


class OpenVinoBackend:
    """A compiled model and its infer requests."""

    def __init__(
        self, compiled: Any, engine: str, path: Path, inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...]
    ) -> None:
        self._path = path
        self._ports = {spec.name: port for port, spec in enumerate(outputs)}
        self.concurrency = int(compiled.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS"))
        self._requests: queue.SimpleQueue[Any] = queue.SimpleQueue()  # holds `concurrency` of them, never more
        for _ in range(self.concurrency):
            self._requests.put(compiled.create_infer_request())
        self._compiled: Any = compiled
        self.platform = platform_of(path)
        self.engine = engine
        self.device = ",".join(compiled.get_property("EXECUTION_DEVICES")).lower()
        self.precision = precision_of(compiled)
        self.inputs = inputs
        self.outputs = outputs

    def infer(self, inputs: Mapping[str, Array], outputs: Sequence[str] = ()) -> dict[str, Array]:
        """Run the model once; `concurrency` callers run at the same time, further ones wait.

        Raises:
            ModelFailed: OpenVINO raised, an input is missing or of another datatype, or the back end is closed.
        """
        feeds = {port: self._checked(spec, inputs) for port, spec in enumerate(self.inputs)}
        requested = outputs or [spec.name for spec in self.outputs]
        with self._request() as request:
            results = request.infer(feeds, share_inputs=True, share_outputs=True)
            # The next run of this request writes to the same memory.
            return {name: results[self._ports[name]].copy() for name in requested}

    def close(self) -> None:
        """Release the memory of the model and its requests."""
        self._compiled = None
        self._requests = queue.SimpleQueue()

    def _checked(self, spec: TensorSpec, inputs: Mapping[str, Array]) -> Array:
        """Return an input; OpenVINO would use that of the run before for a missing one, and cast another datatype."""
        array = inputs.get(spec.name)
        if array is None or datatype_of(array.dtype) is not spec.datatype:
            what = (
                f"no input {spec.name!r}" if array is None else f"{spec.name!r} is {array.dtype}, not {spec.datatype}"
            )
            raise ModelFailed(f"{self._path.name}: {what}")
        return array if array.shape else array.copy()  # OpenVINO shares no read-only scalars

    @contextmanager
    def _request(self) -> Iterator[Any]:
        if self._compiled is None:
            raise ModelFailed(f"{self._path.name}: closed")
        requests = self._requests
        request = requests.get()
        try:
            yield request
        except (RuntimeError, ValueError, TypeError, KeyError) as error:
            raise ModelFailed(f"{self._path.name}: OpenVINO: {reason(error)}") from error
        finally:
            requests.put(request)


def precision_of(compiled: Any) -> str:
    """Return the precision that a compiled model's operations really compute in, whatever was requested."""
    ran = [_ran(node.get_rt_info()) for node in compiled.get_runtime_model().get_ops()]
    heavy = {precision for layer, precision in ran if layer in _HEAVY}
    every = {precision for layer, precision in ran if layer not in _OUTER}
    if heavy & {"i8", "u8"}:
        return "int8"
    return next((name for name, found in (("bf16", "bf16"), ("fp16", "f16")) if found in (heavy or every)), "fp32")


def _ran(info: Any) -> tuple[str, str]:
    keys = ("layerType", "runtimePrecision")
    layer, precision = (info[key].astype(str) if key in info else "" for key in keys)
    return layer, precision

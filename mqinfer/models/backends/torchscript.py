"""Run TorchScript models with PyTorch, on the CPU or an NVIDIA GPU.

A TorchScript file has no shapes of its inputs and nothing of its outputs: `model.toml` configures the inputs, and the
outputs are found by running the model twice on zeros, with two sizes for every open axis.

The file names the arguments of `forward`; of the outputs it has at most a dictionary's keys. `model.toml` may name
both, by `forward`'s names or by place, as in Triton (https://github.com/triton-inference-server/pytorch_backend):
`INPUT__0`, or any name that ends in two underscores and the place.

A TorchScript archive is a ZIP with code and `constants.pkl`; a file of `torch.save` has `data.pkl` only, a pickle,
which may run any code when it is opened (https://docs.pytorch.org/docs/stable/notes/serialization.html). So a file is
checked before PyTorch opens it.
"""

from __future__ import annotations

import re
import warnings
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from mqinfer.extras import missing_extra
from mqinfer.models.backend import Backend, prepared_sizes
from mqinfer.models.load_options import LoadOptions, TensorOptions, with_configured_shapes
from mqinfer.models.repository.files import describe
from mqinfer.protocol.datatypes import BY_NAME, Array, Datatype, dtype_of
from mqinfer.protocol.errors import ConfigError, ModelFailed, ModelNotLoadable
from mqinfer.protocol.types import TensorSpec

_PRECISIONS = {"float16": "fp16", "bfloat16": "bf16", "float64": "fp64"}
_PROBES = ((2, 256), (3, 288))
"""Sizes that are tried for an open first axis and for the others: two each, to find the axes that depend on them."""

Call = Callable[[Mapping[str, Any]], dict[str, Any]]
"""A function from tensors by input name to tensors by output name."""

_ADVICE = "export the model with torch.jit.trace or torch.jit.script and its `save`, or as ONNX"
_PICKLE = b"\x80"
"""A pickle's first byte since protocol 2, the oldest that `torch.save` wrote."""
_PLACED = re.compile(r".+__(\d{1,3})")


def load(path: Path, options: LoadOptions) -> Backend:
    """Load a TorchScript archive; a file that is only a pickle is not opened.

    Raises:
        MissingExtra: PyTorch is not installed.
        ModelNotLoadable: The file is no whole TorchScript archive, or does not run on the configured inputs.
        ConfigError: An input is not configured, or `model.toml` contradicts the model.
    """
    check_torchscript(path)
    try:
        import torch
    except ImportError as error:
        raise missing_extra("torch", "torch") from error
    torch.set_num_threads(options.threads)
    device = options.device.choose(torch.cuda.device_count(), "PyTorch")
    module = _read(torch, path, device)
    names = name_arguments(_arguments(module, path), options.inputs)
    inputs = _inputs(names, options.inputs, module, path)
    frozen = _frozen(torch, module)

    def call(feeds: Mapping[str, Any]) -> dict[str, Any]:
        return name_results(frozen(**{names[name]: tensor for name, tensor in feeds.items()}), tuple(options.outputs))

    backend = TorchScriptBackend(torch, call, inputs, device, path)
    backend.precision = str(options.parameters.get("precision", _precision(module)))
    try:
        backend.outputs = with_configured_shapes(_outputs(backend, path), options.outputs)
    except Exception:
        backend.close()  # its thread
        raise
    return backend


def _read(torch: Any, path: Path, device: str) -> Any:
    try:
        with _no_deprecation():
            return torch.jit.load(path, map_location=device).eval()
    except (RuntimeError, ValueError, OSError) as error:
        raise ModelNotLoadable(f"{path}: PyTorch can't load it ({_reason(error)}); found {describe(path)}") from error


def _frozen(torch: Any, module: Any) -> Any:
    """Turn the weights into constants, which PyTorch then folds: convolutions with batch norm run about 9 % faster."""
    try:
        with _no_deprecation():
            return torch.jit.freeze(module)
    except RuntimeError:  # a module that changes its own attributes
        return module


@contextmanager
def _no_deprecation() -> Iterator[None]:
    """Ignore the warning that TorchScript is deprecated; its files are still in use."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"`torch\.jit\.\w+` is deprecated", DeprecationWarning)
        yield


def _arguments(module: Any, path: Path) -> list[str]:
    """Return the names of `forward`'s arguments without a default, which must be tensors."""
    needed = [each for each in module.forward.schema.arguments[1:] if not each.has_default_value()]
    for argument in needed:
        if argument.type.kind() != "TensorType":
            raise ModelNotLoadable(
                f"{path}: forward's argument {argument.name!r} is {argument.type}: expected only tensors; "
                "wrap the model in one that takes tensors"
            )
    return [argument.name for argument in needed]


def _inputs(
    names: Mapping[str, str], configured: Mapping[str, TensorOptions], module: Any, path: Path
) -> tuple[TensorSpec, ...]:
    unknown = [name for name in names if configured.get(name, TensorOptions()).shape is None]
    datatype = _parameters_datatype(module)
    if unknown:
        tables = "\n".join(f'[[input]]\nname = "{name}"\ndims = [...]\ndata_type = "TYPE_{datatype}"' for name in names)
        raise ConfigError(
            f"{path}: a TorchScript file has no shapes of its inputs; add all of them to model.toml (-1: "
            f"any size; with max_batch_size above 0, dims leave the batch axis out):\n{tables}"
        )
    return tuple(
        TensorSpec(name, configured[name].datatype or datatype, configured[name].shape or ()) for name in names
    )


def _parameters_datatype(module: Any) -> Datatype:
    """Return the datatype of the weights, for an input without a configured one."""
    found = (BY_NAME.get(_name_of(parameter)) for parameter in module.parameters())
    return next((each for each in found if each in {Datatype.FP16, Datatype.FP64}), Datatype.FP32)


def _precision(module: Any) -> str:
    found = (_PRECISIONS.get(_name_of(parameter)) for parameter in module.parameters())
    return next((each for each in found if each), "fp32")


def _name_of(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _outputs(backend: TorchScriptBackend, path: Path) -> tuple[TensorSpec, ...]:
    """Return names, datatypes and shapes of the outputs, found by running the model on zeros."""
    try:
        small, large = (backend.infer(_zeros(backend.inputs, *sizes)) for sizes in _PROBES)
    except ModelFailed as error:
        raise ModelNotLoadable(
            f"{path}: it does not run on zeros of the configured shapes, so that its outputs can't be found: {error}; "
            "check dims and data_type of [[input]] in model.toml"
        ) from error
    return tuple(_spec(name, array, large[name], path) for name, array in small.items())


def _zeros(specs: Sequence[TensorSpec], rows: int, side: int) -> dict[str, Array]:
    return {
        spec.name: np.zeros(
            [(side if axis else rows) if size == -1 else size for axis, size in enumerate(spec.shape)],
            dtype_of(spec.datatype),
        )
        for spec in specs
    }


def _spec(name: str, small: Array, large: Array, path: Path) -> TensorSpec:
    if small.ndim != large.ndim:
        raise ModelNotLoadable(f"{path}: the number of axes of output {name!r} depends on its inputs' sizes")
    sizes = tuple(one if one == other else -1 for one, other in zip(small.shape, large.shape, strict=True))
    return TensorSpec(name, BY_NAME[small.dtype.name], sizes)


class TorchScriptBackend:
    """A TorchScript module that runs without gradients.

    On a GPU all runs are in one thread of its own: PyTorch keeps cuDNN's plans by thread (`cudnn/Conv_v8.cpp`), so each
    thread of a worker would plan each size of a batch once more.
    """

    platform = "pytorch_torchscript"
    precision = "fp32"
    concurrency = 1

    def __init__(self, torch: Any, call: Call, inputs: tuple[TensorSpec, ...], device: str, path: Path) -> None:
        self._torch = torch
        self._call: Call | None = call
        self._path = path
        self.engine = f"torch {torch.__version__}"
        self.device = device
        self.inputs = inputs
        self.outputs: tuple[TensorSpec, ...] = ()
        self.batch_sizes = prepared_sizes(device, inputs)
        self._thread = None if device == "cpu" else ThreadPoolExecutor(1, "mqinfer-torch")

    def infer(self, inputs: Mapping[str, Array], outputs: Sequence[str] = ()) -> dict[str, Array]:
        """Run the model once.

        Raises:
            ModelFailed: PyTorch raised, an input is missing, or the back end is closed.
        """
        missing = [spec.name for spec in self.inputs if spec.name not in inputs]
        if self._call is None or missing:
            raise ModelFailed(f"{self._path.name}: {f'no input {missing[0]!r}' if missing else 'closed'}")
        if self._thread is None:
            return self._run(self._call, inputs, outputs)
        return self._thread.submit(self._run, self._call, inputs, outputs).result()

    def close(self) -> None:
        """Release the module and its memory on the GPU."""
        self._call = None
        if self._thread is not None:
            self._thread.shutdown()
            self._torch.cuda.empty_cache()

    def _run(self, call: Call, inputs: Mapping[str, Array], outputs: Sequence[str]) -> dict[str, Array]:
        with self._running():
            results = call({spec.name: self._to_tensor(inputs[spec.name]) for spec in self.inputs})
            requested = outputs or list(results)
            return {name: self._to_array(name, results[name]) for name in requested}

    @contextmanager
    def _running(self) -> Iterator[None]:
        try:
            with self._torch.inference_mode():
                yield
        except (RuntimeError, ValueError, TypeError, KeyError) as error:
            raise ModelFailed(f"{self._path.name}: PyTorch: {_reason(error)}") from error

    def _to_tensor(self, array: Array) -> Any:
        # PyTorch shares the memory of an array, and a model may write to its inputs.
        tensor = self._torch.from_numpy(array if array.flags.carray else array.copy())
        return tensor if self.device == "cpu" else tensor.to(self.device)

    def _to_array(self, name: str, tensor: Any) -> Array:
        if not self._torch.is_tensor(tensor) or _name_of(tensor) not in BY_NAME:
            found = _name_of(tensor) if self._torch.is_tensor(tensor) else type(tensor).__name__
            raise ModelFailed(
                f"{self._path.name}: output {name!r} is {found}, for which the Open Inference Protocol has no "
                "datatype; export the model with a cast to one that it has"
            )
        array: Array = tensor.cpu().numpy()
        return array


def _reason(error: Exception) -> str:
    """Return the last line of TorchScript's traceback, or the archive reader's message without its advice."""
    text = str(error).partition(" This is an internal miniz error")[0]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__


def check_torchscript(path: Path) -> None:
    """Raise if a file is no TorchScript archive; PyTorch does not open it.

    Raises:
        ModelNotLoadable: The message has what the file is, and what to do.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            names = {name.rpartition("/")[2] for name in archive.namelist()}
    except zipfile.BadZipFile as error:
        with path.open("rb") as file:
            found = "a pickle" if file.read(1) == _PICKLE else describe(path)
        raise ModelNotLoadable(f"{path}: not a TorchScript archive ({error}); found {found}; {_ADVICE}") from error
    if "constants.pkl" in names:
        return
    if "data.pkl" in names:
        raise ModelNotLoadable(
            f"{path}: weights or a pickled model (torch.save), not a TorchScript archive: a pickle has no graph "
            f"to serve and may run any code when it is opened; {_ADVICE}"
        )
    raise ModelNotLoadable(
        f"{path}: a ZIP file, but not a TorchScript archive (torch.export's .pt2 is not read); {_ADVICE}"
    )


def name_arguments(arguments: Sequence[str], configured: Iterable[str]) -> dict[str, str]:
    """Map inputs to the arguments of `forward`.

    Args:
        arguments: The names of `forward`'s arguments, without `self`.
        configured: The names in `[[input]]`.

    Returns:
        Input to argument, in the order of the arguments; an input that is not configured has its argument's name.

    Raises:
        ConfigError: A configured name is no argument and ends in no place, or in one that does not exist.
    """
    named = {argument: argument for argument in arguments}
    for name in configured:
        if name not in arguments:
            named[_at(arguments, name, "input")] = name
    return {name: argument for argument, name in named.items()}


def name_results(result: Any, configured: Sequence[str]) -> dict[str, Any]:
    """Return what `forward` returned, one tensor, several, or a dictionary, by the outputs' names.

    Args:
        result: As `forward` returned it.
        configured: The names in `[[output]]`: a dictionary's keys; otherwise by place, or all of them in order.

    Returns:
        Results by name, `OUTPUT__0` and so on if they have none.

    Raises:
        ConfigError: The configured names do not fit.
    """
    if isinstance(result, Mapping):
        return {str(key): value for key, value in result.items()}
    results = list(result) if isinstance(result, list | tuple) else [result]
    names = list(getattr(result, "_fields", [f"OUTPUT__{place}" for place in range(len(results))]))
    if set(configured) <= set(names):
        return dict(zip(names, results, strict=True))
    if len(configured) == len(results) and not all(_PLACED.fullmatch(name) for name in configured):
        return dict(zip(configured, results, strict=True))
    for name in configured:
        names[names.index(_at(names, name, "output"))] = name
    return dict(zip(names, results, strict=True))


def _at(names: Sequence[str], configured: str, what: str) -> str:
    found = _PLACED.fullmatch(configured)
    if found and int(found[1]) < len(names):
        return names[int(found[1])]
    raise ConfigError(
        f"model.toml: {what} {configured!r}: the model has {', '.join(names)}; use these names, or one that ends in "
        f"the place, such as {what.upper()}__{len(names) - 1}"
    )

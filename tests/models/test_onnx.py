"""The ONNX back end, on real files of every datatype, and on what is no model."""

import os
import resource
import subprocess
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime
import pytest

from mqinfer.errors import BadTensor, ConfigError, ModelFailed, ModelNotLoadable
from mqinfer.models.backend import Backend, batch_sizes
from mqinfer.models.backends.onnx import OnnxBackend, load, reason_of
from mqinfer.models.backends.openvino import load as load_with_openvino
from mqinfer.models.engines import Loader
from mqinfer.models.load_options import LoadOptions, TensorOptions, parse_device
from mqinfer.models.warmup import warm_up
from mqinfer.protocol.card import CardParameters, ModelCard
from mqinfer.protocol.datatypes import Datatype, dtype_of
from mqinfer.protocol.types import TensorSpec

WriteOnnx = Callable[..., Path]
NUMBERS = [datatype for datatype in Datatype if datatype is not Datatype.BYTES]


def test_nothing_is_reported_to_anybody(write_onnx: WriteOnnx, tmp_path: Path) -> None:
    """ONNX Runtime's reports keep an id and what is to be sent in the cache of whoever runs it: there is neither."""
    path = write_onnx(tmp_path / "model.onnx", Datatype.FP32)
    code = "import sys; from pathlib import Path; from mqinfer.models.backends.onnx import LoadOptions, load; "
    code += "print(load(Path(sys.argv[1]), LoadOptions()).inputs[0].name)"
    home = tmp_path / "home"
    home.mkdir()
    environment = {name: value for name, value in os.environ.items() if name not in {"CI", "ORT_DISABLE_TELEMETRY"}}
    environment = {**environment, "HOME": str(home), "XDG_CACHE_HOME": str(home)}
    output = subprocess.run([sys.executable, "-c", code, path], env=environment, check=True, stdout=subprocess.PIPE)
    assert output.stdout == b"x\n"
    assert not list(home.rglob("*onnxruntime*"))


def loaded(path: Path, **options: Any) -> Backend:
    """Load a file on the CPU."""
    return load(path, LoadOptions(**{"device": parse_device("cpu")} | options))


@pytest.mark.parametrize("datatype", NUMBERS)
def test_numbers_of_every_datatype(write_onnx: WriteOnnx, tmp_path: Path, datatype: Datatype) -> None:
    """What goes in comes out, with its dtype, also from memory that is read-only and not aligned."""
    backend = loaded(write_onnx(tmp_path / "model.onnx", datatype))
    array = np.arange(8).reshape(2, 4).astype(dtype_of(datatype))
    payload = b"\0" + array.tobytes()
    view = np.frombuffer(payload, np.uint8)[1:].view(array.dtype).reshape(2, 4)
    result = backend.infer({"x": view})["y"]
    assert result.dtype == array.dtype
    assert np.array_equal(result, array)
    assert backend.inputs == (TensorSpec("x", datatype, (-1, 4)),)
    assert backend.outputs == (TensorSpec("y", datatype, (-1, 4)),)


def test_prepared_sizes_run_in_sessions_of_their_own(write_onnx: WriteOnnx, tmp_path: Path) -> None:
    """As on a GPU: the warm-up opens them once, a size without memory, or not prepared, has the first."""
    path = write_onnx(tmp_path / "model.onnx", Datatype.FP32)
    backend = loaded(path)
    assert isinstance(backend, OnnxBackend)
    opened: list[onnxruntime.InferenceSession] = []

    def open_session() -> onnxruntime.InferenceSession:
        if len(opened) == 2:
            raise ModelNotLoadable("no memory")
        opened.append(onnxruntime.InferenceSession(path))
        return opened[-1]

    backend._bound, backend.device = True, "cuda:0"
    backend.prepare_sizes(open_session)
    assert batch_sizes(backend) == (1, 4, 8, 16, 32, 64)
    known = CardParameters(max_batch_size=100)
    specs = backend.inputs
    warm_up(backend, ModelCard(name="m", versions=("1",), platform="x", inputs=specs, outputs=specs, parameters=known))
    for rows in (1, 2, 4, 8, 16, 32, 64, 65, 64, 4):
        given = np.arange(rows * 4, dtype=np.float32).reshape(rows, 4)
        assert np.array_equal(backend.infer({"x": given})["y"], given)
    assert len(opened) == 2


PYBIND = "python/pybind_state.cc:729 void onnxruntime::RegisterPlugins(Options&, const ort::ProviderOptions&) "
CALL = "cuda/cuda_call.cc:154 Status<THRW> ort::CudaCall(ERRTYPE, const char*) [with ERRTYPE = cudaError; bool T = 1] "


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        (PYBIND, "Please install TensorRT libraries as mentioned in the GPU requirements page"),
        (CALL, "CUDA failure 2: out of memory ; GPU=0"),
        ("", "[ONNXRuntimeError] : 3 : NO_SUCHFILE"),
    ],
)
def test_a_reason_is_what_was_wrong(place: str, reason: str) -> None:
    """And not the place in ONNX Runtime's source, which fills the line that the log has for it."""
    assert reason_of(RuntimeError(place + reason.replace(" : ", " :\n "))) == reason


def test_the_memory_of_one_large_run_is_returned(write_onnx: WriteOnnx, tmp_path: Path) -> None:
    """ONNX Runtime keeps it for later runs, and frees it after some of them."""

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * resource.getpagesize()

    backend = loaded(write_onnx(tmp_path / "model.onnx", Datatype.FP32))
    small = np.zeros((1, 4), np.float32)
    backend.infer({"x": small})
    before = resident()
    assert backend.infer({"x": np.ones((100 << 16, 4), np.float32)})["y"].nbytes == 100 << 20
    for _ in range(256):
        backend.infer({"x": small})
    assert resident() < before + (50 << 20)


@pytest.mark.parametrize("shape", [(), (0, 3), (3,), (2, 1, 2)])
@pytest.mark.parametrize("datatype", [Datatype.FP32, Datatype.BYTES])
def test_shapes(write_onnx: WriteOnnx, tmp_path: Path, shape: tuple[int, ...], datatype: Datatype) -> None:
    """Arrays without axes and batches without rows pass through."""
    axes = [f"axis{index}" for index in range(len(shape))]
    backend = loaded(write_onnx(tmp_path / "model.onnx", datatype, axes))
    array = np.full(shape, "ä€".encode() if datatype is Datatype.BYTES else 1.5, dtype_of(datatype))
    result = backend.infer({"x": array})["y"]
    assert result.shape == shape
    assert result.dtype == array.dtype
    assert np.array_equal(result, array)


def test_strings_must_be_text(write_onnx: WriteOnnx, tmp_path: Path) -> None:
    """Bytes that are no UTF-8 are the sender's fault, and the next request works."""
    backend = loaded(write_onnx(tmp_path / "model.onnx", "BYTES", ("n",)))
    with pytest.raises(BadTensor, match="UTF-8"):
        backend.infer({"x": np.array([b"\xff"], np.object_)})
    assert backend.infer({"x": np.array([b""], np.object_)})["y"].tolist() == [b""]


def test_datatypes_outside_the_protocol(write_onnx: WriteOnnx, tmp_path: Path) -> None:
    """A bfloat16 input has no datatype in the protocol; the message has what to do."""
    with pytest.raises(ModelNotLoadable, match=r"'x' is tensor\(bfloat16\).*cast"):
        loaded(write_onnx(tmp_path / "model.onnx", "BF16"))


def test_open_rank_takes_a_stated_shape(write_onnx: WriteOnnx, tmp_path: Path) -> None:
    """A file that leaves the rank open is completed by `model.toml`; a contradiction is refused."""
    path = write_onnx(tmp_path / "model.onnx", "FP32", None)
    configured = {"x": TensorOptions((-1, 2), Datatype.FP32)}
    backend = loaded(path, inputs=configured, outputs={"y": TensorOptions((-1, 2))})
    assert backend.inputs[0].shape == backend.outputs[0].shape == (-1, 2)
    fixed = write_onnx(tmp_path / "fixed.onnx", "FP32", (1, 4))
    for wrong in (
        {"z": TensorOptions()},
        {"x": TensorOptions((1, 3))},
        {"x": TensorOptions((1,))},
        {"x": TensorOptions(datatype=Datatype.INT8)},
    ):
        with pytest.raises(ConfigError, match=r"model\.toml"):
            loaded(fixed, inputs=wrong)


@pytest.mark.parametrize(
    "inputs",
    [{}, {"z": np.zeros((1, 4), np.float32)}, {"x": np.zeros((1, 4))}, {"x": np.zeros((1, 5), np.float32)}],
)
def test_wrong_inputs_fail_and_the_next_run_works(write_onnx: WriteOnnx, tmp_path: Path, inputs: Any) -> None:
    """ONNX Runtime's exceptions become ModelFailed."""
    backend = loaded(write_onnx(tmp_path / "model.onnx"))
    with pytest.raises(ModelFailed, match="ONNX Runtime"):
        backend.infer(inputs)
    assert backend.infer({"x": np.ones((1, 4), np.float32)}, ["y"])["y"].sum() == 4
    backend.close()
    with pytest.raises(ModelFailed):
        backend.infer({"x": np.ones((1, 4), np.float32)})


def test_an_input_that_is_missing_is_not_bound(write_onnx: WriteOnnx, tmp_path: Path) -> None:
    """With IO binding, as on a GPU, ONNX Runtime reads the missing tensor and the process crashes."""
    backend = loaded(write_onnx(tmp_path / "model.onnx"))
    backend._bound = True  # type: ignore[attr-defined] # the binding works on a CPU, too
    with pytest.raises(ModelFailed, match="missing from input feed"):
        backend.infer({})
    assert backend.infer({"x": np.ones((1, 4), np.float32)})["y"].sum() == 4
    backend.close()


@pytest.mark.parametrize(
    ("axes", "took", "options", "threads"),
    [
        (("n", 4), 0.0009, {}, [2, 1]),
        ((1, 4), 0.0009, {}, [2, 1]),
        (("n", 4), 0.0011, {}, [2]),
        (("n", 4), 1.0, {}, [2]),
        (("n", "open"), 0.0009, {}, [2]),
        (("n", 4), 0.0009, {"parameters": {"intra_op_thread_count": "2"}}, [2]),
        (("n", 4), 0.0009, {"threads": 3}, [3]),
    ],
)
def test_a_short_model_gets_one_engine_thread(
    write_onnx: WriteOnnx,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    axes: Any,
    took: float,
    options: dict[str, Any],
    threads: list[int],
) -> None:
    """Where its shapes are fixed, a run takes under 1 ms, and the operator has stated no number."""
    given: list[int] = []
    session = onnxruntime.InferenceSession

    def noting(path: Path, settings: Any, **rest: Any) -> Any:
        given.append(settings.intra_op_num_threads)
        return session(path, settings, **rest)

    monkeypatch.setattr("mqinfer.models.backends.onnx.default_threads", lambda: 2)
    monkeypatch.setattr(onnxruntime, "InferenceSession", noting)
    clock = count(0.0, took)
    monkeypatch.setattr("mqinfer.models.backends.onnx.time", SimpleNamespace(perf_counter=lambda: next(clock)))
    path = write_onnx(tmp_path / "model.onnx", "FP32", axes)
    backend = loaded(path, **({"threads": 2} | options))
    assert given == threads
    backend.close()


def test_external_data_beside_the_model(write_onnx: WriteOnnx, tmp_path: Path) -> None:
    """Weights in a file of the same folder are found."""
    path = write_onnx(tmp_path / "m" / "model.onnx", external="weights.bin")
    (path.parent / "weights.bin").write_bytes(np.ones(4, np.float32).tobytes())
    assert loaded(path).infer({"x": np.ones((1, 4), np.float32)})["y"].tolist() == [[2, 2, 2, 2]]


@pytest.mark.parametrize(("engine", "words"), [(load, "xternal data"), (load_with_openvino, "outside")])
@pytest.mark.parametrize("location", ["../weights.bin", "absolute", "link.bin"])
def test_external_data_elsewhere_is_refused(
    write_onnx: WriteOnnx, tmp_path: Path, location: str, engine: Loader, words: str
) -> None:
    """A model can't read files outside its folder, by whichever way it names them; each engine sees to it itself."""
    outside = tmp_path / "weights.bin"
    outside.write_bytes(np.ones(4, np.float32).tobytes())
    path = write_onnx(tmp_path / "m" / "model.onnx", external=str(outside) if location == "absolute" else location)
    (path.parent / "link.bin").symlink_to(outside)
    with pytest.raises(ModelNotLoadable, match=words):
        engine(path, LoadOptions())

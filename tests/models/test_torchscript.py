"""The TorchScript back end, on modules that PyTorch wrote, and on what else is called `.pt`."""

from __future__ import annotations

import logging
import threading
import warnings
import zipfile
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mqinfer.errors import ConfigError, ModelFailed, ModelNotLoadable
from mqinfer.models.backend import Backend, batch_sizes
from mqinfer.models.backends.torchscript import (
    TorchScriptBackend,
    check_torchscript,
    load,
    name_arguments,
    name_results,
)
from mqinfer.models.load_options import LoadOptions, RequestedDevice, TensorOptions, parse_device
from mqinfer.models.loading import load_model
from mqinfer.models.repository import ModelVersion
from mqinfer.models.repository.config import ModelConfig, TensorConfig
from mqinfer.models.warmup import warm_up
from mqinfer.protocol.datatypes import Datatype, dtype_of
from mqinfer.protocol.types import TensorSpec

pytestmark = pytest.mark.slow
NUMBERS = [datatype for datatype in Datatype if datatype is not Datatype.BYTES]
WriteModule = Callable[..., Path]


@pytest.fixture(scope="module")
def torch() -> Any:
    """PyTorch, where it is installed."""
    import torch

    return torch


@pytest.fixture
def write(torch: Any, tmp_path: Path) -> WriteModule:
    """Save a module whose `forward` has this text, as a TorchScript archive."""

    def save(forward: str, name: str = "model.pt", **parts: Any) -> Path:
        module = type("Net", (torch.nn.Module,), {})()  # PyTorch compiles a class once
        for part, value in parts.items():
            setattr(module, part, value)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            scripted = torch.jit.script(module)
            scripted.define(f"{forward}\n")
        path = tmp_path / name
        scripted.save(str(path))
        return path

    return save


IDENTITY = "def forward(self, x):\n    return x"
LINEAR = "def forward(self, image, scale: float = 2.0):\n    return self.linear(image) * scale"
STATED = {"image": TensorOptions((-1, 3))}


def loaded(path: Path, **options: Any) -> Backend:
    """Load a file on the CPU."""
    return load(path, LoadOptions(**{"device": parse_device("cpu")} | options))


@pytest.mark.parametrize("shape", [(2, 4), (), (0, 3)])
@pytest.mark.parametrize("datatype", NUMBERS)
def test_numbers_of_every_datatype(write: WriteModule, datatype: Datatype, shape: tuple[int, ...]) -> None:
    """What goes in comes out, with its dtype, also from memory that is read-only and not aligned."""
    configured = (-1, *shape[1:]) if shape else ()
    backend = loaded(write(IDENTITY), inputs={"x": TensorOptions(configured, datatype)})
    array = np.ones(shape, dtype_of(datatype))
    payload = b"\0" + array.tobytes()
    result = backend.infer({"x": np.frombuffer(payload, np.uint8)[1:].view(array.dtype).reshape(shape)})["OUTPUT__0"]
    assert (result.dtype, result.shape) == (array.dtype, shape)
    assert np.array_equal(result, array)
    assert backend.inputs == (TensorSpec("x", datatype, configured),)
    assert backend.outputs == (TensorSpec("OUTPUT__0", datatype, configured),)


def test_on_a_gpu_all_runs_are_in_one_thread(torch: Any) -> None:
    """Whichever thread asks; batches have prepared sizes, errors are those of the CPU, and the thread ends with it."""
    seen: set[str] = set()

    def call(feeds: Mapping[str, Any]) -> dict[str, Any]:
        seen.add(threading.current_thread().name)
        assert torch.is_inference_mode_enabled()
        if feeds["x"].sum() < 0:
            raise RuntimeError("too small")
        return {"y": feeds["x"] * 2}

    inputs = (TensorSpec("x", Datatype.FP32, (-1, 2)),)
    backend = TorchScriptBackend(torch, call, inputs, "cpu:0", Path("model.pt"))  # PyTorch's other name of the CPU
    with closing(backend), ThreadPoolExecutor(3) as pool:
        assert batch_sizes(backend) == (1, 4, 8, 16, 32, 64)
        for result in pool.map(backend.infer, [{"x": np.full((1, 2), each, np.float32)} for each in range(9)]):
            assert result["y"][0, 0] in range(0, 18, 2)
        with pytest.raises(ModelFailed, match=r"^model.pt: PyTorch: too small$"):
            backend.infer({"x": np.full((1, 2), -1, np.float32)})
    (name,) = seen
    assert name not in {thread.name for thread in threading.enumerate()}
    with pytest.raises(ModelFailed, match="closed"):
        backend.infer({"x": np.zeros((1, 2), np.float32)})


def test_a_model_that_writes_to_its_input(write: WriteModule) -> None:
    """The request's own memory is read-only, and stays as it is."""
    backend = loaded(write("def forward(self, x):\n    return x.mul_(2)"), inputs={"x": TensorOptions((-1,))})
    array = np.ones(2, np.float32)
    array.flags.writeable = False
    assert backend.infer({"x": array})["OUTPUT__0"].tolist() == [2, 2]
    assert array.tolist() == [1, 1]


def test_a_model_that_changes_itself(torch: Any, write: WriteModule) -> None:
    """What a module keeps between runs is no constant."""
    forward = "def forward(self, x):\n    self.count = self.count + 1\n    return self.count + x.sum() * 0"
    backend = loaded(write(forward, count=torch.zeros(())), inputs={"x": TensorOptions((-1,))})
    first, second = (backend.infer({"x": np.zeros(1, np.float32)})["OUTPUT__0"].item() for _ in range(2))
    assert second == first + 1


def test_what_is_discovered(torch: Any, write: WriteModule) -> None:
    """Names of arguments, open axes of outputs, the engine; arguments with a default are left alone."""
    path = write(LINEAR, linear=torch.nn.Linear(3, 5))
    config = ModelConfig(max_batch_size=4, input=(TensorConfig("image", (3,)),), output=(TensorConfig("scores"),))
    model = load_model(ModelVersion("m", 1, path, config), device="cpu")
    card = model.card
    assert card.inputs == (TensorSpec("image", Datatype.FP32, (-1, 3)),)
    assert card.outputs == (TensorSpec("scores", Datatype.FP32, (-1, 5)),)
    assert (card.platform, card.parameters.device, card.parameters.precision) == ("pytorch_torchscript", "cpu", "fp32")
    assert card.parameters.backend == f"torch {torch.__version__}"
    warm_up(model.backend, card)


def test_an_input_that_nobody_states(torch: Any, write: WriteModule) -> None:
    """The message holds the tables to write."""
    with pytest.raises(ConfigError, match=r'model\.toml(.|\n)*\[\[input\]\]\nname = "image"\ndims = \[...\]'):
        loaded(write(LINEAR, linear=torch.nn.Linear(3, 5)))


@pytest.mark.parametrize(
    ("forward", "names"),
    [
        ("return x, x.sum(1)", ["OUTPUT__0", "OUTPUT__1"]),
        ("return [x, x + 1]", ["OUTPUT__0", "OUTPUT__1"]),
        ('return {"a": x, "b": x.to(torch.uint8)}', ["a", "b"]),
    ],
)
def test_several_outputs(write: WriteModule, forward: str, names: list[str]) -> None:
    """Tuples and lists by their places, dictionaries by their keys; requested ones alone."""
    backend = loaded(write(f"def forward(self, x):\n    {forward}"), inputs={"x": TensorOptions((-1, 2))})
    assert [spec.name for spec in backend.outputs] == names
    assert backend.infer({"x": np.ones((3, 2), np.float32)}, names[1:]).keys() == set(names[1:])


@pytest.mark.parametrize(
    ("forward", "shape", "message"),
    [
        ("return x @ x", (-1, 2), "does not run on zeros of the configured shapes"),
        ("return x.to(torch.bfloat16)", (-1,), "bfloat16"),
        ("return len(x)", (-1,), "int"),
        ("return x.new_zeros([1] * int(x.shape[0]))", (-1,), "number of axes of output 'OUTPUT__0' depends"),
    ],
)
def test_outputs_that_can_not_be_found(write: WriteModule, forward: str, shape: Any, message: str) -> None:
    """A model that fails on the configured inputs, or returns what can't be sent, is refused when it is loaded."""
    with pytest.raises(ModelNotLoadable, match=message):
        loaded(write(f"def forward(self, x):\n    {forward}"), inputs={"x": TensorOptions(shape)})


def test_a_model_that_is_refused_leaves_no_thread(write: WriteModule, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, where a thread of its own runs the model: `cpu:0` is no `cpu` here, and the same to PyTorch."""
    monkeypatch.setattr(RequestedDevice, "choose", lambda *_: "cpu:0")
    with pytest.raises(ModelNotLoadable, match="does not run on zeros"):
        loaded(write("def forward(self, x):\n    return x @ x"), inputs={"x": TensorOptions((-1, 2))})
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("mqinfer-torch")]


def test_an_argument_that_is_no_tensor(write: WriteModule) -> None:
    """Only tensors can be sent."""
    with pytest.raises(ModelNotLoadable, match=r"'words' is List\[str\]: expected only tensors"):
        loaded(write("def forward(self, words: List[str]):\n    return torch.zeros(len(words))"))


def test_wrong_inputs_fail_and_the_next_run_works(torch: Any, write: WriteModule) -> None:
    """PyTorch's exceptions become ModelFailed, without TorchScript's traceback."""
    backend = loaded(write(LINEAR, linear=torch.nn.Linear(3, 5)), inputs=STATED)
    for wrong in ({}, {"image": np.zeros((1, 4), np.float32)}, {"image": np.zeros((1, 3))}):
        with pytest.raises(ModelFailed) as caught:
            backend.infer(wrong)
        assert "\n" not in str(caught.value)
    assert backend.infer({"image": np.zeros((1, 3), np.float32)})["OUTPUT__0"].shape == (1, 5)
    backend.close()
    with pytest.raises(ModelFailed, match="closed"):
        backend.infer({"image": np.zeros((1, 3), np.float32)})


@pytest.mark.parametrize(("dtype", "precision"), [("float16", "fp16"), ("bfloat16", "bf16"), ("float64", "fp64")])
def test_precision_is_that_of_the_weights(torch: Any, write: WriteModule, dtype: str, precision: str) -> None:
    """What it computes in is read off the weights."""
    linear = torch.nn.Linear(3, 5).to(getattr(torch, dtype))
    forward = f"def forward(self, x):\n    return self.linear(x.to(torch.{dtype})).to(torch.float32)"
    configured = {"x": TensorOptions((-1, 3), Datatype.FP32)}
    assert loaded(write(forward, linear=linear), inputs=configured).precision == precision


def test_a_gpu_that_is_not_there(torch: Any, write: WriteModule, caplog: pytest.LogCaptureFixture) -> None:
    """One line in the log has it, and the card has the real device."""
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    path = write(LINEAR, linear=torch.nn.Linear(3, 5))
    with caplog.at_level(logging.WARNING, "mqinfer.models"):
        assert loaded(path, device=parse_device("cuda"), inputs=STATED).device == "cpu"
    assert len(caplog.records) == 1


def test_pickles_are_not_opened(torch: Any, tmp_path: Path) -> None:
    """Weights and whole models of `torch.save` are refused before PyTorch sees them."""
    for legacy in (False, True):
        path = tmp_path / f"{legacy}.pt"
        torch.save({"w": torch.zeros(3)}, path, _use_new_zipfile_serialization=not legacy)
        with pytest.raises(ModelNotLoadable, match="pickle"):
            loaded(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"hello, this is no model" * 9, "bytes of text"),
        (b"PK\x03\x04" + bytes(200), "truncated"),
        (bytes(range(1, 200)), "copy or export the model again"),
    ],
)
def test_what_is_no_archive(tmp_path: Path, content: bytes, message: str) -> None:
    """The message has the path, what was found, and what to do."""
    path = tmp_path / "model.pt"
    path.write_bytes(content)
    with pytest.raises(ModelNotLoadable, match=f"{path}.*{message}"):
        check_torchscript(path)


def test_other_archives(torch: Any, write: WriteModule, tmp_path: Path) -> None:
    """A ZIP of another kind, a truncated archive, and one whose code is missing."""
    other = tmp_path / "other.pt"
    with zipfile.ZipFile(other, "w") as archive:
        archive.writestr("models/model.json", "{}")
    with pytest.raises(ModelNotLoadable, match="not a TorchScript archive"):
        check_torchscript(other)
    hollow = tmp_path / "hollow.pt"
    with zipfile.ZipFile(hollow, "w") as archive:
        archive.writestr("hollow/constants.pkl", "")
    with pytest.raises(ModelNotLoadable, match="PyTorch can't load it"):
        loaded(hollow)
    whole = write(LINEAR, linear=torch.nn.Linear(3, 5))
    whole.write_bytes(whole.read_bytes()[:-100])
    with pytest.raises(ModelNotLoadable, match="not a TorchScript archive"):
        loaded(whole)


def test_names_of_arguments() -> None:
    """TensorOptions names are arguments, or hold the argument's place at their end."""
    assert name_arguments(["a", "b"], []) == {"a": "a", "b": "b"}
    assert name_arguments(["a", "b"], ["b"]) == {"a": "a", "b": "b"}
    assert name_arguments(["a", "b"], ["INPUT__1", "INPUT__0"]) == {"INPUT__0": "a", "INPUT__1": "b"}
    for wrong in ("c", "INPUT__2", "__0"):
        with pytest.raises(ConfigError, match="the model has a, b"):
            name_arguments(["a", "b"], [wrong])


def test_names_of_results() -> None:
    """One, several, a dictionary; configured names by order or by place."""
    assert name_results("t", ()) == {"OUTPUT__0": "t"}
    assert name_results(("t", "u"), ("first", "second")) == {"first": "t", "second": "u"}
    assert name_results(("t", "u"), ("second__1",)) == {"OUTPUT__0": "t", "second__1": "u"}
    assert name_results(["t", "u"], ("b__1", "a__0")) == {"a__0": "t", "b__1": "u"}
    assert name_results({"k": "t"}, ("k",)) == {"k": "t"}
    with pytest.raises(ConfigError, match="'mask': the model has OUTPUT__0, OUTPUT__1"):
        name_results(("t", "u"), ("mask",))

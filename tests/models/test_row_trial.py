"""Requests share a run of a model only where a trial shows that its rows are independent."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from mqinfer.cloud_worker.serving.service import Completed, InferenceService
from mqinfer.codecs import encode_tensor
from mqinfer.lab.drives.lessons import lesson_drive, lessons_key
from mqinfer.lab.drives.synthetic import CLASSES
from mqinfer.lab.zoo import Lessons, building
from mqinfer.lab.zoo.catalogue import CATALOGUE
from mqinfer.lab.zoo.networks import classifiers, jet_models, yolo_v2
from mqinfer.models.loading import LoadedModel, load_model
from mqinfer.models.repository import ModelVersion, Repository
from mqinfer.models.repository.config import ModelConfig, WarmUp
from mqinfer.protocol.datatypes import Array, Datatype, dtype_of
from mqinfer.protocol.types import InferRequest, TensorSpec
from tests.onnx_files import save_onnx


def _load(
    path: Path, nodes: list[object], *, axis: str = "unk__7", config: ModelConfig | None = None, size: int | str = 4
) -> LoadedModel:
    end = TensorProto.FLOAT, [axis, size]
    file = save_onnx(path / "model.onnx", nodes, {"x": end}, {"y": end}, {"first": 0, "wide": [3, 4]})
    return load_model(ModelVersion("m", 1, file, config or ModelConfig()), device="cpu")


def _mixing(kind: str) -> list[object]:
    if kind == "softmax":
        return [helper.make_node("Softmax", ["x"], ["y"], axis=0)]
    if kind == "cumsum":
        return [helper.make_node("CumSum", ["x", "first"], ["y"])]
    reduce = helper.make_node({"mean": "ReduceMean", "maximum": "ReduceMax"}[kind], ["x"], ["all"], axes=[0])
    return [reduce, helper.make_node("Sub", ["x", "all"], ["y"])]


def _identity() -> list[object]:
    return [helper.make_node("Identity", ["x"], ["y"])]


@pytest.mark.parametrize("axis", ["unk__7", "batch", "num_points"])
@pytest.mark.parametrize("kind", ["softmax", "mean", "maximum", "cumsum"])
def test_rows_that_mix_are_no_batch(tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str, axis: str) -> None:
    """Whatever the open axis is called; one line says so, with the way out."""
    with caplog.at_level(logging.WARNING, "mqinfer"):
        assert _load(tmp_path, _mixing(kind), axis=axis).card.max_batch_size == 0
    (line,) = [record.getMessage() for record in caplog.records]
    assert "requests do not share runs" in line
    assert "set max_batch_size in model.toml" in line


@pytest.mark.parametrize("axis", ["unk__7", "batch", "N"])
def test_independent_rows_are_a_batch(tmp_path: Path, axis: str) -> None:
    """The trial decides, where the axis has no name that contradicts it."""
    assert _load(tmp_path, _identity(), axis=axis).card.max_batch_size == 8


def test_the_name_of_another_axis(tmp_path: Path) -> None:
    """An axis called after a sequence is none of strangers, even where the trial saw no difference."""
    assert _load(tmp_path, _identity(), axis="sequence_length").card.max_batch_size == 0


@pytest.mark.parametrize("kind", ["softmax", "identity"])
def test_the_configuration_has_priority(tmp_path: Path, kind: str) -> None:
    """Nothing is tried where `max_batch_size` is given."""
    nodes = _identity() if kind == "identity" else _mixing(kind)
    assert _load(tmp_path, nodes, axis="num_points", config=ModelConfig(max_batch_size=5)).card.max_batch_size == 5


@pytest.mark.parametrize(("axis", "rows"), [("unk__7", 0), ("batch_size", 8)])
def test_what_no_trial_decides(tmp_path: Path, axis: str, rows: int) -> None:
    """A model that refuses the trial, or may not be run, shares runs only if its axis is called a batch."""
    refusing = [
        helper.make_node("Reshape", ["x", "wide"], ["z"]),
        helper.make_node("ReduceSum", ["z"], ["s"], keepdims=0),
        helper.make_node("Add", ["x", "s"], ["y"]),
    ]
    assert _load(tmp_path, refusing, axis=axis, size="k").card.max_batch_size == rows
    assert (
        _load(tmp_path, _identity(), axis=axis, config=ModelConfig(model_warmup=WarmUp(0))).card.max_batch_size == rows
    )
    constant = [helper.make_node("Sub", ["x", "x"], ["y"])]
    assert _load(tmp_path, constant, axis=axis).card.max_batch_size == rows


def test_open_axes_beside_the_first(tmp_path: Path) -> None:
    """Sizes are tried until the model takes one."""
    assert _load(tmp_path, _identity(), size="k").card.max_batch_size == 8
    assert _load(tmp_path, _mixing("softmax"), size="k").card.max_batch_size == 0


_QUICK = {"classifier_224", "drive_segmentation_onnx", "frame_mask", "small_16", "vae_like"}
_ONE_OF_A_KIND = {
    "conv_vae_onnx",
    "graph_vae_savedmodel",
    "mobilenet_224_onnx",
    "mobilenet_v3_small_968_608_os8",
    "noscope_50_onnx",
}
"""Made in seconds, each in another way; the others are marked as long."""
_FIXED = {name for name in CATALOGUE if name == "frame_mask" or name.startswith("mobilenet_v3_")}
"""Networks whose file fixes the batch at one."""


def _marks(name: str) -> list[pytest.MarkDecorator]:
    if name in _QUICK:
        return []
    return [pytest.mark.slow] if name in _ONE_OF_A_KIND else [pytest.mark.slow, pytest.mark.full]


@pytest.fixture(scope="module")
def quick_training() -> Iterator[None]:
    """Train autoencoders for three steps: what they have learned does not matter to their rows."""
    makers = jet_models.conv_vae_network, jet_models.graph_vae_network
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jet_models, "_STEPS", 3)
        for make in makers:
            make.cache_clear()
        yield
    for make in makers:
        make.cache_clear()


def _scaled(
    monkeypatch: pytest.MonkeyPatch, module: ModuleType, name: str, scales: Callable[[int], list[float]]
) -> None:
    """Multiply the kernels that a function makes, given their number: with small random ones no answer differs."""
    make = getattr(module, name)

    def scaled(*arguments: Any) -> Any:
        model = make(*arguments)
        kernels = [each for each in model.weights if len(each.shape) > 1]
        for kernel, scale in zip(kernels, scales(len(kernels)), strict=True):
            kernel.assign(kernel * scale)
        return model

    monkeypatch.setattr(module, name, scaled)


@pytest.mark.parametrize("name", [pytest.param(name, marks=_marks(name)) for name in sorted(set(CATALOGUE) - _FIXED)])
@pytest.mark.usefixtures("quick_training")
def test_networks_of_the_zoo_with_strangers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Each answers strangers in one run as each alone, also where it is set to one a run, which a user may raise."""
    _scaled(monkeypatch, classifiers, "mobilenet", lambda count: [8.0] * count)
    _scaled(monkeypatch, yolo_v2, "yolo_v2", lambda count: [1.0] * (count - 1) + [1e4])  # some pictures have boxes
    building.build(tmp_path, [name], lessons=Lessons(lesson_drive, CLASSES, lessons_key()))
    (version,) = Repository(tmp_path).models()
    model = load_model(replace(version, config=replace(version.config, max_batch_size=3)), device="cpu")
    assert _check_strangers(model, {spec.name: _unlike(spec) for spec in model.card.inputs})
    model.backend.close()


def _unlike(spec: TensorSpec) -> Array:
    """Return a row for each of three strangers: a dark one, a bright one, and noise."""
    shape = tuple(16 if size == -1 else size for size in spec.shape[1:])
    noise = np.random.default_rng(1).random((3, *shape))
    noise[0] *= 0.1
    noise[1] = 1 - noise[1] * 0.3
    return (noise * 255 if spec.datatype is Datatype.UINT8 else noise).astype(dtype_of(spec.datatype))


def _check_strangers(model: LoadedModel, rows: dict[str, Array]) -> bool:
    """Ask the worker's service for each row, all in one run and each alone; return whether some answers differ."""
    counted: list[str] = []
    service = InferenceService(model, count=counted.append)
    requests = [
        InferRequest(str(row), model.card.name, tuple(encode_tensor(name, rows[name][row : row + 1]) for name in rows))
        for row in range(len(next(iter(rows.values()))))
    ]
    prepared = [service.prepare(request) for request in requests]
    assert len(prepared) <= service.max_rows
    assert len({each.key for each in prepared}) == 1
    together = [service.finish(*each) for each in zip(requests, _outputs(service.run(prepared)), strict=True)]
    runs = [service.run([each])[0] for each in prepared]
    alone = [service.finish(*each) for each in zip(requests, _outputs(runs), strict=True)]
    assert not counted  # a run that fails comes apart, and each runs alone
    for one, other in zip(together, alone, strict=True):
        assert one.keys() == other.keys()
        for name, array in one.items():
            assert _alike(array, other[name]), name
    return any(not np.array_equal(alone[0][name], each[name]) for each in alone[1:] for name in each)


def _outputs(completed: list[Completed]) -> list[dict[str, Array]]:
    assert [each.error for each in completed] == [None] * len(completed)
    return [each.outputs for each in completed]


def _alike(one: Array, other: Array) -> bool:
    """Return whether numbers are the same but for the order of sums; of whole ones, all but one in a hundred."""
    if one.shape != other.shape or one.dtype.kind not in "fc":
        return one.shape == other.shape and bool(np.mean(one != other) <= 0.01)
    return np.allclose(one, other, rtol=1e-4, atol=1e-4 * np.abs(other).max(initial=0))


@pytest.mark.parametrize("name", [pytest.param(name, marks=_marks(name)) for name in sorted(_FIXED)])
def test_networks_of_the_zoo_that_stay_alone(tmp_path: Path, name: str) -> None:
    """Where the file fixes the batch at one, requests never share a run."""
    building.build(tmp_path, [name])
    (version,) = Repository(tmp_path).models()
    model = load_model(version, device="cpu")
    assert model.card.max_batch_size <= 1
    model.backend.close()


_REAL = {  # each file that a model is, with the engines that serve it, and how many requests share a run
    "ort_examples_mnist.onnx": {"onnxruntime": 1, "openvino": 1},
    "tf2onnx_fc-layers.pb": {"tensorflow": 8, "openvino": 8},
    "half_plus_two_2_versions/00000123": {"tensorflow": 8},
    "half_plus_two_2_versions/00000124": {"tensorflow": 8},
}


def _examples(numbers: Array) -> Array:
    """Write numbers as TensorFlow's Examples with the feature `x`."""
    head = b"\x0a\x0f\x0a\x0d\x0a\x01x\x12\x08\x12\x06\x0a\x04"
    return np.array([head + number.tobytes() for number in numbers], np.object_)


@pytest.mark.slow
@pytest.mark.shared_data
@pytest.mark.parametrize(("file", "engine"), [(file, engine) for file in _REAL for engine in _REAL[file]])
def test_answers_of_real_models_with_strangers(shared_models: Path, digits: Any, file: str, engine: str) -> None:
    """Real values of eight callers make the same answers together as each alone, in every signature."""
    pytest.importorskip(engine)
    model = load_model(ModelVersion("m", 1, shared_models / file, ModelConfig(backend=engine)), device="cpu")
    assert model.card.max_batch_size == _REAL[file][engine]
    numbers = np.linspace(-3, 300, 8, dtype=np.float32)[:, None]
    pixels = digits[0][:8]
    for each in (model, *model.signatures.values()):
        (spec,) = each.card.inputs
        values = {784: pixels / 255, 28: pixels.reshape(8, 1, 28, 28), 1: numbers}.get(
            spec.shape[-1], _examples(numbers)
        )
        if each.card.max_batch_size > 1:
            assert _check_strangers(each, {spec.name: values})
    model.backend.close()


@pytest.mark.shared_data
def test_every_real_model_is_tried(shared_models: Path) -> None:
    """A file that is added is no model, or is in the table above."""
    found = {
        each for each in shared_models.rglob("*") if each.suffix in {".onnx", ".pb", ".keras", ".pt", ".xml", ".tflite"}
    }
    models = {each.parent if each.name == "saved_model.pb" else each for each in found}
    assert {str(each.relative_to(shared_models)) for each in models} == set(_REAL)

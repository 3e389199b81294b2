"""Products: their plan, their folders and their configuration."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

from mqinfer.lab.conversion import to_onnx
from mqinfer.lab.optimize.fusing import Fused
from mqinfer.lab.optimize.products import (
    Recipe,
    override_toml,
    plan,
    product_version,
    write_product,
)
from mqinfer.lab.optimize.samples import Sample, SampleInputs, feeds, random_samples
from mqinfer.models.repository import ModelVersion, Repository
from mqinfer.models.repository.tables import as_toml
from mqinfer.protocol.card import CardParameters, ImageContract, ModelCard
from mqinfer.protocol.datatypes import Datatype
from mqinfer.protocol.errors import ConfigError, MissingExtra, ModelNotLoadable
from mqinfer.protocol.types import TensorSpec
from tests.onnx_files import save_onnx

PLAIN = st.one_of(
    st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False, allow_infinity=False), st.text()
)
VALUES = st.recursive(PLAIN, lambda each: st.lists(each, max_size=3) | st.dictionaries(st.text(), each, max_size=3))


def card_of(*inputs: TensorSpec, image: ImageContract | None = None, platform: str = "onnx_onnxv1") -> ModelCard:
    """Make a card with inputs and one output."""
    output = TensorSpec("y", Datatype.FP32, (-1, 4))
    known = CardParameters(image=image)
    return ModelCard(name="m", versions=("1",), platform=platform, inputs=inputs, outputs=(output,), parameters=known)


def labels(engines: list[str], precisions: list[str], *, early: bool = False, calibrated: bool = True) -> list[str]:
    """Return the labels of a plan."""
    return [recipe.label for recipe in plan(engines, precisions, early=early, calibrated=calibrated)]


def test_a_plan_holds_what_there_is() -> None:
    """ONNX Runtime has no bf16 on the CPU, int8 needs samples, early products come last."""
    everything = (["onnx", "openvino"], ["fp32", "bf16", "int8"])
    assert labels(*everything) == ["onnx-fp32", "onnx-int8", "openvino-fp32", "openvino-bf16", "openvino-int8"]
    assert labels(*everything, calibrated=False) == ["onnx-fp32", "openvino-fp32", "openvino-bf16"]
    assert labels(["onnx"], ["fp32"], early=True) == ["onnx-fp32", "onnx-fp32-early"]


@pytest.mark.parametrize(
    ("engines", "precisions", "message"),
    [
        (["tflite"], ["fp32"], "'tflite' is unknown; expected one of onnx, openvino"),
        (["onnx"], ["fp8"], "'fp8' is unknown"),
        (["onnx"], ["bf16"], "nothing to make for onnx in bf16"),
    ],
)
def test_plans_that_come_to_nothing(engines: list[str], precisions: list[str], message: str) -> None:
    """The message lists the known names."""
    with pytest.raises(ConfigError, match=message):
        plan(engines, precisions, early=False, calibrated=True)


def test_int8_alone_needs_samples() -> None:
    """Without calibration samples int8 is refused, and the message names the options."""
    with pytest.raises(ConfigError, match="int8 needs --calibrate or --samples"):
        plan(["openvino"], ["int8"], early=False, calibrated=False)


@given(st.dictionaries(st.text(), VALUES, max_size=4))
def test_toml_says_what_was_meant(table: dict[str, Any]) -> None:
    """Strings, numbers, lists and tables survive a round trip through Python's TOML reader."""
    assert tomllib.loads(f"x = {as_toml(table)}")["x"] == table


def _model(repository: Path, config: str = "", own: str = "") -> ModelVersion:
    """Write `y = x + 1` with [1,4] into a repository."""
    folder, end = repository / "m" / "0001", (TensorProto.FLOAT, ["n", 4])
    node, one = helper.make_node("Add", ["x", "one"], ["y"]), np.ones(4, np.float32)
    save_onnx(folder / "net.onnx", [node], {"x": end}, {"y": end}, {"one": one})
    (repository / "m" / "model.toml").write_text(config)
    (folder / "model.toml").write_text(own)
    return Repository(repository).find("m")


CONFIG = """
max_batch_size = 4
default_model_filename = "net.onnx"
parameters = { signature = "serve", intra_op_thread_count = "1" }
classes = [{ name = "one" }, { name = "two" }]
"""
OWN = 'dynamic_batching = { preferred_batch_size = [2, 4] }\noutput = [{ name = "y", dims = [4] }]\n'


def test_a_product_keeps_the_models_configuration(repository: Path) -> None:
    """A product inherits the keys of the model and of the version, except those of the file."""
    original = _model(repository, CONFIG, OWN)
    assert original.folder.name == "0001"
    folder = repository / "m" / "candidates" / "onnx-fp32"
    write_product(Recipe("onnx", "fp32"), Fused(original.path), original, [], folder)
    product = product_version(original, folder)
    assert product.path == folder / "model.onnx"
    assert product.config.backend == "onnxruntime"
    assert product.config.max_batch_size == 4
    assert product.config.dynamic_batching == original.config.dynamic_batching
    assert product.config.output == original.config.output
    assert product.config.parameters == {"intra_op_thread_count": "1", "precision": "fp32"}
    assert [each.name for each in product.config.pictures.classes] == ["one", "two"]


def test_what_is_fused_is_no_longer_stated(repository: Path) -> None:
    """A product with a mask drops the dims of the logits, and its image contract has no normalisation."""
    original = _model(repository, CONFIG, OWN)
    fused = Fused(original.path, {"y": 1}, ImageContract("x", 8, 6))
    layer = tomllib.loads(override_toml(original, fused, {"backend": "openvino"}))
    assert (layer["output"], layer["input"]) == ([], [])
    assert (layer["image"]["width"], layer["image"]["height"], layer["image"]["scale"]) == (8, 6, 1.0)


def test_a_product_appears_whole_or_not_at_all(repository: Path) -> None:
    """A converter that fails leaves the product of an earlier run, and no partial folder."""
    original = _model(repository)
    folder = repository / "m" / "candidates" / "openvino-fp32"
    write_product(Recipe("openvino", "fp32"), Fused(original.path), original, [], folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert set(before) == {"model.xml", "model.bin", "model.toml"}
    with pytest.raises(ModelNotLoadable, match=r"OpenVINO can't convert it: .*nowhere"):
        write_product(Recipe("openvino", "fp32"), Fused(Path("nowhere.onnx")), original, [], folder)
    assert [path.name for path in folder.parent.iterdir()] == ["openvino-fp32"]
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.parametrize("precision", ["fp16", "int8"])
def test_fewer_bits_in_onnx(repository: Path, precision: str) -> None:
    """Products in half precision and INT8 have float32 inputs and outputs, and add one within their precision."""
    original = _model(repository)
    folder = repository / "m" / "candidates" / precision
    samples = [{"x": np.random.default_rng(n).uniform(-1, 1, (1, 4)).astype(np.float32)} for n in range(8)]
    write_product(Recipe("onnx", precision), Fused(original.path), original, samples, folder)
    session = onnxruntime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
    result = session.run(None, samples[0])[0]
    assert result.dtype == np.float32
    assert np.allclose(result, samples[0]["x"] + 1, atol=0.05)
    kinds = {node.op_type for node in _nodes(folder / "model.onnx")}
    assert ("Cast" if precision == "fp16" else "QuantizeLinear") in kinds


def _nodes(path: Path) -> Any:
    import onnx

    return onnx.load(str(path)).graph.node


def test_no_way_to_onnx(repository: Path) -> None:
    """The error for an unsupported format lists the supported ones."""
    original = _model(repository)
    with pytest.raises(ConfigError, match="openvino_ir can't be converted to ONNX; expected one of onnx_onnxv1"):
        to_onnx(original, card_of(platform="openvino_ir"))


def test_a_converter_that_loses_an_output(repository: Path) -> None:
    """All inputs and outputs of the original must exist after the conversion."""
    original = _model(repository)
    with pytest.raises(ModelNotLoadable, match="the converted model lacks z; it has x, y"):
        to_onnx(original, card_of(TensorSpec("z", Datatype.FP32, (1, 4))))


def test_without_onnx(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the extra."""
    original = _model(repository)
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(MissingExtra, match=r"install .*\[optimize\]"):
        to_onnx(original, card_of())


PICTURE = TensorSpec("x", Datatype.FP32, (-1, 4, 6, 3))
ROWS = TensorSpec("x", Datatype.FP32, (-1, 4))


def test_a_picture_feeds_any_version() -> None:
    """One sample feeds the float original and the uint8 product."""
    sample = Sample(np.full((4, 6, 3), 255, np.uint8))
    bytes_ = TensorSpec("x", Datatype.UINT8, PICTURE.shape)
    assert feeds(sample, [PICTURE], ImageContract("x", 6, 4, scale=1 / 255))["x"].max() == 1
    assert (feeds(sample, [bytes_], ImageContract("x", 6, 4))["x"] == 255).all()


def test_samples_that_do_not_fit_the_model() -> None:
    """A picture for a model without an image input, and arrays that lack an input."""
    inputs = [ROWS, TensorSpec("z", Datatype.FP32, (-1, 4))]
    with pytest.raises(ConfigError, match=r"takes x, z, not one colour picture; pass arrays with --samples FILE.npz"):
        feeds(Sample(np.zeros((4, 6, 3), np.uint8)), inputs, None)
    with pytest.raises(ConfigError, match="samples hold x; the model also needs 'z'"):
        feeds(Sample(inputs={"x": np.zeros((1, 4))}), inputs, None)


def test_random_samples_fit_the_model() -> None:
    """Random samples are pictures for a model with an image input, else arrays; all differ."""
    image = ImageContract("x", 6, 4)
    pictures = random_samples(card_of(PICTURE, image=image), 2)
    assert [feeds(each, [PICTURE], image)["x"].shape for each in pictures] == [(1, 4, 6, 3)] * 2
    one, other = (feeds(each, [ROWS], None)["x"] for each in random_samples(card_of(ROWS), 2))
    assert one.shape == (1, 4)
    assert not np.array_equal(one, other)


def test_a_measurement_repeats_its_sample() -> None:
    """A batch repeats the sample; a model with a fixed batch size accepts no other."""
    inputs = SampleInputs(Sample(inputs={"x": np.arange(4.0)[None]}), None)
    assert inputs.make([ROWS], 3)["x"].tolist() == [[0, 1, 2, 3]] * 3
    with pytest.raises(ConfigError, match="does not accept a batch of 3"):
        inputs.make([TensorSpec("x", Datatype.FP32, (1, 4))], 3)


def test_a_measurement_prepares_its_picture() -> None:
    """The model's shape completes the image contract of its configuration."""
    inputs = SampleInputs(Sample(np.full((8, 12, 3), 255, np.uint8)), ImageContract("", scale=1 / 255))
    array = inputs.make([PICTURE], 2)["x"]
    assert array.shape == (2, 4, 6, 3)
    assert array.max() == 1

"""From a file to a back end and a card, and the errors of files that are no models."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from mqinfer.errors import ConfigError, ModelNotLoadable
from mqinfer.models.backend import Backend
from mqinfer.models.engines import choose_loader, platform_of
from mqinfer.models.load_options import LoadOptions, RequestedDevice, TensorOptions, parse_device
from mqinfer.models.loading import load_model, load_options
from mqinfer.models.repository import ModelVersion, Repository
from mqinfer.models.repository.config import InstanceGroup, InstanceKind, ModelConfig, TensorConfig
from mqinfer.models.repository.config_files import combine, read_layer
from mqinfer.protocol.card import ImageContract
from mqinfer.protocol.datatypes import Datatype
from tests.onnx_files import save_onnx

WriteOnnx = Callable[..., Path]


def test_a_model_from_the_repository(write_onnx: WriteOnnx, repository: Path) -> None:
    """Scan, load, run: the card has what the file and the configuration have."""
    write_onnx(repository / "road" / "7" / "model.onnx", "UINT8", ("n", 6, 8, 3))
    config = "max_batch_size = 4\n[image]\ncolour = 'bgr'\n[[classes]]\nname = 'road'\ncolour = [1, 2, 3]"
    (repository / "road" / "model.toml").write_text(config)
    (version,) = Repository(repository).models()
    model = load_model(version, device="cpu", versions=(6, 7))
    card = model.card
    assert (card.name, card.version, card.versions) == ("road", "7", ("6", "7"))
    assert (card.platform, card.parameters.device, card.parameters.precision) == ("onnx_onnxv1", "cpu", "fp32")
    assert card.parameters.backend.startswith("onnxruntime ")
    assert card.max_batch_size == 4
    assert card.image is not None
    assert (card.image.input, card.image.width, card.image.height, card.image.colour) == ("x", 8, 6, "bgr")
    assert card.classes[0].name == "road"
    assert "raw" in card.parameters.encodings
    assert card.parameters.model_hash.startswith("sha256:")
    assert model.backend.infer({"x": np.zeros((2, 6, 8, 3), np.uint8)})["y"].shape == (2, 6, 8, 3)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 9\n", "Git LFS pointer"),
        (b"", "is empty"),
        (b"hello, this is a text file and no model at all, whatever its name may say" * 2, "bytes of text"),
        (bytes(range(128, 256)) + b"\x00\x01", "130 bytes; it may be truncated"),
        (None, "no such file"),
    ],
)
@pytest.mark.parametrize("name", ["model.onnx", pytest.param("model.pb", marks=pytest.mark.slow)])
def test_what_is_no_model(tmp_path: Path, name: str, content: bytes | None, message: str) -> None:
    """The message has the path, what was found there, and what to do."""
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ModelNotLoadable) as caught:
        load_model(ModelVersion("m", 1, path))
    assert message in str(caught.value)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_a_whole_file_that_the_engine_does_not_know(tmp_path: Path, backend: str) -> None:
    """The advice is another engine or version, and not to copy the file again."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy")
    graph = helper.make_graph([helper.make_node("OfMyOwn", ["x"], ["y"], domain="my.own")], "g", [x], [y])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("my.own", 1)]
    path = tmp_path / "model.onnx"
    path.write_bytes(helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString())
    with pytest.raises(ModelNotLoadable) as caught:
        load_model(ModelVersion("m", 1, path, ModelConfig(backend=backend)))
    assert "truncated" not in str(caught.value)
    assert "not cut off: the engine may be too old" in str(caught.value)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(ModelNotLoadable, match="may be truncated"):
        load_model(ModelVersion("m", 1, path, ModelConfig(backend=backend)))


def test_a_locale_that_the_system_lacks(tmp_path: Path) -> None:
    """The engine's own reason is passed on, and not the advice to copy the file again."""
    node = helper.make_node("StringNormalizer", ["x"], ["y"], case_change_action="LOWER", locale="xx_YY")
    end = TensorProto.STRING, [1]
    path = save_onnx(tmp_path / "model.onnx", [node], {"x": end}, {"y": end})
    with pytest.raises(ModelNotLoadable, match="locale") as caught:
        load_model(ModelVersion("m", 1, path))
    assert "truncated" not in str(caught.value)


def test_onnx_runtimes_own_format(write_onnx: WriteOnnx, tmp_path: Path) -> None:
    """A `.ort` file serves like the ONNX file that it was made of; a damaged one is refused."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "model.ort")
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    source = str(write_onnx(tmp_path / "model.onnx"))
    onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    model = load_model(ModelVersion("m", 1, tmp_path / "model.ort"))
    assert model.card.platform == "onnx_onnxv1"
    assert model.backend.infer({"x": np.ones((1, 4), np.float32)})["y"].tolist() == [[1, 1, 1, 1]]
    (tmp_path / "model.ort").write_bytes((tmp_path / "model.ort").read_bytes()[:100])
    with pytest.raises(ModelNotLoadable, match=r"model\.ort"):
        load_model(ModelVersion("m", 1, tmp_path / "model.ort"))


def test_lfs_pointer_among_a_folders_files(tmp_path: Path) -> None:
    """A SavedModel whose variables are pointers is recognised before TensorFlow is started."""
    (tmp_path / "variables").mkdir()
    (tmp_path / "saved_model.pb").write_bytes(b"\x08\x01" * 100)
    (tmp_path / "variables" / "variables.data-00000-of-00001").write_bytes(b"version https://git-lfs.github.com/spec")
    with pytest.raises(ModelNotLoadable, match=r"variables\.data.*git lfs pull"):
        load_model(ModelVersion("m", 1, tmp_path))


def test_platforms(tmp_path: Path) -> None:
    """A file's name determines its platform unless the configuration does."""
    assert platform_of(tmp_path) == "tensorflow_savedmodel"
    assert platform_of(Path("a.graphdef")) == platform_of(Path("a.pb"), "tensorflow") == "tensorflow_graphdef"
    assert platform_of(Path("a.bin"), "onnx_onnxv1") == "onnx_onnxv1"
    (tmp_path / "a.caffemodel").write_bytes(b"\0\0")
    with pytest.raises(ModelNotLoadable, match=r"no back end reads \.caffemodel"):
        platform_of(tmp_path / "a.caffemodel")
    config = ModelConfig(backend="caffe")
    with pytest.raises(ConfigError, match=r"'caffe' is unknown; expected one of onnxruntime, openvino, .*onnx_onnxv1"):
        load_model(ModelVersion("m", 1, tmp_path / "a.caffemodel", config))


def test_engines(tmp_path: Path) -> None:
    """The format has its engine unless another one that reads it is named, by Triton's names too."""
    for file, configured, engine in [
        ("a.onnx", None, "onnx"),
        ("a.onnx", "onnxruntime_onnx", "onnx"),
        ("a.onnx", "openvino", "openvino"),
        ("a.pb", "openvino", "openvino"),
        ("a.pb", "tensorflow", "tensorflow.frozen_graph"),
        ("a.pt", "pytorch_libtorch", "torchscript"),
        ("a.H5", "keras", "tensorflow.keras"),
        ("a.jit", None, "torchscript"),
        ("a.ort", None, "onnx"),
        ("a.xml", None, "openvino"),
        ("a.tflite", None, "openvino"),
    ]:
        assert choose_loader(tmp_path / file, configured).__module__ == f"mqinfer.models.backends.{engine}"
    assert choose_loader(tmp_path, "openvino").__module__ == "mqinfer.models.backends.openvino"


@pytest.mark.parametrize(
    ("file", "configured", "message"),
    [
        ("a.onnx", "pytorch", "'pytorch' does not read a.onnx: onnx_onnxv1 files are read by onnxruntime, openvino"),
        ("a.keras", "openvino", "'openvino' does not read a.keras: tensorflow_keras files are read by tensorflow"),
        ("a.pt", "onnx_onnxv1", "'onnx_onnxv1' does not match a.pt: pytorch_torchscript files are read by pytorch"),
    ],
)
def test_engines_that_do_not_read_the_file(tmp_path: Path, file: str, configured: str, message: str) -> None:
    """A combination that can't be is refused, and those that can are named."""
    with pytest.raises(ConfigError, match=message):
        choose_loader(tmp_path / file, configured)


def test_a_configuration_that_contradicts_the_model(write_onnx: WriteOnnx, tmp_path: Path) -> None:
    """A fixed batch axis can't be stretched."""
    path = write_onnx(tmp_path / "model.onnx", "FP32", (1, 4))
    with pytest.raises(ConfigError, match=r"max_batch_size = 8.*at most 1"):
        load_model(ModelVersion("m", 1, path, ModelConfig(max_batch_size=8)))


@pytest.mark.parametrize(
    ("requested", "gpus", "device"),
    [
        ("auto", 0, "cpu"),
        ("auto", 2, "cuda:0"),
        ("cpu", 2, "cpu"),
        ("cuda", 0, "cpu"),
        ("cuda", 1, "cuda:0"),
        ("cuda:1", 1, "cpu"),
        ("cuda:1", 2, "cuda:1"),
    ],
)
def test_device(requested: str, gpus: int, device: str, caplog: pytest.LogCaptureFixture) -> None:
    """The requested device if it is available, else the CPU, and one line if a GPU was requested by name."""
    with caplog.at_level(logging.WARNING, "mqinfer.models"):
        assert parse_device(requested).choose(gpus, "Engine") == device
    assert len(caplog.records) == (requested.startswith("cuda") and device == "cpu")


def test_devices_of_openvino() -> None:
    """Triton's TARGET_DEVICE goes before `instance_group` and behind `--device`; others do not know its names."""
    config = ModelConfig(parameters={"TARGET_DEVICE": "AUTO:GPU,CPU"})
    assert load_options(config).device == RequestedDevice(openvino="AUTO:GPU,CPU")
    assert load_options(config, "cpu").device == RequestedDevice(gpu=False)
    with pytest.raises(ConfigError, match="is OpenVINO's: TensorFlow takes auto, cpu"):
        parse_device("GPU.1").choose(2, "TensorFlow")


@pytest.mark.parametrize("wrong", ["gpu", "cuda:", "cuda:x", "Cpu", "AUTO:", "AUTO:TPU", ""])
def test_unknown_devices(wrong: str) -> None:
    """Any other word is refused with those that exist."""
    with pytest.raises(ConfigError, match="auto, cpu, cuda or cuda:N"):
        parse_device(wrong)


def test_options_from_the_configuration() -> None:
    """`instance_group` decides where the caller leaves it open; dims leave the batch axis out where there is one."""
    gpu = ModelConfig(
        instance_group=(InstanceGroup(kind=InstanceKind.GPU, gpus=(2,)),),
        max_batch_size=8,
        parameters={"signature": "predict", "intra_op_thread_count": "3"},
        input=(TensorConfig("x", (3,), Datatype.FP32), TensorConfig("y")),
    )
    options = load_options(gpu)
    assert options.device == RequestedDevice(gpu=True, index=2)
    assert (options.signature, options.threads) == ("predict", 3)
    assert options.inputs == {"x": TensorOptions((-1, 3), Datatype.FP32), "y": TensorOptions()}
    assert load_options(gpu, "cpu").device == RequestedDevice(gpu=False)
    assert load_options(ModelConfig()).device == RequestedDevice()
    with pytest.raises(ConfigError, match="intra_op_thread_count"):
        load_options(ModelConfig(parameters={"intra_op_thread_count": "many"}))


def test_open_image_contract_survives(write_onnx: WriteOnnx, tmp_path: Path) -> None:
    """An `[image]` table is completed by the shape of the only input."""
    path = write_onnx(tmp_path / "1" / "model.onnx", "FP32", ("n", 3, 4, 5))
    (tmp_path / "model.toml").write_text("[image]\nlayout = 'NCHW'\nscale = 0.5")
    model = load_model(ModelVersion("m", 1, path, combine([read_layer(tmp_path / "model.toml")])))
    assert model.card.image == ImageContract("x", 5, 4, layout=model.card.image.layout, scale=0.5)  # type: ignore[union-attr]


def test_whatever_an_engine_raises_is_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A defect of an engine is a model that can't be loaded, with the class and the message."""

    def defective(path: Path, options: LoadOptions) -> Backend:
        raise AttributeError(f"{path.name} {options.precision}")

    monkeypatch.setattr("mqinfer.models.loading.choose_loader", lambda *_: defective)
    path = tmp_path / "model.echo"
    path.write_text("{}")
    with pytest.raises(ModelNotLoadable, match=r"model\.echo: can't be loaded: AttributeError: model\.echo fp32"):
        load_model(ModelVersion("m", 1, path, ModelConfig()))


@pytest.mark.parametrize("shape", [[1, 2**45], ["n", 2**45], [1, 2**62, 8]])
def test_shapes_that_no_request_can_have(write_onnx: WriteOnnx, tmp_path: Path, shape: list[int | str]) -> None:
    """A file with such an input is refused for good; it does not look like a lack of memory, which may pass."""
    path = write_onnx(tmp_path / "m" / "model.onnx", "FP32", shape)
    with pytest.raises(
        ModelNotLoadable, match=r"input 'x' has the shape .* and no request may have more than"
    ) as found:
        load_model(ModelVersion("m", 1, path))
    assert found.value.__cause__ is None


def test_a_file_that_is_removed_while_it_loads(
    write_onnx: WriteOnnx, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file beside the model that is gone by the time it is hashed: a reason, and no other exception."""
    path = write_onnx(tmp_path / "m" / "model.onnx")
    beside = path.with_name("copying.tmp")
    beside.write_bytes(b"1")
    whole = Path.stat

    def stat(file: Path, **how: bool) -> Any:
        found = whole(file, **how)
        if file == beside:
            beside.unlink(missing_ok=True)
        return found

    monkeypatch.setattr(Path, "stat", stat)
    with pytest.raises(ModelNotLoadable, match=r"model\.onnx: can't be read: .*copying\.tmp"):
        load_model(ModelVersion("m", 1, path))


@pytest.mark.parametrize(
    ("files", "named"),
    [
        (["config.pbtxt"], "config.pbtxt"),
        (["model.toml"], "model.toml"),
        (["config.pbtxt", "1/model.toml"], "config.pbtxt, 1/model.toml"),
    ],
)
def test_the_file_that_holds_the_error_is_named(
    write_onnx: WriteOnnx, repository: Path, files: list[str], named: str
) -> None:
    """What does not fit the model is looked for where the configuration stands."""
    write_onnx(repository / "m" / "1" / "model.onnx")
    for file in files:
        (repository / "m" / file).write_text("")
    wrong = 'input [ { name: "x" data_type: TYPE_FP64 dims: [ -1 ] } ]'
    if files[0] == "model.toml":
        wrong = '[[input]]\nname = "x"\ndata_type = "TYPE_FP64"\ndims = [-1]\n'
    (repository / "m" / files[0]).write_text(wrong)
    with pytest.raises(ConfigError, match=f"model m version 1: {named}: x: data_type FP64, the model has FP32"):
        load_model(Repository(repository).find("m"), device="cpu")

"""A model's configuration from several files, the files it names, its instances and its shapes."""

import logging
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from mqinfer.broker.address import BrokerAddress
from mqinfer.cloud_worker.serving.options import WorkerOptions
from mqinfer.cloud_worker.supervision.planning import plan
from mqinfer.cloud_worker.supervision.process import ProcessSpec
from mqinfer.errors import ConfigError, ModelNotLoadable
from mqinfer.models.adapters import reshaped
from mqinfer.models.backends.onnx_file import external_locations
from mqinfer.models.loading import load_model
from mqinfer.models.repository import ModelVersion, Repository
from mqinfer.models.repository.config import InstanceGroup, InstanceKind, ModelConfig, TensorConfig
from mqinfer.models.repository.config_keys import class_colour
from mqinfer.models.repository.content_hash import content_hash
from mqinfer.protocol.card import ClassInfo, ColourOrder
from tests.onnx_files import make_onnx

WriteOnnx = Callable[..., Path]
TRITON = """
platform: "onnxruntime_onnx"
max_batch_size: 4
version_policy { all { } }
dynamic_batching { }
output [ { name: "y" label_filename: "labels.txt" } ]
"""


def versions(repository: Path) -> dict[int, ModelVersion]:
    """Return the versions of the only model, which must have no problem."""
    scan = Repository(repository).scan()
    assert scan.problems == ()
    return {model.version: model for model in scan.models}


def reason(repository: Path) -> str:
    """Return the one problem's reason."""
    (problem,) = Repository(repository).scan().problems
    return problem.reason


def test_layers(repository: Path, write_onnx: WriteOnnx) -> None:
    """Triton's file, `model.toml` over it, a version's own over both: key by key, and the card follows."""
    model = repository / "m"
    for version in (1, 2):
        write_onnx(model / str(version) / "model.onnx", "UINT8", ("n", 6, 8, 3))
    (model / "config.pbtxt").write_text(TRITON)
    (model / "labels.txt").write_text("road\ncar\n")
    (model / "model.toml").write_text("max_batch_size = 3\n[image]\ncolour = 'bgr'\n")
    (model / "2" / "model.toml").write_text("[image]\ncolour = 'rgb'\nscale = 0.5\n[parameters]\nprecision = 'int8'\n")
    first, second = versions(repository).values()
    assert (first.config.backend, first.config.max_batch_size) == ("onnxruntime_onnx", 3)
    assert first.config.dynamic_batching is not None
    assert first.config.pictures.classes == (ClassInfo("road", (0, 0, 0)), ClassInfo("car", (128, 0, 0)))
    assert (second.is_default, second.config.max_batch_size) == (True, 3)
    cards = [load_model(version, device="cpu").card for version in (first, second)]
    assert [card.image.colour for card in cards if card.image] == [ColourOrder.BGR, ColourOrder.RGB]
    assert [card.parameters.precision for card in cards] == ["fp32", "int8"]
    assert cards[0].parameters.model_hash == cards[1].parameters.model_hash


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("version_policy = {all = {}}", "version_policy: applies to all versions"),
        ("name = 'other'", "name: applies to all versions"),
        ("max_batchsize = 3", "did you mean 'max_batch_size'"),
    ],
)
def test_a_wrong_file_of_a_version(repository: Path, write_onnx: WriteOnnx, text: str, message: str) -> None:
    """It fails its own version and no other."""
    for version in (1, 2):
        write_onnx(repository / "m" / str(version) / "model.onnx")
    (repository / "m" / "model.toml").write_text("version_policy = {all = {}}")
    (repository / "m" / "2" / "model.toml").write_text(text)
    scan = Repository(repository).scan()
    assert [(model.version, model.is_default) for model in scan.models] == [(1, True)]
    assert message in reason(repository)
    assert str(repository / "m" / "2" / "model.toml") in reason(repository)


def test_the_hash_is_that_of_the_content(repository: Path, write_onnx: WriteOnnx) -> None:
    """Configuration beside the model does not count, external data does."""
    model = write_onnx(repository / "m" / "1" / "model.onnx", external="weights")
    weights = model.parent / "weights"
    weights.write_bytes(bytes(16))
    first = content_hash(versions(repository)[1])
    (repository / "m" / "config.pbtxt").write_text("max_batch_size: 2")
    (model.parent / "model.toml").write_text("max_batch_size = 4")
    assert content_hash(versions(repository)[1]) == first
    weights.write_bytes(bytes(15) + b"\1")
    assert content_hash(versions(repository)[1]) != first


def test_labels(repository: Path, write_onnx: WriteOnnx, caplog: pytest.LogCaptureFixture) -> None:
    """The operator's own classes win; what can't be a list of labels is refused; a second list is named."""
    write_onnx(repository / "m" / "1" / "model.onnx")
    config, labels = repository / "m" / "config.pbtxt", repository / "m" / "labels.txt"
    config.write_text(TRITON)
    for content, message in [
        (None, "named by label_filename, but"),
        (b"\xff\xfe", "it is not text"),
        (b"a\n" * (1 << 20), "longer than 1048576 bytes"),
    ]:
        if content is not None:
            labels.write_bytes(content)
        assert message in reason(repository)
    labels.write_bytes(
        b"\xef\xbb\xbfcat\r\na\xe2\x80\xa8b\x0cc\ndog\n\n"
    )  # of Windows, and with odd characters in a name
    assert [info.name for info in versions(repository)[1].config.pictures.classes] == ["cat", "a\u2028b\x0cc", "dog"]
    labels.write_text("cat\ndog\n")
    (repository / "m" / "model.toml").write_text("[[classes]]\nname = 'mouse'\n[[classes]]\nname = 'horse'\n")
    assert [info.name for info in versions(repository)[1].config.pictures.classes] == ["mouse", "horse"]
    assert versions(repository)[1].config.pictures.classes[1].colour == class_colour(1)
    (repository / "m" / "model.toml").unlink()
    config.write_text(TRITON + 'output { name: "z" label_filename: "more.txt" }')
    with caplog.at_level(logging.WARNING, "mqinfer.models"):
        assert [info.name for info in versions(repository)[1].config.pictures.classes] == ["cat", "dog"]
    assert "several label files (labels.txt, more.txt)" in caplog.text


def test_colours_differ() -> None:
    """As in the Pascal VOC colour map: 256 of them, and the first ones known."""
    assert [class_colour(number) for number in (0, 1, 2, 3, 15)] == [
        (0, 0, 0),
        (128, 0, 0),
        (0, 128, 0),
        (128, 128, 0),
        (192, 128, 128),
    ]
    assert len({class_colour(number) for number in range(256)}) == 256


def test_instances() -> None:
    """Groups one after another; on GPUs, so many on each; the operator's device or number wins."""
    groups = (InstanceGroup(2, InstanceKind.GPU, (0, 3)), InstanceGroup(1, InstanceKind.CPU), InstanceGroup())
    config = ModelConfig(instance_group=groups)
    assert config.devices() == ("cuda:0", "cuda:0", "cuda:3", "cuda:3", "cpu", "auto")
    assert config.devices("cpu") == ("cpu",) * 6
    assert config.devices(instances=2) == ("cuda:0", "cuda:0")
    assert ModelConfig().devices(instances=3) == ("auto",) * 3
    assert InstanceGroup(kind=InstanceKind.GPU).devices() == ("cuda:0",)
    assert InstanceGroup(kind=InstanceKind.MODEL).devices() == ("auto",)


def test_groups_become_processes(repository: Path, write_onnx: WriteOnnx) -> None:
    """Each process gets its own device."""
    write_onnx(repository / "m" / "1" / "model.onnx")
    (repository / "m" / "config.pbtxt").write_text(
        "instance_group [ { count: 1 kind: KIND_GPU gpus: [ 0, 1 ] }, { count: 2 kind: KIND_CPU } ]"
    )
    template = ProcessSpec(repository, "", 0, BrokerAddress.parse("memory://none"), WorkerOptions("w"))
    assert [spec.device for spec in plan(Repository(repository), template)] == ["cuda:0", "cuda:1", "cpu", "cpu"]


def test_reshape(repository: Path, write_onnx: WriteOnnx) -> None:
    """A model without a batch axis of its own takes pictures without one, as in Triton's densenet example."""
    write_onnx(repository / "m" / "1" / "model.onnx", "FP32", (1, 3, 4, 5))
    (repository / "m" / "config.pbtxt").write_text(
        'max_batch_size: 0 input { name: "x" dims: [ 3, 4, 5 ] reshape { shape: [ 1, 3, 4, 5 ] } }'
        'output { name: "y" dims: [ 60 ] reshape { shape: [ 1, 3, 4, 5 ] } }'
    )
    model = load_model(versions(repository)[1], device="cpu")
    assert (model.card.inputs[0].shape, model.card.outputs[0].shape) == ((3, 4, 5), (60,))
    array = np.arange(60, dtype=np.float32).reshape(3, 4, 5)
    assert model.backend.infer({"x": array})["y"].tolist() == list(range(60))
    model.backend.close()


def test_reshape_with_open_axes(repository: Path, write_onnx: WriteOnnx) -> None:
    """Open axes stand for each other in order, the batch axis stays in front."""
    write_onnx(repository / "m" / "1" / "model.onnx", "FP32", ("n", "a", 2, "b"))
    (repository / "m" / "model.toml").write_text(
        "max_batch_size = 8\ninput = [{name = 'x', dims = [2, -1, -1], reshape = {shape = [-1, 2, -1]}}]"
    )
    model = load_model(versions(repository)[1], device="cpu")
    assert model.card.inputs[0].shape == (-1, 2, -1, -1)
    assert model.card.max_batch_size == 8
    array = np.zeros((3, 2, 5, 7), np.float32)
    assert model.backend.infer({"x": array})["y"].shape == (3, 5, 2, 7)


@pytest.mark.parametrize(("dims", "shape"), [((3,), (2, 2)), ((-1, 4), (4,)), (None, (4,)), ((-1, 2), (2, -1, -1))])
def test_reshape_that_can_not_be(
    write_onnx: WriteOnnx, tmp_path: Path, dims: tuple[int, ...] | None, shape: tuple[int, ...]
) -> None:
    """Another number of elements or of open axes is refused by name."""
    backend = load_model(ModelVersion("m", 1, write_onnx(tmp_path / "1" / "model.onnx"))).backend
    with pytest.raises(ConfigError, match="x: reshape to"):
        reshaped(backend, ModelConfig(input=(TensorConfig("x", dims, reshape=shape),)))
    assert reshaped(backend, ModelConfig(input=(TensorConfig("x", dims),))) is backend


def test_channels_first_by_format(repository: Path, write_onnx: WriteOnnx) -> None:
    """`format` makes a picture of three axes one, where discovery would not dare."""
    write_onnx(repository / "m" / "1" / "model.onnx", "FP32", (3, 4, 5))
    config = repository / "m" / "config.pbtxt"
    config.write_text('input { name: "x" dims: [ 3, 4, 5 ] }')
    assert load_model(versions(repository)[1], device="cpu").card.image is None
    config.write_text('input { name: "x" dims: [ 3, 4, 5 ] format: FORMAT_NCHW }')
    image = load_model(versions(repository)[1], device="cpu").card.image
    assert image is not None
    assert (image.layout, image.width, image.height) == ("NCHW", 5, 4)


def _write(path: Path, opset: int = 17, ir: int = 9, operator: str = "Identity") -> None:
    node, end = helper.make_node(operator, ["x"], ["y"]), (TensorProto.FLOAT, ["n", 4])
    model = make_onnx([node], {"x": end}, {"y": end}, opset=opset, ir=ir)
    path.parent.mkdir(parents=True)
    path.write_bytes(model.SerializeToString())


def test_bad_models_leave_the_others_serving(repository: Path, write_onnx: WriteOnnx) -> None:
    """Each has its own clear reason, at the scan or when it is loaded; the good one answers."""
    good = write_onnx(repository / "good" / "1" / "model.onnx")
    _write(repository / "opset" / "1" / "model.onnx", opset=99)
    _write(repository / "ir" / "1" / "model.onnx", ir=99)
    _write(repository / "operator" / "1" / "model.onnx", operator="Nope")
    truncated = write_onnx(repository / "truncated" / "1" / "model.onnx")
    truncated.write_bytes(good.read_bytes()[:60])
    (repository / "plan" / "1").mkdir(parents=True)
    (repository / "plan" / "1" / "model.plan").write_bytes(b"\0\1")
    (repository / "missing" / "1").mkdir(parents=True)
    scan = Repository(repository).scan()
    reasons = {problem.model: problem.reason for problem in scan.problems}
    for model in scan.models:
        try:
            load_model(model, device="cpu").backend.close()
        except ModelNotLoadable as error:
            reasons[model.name] = str(error)
    expected = {
        "opset": "opset 99, this ONNX Runtime reads ai.onnx up to 2",
        "ir": "IR version 99, this ONNX Runtime reads up to 1",
        "operator": "opset 17 has no operator Nope",
        "truncated": "60 bytes; it may be truncated",
        "plan": "no back end reads model.plan",
        "missing": "no model in it",
    }
    assert reasons.keys() == expected.keys()
    for name, message in expected.items():
        assert message in reasons[name]


def test_locations_are_found_without_onnx(write_onnx: WriteOnnx, tmp_path: Path) -> None:
    """Only real entries count, not the word in a name; damage is refused where it could hide one."""
    assert external_locations(write_onnx(tmp_path / "1" / "a.onnx", external="w.bin")) == {"w.bin"}
    assert external_locations(write_onnx(tmp_path / "1" / "b.onnx")) == frozenset()
    path = write_onnx(tmp_path / "1" / "c.onnx")
    model = onnx.load(str(path))
    model.graph.doc_string = "location"
    path.write_bytes(model.SerializeToString())
    assert external_locations(path) == frozenset()
    content = write_onnx(tmp_path / "1" / "d.onnx", external="w.bin").read_bytes()
    for end in range(content.index(b"location") + 8, len(content)):
        path.write_bytes(content[:end])
        try:
            assert external_locations(path) == {"w.bin"}  # it ended between two fields of the outermost message
        except ModelNotLoadable:
            continue

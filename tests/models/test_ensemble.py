"""Ensembles: the graph's rules, and models that hand their tensors on within one process."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

from mqinfer.broker.address import BrokerAddress
from mqinfer.client import Client
from mqinfer.cloud_worker.serving.options import WorkerOptions
from mqinfer.cloud_worker.supervision.process import ProcessSpec, serve
from mqinfer.errors import BadTensor, ConfigError, ModelFailed
from mqinfer.models.ensemble.ensemble import EnsembleBackend
from mqinfer.models.ensemble.graph import EnsembleNode, Graph, make_graph
from mqinfer.models.loading import load_model
from mqinfer.models.repository import ModelVersion, Repository
from mqinfer.models.repository.config import EnsembleStep
from mqinfer.models.repository.content_hash import content_hash
from mqinfer.models.warmup import warm_up
from mqinfer.protocol.datatypes import Datatype
from mqinfer.protocol.types import TensorSpec
from tests.onnx_files import save_onnx

WriteOnnx = Callable[..., Path]
Maps = tuple[Mapping[str, str], Mapping[str, str]]
Build = Callable[[str], None]

PIPELINE = """
name: "seeing"
platform: "ensemble"
max_batch_size: 4
input [ { name: "IMAGE" data_type: TYPE_UINT8 dims: [ 4, 4, 3 ] } ]
output [
  { name: "MASK" data_type: TYPE_UINT8 dims: [ 2, 2 ] },
  { name: "LOGITS" data_type: TYPE_FP32 dims: [ 3, 2, 2 ] }
]
ensemble_scheduling {
  step [
    {
      model_name: "most"
      model_version: -1
      input_map { key: "logits" value: "LOGITS" }
      output_map { key: "mask" value: "MASK" }
    },
    {
      model_name: "scale"
      model_version: -1
      input_map { key: "pixels" value: "IMAGE" }
      output_map { key: "planes" value: "small planes" }
    },
    {
      model_name: "net"
      model_version: 1
      input_map { key: "planes" value: "small planes" }
      output_map { key: "logits" value: "LOGITS" }
    }
  ]
}
"""
WEIGHTS = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1]], np.float32).reshape(3, 3, 1, 1)


def write_pipeline(repository: Path) -> None:
    """Write a pre-processing model (scale, halve, NCHW), a network of three classes, an argmax, and their ensemble."""
    node = helper.make_node
    pixels, planes = (TensorProto.UINT8, ["n", 4, 4, 3]), (TensorProto.FLOAT, ["n", 3, 2, 2])
    save_onnx(
        repository / "scale" / "1" / "model.onnx",
        [
            node("Cast", ["pixels"], ["float"], to=TensorProto.FLOAT),
            node("Mul", ["float", "pixel"], ["unit"]),
            node("Transpose", ["unit"], ["nchw"], perm=[0, 3, 1, 2]),
            node("Resize", ["nchw", "", "scales"], ["planes"], mode="nearest", nearest_mode="floor"),
        ],
        {"pixels": pixels},
        {"planes": planes},
        {"pixel": np.float32(1 / 255), "scales": np.array([1, 1, 0.5, 0.5], np.float32)},
    )
    save_onnx(
        repository / "net" / "1" / "model.onnx",
        [node("Conv", ["planes", "weights"], ["logits"])],
        {"planes": planes},
        {"logits": planes},
        {"weights": WEIGHTS},
    )
    save_onnx(
        repository / "most" / "1" / "model.onnx",
        [
            node("ArgMax", ["logits"], ["index"], axis=1, keepdims=0),
            node("Cast", ["index"], ["mask"], to=TensorProto.UINT8),
        ],
        {"logits": planes},
        {"mask": (TensorProto.UINT8, ["n", 2, 2])},
    )
    (repository / "most" / "labels.txt").write_text("red\ngreen\nblue\n")
    (repository / "most" / "config.pbtxt").write_text('output [ { name: "mask" label_filename: "labels.txt" } ]')
    (repository / "seeing" / "1").mkdir(parents=True)
    (repository / "seeing" / "config.pbtxt").write_text(PIPELINE)


def find(repository: Path, name: str) -> ModelVersion:
    """Give the one version of a model, which must have no problem."""
    scan = Repository(repository).scan()
    assert scan.problems == ()
    (version,) = (each for each in scan.models if each.name == name)
    return version


def pictures(rows: int) -> npt.NDArray[np.uint8]:
    """Make random pictures."""
    return np.random.default_rng(rows).integers(0, 256, (rows, 4, 4, 3), np.uint8)


def test_a_pipeline(repository: Path) -> None:
    """Pre-processing, network, argmax: the answer is that of numpy, whatever order the steps are written in."""
    write_pipeline(repository)
    model = load_model(find(repository, "seeing"), device="cpu")
    card = model.card
    known = card.parameters
    assert (card.platform, known.device, known.precision, known.max_batch_size) == ("ensemble", "cpu", "fp32", 4)
    assert known.backend.startswith("onnxruntime ")
    assert card.inputs == (TensorSpec("IMAGE", Datatype.UINT8, (-1, 4, 4, 3)),)
    assert [spec.shape for spec in card.outputs] == [(-1, 2, 2), (-1, 3, 2, 2)]
    assert card.image is not None
    assert (card.image.input, card.image.width, card.image.height) == ("IMAGE", 4, 4)
    assert [info.name for info in card.classes] == ["red", "green", "blue"]
    warm_up(model.backend, card)
    images = pictures(3)
    expected = images[:, ::2, ::2].argmax(axis=3)
    outputs = model.backend.infer({"IMAGE": images})
    assert outputs.keys() == {"MASK", "LOGITS"}
    assert np.array_equal(outputs["MASK"], expected)
    assert np.allclose(outputs["LOGITS"].astype(np.float32), images[:, ::2, ::2].transpose(0, 3, 1, 2) / 255)
    assert model.backend.infer({"IMAGE": images}, ["MASK"]).keys() == {"MASK"}
    model.backend.close()
    with pytest.raises(ModelFailed, match="closed"):
        model.backend.infer({"IMAGE": images})


def test_a_pipeline_behind_a_worker(repository: Path, unique: Callable[[str], str]) -> None:
    """Through a worker: batches, one output alone, a picture by the inherited contract, the ensemble's own hash."""
    write_pipeline(repository)
    broker = f"memory://{unique('broker')}"
    spec = ProcessSpec(repository, "seeing", 1, BrokerAddress.parse(broker), WorkerOptions("w"), device="cpu")
    worker = serve(spec)
    try:
        with Client(broker) as client:
            images = pictures(4)
            result = client.infer("seeing", {"IMAGE": images}, outputs=["MASK"])
            assert result.outputs.keys() == {"MASK"}
            assert np.array_equal(result.outputs["MASK"], images[:, ::2, ::2].argmax(axis=3))
            assert result.model_hash == content_hash(find(repository, "seeing"))
            steps = {name: counted for name, _, counted in worker.statistics().steps}
            assert {name: each.inference_count for name, each in steps.items()} == {"scale": 4, "net": 4, "most": 4}
            assert steps["most"].stages.success.count == steps["most"].execution_count == 1
            card = client.card("seeing")
            assert card is not None
            assert (card.platform, card.max_batch_size) == ("ensemble", 4)
            with pytest.raises(BadTensor, match="at most 4"):
                client.infer("seeing", {"IMAGE": pictures(5)})
    finally:
        worker.stop()


def test_only_the_steps_that_are_needed_run(repository: Path) -> None:
    """An output of an early step needs no later ones, and none of their outputs."""
    write_pipeline(repository)
    model = load_model(find(repository, "seeing"), device="cpu")
    assert isinstance(model.backend, EnsembleBackend)
    model.backend._backends[1].close()  # the argmax can't run any more
    assert model.backend.infer({"IMAGE": pictures(1)}, ["LOGITS"])["LOGITS"].shape == (1, 3, 2, 2)
    with pytest.raises(ModelFailed, match=r"step 1 \(model 'most'\): model\.onnx"):
        model.backend.infer({"IMAGE": pictures(1)})


def test_the_hash_covers_models_and_wiring(repository: Path) -> None:
    """Another file of a step, or other ways for the tensors, is another ensemble; a batch size is not."""
    write_pipeline(repository)
    config = repository / "seeing" / "config.pbtxt"

    def now() -> str:
        return content_hash(find(repository, "seeing"))

    first = now()
    config.write_text(PIPELINE.replace("max_batch_size: 4", "max_batch_size: 2"))
    assert now() == first
    config.write_text(PIPELINE.replace("small planes", "planes"))
    assert now() != first
    config.write_text(PIPELINE)
    with (repository / "most" / "1" / "model.onnx").open("ab") as file:
        file.write(b"\x0a\x00")
    assert now() != first


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "max_batch_size: 4",
            "max_batch_size: 16",
            "max_batch_size = 16: model 'most' of the ensemble takes at most 8",
        ),
        ('platform: "ensemble"', 'platform: "onnxruntime_onnx"', "platform = 'ensemble'"),
        ('value: "small planes"', 'value: "IMAGE"', r"step 2 \(model 'scale'\): output_map makes the tensor 'IMAGE'"),
        ('key: "planes" value: "small planes"', 'key: "plane" value: "p"', "output_map names 'plane'; .* are planes"),
        ('input_map { key: "planes" ', 'input_map { key: "planes" value: "p" } input_map { key: "x" ', "names 'x'"),
        ('input_map { key: "planes" value: "small planes" }', "", "the key 'input_map' is missing"),
        (
            'key: "logits" value: "LOGITS" }\n      output_map',
            'key: "logits" value: "MASK" }\n      output_map',
            "MASK",
        ),
        ('{ name: "MASK"', '{ name: "MASKS"', "output 'MASKS' of the ensemble is made by no step"),
        ("dims: [ 4, 4, 3 ]", "dims: [ 4, 5, 3 ]", r"IMAGE: shape \[-1, 4, 5, 3\] does not fit"),
        ("TYPE_UINT8 dims: [ 2, 2 ]", "TYPE_INT8 dims: [ 2, 2 ]", "MASK: data_type INT8, the model has UINT8"),
        ("dims: [ 4, 4, 3 ] }", 'dims: [ 4, 4, 3 ] }, { name: "Y" }', "input 'Y' of the ensemble is taken by no step"),
    ],
)
def test_what_does_not_fit_is_named(repository: Path, old: str, new: str, message: str) -> None:
    """The message has the step, the tensor, and what is expected."""
    write_pipeline(repository)
    assert old in PIPELINE
    (repository / "seeing" / "config.pbtxt").write_text(PIPELINE.replace(old, new, 1))
    scan = Repository(repository).scan()
    if scan.problems:
        assert message in scan.problems[0].reason
        return
    with pytest.raises(ConfigError, match=message):
        load_model(find(repository, "seeing"), device="cpu")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('model_name: "net"', 'model_name: "nets"', "step 3, model 'nets': there is no such model in the repository"),
        ('model_name: "net"', 'model_name: "../net"', "step 3, model '../net': "),
        ('model_name: "net"', 'model_name: "seeing"', "an ensemble contains itself: seeing -> seeing"),
        ("model_version: 1", "model_version: 7", "there is no version 7 of it; it has [1]"),
        ("ensemble_scheduling", "# ensemble_scheduling", "not in the text format"),
        ('platform: "ensemble"', 'platform: "ensemble"\n}', "not in the text format"),
    ],
)
def test_steps_that_are_not_there(repository: Path, old: str, new: str, message: str) -> None:
    """The ensemble is a problem of its own; its models are served."""
    write_pipeline(repository)
    (repository / "seeing" / "config.pbtxt").write_text(PIPELINE.replace(old, new, 1))
    scan = Repository(repository).scan()
    assert [model.name for model in scan.models] == ["most", "net", "scale"]
    (problem,) = scan.problems
    assert problem.model == "seeing"
    assert message in problem.reason


def test_ensembles_within_ensembles(repository: Path, write_onnx: WriteOnnx) -> None:
    """A step may be an ensemble; a circle of them is named."""
    write_onnx(repository / "plain" / "1" / "model.onnx")
    for name, step in (("inner", "plain"), ("outer", "inner")):
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "model.toml").write_text(
            f"input = [{{name = 'x'}}]\noutput = [{{name = 'y'}}]\n[[ensemble_scheduling.step]]\n"
            f"model_name = '{step}'\ninput_map = {{x = 'x'}}\noutput_map = {{y = 'y'}}\n"
        )
    model = load_model(find(repository, "outer"), device="cpu")
    assert (model.card.max_batch_size, model.card.inputs[0].shape) == (8, (-1, 4))
    assert model.backend.infer({"x": np.ones((2, 4), np.float32)})["y"].sum() == 8
    text = (repository / "inner" / "model.toml").read_text()
    (repository / "inner" / "model.toml").write_text(text.replace("'plain'", "'outer'"))
    reasons = [problem.reason for problem in Repository(repository).problems()]
    assert any("an ensemble contains itself: outer -> inner -> outer" in reason for reason in reasons)


def test_one_model_in_two_steps_is_loaded_once(repository: Path, write_onnx: WriteOnnx) -> None:
    """The same version serves both steps."""
    write_onnx(repository / "plain" / "1" / "model.onnx", external="w")
    (repository / "plain" / "1" / "w").write_bytes(np.ones(4, np.float32).tobytes())
    (repository / "twice" / "1").mkdir(parents=True)
    step = "[[ensemble_scheduling.step]]\nmodel_name = 'plain'\n"
    (repository / "twice" / "model.toml").write_text(
        "input = [{name = 'a'}]\noutput = [{name = 'c'}]\n"
        f"{step}input_map = {{x = 'a'}}\noutput_map = {{y = 'b'}}\n"
        f"{step}input_map = {{x = 'b'}}\noutput_map = {{y = 'c'}}\n"
    )
    model = load_model(find(repository, "twice"), device="cpu")
    assert isinstance(model.backend, EnsembleBackend)
    assert len(set(map(id, model.backend._backends.values()))) == 1
    assert model.backend.infer({"a": np.zeros((1, 4), np.float32)})["c"].tolist() == [[2, 2, 2, 2]]


def node(number: int, takes: Sequence[str], makes: Sequence[str]) -> EnsembleNode:
    """Make a step whose model's inputs and outputs are named like the tensors."""
    step = EnsembleStep(f"m{number}", -1, {name: name for name in takes}, {name: name for name in makes})
    specs = {name: TensorSpec(name, Datatype.FP32, (-1, 4)) for name in (*takes, *makes)}
    return EnsembleNode(number, step, tuple(specs[name] for name in takes), tuple(specs[name] for name in makes))


def test_circles_are_named() -> None:
    """Steps that wait for each other are named with what they wait for."""
    nodes = [node(1, ["a", "c"], ["b"]), node(2, ["b"], ["c"]), node(3, ["a"], ["d"])]
    with pytest.raises(ConfigError, match="steps 1, 2 wait for each other, for the tensors 'b', 'c'"):
        make_graph(nodes, ["a"], ["d"])


@given(st.data())
def test_any_order_of_steps_gives_the_same_graph(data: st.DataObject) -> None:
    """Steps run after what they take, and only those that the requested tensor needs."""
    count = data.draw(st.integers(1, 8))
    tensors = ["in"]
    nodes = []
    for number in range(1, count + 1):
        takes = data.draw(st.lists(st.sampled_from(tensors), min_size=1, unique=True))
        nodes.append(node(number, takes, [f"t{number}"]))
        tensors.append(f"t{number}")
    used = any("in" in each.step.input_map for each in nodes)
    assert used
    shuffled = data.draw(st.permutations(nodes))
    requested = data.draw(st.sampled_from(tensors[1:]))
    graph: Graph = make_graph(shuffled, ["in"], [requested])
    there = {"in"}
    for each in graph.order:
        assert there.issuperset(each.step.input_map.values())
        there.update(each.step.output_map.values())
    needed = {requested}
    for each in reversed(graph.needed([requested])):
        assert needed & set(each.step.output_map.values())
        needed.update(each.step.input_map.values())
    made = {name for each in graph.needed([requested]) for name in each.step.output_map.values()}
    assert needed == made | ({"in"} if "in" in needed else set())

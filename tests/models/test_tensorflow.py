"""The TensorFlow back ends, on graphs and SavedModels that TensorFlow itself wrote, and on public ones."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mqinfer.errors import ConfigError, ModelFailed, ModelNotLoadable
from mqinfer.models.backends.tensorflow.graph_nodes import reaching, unconsumed
from mqinfer.models.backends.tensorflow.runtime import choose_device
from mqinfer.models.backends.tensorflow.saved_model import choose_signature
from mqinfer.models.load_options import parse_device
from mqinfer.models.loading import LoadedModel, load_model
from mqinfer.models.repository import ModelVersion, Repository
from mqinfer.models.repository.config import ModelConfig, TensorConfig
from mqinfer.models.warmup import warm_up
from mqinfer.protocol.card import ColourOrder, ImageContract
from mqinfer.protocol.datatypes import Array, Datatype, dtype_of
from mqinfer.protocol.types import TensorSpec

Freeze = Callable[..., Path]
DTYPES = {"FP16": "float16", "FP32": "float32", "FP64": "float64", "BYTES": "string"}


@pytest.fixture
def freeze(tf: Any, tmp_path: Path) -> Freeze:
    """Write the graph that a function builds as a frozen graph."""

    def write(build: Callable[[Any], object], name: str = "model.pb") -> Path:
        with tf.Graph().as_default() as graph:
            build(tf.compat.v1)
        path = tmp_path / name
        path.write_bytes(graph.as_graph_def().SerializeToString())
        return path

    return write


def loaded(path: Path, **config: Any) -> LoadedModel:
    """Load a file with a configuration."""
    return load_model(ModelVersion("m", 1, path, ModelConfig(**config)), device="cpu")


def names(specs: Sequence[TensorSpec]) -> list[str]:
    """Give the names alone."""
    return [spec.name for spec in specs]


def sample(datatype: Datatype, shape: tuple[int, ...]) -> Array:
    """Make an array of a datatype, strings that are no UTF-8 included."""
    if datatype is Datatype.BYTES:
        return np.full(shape, b"a\xff\0b", np.object_)
    return np.ones(shape, dtype_of(datatype))


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(2, 4), (), (0, 3)])
@pytest.mark.parametrize("datatype", list(Datatype))
def test_frozen_graph_of_every_datatype(tf: Any, freeze: Freeze, datatype: Datatype, shape: tuple[int, ...]) -> None:
    """What goes in comes out, with its dtype, from read-only memory too; names have no `:0`."""
    dtype = tf.as_dtype(DTYPES.get(datatype, datatype.lower()))
    open_shape = [None, *shape[1:]] if shape else []
    path = freeze(lambda v1: tf.identity(v1.placeholder(dtype, open_shape, name="in"), name="out"))
    backend = loaded(path).backend
    array = sample(datatype, shape)
    array.flags.writeable = False
    result = backend.infer({"in": array})["out"]
    assert (result.dtype, result.shape) == (array.dtype, shape)
    assert np.array_equal(result, array)
    expected = tuple(-1 if size is None else size for size in open_shape)
    assert backend.inputs == (TensorSpec("in", datatype, expected),)


@pytest.mark.slow
def test_dangling_placeholders_and_several_outputs(tf: Any, freeze: Freeze) -> None:
    """Only what an output needs is an input; a default stays a default; further outputs have a number."""

    def build(v1: Any) -> None:
        x = v1.placeholder(tf.float32, [None, 4], name="x")
        v1.placeholder(tf.float32, [None], name="left_over")
        rate = v1.placeholder_with_default(2.0, [], name="rate")
        tf.math.top_k(x * rate, 2, name="top")
        tf.constant(3.0, name="forgotten")
        v1.no_op(name="init")

    model = loaded(freeze(build))
    assert names(model.backend.inputs) == ["x"]
    assert names(model.backend.outputs) == ["top", "top:1"]
    result = model.backend.infer({"x": np.array([[1, 4, 2, 3]], np.float32)})
    assert result["top"].tolist() == [[8, 6]]
    assert result["top:1"].tolist() == [[1, 3]]
    assert model.backend.infer({"x": np.ones((1, 4), np.float32)}, ["top:1"]).keys() == {"top:1"}
    warm_up(model.backend, model.card, 1)


@pytest.mark.slow
def test_named_outputs(tf: Any, freeze: Freeze) -> None:
    """`[[output]]` takes a node out of the graph's middle, and then needs fewer inputs."""

    def build(v1: Any) -> None:
        x = tf.identity(v1.placeholder(tf.float32, [None, 4], name="x") + 1.0, name="middle")
        tf.add(x, v1.placeholder(tf.float32, [None, 4], name="y"), name="end")

    path = freeze(build)
    backend = loaded(path, output=(TensorConfig("middle"),)).backend
    assert (names(backend.inputs), names(backend.outputs)) == (["x"], ["middle"])
    with pytest.raises(ConfigError, match="no node 'nowhere'"):
        loaded(path, output=(TensorConfig("nowhere"),))
    with pytest.raises(ConfigError, match=r"names 'z', the model has x, y"):
        loaded(path, input=(TensorConfig("z"),))


@pytest.mark.slow
def test_unknown_rank(tf: Any, freeze: Freeze) -> None:
    """A rank that the file leaves open comes from the only one that the graph accepts, or from `[[input]]`."""

    def build(v1: Any) -> None:
        x = v1.placeholder(tf.float32, name="x")
        tf.nn.conv2d(x - 0.5, tf.ones([3, 3, 3, 2]), 1, "SAME", name="y")

    assert loaded(freeze(build)).backend.inputs[0].shape == (-1, -1, -1, -1)
    vague = freeze(lambda v1: tf.identity(v1.placeholder(tf.float32, name="x"), name="y"), "vague.pb")
    with pytest.raises(ModelNotLoadable, match=r"'x'.*\[\[input\]\]"):
        loaded(vague)
    backend = loaded(vague, input=(TensorConfig("x", (3,)),), max_batch_size=4).backend
    assert backend.inputs[0].shape == backend.outputs[0].shape == (-1, 3)
    words = freeze(lambda v1: tf.identity(v1.placeholder(tf.string, name="x"), name="y"), "words.pb")
    assert loaded(words).backend.inputs[0].shape == (-1,)


@pytest.mark.slow
def test_a_scalar_of_an_old_graph(tf: Any, freeze: Freeze) -> None:
    """Before version 24 its shape reads as an unknown rank; the operation that takes it knows better."""
    path = freeze(lambda v1: tf.io.decode_png(v1.placeholder(tf.string, [], name="x"), name="y"))
    definition = tf.compat.v1.GraphDef.FromString(path.read_bytes())
    definition.versions.producer = 21
    path.write_bytes(definition.SerializeToString())
    model = loaded(path)
    assert model.backend.inputs[0] == TensorSpec("x", Datatype.BYTES, ())
    assert "no request was tried" in warm_up(model.backend, model.card).untried
    picture = tf.io.encode_png(np.full((2, 3, 1), 7, np.uint8)).numpy()
    assert model.backend.infer({"x": np.array(picture, np.object_)})["y"].tolist() == np.full((2, 3, 1), 7).tolist()


@pytest.mark.slow
def test_a_graph_that_is_not_frozen(tf: Any, freeze: Freeze) -> None:
    """Variables are named; so is a graph that has no outputs at all."""

    def build(v1: Any) -> None:
        weight = v1.get_variable("weight", [4], use_resource=False)
        tf.add(v1.placeholder(tf.float32, [None, 4], name="x"), weight, name="y")

    with pytest.raises(ModelNotLoadable, match=r"not frozen: .*'weight'"):
        loaded(freeze(build))
    with pytest.raises(ModelNotLoadable, match="no outputs found"):
        loaded(freeze(lambda v1: v1.placeholder(tf.float32, [1], name="x")))
    with pytest.raises(ModelNotLoadable, match="is bfloat16"):
        loaded(freeze(lambda v1: tf.cast(v1.placeholder(tf.bfloat16, [1], name="x"), tf.float32)))


@pytest.mark.slow
def test_segmentation_graph_takes_pictures(tf: Any, freeze: Freeze) -> None:
    """The seeds' form, `input` uint8 [1, H, W, 3] with the argmax inside: batch 1, an image contract, a mask."""

    def build(v1: Any) -> None:
        x = tf.cast(v1.placeholder(tf.uint8, [1, 6, 8, 3], name="input"), tf.float32)
        tf.cast(tf.argmax(x, -1), tf.uint8, name="mask")

    model = loaded(freeze(build))
    assert model.card.max_batch_size == 1
    assert model.card.image == ImageContract("input", 8, 6, ColourOrder.RGB)
    assert model.card.outputs == (TensorSpec("mask", Datatype.UINT8, (1, 6, 8)),)


@pytest.mark.slow
def test_failures_while_running(tf: Any, freeze: Freeze) -> None:
    """TensorFlow's exceptions become ModelFailed of one line, and the next run works."""

    def build(v1: Any) -> None:
        tf.matmul(v1.placeholder(tf.float32, [None, None], name="x"), tf.ones([4, 2]), name="y")

    backend = loaded(freeze(build)).backend
    for wrong in (np.ones((1, 3), np.float32), np.ones((1, 4), np.int32), np.ones(4, np.float32)):
        with pytest.raises(ModelFailed, match=r"model\.pb: TensorFlow: .+") as caught:
            backend.infer({"x": wrong})
        assert "\n" not in str(caught.value)
    with pytest.raises(ModelFailed, match="no input 'x'"):
        backend.infer({})
    assert backend.infer({"x": np.ones((1, 4), np.float32)})["y"].tolist() == [[4, 4]]
    backend.close()
    with pytest.raises(ModelFailed, match="closed"):
        backend.infer({"x": np.ones((1, 4), np.float32)})


@pytest.fixture
def saved(tf: Any, tmp_path: Path) -> Path:
    """A SavedModel of TensorFlow 2 with three signatures, `serving_default` not among them."""
    module = tf.Module()
    module.weight = tf.Variable([1.0, 2.0])
    spec = tf.TensorSpec

    def scale(x: Any) -> Any:
        return {"scaled": x * module.weight}

    signatures = {
        "b_scale": tf.function(scale).get_concrete_function(x=spec([None, 2], tf.float32)),
        "c_pair": tf.function(lambda p, q: {"sum": p + q, "less": p < q}).get_concrete_function(
            p=spec([], tf.int64), q=spec([], tf.int64)
        ),
        "a_words": tf.function(lambda s: {"joined": tf.strings.join([s, s])}).get_concrete_function(
            s=spec([None], tf.string)
        ),
    }
    path = tmp_path / "repository" / "scale" / "1"
    tf.saved_model.save(module, path, signatures)
    return path


@pytest.mark.slow
def test_signatures_of_a_saved_model(saved: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The first numeric one without a default, with a line in the log; any other by its name."""
    (version,) = Repository(saved.parents[1]).models()
    backend = load_model(version).backend
    assert "taking b_scale" in caplog.text
    assert backend.inputs == (TensorSpec("x", Datatype.FP32, (-1, 2)),)
    assert backend.outputs == (TensorSpec("scaled", Datatype.FP32, (-1, 2)),)
    assert backend.infer({"x": np.ones((3, 2), np.float32)})["scaled"].tolist() == [[1, 2]] * 3
    words = loaded(saved, parameters={"signature": "a_words"})
    assert words.backend.infer({"s": np.array([b"\xff", b""], np.object_)})["joined"].tolist() == [b"\xff\xff", b""]
    pair = loaded(saved, parameters={"signature": "c_pair"}).backend
    result = pair.infer({"q": np.array(2), "p": np.array(1)})
    assert (result["sum"].shape, int(result["sum"]), bool(result["less"])) == ((), 3, True)
    with pytest.raises(ConfigError, match=r"'predict': .* has a_words, b_scale, c_pair"):
        loaded(saved, parameters={"signature": "predict"})


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["saved_model.pb", "variables/variables.index", "variables"])
def test_damaged_saved_models(saved: Path, damage: str) -> None:
    """A folder that was copied in part is refused, and the path is named."""
    victim = saved / damage
    if victim.is_dir():
        for file in victim.iterdir():
            file.unlink()
    else:
        victim.write_bytes(victim.read_bytes()[:50])
    with pytest.raises(ModelNotLoadable, match=rf"{saved}.*TensorFlow can't load it.*folder of \d+ files"):
        loaded(saved)


@pytest.mark.slow
@pytest.mark.parametrize("part", [0.3, 0.9])
def test_truncated_frozen_graph(tf: Any, freeze: Freeze, part: float) -> None:
    """A file that was copied in part is refused, with its size."""
    path = freeze(lambda v1: tf.identity(v1.placeholder(tf.float32, [1, 4], name="x") + tf.ones([9, 1]), name="y"))
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * part)])
    with pytest.raises(ModelNotLoadable, match=rf"{path}.*{path.stat().st_size} bytes"):
        loaded(path)


@pytest.mark.parametrize(
    ("types", "configured", "chosen"),
    [
        ({"serving_default": [7], "a": [1]}, None, "serving_default"),
        ({"serving_default": [1], "a": [1]}, "a", "a"),
        ({"z": [1], "b": [1, 3], "a": [1, 7]}, None, "b"),
        ({"words": [7]}, None, "words"),
    ],
)
def test_choice_of_the_signature(types: dict[str, list[int]], configured: str | None, chosen: str) -> None:
    """The configured one, the default, the first without strings (7), any."""
    assert choose_signature(types, configured, Path("m")) == chosen


def test_no_signature() -> None:
    """A SavedModel without signatures can't be served."""
    with pytest.raises(ModelNotLoadable, match="without signatures"):
        choose_signature({}, None, Path("m"))


class Config:
    """The part of `tensorflow.config` that chooses devices, on a machine with two GPUs."""

    def __init__(self, *, started: bool = False) -> None:
        self.done: list[tuple[str, object]] = []
        self._started = started
        self._visible = ["gpu0", "gpu1"]
        self.experimental = SimpleNamespace(set_memory_growth=lambda gpu, enable: self.done.append((gpu, enable)))
        self.threading = SimpleNamespace(
            set_intra_op_parallelism_threads=lambda n: self.done.append(("intra", n)),
            set_inter_op_parallelism_threads=lambda n: self.done.append(("inter", n)),
        )

    def list_physical_devices(self, _kind: str) -> list[str]:
        """Give both."""
        return ["gpu0", "gpu1"]

    def set_visible_devices(self, devices: list[str], _kind: str) -> None:
        """Take a choice, as long as nothing ran yet."""
        if self._started:
            raise RuntimeError("Visible devices cannot be modified after being initialized")
        self._visible = devices

    def get_visible_devices(self, _kind: str) -> list[str]:
        """Give the choice."""
        return self._visible


@pytest.mark.parametrize(("requested", "device"), [("auto", "cuda:0"), ("cuda:1", "cuda:1"), ("cpu", "cpu")])
def test_device_of_a_fresh_process(requested: str, device: str) -> None:
    """One GPU is taken, with memory as it is needed; on the CPU none is touched."""
    config = Config()
    assert choose_device(SimpleNamespace(config=config), parse_device(requested), 2) == device
    growth = [] if device == "cpu" else [(f"gpu{device[-1]}", True)]
    assert config.done == [*growth, ("intra", 2), ("inter", 2)]


def test_device_of_a_process_that_runs_already() -> None:
    """The requested device can't be set any more: the function returns the real one."""
    tensorflow = SimpleNamespace(config=Config(started=True))
    assert choose_device(tensorflow, parse_device("cpu"), 2) == "cuda:0"


def node(name: str, op: str, *inputs: str) -> Any:
    """Make the part of a NodeDef that counts."""
    return SimpleNamespace(name=name, op=op, input=inputs)


def test_ends_of_a_graph() -> None:
    """Control edges consume no result but must be followed; cycles end."""
    nodes = {
        each.name: each
        for each in [
            node("x", "Placeholder"),
            node("loose", "Placeholder"),
            node("split", "Split", "x"),
            node("check", "Assert", "x"),
            node("loop", "Merge", "split:1", "next"),
            node("next", "NextIteration", "loop"),
            node("gate", "Placeholder"),
            node("y", "Add", "split", "loop", "^gate"),
            node("save", "NoOp", "^y"),
        ]
    }
    assert [each.name for each in unconsumed(nodes.values())] == ["y"]
    assert reaching(nodes, ["y"]) == {"x", "split", "loop", "next", "gate", "y"}


@pytest.mark.slow
def test_it_starts_without_keras() -> None:
    """Which is there for who asks for it, and the environment of child processes is as before."""
    script = (
        "import os, sys\n"
        "from mqinfer.models.backends.tensorflow.runtime import import_tensorflow; tensorflow = import_tensorflow()\n"
        "print('keras' in sys.modules, 'TF_USE_LEGACY_KERAS' in os.environ, tensorflow.keras.__version__ > '3')"
    )
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True)
    assert found.stdout == "False False True\n"


_IMPORT = """
import os
from mqinfer.models.backends.tensorflow.runtime import import_tensorflow
import_tensorflow()
os.write(2, b"a line after it")
"""
_ABORT = """
import os
from mqinfer.models.backends.tensorflow import runtime
with runtime._without_early_lines():
    os.write(2, b"I0000 of TensorFlow\\nF0000 the reason\\n")
    os.abort()
"""


@pytest.mark.slow
@pytest.mark.parametrize(("code", "expected"), [(_IMPORT, "a line after it"), (_ABORT, "F0000 the reason\n")])
def test_lines_on_stderr(tf: Any, code: str, expected: str) -> None:
    """TensorFlow's libraries print nothing of their own as they are loaded, but for the reason that they end for."""
    del tf
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "2", "PYTHONPATH": str(Path(__file__).parents[2])}
    # The filter has the same pipe, so that all is read when both have ended.
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert done.stderr == expected

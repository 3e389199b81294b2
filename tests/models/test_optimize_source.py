"""Conversion of TensorFlow's formats to ONNX: the same names, shapes and outputs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from mqinfer.lab.optimize.source import to_onnx
from mqinfer.models.loading import load_model
from mqinfer.models.repository import ModelVersion, Repository
from mqinfer.protocol.card import ModelCard
from mqinfer.protocol.datatypes import Datatype
from mqinfer.protocol.errors import ModelNotLoadable
from mqinfer.protocol.types import TensorSpec

pytestmark = pytest.mark.slow


def frozen_graph(folder: Path) -> None:
    """Write `output = 2 input + 1`."""
    import tensorflow as tf

    with tf.Graph().as_default() as graph:
        given = tf.compat.v1.placeholder("float32", (None, 3), "input")
        tf.add(2 * given, 1, name="output")
    (folder / "model.pb").write_bytes(graph.as_graph_def().SerializeToString())


def saved_model(folder: Path) -> None:
    """Write the same with two inputs, `output = 2 a + b`, under another signature's name."""
    import tensorflow as tf

    module = tf.Module()
    function = tf.function(lambda a, b: {"output": 2 * a + b})
    signature = function.get_concrete_function(*(tf.TensorSpec((None, 3), "float32", name) for name in "ab"))
    tf.saved_model.save(module, str(folder / "model.savedmodel"), signatures={"double": signature})


def keras_file(folder: Path) -> None:
    """Write a Keras file, `output = 2 input`."""
    import keras

    inputs = keras.Input((3,), name="given")
    layer = keras.layers.Rescaling(2.0, name="doubled")
    keras.Model(inputs, layer(inputs)).save(folder / "model.keras")


def version_of(repository: Path, write: Callable[[Path], object], config: str = "") -> ModelVersion:
    """Write a model into a repository."""
    folder = repository / "m" / "1"
    folder.mkdir(parents=True)
    write(folder)
    (folder.parent / "model.toml").write_text(config)
    return Repository(repository).find("m")


@pytest.mark.parametrize(
    ("write", "config"),
    [(frozen_graph, ""), (saved_model, 'parameters = { signature = "double" }'), (keras_file, "")],
    ids=["frozen graph", "SavedModel", "Keras"],
)
def test_the_same_outputs(repository: Path, write: Callable[[Path], object], config: str) -> None:
    """ONNX Runtime returns TensorFlow's outputs under the same names, for any batch."""
    version = version_of(repository, write, config)
    original = load_model(version, device="cpu")
    converted = to_onnx(version, original.card)
    session = onnxruntime.InferenceSession(converted.SerializeToString(), providers=["CPUExecutionProvider"])
    feeds: dict[str, Any] = {
        spec.name: np.random.default_rng(n).normal(size=(5, 3)).astype(np.float32)
        for n, spec in enumerate(original.backend.inputs)
    }
    expected = original.backend.infer(feeds)
    found = dict(zip((each.name for each in session.get_outputs()), session.run(None, feeds), strict=True))
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert np.allclose(found[name], array, rtol=1e-6)
    original.backend.close()


def test_a_converter_that_fails(repository: Path) -> None:
    """The message holds the last line of the converter's log."""
    version = version_of(repository, lambda folder: (folder / "model.pb").write_bytes(b"no graph"))
    given, output = (TensorSpec(name, Datatype.FP32, (-1, 3)) for name in ("input", "output"))
    card = ModelCard("m", "1", ("1",), "tensorflow_graphdef", (given,), (output,))
    with pytest.raises(ModelNotLoadable, match=r"model\.pb: tf2onnx can't convert it \(.*Error"):
        to_onnx(version, card)

"""Conversion of TensorFlow's formats to ONNX: the same names, shapes and outputs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from mqinfer.lab.conversion import to_onnx
from mqinfer.models.loading import load_model
from mqinfer.models.repository import ModelVersion, Repository
from mqinfer.protocol.card import ModelCard
from mqinfer.protocol.datatypes import Datatype
from mqinfer.protocol.errors import ModelNotLoadable
from mqinfer.protocol.types import TensorSpec

pytestmark = [pytest.mark.slow, pytest.mark.full]


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


def of_tensorflow_1(folder: Path) -> None:
    """Write a SavedModel of TensorFlow 1, whose signature has other names than its tensors."""
    import tensorflow as tf

    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        given = v1.placeholder("float32", (None, 3), "given")
        weight = v1.get_variable("weight", initializer=tf.constant(2.0), use_resource=True)
        session.run(v1.global_variables_initializer())
        v1.saved_model.simple_save(
            session, str(folder / "model.savedmodel"), {"Features": given}, {"Answer": given * weight}
        )


def trained_keras_file(folder: Path) -> None:
    """Write a Keras file in the older format with training settings that no code knows any more."""
    import h5py  # type: ignore[import-untyped]  # it has no types
    import keras

    model = keras.Sequential([keras.Input((3,), name="given"), keras.layers.Rescaling(2.0, name="doubled")])
    model.compile("sgd", "mse")
    model.save(folder / "model.h5")
    with h5py.File(folder / "model.h5", "r+") as file:
        file.attrs["training_config"] = file.attrs["training_config"].replace("mse", "of_my_own")


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


def compare(version: ModelVersion) -> None:
    """Convert a model, run both, and compare the outputs by name."""
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


@pytest.mark.parametrize(
    ("write", "config"),
    [
        (frozen_graph, ""),
        (saved_model, 'parameters = { signature = "double" }'),
        (of_tensorflow_1, ""),
        (keras_file, ""),
        (trained_keras_file, ""),
    ],
    ids=["frozen graph", "SavedModel", "TensorFlow 1", "Keras", "Keras, trained"],
)
def test_the_same_outputs(repository: Path, write: Callable[[Path], object], config: str) -> None:
    """ONNX Runtime returns TensorFlow's outputs under the same names, for any batch."""
    compare(version_of(repository, write, config))


def test_a_model_that_was_stored_with_its_optimizer(
    repository: Path, save_with_optimizer: Callable[[Path], None]
) -> None:
    """TensorFlow 2's loader refuses it; it is converted all the same."""
    compare(version_of(repository, lambda folder: save_with_optimizer(folder / "model.savedmodel")))


def test_a_converter_that_fails(repository: Path) -> None:
    """The message holds the last line of the converter's log."""
    version = version_of(repository, lambda folder: (folder / "model.pb").write_bytes(b"no graph"))
    given, output = (TensorSpec(name, Datatype.FP32, (-1, 3)) for name in ("input", "output"))
    card = ModelCard(name="m", versions=("1",), platform="tensorflow_graphdef", inputs=(given,), outputs=(output,))
    with pytest.raises(ModelNotLoadable, match=r"model\.pb: tf2onnx can't convert it \(.*Error"):
        to_onnx(version, card)

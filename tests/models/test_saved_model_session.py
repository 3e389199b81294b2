"""SavedModels that TensorFlow 2's loader refuses, run in a session of TensorFlow 1."""

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mqinfer.errors import ModelFailed, ModelNotLoadable
from mqinfer.models.backends.tensorflow.saved_model import load, load_in_session
from mqinfer.models.load_options import LoadOptions, TensorOptions
from mqinfer.protocol.datatypes import Datatype
from mqinfer.protocol.types import TensorSpec

pytestmark = pytest.mark.slow


@pytest.fixture
def plain_variables(tf: Any) -> Iterator[None]:
    """TensorFlow 1's own kind of variable, whose tensor is a reference."""
    tf.compat.v1.disable_resource_variables()
    yield
    tf.compat.v1.enable_resource_variables()


@pytest.fixture
def counter(tf: Any, save_tf1: Callable[..., Path], tmp_path: Path, plain_variables: None) -> Path:  # noqa: ARG001
    """A model like TensorFlow Serving's `saved_model_counter`: signatures that change a variable and return it."""

    def build(v1: Any) -> tuple[dict[str, Any], None]:
        count = v1.Variable(0.0, name="counter")
        delta = v1.placeholder(tf.float32, [], name="delta")
        define, info = v1.saved_model.build_signature_def, v1.saved_model.build_tensor_info
        return {
            "get_counter": define({}, {"output": info(count)}, "predict"),
            "incr_counter_by": define({"delta": info(delta)}, {"output": info(v1.assign_add(count, delta))}, "predict"),
        }, None

    return save_tf1(tmp_path / "counter", build)


def test_signatures_that_give_out_a_variable(tf: Any, counter: Path, caplog: pytest.LogCaptureFixture) -> None:
    """TensorFlow 2 makes no function of them; a session runs them, and keeps the variable between requests."""
    with pytest.raises(tf.errors.InvalidArgumentError, match="reference type"):
        tf.saved_model.load(counter)
    with caplog.at_level(logging.INFO, "mqinfer.models"):
        backend = load(counter, LoadOptions(signature="incr_counter_by"))
    assert "running in a session" in caplog.text
    assert backend.inputs == (TensorSpec("delta", Datatype.FP32, ()),)
    assert backend.outputs == (TensorSpec("output", Datatype.FP32, ()),)
    counts = [backend.infer({"delta": np.array(step, np.float32)})["output"].item() for step in (1, 2.5)]
    assert counts == [1, 3.5]
    backend.close()
    with pytest.raises(ModelFailed, match="closed"):
        backend.infer({"delta": np.array(0, np.float32)})


def test_a_signature_without_inputs(counter: Path) -> None:
    """There is nothing to send to it, and it answers; each back end has variables of its own."""
    backend = load(counter, LoadOptions(signature="get_counter"))
    assert backend.inputs == ()
    assert backend.infer({})["output"].item() == 0


def test_old_graphs_leave_ranks_open(tf: Any, save_tf1: Callable[..., Path], tmp_path: Path) -> None:
    """A rank that the file lacks is that of each request, unless it is configured: of the default signature too."""

    def build(v1: Any) -> tuple[dict[str, Any], None]:
        x = v1.placeholder(tf.float32, [None, 2])
        examples = v1.placeholder(tf.string)
        features = tf.raw_ops.ParseExample(
            serialized=examples,
            names=tf.constant([], tf.string),
            sparse_keys=[],
            dense_keys=["x"],
            dense_defaults=[tf.constant([], tf.float32)],
            sparse_types=[],
            dense_shapes=[[2]],
        )
        define = v1.saved_model.predict_signature_def
        return {
            "double": define({"x": x}, {"y": x + x}),
            "parse": define({"examples": examples}, {"y": features.dense_values[0]}),
        }, None

    path = save_tf1(tmp_path / "old", build, old=True)
    backend = load(path, LoadOptions(signature="double"))
    for shape in ((2,), (3, 2), (3, 2, 2)):
        assert backend.infer({"x": np.ones(shape, np.float32)})["y"].shape == shape
    backend = load(path, LoadOptions(signature="double", inputs={"x": TensorOptions((-1, 2))}))
    assert backend.infer({"x": np.ones((3, 2), np.float32)})["y"].tolist() == [[2, 2]] * 3


def test_sparse_tensors_are_three(tf: Any, save_tf1: Callable[..., Path], tmp_path: Path) -> None:
    """They have the names of TensorFlow 2's loader, whichever of the two loads the model."""

    def build(v1: Any) -> tuple[dict[str, Any], None]:
        sparse = v1.sparse_placeholder(tf.float32, [None, 3])
        info = v1.saved_model.build_tensor_info
        dense = info(v1.sparse_tensor_to_dense(sparse))
        return {"dense": v1.saved_model.build_signature_def({"x": info(sparse)}, {"y": dense}, "predict")}, None

    path = save_tf1(tmp_path / "sparse", build)
    feeds = {
        "x_indices": tf.constant([[0, 2], [1, 0]], tf.int64),
        "x_values": tf.constant([5.0, 7.0]),
        "x_dense_shape": tf.constant([2, 3], tf.int64),
    }
    signature = load_in_session(tf, path)["dense"]
    assert list(signature.inputs) == ["x_indices", "x_values", "x_dense_shape"]
    assert signature.call(feeds)["y"].tolist() == [[0, 0, 5], [7, 0, 0]]
    with_functions = tf.saved_model.load(path).signatures["dense"]
    assert with_functions.structured_input_signature[1].keys() == signature.inputs.keys()


def test_a_damaged_model_is_told_by_the_first_loader(counter: Path) -> None:
    """TensorFlow 2's error of a missing file is clearer than that of a session."""
    (counter / "variables" / "variables.index").unlink()
    with pytest.raises(ModelNotLoadable, match="counter: TensorFlow can't load it"):
        load(counter, LoadOptions())


def test_a_model_that_was_stored_with_its_optimizer(
    tf: Any, save_with_optimizer: Callable[[Path], None], tmp_path: Path
) -> None:
    """TensorFlow 2's loader raises AttributeError; a session needs no optimizer."""
    save_with_optimizer(tmp_path / "m")
    with pytest.raises(AttributeError, match="add_slot"):
        tf.saved_model.load(tmp_path / "m")
    assert load(tmp_path / "m", LoadOptions()).infer({"x": np.ones((1, 3), np.float32)})["y"].tolist() == [[2, 2, 2]]

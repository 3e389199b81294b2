"""Writers of small models, and the repository of real ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import TensorProto, helper

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data" / "models"

ONNX_TYPES = {
    "BOOL": TensorProto.BOOL,
    "UINT8": TensorProto.UINT8,
    "UINT16": TensorProto.UINT16,
    "UINT32": TensorProto.UINT32,
    "UINT64": TensorProto.UINT64,
    "INT8": TensorProto.INT8,
    "INT16": TensorProto.INT16,
    "INT32": TensorProto.INT32,
    "INT64": TensorProto.INT64,
    "FP16": TensorProto.FLOAT16,
    "FP32": TensorProto.FLOAT,
    "FP64": TensorProto.DOUBLE,
    "BYTES": TensorProto.STRING,
    "BF16": TensorProto.BFLOAT16,
}

WriteOnnx = Callable[..., Path]
Digits = tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]


def _write_onnx(
    path: Path,
    datatype: str = "FP32",
    shape: Sequence[int | str] | None = ("n", 4),
    *,
    external: str | None = None,
) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    x, y = (helper.make_tensor_value_info(name, ONNX_TYPES[datatype], shape) for name in "xy")
    weights: list[Any] = []
    node = helper.make_node("Identity", ["x"], ["y"])
    if external is not None:
        weight = onnx.numpy_helper.from_array(np.ones(4, np.float32), "w")
        onnx.external_data_helper.set_external_data(weight, external, length=16)
        weight.ClearField("raw_data")
        weights, node = [weight], helper.make_node("Add", ["x", "w"], ["y"])
    graph = helper.make_graph([node], "test", [x], [y], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    path.write_bytes(model.SerializeToString())
    return path


@pytest.fixture(scope="session")
def write_onnx() -> WriteOnnx:
    """Write a model `y = x` (or `y = x + w` with `w` in the external file), a string being an open axis."""
    return _write_onnx


@pytest.fixture
def save_with_optimizer(tf: Any) -> Callable[[Path], None]:
    """Write a SavedModel `y = 2 x`, [n, 3], as Keras 2 did: with an optimizer, which TensorFlow 2.21 does not know."""
    from tensorflow.core.protobuf import saved_model_pb2

    def save(path: Path) -> None:
        module = tf.Module()
        module.weight, module.momentum, module.optimizer = tf.Variable(2.0), tf.Variable(0.0), tf.Module()
        double = tf.function(lambda x: {"y": x * module.weight})
        tf.saved_model.save(module, path, signatures=double.get_concrete_function(tf.TensorSpec([None, 3], name="x")))
        file = path / "saved_model.pb"
        content = saved_model_pb2.SavedModel.FromString(file.read_bytes())
        nodes = content.meta_graphs[0].object_graph_def.nodes
        child = {each.local_name: each.node_id for each in nodes[0].children}
        nodes[child["optimizer"]].slot_variables.add(
            original_variable_node_id=child["weight"], slot_name="m", slot_variable_node_id=child["momentum"]
        )
        file.write_bytes(content.SerializeToString())

    return save


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """An empty model repository, in a folder that has room beside it."""
    path = tmp_path / "repository"
    path.mkdir()
    return path


@pytest.fixture(scope="session")
def shared_models() -> Path:
    """The folder of real models; skips where it is absent."""
    if not SHARED.is_dir():
        pytest.skip(f"{SHARED} is absent")
    return SHARED


@pytest.fixture(scope="session")
def digits(shared_models: Path) -> Digits:
    """1000 handwritten digits, [1000, 784] of 0 to 255, and their labels."""
    records = np.fromfile(shared_models / "mnist_1000.data", "<f4").reshape(-1, 794)
    return records[:, :784].astype(np.float32), records[:, 784:].argmax(1)

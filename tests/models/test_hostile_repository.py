"""A model that asks for too much, or reaches for files elsewhere, is refused, and the others are served."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mqinfer.errors import ModelNotLoadable
from mqinfer.models.backends.tensorflow.keras_archive import check_keras
from mqinfer.models.loading import load_model
from mqinfer.models.repository import ModelVersion, Repository
from mqinfer.models.repository.config import ModelConfig


def _model(repository: Path, name: str, config: str = "") -> Path:
    folder = repository / name
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.echo").write_text('[[input]]\nname = "x"\ndatatype = "FP32"\nshape = [-1, 4]\n')
    (folder / "model.toml").write_text(config)
    return folder


def _ensemble(repository: Path, name: str, *steps: str) -> None:
    step = '[[ensemble_scheduling.step]]\nmodel_name = "{}"\ninput_map = {{ x = "x" }}\noutput_map = {{ x = "y{}" }}\n'
    folder = repository / name
    (folder / "1").mkdir(parents=True)
    ends = '[[input]]\nname = "x"\n[[output]]\nname = "y0"\n'
    content = "".join(step.format(each, number) for number, each in enumerate(steps))
    (folder / "model.toml").write_text(f'platform = "ensemble"\n{ends}{content}')


def _too_many_instances(repository: Path) -> None:
    _model(repository, "bad", "[[instance_group]]\ncount = 1_000_000_000_000\n")


def _too_many_together(repository: Path) -> None:
    _model(repository, "bad", "[[instance_group]]\ncount = 1000\n" * 2)


def _pipe(repository: Path) -> None:
    os.mkfifo(_model(repository, "bad") / "traffic.toml")


def _ways(repository: Path) -> None:
    for number in range(23):
        _ensemble(repository, f"bad{number}", *[f"bad{number + 1}"] * 2)
    _ensemble(repository, "bad23", "good", "good")


def _nested(repository: Path) -> None:
    for number in range(120):
        _ensemble(repository, f"bad{number}", f"bad{number + 1}")
    _ensemble(repository, "bad120", "good")


def _many_steps(repository: Path) -> None:
    _ensemble(repository, "bad", *["good"] * 1500)


def _long_file(repository: Path) -> None:
    _ensemble(repository, "bad", *["good"] * 20_000)


@pytest.mark.parametrize(
    "attack",
    [_too_many_instances, _too_many_together, _pipe, _ways, _nested, _many_steps, _long_file],
)
def test_the_others_are_served(repository: Path, attack: Callable[[Path], None]) -> None:
    """One folder that asks for too much becomes a problem; the scan goes on and ends."""
    _model(repository, "good")
    attack(repository)
    scan = Repository(repository).scan()
    assert "good" in {model.name for model in scan.models}
    assert not any(model.name in {"bad", "bad0"} for model in scan.models)
    assert any(problem.model in {"bad", "bad0"} for problem in scan.problems)


def _saved(tf: Any, path: Path, function: Any) -> Path:
    module = tf.Module()
    module.function = tf.function(function)
    concrete = module.function.get_concrete_function(tf.TensorSpec([None], tf.string, name="x"))
    tf.saved_model.save(module, path, signatures={"serving_default": concrete})
    return path


@pytest.mark.slow
def test_graphs_that_read_files(tf: Any, tmp_path: Path) -> None:
    """An operation that reads files is refused by name, in a SavedModel and a frozen graph, unless it is allowed."""

    def read(x: Any) -> Any:
        return {"y": tf.map_fn(tf.io.read_file, x)}

    folder = _saved(tf, tmp_path / "model.savedmodel", read)
    graph = tf.Graph()
    with graph.as_default():
        tf.identity(tf.io.read_file(tf.compat.v1.placeholder(tf.string, [], "x")), "y")
    frozen = tmp_path / "model.pb"
    frozen.write_bytes(graph.as_graph_def().SerializeToString())
    for path in (folder, frozen):
        with pytest.raises(ModelNotLoadable, match="is ReadFile, which may read or write any file"):
            load_model(ModelVersion("m", 1, path))
        load_model(ModelVersion("m", 1, path, ModelConfig(parameters={"file_operations": "true"})))


@pytest.mark.slow
def test_an_asset_outside(tf: Any, tmp_path: Path) -> None:
    """The name of an asset stays below the folder of assets."""
    from tensorflow.core.protobuf import saved_model_pb2

    folder = _saved(tf, tmp_path / "model.savedmodel", lambda x: {"y": tf.strings.upper(x)})
    load_model(ModelVersion("m", 1, folder))
    file = folder / "saved_model.pb"
    content = saved_model_pb2.SavedModel.FromString(file.read_bytes())
    content.meta_graphs[0].asset_file_def.add(filename="../../x").tensor_info.name = "x:0"
    file.write_bytes(content.SerializeToString())
    with pytest.raises(ModelNotLoadable, match=r"an asset = '\.\./\.\./x'"):
        load_model(ModelVersion("m", 1, folder))


def test_a_keras_file_that_inflates(tmp_path: Path) -> None:
    """The size of all parts is bounded by that of the file, before any is read."""
    path = tmp_path / "model.keras"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("config.json", "{}")
        archive.writestr("model.weights.h5", bytes(128 << 20))
    with pytest.raises(ModelNotLoadable, match="bytes when decompressed"):
        check_keras(path)


def test_openvino_takes_scalars(tmp_path: Path, write_onnx: Callable[..., Path]) -> None:
    """A scalar from a message can't be written to, which OpenVINO would do."""
    path = write_onnx(tmp_path / "model.onnx", "FP32", ())
    model = load_model(ModelVersion("m", 1, path, ModelConfig(backend="openvino")), device="cpu")
    scalar = np.frombuffer(np.float32(5).tobytes(), np.float32).reshape(())
    assert model.backend.infer({"x": scalar})["y"] == 5
    model.backend.close()

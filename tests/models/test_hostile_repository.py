"""A model that asks for too much, or reaches for files elsewhere, is refused, and the others are served."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mqinfer.errors import ModelNotLoadable
from mqinfer.models.backends.tensorflow.keras_archive import check_keras
from mqinfer.models.loading import load_model
from mqinfer.models.repository import ModelVersion, Repository
from mqinfer.models.repository.config import ModelConfig, TensorConfig


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


def _many_keys(repository: Path) -> None:
    _model(repository, "bad", "".join(f"[a{number}]\n" for number in range(100_000)))


def _long_key(repository: Path) -> None:
    _model(repository, "bad", f"{'max_batch_size' * 50_000} = 1\n")


def _long_value(repository: Path) -> None:
    _model(repository, "bad", f'max_batch_size = "{"1" * 900_000}"\n')


def _many_digits(repository: Path) -> None:
    _model(repository, "bad", f"max_batch_size = {'9' * 4000}\n")


@pytest.mark.parametrize(
    "attack",
    [
        _too_many_instances,
        _too_many_together,
        _pipe,
        _ways,
        _nested,
        _many_steps,
        _long_file,
        _many_keys,
        _long_key,
        _long_value,
        _many_digits,
    ],
)
def test_the_others_are_served(repository: Path, attack: Callable[[Path], None]) -> None:
    """One folder that asks for too much becomes a problem; the scan goes on and ends."""
    _model(repository, "good")
    attack(repository)
    scan = Repository(repository).scan()
    assert "good" in {model.name for model in scan.models}
    assert not any(model.name in {"bad", "bad0"} for model in scan.models)
    assert any(problem.model in {"bad", "bad0"} for problem in scan.problems)
    assert all(len(problem.reason) < 4096 for problem in scan.problems)


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
@pytest.mark.parametrize("outputs", ["", "y"])
def test_what_a_saver_leaves_in_a_frozen_graph(tf: Any, tmp_path: Path, outputs: str) -> None:
    """It is no output and is not run; what an output needs is refused as ever, also where it needs no input."""
    v1 = tf.compat.v1
    graph = tf.Graph()
    with graph.as_default():
        weight = tf.constant([2.0], name="weight")
        x = v1.placeholder(tf.float32, [None], "x")
        tf.add(x, weight, name="y")
        name = v1.placeholder_with_default("model", [], "save/Const")
        save = tf.raw_ops.SaveV2(
            prefix=name, tensor_names=["w"], shape_and_slices=[""], tensors=[weight], name="save/SaveV2"
        )
        with tf.control_dependencies([save]), v1.colocate_with(weight):
            tf.identity(name, "save/control_dependency")
        restore = {"tensor_names": ["w"], "shape_and_slices": [""], "dtypes": [tf.float32]}
        tf.raw_ops.RestoreV2(prefix=name, name="save/RestoreV2", **restore)
    path = tmp_path / "model.pb"
    path.write_bytes(graph.as_graph_def().SerializeToString())
    named = ModelConfig(output=(TensorConfig(outputs),)) if outputs else ModelConfig()
    model = load_model(ModelVersion("m", 1, path, named))
    assert [each.name for each in model.card.outputs] == ["y"]
    assert model.backend.infer({"x": np.array([1, 2], np.float32)})["y"].tolist() == [3, 4]
    with pytest.raises(ModelNotLoadable, match="is RestoreV2, which may read or write any file"):
        load_model(ModelVersion("m", 1, path, ModelConfig(output=(TensorConfig("save/RestoreV2"),))))
    with graph.as_default():
        tf.multiply(x, tf.raw_ops.RestoreV2(prefix="/etc/x", name="other", **restore)[0], name="z")
    path.write_bytes(graph.as_graph_def().SerializeToString())
    with pytest.raises(ModelNotLoadable, match="'other' is RestoreV2, which may read or write any file"):
        load_model(ModelVersion("m", 1, path))


@pytest.mark.slow
def test_an_asset_outside(tf: Any, tmp_path: Path) -> None:
    """The name of an asset stays below the folder of assets."""
    folder = _saved(tf, tmp_path / "model.savedmodel", lambda x: {"y": tf.strings.upper(x)})
    load_model(ModelVersion("m", 1, folder))
    with _edited(folder) as graph:
        graph.asset_file_def.add(filename="../../x").tensor_info.name = "x:0"
    with pytest.raises(ModelNotLoadable, match=r"an asset = '\.\./\.\./x'"):
        load_model(ModelVersion("m", 1, folder))


def _initialiser(tf: Any, file: Path) -> Any:
    """Return what fills a table with the lines of a file."""
    index = tf.lookup.TextFileIndex
    return tf.lookup.TextFileInitializer(str(file), tf.string, index.WHOLE_LINE, tf.int64, index.LINE_NUMBER)


def _save_vocabulary(tf: Any, folder: Path, vocabulary: Path) -> Path:
    """Save a SavedModel with a vocabulary as its asset and a variable."""
    module = tf.Module()
    module.table = tf.lookup.StaticHashTable(_initialiser(tf, vocabulary), -1)
    module.variable = tf.Variable(10, dtype=tf.int64)

    def look_up(x: Any) -> Any:
        return {"y": module.table.lookup(x) + module.variable}

    module.function = tf.function(look_up)
    concrete = module.function.get_concrete_function(tf.TensorSpec([None], tf.string, name="x"))
    tf.saved_model.save(module, folder, signatures={"serving_default": concrete})
    return folder


def _save_vocabulary_1(tf: Any, folder: Path, vocabulary: Path) -> Path:
    """Save the same as TensorFlow 1 does, which names assets in a collection."""
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.placeholder(tf.string, [None], "x")
        y = tf.lookup.StaticHashTable(_initialiser(tf, vocabulary), -1).lookup(x)
        y += v1.get_variable("v", [], tf.int64, v1.constant_initializer(10), use_resource=False)
        session.run([v1.global_variables_initializer(), v1.tables_initializer()])
        signature = v1.saved_model.predict_signature_def({"x": x}, {"y": y})
        builder = v1.saved_model.Builder(str(folder))
        assets = v1.get_collection(v1.GraphKeys.ASSET_FILEPATHS)
        signatures = {"serving_default": signature}
        builder.add_meta_graph_and_variables(session, ["serve"], signatures, assets, main_op=v1.tables_initializer())
        builder.save()
    return folder


@contextmanager
def _edited(folder: Path) -> Iterator[Any]:
    """Change the first graph of a SavedModel."""
    from tensorflow.core.protobuf import saved_model_pb2

    file = folder / "saved_model.pb"
    content = saved_model_pb2.SavedModel.FromString(file.read_bytes())
    yield content.meta_graphs[0]
    file.write_bytes(content.SerializeToString())


def _constant(tf: Any, nodes: Any, file: Path) -> None:
    node = nodes.add(name="constant", op="Const")
    node.attr["dtype"].type = tf.string.as_datatype_enum
    node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(str(file)))


def _in_function(tf: Any, graph: Any, secret: Path) -> None:
    """Fill the table from a path within the function."""
    for function in graph.graph_def.library.function:
        for node in function.node_def:
            if node.op == "InitializeTableFromTextFileV2":
                node.input[1] = "constant:output:0"
                _constant(tf, function.node_def, secret)
                return


def _bound(tf: Any, graph: Any, secret: Path) -> None:
    """Give the function a constant for an asset."""
    _constant(tf, graph.graph_def.node, secret)
    for node in graph.object_graph_def.nodes:
        if node.HasField("asset"):
            node.constant.operation = "constant"


def _two_handles(tf: Any, graph: Any, secret: Path) -> None:
    """Assign a path to the variable that holds the asset's, by another handle."""
    del tf, secret
    handle = next(node for node in graph.graph_def.node if node.op == "VarHandleOp")
    copy = graph.graph_def.node.add()
    copy.CopyFrom(handle)
    copy.name = "copy"
    copy.attr["shared_name"].s = handle.attr["shared_name"].s or handle.name.encode()


def _restored_from(tf: Any, graph: Any, secret: Path) -> None:
    """Restore the variables from a path in the graph."""
    _constant(tf, graph.graph_def.node, secret)
    saver = graph.saver_def.restore_op_name
    node = next(node for node in graph.graph_def.node if node.name == saver)
    node.input[0] = "constant"


@pytest.mark.slow
@pytest.mark.parametrize("save", [_save_vocabulary, _save_vocabulary_1])
def test_own_variables_and_assets(tf: Any, tmp_path: Path, save: Callable[..., Path]) -> None:
    """A SavedModel restores its variables and reads its vocabulary, from wherever it was moved to."""
    vocabulary = tmp_path / "vocabulary.txt"
    vocabulary.write_text("a\nb\nc\n")
    folder = save(tf, tmp_path / "saved", vocabulary).rename(tmp_path / "model.savedmodel")
    vocabulary.unlink()
    model = load_model(ModelVersion("m", 1, folder))
    words = np.array([b"c", b"x"], np.object_)
    assert model.backend.infer({"x": words})["y"].tolist() == [12, 9]


@pytest.mark.slow
@pytest.mark.parametrize("attack", [_in_function, _bound, _two_handles, _restored_from])
def test_paths_that_the_loader_does_not_give(tf: Any, tmp_path: Path, attack: Callable[[Any, Any, Path], None]) -> None:
    """What restores or fills a table from another path than the loader's own is refused by name."""
    secret = tmp_path / "secret.txt"
    secret.write_text("a\n")
    folder = _save_vocabulary(tf, tmp_path / "model.savedmodel", secret)
    with _edited(folder) as graph:
        attack(tf, graph, secret)
    with pytest.raises(ModelNotLoadable, match=r"is (InitializeTableFromTextFileV2|RestoreV2), which may read"):
        load_model(ModelVersion("m", 1, folder))


@pytest.mark.slow
@pytest.mark.parametrize("operation", ["RestoreV2", "MergeV2Checkpoints", "CSVDatasetV2"])
def test_files_that_a_request_names(tf: Any, tmp_path: Path, operation: str) -> None:
    """A signature in which a request would restore, merge or list files is refused by name."""

    def run(x: Any) -> Any:
        path = x[0]
        if operation == "RestoreV2":
            found = tf.raw_ops.RestoreV2(prefix=path, tensor_names=["v"], shape_and_slices=[""], dtypes=[tf.int64])
            return {"y": found[0]}
        if operation == "MergeV2Checkpoints":
            tf.raw_ops.MergeV2Checkpoints(checkpoint_prefixes=x, destination_prefix=path)
            return {"y": x}
        numbers = tf.data.experimental.CsvDataset(path, [tf.float32])
        return {"y": numbers.reduce(0.0, lambda total, number: total + number)}

    folder = _saved(tf, tmp_path / "model.savedmodel", run)
    with pytest.raises(ModelNotLoadable, match=f"is {operation}, which may read or write any file"):
        load_model(ModelVersion("m", 1, folder))


@pytest.mark.slow
def test_an_asset_of_a_collection_outside(tf: Any, tmp_path: Path) -> None:
    """The name of an asset that a collection has stays below the folder of assets too."""
    from tensorflow.core.protobuf import meta_graph_pb2

    vocabulary = tmp_path / "vocabulary.txt"
    vocabulary.write_text("a\n")
    folder = _save_vocabulary_1(tf, tmp_path / "model.savedmodel", vocabulary)
    with _edited(folder) as graph:
        for packed in graph.collection_def["saved_model_assets"].any_list.value:
            packed.Pack(meta_graph_pb2.AssetFileDef(filename="../../vocabulary.txt"))
    with pytest.raises(ModelNotLoadable, match=r"an asset = '\.\./\.\./vocabulary.txt'"):
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

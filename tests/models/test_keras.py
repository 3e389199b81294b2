"""The Keras back end, on files that Keras wrote, and on those that would have it run something."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mqinfer.errors import ModelNotLoadable
from mqinfer.models.backends.tensorflow.keras_archive import check_keras
from mqinfer.models.loading import LoadedModel, load_model
from mqinfer.models.repository import ModelVersion
from mqinfer.models.repository.config import ModelConfig
from mqinfer.models.warmup import warm_up
from mqinfer.protocol.datatypes import Datatype, dtype_of
from mqinfer.protocol.types import TensorSpec

pytestmark = pytest.mark.slow
FORMATS = [".keras", ".h5"]
Rewrite = Callable[[Any], Any]


@pytest.fixture(scope="module")
def keras() -> Any:
    """Keras on TensorFlow, imported as the product imports it."""
    from mqinfer.models.backends.tensorflow.runtime import import_tensorflow

    import_tensorflow()
    import keras

    return keras


def loaded(path: Path, **config: Any) -> LoadedModel:
    """Load a file."""
    return load_model(ModelVersion("m", 1, path, ModelConfig(**config)), device="cpu")


def ends(model: LoadedModel) -> list[tuple[str, str, tuple[int, ...]]]:
    """Give the inputs, then the outputs."""
    return [(spec.name, spec.datatype.value, spec.shape) for spec in model.card.inputs + model.card.outputs]


def two_ended(keras: Any) -> Any:
    """Build a model of two inputs and two outputs, with what only training uses."""
    image, number = keras.Input((6, 6, 1), name="image"), keras.Input((2,), name="number", dtype="int32")
    layers = keras.layers
    x = layers.Dropout(0.5)(layers.BatchNormalization()(layers.Conv2D(3, 3, activation="relu")(image)))
    x = layers.Concatenate()([layers.Flatten()(x), layers.Flatten()(layers.Embedding(5, 2)(number))])
    return keras.Model([image, number], [layers.Dense(4, name="scores")(x), layers.Dense(1, name="age")(x)])


@pytest.mark.parametrize("suffix", FORMATS)
def test_what_is_discovered(keras: Any, tmp_path: Path, suffix: str) -> None:
    """Names of Input layers and of the outputs' layers; the outputs are those of Keras itself, without training."""
    built = two_ended(keras)
    built.save(tmp_path / f"model{suffix}")
    model = loaded(tmp_path / f"model{suffix}")
    assert ends(model) == [
        ("image", "FP32", (-1, 6, 6, 1)),
        ("number", "INT32", (-1, 2)),
        ("scores", "FP32", (-1, 4)),
        ("age", "FP32", (-1, 1)),
    ]
    card = model.card
    assert (card.platform, card.parameters.device, card.parameters.precision) == ("tensorflow_keras", "cpu", "fp32")
    warm_up(model.backend, card)
    rng = np.random.default_rng(1)
    image, number = rng.random((3, 6, 6, 1), np.float32), rng.integers(0, 5, (3, 2), np.int32)
    found = model.backend.infer({"number": number, "image": image})
    for name, expected in zip(("scores", "age"), built([image, number], training=False), strict=True):
        assert np.allclose(found[name], expected.numpy(), atol=1e-5)


@pytest.mark.parametrize("shape", [(2, 3), (0, 3)])
@pytest.mark.parametrize("datatype", list(Datatype))
def test_every_datatype(keras: Any, tmp_path: Path, datatype: Datatype, shape: tuple[int, int]) -> None:
    """What goes in comes out, with its dtype."""
    names = {"FP16": "float16", "FP32": "float32", "FP64": "float64", "BYTES": "string"}
    dtype = names.get(datatype, datatype.lower())
    source = keras.Input((3,), name="x", dtype=dtype)
    policy = dtype if dtype.startswith("float") else None  # else Keras casts to its own float
    keras.Model(source, keras.layers.Identity(name="y", dtype=policy)(source)).save(tmp_path / "model.keras")
    backend = loaded(tmp_path / "model.keras").backend
    array = np.full(shape, b"\xff" if datatype is Datatype.BYTES else 1, dtype_of(datatype))
    result = backend.infer({"x": array})["y"]
    assert (result.dtype, result.shape) == (array.dtype, shape)
    assert np.array_equal(result, array)
    assert backend.inputs == (TensorSpec("x", datatype, (-1, 3)),)


def test_names_of_several_outputs(keras: Any, tmp_path: Path) -> None:
    """A dictionary's keys, with the right tensors; numbers where one layer has several outputs."""
    source = keras.Input((2, 3), name="x")
    first, second = keras.layers.Dense(1)(source), keras.layers.Dense(2)(source)
    keras.Model(source, {"z": first, "a": second}).save(tmp_path / "keys.keras")
    assert ends(loaded(tmp_path / "keys.keras"))[1:] == [("z", "FP32", (-1, 2, 1)), ("a", "FP32", (-1, 2, 2))]
    keras.Model(source, keras.layers.LSTM(3, return_state=True, name="lstm")(source)).save(tmp_path / "lstm.keras")
    assert [spec.name for spec in loaded(tmp_path / "lstm.keras").card.outputs] == ["lstm", "lstm_1", "lstm_2"]


def test_sequential_models_and_half_precision(keras: Any, tmp_path: Path) -> None:
    """Also a model in a model; the precision is that of the layers."""
    inner = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, dtype="mixed_float16")], name="inner")
    keras.Sequential([keras.Input((4,), name="x"), inner]).save(tmp_path / "model.keras")
    model = loaded(tmp_path / "model.keras")
    assert ends(model) == [("x", "FP32", (-1, 4)), ("inner", "FP16", (-1, 3))]
    inner.save(tmp_path / "inner.keras")
    assert loaded(tmp_path / "inner.keras").card.parameters.precision == "fp16"


def test_a_model_that_was_never_built(keras: Any, tmp_path: Path) -> None:
    """Without inputs there is nothing to serve."""
    with pytest.warns(UserWarning, match="not yet been built"):
        keras.Sequential([keras.layers.Dense(3)]).save(tmp_path / "model.keras")
    with pytest.raises(ModelNotLoadable, match="never built"):
        loaded(tmp_path / "model.keras")


@pytest.mark.parametrize("suffix", FORMATS)
def test_lambda_layers_are_refused(keras: Any, tmp_path: Path, suffix: str) -> None:
    """They are Python code in the file; also where Keras has no safe mode."""
    path = tmp_path / f"model{suffix}"
    keras.Sequential([keras.Input((4,)), keras.layers.Lambda(lambda x: x * 2)]).save(path)
    with pytest.raises(ModelNotLoadable, match="Lambda, which runs code"):
        loaded(path)


def test_custom_layers_are_refused(keras: Any, tmp_path: Path) -> None:
    """Their code is not in the file; where it is installed, it is not run either."""

    @keras.saving.register_keras_serializable("mine")
    class Twice(keras.layers.Layer):  # type: ignore[misc] # Keras has no types
        """Doubles."""

        def call(self, x: Any) -> Any:
            """Double."""
            return x * 2

    keras.Sequential([keras.Input((4,)), Twice()]).save(tmp_path / "model.keras")
    with pytest.raises(ModelNotLoadable, match="which is not Keras's own"):
        loaded(tmp_path / "model.keras")


def rewritten(keras: Any, folder: Path, rewrite: Rewrite) -> Path:
    """Save a Dense layer, and change its description in the file."""
    original, path = folder / "original.keras", folder / "model.keras"
    keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)]).save(original)
    with zipfile.ZipFile(original) as source, zipfile.ZipFile(path, "w") as target:
        for name in source.namelist():
            content = source.read(name)
            if name == "config.json":
                config = json.loads(content)
                rewrite(config["config"]["layers"][-1])
                content = json.dumps(config).encode()
            target.writestr(name, content)
    return path


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"module": "os", "class_name": "system"}, "os.system, which is not Keras's own"),
        ({"module": "keras.utils", "class_name": "get_file"}, "keras.utils.get_file"),
        ({"module": "keras.models", "class_name": "function", "config": "load_model"}, "keras.models.function"),
        ({"module": "builtins", "class_name": "eval"}, "builtins.eval"),
        ({"module": "keraslike.layers"}, "keraslike.layers.Dense"),
        ({"registered_name": "mine>Dense"}, "custom object 'mine>Dense'"),
        ({"class_name": "TFSMLayer", "config": {"filepath": "/etc"}}, "TFSMLayer, which runs code or loads files"),
        ({"class_name": "TorchModuleWrapper"}, "TorchModuleWrapper"),
        ({"class_name": "StringLookup", "config": {"vocabulary": "/etc/passwd"}}, "reads the file '/etc/passwd'"),
    ],
)
def test_names_that_lead_elsewhere(keras: Any, tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    """A file can't make Keras import or call what is no part of a network."""
    path = rewritten(keras, tmp_path, lambda layer: layer.update(changes))
    with pytest.raises(ModelNotLoadable, match=message):
        loaded(path)


def test_weights_in_other_files_are_refused(keras: Any, tmp_path: Path) -> None:
    """HDF5's external links, and data sets whose bytes lie elsewhere."""
    import h5py  # type: ignore[import-untyped]

    for number, add in enumerate(
        (
            lambda file: file.__setitem__("extra", h5py.ExternalLink("/etc/passwd", "/")),
            lambda file: file.create_dataset("extra", (4,), "u1", external=[(str(tmp_path / "secret"), 0, 4)]),
        )
    ):
        path = tmp_path / f"{number}.h5"
        keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)]).save(path)
        with h5py.File(path, "a") as file:
            add(file)  # type: ignore[no-untyped-call] # nor has h5py
        with pytest.raises(ModelNotLoadable, match="'extra' is in another file"):
            loaded(path)


def test_a_file_of_two_formats(keras: Any, tmp_path: Path) -> None:
    """HDF5 with a harmless ZIP behind it is looked at as what Keras reads."""
    path = tmp_path / "model.h5"
    keras.Sequential([keras.Input((4,)), keras.layers.Lambda(lambda x: x * 2)]).save(path)
    keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)]).save(tmp_path / "harmless.keras")
    path.write_bytes(path.read_bytes() + (tmp_path / "harmless.keras").read_bytes())
    with pytest.raises(ModelNotLoadable, match="Lambda"):
        loaded(path)


def test_weights_without_a_model(keras: Any, tmp_path: Path) -> None:
    """`save_weights` leaves the model out."""
    keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)]).save_weights(tmp_path / "model.weights.h5")
    with pytest.raises(ModelNotLoadable, match="weights without a model"):
        loaded(tmp_path / "model.weights.h5")


@pytest.mark.parametrize("suffix", FORMATS)
def test_what_is_no_keras_file(keras: Any, tmp_path: Path, suffix: str) -> None:
    """Text, and files that were copied in part, with path, size and what to do."""
    path = tmp_path / f"model{suffix}"
    path.write_bytes(b"hello, this is text and no model" * 9)
    with pytest.raises(ModelNotLoadable, match="bytes of text"):
        loaded(path)
    keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)]).save(path)
    for part in (0.3, 0.9):
        path.write_bytes(path.read_bytes()[: int(path.stat().st_size * part)])
        with pytest.raises(ModelNotLoadable, match=f"{path}.*copy or export the model again"):
            check_keras(path)


@pytest.mark.parametrize("size", [0, 2**64 - 16])
@pytest.mark.parametrize("suffix", FORMATS)
def test_sizes_that_hdf5_would_follow_for_ever(keras: Any, tmp_path: Path, suffix: str, size: int) -> None:
    """Free space of size 0, or of one that leads back, in a heap of strings: refused before HDF5 reads it."""
    path = tmp_path / f"model{suffix}"
    two_ended(keras).save(path)
    assert loaded(path).card.platform == "tensorflow_keras"
    if suffix == ".keras":
        with zipfile.ZipFile(path) as archive:
            parts = {name: archive.read(name) for name in archive.namelist()}
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in parts.items():
                archive.writestr(name, _with_free_space(content, size) if name.endswith(".h5") else content)
    else:
        path.write_bytes(_with_free_space(path.read_bytes(), size))
    with pytest.raises(ModelNotLoadable, match=r"the heap at byte \d+ is damaged"):
        loaded(path)


def _with_free_space(content: bytes, size: int) -> bytes:
    heap = content.index(b"GCOL")
    head = bytes(8) + size.to_bytes(8, "little")
    return content[: heap + 16] + head + content[heap + 32 :]


def test_nothing_is_left_in_the_temporary_folder(keras: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that ends without its exit handlers, as a worker's does, leaves no file of TensorFlow's."""
    two_ended(keras).save(tmp_path / "model.keras")
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    loaded(tmp_path / "model.keras")
    assert not list((tmp_path / "temporary").iterdir())

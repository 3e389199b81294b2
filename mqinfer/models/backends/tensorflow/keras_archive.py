"""Check a Keras file before Keras opens it: which objects it describes, and where its weights are.

A Keras file describes objects by module and class, and Keras makes them: a `Lambda` layer is Python code, and other
names led to code too (CVE-2024-3660, CVE-2025-1550, CVE-2026-1462), to files elsewhere (CVE-2025-12058) or to
pickles (CVE-2025-49655). `.h5` files are read without Keras's safe mode at all. So only Keras's own layers, and what
they are made of, may be named; weights must lie in the file itself.

Formats: https://keras.io/guides/serialization_and_saving/ (`.keras`: a ZIP with `config.json` and
`model.weights.h5`; `.h5`: the attribute `model_config`).
"""

from __future__ import annotations

import io
import json
import mmap
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mqinfer.extras import missing_extra
from mqinfer.models.repository.files import describe
from mqinfer.protocol.errors import ModelNotLoadable

_CONFIG = "config.json"
_WEIGHTS = "model.weights.h5"
_HEAP, _HEAD_BYTES = b"GCOL\x01\0\0\0", 16
"""How a heap of strings begins in HDF5; the bytes before its first object, and before the content of each object."""
_MAX_CONFIG_BYTES = 64 * 2**20
_MOST_INFLATION = 20
"""Times a file's size that its parts may have when decompressed: weights hardly shrink, and Keras does not try."""
_PARTS = ("layers", "models", "initializers", "activations", "regularizers", "constraints", "dtype_policies", "ops")
_OWN = tuple(f"{package}.{part}" for package in ("keras", "keras.src") for part in _PARTS)
_FUNCTIONS = tuple(f"{package}.{part}" for package in ("keras", "keras.src") for part in ("activations", "ops"))
_TOP = {
    "keras": frozenset({"DTypePolicy", "KerasTensor", "Sequential", "Model", "Functional"}),
    "builtins": frozenset({"slice"}),
}
_CODE = frozenset({"Lambda", "TFSMLayer", "TorchModuleWrapper", "JaxLayer", "FlaxLayer", "__lambda__"})
_WITH_VOCABULARY = frozenset({"StringLookup", "IntegerLookup", "TextVectorization"})


def check_keras(path: Path) -> None:
    """Raise if a file is no Keras file, or names other objects than Keras's own.

    Raises:
        MissingExtra: h5py, which comes with Keras, is not installed.
        ModelNotLoadable: The message has what was found, and what to do.
    """
    try:
        # By the name, as Keras does: one file can be a ZIP to one reader and HDF5 to the other.
        config = _keras_config(path) if path.suffix.lower() == ".keras" else _h5_config(path)
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise ModelNotLoadable(
            f"{path}: not a complete Keras file ({_first_line(error)}); found {describe(path)}"
        ) from error
    for described in _objects(config):
        if reason := _refusal(described):
            raise ModelNotLoadable(
                f"{path}: {reason}; a model file may have only Keras's own layers: build the model without it, or "
                "export it (`model.export`) as a SavedModel or ONNX"
            )


def _keras_config(path: Path) -> Any:
    with zipfile.ZipFile(path) as archive:
        if archive.getinfo(_CONFIG).file_size > _MAX_CONFIG_BYTES:
            raise ValueError(f"{_CONFIG} has more than {_MAX_CONFIG_BYTES} bytes")
        most = _MAX_CONFIG_BYTES + _MOST_INFLATION * path.stat().st_size
        if (inflated := sum(each.file_size for each in archive.infolist())) > most:
            raise ValueError(f"it would have {inflated} bytes when decompressed; expected at most {most}")
        config = json.loads(archive.read(_CONFIG))
        if _WEIGHTS not in archive.namelist():
            raise KeyError(f"no {_WEIGHTS} in it")
        weights = archive.read(_WEIGHTS)
        _check_heaps(weights)
        _check_weights(io.BytesIO(weights), path)
    return config


def _h5_config(path: Path) -> Any:
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        _check_heaps(content)
    attributes = _check_weights(path, path)
    if "model_config" not in attributes:
        raise ModelNotLoadable(
            f"{path}: weights without a model (save_weights); save the model itself (`model.save('model.keras')`)"
        )
    return json.loads(attributes["model_config"])


def _check_heaps(content: bytes | mmap.mmap) -> None:
    """Raise if the sizes in a heap of strings lead nowhere: HDF5 would follow them without an end.

    A heap has objects of a number and a size; number 0 is the free space, whose size includes its own head
    (https://support.hdfgroup.org/documentation/hdf5/latest/_f_m_t3.html, Global Heap).

    Raises:
        ValueError: The file is damaged.
    """
    heap = content.find(_HEAP)
    while heap >= 0:
        place, end = heap + _HEAD_BYTES, heap + int.from_bytes(content[heap + 8 : heap + _HEAD_BYTES], "little")
        while place + _HEAD_BYTES <= min(end, len(content)):
            number = int.from_bytes(content[place : place + 2], "little")
            length = int.from_bytes(content[place + 8 : place + _HEAD_BYTES], "little")
            place += length if number == 0 else _HEAD_BYTES + (length + 7) // 8 * 8
            if length == number == 0 or place > end:
                raise ValueError(f"the heap at byte {heap} is damaged")
        heap = content.find(_HEAP, heap + 1)


def _check_weights(file: Path | io.BytesIO, path: Path) -> dict[str, Any]:
    """Return the attributes; raise if a link, data set or virtual data set of HDF5 is in another file."""
    try:
        import h5py  # type: ignore[import-untyped]
    except ImportError as error:
        raise missing_extra("keras", "tensorflow") from error
    with h5py.File(file, "r") as weights:
        outside = [name for name, where in _members(h5py, weights) if where]
        if outside:
            raise ModelNotLoadable(f"{path}: {outside[0]!r} is in another file; save the model as one file")
        return dict(weights.attrs)


def _members(h5py: Any, group: Any, prefix: str = "") -> Iterator[tuple[str, bool]]:
    for name in group:
        link = group.get(name, getlink=True)
        if not isinstance(link, h5py.HardLink):
            yield f"{prefix}{name}", True
            continue
        member = group[name]
        if isinstance(member, h5py.Dataset):
            yield f"{prefix}{name}", bool(member.external or member.is_virtual)
        else:
            yield from _members(h5py, member, f"{prefix}{name}/")


def _objects(value: Any) -> Iterator[Mapping[str, Any]]:
    """Yield all objects that a configuration describes, without recursion: the nesting may be of any depth."""
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict):
            waiting.extend(each.values())
            if "class_name" in each:
                yield each
        elif isinstance(each, list):
            waiting.extend(each)


def _refusal(described: Mapping[str, Any]) -> str | None:
    name, module = described["class_name"], described.get("module")
    if name in _CODE or str(name).rpartition(">")[2] in _CODE:
        return f"it has a {name}, which runs code or loads files of its own"
    if module is not None and not _is_own(str(module), str(name)):
        return f"it has {module}.{name}, which is not Keras's own"
    if described.get("registered_name") not in {None, name}:
        return f"it has the custom object {described['registered_name']!r}"
    config = described.get("config")
    if name in _WITH_VOCABULARY and isinstance(config, dict) and isinstance(config.get("vocabulary"), str):
        return f"its {name} reads the file {config['vocabulary']!r}"
    return None


def _is_own(module: str, name: str) -> bool:
    if module in _TOP:
        return name in _TOP[module] or name.startswith("__")
    parts = _FUNCTIONS if name == "function" else _OWN
    return any(module == part or module.startswith(f"{part}.") for part in parts)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]

"""The manifest of a repository that many machines share: every file of every version, with its size and its hash.

It is written last, so a version is whole exactly when the manifest has it and each of its files is as the manifest
says. Whoever reads one believes nothing of it: names stay below their model's folder, and all numbers have bounds.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from mqinfer.models.repository.content_hash import model_hash
from mqinfer.models.repository.files import inner_path
from mqinfer.models.repository.traffic import TRAFFIC_FILE
from mqinfer.protocol.errors import ConfigError, ModelNotLoadable, MqinferError
from mqinfer.protocol.topics import check_name

MANIFEST = "mqinfer-manifest.json"
"""Its name, at the top of the repository."""
MOST_BYTES = 8 << 20
"""Bytes of a manifest; a longer one is refused before it is read."""
_MOST_FILES = 4096  # of one model, in all its versions
_ODD = re.compile(r"[?#%*\[\]:]")
"""What has a meaning in an address, and so in no file's name here."""


class RemoteFile(msgspec.Struct, frozen=True):
    """What a file of a model must be.

    Attributes:
        size: Its bytes.
        sha256: Of its content, in hex digits.
    """

    size: Annotated[int, Meta(ge=0, le=1 << 40)]
    sha256: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]


Files = dict[str, RemoteFile]
"""The files of one model, by their path below its folder: `model.toml`, `1/model.onnx`."""


class Manifest(msgspec.Struct, frozen=True):
    """What a shared repository has.

    Attributes:
        models: The files of each model, by its name.
        format: Of this file.
    """

    models: Annotated[dict[str, Files], Meta(max_length=1024)] = {}
    format: Annotated[int, Meta(ge=1, le=1)] = 1

    def to_json(self) -> bytes:
        """Return it as it is stored."""
        return msgspec.json.format(_ENCODER.encode(self), indent=1)


_ENCODER = msgspec.json.Encoder(order="deterministic")
_DECODER = msgspec.json.Decoder(Manifest)


def read_manifest(content: bytes, where: str) -> Manifest:
    """Return the manifest that these bytes are, after all its names have been checked.

    Args:
        content: As stored.
        where: Its address, for messages.

    Raises:
        ConfigError: It is none, or it names what lies outside of a model's folder.
    """
    if len(content) > MOST_BYTES:
        raise ConfigError(f"{where}: more than {MOST_BYTES} bytes; remove old versions by `mqinfer models withdraw`")
    try:
        found = _DECODER.decode(content)
        for model, files in found.models.items():
            check_files(check_name("model", model), files)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, MqinferError) as error:
        raise ConfigError(f"{where}: {str(error)[:400]}; write it anew by `mqinfer models push`") from error
    return found


def check_files(model: str, files: Files) -> None:
    """Check the names of a model's files.

    Raises:
        ModelNotLoadable: One leads out of the model's folder, is hidden, or there are too many.
    """
    if len(files) > _MOST_FILES:
        raise ModelNotLoadable(f"model {model}: {len(files)} files; at most {_MOST_FILES} are accepted")
    for name in files:
        inner_path(Path(model), name, "file")
        if name.startswith("./") or any(part.startswith(".") for part in name.split("/")) or _ODD.search(name):
            raise ModelNotLoadable(f"model {model}: file {name[:80]!r}: hidden, or with one of ?#%*[]:; rename it")
        if name == TRAFFIC_FILE:
            raise ModelNotLoadable(f"model {model}: file {name!r}: each server has its own; leave it out")


def describe(folder: Path) -> Files:
    """Return what a manifest says of a model's folder: its configuration and its versions.

    Hidden files and a server's own `traffic.toml` are left out.

    Raises:
        ModelNotLoadable: It has a link, or a file whose name can't be stored.
    """
    files = {}
    for path in _inside(folder):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink():
            raise ModelNotLoadable(f"{path}: a link; put the file itself here")
        if name != TRAFFIC_FILE and path.is_file():
            files[name] = RemoteFile(path.stat().st_size, model_hash(path).removeprefix("sha256:"))
    check_files(folder.name, files)
    return files


def unit_of(name: str) -> str:
    """Return of a file's name what is put in place and taken away as a whole: a version's folder, or the file."""
    return name.partition("/")[0]


def _inside(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if not path.name.startswith("."):
            yield path
            if path.is_dir() and not path.is_symlink():
                yield from _inside(path)

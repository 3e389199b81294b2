"""What is published in a repository that many machines share: `push` adds versions, `withdraw` takes one out."""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO
from pathlib import Path

from mqinfer.models.repository.manifest import MANIFEST, Files, Manifest, describe, unit_of
from mqinfer.models.repository.remote import Remote
from mqinfer.protocol.errors import ConfigError
from mqinfer.protocol.topics import check_name

_TRIES = 5


def push(folder: Path, url: str) -> list[str]:
    """Upload the versions of a model that a shared repository lacks, and its configuration; the manifest comes last.

    Versions that are only there stay. Somebody else's push at the same moment is merged with this one.

    Args:
        folder: Of the model.
        url: Address of the repository.

    Returns:
        The files that were uploaded, by their path below the model's folder.

    Raises:
        ConfigError: The repository has one of the versions, with another content.
        MqinferError: Something can't be read or written.
    """
    remote, model = Remote(url), check_name("model", folder.resolve().name)
    files = describe(folder)
    if not any("/" in name for name in files):
        raise ConfigError(f"{folder}: no version in it; expected the folder of a model, MODEL/VERSION/FILE")
    before = remote.manifest_or_none().models.get(model, {})
    lacking = [name for name, file in files.items() if before.get(name) != file]
    there = {unit_of(name) for name in before if "/" in name}
    if taken := sorted({unit_of(name) for name in lacking if "/" in name} & there):
        raise ConfigError(
            f"{remote.url} has version {', '.join(taken)} of {model} with another content; push it under a new number"
        )
    for name in lacking:
        with (folder / name).open("rb") as source:
            remote.upload(f"{model}/{name}", source)
    if describe(folder) != files:
        raise ConfigError(f"{folder}: its files changed while they were pushed; push it again when nobody writes there")
    _enter(remote, model, lambda there: {name: each for name, each in there.items() if "/" in name} | files)
    return lacking


def withdraw(url: str, model: str, version: int) -> None:
    """Take a version out of a shared repository, its configuration, too, if it was the last: workers stop serving it.

    Args:
        url: Address of the repository.
        model: Name of the model.
        version: Its number.

    Raises:
        ConfigError: There is no such version.
        MqinferError: Something can't be read or written.
    """
    remote = Remote(url)
    before = remote.manifest_or_none().models.get(model, {})
    versions = {unit_of(name) for name in before if "/" in name}
    gone = {each for each in versions if each.lstrip("0") == str(version)}
    if not gone:
        there = ", ".join(sorted(versions)) or "none"
        raise ConfigError(f"{remote.url}: no version {version} of model {model!r} in it; there are: {there}")
    kept = {} if gone == versions else {name: each for name, each in before.items() if unit_of(name) not in gone}
    lost = before.keys() - kept.keys()
    _enter(remote, model, lambda there: {name: each for name, each in there.items() if name not in lost})
    for name in lost:
        remote.remove(f"{model}/{name}")


def _enter(remote: Remote, model: str, change: Callable[[Files], Files]) -> None:
    """Change what the manifest says of a model, and read back whether somebody else wrote at the same moment."""
    for _ in range(_TRIES):
        now = remote.manifest_or_none().models
        wanted = change(now.get(model, {}))
        if now.get(model, {}) == wanted:
            return
        others = {name: files for name, files in now.items() if name != model}
        remote.upload(MANIFEST, BytesIO(Manifest(others | ({model: wanted} if wanted else {})).to_json()))
    raise ConfigError(f"{remote.url}/{MANIFEST}: others write it again and again; try again when they have finished")

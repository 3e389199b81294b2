"""Builds the JSON records of control replies: repository index, model configuration, statistics, as Triton names them.

https://github.com/triton-inference-server/server/tree/main/docs/protocol
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from msgspec import Struct, structs

from mqinfer.cloud_worker.supervision.child import Phase, ProcessView
from mqinfer.cloud_worker.supervision.statistics import ServerStatistics
from mqinfer.models.repository import Scan
from mqinfer.models.repository.config import ModelConfig, TensorConfig, VersionPolicy
from mqinfer.protocol.card import ImageContract, ModelCard
from mqinfer.protocol.control import Call, IndexEntry, ModelState
from mqinfer.protocol.datatypes import Datatype
from mqinfer.protocol.errors import ModelNotFound
from mqinfer.protocol.types import TensorSpec


def config_record(config: ModelConfig, card: ModelCard) -> dict[str, Any]:
    """Return a loaded model's configuration; what the configuration file leaves open comes from the model's card."""
    batched = card.max_batch_size > 0
    found = {
        "name": card.name,
        "platform": card.platform,
        "max_batch_size": card.max_batch_size,
        "version_policy": _policy(config.version_policy),
        "input": _tensors(card.inputs, config.input, card.pictures, batched=batched),
        "output": _tensors(card.outputs, config.output, batched=batched),
    }
    stated: dict[str, Any] = _plain(config)
    return stated | found


def _policy(policy: VersionPolicy) -> dict[str, Any]:
    if policy.specific:
        return {"specific": {"versions": list(policy.specific)}}
    return {"all": {}} if policy.all else {"latest": {"num_versions": policy.latest}}


def _tensors(
    specs: Sequence[TensorSpec],
    configured: Sequence[TensorConfig],
    pictures: Sequence[ImageContract] = (),
    *,
    batched: bool,
) -> list[dict[str, Any]]:
    stated = {each.name: each for each in configured}
    layouts = {each.input: each.layout for each in pictures}
    found = []
    for spec in specs:
        one = stated.get(spec.name, TensorConfig(spec.name))
        tensor: dict[str, Any] = {
            "name": spec.name,
            "data_type": f"TYPE_{'STRING' if spec.datatype is Datatype.BYTES else spec.datatype}",
            "dims": list(spec.shape[batched:]),
        }
        if layout := one.format or layouts.get(spec.name):
            tensor["format"] = f"FORMAT_{layout}"
        if one.reshape is not None:
            tensor["reshape"] = {"shape": list(one.reshape)}
        if one.label_filename:
            tensor["label_filename"] = one.label_filename
        found.append(tensor)
    return found


def _plain(value: Any) -> Any:
    """Convert dataclasses and Structs to JSON types; leave out empty fields."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Path):
        return value.name
    if isinstance(value, Struct) or is_dataclass(value):
        return _plain({name: item for name, item in _fields(value) if item not in (None, (), {})})
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def _fields(value: Any) -> list[tuple[str, Any]]:
    names = structs.fields(value) if isinstance(value, Struct) else fields(value)
    return [(each.name, getattr(value, each.name)) for each in names]


def statistics_record(found: ServerStatistics, call: Call) -> dict[str, Any]:
    """Return the statistics that a call requests: of all models, of one, or of one version.

    Raises:
        ModelNotFound: No process serves the model or version.
    """
    chosen = {
        (name, version): statistics
        for (name, version), statistics in sorted(found.models.items())
        if call.model in {"", name} and call.version in {None, str(version)}
    }
    if call.model and not chosen and not found.missing:
        raise ModelNotFound(f"model {call.model!r} or the requested version of it is not loaded on this server")
    reply: dict[str, Any] = {
        "model_stats": [statistics.to_record(name, str(version)) for (name, version), statistics in chosen.items()]
    }
    return reply | ({"unanswered": found.missing} if found.missing else {})


def index(scan: Scan, processes: Iterable[ProcessView]) -> list[IndexEntry]:
    """Return an entry for each model version in the repository or in a process, sorted by name and version."""
    views: dict[tuple[str, int], list[ProcessView]] = {(found.name, found.version): [] for found in scan.models}
    for view in processes:
        views.setdefault((view.spec.model, view.spec.version), []).append(view)
    entries = [_entry(name, version, found) for (name, version), found in views.items()]
    entries += [IndexEntry(each.model, "", ModelState.UNAVAILABLE, each.reason) for each in scan.problems]
    return sorted(entries, key=lambda entry: (entry.name, int(entry.version or -1)))


def _entry(name: str, version: int, views: Sequence[ProcessView]) -> IndexEntry:
    phases = {view.state for view in views}
    reason = "; ".join(sorted({view.reason for view in views if view.reason}))
    if Phase.READY in phases:
        return IndexEntry(name, str(version), ModelState.READY, reason)
    starting = Phase.STARTING in phases or (Phase.WAITING in phases and not reason)
    if starting:
        return IndexEntry(name, str(version), ModelState.LOADING, reason)
    if Phase.DRAINING in phases:
        return IndexEntry(name, str(version), ModelState.UNLOADING, reason)
    return IndexEntry(name, str(version), ModelState.UNAVAILABLE, reason or "not loaded")

"""A model's configuration as the Open Inference Protocol's model configuration extension gives it: Triton's keys.

https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_model_configuration.md
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from mqinfer.models.repository.config import ModelConfig, VersionPolicy
from mqinfer.protocol.card import ModelCard
from mqinfer.protocol.datatypes import Datatype
from mqinfer.protocol.types import TensorSpec

__all__ = ["config_record"]


def config_record(config: ModelConfig, card: ModelCard) -> dict[str, Any]:
    """Describe a loaded model's configuration; what the configuration leaves open is as the model was found to be.

    Args:
        config: From the repository.
        card: Of the loaded model.
    """
    batched = card.max_batch_size > 0
    found = {
        "name": card.name,
        "platform": card.platform,
        "max_batch_size": card.max_batch_size,
        "version_policy": _policy(config.version_policy),
        "input": _tensors(card.inputs, batched=batched),
        "output": _tensors(card.outputs, batched=batched),
    }
    stated: dict[str, Any] = _plain(config)
    return stated | found


def _policy(policy: VersionPolicy) -> dict[str, Any]:
    if policy.specific:
        return {"specific": {"versions": list(policy.specific)}}
    return {"all": {}} if policy.all else {"latest": {"num_versions": policy.latest}}


def _tensors(specs: Sequence[TensorSpec], *, batched: bool) -> list[dict[str, Any]]:
    return [
        {"name": spec.name, "data_type": _triton(spec.datatype), "dims": list(spec.shape[batched:])} for spec in specs
    ]


def _triton(datatype: Datatype) -> str:
    return "TYPE_STRING" if datatype is Datatype.BYTES else f"TYPE_{datatype}"


def _plain(value: Any) -> Any:
    """Turn dataclasses into what JSON has; what says nothing is left out."""
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value):
        items = {field.name: getattr(value, field.name) for field in fields(value)}
        return {key: _plain(item) for key, item in items.items() if item is not None and item not in ((), {})}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, Path):
        return value.name
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value

"""Writes a product's `model.toml`: the differences from the model's own configuration."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import structs

from mqinfer.lab.optimize.fusing import Fused
from mqinfer.models.repository import ModelVersion
from mqinfer.models.repository.config_files import CONFIG_FILE

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def override_toml(original: ModelVersion, fused: Fused, keys: Mapping[str, Any]) -> str:
    """Return the keys of a product merged over those of the original version, as TOML.

    Args:
        original: Version that the product was made from.
        fused: New image contract and outputs.
        keys: Keys of the product.
    """
    own = version_folder(original) / CONFIG_FILE
    layer: dict[str, Any] = tomllib.loads(own.read_text("utf-8")) if own.exists() else {}
    layer.pop("platform", None)
    layer |= keys
    if fused.image is not None:
        layer["image"] = {key: value for key, value in structs.asdict(fused.image).items() if value is not None}
        layer["input"] = []  # drop the settings of the float input
    if fused.argmax and original.config.output:
        layer["output"] = []  # drop the settings of the logits
    lines = [f"{_key(key)} = {as_toml(value)}\n" for key, value in layer.items()]
    return f"# Made by `mqinfer models optimize` from version {original.version}.\n{''.join(lines)}"


def version_folder(model: ModelVersion) -> Path:
    """Return the folder named after a version's number; the model is in it, or is the folder itself."""
    return next(each for each in (model.path, *model.path.parents) if _is_number(each.name, model.version))


def _is_number(name: str, number: int) -> bool:
    return name.isascii() and name.isdigit() and int(name) == number


def as_toml(value: Any) -> str:
    """Return a value as TOML on one line; only types that TOML and JSON share."""
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{_key(key)} = {as_toml(each)}' for key, each in value.items())} }}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(as_toml, value))}]"
    # JSON's strings, numbers, true and false are valid TOML, except that TOML requires DEL to be escaped.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else as_toml(key)

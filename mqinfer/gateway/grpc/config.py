"""A model's configuration as the message `ModelConfig`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mqinfer.gateway.grpc.messages import MESSAGES

__all__ = ["config_message"]


def config_message(config: Mapping[str, Any]) -> Any:
    """Return the message of a configuration; keys that Triton does not have are left out.

    Args:
        config: As servers report it, under Triton's keys.
    """
    from google.protobuf import json_format

    shaped = {key: _SHAPES[key](value) if key in _SHAPES else value for key, value in config.items()}
    return json_format.ParseDict(shaped, MESSAGES["ModelConfig"](), ignore_unknown_fields=True)


def _texts(value: Any) -> Any:
    return {key: str(each) for key, each in value.items()}


def _parameters(value: Any) -> Any:
    return {key: each if isinstance(each, dict) else {"string_value": str(each)} for key, each in value.items()}


def _steps(value: Any) -> Any:
    return {"step": value} if isinstance(value, list) else value


def _samples(value: Any) -> Any:
    samples = value.get("samples", []) if isinstance(value, dict) else value
    return [
        {**sample, "inputs": {name: _sample_input(each) for name, each in sample.get("inputs", {}).items()}}
        for sample in samples
    ]


def _sample_input(value: Any) -> Any:
    """Return an input of a warm-up sample with the one kind of data that it has."""
    kind = next((key for key in ("input_data_file", "random_data") if value.get(key)), "zero_data")
    data_type = str(value.get("data_type", "TYPE_INVALID"))
    name = data_type if data_type.startswith("TYPE_") else f"TYPE_{'STRING' if data_type == 'BYTES' else data_type}"
    return {"data_type": name, "dims": value.get("dims", []), kind: value.get(kind, True)}


def _optimization(value: Any) -> Any:
    kinds = {kind: value[kind] for kind in ("gpu", "cpu") if kind in value}
    if not kinds:
        return value
    return {
        "execution_accelerators": {
            f"{kind}_execution_accelerator": [
                {**each, "parameters": _texts(each.get("parameters", {}))} for each in accelerators
            ]
            for kind, accelerators in kinds.items()
        }
    }


_SHAPES: Mapping[str, Callable[[Any], Any]] = {  # of keys that servers report in a form of their own
    "parameters": _parameters,
    "ensemble_scheduling": _steps,
    "model_warmup": _samples,
    "optimization": _optimization,
}

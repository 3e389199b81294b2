"""A model's configuration as the message `ModelConfig`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mqinfer.gateway.grpc.messages import MESSAGES

__all__ = ["config_message"]


def config_message(config: Mapping[str, Any]) -> Any:
    """Return the message of a configuration in Triton's form; keys that Triton does not have are left out."""
    from google.protobuf import json_format

    return json_format.ParseDict(config, MESSAGES["ModelConfig"](), ignore_unknown_fields=True)

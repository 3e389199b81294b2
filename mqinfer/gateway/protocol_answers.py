"""What both fronts of the Open Inference Protocol answer about features of Triton that a gateway has in part or not.

Sentences are Triton's where it has one for the event.
"""

from __future__ import annotations

import logging
from collections.abc import Collection

from mqinfer.gateway.errors import Unsupported

__all__ = ["EXTENSIONS", "NO_NAMED_REPOSITORY", "NO_SHARED_MEMORY", "log_settings", "trace_settings"]

EXTENSIONS = (
    "classification",
    "model_repository",
    "model_configuration",
    "schedule_policy",
    "binary_tensor_data",
    "parameters",
    "statistics",
    "trace",
    "logging",
)
"""Of the protocol, as Triton names them."""

NO_SHARED_MEMORY = "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable."
"""Triton's sentence; a gateway and its workers are on other machines than its clients, so no option turns it on."""

NO_NAMED_REPOSITORY = "'repository_name' specification is not supported"


def trace_settings(changes: Collection[str] = ()) -> dict[str, str]:
    """Return the trace settings: Triton's defaults, since its traces are not made here.

    Args:
        changes: Names of the settings that the caller wants to change.

    Raises:
        Unsupported: There are any.
    """
    if "trace_file" in changes:
        raise Unsupported("trace file location can not be updated through network protocol")
    if changes:
        raise Unsupported(f"the trace settings {_named(changes)} can't be changed; traces are an option of the gateway")
    return {
        "trace_level": "OFF",
        "trace_rate": "1000",
        "trace_count": "-1",
        "log_frequency": "0",
        "trace_file": "",
        "trace_mode": "triton",
    }


def log_settings(changes: Collection[str] = ()) -> dict[str, bool | int | str]:
    """Return what the gateway logs, under Triton's names.

    Args:
        changes: Names of the settings that the caller wants to change.

    Raises:
        Unsupported: There are any.
    """
    if "log_file" in changes:
        raise Unsupported("log file location can not be updated through network protocol")
    if changes:
        raise Unsupported(f"the log settings {_named(changes)} can't be changed; start the gateway with --log-level")
    level = logging.getLogger("mqinfer").getEffectiveLevel()
    return {
        "log_file": "",
        "log_info": level <= logging.INFO,
        "log_warning": level <= logging.WARNING,
        "log_error": level <= logging.ERROR,
        "log_verbose_level": int(level <= logging.DEBUG),
        "log_format": "default",
    }


def _named(changes: Collection[str]) -> str:
    return ", ".join(sorted(changes))[:200]

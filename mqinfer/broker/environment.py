"""The environment variables that the command line and the clients' `from_env` read."""

from __future__ import annotations

from enum import StrEnum


class Variable(StrEnum):
    """Where a process finds its broker, and who it is there."""

    BROKER = "MQINFER_BROKER"
    NAME = "MQINFER_NAME"
    CA_FILE = "MQINFER_CA_FILE"
    CERT_FILE = "MQINFER_CERT_FILE"
    KEY_FILE = "MQINFER_KEY_FILE"
    PASSWORD = "MQINFER_PASSWORD"  # noqa: S105 - the name of a variable
    PASSWORD_FILE = "MQINFER_PASSWORD_FILE"  # noqa: S105 - the name of a variable

"""Managing servers over MQTT: the calls of the Open Inference Protocol, and what the answers are made of.

A server is a supervisor with its worker processes. The rest of a control topic, behind the server's and the client's
name, is the path that the protocol's REST form has behind `v2/`; `server` stands for `v2` itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from mqinfer.protocol.errors import BadTopic
from mqinfer.protocol.names import check_name, check_version

__all__ = ["Call", "IndexEntry", "ModelState", "Operation", "read_path"]


class Operation(StrEnum):
    """What a server can be asked; the values are the paths."""

    SERVER = "server"
    LIVE = "health/live"
    READY = "health/ready"
    INDEX = "repository/index"
    LOAD = "repository/models/{model}/load"
    UNLOAD = "repository/models/{model}/unload"
    METADATA = "models/{model}"
    MODEL_READY = "models/{model}/ready"
    CONFIG = "models/{model}/config"
    STATS = "models/{model}/stats"
    ALL_STATS = "models/stats"


_ALONE = {operation.value: operation for operation in Operation if "{" not in operation}
_OF_MODEL = {
    None: Operation.METADATA,
    "ready": Operation.MODEL_READY,
    "config": Operation.CONFIG,
    "stats": Operation.STATS,
}
_OF_REPOSITORY = {"load": Operation.LOAD, "unload": Operation.UNLOAD}


@dataclass(frozen=True, slots=True)
class Call:
    """A question or an order to a server.

    Attributes:
        operation: Which.
        model: Whom it is about; empty where it is about no model.
        version: Of the model; None for the default one, or for all.
    """

    operation: Operation
    model: str = ""
    version: str | None = None

    @property
    def path(self) -> str:
        """What stands in the topic behind the client's name."""
        model = self.model if self.version is None else f"{self.model}/versions/{check_version(self.version)}"
        return self.operation.format(model=model)


def read_path(levels: Sequence[str]) -> Call:
    """Read the levels of a control topic behind the client's name.

    Raises:
        BadTopic: There is no such operation, or a name or version breaks the rules.
    """
    alone = _ALONE.get("/".join(levels))
    if alone is not None:
        return Call(alone)
    match levels:
        case ["repository", "models", model, verb] if verb in _OF_REPOSITORY:
            return Call(_OF_REPOSITORY[verb], check_name("model", model))
        case ["models", model, "versions", version, *rest] if _verb(rest) in _OF_MODEL:
            return Call(_OF_MODEL[_verb(rest)], check_name("model", model), check_version(version))
        case ["models", model, *rest] if _verb(rest) in _OF_MODEL:
            return Call(_OF_MODEL[_verb(rest)], check_name("model", model))
    known = ", ".join(operation for operation in Operation)
    raise BadTopic(f"{'/'.join(levels)[:200]!r} is no control operation; there are: {known}")


def _verb(rest: Sequence[str]) -> str | None:
    return "/".join(rest) if rest else None


class ModelState(StrEnum):
    """The Open Inference Protocol's states of a model version."""

    READY = "READY"
    UNAVAILABLE = "UNAVAILABLE"
    LOADING = "LOADING"
    UNLOADING = "UNLOADING"


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """One line of a repository's index.

    Attributes:
        name: The model.
        version: Empty where the folder has none that could be served.
        state: Whether it serves.
        reason: Why it does not, or why the last attempt to load it anew failed.
    """

    name: str
    version: str
    state: ModelState
    reason: str = ""

    def to_record(self) -> dict[str, str]:
        """Make what stands in the JSON."""
        return {"name": self.name, "version": self.version, "state": self.state, "reason": self.reason}

"""Who may call what."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

__all__ = ["Access", "Right"]


class Right(StrEnum):
    """Groups of calls, named as Triton's restricted protocols are."""

    HEALTH = "health"
    METADATA = "metadata"
    INFERENCE = "inference"
    MODEL_CONFIG = "model-config"
    MODEL_REPOSITORY = "model-repository"
    STATISTICS = "statistics"
    SHARED_MEMORY = "shared-memory"
    TRACE = "trace"
    LOGGING = "logging"


class Access:
    """Decides about calls; thread-safe."""

    def admit(self, right: Right, headers: Mapping[str, str], peer: str) -> str:  # noqa: ARG002 - part of the seam
        """Return the name of the caller, by which callers take turns, if the call is allowed.

        Args:
            right: What it calls.
            headers: Headers of HTTP or metadata of gRPC, with lower-case names.
            peer: Address of the connection.

        Raises:
            Unauthenticated: It has no credentials, or wrong ones.
            NotAuthorized: It may not call this.
        """
        return peer

"""`mqinfer bench`."""

from __future__ import annotations

__all__ = ["bench"]


def bench() -> None:
    """Measure the path against a bare gRPC server and a loop in the process, side by side."""

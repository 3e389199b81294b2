"""The sentences that overlays and annotations show."""

from __future__ import annotations

from mqinfer.bags.frame import Frame
from mqinfer.client.result import InferResult

__all__ = ["caption", "stamp"]


def stamp(nanoseconds: int) -> str:
    """Write a time as seconds with all nine decimals, as ROS does."""
    return f"{nanoseconds // 1_000_000_000}.{nanoseconds % 1_000_000_000:09d}"


def caption(frame: Frame, result: InferResult) -> str:
    """Say in one line of plain ASCII what answered, for which frame, how it ended and how long it took."""
    words = [
        f"{result.model_name} {result.model_version}".strip(),
        f"frame {frame.sequence}",
        stamp(frame.capture_time_ns),
        str(result.outcome),
    ]
    if result.worker:
        words.append(result.worker)
    if result.timings.total:
        words.append(f"{result.timings.total / 1e6:.1f} ms")
    if result.error:
        code = "" if result.error.code == result.outcome else f"{result.error.code}: "
        words.append(code + result.error.message)
    return " | ".join(words)

"""The stages of a frame, from its reading to its outcome, by the names under which their times are recorded."""

from __future__ import annotations

from enum import StrEnum

from msgspec.structs import fields

from mqinfer.protocol.types import Timings

__all__ = ["REQUEST_STAGES", "STAGES", "EdgeStage", "LinkStage"]

REQUEST_STAGES = tuple(stage.name for stage in fields(Timings))


class EdgeStage(StrEnum):
    """The stages of a frame before it becomes a request; `Timings` names the later ones."""

    READ = "edge_read"
    QUEUE = "edge_queue"
    """Read, and waits for room in its stream's window."""
    COMPARE = "edge_compare"
    """Made small, and compared with an earlier frame, by a cascade."""
    SMALL = "edge_small"
    """At the small model of a cascade, wherever that runs."""
    DEMOSAIC = "edge_demosaic"
    RESIZE = "edge_resize"
    ENCODE = "edge_encode"
    OTHER = "edge_other"
    """Rest of preparing: what the stages before do not name."""
    SPOOL = "edge_spool"
    """Prepared, and handed to the client at once, or when the spool has sent it."""


class LinkStage(StrEnum):
    """The stages of a request that `Timings` does not name."""

    UP = "transmission_up"
    DOWN = "transmission_down"
    SERVER_OTHER = "server_other"
    """Rest of the worker's time: what its stages do not name."""
    UNANSWERED = "unanswered"
    """From its submission to an outcome without a reply."""
    SETTLE = "settle"
    """From the reply to the outcome: its outputs are decoded."""


STAGES: tuple[str, ...] = (*EdgeStage, *REQUEST_STAGES, *LinkStage)
"""Every stage: those of the edge and of `Timings` in the order in which a frame passes through them."""

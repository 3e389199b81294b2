"""Results of other clients, as they come: what a recorder or a monitor of a fleet builds on."""

from mqinfer.client.watching.seen import DropReason, SeenPreview, SeenResult, WatchCounters
from mqinfer.client.watching.watch import AsyncWatch, Watch, Watches, WatchOptions

__all__ = [
    "AsyncWatch",
    "DropReason",
    "SeenPreview",
    "SeenResult",
    "Watch",
    "WatchCounters",
    "WatchOptions",
    "Watches",
]

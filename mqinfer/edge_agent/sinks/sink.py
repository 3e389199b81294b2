"""The contract of a sink, and what sinks share: file names, and one error for a file that cannot be written."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from mqinfer.bags.frame import Frame
from mqinfer.bags.repair import is_unfinished, repair
from mqinfer.client.result import InferResult
from mqinfer.edge_agent.frames.view import FrameView
from mqinfer.protocol.errors import SourceError

log = logging.getLogger("mqinfer.edge_agent")

_MOST_NUMBERED = 60
"""Characters of a name that gets a number: a level of a topic has at most 64."""


class Sink(Protocol):
    """Keeps results. Called from one thread, in the order in which the frames of a stream were read."""

    def write(self, frame: Frame, view: FrameView, result: InferResult) -> None:
        """Keep one result, whatever its outcome.

        Args:
            frame: As it was read.
            view: Its pixels, and the outputs of the result in them.
            result: The outcome.
        """

    def close(self) -> tuple[Path, ...]:
        """Finish the files, and return their paths."""


@dataclass(frozen=True, slots=True)
class Earlier:
    """What a run that goes on has of the earlier one.

    Attributes:
        model_hash: Hash of the model that answered; empty where none did.
        count: Frames that have their result.
    """

    model_hash: str = ""
    count: int = 0


def repair_earlier(path: Path) -> None:
    """Repair an MCAP file of an earlier run that was killed, in its place; one that can't be repaired stays as it is.

    Raises:
        OSError: It cannot be read, or the repaired one cannot take its place.
    """
    if not is_unfinished(path):
        return
    repaired = path.with_suffix(".new.mcap")
    try:
        repaired.unlink(missing_ok=True)
        found = repair(path, repaired)
    except SourceError as error:
        repaired.unlink(missing_ok=True)
        log.warning("%s of a run that was killed stays as it is: %s", path, error)
        return
    if found.damaged_chunks:  # more than a cut: nothing of the original may be lost
        repaired.unlink()
        log.warning("%s stays as it is: %d chunks are damaged; run: mqinfer bag repair", path, found.damaged_chunks)
        return
    repaired.replace(path)
    log.warning("%s of a run that was killed is repaired: %d messages", path, found.messages)


def file_name(source: str) -> str:
    """Return the part of a file name for a stream (`/camera/image_raw`): 100 letters, digits, `.`, `_` and `-`."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", source).strip("-.")[:100] or "stream"


class StreamNames:
    """Makes other names from those of streams, such as parts of file names; no two streams share one.

    Args:
        plain: Makes a name, which two streams may share.
        separator: Stands between it and a number where they do.
    """

    def __init__(self, plain: Callable[[str], str] = file_name, separator: str = "-") -> None:
        self._plain, self._separator = plain, separator
        self._names: dict[str, str] = {}

    def of(self, source: str) -> str:
        """Return the name for a stream."""
        if source not in self._names:
            plain = self._plain(source)
            taken = set(self._names.values())
            start = plain[:_MOST_NUMBERED].rstrip("/_")  # ROS 2 takes no "__" in a topic
            numbered = (f"{start}{self._separator}{number}" for number in range(2, len(taken) + 3))
            self._names[source] = plain if plain not in taken else next(name for name in numbered if name not in taken)
        return self._names[source]

"""What an edge published of its frames beside their requests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class PublishedCounts:
    """Previews, or answers in words, since the start.

    Attributes:
        published: How many were published.
        dropped: How many were due and not published, by reason.
        cut: How many lack a part, which would have made them too large, by part.
    """

    published: int = 0
    dropped: Mapping[Any, int] = field(default_factory=dict)
    cut: Mapping[str, int] = field(default_factory=dict)

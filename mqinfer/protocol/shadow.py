"""What a worker counts of the copies that a shadow version gets, in counters named after that version."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from msgspec import Struct, field

_PREFIX = "shadow_"


class ShadowCounts(Struct):
    """What became of the copies that one shadow version got.

    Attributes:
        agreed: Answers that agreed with those of the version beside it.
        differed: Answers that did not.
        failed: Copies that got an error, by its code.
        dropped: Copies that were not made, or for which there was no room, by reason.
        own_ns: Time of its answers from receipt to reply, all together, in nanoseconds.
        beside_ns: Time of the answers of the version beside it to the same requests.
    """

    agreed: int = 0
    differed: int = 0
    failed: dict[str, int] = field(default_factory=dict)
    dropped: dict[str, int] = field(default_factory=dict)
    own_ns: int = 0
    beside_ns: int = 0

    @property
    def requests(self) -> int:
        """Copies that the shadow had to answer."""
        return self.agreed + self.differed + sum(self.failed.values())


def counter(version: int, what: str, reason: str = "") -> str:
    """Return the name of a counter: what is a field of `ShadowCounts`, with a code or reason where that has several."""
    return f"{_PREFIX}{version}_{what}{reason and '_'}{reason}"


def is_of_shadow(name: str) -> bool:
    """Return whether a counter is one of a shadow version."""
    return name.startswith(_PREFIX)


def read_shadows(counters: Mapping[str, int]) -> dict[str, ShadowCounts]:
    """Return what counters hold of shadows, by version."""
    found: defaultdict[str, ShadowCounts] = defaultdict(ShadowCounts)
    for name in filter(is_of_shadow, counters):
        version, _, what = name.removeprefix(_PREFIX).partition("_")
        kind, _, reason = what.partition("_")
        if kind in {"failed", "dropped"}:
            getattr(found[version], kind)[reason] = counters[name]
        elif what in {"agreed", "differed", "own_ns", "beside_ns"}:
            setattr(found[version], what, counters[name])
    return dict(found)

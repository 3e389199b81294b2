"""Builds what a scrape returns; prometheus-client is imported here and in `endpoint` alone, once there is a scrape.

Nothing is measured for a scrape: collectors read the counters that the programs keep anyway.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prometheus_client.core import Metric

PREFIX = "mqinfer_"
_FIRST, _LAST = 14, 36
"""Powers of two of nanoseconds that bound the buckets of durations: 16 microseconds to 69 seconds."""
BUCKETS = tuple(range(_FIRST, _LAST + 1))


class Samples:
    """Samples of one scrape, by family, under Prometheus' rules for names: base units, and `_total` behind counters."""

    def __init__(self) -> None:
        self._families: dict[str, Metric] = {}

    def families(self) -> list[Metric]:
        """Return what was added."""
        return list(self._families.values())

    def count(self, name: str, text: str, value: float, **labels: str) -> None:
        """Add a sample of a counter, which never decreases; its name gets `_total`."""
        self._family(name, "counter", text).add_sample(f"{PREFIX}{name}_total", labels, value)

    def gauge(self, name: str, text: str, value: float, **labels: str) -> None:
        """Add a sample of a gauge."""
        self._family(name, "gauge", text).add_sample(f"{PREFIX}{name}", labels, value)

    def durations(self, name: str, text: str, counts: Sequence[int], total_ns: int, **labels: str) -> None:
        """Add a histogram of durations in seconds.

        Args:
            name: Without `_seconds`.
            text: Its help.
            counts: At index n the durations of n bits, in nanoseconds: those from 2**(n - 1) up to below 2**n.
            total_ns: Their sum, in nanoseconds.
            **labels: Of the series.
        """
        bounds = {2**power / 1e9: sum(counts[: power + 1]) for power in BUCKETS}
        self.histogram(f"{name}_seconds", text, bounds, sum(counts), total_ns / 1e9, **labels)

    def histogram(
        self, name: str, text: str, bounds: Mapping[float, int], count: int, total: float, **labels: str
    ) -> None:
        """Add a histogram.

        Args:
            name: Of the family.
            text: Its help.
            bounds: How many values are at most so large.
            count: How many there are.
            total: Their sum.
            **labels: Of the series.
        """
        family, full = self._family(name, "histogram", text), f"{PREFIX}{name}"
        for bound, below in bounds.items():
            family.add_sample(f"{full}_bucket", {**labels, "le": repr(float(bound))}, below)
        family.add_sample(f"{full}_bucket", {**labels, "le": "+Inf"}, count)
        family.add_sample(f"{full}_count", labels, count)
        family.add_sample(f"{full}_sum", labels, total)

    def foreign(self, name: str, text: str, value: float, **labels: str) -> None:
        """Add a sample under a name that another project chose, which may break the rules."""
        self._family(name, "unknown", text, prefix="").add_sample(name, labels, value)

    def _family(self, name: str, kind: str, text: str, prefix: str = PREFIX) -> Metric:
        from prometheus_client.core import Metric

        family = self._families.get(name)
        if family is None:
            family = self._families[name] = Metric(prefix + name, text, kind)
        return family

"""Percentiles of durations in bounded memory, with a stated error: log-linear buckets, as in HdrHistogram.

Below 128 ns every value has its own bucket; above, each power of two is split into 64 buckets of equal width
(https://github.com/HdrHistogram/HdrHistogram describes the scheme). A percentile is the middle of its bucket, so
it is wrong by at most 1/128 (0.8 %) of the value, over the whole run and not over a sample of it. A duration of up
to a year fits into fewer than 3200 buckets, and only those that were hit take memory.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

_MANTISSA_BITS = 6
_BUCKETS_PER_OCTAVE = 1 << _MANTISSA_BITS


@dataclass(frozen=True, slots=True)
class Percentiles:
    """What the displays and the summary show of a distribution; nanoseconds, None where nothing was recorded."""

    p50: int | None = None
    p95: int | None = None
    p99: int | None = None


class Histogram:
    """Counts durations. Not thread-safe: whoever shares one holds a lock.

    Attributes:
        count: How many durations were recorded.
        total: Their sum, in nanoseconds.
    """

    __slots__ = ("_buckets", "_maximum", "_minimum", "count", "total")

    def __init__(self) -> None:
        self._buckets: Counter[int] = Counter()
        self.count = self.total = 0
        self._minimum = self._maximum = 0

    def add(self, nanoseconds: int) -> None:
        """Record one duration; a negative one (a clock that was set back) counts as 0."""
        value = max(nanoseconds, 0)
        self._minimum = min(self._minimum, value) if self.count else value
        self._maximum = max(self._maximum, value)
        shift = max(value.bit_length() - _MANTISSA_BITS - 1, 0)
        self._buckets[(shift << _MANTISSA_BITS) + (value >> shift)] += 1  # `_middle` is its inverse
        self.count += 1
        self.total += value

    def merge(self, other: Histogram) -> None:
        """Add everything that another histogram recorded."""
        if not other.count:
            return
        self._minimum = min(self._minimum, other._minimum) if self.count else other._minimum
        self._maximum = max(self._maximum, other._maximum)
        self._buckets.update(other._buckets)
        self.count += other.count
        self.total += other.total

    def percentile(self, percent: float) -> int | None:
        """Return the nearest-rank percentile in nanoseconds, within 1/128; None where nothing was recorded.

        Args:
            percent: Above 0, up to 100. The smallest and the largest duration are kept, so 100 is exact.
        """
        rank = percent / 100 * self.count
        seen = 0
        for bucket in sorted(self._buckets):
            seen += self._buckets[bucket]
            if seen >= rank:
                return self._maximum if seen == self.count else max(self._minimum, _middle(bucket))
        return None

    def lengths(self) -> list[int]:
        """Return at index n how many durations have n bits; `Samples.durations` takes it."""
        found: Counter[int] = Counter()
        for bucket, count in self._buckets.items():
            found[_middle(bucket).bit_length()] += count
        return [found[bits] for bits in range(max(found, default=0) + 1)]

    def percentiles(self) -> Percentiles:
        """Return the three percentiles that are shown everywhere."""
        return Percentiles(self.percentile(50), self.percentile(95), self.percentile(99))


def _middle(bucket: int) -> int:
    """Return the value in the middle of a bucket; the inverse of `add` to within half a bucket's width."""
    shift = max(bucket // _BUCKETS_PER_OCTAVE - 1, 0)
    return (bucket - shift * _BUCKETS_PER_OCTAVE << shift) + (1 << shift >> 1)

"""What happened over a run, in a bounded number of spans of time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import zip_longest

from mqinfer.protocol.types import Outcome

_MOST_SPANS = 120
_SHORTEST_S = 0.25
_MOST_ENDINGS = 12
_LONGEST_ENDING = 80
"""Codes of errors come from outside, so number and length are bounded; the others are counted together."""
OTHER = "other"


@dataclass(slots=True)
class TimeBin:
    """What ended within one span of time.

    Attributes:
        outcomes: Frames by what they ended as: an outcome, or the code of an error.
        stages: Nanoseconds by stage, summed over the frames with a result.
    """

    outcomes: Counter[str] = field(default_factory=Counter)
    stages: Counter[str] = field(default_factory=Counter)

    @property
    def answered(self) -> int:
        """Frames with a result."""
        return self.outcomes[Outcome.OK]

    def merge(self, other: TimeBin) -> TimeBin:
        """Return both in one."""
        return TimeBin(self.outcomes + other.outcomes, self.stages + other.stages)


class Series:
    """Equal spans of time from the start of a run, at most 120; each time they run out, two become one.

    Attributes:
        spans: Up to the last one in which a frame ended.
        seconds: Length of each.
    """

    def __init__(self) -> None:
        self.spans: list[TimeBin] = []
        self.seconds = _SHORTEST_S
        self._endings = {str(Outcome.OK)}

    def add(self, at: float, ended_as: str, stages: Mapping[str, int]) -> None:
        """Count a frame.

        Args:
            at: When it ended, in seconds from the start of the run.
            ended_as: Its outcome, or the code of its error.
            stages: Nanoseconds by stage; of frames with a result.
        """
        while at >= self.seconds * _MOST_SPANS:
            pairs = zip_longest(self.spans[::2], self.spans[1::2], fillvalue=TimeBin())
            self.spans = [first.merge(second) for first, second in pairs]
            self.seconds *= 2
        index = int(at / self.seconds)
        while len(self.spans) <= index:
            self.spans.append(TimeBin())
        ended_as = ended_as[:_LONGEST_ENDING]
        if ended_as not in self._endings and len(self._endings) >= _MOST_ENDINGS:
            ended_as = OTHER
        self._endings.add(ended_as)
        span = self.spans[index]
        span.outcomes[ended_as] += 1
        if ended_as == Outcome.OK:
            span.stages.update(stages)

    def total(self) -> TimeBin:
        """Return all spans in one."""
        total = TimeBin()
        for span in self.spans:
            total = total.merge(span)
        return total

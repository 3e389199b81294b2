"""One moving average for all times and sizes that are smoothed. Pure.

Where each request passes, in a client's lane, a stream's window and a worker's meter, it is written out with the same
weight: a call for each would cost more.
"""

from __future__ import annotations

WEIGHT = 0.2
"""Weight of the newest reading: about the last five count."""


def smoothed(average: float, reading: float, weight: float = WEIGHT) -> float:
    """Return `average + weight * (reading - average)`, or the reading where there is no average yet: it is 0.

    Args:
        average: Of the readings before.
        reading: The newest one.
        weight: Its weight.
    """
    return average + weight * (reading - average) if average else reading

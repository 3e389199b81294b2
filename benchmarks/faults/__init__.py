"""Faults on demand: worker processes to kill, load with its outcomes counted, and a soak.

The tests in `tests/faults` are made of these parts; `python -m benchmarks soak` runs them for as long as asked.
"""

from benchmarks.faults.soak import Figure, as_markdown
from benchmarks.faults.traffic import EchoTraffic, RequestRecord, beside
from benchmarks.faults.workers import MODEL, Workers

__all__ = [
    "MODEL",
    "EchoTraffic",
    "Figure",
    "RequestRecord",
    "Workers",
    "as_markdown",
    "beside",
]

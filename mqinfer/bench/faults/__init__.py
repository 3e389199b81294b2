"""Faults on demand: worker processes to kill, a network to break, load with its outcomes counted, and a soak.

The tests in `tests/faults` are made of these parts; `mqinfer bench soak` runs them for as long as asked.
"""

from mqinfer.bench.faults.figures import Figure, as_markdown
from mqinfer.bench.faults.proxy import FaultProxy, Faults
from mqinfer.bench.faults.traffic import RequestRecord, Traffic
from mqinfer.bench.faults.watching import Peak, beside, open_files, resident_bytes
from mqinfer.bench.faults.workers import MODEL, Workers

__all__ = [
    "MODEL",
    "FaultProxy",
    "Faults",
    "Figure",
    "Peak",
    "RequestRecord",
    "Traffic",
    "Workers",
    "as_markdown",
    "beside",
    "open_files",
    "resident_bytes",
]

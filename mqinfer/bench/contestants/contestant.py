"""The contract of a contestant: one way from a caller to one ONNX model and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from mqinfer.lab.load import Drive
from mqinfer.protocol.datatypes import Array


class Contestant(Protocol):
    """One way to the model: it is made once the model answers, then come any number of drives, then `close`."""

    @property
    def name(self) -> str:
        """As in the tables."""

    def infer(self) -> Mapping[str, Array]:
        """Ask once, for the check that all contestants give the same outputs."""

    def drive(self, callers: int, seconds: float) -> Drive:
        """Send requests: each caller sends the next one once it has the result of its last.

        Args:
            callers: How many at a time.
            seconds: After this time no request starts; the last results are waited for.
        """

    def pids(self) -> Mapping[str, int]:
        """Processes beside this one that take part, by role (`server`, `broker`)."""

    def close(self) -> None:
        """Stop the processes."""

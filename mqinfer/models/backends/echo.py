"""Return inputs as outputs, without an engine: for tests, demonstrations, and measuring everything else."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mqinfer._version import __version__
from mqinfer.models.backend import Backend
from mqinfer.models.load_options import LoadOptions
from mqinfer.models.repository.tables import read_toml, table_of
from mqinfer.protocol.datatypes import Array
from mqinfer.protocol.errors import ConfigError, ModelFailed, ModelNotLoadable
from mqinfer.protocol.types import Count, TensorSpec


class EchoBackend:
    """A back end that returns every input, or some of them, under its own name.

    Args:
        inputs: Names, datatypes and shapes.
        output: Names of the inputs that it returns; empty for all.
        delay_s: Duration of a run, in seconds; `close` ends it early.
        fail_every: Every n-th run raises ModelFailed; 0: none.
        die_on: A run whose first input begins with this value kills the process, like a crash of an engine; 0: none.
    """

    platform = "mqinfer_echo"
    engine = f"mqinfer {__version__}"
    device = "cpu"
    precision = "fp32"
    concurrency = 1
    has_independent_rows = True

    def __init__(
        self,
        inputs: Sequence[TensorSpec],
        output: Collection[str] = (),
        *,
        delay_s: float = 0.0,
        fail_every: int = 0,
        die_on: int = 0,
    ) -> None:
        self.inputs = tuple(inputs)
        self.outputs = tuple(spec for spec in self.inputs if not output or spec.name in output)
        self._delay_s = delay_s
        self._fail_every = fail_every
        self._die_on = die_on
        self._runs = 0
        self._closed = threading.Event()

    def infer(self, inputs: Mapping[str, Array], outputs: Sequence[str] = ()) -> dict[str, Array]:
        """Return the inputs after the delay.

        Raises:
            ModelFailed: This is an n-th run, an input is missing, or the back end is closed.
        """
        self._runs += 1
        if self._die_on and _first(inputs) == self._die_on:
            os.kill(os.getpid(), signal.SIGKILL)
        if self._closed.wait(self._delay_s):
            raise ModelFailed("the echo back end is closed")
        if self._fail_every and self._runs % self._fail_every == 0:
            raise ModelFailed(f"run {self._runs} of the echo back end fails, since fail_every = {self._fail_every}")
        try:
            return {name: inputs[name] for name in outputs or [spec.name for spec in self.outputs]}
        except KeyError as error:
            raise ModelFailed(f"the echo back end has no input {error}") from error

    def close(self) -> None:
        """End a run that is waiting."""
        self._closed.set()


def _first(inputs: Mapping[str, Array]) -> object:
    """Return the first value of the first input."""
    return next((array.flat[0] for array in inputs.values() if array.size), None)


@dataclass(frozen=True, slots=True)
class _EchoFile:
    input: tuple[TensorSpec, ...] = ()
    output: tuple[str, ...] = ()
    delay_ms: float = 0.0
    fail_every: Count = 0
    die_on: Count = 0


_DESCRIPTION = table_of(_EchoFile)


def load(path: Path, options: LoadOptions) -> Backend:  # noqa: ARG001 - every loader gets the options
    """Load a `model.echo` file.

    It is TOML: a `[[input]]` table (`name`, `datatype`, `shape` with its batch axis) for every input, and
    optionally `output` (names of the inputs that it returns), `delay_ms`, `fail_every` and `die_on`.

    Raises:
        ModelNotLoadable: The file is no TOML or has other keys.
    """
    try:
        file: _EchoFile = read_toml(path, _DESCRIPTION)
    except ConfigError as error:
        raise ModelNotLoadable(str(error)) from error
    if not file.input:
        raise ModelNotLoadable(f"{path}: no input; expected at least one [[input]] table")
    if unknown := set(file.output) - {spec.name for spec in file.input}:
        raise ModelNotLoadable(f"{path}: output {', '.join(sorted(unknown))} is none of its inputs")
    return EchoBackend(
        file.input, file.output, delay_s=file.delay_ms / 1000, fail_every=file.fail_every, die_on=file.die_on
    )

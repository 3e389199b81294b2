"""Run a worker inside the process, for `--local`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from mqinfer.broker.address import BrokerAddress
from mqinfer.cloud_worker.serving.options import WorkerOptions
from mqinfer.cloud_worker.supervision.planning import plan
from mqinfer.cloud_worker.supervision.process import ProcessSpec, serve
from mqinfer.models.repository import Repository
from mqinfer.protocol.errors import ModelNotFound
from mqinfer.protocol.topics import Topics

if TYPE_CHECKING:
    from mqinfer.telemetry.tracer import Tracer

__all__ = ["local_worker"]


@contextmanager
def local_worker(
    repository: Path,
    model: str,
    version: str | None,
    broker: BrokerAddress,
    topics: Topics,
    tracer: Tracer | None = None,
) -> Iterator[None]:
    """Serve one model on an in-memory broker while the body runs.

    Raises:
        ModelNotFound: The repository has no such model or version.
        ModelNotLoadable: The model cannot be loaded.
    """
    template = ProcessSpec(repository, model, 0, broker, WorkerOptions(f"local-{model}", topics))
    specs = plan(Repository(repository), template, [model], instances=1)
    default = [spec for spec in specs if spec.found and spec.found.is_default]
    chosen = default if version is None else [spec for spec in specs if str(spec.version) == version]
    if not chosen:
        versions = ", ".join(str(spec.version) for spec in specs)
        raise ModelNotFound(
            f"repository {repository} serves no version {version} of model {model!r}; it has: {versions}"
        )
    worker = serve(chosen[0], tracer)
    try:
        yield
    finally:
        worker.stop()

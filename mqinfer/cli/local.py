"""Run a worker inside the process, for `--local`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from secrets import token_hex
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


def local_address() -> BrokerAddress:
    """Return the address of a new in-memory broker; it takes no login, whatever there is."""
    return BrokerAddress.parse(f"memory://local-{token_hex(4)}")


def versions_of(models: Sequence[str]) -> dict[str, list[str | None]]:
    """Return the versions that are asked for by name, None for the default one, of `name` and `name/version`."""
    found: dict[str, list[str | None]] = {}
    for each in models:
        name, _, version = each.partition("/")
        found.setdefault(name, []).append(version or None)
    return found


@contextmanager
def local_versions(
    repository: Path,
    model: str,
    wanted: Sequence[str | None],
    broker: BrokerAddress,
    topics: Topics,
    tracer: Tracer | None = None,
) -> Iterator[None]:
    """Serve some versions of a model on an in-memory broker while the body runs.

    Args:
        repository: Has the model.
        model: Its name.
        wanted: Versions; None for the default one.
        broker: The in-memory one.
        topics: Below its root.
        tracer: Records spans; None for none.

    Raises:
        ModelNotFound: The repository has no such model or version.
        ModelNotLoadable: The model cannot be loaded.
    """
    template = ProcessSpec(repository, model, 0, broker, WorkerOptions(f"local-{model}", topics))
    specs: dict[str | None, ProcessSpec] = {
        str(each.version): each for each in plan(Repository(repository), template, [model], instances=1)
    }
    versions = ", ".join(map(str, specs))
    default = specs[None] = next(
        (spec for spec in specs.values() if spec.found and spec.found.is_default), next(iter(specs.values()))
    )
    if unknown := [version for version in wanted if version not in specs]:
        raise ModelNotFound(
            f"repository {repository} serves no version {unknown[0]} of model {model!r}; it has: {versions}"
        )
    chosen = {specs[version].version: specs[version] for version in wanted}
    if default.version not in chosen:  # the default one publishes the card, so the first takes its place
        first = next(iter(chosen.values()))
        assert first.found  # noqa: S101 - planned from the repository
        chosen[first.version] = replace(first, found=replace(first.found, is_default=True), versions=tuple(chosen))
    with ExitStack() as stack:
        for spec in chosen.values():
            stack.callback(serve(spec, tracer).stop)
        yield

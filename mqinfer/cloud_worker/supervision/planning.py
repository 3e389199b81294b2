"""Which worker processes a repository calls for, and what has to change where others run: pure but for the disk."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import count

from mqinfer.cloud_worker.supervision.process import ProcessSpec
from mqinfer.models.repository import ModelVersion, Repository
from mqinfer.models.repository.content_hash import content_hash
from mqinfer.protocol.errors import ModelNotFound
from mqinfer.protocol.topics import check_name

__all__ = ["Changes", "is_same", "plan", "plan_versions", "reconcile"]


def plan(
    repository: Repository, template: ProcessSpec, models: Sequence[str] = (), instances: int | None = None
) -> list[ProcessSpec]:
    """Plan one process for each instance of each selected version.

    Args:
        repository: What there is.
        template: All but model, version and the worker's own name, to which the process's number is added.
        models: Only these; empty for all.
        instances: Processes a model version; None for what its `instance_group` says.

    Raises:
        ModelNotFound: The repository has nothing to serve, or lacks one of `models`.
        BadTopic: The worker's name, with the numbers, breaks the naming rules.
    """
    versions = repository.models()
    names = sorted({version.name for version in versions})
    missing = sorted(set(models) - set(names))
    if missing or not versions:
        raise ModelNotFound(
            f"repository {template.repository} has no model {', '.join(missing) or 'that can be served'}; "
            f"it has: {', '.join(names) or 'none'} (expected: MODEL/VERSION/model.onnx, model.pb or saved_model.pb)"
        )
    chosen = [version for version in versions if not models or version.name in models]
    return plan_versions(chosen, template, instances)


def plan_versions(
    versions: Sequence[ModelVersion], template: ProcessSpec, instances: int | None = None
) -> list[ProcessSpec]:
    """Plan one process for each instance of each of these versions; arguments as for `plan`."""
    copies = [spec for version in versions for spec in _specs(version, versions, template, instances)]
    return list(_numbered(copies, template.options.name, taken=()))


def _specs(
    version: ModelVersion, versions: Sequence[ModelVersion], template: ProcessSpec, instances: int | None
) -> list[ProcessSpec]:
    spec = _spec(version, versions, template)
    return [replace(spec, device=device) for device in version.config.devices(template.device, instances)]


def _spec(version: ModelVersion, versions: Sequence[ModelVersion], template: ProcessSpec) -> ProcessSpec:
    # Only the default version publishes a card, so only its process has to be another one where others come or go.
    served = [other.version for other in versions if other.name == version.name] if version.is_default else []
    return replace(
        template,
        model=version.name,
        version=version.version,
        found=version,
        versions=tuple(served) or (version.version,),
        content=_content(version),
    )


def _content(version: ModelVersion) -> str:
    try:
        return content_hash(version)
    except OSError:  # its process will say what can't be read
        return ""


def _numbered(specs: Iterable[ProcessSpec], name: str, taken: Iterable[str]) -> Iterable[ProcessSpec]:
    """Give each the lowest number that no process has, so that few names are left behind on the broker."""
    taken = set(taken)
    free = (each for number in count() if (each := f"{name}.{number}") not in taken)
    for spec in specs:
        yield replace(spec, options=replace(spec.options, name=check_name("worker", next(free))))


@dataclass(frozen=True, slots=True)
class Changes:
    """What leads from the processes that run to those that are wanted.

    Attributes:
        start: New processes, under names that none has.
        keep: Names of those that stay.
        drain: Names of those that go, once the new ones serve.
    """

    start: tuple[ProcessSpec, ...]
    keep: tuple[str, ...]
    drain: tuple[str, ...]


def reconcile(
    running: Sequence[ProcessSpec], wanted: Sequence[ProcessSpec], name: str, taken: Iterable[str] = ()
) -> Changes:
    """Find what has to change: a process stays where one like it is wanted, in all but its name.

    Args:
        running: Of one model.
        wanted: Of the same model; their names do not count.
        name: The supervisor's, with which the names of its processes begin.
        taken: Names in use by processes that are not among `running`.
    """
    left = [(_nameless(spec), spec.options.name) for spec in running]
    keep: list[str] = []
    start: list[ProcessSpec] = []
    for spec in wanted:
        like = next((pair for pair in left if pair[0] == _nameless(spec)), None)
        if like is None:
            start.append(spec)
        else:
            left.remove(like)
            keep.append(like[1])
    drain = tuple(worker for _, worker in left)
    return Changes(tuple(_numbered(start, name, {*taken, *keep, *drain})), tuple(keep), drain)


def is_same(one: Sequence[ProcessSpec], other: Sequence[ProcessSpec]) -> bool:
    """Whether both want the same processes, whatever their names and order."""
    changes = reconcile(one, other, "w")
    return not changes.start and not changes.drain


def _nameless(spec: ProcessSpec) -> ProcessSpec:
    return replace(spec, options=replace(spec.options, name=""))

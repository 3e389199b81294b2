"""Plans the worker processes for a repository and the changes from the running ones; only the disk is read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

from mqinfer.cloud_worker.supervision.process import ProcessSpec
from mqinfer.models.engines import platform_of
from mqinfer.models.repository import ModelVersion, Repository
from mqinfer.models.repository.content_hash import content_hash
from mqinfer.models.repository.traffic import Traffic
from mqinfer.protocol.errors import ModelNotFound, MqinferError
from mqinfer.protocol.topics import check_name


def plan(
    repository: Repository, template: ProcessSpec, models: Sequence[str] = (), instances: int | None = None
) -> list[ProcessSpec]:
    """Plan one process for each instance of each selected version.

    Args:
        repository: Model repository.
        template: Everything except model and version; process N is named `{name}.N`.
        models: Models to plan; empty for all.
        instances: Processes for each model version; None for the number in its `instance_group`.

    Raises:
        ModelNotFound: The repository has nothing to serve, or lacks one of `models`.
        BadTopic: The worker's name breaks the naming rules.
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
    """Plan one process for each instance of each of these versions; the arguments are those of `plan`."""
    copies = [spec for version in versions for spec in _specs(version, versions, template, instances)]
    return list(_numbered(copies, template.options.name, taken=()))


def resized(specs: Sequence[ProcessSpec], template: ProcessSpec, instances: int) -> list[ProcessSpec]:
    """Return the processes of a model with another number for each of its versions; the disk is not read.

    Args:
        specs: Planned processes.
        template: As for `plan`.
        instances: Processes for each version; 0 for none.
    """
    first = {spec.version: spec for spec in reversed(specs)} if instances else {}
    devices = {version: _devices(spec, template, instances) for version, spec in first.items()}
    copies = [replace(first[each], device=device, share_with=1) for each in sorted(first) for device in devices[each]]
    return list(_numbered(copies, template.options.name, taken=()))


def _devices(spec: ProcessSpec, template: ProcessSpec, instances: int) -> Sequence[str]:
    return spec.found.config.devices(template.device, instances) if spec.found else (spec.device,) * instances


def _specs(
    version: ModelVersion, versions: Sequence[ModelVersion], template: ProcessSpec, instances: int | None
) -> list[ProcessSpec]:
    spec = _spec(version, versions, template)
    specs = [replace(spec, device=device) for device in version.config.devices(template.device, instances)]
    return specs if may_share(version, specs) else [replace(each, share_with=1) for each in specs]


def may_share(version: ModelVersion, instances: Sequence[ProcessSpec]) -> bool:
    """Whether a model may be in a process with others: one instance of a small ONNX file on a CPU, of no ensemble.

    `parameters.own_process` in its configuration refuses that.
    """
    parameters = version.config.parameters
    if version.parts or str(parameters.get("own_process", "false")).lower() not in {"false", "0"}:
        return False
    if [each.device for each in instances] not in _CPU or "TARGET_DEVICE" in parameters:
        return False
    try:
        is_onnx = platform_of(version.path, version.config.backend) == "onnx_onnxv1"
        return is_onnx and sum(file.stat().st_size for file in version.path.parent.rglob("*")) <= _SMALL_BYTES
    except (MqinferError, OSError):  # its process will report what is wrong
        return False


_HAS_GPU = any(Path(device).exists() for device in ("/dev/nvidia0", "/dev/nvidiactl", "/dev/kfd", "/dev/dxg"))
_CPU = (["cpu"],) if _HAS_GPU else (["cpu"], ["auto"])
"""Devices of a model's only instance that are a CPU: `auto` is one on a machine without a GPU."""
_SMALL_BYTES = 16 << 20
"""The files of a version that may share a process have no more bytes than that."""


def _spec(version: ModelVersion, versions: Sequence[ModelVersion], template: ProcessSpec) -> ProcessSpec:
    # Only the default version publishes a card with the list of versions, so only its process depends on the others.
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
    except OSError:  # its process will report the file that can't be read
        return ""


def _numbered(specs: Iterable[ProcessSpec], name: str, taken: Iterable[str]) -> Iterable[ProcessSpec]:
    """Name each process with the lowest free number, so that few retained names stay on the broker."""
    taken = set(taken)
    free = (each for number in count() if (each := f"{name}.{number}") not in taken)
    for spec in specs:
        yield replace(spec, options=replace(spec.options, name=check_name("worker", next(free))))


def is_process_of(server: str, worker: str) -> bool:
    """Return whether a worker's name is that of a server's process: the server's, a dot and a number."""
    name, _, number = worker.rpartition(".")
    return name == server and number.isdecimal()


@dataclass(frozen=True, slots=True)
class Changes:
    """Changes from the running processes to the wanted ones.

    Attributes:
        start: New processes, with free names.
        keep: Names of the processes that stay.
        drain: Names of the processes to drain once the new ones serve.
    """

    start: tuple[ProcessSpec, ...]
    keep: tuple[str, ...]
    drain: tuple[str, ...]


def reconcile(
    running: Sequence[ProcessSpec], wanted: Sequence[ProcessSpec], name: str, taken: Iterable[str] = ()
) -> Changes:
    """Compare running and wanted processes: one that equals a wanted one in everything but its name stays.

    Args:
        running: Running processes of one model.
        wanted: Wanted processes of the same model; their names are ignored.
        name: Server name, the prefix of the process names.
        taken: Names of processes that are not among `running`.
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
    """Whether both describe the same processes, apart from names and order."""
    changes = reconcile(one, other, "w")
    return not changes.start and not changes.drain


def _nameless(spec: ProcessSpec) -> ProcessSpec:
    """Return a spec without its name, and without what changes while a process runs: labels, whether it is shared."""
    found = spec.found and replace(spec.found, traffic=Traffic())
    return replace(spec, options=replace(spec.options, name=""), found=found, share_with=1)

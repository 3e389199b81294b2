"""Which worker processes a repository calls for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mqinfer.cloud_worker.process import ProcessSpec
from mqinfer.models.repository import Repository
from mqinfer.protocol.errors import ModelNotFound
from mqinfer.protocol.topics import check_name

__all__ = ["plan"]


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
    copies = [(version, device) for version in chosen for device in version.config.devices(template.device, instances)]
    return [
        replace(
            template,
            model=version.name,
            version=version.version,
            device=device,
            options=replace(template.options, name=check_name("worker", f"{template.options.name}.{number}")),
        )
        for number, (version, device) in enumerate(copies)
    ]

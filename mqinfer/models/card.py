"""Makes the card that a worker publishes of a model."""

from __future__ import annotations

from collections.abc import Sequence

from mqinfer.codecs import available_encodings
from mqinfer.models.backend import Backend
from mqinfer.models.batching_axis import max_batch_size
from mqinfer.models.image_contract import image_contract
from mqinfer.models.repository.content_hash import content_hash
from mqinfer.models.repository.repository import ModelVersion
from mqinfer.protocol.card import ModelCard

__all__ = ["make_card"]


def make_card(model: ModelVersion, backend: Backend, versions: Sequence[int] = ()) -> ModelCard:
    """Describe a loaded model.

    Args:
        model: As found in the repository.
        backend: What it was loaded into.
        versions: All versions being served; empty: this one.

    Raises:
        ConfigError: `model.toml` contradicts the model.
    """
    config = model.config
    return ModelCard(
        name=model.name,
        version=str(model.version),
        versions=tuple(str(version) for version in versions or (model.version,)),
        platform=backend.platform,
        inputs=backend.inputs,
        outputs=backend.outputs,
        max_batch_size=max_batch_size(backend.inputs, backend.outputs, config.max_batch_size),
        encodings=available_encodings(),
        image=image_contract(backend.inputs, config.image),
        classes=config.classes,
        model_hash=content_hash(model),
        precision=backend.precision,
        backend=backend.engine,
        device=backend.device,
    )

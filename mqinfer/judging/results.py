"""Bring the answers of all stages to one form: whether the target is there, or a mask with the reference's classes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from mqinfer.answers.outputs import CONFIDENCE, PRESENT
from mqinfer.client.result import InferResult
from mqinfer.judging.confidence import mask_and_confidence, presence
from mqinfer.judging.settings import CascadeSettings
from mqinfer.protocol.card import ModelCard
from mqinfer.protocol.datatypes import Array, Datatype, dtype_of
from mqinfer.protocol.errors import ConfigError, ModelFailed
from mqinfer.protocol.types import Capture, ErrorInfo, Stage, Timings

_MASKS = (Datatype.UINT8, Datatype.INT8, Datatype.INT32, Datatype.INT64, Datatype.UINT16, Datatype.BOOL)


@dataclass(frozen=True, slots=True)
class ResultMaker:
    """Makes results of what models return.

    Attributes:
        settings: Of the cascade.
        reference: Card of the reference model.
        small: Card of the small model; None without one.
    """

    settings: CascadeSettings
    reference: ModelCard
    small: ModelCard | None = None

    def check(self) -> None:
        """Check that the models fit each other and the target.

        Raises:
            ConfigError: The target is no class of the reference model, or the masks have other classes.
        """
        target, names = self.settings.target, [each.name for each in self.reference.classes]
        if not names:
            return
        if target is not None:
            if target not in names:
                raise ConfigError(
                    f"target = {target!r} is no class of model {self.reference.name!r}; "
                    f"its classes are {', '.join(names[:20])}"
                )
            return
        own = [each.name for each in self.small.classes] if self.small else []
        if own and own != names:
            raise ConfigError(
                f"the classes of {self.small.name if self.small else ''!r} are {', '.join(own[:20])}, and those of "
                f"{self.reference.name!r} {', '.join(names[:20])}; both must have the same ones in the same order"
            )

    def of_reference(self, result: InferResult) -> InferResult:
        """Return the reference model's result in the common form; one that can't be brought to it is an error."""
        target = self.settings.target
        if target is None:
            return result
        try:
            confidence = presence(result.outputs, self.reference.classes, target)
        except Exception as error:  # noqa: BLE001 - outputs come from outside, and may be anything
            info = ErrorInfo(ModelFailed.code, f"model {result.model_name!r}: {error}")
            return replace(result, outcome=ModelFailed.outcome, outputs={}, error=info)
        return replace(result, outputs=_presence(confidence, is_there=confidence >= self.settings.reference.score))

    def of_small(self, outputs: Mapping[str, Array]) -> tuple[dict[str, Array], float]:
        """Return the small model's outputs in the common form, and its confidence.

        Raises:
            ModelFailed: They can't be brought to it.
        """
        target, small = self.settings.target, self.settings.small
        if target is not None and small is not None:
            confidence = presence(outputs, self.small.classes if self.small else (), target)
            return _presence(confidence, is_there=small.is_present(confidence)), confidence
        mask, confidence = mask_and_confidence(outputs)
        spec = next((each for each in self.reference.outputs if each.datatype in _MASKS), None)
        name, datatype = (spec.name, spec.datatype) if spec else ("mask", Datatype.UINT8)
        return {name: mask[np.newaxis].astype(dtype_of(datatype), copy=False)}, confidence

    def of_edge(
        self, capture: Capture, outputs: Mapping[str, Array], confidence: float, found: InferResult
    ) -> InferResult:
        """Return the small model's answer as the result of a frame.

        Args:
            capture: The frame's.
            outputs: In the common form.
            confidence: From 0 to 1.
            found: Of the small model itself.
        """
        card = self.small or self.reference
        return replace(
            found,
            model_name=card.name,
            model_version=found.model_version or card.version,
            model_hash=found.model_hash or card.parameters.model_hash,
            outputs=outputs,
            stage=Stage.EDGE.value,
            submitted=0.0,  # the edge measures it as one stage, wherever it was
            capture=capture,
            parameters={CONFIDENCE: round(confidence, 6)},
        )


def reused(answer: InferResult, capture: Capture, waited_ns: int) -> InferResult:
    """Return another frame's answer as the result of a frame that hardly differs.

    Args:
        answer: The other frame's.
        capture: This frame's.
        waited_ns: Time from its reading to now.
    """
    return replace(
        answer,
        id="",
        worker="",
        stage=Stage.REUSE.value,
        timings=Timings(client_queue=waited_ns),
        capture=capture,
        attempts=0,
        bytes_sent=0,
        submitted=0.0,
    )


def _presence(confidence: float, *, is_there: bool) -> dict[str, Array]:
    return {PRESENT: np.array([is_there]), CONFIDENCE: np.array([confidence], np.float32)}

"""Which frames matter: those that a cascade was not sure of, that failed, on which models disagree, and samples."""

from __future__ import annotations

import json
import logging
import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np

from mqinfer.answers.outputs import PRESENT, SMALL_OUTPUT
from mqinfer.answers.words import SCHEMA, elements
from mqinfer.bags.frame import Frame
from mqinfer.client.result import InferResult
from mqinfer.edge_agent.collecting.store import Drop, Store
from mqinfer.edge_agent.sinks.answers import Answer, Answers
from mqinfer.edge_agent.sinks.jsonl_sink import describe_settled
from mqinfer.edge_agent.sinks.sink import Sink
from mqinfer.judging.settings import CascadeSettings
from mqinfer.protocol.datatypes import Array
from mqinfer.protocol.errors import ConfigError, LinkError, ModelNotFound, Unanswered, error_from_code
from mqinfer.protocol.header import FALLBACK
from mqinfer.protocol.types import Outcome, Stage

log = logging.getLogger("mqinfer.edge_agent")
_MOST_WAITING = 64
"""Frames that wait for the answers of further models; the oldest goes on without."""
_DISAGREEMENT = 0.05
"""Masks disagree that differ in more than this share of their pixels."""
_MOST_BYTES = 8 << 20
"""An output with more bytes is described, and its elements are left out."""
_MOST_ASKED = 100_000
_HOUR_NS = 3600 * 10**9


class Why(StrEnum):
    """Why a frame matters."""

    UNSURE = "unsure"  # the small model of a cascade was not sure, so the reference was asked, or could not be
    ERROR = "error"  # it failed, and would again: its bytes or the model are at fault, not a connection
    DISAGREE = "disagree"  # models of the run found different things
    RATE = "rate"  # a sample was due
    ASKED = "asked"  # an operator asked for it


@dataclass(frozen=True, slots=True)
class CollectSettings:
    """What is collected, and where.

    Attributes:
        folder: Keeps a file for each frame.
        max_bytes: Bound of all of them.
        day_bytes: Bound of those of one day.
        rates: Samples an hour of frames in which a class was found; under the empty name those of any frames.
    """

    folder: Path
    max_bytes: int = 4 << 30
    day_bytes: int = 1 << 30
    rates: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Collected:
    """What was collected since the start.

    Attributes:
        kept: Frames by why they matter; one may matter for several reasons.
        dropped: Frames that matter and were not kept, by why not.
        frames: How many were kept.
    """

    kept: Mapping[Why, int] = field(default_factory=dict)
    dropped: Mapping[Drop, int] = field(default_factory=dict)
    frames: int = 0


class _Order(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a control call may state."""

    frames: Annotated[int, msgspec.Meta(ge=0, le=_MOST_ASKED)] | None = None


class Collector:
    """Keeps the frames of a run that matter, each once, with the answers of all models. Thread-safe.

    What can't be kept is counted, and nothing fails for it.

    Args:
        settings: What is collected, and where.
        models: How many models get each frame.

    Raises:
        ConfigError: The folder can't be used.
        MissingExtra: rosbags is not installed.
    """

    def __init__(self, settings: CollectSettings, models: int = 1) -> None:
        self._folder = settings.folder
        self._answers = Answers(models, self._decide, bound=_MOST_WAITING)
        self._cascades: list[CascadeSettings | None] = []
        self._every_ns = {name: _HOUR_NS // rate for name, rate in settings.rates.items()}
        self._sampled: dict[str, int] = {}
        self._asked = self._frames = 0
        self._kept: Counter[Why] = Counter()
        self._dropped: Counter[Drop] = Counter()
        self._lock = threading.Lock()  # of the counts, so that a slow disk holds up no control call
        self._store = Store(settings.folder, settings.max_bytes, settings.day_bytes)

    def sink(self, cascade: CascadeSettings | None = None) -> Sink:
        """Return the sink of one model, or of a cascade."""
        self._cascades.append(cascade)
        return self._answers.sink(len(self._cascades) - 1, self._folder)

    @property
    def counts(self) -> Collected:
        """What was collected so far."""
        with self._lock:
            return Collected(dict(self._kept), dict(self._dropped), self._frames)

    def answer(self, changes: Mapping[str, object]) -> dict[str, object]:
        """Return what a control call gets: the counts, and the bytes that are used.

        Args:
            changes: `frames`: how many of the next frames with an answer to keep, whatever is in them.

        Raises:
            ConfigError: There is something else in it.
        """
        try:
            wanted = msgspec.convert(changes, _Order).frames
        except msgspec.ValidationError as error:
            raise ConfigError(f"collect takes `frames`, a whole number from 0 to {_MOST_ASKED}: {error}") from error
        with self._lock:
            self._asked = waits = self._asked if wanted is None else wanted
        found = self.counts
        used = {"bytes": self._store.bytes, "bytes_today": self._store.used_today}
        return {"frames": found.frames, "kept": found.kept, "dropped": found.dropped, **used, "asked": waits}

    def close(self) -> None:
        """Decide about the frames that lack answers, and release the folder."""
        self._answers.close()
        self._store.close()

    def _decide(self, frame: Frame, answers: Sequence[Answer]) -> None:
        found = set().union(*map(self._found, answers if self._every_ns else ()))
        with self._lock:
            reasons = self._reasons(frame, answers, found)
        if not reasons:
            return
        drop = self._store.keep(frame, partial(_describe, frame, answers, reasons))
        with self._lock:
            if drop in {None, Drop.THERE}:
                self._asked = max(0, self._asked - (Why.ASKED in reasons))
                self._sampled.update(dict.fromkeys(found & self._every_ns.keys(), frame.log_time_ns))
            if drop is not None:
                self._dropped[drop] += 1
                return
            self._frames += 1
            self._kept.update(reasons)

    def _reasons(self, frame: Frame, answers: Sequence[Answer], found: Iterable[str]) -> list[Why]:
        results = [each.result for each in answers]
        if all(each.outcome in {Outcome.CANCELLED, Outcome.SUPERSEDED} for each in results):
            return []
        is_answered, now = any(each.is_ok for each in answers), frame.log_time_ns
        given = {
            Why.UNSURE: any(map(self._is_unsure, answers)),
            Why.ERROR: any(map(_has_failed, results)),
            Why.DISAGREE: any(_differ(answers[0], each) for each in answers[1:]),
            Why.RATE: is_answered and any(self._is_due(name, now) for name in found),
            Why.ASKED: is_answered and self._asked > 0,
        }
        return [why for why, holds in given.items() if holds]

    def _is_due(self, name: str, now: int) -> bool:
        """Return whether a sample is due; stamps that jump, as those of a clock that is set, make one due at most."""
        every, last = self._every_ns.get(name), self._sampled.get(name)
        return every is not None and (last is None or abs(now - last) >= every)

    def _found(self, answer: Answer) -> set[str]:
        """Return the classes that a model found, and the empty name, which is in every frame."""
        words, cascade = answer.view.words, self._cascades[answer.model]
        target = cascade.target if cascade else None
        found = {each["class"] or "" for each in [*words.get("detections", ()), *words.get("top", ())[:1]]}
        found |= {"", *(name for name, share in words.get("class_shares", {}).items() if share)}
        return found | ({target} if target and np.any(answer.view.outputs.get(PRESENT, False)) else set())

    def _is_unsure(self, answer: Answer) -> bool:
        """Return whether a cascade's small model was not sure; a frame that follows another one tells nothing."""
        result, cascade = answer.result, self._cascades[answer.model]
        if cascade is None or cascade.small is None or result.stage == Stage.REUSE:
            return False
        return result.stage == Stage.WORKER or FALLBACK in result.parameters


def _has_failed(result: InferResult) -> bool:
    if result.outcome is not Outcome.ERROR or result.error is None:
        return False
    return not isinstance(error_from_code(result.error.code, ""), Unanswered | ModelNotFound | LinkError)


def _differ(one: Answer, other: Answer) -> bool:
    """Return whether two models found different numbers of objects, another best class, or another mask."""
    if not (one.is_ok and other.is_ok):
        return False
    if _in_words(one) != _in_words(other):
        return True
    mask, other_mask = one.view.answer.mask, other.view.answer.mask
    if mask is None or other_mask is None:
        return False
    return mask.shape != other_mask.shape or float(np.mean(mask != other_mask)) > _DISAGREEMENT


def _in_words(answer: Answer) -> tuple[object, ...]:
    words = answer.view.words
    return words.get("counts"), *(each["class"] for each in words.get("top", ())[:1])


def _describe(frame: Frame, answers: Sequence[Answer], reasons: Sequence[Why]) -> str:
    """Return what stands beside a frame: why it was kept, and each model's answer, by `answer.schema.json`."""
    results = [
        {
            **describe_settled(frame, each.view, each.result, each.view.words),
            "elements": {name: elements(output) for name, output in each.view.outputs.items() if _is_kept(output)},
        }
        for each in answers
    ]
    return json.dumps({"schema": SCHEMA, "collected": reasons, "results": results}, allow_nan=False)


def _is_kept(output: Array) -> bool:
    return output.size > SMALL_OUTPUT and output.nbytes <= _MOST_BYTES

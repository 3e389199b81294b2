"""Compare models while one replay sends the frames of a recording to all of them."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console

from mqinfer.bags.frame import Frame
from mqinfer.bags.sources import open_source
from mqinfer.client.requester import Requester
from mqinfer.edge_agent.output_files import set_aside, writing
from mqinfer.edge_agent.reporting.report import SessionReport
from mqinfer.edge_agent.session import run_sessions
from mqinfer.edge_agent.settings import ReplaySettings
from mqinfer.edge_agent.sinks.answers import Answer, Answers
from mqinfer.edge_agent.sinks.sink import Sink
from mqinfer.lab.comparing.coco import CocoResults, category_ids
from mqinfer.lab.comparing.labels import TrueFrame
from mqinfer.lab.comparing.pictures import write_worst
from mqinfer.lab.comparing.tallies import PairTally, TruthTally
from mqinfer.lab.comparing.tolerance import Tolerances
from mqinfer.lab.comparing.truth import Truth, open_truth
from mqinfer.lab.reports import write_files
from mqinfer.protocol.card import ClassInfo, ModelCard
from mqinfer.protocol.errors import ConfigError, MqinferError

_AHEAD = 16
"""Frames that one model may be ahead of another beyond what their windows hold."""
_FRAMES_FILE, _REPORT_FILE, _COCO_FILE = "disagreement.jsonl", "compare.json", "coco.json"


@dataclass(frozen=True, slots=True)
class VerdictBounds:
    """What the verdict depends on.

    Attributes:
        disagreement: Largest mean disagreement of a model with the first one.
        score: Least score of each model against the truth: mean IoU, accuracy or mAP 0.5:0.95; None for any.
        tolerances: Of numbers. Of an output that has one of its own, the share of the values beyond it may not be above
            `disagreement` either, whatever else is compared.
    """

    disagreement: float = 0.01
    score: float | None = None
    tolerances: Tolerances = field(default_factory=Tolerances)


@dataclass(frozen=True, slots=True)
class Compared:
    """The outcome of a comparison.

    Attributes:
        report: As JSON has it.
        files: That were written.
        sessions: How the replay of each model ended.
        refused: Why the models are not equivalent; empty if they are.
        error: Why the truth could not be used; None if it was, or there was none.
    """

    report: dict[str, Any]
    files: tuple[Path, ...]
    sessions: tuple[SessionReport, ...]
    refused: tuple[str, ...]
    error: MqinferError | None = None


def compare_models(  # noqa: PLR0913 - what a replay needs
    settings: ReplaySettings,
    models: Sequence[str],
    requester: Requester,
    *,
    broker: str,
    stop: threading.Event,
    console: Console,
    truth: str | None = None,
    renamed: Mapping[str, str] | None = None,
    bounds: VerdictBounds | None = None,
    worst: int = 5,
) -> Compared:
    """Send a recording to some models, each with the first one compared, and all with the truth.

    Args:
        settings: What to send; results of each model and the report are written into its folder, if it names one.
        models: Their names, `name/version` for a certain version.
        requester: Connected.
        broker: Its name in messages.
        stop: Ends the replay early.
        console: For the progress display.
        truth: As `open_truth` takes it; None for none.
        renamed: Which class of the models a class of the truth is, where it has another name.
        bounds: Of the verdict.
        worst: Frames of each pair that are written as pictures.

    Raises:
        MqinferError: As `run_sessions`, or the truth can't be opened.
    """
    with ExitStack() as stack:
        known = stack.enter_context(closing(open_truth(truth, settings.source.sources[0]))) if truth else None
        folder = settings.outputs.folder
        frames = None if folder is None else stack.enter_context(_open(folder / _FRAMES_FILE))
        comparison = _Comparison(models, known, renamed or {}, bounds or VerdictBounds(), frames, folder, worst)
        answers = Answers(len(models), comparison.add, bound=2 * settings.options.window + _AHEAD)
        topics = settings.source.topics or _topics(settings.source.sources[0], truth)
        sessions = run_sessions(
            replace(
                settings,
                source=replace(settings.source, topics=topics),
                outputs=replace(settings.outputs, sinks=("jsonl",)),
            ),
            models,
            requester,
            broker=broker,
            stop=stop,
            console=console,
            observe=lambda own, card: comparison.observe(answers, own, card),
        )
        answers.close()
        return comparison.conclude(sessions)


def _topics(source: str, truth: str | None) -> Sequence[str]:
    """Return the topics of pictures for the models where the truth is one of the recording's; empty for all."""
    if truth is None:
        return ()
    with closing(open_source(source, depth=False)) as opened:
        streams = [each.source for each in opened.streams()]
    return [each for each in streams if each != truth] if truth in streams else ()


def _open(path: Path) -> TextIO:
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        set_aside(path)
        return path.open("w", encoding="utf-8", buffering=1)


@dataclass(slots=True)
class _Comparison:
    models: Sequence[str]
    truth: Truth | None
    renamed: Mapping[str, str]
    bounds: VerdictBounds
    frames: TextIO | None
    folder: Path | None
    worst: int
    _classes: list[Sequence[ClassInfo]] = field(default_factory=list)
    _pairs: list[PairTally] = field(default_factory=list)
    _scores: list[TruthTally] = field(default_factory=list)
    _coco: list[CocoResults] = field(default_factory=list)
    _number: int = 0
    _truths: int = 0
    _missed: int = 0
    _error: MqinferError | None = None

    def observe(self, answers: Answers, own: ReplaySettings, card: ModelCard) -> Sink:
        """Return the sink of a model; models are prepared in their order.

        Raises:
            ConfigError: An output that has a tolerance is not one of the model.
        """
        del own
        names = [each.name for each in card.outputs]
        for name in self.bounds.tolerances.by_output:
            if name not in names:
                raise ConfigError(
                    f"--tolerance {name}: model {card.name} has no such output; it has {', '.join(names)}"
                )
        number = len(self._classes)
        self._classes.append(card.classes)
        if number:
            self._pairs.append(PairTally(self._classes[0], self.bounds.tolerances, self.worst if self.folder else 0))
        self._scores.append(TruthTally(card.classes, self.renamed))
        if self.folder is not None:
            known = category_ids(self.truth.categories if self.truth else {}, card.classes, self.renamed)
            self._coco.append(CocoResults(self.folder / self.models[number] / _COCO_FILE, known))
        return answers.sink(number)

    def add(self, frame: Frame, answers: Sequence[Answer]) -> None:
        """Count a frame; one that not every model has answered is missed."""
        if len(answers) < len(self.models):
            self._missed += 1
            return
        pairs = zip(self._pairs, answers[1:], strict=True)
        shares = [pair.add(frame, answers[0], other) for pair, other in pairs]
        image_id = self._judge(frame, answers)
        if self.frames is not None:
            line = {"source": frame.source, "sequence": frame.sequence, "image_id": image_id}
            by_model = dict(zip(self.models[1:], shares, strict=True))
            with writing(Path(self.frames.name)):
                self.frames.write(json.dumps({**line, "disagreement": by_model}) + "\n")
            for coco, answer in zip(self._coco, answers, strict=True):
                if image_id is not None and "boxes" in answer.view.outputs:
                    coco.add(image_id, answer.view.answer.boxes)

    def _judge(self, frame: Frame, answers: Sequence[Answer]) -> int | None:
        """Count a frame against its truth; return its number in COCO's files, None where its truth has none."""
        self._number += 1
        if self.truth is None:
            return self._number
        true = None
        try:
            true = self.truth.of(frame)
            if true is not None and self._error is None:
                self._add_truth(true, frame, answers)
        except MqinferError as error:  # the comparison goes on without the truth, and its end says so
            self._error = self._error or error
        return (true.image_id if true else None) if self.truth.categories else self._number

    def _add_truth(self, true: TrueFrame, frame: Frame, answers: Sequence[Answer]) -> None:
        self._truths += 1
        for score, answer in zip(self._scores, answers, strict=True):
            if answer.is_ok:
                score.add(frame, answer.view, true)

    def conclude(self, sessions: Sequence[SessionReport]) -> Compared:
        """Make the verdict, and write the report and the pictures."""
        bounds, output = self.bounds, self.folder
        error = self._error or self._unused()
        first, others = self.models[0], self.models[1:]
        pairs = [{"models": [first, other], **pair.describe()} for other, pair in zip(others, self._pairs, strict=True)]
        scores = [{"model": model, **score.describe()} for model, score in zip(self.models, self._scores, strict=True)]
        refused = tuple(_refused(pairs, scores if self.truth else [], bounds))
        report: dict[str, Any] = {"models": list(self.models), "frames_missed": self._missed, "pairs": pairs}
        if self.truth is not None:
            report |= {"truth": {"frames": self._truths, "error": _text(error)}, "scores": scores}
        report |= {"bounds": asdict(bounds), "refused": list(refused)}
        files = [path for session in sessions for path in session.files]
        files += chain.from_iterable(map(CocoResults.close, self._coco))
        if output is not None:
            for other, pair in zip(others, self._pairs, strict=True):
                files += write_worst(output, pair.worst, (first, other))
            files += [output / _FRAMES_FILE, *write_files(output, {_REPORT_FILE: json.dumps(report, indent=1) + "\n"})]
        return Compared(report, tuple(files), tuple(sessions), refused, error)

    def _unused(self) -> ConfigError | None:
        if self.truth is None or any(score.frames for score in self._scores):
            return None
        if self._truths:
            return ConfigError("the truth is of another kind than the models' outputs: masks, classes or boxes")
        return ConfigError(
            "the truth fits no frame: those of a topic are found by the capture stamp, files by the frame's number"
        )


def _text(error: Exception | None) -> str | None:
    return None if error is None else str(error)


def _refused(pairs: Sequence[dict[str, Any]], scores: Sequence[dict[str, Any]], bounds: VerdictBounds) -> list[str]:
    found = [line for pair in pairs for line in _differing(pair, bounds)]
    if bounds.score is not None:
        for each in scores:
            score = next((each[key] for key in ("mean_iou", "accuracy", "map_50_95") if key in each), 0.0)
            if score < bounds.score:
                found.append(f"{each['model']}: score {score:.4f} is below {bounds.score:g}")
    return found


def _differing(pair: dict[str, Any], bounds: VerdictBounds) -> list[str]:
    """Return why two models are not equivalent."""
    names, most = " and ".join(pair["models"]), bounds.disagreement
    if not pair["frames"]:
        return [f"{names}: no frame was answered by both"]
    found = [f"{names}: disagreement {pair['mean']:.4g} is above {most:g}"] if pair["mean"] > most else []
    outputs = {name: pair.get("outputs", {}).get(name) for name in bounds.tolerances.by_output}
    beyond = {name: each["outside"] for name, each in outputs.items() if each is not None and each["outside"] > most}
    return found + [
        f"{names}: of output {name} a share of {share:.4g} is beyond its tolerance, more than {most:g}"
        for name, share in beyond.items()
    ]

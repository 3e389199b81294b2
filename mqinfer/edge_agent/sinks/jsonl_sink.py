"""Write results as JSON lines: what depends on frame, model and settings alone in one file, times in another."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TextIO

from msgspec.structs import asdict

from mqinfer.answers.words import describe_boxes, describe_top
from mqinfer.bags.frame import Frame
from mqinfer.client.result import InferResult
from mqinfer.edge_agent.frames.view import FrameView
from mqinfer.edge_agent.output_files import set_aside, writing
from mqinfer.protocol.errors import ConfigError
from mqinfer.protocol.header import FALLBACK

RESULTS_FILE, TIMES_FILE = "results.jsonl", "times.jsonl"
_OF_RUN = ("id", "worker", "precision", "backend", "device", "attempts", "times")


class JsonlSink:
    """Writes one line a frame to each of two files, unbuffered so that `tail -f` follows them.

    `results.jsonl` is the same for each run over a recording with the same model and settings, byte for byte;
    `times.jsonl` has what differs: ids, workers, attempts, times, the words of errors. A frame's line in `times.jsonl`
    is written first, so that one that is in `results.jsonl` is in both.

    Args:
        directory: For the files.
        goes_on_with: Go on with the files that are there, with results of the model of this hash alone (empty for any);
            None sets them aside.

    Raises:
        ConfigError: A file cannot be created.
    """

    def __init__(self, directory: Path, *, goes_on_with: str | None = None) -> None:
        self._model_hash = goes_on_with
        append = goes_on_with is not None
        with ExitStack() as rollback:
            self._files = [
                rollback.enter_context(_open(directory / name, append=append)) for name in (TIMES_FILE, RESULTS_FILE)
            ]
            rollback.pop_all()

    def write(self, frame: Frame, view: FrameView, result: InferResult) -> None:
        """Append a line to each file.

        Raises:
            ConfigError: A file cannot be written, or the run goes on with one of another model.
        """
        if self._model_hash and result.model_hash not in {"", self._model_hash}:
            raise ConfigError(
                f"{self._files[1].name} goes on with results of the model {self._model_hash}, but {result.model_name} "
                f"{result.model_version} is now {result.model_hash}; choose another --output"
            )
        described = describe_times(frame, view, result), describe_result(frame, view, result)
        for file, each in zip(self._files, described, strict=True):
            with writing(Path(file.name)):
                file.write(json.dumps(each, allow_nan=False) + "\n")

    def close(self) -> tuple[Path, ...]:
        """Finish the files, and return their paths.

        Raises:
            ConfigError: A file cannot be written.
        """
        with ExitStack() as closing:
            for file in self._files:
                closing.enter_context(writing(Path(file.name)))
                closing.callback(file.close)
        return tuple(Path(file.name) for file in reversed(self._files))


def _open(path: Path, *, append: bool) -> TextIO:
    with writing(path):
        if not append:
            set_aside(path)
        return path.open("a" if append else "w", encoding="utf-8", buffering=1)


def describe_times(frame: Frame, view: FrameView, result: InferResult) -> dict[str, object]:
    """Return what differs between two runs over the same frame as one JSON object; times are nanoseconds."""
    return {
        "source": frame.source,
        "sequence": frame.sequence,
        "id": result.id,
        "worker": result.worker,
        **view.engine,
        "attempts": result.attempts,
        "bytes_sent": result.bytes_sent,
        "latency_ms": round(result.timings.total / 1e6, 3),
        "timings": asdict(result.timings),
        "times": view.times.describe(),
        "error": {"message": result.error.message} if result.error else None,
    }


def describe_result(frame: Frame, view: FrameView, result: InferResult) -> dict[str, object]:
    """Return what depends on frame, model and settings alone as one JSON object; boxes are in the frame's pixels."""
    return {
        "source": frame.source,
        "sequence": frame.sequence,
        "capture_time_ns": frame.capture_time_ns,
        "log_time_ns": frame.log_time_ns,
        "frame_id": frame.frame_id,
        **_joined(frame),
        "outcome": result.outcome.value,
        "model_name": result.model_name,
        "model_version": result.model_version,
        "model_hash": result.model_hash,
        "stage": result.stage,
        **({FALLBACK: result.parameters[FALLBACK]} if FALLBACK in result.parameters else {}),
        "outputs": view.outputs_in_words,
        **describe_boxes(view.answer.boxes, view.classes),
        **describe_top(view.answer.top),
        "error": {"code": result.error.code} if result.error else None,
    }


def describe_settled(
    frame: Frame, view: FrameView, result: InferResult, words: Mapping[str, object]
) -> dict[str, object]:
    """Return all that became of a frame as one JSON object, by `answer.schema.json`.

    `words` are what was found, those of the view, and what else is to be there.
    """
    described, times = describe_result(frame, view, result), describe_times(frame, view, result)
    width, height = view.placement.frame
    return {
        **described,
        **({"width": width, "height": height} if result.outputs else {}),
        **words,
        **{key: times[key] for key in _OF_RUN},
        "error": {"code": result.error.code, "message": result.error.message} if result.error else None,
    }


def _joined(frame: Frame) -> dict[str, object]:
    keys = "source", "sequence", "capture_time_ns", "frame_id"
    missed: dict[str, dict[str, int]] = {}
    for (source, why), count in sorted(frame.missed.items()):
        missed.setdefault(source, {})[why] = count
    joined = [{key: getattr(each, key) for key in keys} for each in frame.joined]
    return {key: value for key, value in (("joined", joined), ("missed", missed)) if value}

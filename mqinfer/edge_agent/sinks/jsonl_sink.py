"""Write results as JSON lines."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from mqinfer.bags.frame import Frame
from mqinfer.client.result import InferResult
from mqinfer.edge_agent.sinks.outputs import DetectedBox, class_name, describe_outputs
from mqinfer.edge_agent.sinks.sink import set_aside, writing
from mqinfer.edge_agent.sinks.top_classes import describe_top, find_top
from mqinfer.edge_agent.sinks.view import View
from mqinfer.protocol.card import ClassInfo

__all__ = ["JsonlSink", "describe_result"]


class JsonlSink:
    """Writes `results.jsonl`, one line for each frame, unbuffered so that `tail -f` follows it.

    Args:
        directory: For the file.
        classes: Names and colours from the model's card.

    Raises:
        ConfigError: The file cannot be created.
    """

    def __init__(self, directory: Path, classes: Sequence[ClassInfo] = ()) -> None:
        self._path = directory / "results.jsonl"
        self._classes = tuple(classes)
        with writing(self._path):
            set_aside(self._path)
            self._file = self._path.open("w", encoding="utf-8", buffering=1)

    def write(self, frame: Frame, view: View, result: InferResult) -> None:
        """Append a line.

        Raises:
            ConfigError: The file cannot be written.
        """
        with writing(self._path):
            described = describe_result(frame, view, result, self._classes)
            self._file.write(json.dumps(described, allow_nan=False) + "\n")

    def close(self) -> tuple[Path, ...]:
        """Finish the file, and return its path.

        Raises:
            ConfigError: The file cannot be written.
        """
        with writing(self._path):
            self._file.close()
        return (self._path,)


def describe_result(frame: Frame, view: View, result: InferResult, classes: Sequence[ClassInfo]) -> dict[str, object]:
    """Return a result as one JSON object; times are nanoseconds, boxes are in pixels of the recorded frame.

    Args:
        frame: As it was read.
        view: Its outputs in pixels of the frame.
        result: The outcome.
        classes: Of the model's card.
    """
    return {
        "source": frame.source,
        "sequence": frame.sequence,
        "capture_time_ns": frame.capture_time_ns,
        "log_time_ns": frame.log_time_ns,
        "frame_id": frame.frame_id,
        "id": result.id,
        "outcome": result.outcome.value,
        "model_name": result.model_name,
        "model_version": result.model_version,
        "model_hash": result.model_hash,
        "worker": result.worker,
        "stage": result.stage,
        "attempts": result.attempts,
        "bytes_sent": result.bytes_sent,
        "latency_ms": round(result.timings.total / 1e6, 3),
        "timings": asdict(result.timings),
        "outputs": describe_outputs(result.outputs, classes, view.mask),
        **_detections(view.boxes, classes),
        **describe_top(find_top(view.outputs, classes)),
        "error": None if result.error is None else {"code": result.error.code, "message": result.error.message},
    }


def _detections(boxes: Sequence[DetectedBox], classes: Sequence[ClassInfo]) -> dict[str, object]:
    if not boxes:
        return {}
    return {
        "detections": [
            {
                "class": None if each.number is None else class_name(each.number, classes),
                "score": round(each.score, 6),
                "box": [round(side, 2) for side in each.box],
            }
            for each in boxes
        ]
    }

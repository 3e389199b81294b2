"""Go on with a run where it stopped: its settings in `run.json`, and the frames that have a result in its log."""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial
from itertools import count, islice, zip_longest
from pathlib import Path
from typing import Any

from mqinfer.bags.frame import Frame
from mqinfer.edge_agent.output_files import writing
from mqinfer.edge_agent.sinks.jsonl_sink import RESULTS_FILE, TIMES_FILE
from mqinfer.edge_agent.sinks.sink import repair_earlier
from mqinfer.logs import printable
from mqinfer.protocol.errors import ConfigError, LinkError, ModelNotFound, Unanswered, error_from_code
from mqinfer.protocol.types import Outcome
from mqinfer.toml_files import read_text

log = logging.getLogger("mqinfer.edge_agent")
RUN_FILE = "run.json"
_FILES = (
    *("results.*", "times.*", "detections.*", "classes.*", "foxglove-layout.*", "results-ros2*", "overlay-*"),
    *("outputs", "outputs.*"),
)
"""Files and folders that sinks write, the parts included that a run that went on has kept under a number."""
_LONGEST, _MOST = 200, 16
"""Characters of a name or a setting that an error quotes, and how many settings."""
_MOST_LINE = 64 << 20
"""Bytes of a line; a file without an end of one does not get into memory."""
_INSTEAD = "choose another --output, or leave out --resume"

FramePlace = tuple[str, int, int, int]
"""Source, sequence, log time and time of capture of a frame."""


@dataclass(frozen=True, slots=True)
class Done:
    """The frames of a recording that have a result: the first ones, without a gap.

    Attributes:
        log: The file that has the results.
        count: How many.
        model_hash: Hash of the model that answered them; empty where none did.
        ends: Size of the log and of its times up to there, in bytes.
        is_copied: Whether whole lines follow, which a copy keeps.
    """

    log: Path
    count: int = 0
    model_hash: str = ""
    ends: tuple[int, int] = (0, 0)
    is_copied: bool = False

    def skip(self, frames: Iterator[Frame], is_stopped: Callable[[], bool] = lambda: False) -> bool:
        """Read over these frames; they are not decoded.

        Args:
            frames: Of the recording, from its beginning.
            is_stopped: Whether the frames end because the run is to end.

        Returns:
            Whether all were read; else the run is to end.

        Raises:
            ConfigError: The recording has other frames than the log.
            SourceError: The source broke off.
        """
        for number, line in enumerate(islice(_lines(self.log), self.count), 1):
            frame = next(frames, None)
            if frame is None and is_stopped():
                return False
            place = None if frame is None else _place(frame)
            if place != line.frame:
                raise ConfigError(
                    f"{self.log}: frame {number} is {_words(line.frame)}, but that of the recording is "
                    f"{_words(place)}; it is the log of another recording: {_INSTEAD}"
                )
        return True

    def cut(self) -> None:
        """Cut off what follows these frames in the log and its times.

        Raises:
            ConfigError: A file can't be written.
        """
        for path, end in zip((self.log, self.log.with_name(TIMES_FILE)), self.ends, strict=True):
            with writing(path):
                if path.is_file():
                    if self.is_copied:
                        _copy(path)
                    os.truncate(path, end)


NOTHING = Done(Path(RESULTS_FILE))
"""Place of a run that begins at the beginning."""


def _place(frame: Frame) -> FramePlace:
    return frame.source, frame.sequence, frame.log_time_ns, frame.capture_time_ns


def _words(place: FramePlace | None) -> str:
    if place is None:
        return "missing"
    return f"number {place[1]} of {_quoted(place[0])}, logged at {place[2]} ns and taken at {place[3]} ns"


def describe_run(settings: Sequence[object], leave_out: Sequence[str], **found: object) -> dict[str, Any]:
    """Return what results depend on, as JSON has it.

    Args:
        settings: Dataclasses; their fields may be others.
        leave_out: Names of fields that results don't depend on.
        found: What was found out when the run began; it replaces fields of these names.
    """
    described: dict[str, Any] = {}
    for each in settings:
        described |= _plain(each, frozenset(leave_out))
    plain: dict[str, Any] = json.loads(json.dumps(described | found))
    return plain


def _plain(value: Any, leave_out: frozenset[str]) -> Any:
    if is_dataclass(value):
        shown = {each.name for each in fields(value) if each.repr} - leave_out
        return {each.name: _plain(getattr(value, each.name), leave_out) for each in fields(value) if each.name in shown}
    if isinstance(value, Mapping):
        return {str(key): _plain(each, leave_out) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each, leave_out) for each in value]
    return value if isinstance(value, str | int | float | None) else str(value)


def begin_run(directory: Path, run: Mapping[str, Any]) -> None:
    """Put aside together what an earlier run has written into a folder, and write the settings of the one that begins.

    Raises:
        ConfigError: A file can't be moved or written.
    """
    path = directory / RUN_FILE
    with writing(path):
        directory.mkdir(parents=True, exist_ok=True)
        if path.is_file():
            _put_aside(directory)
        path.write_text(json.dumps(run, indent=1) + "\n", encoding="utf-8")


def _put_aside(directory: Path) -> None:
    """Move the files of a run into a folder of their own; the settings go last, since without them nothing goes on."""
    folder = next(each for number in count(1) if not (each := directory / f"run.{number}").exists())
    folder.mkdir()
    for path in sorted({each for pattern in _FILES for each in directory.glob(pattern)}):
        path.rename(folder / path.name)
    (directory / RUN_FILE).rename(folder / RUN_FILE)
    log.warning("%s: the files of an earlier run are kept in %s", directory, folder.name)
    for path in folder.rglob("*.mcap"):
        repair_earlier(path)


def open_earlier(directory: Path, run: Mapping[str, Any], rows: int | None = None) -> Done | None:
    """Find where the run in a folder stopped; its files stay as they are until `Done.skip` has seen the recording.

    A line that was not finished is to be cut off. So are the lines from the first frame on that was cancelled, expired,
    rejected or not sent for want of a worker or a connection, or that has no row in the Parquet files: a copy of the
    whole log is kept under a number then.

    Args:
        directory: The folder.
        run: What this run's results depend on.
        rows: How many frames have their row in the Parquet files; None if the run has no such files.

    Returns:
        The frames that have a result; None if there is no log.

    Raises:
        ConfigError: The log is of another run or damaged, or can't be read.
    """
    path = directory / RESULTS_FILE
    if not path.is_file():
        return None
    _check_same(directory / RUN_FILE, run)
    times = directory / TIMES_FILE
    if times.exists() and not times.is_file():
        raise ConfigError(f"{times} is no file; {_INSTEAD}")
    done, goes_on = Done(path, model_hash=str(run.get("model_hash", ""))), True
    with writing(path):
        for number, (one, other) in enumerate(zip_longest(_lines(path), islice(_lines(times), rows)), 1):
            if one is None:  # a frame's line in the times is written first
                break
            _check_line(path, number, one, other, done.model_hash)
            done = replace(done, model_hash=done.model_hash or one.model_hash)
            if other is None or not one.is_final:
                goes_on = False
            elif goes_on:
                done = replace(done, count=number, ends=(one.end, other.end))
    return replace(done, is_copied=not goes_on)


def _check_line(path: Path, number: int, one: _Line, other: _Line | None, model_hash: str) -> None:
    """Raise a ConfigError where a line of the log is of another frame than that of the times, or of another model."""
    if other is not None and one.frame[:2] != other.frame[:2]:
        raise ConfigError(
            f"{path.with_name(TIMES_FILE)}, line {number}: number {other.frame[1]} of {_quoted(other.frame[0])}, but "
            f"{RESULTS_FILE} has number {one.frame[1]} of {_quoted(one.frame[0])} there; {_INSTEAD}"
        )
    if one.model_hash and model_hash not in {"", one.model_hash}:
        raise ConfigError(
            f"{path}, line {number}: of the model {_quoted(one.model_hash)}, and not of {model_hash} as the run; "
            f"{_INSTEAD}"
        )


def _check_same(path: Path, run: Mapping[str, Any]) -> None:
    if path.exists() and not path.is_file():
        raise ConfigError(f"{path} is no file; {_INSTEAD}")
    try:
        earlier = dict(json.loads(read_text(path)).items())
        different = [
            f"{_quoted(name)} was {_shown(earlier.get(name))} and is {_shown(run.get(name))}"
            for name in sorted({*earlier, *run})
            if earlier.get(name) != run.get(name)
        ]
    except FileNotFoundError:
        raise ConfigError(
            f"{path.parent}: there is {RESULTS_FILE} but no {RUN_FILE}, so its settings are not known; {_INSTEAD}"
        ) from None
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        why = "expected a JSON object" if isinstance(error, AttributeError) else error
        raise ConfigError(f"{path}: {why}; {_INSTEAD}") from error
    if different:
        more = [f"and {len(different) - _MOST} more"] * (len(different) > _MOST)
        raise ConfigError(
            f"{path.parent} holds another run: {'; '.join(different[:_MOST] + more)}; use its settings, {_INSTEAD}"
        )


def _quoted(text: str) -> str:
    """Return a text of a file on one line, no longer than an error quotes."""
    return printable(text)[:_LONGEST]


def _shown(value: object) -> str:
    return json.dumps(value)[:_LONGEST]


@dataclass(frozen=True, slots=True)
class _Line:
    end: int
    frame: FramePlace
    is_final: bool
    model_hash: str


def _lines(path: Path) -> Iterator[_Line]:
    """Yield the whole lines of a log; the last one may be torn.

    Raises:
        ConfigError: Another one can't be read.
    """
    if not path.is_file():
        return
    end = 0
    with path.open("rb") as file:
        for number, text in enumerate(iter(partial(file.readline, _MOST_LINE), b""), 1):
            end += len(text)
            line = _line(end, text) if text.endswith(b"\n") else None
            if line is not None:
                yield line
            elif file.read(1):
                raise ConfigError(f"{path}, line {number}: damaged, so where the run stopped is not known; {_INSTEAD}")


def _line(end: int, text: bytes) -> _Line | None:
    try:
        read = json.loads(text)
        times = int(read.get("log_time_ns", 0)), int(read.get("capture_time_ns", 0))
        place = str(read["source"]), int(read["sequence"]), *times
        return _Line(end, place, _is_final(read), str(read.get("model_hash", "")))
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        return None


def _is_final(line: Mapping[str, Any]) -> bool:
    """Return whether an outcome is the frame's own, and not of the circumstances."""
    outcome = Outcome(line.get("outcome", Outcome.OK))
    if outcome is not Outcome.ERROR:
        return outcome is Outcome.OK
    error = error_from_code(str(line["error"]["code"]), "")
    return not isinstance(error, Unanswered | ModelNotFound | LinkError)


def _copy(path: Path) -> None:
    numbered = (path.with_suffix(f".{number}{path.suffix}") for number in count(1))
    free = next(each for each in numbered if not each.exists())
    shutil.copyfile(path, free)
    log.warning("%s: frames that lack a result are sent again; the whole file is kept as %s", path, free.name)

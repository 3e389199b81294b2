import json
import os
import shutil
import threading
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from mqinfer.client.requester import Requester
from mqinfer.client.window import Policy
from mqinfer.edge_agent import model_run, resuming
from mqinfer.edge_agent.reporting.report import SessionReport
from mqinfer.edge_agent.resuming import describe_run as describe
from mqinfer.edge_agent.session import run_sessions
from mqinfer.edge_agent.settings import ReplayOptions, ReplaySettings
from mqinfer.lab.drives.recording import write_drive
from mqinfer.protocol.errors import ConfigError
from mqinfer.protocol.types import Outcome
from tests.patience import PATIENCE_S
from tests.settings import changed, settings_of

FRAMES = 10
ECHO = ("image", "UINT8", [-1, 16, 24, 3])


@pytest.fixture(scope="module")
def drives(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two recordings."""
    folder = tmp_path_factory.mktemp("drives")
    return tuple(  # type: ignore[return-value]
        write_drive(folder / f"{seed}.bag", ros=1, frames=FRAMES, seed=seed, width=48, height=32, truth_topic=False)
        for seed in (1, 2)
    )


@pytest.fixture
def requester(edge: Callable[..., Requester], write_echo: Callable[..., Path]) -> Requester:
    """A client of two echo models."""
    write_echo("other", ECHO)
    return edge(write_echo("echo", ECHO), "echo", "other")


@pytest.fixture
def settings(drives: tuple[Path, Path], tmp_path: Path) -> ReplaySettings:
    """Settings of a run into `out`."""
    options = ReplayOptions("echo", window=4, card_timeout=PATIENCE_S)
    return settings_of(drives[0], options, folder=tmp_path / "out", sinks=("jsonl",))


def run(settings: ReplaySettings, requester: Requester, *models: str) -> list[SessionReport]:
    """Run a session quietly."""
    stop, console = threading.Event(), Console(file=StringIO())
    return run_sessions(settings, models or ["echo"], requester, broker="memory", stop=stop, console=console)


def stopped(out: Path, frames: int, torn: bytes = b"") -> None:
    """Make the files of a whole run those of one that stopped after some frames."""
    for name in ("results.jsonl", "times.jsonl"):
        lines = (out / name).read_bytes().splitlines(keepends=True)
        (out / name).write_bytes(b"".join(lines[:frames]) + torn)


@pytest.mark.parametrize("torn", [b"", b'{"source": "/cam', b"\0\0\0\n"], ids=["whole", "torn", "zeros"])
@pytest.mark.parametrize("frames", [0, 4, FRAMES])
def test_a_run_goes_on_where_it_stopped(
    requester: Requester, settings: ReplaySettings, frames: int, torn: bytes
) -> None:
    """The log is that of an undisturbed run, byte for byte, and only the missing frames were sent."""
    assert settings.outputs.folder
    run(settings, requester)
    whole = (settings.outputs.folder / "results.jsonl").read_bytes()
    stopped(settings.outputs.folder, frames, torn)
    (report,) = run(changed(settings, resume=True), requester)
    assert report.broke_off is None
    assert report.snapshot.outcomes[Outcome.OK] == report.snapshot.frames_read == FRAMES - frames
    assert (settings.outputs.folder / "results.jsonl").read_bytes() == whole
    times = [json.loads(line) for line in (settings.outputs.folder / "times.jsonl").read_text().splitlines()]
    assert [line["sequence"] for line in times] == list(range(FRAMES))
    assert not list(settings.outputs.folder.glob("*.1.jsonl"))


@pytest.mark.parametrize("sinks", [("csv",), ("pictures",), ("jsonl", "csv")])
def test_results_never_stay_beside_the_settings_of_another_run(
    requester: Requester, settings: ReplaySettings, sinks: tuple[str, ...]
) -> None:
    """A run of other settings, and with other sinks, moves all files of the earlier one away before it writes."""
    assert settings.outputs.folder
    out = settings.outputs.folder
    run(changed(settings, encoding="jpeg:90", sinks=("jsonl", "pictures", "npz"), picture_every=1), requester)
    whole = {path.name for path in out.iterdir()}
    run(changed(settings, encoding="jpeg:5", sinks=sinks, picture_every=5), requester)
    assert {path.name for path in (out / "run.1").iterdir()} == whole
    assert len(list(out.glob("overlay-*"))) == (2 if "pictures" in sinks else 0)
    (report,) = run(changed(settings, encoding="jpeg:5", resume=True), requester)
    assert report.snapshot.frames_read == (0 if "jsonl" in sinks else FRAMES)
    with pytest.raises(ConfigError, match="encoding"):
        run(changed(settings, encoding="jpeg:90", resume=True), requester)


def test_without_an_earlier_run_it_begins_at_the_beginning(requester: Requester, settings: ReplaySettings) -> None:
    """A service can be started with it each time."""
    (report,) = run(changed(settings, resume=True), requester)
    assert report.snapshot.outcomes[Outcome.OK] == FRAMES


def test_each_of_several_models_goes_on_from_its_own_frame(requester: Requester, settings: ReplaySettings) -> None:
    """One had stopped earlier than the other."""
    assert settings.outputs.folder
    run(settings, requester, "echo", "other")
    files = [settings.outputs.folder / model / "results.jsonl" for model in ("echo", "other")]
    whole = [file.read_bytes() for file in files]
    stopped(files[0].parent, 7)
    stopped(files[1].parent, 2)
    reports = run(changed(settings, resume=True), requester, "echo", "other")
    assert [report.snapshot.frames_read for report in reports] == [FRAMES - 7, FRAMES - 2]
    assert [file.read_bytes() for file in files] == whole


@pytest.mark.parametrize(
    "error",
    [
        {"outcome": "cancelled", "error": {"code": "cancelled"}},
        {"outcome": "expired", "error": {"code": "expired"}},
        {"outcome": "error", "error": {"code": "no_worker"}},
    ],
    ids=lambda error: str(error["error"]["code"]),
)
def test_frames_that_were_not_answered_are_sent_again(
    requester: Requester, settings: ReplaySettings, error: dict[str, Any]
) -> None:
    """From the first one on; the log as it was is kept under a number."""
    assert settings.outputs.folder
    run(settings, requester)
    results = settings.outputs.folder / "results.jsonl"
    whole = results.read_bytes()
    lines = whole.splitlines()
    lines[6] = json.dumps(json.loads(lines[6]) | error).encode()
    results.write_bytes(b"\n".join(lines) + b"\n")
    (report,) = run(changed(settings, resume=True), requester)
    assert report.snapshot.frames_read == FRAMES - 6
    assert results.read_bytes() == whole
    assert (settings.outputs.folder / "results.1.jsonl").read_bytes().splitlines() == lines


def test_a_model_that_was_replaced_adds_nothing(
    requester: Requester, settings: ReplaySettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a version that is not the default one the hash is known with the first result only."""
    assert settings.outputs.folder
    monkeypatch.setattr(
        model_run, "describe_run", lambda *parts, **found: describe(*parts, **found | {"model_hash": ""})
    )
    run(settings, requester)
    stopped(settings.outputs.folder, 4)
    results = settings.outputs.folder / "results.jsonl"
    hashed = json.loads(results.read_text().splitlines()[0])["model_hash"]
    results.write_text(results.read_text().replace(hashed, "sha256:00"))
    before = results.read_bytes()
    (report,) = run(changed(settings, resume=True), requester)
    assert isinstance(report.broke_off, ConfigError)
    assert f"goes on with results of the model sha256:00, but echo 1 is now {hashed}" in str(report.broke_off)
    assert results.read_bytes() == before


def other_source(settings: ReplaySettings, drives: tuple[Path, Path]) -> ReplaySettings:
    """Read another recording."""
    return changed(settings, sources=[str(drives[1])])


def changed_source(settings: ReplaySettings, drives: tuple[Path, Path]) -> ReplaySettings:
    """Read a file of the same name with another recording in it."""
    assert settings.outputs.folder
    moved = settings.outputs.folder.parent / "moved.bag"
    shutil.copy(drives[1], moved)
    run_file = settings.outputs.folder / "run.json"
    run_file.write_text(run_file.read_text().replace(str(drives[0]), str(moved)))
    return changed(settings, sources=[str(moved)])


def other_hash(settings: ReplaySettings, _: tuple[Path, Path]) -> ReplaySettings:
    """Be the log of a model that was another one."""
    assert settings.outputs.folder
    path = settings.outputs.folder / "run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"model_hash": "sha256:00"}))
    return settings


def damaged(settings: ReplaySettings, _: tuple[Path, Path]) -> ReplaySettings:
    """Have a line in the middle that is none."""
    assert settings.outputs.folder
    path = settings.outputs.folder / "results.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:3], b"\xff{]\n", *lines[4:]]))
    return settings


def of_two_runs(settings: ReplaySettings, _: tuple[Path, Path]) -> ReplaySettings:
    """Have times that belong to other frames."""
    assert settings.outputs.folder
    path = settings.outputs.folder / "times.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[1:]))
    return settings


def without_run(settings: ReplaySettings, _: tuple[Path, Path]) -> ReplaySettings:
    """Have no settings beside the log."""
    assert settings.outputs.folder
    (settings.outputs.folder / "run.json").unlink()
    return settings


def damaged_run(settings: ReplaySettings, _: tuple[Path, Path]) -> ReplaySettings:
    """Have settings that are no JSON object."""
    assert settings.outputs.folder
    (settings.outputs.folder / "run.json").write_text("[1")
    return settings


def _edited(settings: ReplaySettings, edit: Callable[[list[dict[str, Any]]], None], *names: str) -> ReplaySettings:
    """Change the lines of logs."""
    assert settings.outputs.folder
    for name in names or ("results.jsonl",):
        path = settings.outputs.folder / name
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        edit(lines)
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return settings


def of_another_time(field: str) -> Callable[..., ReplaySettings]:
    """Have a frame of another time in the middle, and a line behind it that would be cut off."""

    def edit(lines: list[dict[str, Any]]) -> None:
        lines[4][field] += 1
        lines[8]["outcome"] = "cancelled"

    return lambda settings, _: _edited(settings, edit)


def of_another_model(settings: ReplaySettings, _: tuple[Path, Path]) -> ReplaySettings:
    """Have a line in the middle that another model has answered."""
    return _edited(settings, lambda lines: lines[4].update(model_hash="sha256:00"))


def of_another_model_alone(settings: ReplaySettings, _: tuple[Path, Path]) -> ReplaySettings:
    """Have only lines that another model has answered, and settings that name the model of today."""

    def edit(lines: list[dict[str, Any]]) -> None:
        for line in lines:
            line["model_hash"] = "sha256:00"

    return _edited(settings, edit)


def too_long(settings: ReplaySettings, _: tuple[Path, Path]) -> ReplaySettings:
    """Have the last line twice, in both files."""
    return _edited(settings, lambda lines: lines.append(lines[-1]), "results.jsonl", "times.jsonl")


def late(**fields: Any) -> Callable[..., ReplaySettings]:
    """Have a line that is to be sent again, and one behind it with other fields."""

    def edit(lines: list[dict[str, Any]]) -> None:
        lines[3]["outcome"] = "expired"
        lines[7].update(fields)

    return lambda settings, _: _edited(settings, edit)


def piped(name: str) -> Callable[..., ReplaySettings]:
    """Have a pipe in place of a file: who reads it waits for ever."""

    def change(settings: ReplaySettings, _: tuple[Path, Path]) -> ReplaySettings:
        assert settings.outputs.folder
        path = settings.outputs.folder / name
        path.unlink()
        os.mkfifo(path)
        return settings

    return change


def run_of(text: str) -> Callable[..., ReplaySettings]:
    """Have other settings beside the log."""

    def change(settings: ReplaySettings, _: tuple[Path, Path]) -> ReplaySettings:
        assert settings.outputs.folder
        (settings.outputs.folder / "run.json").write_text(text)
        return settings

    return change


def deep(settings: ReplaySettings, _: tuple[Path, Path]) -> ReplaySettings:
    """Have a line in the middle that is nested deeper than Python goes."""
    assert settings.outputs.folder
    path = settings.outputs.folder / "results.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:3], b"[" * 100_000 + b"]" * 100_000 + b"\n", *lines[4:]]))
    return settings


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (other_source, r"holds another run: sources was \[\".*1.bag\"\] and is \[\".*2.bag\"\]"),
        (changed_source, r"frame \d+ is number \d+ of /camera/image_raw, .* the log of another recording"),
        (other_hash, r"model_hash was \"sha256:00\" and is \"sha256:"),
        (lambda settings, _: changed(settings, encoding="raw"), 'encoding was "jpeg:90" and is "raw"'),
        (damaged, r"results.jsonl, line 4: damaged"),
        (of_two_runs, r"times.jsonl, line 1: number 1 of /camera/image_raw, but results.jsonl has number 0"),
        (without_run, "no run.json"),
        (damaged_run, r"run.json: "),
        (of_another_time("log_time_ns"), r"results.jsonl: frame 5 is .* the log of another recording"),
        (of_another_time("capture_time_ns"), r"results.jsonl: frame 5 is .* the log of another recording"),
        (of_another_model, r"results.jsonl, line 5: of the model sha256:00"),
        (of_another_model_alone, r"results.jsonl, line 1: of the model sha256:00"),
        (too_long, r"frame 11 is .* but that of the recording is missing"),
        (run_of("[]"), r"run.json: expected a JSON object"),
        (run_of("[" * 100_000 + "]" * 100_000), r"run.json: maximum recursion depth"),
        (run_of('{"sources": ' + "[" * 700 + "]" * 700 + "}"), "holds another run: .*sources was"),
        (run_of(json.dumps({"a\nb": 1})), r"holds another run: a\\nb was 1"),
        (
            run_of(json.dumps({f"0{number:03}": 1 for number in range(1000)})),
            r"; 0015 was 1 and is null; and \d+ more;",
        ),
        (run_of(" " * (1 << 20) + "{}"), r"run.json: .*it has more than 1048576 bytes"),
        (piped("run.json"), r"run.json is no file"),
        (piped("times.jsonl"), r"times.jsonl is no file"),
        (late(model_hash="sha256:00"), r"results.jsonl, line 8: of the model sha256:00"),
        (late(sequence=1000), r"times.jsonl, line 8: number \d+ of .*, but results.jsonl has number 1000"),
        (late(outcome="maybe"), r"results.jsonl, line 8: damaged"),
        (late(source="a\n" * 1000), r"has number \d+ of (a\\n){66}"),
        (deep, r"results.jsonl, line 4: damaged"),
        (
            lambda settings, _: _edited(settings, lambda lines: lines[3].update(sequence=float("inf"))),
            "line 4: damaged",
        ),
    ],
)
def test_another_runs_log_is_refused_and_stays(
    requester: Requester, settings: ReplaySettings, drives: tuple[Path, Path], change: Callable[..., Any], words: str
) -> None:
    """The message names the difference; no byte of the files changes."""
    assert settings.outputs.folder
    run(settings, requester)
    other = change(settings, drives)
    before = contents(settings.outputs.folder)
    try:
        (report,) = run(changed(other, resume=True), requester)
        error = report.broke_off
    except ConfigError as raised:
        error = raised
    assert isinstance(error, ConfigError)
    with pytest.raises(ConfigError, match=words):
        raise error
    assert contents(settings.outputs.folder) == before


def test_a_line_that_does_not_end(
    requester: Requester, settings: ReplaySettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is no torn one, and of a log that is gigabytes of nothing a part is read."""
    assert settings.outputs.folder
    run(settings, requester)
    with (settings.outputs.folder / "results.jsonl").open("ab") as file:
        file.write(bytes(30_000))
    monkeypatch.setattr(resuming, "_MOST_LINE", 10_000)
    with pytest.raises(ConfigError, match=r"line 11: damaged"):
        run(changed(settings, resume=True), requester)


def contents(folder: Path) -> dict[Path, bytes]:
    """Return what is in the files of a folder; nothing of a pipe."""
    return {path: path.read_bytes() if path.is_file() else b"" for path in folder.iterdir()}


@pytest.mark.parametrize(
    "change",
    [
        {"folder": None},
        {"sinks": ("mcap",)},
        {"loop": True},
        {"sources": ["camera:0"]},
        {"options": ReplayOptions("echo", policy=Policy.LATEST)},
        {"spool": Path("spool")},
        {"cascade": "cascade.toml"},
    ],
    ids=str,
)
def test_what_has_no_place_to_go_on_is_refused(settings: ReplaySettings, change: dict[str, Any]) -> None:
    """Before anything is opened."""
    with pytest.raises(ConfigError, match="--resume"):
        run(changed(settings, resume=True, **change), None)  # type: ignore[arg-type]

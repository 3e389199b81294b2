"""`mqinfer demo`: the main job on real parts, in one command."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from mqinfer.broker.mosquitto.server import MosquittoServer
from mqinfer.cli.options import with_log_options
from mqinfer.protocol.errors import ConfigError, MqinferError

_MODEL = "drive_segmentation_onnx"
_INSTANCES = 2
_LEAST_IOU = 0.80


@with_log_options
def demo(
    folder: Annotated[Path, typer.Argument(help="Folder for models, recordings and results.")] = Path("demo-output"),
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the folder if it exists.")] = False,
) -> None:
    """Replay two synthetic drives through a private Mosquitto to two competing workers, in about a minute."""
    if folder.exists():
        if not overwrite:
            raise ConfigError(f"{folder} already exists; choose another folder, or replace it with --overwrite")
        shutil.rmtree(folder)
    (folder / "log").mkdir(parents=True)

    _step("model: a small segmentation network, trained on other drives than those below")
    _build_model(folder / "models")

    _step("recordings: a ROS 1 and a ROS 2 bag of Bayer mosaics, with their true classes")
    drives = {"ros1": (folder / "drive-ros1.bag", ()), "ros2": (folder / "drive-ros2", ("--bit-depth", "12"))}
    _synthesize(
        (drives["ros1"][0], "--ros", "1", "--seed", "900001"),
        (drives["ros2"][0], "--seed", "900002", "--encoding", "bayer_grbg16", "--bits", "12"),
    )
    _run("bag", "info", folder / "drive-ros1.bag")

    _step("broker: a private Mosquitto; workers: two processes that compete for the frames")
    with MosquittoServer() as broker, _workers(folder, broker.url):
        for name, (drive, options) in drives.items():
            _step(f"edge: replay {drive}")
            output = folder / name
            asked = ("--model", _MODEL, "--broker", broker.url, "--topic", "/camera/image_raw")
            results = ("--output", output, "--summary", output / "summary.json")
            _run("replay", drive, *asked, *options, *results)

    _step("scores against the truth")
    _score([(drive, folder / name / "results.mcap") for name, (drive, _) in drives.items()])

    _step("files written")
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        typer.echo(str(path))


def _step(what: str) -> None:
    typer.echo(f"\n== {what}")


def _run(*arguments: str | Path) -> None:
    """Run a subcommand in a process of its own, as a user would; end with its exit code where it fails."""
    code = subprocess.call(_command(*arguments))  # noqa: S603 - our own command
    if code:
        raise typer.Exit(code)


def _command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "mqinfer", *map(str, arguments)]


def _build_model(repository: Path) -> None:
    from mqinfer.lab import zoo
    from mqinfer.lab.drives.lessons import lesson_drive, lessons_key
    from mqinfer.lab.drives.synthetic import CLASSES

    lessons = zoo.Lessons(lesson_drive, CLASSES, lessons_key())
    (built,) = zoo.build(repository, [_MODEL], lessons=lessons)
    typer.echo(str(built.path))


def _synthesize(*drives: tuple[Path | str, ...]) -> None:
    """Render drives, all at the same time."""
    commands = [_command("bag", "synth", *each, "--frames", "40") for each in drives]
    processes = [subprocess.Popen(command) for command in commands]  # noqa: S603 - our own command
    codes = [process.wait() for process in processes]
    if any(codes):
        raise typer.Exit(max(codes))


@contextmanager
def _workers(folder: Path, url: str) -> Iterator[None]:
    """Run worker processes while the body runs; what they print goes to a log and, until they are ready, is shown."""
    command = _command("worker", "--repository", folder / "models", "--instances", str(_INSTANCES), "--broker", url)
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, encoding="utf-8")  # noqa: S603 - our own
    all_ready = threading.Event()

    def read() -> None:
        ready = 0
        with (folder / "log" / "workers.log").open("w", encoding="utf-8") as log:
            for line in server.stderr or ():
                log.write(line)
                if not all_ready.is_set():
                    typer.echo(line, nl=False)
                ready += " ready: " in line
                if ready == _INSTANCES:
                    all_ready.set()
        all_ready.set()

    reader = threading.Thread(target=read, name="mqinfer-demo-log")
    reader.start()
    try:
        all_ready.wait()
        if server.poll() is not None:
            raise MqinferError("the workers did not start; their messages are printed above")
        yield
    finally:
        server.terminate()
        server.wait()
        reader.join()


def _score(replays: list[tuple[Path, Path]]) -> None:
    from mqinfer.lab.drives.scoring import score_replays

    scores = score_replays(replays)
    for name, score in scores.per_class.items():
        typer.echo(f"  {name:12} {score:.3f}")
    typer.echo(f"mean intersection over union of {len(scores.per_class)} classes: {scores.mean_iou:.3f}")
    if scores.mean_iou < _LEAST_IOU:
        raise MqinferError(
            f"the mean intersection over union is {scores.mean_iou:.3f}; expected at least {_LEAST_IOU:.2f}"
        )

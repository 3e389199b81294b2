from __future__ import annotations

import json
import os
import platform
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from mqinfer._version import __version__
from mqinfer.cli.app import app
from mqinfer.cloud_worker.serving.worker import Worker
from mqinfer.lab.drives.recording import write_drive
from tests import commands
from tests.commands import mqinfer, run_main

Serve = Callable[..., Worker]
WriteEcho = Callable[..., Path]
PICTURE = np.random.default_rng(0).integers(0, 255, (32, 48, 3), np.uint8)
NOWHERE = "mqtt://127.0.0.1:1"


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ([], ["demo", "broker", "worker", "replay", "infer", "bench", "models", "bag"]),
        (["broker"], ["--port", "--bind", "Mosquitto"]),
        (
            ["worker"],
            [
                "--repository",
                "--broker",
                "--instances",
                "--device",
                "mqtt://[user@]host[:port]",
                "--password-file",
                "--take-over",
            ],
        ),
        (["replay"], ["source", "--model", "--topic", "--rate", "--window", "--encoding", "--output", "--summary"]),
        (["infer"], ["model", "--input", "NAME=FILE", "--output"]),
        (["models", "build"], ["--model", "--list", "--train"]),
        (["demo"], ["folder", "--overwrite"]),
        (["bag", "info"], ["file"]),
        (["bag", "synth"], ["--frames", "--seed", "--encoding"]),
    ],
)
def test_the_help_lists_the_options(command: list[str], words: list[str]) -> None:
    """Each subcommand's help names the options that scripts use."""
    result = CliRunner().invoke(app, [*command, "--help"], env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    for word in words:
        assert word in result.output


def test_the_version() -> None:
    """`--version` prints it with the interpreter's, and nothing else."""
    result = CliRunner().invoke(app, ["--version"])
    assert (result.exit_code, result.output) == (0, f"mqinfer {__version__} (Python {platform.python_version()})\n")


def test_processes_of_models_do_not_import_the_commands() -> None:
    """Each begins with an import of the command's main module, as multiprocessing does it."""
    script = (
        "import sys, mqinfer.__main__, mqinfer.cloud_worker.supervision.process\n"
        "print(sorted({'mqinfer.cli.app', 'typer', 'rich', 'aiohttp', 'grpc'} & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert found.stdout == "[]\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["worker"],
        ["replay"],
        ["replay", "x.bag", "--model", "m", "--window", "0"],
        ["replay", "x.bag", "--model", "m", "--demosaic", "guess"],
        ["replay", "x.bag", "--model", "m", "--rate", "-1"],
        ["replay", "x.bag", "--model", "m", "--timeout", "inf"],
        ["replay", "x.bag", "--model", "m", "--timeout", "nan"],
        ["infer", "m"],
        ["infer", "m", "--input", "x=y.npy", "--timeout", "0"],
        ["broker", "--port", "99999"],
    ],
)
def test_wrong_options_exit_with_2(arguments: list[str]) -> None:
    """Arguments that the parser refuses."""
    assert CliRunner().invoke(app, arguments).exit_code == 2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--sink", "csv"], "--sink csv writes into the folder of --output"),
        (["--sink", "film", "--output", "results"], "unknown sink 'film'; expected csv"),
    ],
)
def test_kinds_of_results_that_nothing_writes(
    capsys: pytest.CaptureFixture[str], options: list[str], words: str
) -> None:
    """An unknown kind, and one without a folder, are errors of usage before anything is opened."""
    assert run_main("replay", "x.bag", "--model", "m", *options) == 2
    assert words in capsys.readouterr().err


def broken(folder: Path) -> dict[str, Path]:
    """Write files whose content does not match their suffix."""
    files = {
        "empty.npy": b"",
        "text.npy": b"not an array",
        "cut.npy": b"\x93NUMPY\x01\x00v\x00{'descr': '<f4', 'fortran_order': False, 'shape': (4,), }\n",
        "ten.jpg": b"\xff\xd8\xff\xe0 ten by",
        "text.bag": b"not a bag",
        "text.mcap": b"not a bag",
    }
    for name, content in files.items():
        (folder / name).write_bytes(content)
    np.save(folder / "pickled.npy", np.array([{}], object), allow_pickle=True)
    np.savez(folder / "archive.npz", x=np.zeros(1))
    return {name: folder / name for name in (*files, "pickled.npy", "archive.npz", "missing.npy")}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x", "NAME=FILE"),
        ("=a.npy", "NAME=FILE"),
        ("x=", "NAME=FILE"),
        ("x=FOLDER/missing.npy", "No such file"),
        ("x=FOLDER", "can't read"),
        ("x=FOLDER/empty.npy", "can't read"),
        ("x=FOLDER/text.npy", "can't read"),
        ("x=FOLDER/cut.npy", "can't read"),
        ("x=FOLDER/pickled.npy", "can't read"),
        ("x=FOLDER/archive.npz", "can't read"),
        ("x=FOLDER/ten.jpg", "can't read"),
    ],
)
def test_a_wrong_input_is_a_wrong_option(tmp_path: Path, text: str, words: str, capfd: Any) -> None:
    """One message with the option, the file and the reason; exit code 2; no connection to a broker."""
    broken(tmp_path)
    assert run_main("infer", "m", "--broker", NOWHERE, "--input", text.replace("FOLDER", str(tmp_path))) == 2
    message = capfd.readouterr().err
    assert "--input" in message
    assert words in message
    assert "Traceback" not in message


@pytest.fixture(scope="session")
def drive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small synthetic drive."""
    return write_drive(tmp_path_factory.mktemp("drive") / "drive.bag", ros=1, frames=5, seed=1, width=96, height=64)


def encoded(name: str, pixels: np.ndarray[Any, Any]) -> bytes:
    """Encode a picture, RGB or RGBA, by OpenCV, as other programs do."""
    import cv2

    order = pixels if pixels.ndim == 2 else pixels[:, :, [2, 1, 0, 3][: pixels.shape[2]]]
    return bytes(cv2.imencode(Path(name).suffix, order)[1].tobytes())


def test_strings_to_a_model(url: str, serve: Serve, write_echo: WriteEcho, tmp_path: Path, capfd: Any) -> None:
    """The bytes of a file are one string, with the axes of the input; an array of strings is one of byte strings."""
    repository = write_echo("words", ("word", "BYTES", [-1, 1]))
    write_echo("file", ("content", "BYTES", []))
    serve(url, repository, "words")
    serve(url, repository, "file")
    (tmp_path / "picture.jpg").write_bytes(b"no array \xe2\x82\xac")
    assert run_main("infer", "file", "--broker", url, "--input", f"content=@{tmp_path}/picture.jpg") == 0
    assert json.loads(capfd.readouterr().out)["outputs"]["content"]["values"] == ["no array €"]
    for kind in ("S", "U"):
        np.save(tmp_path / "words.npy", np.array([["ab"], ["c"]], kind))
        assert run_main("infer", "words", "--broker", url, "--input", f"word={tmp_path}/words.npy") == 0
        assert json.loads(capfd.readouterr().out)["outputs"]["word"]["values"] == ["ab", "c"]


def test_infer_in_every_form(url: str, serve: Serve, write_echo: WriteEcho, tmp_path: Path, capfd: Any) -> None:
    """Arrays and pictures are inputs, JSON is printed, and the outputs are in the given file."""
    repository = write_echo("echo", ("x", "FP32", [-1, 4]))
    write_echo("eye", ("image", "UINT8", [-1, 32, 48, 3]))
    serve(url, repository, "echo")
    serve(url, repository, "eye")
    np.save(tmp_path / "x.npy", np.arange(4, dtype=np.float32).reshape(1, 4))
    output = tmp_path / "result"  # without a suffix, and none is added
    assert run_main("infer", "echo", "--broker", url, "--input", f"x={tmp_path}/x.npy", "--output", output) == 0
    printed = json.loads(capfd.readouterr().out)
    assert printed["outputs"]["x"]["values"] == [0, 1, 2, 3]
    assert printed["written"] == str(output)
    np.testing.assert_array_equal(np.load(output)["x"], [[0, 1, 2, 3]])
    assert run_main("infer", "echo", "--broker", url, "--input", f"x={tmp_path}/x.npy", "--output", output) == 0
    assert "is kept as result.1" in capfd.readouterr().err
    np.testing.assert_array_equal(np.load(tmp_path / "result.1")["x"], [[0, 1, 2, 3]])
    pictures: dict[str, np.ndarray[Any, Any]] = {
        "rgb.png": PICTURE,
        "grey.png": PICTURE[:, :, 0],
        "deep.png": PICTURE.astype(np.uint16) * 257,
        "rgb.jpg": PICTURE,
        "transparent.png": np.concatenate([PICTURE, PICTURE[:, :, :1]], axis=2),
    }
    for name, pixels in pictures.items():
        file = tmp_path / name
        file.write_bytes(encoded(name, pixels))
        assert run_main("infer", "eye", "--broker", url, "--input", f"image={file}", "--output", output) == 0
        capfd.readouterr()
        seen = np.load(output)["image"][0]
        expected = np.broadcast_to(PICTURE[:, :, :1], PICTURE.shape) if name == "grey.png" else PICTURE
        assert seen.shape == expected.shape
        if not name.endswith("jpg"):
            np.testing.assert_array_equal(seen, expected)


def test_infer_prints_the_top_classes(
    url: str, serve: Serve, write_echo: WriteEcho, tmp_path: Path, capfd: Any
) -> None:
    """The table holds the best classes of each entry with their labels; a model without scores is refused."""
    labels = "".join(f'[[classes]]\nname = "{name}"\ncolour = [0, 0, 0]\n' for name in ("cat", "dog", "a:b", "eel"))
    serve(url, write_echo("echo", ("x", "FP32", [-1, 4]), config=labels))
    np.save(tmp_path / "x.npy", np.array([[1, 5, 10, 4], [0.5, 0, 0, -1]], np.float32))
    assert run_main("infer", "echo", "--broker", url, "--input", f"x={tmp_path}/x.npy", "--top", 2) == 0
    rows = [line.split() for line in capfd.readouterr().out.splitlines() if line.split()[:1] == ["x"]]
    assert rows == [
        ["x", "0", "1", "10.000000", "2", "a:b"],
        ["x", "0", "2", "5.000000", "1", "dog"],
        ["x", "1", "1", "0.500000", "0", "cat"],
        ["x", "1", "2", "0.000000", "1", "dog"],
    ]
    serve(url, write_echo("count", ("n", "INT64", [-1])), "count")
    np.save(tmp_path / "n.npy", np.array([1]))
    assert run_main("infer", "count", "--broker", url, "--input", f"n={tmp_path}/n.npy", "--top", 2) == 2
    assert "no floating-point output; its outputs are n INT64" in capfd.readouterr().err


def test_an_output_that_can_not_be_written(
    url: str, serve: Serve, write_echo: WriteEcho, tmp_path: Path, capfd: Any
) -> None:
    """The message holds the file and the system's error."""
    serve(url, write_echo())
    np.save(tmp_path / "x.npy", np.zeros((1, 4), np.float32))
    place = tmp_path / "no" / "result.npz"
    assert run_main("infer", "echo", "--broker", url, "--input", f"x={tmp_path}/x.npy", "--output", place) == 2
    assert f"cannot write {place}: " in capfd.readouterr().err


def test_two_outputs_of_one_name_at_once(
    url: str, serve: Serve, write_echo: WriteEcho, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is written under a name of its own before, so that the file is whole."""
    serve(url, write_echo())
    np.save(tmp_path / "x.npy", np.zeros((1, 4), np.float32))
    output, write = tmp_path / "result.npz", np.lib.format.write_array
    line = ("infer", "echo", "--broker", url, "--input", f"x={tmp_path}/x.npy", "--output", output)

    def write_beside(*given: Any, **options: Any) -> None:
        monkeypatch.setattr("numpy.lib.format.write_array", write)
        assert run_main(*line) == 0
        write(*given, **options)

    monkeypatch.setattr("numpy.lib.format.write_array", write_beside)
    assert run_main(*line) == 0
    assert np.load(output)["x"].shape == (1, 4)


@pytest.mark.parametrize("timeout", ["nan", "inf"])
def test_a_timeout_that_is_no_number(tmp_path: Path, url: str, capfd: Any, timeout: str) -> None:
    """The option is refused."""
    np.save(tmp_path / "x.npy", np.zeros((1, 4), np.float32))
    assert run_main("infer", "m", "--broker", url, "--input", f"x={tmp_path}/x.npy", "--timeout", timeout) == 2
    assert "timeout" in capfd.readouterr().err


def test_a_replay_within_the_process(drive: Path, write_echo: WriteEcho, tmp_path: Path, capfd: Any) -> None:
    """`--local` needs no broker; files, summary and table are there, and the exit code is 0."""
    repository = write_echo("eye", ("image", "UINT8", [-1, 32, 48, 3]))
    summary = tmp_path / "summary.json"
    code = run_main(
        *("replay", drive, "--model", "eye", "--local", "--repository", repository, "--topic", "/camera/image_raw"),
        *("--output", tmp_path / "out", "--sink", "jsonl", "--summary", summary),
    )
    streams = capfd.readouterr()
    assert code == 0, streams.err
    assert f"wrote {summary}" in streams.out
    printed = json.loads(summary.read_text())
    assert printed["frames_read"] == printed["requests"] == printed["outcomes"]["ok"] == 5
    assert (tmp_path / "out" / "results.jsonl").exists()


def test_a_frame_that_is_not_answered_makes_the_exit_code_1(drive: Path, write_echo: WriteEcho, capfd: Any) -> None:
    """Errors are counted in the table."""
    repository = write_echo("eye", ("image", "UINT8", [-1, 32, 48, 3]), fail_every=4)
    code = run_main(
        *("replay", drive, "--model", "eye", "--local", "--repository", repository, "--window", "1"),
        *("--topic", "/camera/image_raw"),
    )
    assert code == 1
    assert "error" in capfd.readouterr().out


def test_a_second_run_overwrites_nothing(drive: Path, write_echo: WriteEcho, tmp_path: Path, caplog: Any) -> None:
    """The files of the first run are together in a folder that the words on the screen name, its summary beside it."""
    repository = write_echo("eye", ("image", "UINT8", [-1, 32, 48, 3]))
    out, topic = tmp_path / "out", ("--topic", "/camera/image_raw")
    files = ("--output", out, "--summary", out / "summary.json", "--picture-every", "2")
    command = ("replay", drive, "--model", "eye", "--local", "--repository", repository, *topic, *files)
    assert run_main(*command) == 0
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    assert {Path(name).suffix for name in before} >= {".jsonl", ".mcap", ".mp4", ".png", ".json"}
    caplog.clear()
    assert run_main(*command, "--duration", "0.1") == 0
    kept = {path.name: path.read_bytes() for path in (out / "run.1").iterdir()}
    kept["summary.json"] = (out / "summary.1.json").read_bytes()
    assert kept == before
    assert f"{out}: the files of an earlier run are kept in run.1" in caplog.text
    assert f"{out / 'summary.json'} of an earlier run is kept as summary.1.json" in caplog.text
    assert len(list(out.glob("*.png"))) == 1


def test_several_models_have_a_summary_each(drive: Path, write_echo: WriteEcho, tmp_path: Path, capfd: Any) -> None:
    """Tables, files and summaries are apart; one model that fails makes the exit code 1."""
    repository = write_echo("eye", ("image", "UINT8", [-1, 32, 48, 3]))
    write_echo("ill", ("image", "UINT8", [-1, 16, 24, 3]), fail_every=4)
    code = run_main(
        *("replay", drive, "--model", "eye", "--model", "ill", "--local", "--repository", repository),
        *("--topic", "/camera/image_raw", "--output", tmp_path, "--sink", "jsonl", "--summary", tmp_path / "s.json"),
    )
    assert code == 1
    told = json.loads((tmp_path / "s.json").read_text())["models"]
    assert [(each["model"], each["frames_read"], each["outcomes"]["ok"] == 5) for each in told] == [
        ("eye", 5, True),
        ("ill", 5, False),
    ]
    assert [failure["code"] for failure in told[1]["failures"]] == ["model_failed"]
    printed = capfd.readouterr().out
    assert f"{told[1]['failures'][0]['count']} x model_failed: " in printed
    assert all(f"wrote {tmp_path / model / 'results.jsonl'}" in printed for model in ("eye", "ill"))


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--broker", NOWHERE, "--model", "m", "DRIVE"], 1, "127.0.0.1:1"),
        (["--broker", "http://x", "--model", "m", "DRIVE"], 2, "http"),
        (["--local", "--repository", "FOLDER/none", "--model", "m", "DRIVE"], 2, "there is no such folder"),
        (["--local", "--repository", "REPOSITORY", "--model", "ecko", "DRIVE"], 1, "no model ecko; it has: eye"),
        (
            ["--local", "--repository", "REPOSITORY", "--model", "eye", "--version", "9", "DRIVE"],
            1,
            "no version 9 of model 'eye'; it has: 1",
        ),
        (["--local", "--repository", "REPOSITORY", "--model", "eye", "FOLDER/none.bag"], 1, "no such file"),
        (["--local", "--repository", "REPOSITORY", "--model", "eye", "FOLDER/text.bag"], 1, "text.bag"),
        (["--local", "--repository", "REPOSITORY", "--model", "eye", "FOLDER/text.mcap"], 1, "text.mcap"),
        (["--local", "--repository", "REPOSITORY", "--model", "eye", "--encoding", "zip", "DRIVE"], 2, "'zip'"),
        (["--local", "--repository", "REPOSITORY", "--model", "eye", "--output-encoding", "zip", "DRIVE"], 2, "'zip'"),
        (
            ["--local", "--repository", "REPOSITORY", "--model", "eye", "--topic", "/no", "DRIVE"],
            1,
            "/camera/image_raw",
        ),
        (["--local", "--repository", "REPOSITORY", "--model", "eye", "--name", "A B", "DRIVE"], 2, "client 'A B'"),
        (["--local", "--repository", "REPOSITORY", "--model", "eye", "--output", "/proc/no", "DRIVE"], 2, "/proc/no"),
        (
            ["--local", "--repository", "REPOSITORY", "--model", "eye", "--summary", "/proc/no/s", "DRIVE"],
            2,
            "/proc/no",
        ),
    ],
)
def test_bad_input_to_a_replay(
    drive: Path,
    write_echo: WriteEcho,
    tmp_path: Path,
    capfd: Any,
    arguments: list[str],
    code: int,
    words: str,
) -> None:
    """One clear message, the right exit code, no traceback."""
    broken(tmp_path)
    repository = write_echo("eye", ("image", "UINT8", [-1, 32, 48, 3]))
    names = {"DRIVE": drive, "FOLDER": tmp_path, "REPOSITORY": repository}
    for name, place in names.items():
        arguments = [argument.replace(name, str(place)) for argument in arguments]
    assert run_main("replay", *arguments) == code
    printed = capfd.readouterr().err
    assert words in printed
    assert "error:" in printed
    assert "Traceback" not in printed


def test_bad_input_to_a_worker(write_echo: WriteEcho, tmp_path: Path, capfd: Any) -> None:
    """A missing repository, an unknown model, a bad name or address: an error before any process starts."""
    repository = write_echo("a")
    for arguments, code, words in (
        (("--repository", tmp_path / "none"), 2, "there is no such folder"),
        (("--repository", repository, "--model", "b"), 1, "no model b; it has: a"),
        (("--repository", repository, "--name", "A B"), 2, "worker 'A B.0'"),
        (("--repository", repository, "--broker", "ftp://x"), 2, "ftp"),
    ):
        assert run_main("worker", *arguments) == code
        printed = capfd.readouterr().err
        assert words in printed
        assert "Traceback" not in printed


def test_bag_commands(tmp_path: Path, capfd: Any) -> None:
    """A drive is rendered and listed, and not overwritten."""
    bag = tmp_path / "drive.bag"
    make = ("bag", "synth", bag, "--ros", "1", "--frames", "2", "--width", "96", "--height", "64")
    assert run_main(*make) == 0
    assert run_main("bag", "info", bag) == 0
    assert "/camera/image_raw" in capfd.readouterr().out
    assert run_main(*make) == 1
    assert "exists already" in capfd.readouterr().err


@pytest.mark.slow
@pytest.mark.broker
def test_the_commands_together(drive: Path, write_echo: WriteEcho, tmp_path: Path) -> None:
    """Broker, worker, infer and replay as a user runs them; each ends cleanly on a signal."""
    repository = write_echo("eye", ("image", "UINT8", [-1, 32, 48, 3]))
    broker = subprocess.Popen(commands.command("broker", "--port", "0"), stdout=subprocess.PIPE, text=True)
    try:
        assert broker.stdout
        url = broker.stdout.readline().split()[-1]
        assert url.startswith("mqtt://127.0.0.1:")
        serve = commands.command("worker", "--repository", repository, "--broker", url, "--instances", "2")
        worker = subprocess.Popen(serve, stderr=subprocess.PIPE, text=True)
        assert worker.stderr
        assert all(" ready: eye version 1" in worker.stderr.readline() for _ in range(2))
        np.save(tmp_path / "x.npy", PICTURE[None])
        asked = mqinfer("infer", "eye", "--broker", url, "--input", f"image={tmp_path}/x.npy")
        assert asked.returncode == 0, asked.stderr
        assert json.loads(asked.stdout)["outputs"]["image"]["shape"] == [1, 32, 48, 3]
        wrong = mqinfer("infer", "ecko", "--broker", url, "--input", f"image={tmp_path}/x.npy")
        assert wrong.returncode == 1
        assert "no worker" in wrong.stderr  # or, on a busy machine: turned away (no worker, or busy ones)
        assert not any(word in wrong.stderr for word in ("Traceback", "ignored")), wrong.stderr
        played = mqinfer("replay", drive, "--model", "eye", "--broker", url, "--summary", tmp_path / "s.json")
        assert played.returncode == 0, played.stderr
        assert json.loads((tmp_path / "s.json").read_text())["outcomes"]["ok"] == 10
        worker.send_signal(signal.SIGINT)
        _, rest = worker.communicate(timeout=60)
        assert worker.returncode == 0
        assert rest.count(" stopped: ") == 2
        assert "Traceback" not in rest
        broker.send_signal(signal.SIGTERM)
        assert broker.wait(30) == 0
    finally:
        broker.kill()
        broker.communicate()


@pytest.mark.slow
@pytest.mark.broker
def test_a_crashed_mosquitto_ends_the_command() -> None:
    """`mqinfer broker` ends with an error when Mosquitto is killed."""
    broker = subprocess.Popen(
        commands.command("broker", "--port", "0"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert broker.stdout
    broker.stdout.readline()
    children = Path(f"/proc/{broker.pid}/task/{broker.pid}/children").read_text().split()
    os.kill(int(children[0]), signal.SIGKILL)
    _, printed = broker.communicate(timeout=30)
    assert broker.returncode == 1
    assert "Mosquitto ended with status -9" in printed


def test_the_demo_overwrites_nothing(tmp_path: Path) -> None:
    """A folder that is there stays as it is."""
    (tmp_path / "kept").write_text("mine")
    found = mqinfer("demo", tmp_path)
    assert found.returncode == 2
    assert "already exists" in found.stderr
    assert "--overwrite" in found.stderr
    assert (tmp_path / "kept").read_text() == "mine"


@pytest.mark.broker
@pytest.mark.slow
def test_the_demo(tmp_path: Path) -> None:
    """The main job in one command: both drives answered in full before two workers, and every file named.

    Which of the two answers how many is up to how fast they are: on a busy machine one has answered all.
    """
    found = mqinfer("demo", tmp_path / "out", timeout=600)
    assert found.returncode == 0, found.stderr
    for drive in ("ros1", "ros2"):
        summary = json.loads((tmp_path / "out" / drive / "summary.json").read_text())
        assert summary["outcomes"]["ok"] == summary["frames_read"] == 40
    count = Path(__file__).parents[2] / "examples" / "count_outcomes.py"
    results = [tmp_path / "out" / drive / "results.jsonl" for drive in ("ros1", "ros2")]
    counted = subprocess.run([sys.executable, count, *results], capture_output=True, text=True, check=True).stdout
    assert "80 frames, outcomes {'ok': 80}, 0 with more than one" in counted
    answered = {line.split()[0]: int(line.split()[2]) for line in counted.splitlines() if " answered " in line}
    ready = re.findall(r"(\S+) ready: ", (tmp_path / "out" / "log" / "workers.log").read_text())
    assert len(set(ready)) == 2
    assert set(answered) <= set(ready)
    assert sum(answered.values()) == 80
    written = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert {tmp_path / "out" / drive / "results.mcap" for drive in ("ros1", "ros2")} <= set(written)
    assert all(str(path) in found.stdout for path in written)

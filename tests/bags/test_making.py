"""`mqinfer bag make`: a bag of a video or of pictures; what a damaged one lacks is said, and no bag is half there."""

from __future__ import annotations

import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from numpy.typing import NDArray

from mqinfer.bags.writer import PICTURE_TOPIC, START_NS
from mqinfer.cli.app import main
from mqinfer.cli.exit_codes import ExitCode
from mqinfer.images.decode import to_rgb
from mqinfer.images.picture import CompressedImage
from tests.bags.reading import read

FRAMES, RATE = 30, 20


def video(path: Path) -> Path:
    """Encode a bar that moves over a soft background."""
    rows = np.linspace(40, 200, 64, dtype=np.uint8)[:, None, None]
    with av.open(str(path), "w") as file:
        stream: Any = file.add_stream("libx264", rate=RATE, options={"g": "10", "bf": "0"})
        stream.width, stream.height, stream.pix_fmt = 96, 64, "yuv420p"
        stream.codec_context.time_base = Fraction(1, RATE)
        for number in range(FRAMES):
            picture = np.broadcast_to(rows, (64, 96, 3)).copy()
            picture[:, 3 * number : 3 * number + 6] = (250, 40, 40)
            for packet in stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")):
                file.mux(packet)
        for packet in stream.encode():
            file.mux(packet)
    return path


def make(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    """Run the command; return its exit code."""
    monkeypatch.setattr(sys, "argv", ["mqinfer", "bag", "make", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def pictures(path: Path) -> list[NDArray[np.uint8]]:
    """Return the frames of a recording."""
    return [to_rgb(frame.image) for frame in read(path)]


@pytest.mark.parametrize("name", ["drive.bag", "drive"])
def test_a_video(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each frame is there, at its time, and looks as before; a second run makes the same, and overwrites nothing."""
    film, out = video(tmp_path / "film.mp4"), tmp_path / name
    assert make(monkeypatch, film, out) == ExitCode.OK
    assert capsys.readouterr().out == f"wrote {out}: {FRAMES} frames\n"
    frames = read(out)
    assert {frame.source for frame in frames} == {PICTURE_TOPIC}
    steps = [START_NS + number * 10**9 // RATE for number in range(FRAMES)]
    assert [frame.log_time_ns for frame in frames] == [frame.capture_time_ns for frame in frames] == steps
    for made, recorded in zip(pictures(out), pictures(film), strict=True):
        assert np.abs(made.astype(int) - recorded).mean() < 2
    assert make(monkeypatch, film, out) == ExitCode.FAILED
    assert "exists already; choose a new path" in capsys.readouterr().err


def test_a_folder_of_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each file as it is, byte for byte."""
    folder = tmp_path / "pictures"
    folder.mkdir()
    (first,) = read(video(tmp_path / "film.mp4"), duration=0.04)
    import cv2

    for name in ("1.png", "2.jpg"):
        cv2.imwrite(str(folder / name), to_rgb(first.image))
    assert make(monkeypatch, folder, tmp_path / "out.bag") == ExitCode.OK
    images = [frame.image for frame in read(tmp_path / "out.bag")]
    held = [bytes(image.data) for image in images if isinstance(image, CompressedImage)]
    assert held == [(folder / name).read_bytes() for name in ("1.png", "2.jpg")]


def test_a_video_that_is_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What can be decoded is in a bag that is complete; what is missing is said, with the exit code of a replay."""
    film, cut = video(tmp_path / "film.mkv"), tmp_path / "cut.mkv"
    cut.write_bytes(film.read_bytes()[: film.stat().st_size * 2 // 3])
    assert make(monkeypatch, cut, tmp_path / "cut.bag") == ExitCode.INCOMPLETE
    printed = capsys.readouterr()
    count = len(read(tmp_path / "cut.bag"))
    assert 0 < count < FRAMES
    assert f"{count} frames" in printed.out
    assert "the video is cut off" in printed.err


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("empty.mp4", b"", "empty.mp4"),
        ("noise.mp4", bytes(range(256)) * 40, "noise.mp4"),
        ("missing.mp4", None, "no such file"),
        ("notes.txt", b"text", "neither a bag"),
    ],
)
def test_no_video(
    name: str,
    content: bytes | None,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One line that names the file, and no bag."""
    if content is not None:
        (tmp_path / name).write_bytes(content)
    assert make(monkeypatch, tmp_path / name, tmp_path / "out.bag") == ExitCode.FAILED
    printed = capsys.readouterr().err
    assert message in printed
    assert printed.count("\n") == 1
    assert not (tmp_path / "out.bag").exists()


def test_what_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A camera has no end, and a bag is one already; a name that a reader would not take for a bag."""
    film = video(tmp_path / "film.mp4")
    assert make(monkeypatch, film, tmp_path / "film.bag") == ExitCode.OK
    for source in ("camera:0", tmp_path / "film.bag"):
        assert make(monkeypatch, source, tmp_path / "out.bag") == ExitCode.USAGE
        assert "expected a video or a folder of pictures" in capsys.readouterr().err

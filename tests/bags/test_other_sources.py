from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path

import cv2
import numpy as np
import pytest

from mqinfer.bags.live.camera import CameraSource
from mqinfer.bags.sources import open_source
from mqinfer.images.decode import to_rgb
from mqinfer.images.picture import CompressedImage, RawImage
from mqinfer.protocol.errors import ConfigError, SourceError
from tests.bags.reading import read


@pytest.fixture
def video(tmp_path: Path) -> Path:
    """Thirty frames at 10 a second, each a little brighter than the one before."""
    path = tmp_path / "drive.avi"
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"MJPG"), 10.0, (32, 24))
    assert writer.isOpened()
    for number in range(30):
        writer.write(np.full((24, 32, 3), (10, 20, 8 * number), np.uint8))
    writer.release()
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Pictures whose names sort differently as text, and a file that is none."""
    path = tmp_path / "pictures"
    path.mkdir()
    for name, red in (("frame10.png", 10), ("frame9.png", 9), ("frame1.JPG", 1), ("frame2.jpeg", 2)):
        assert cv2.imwrite(str(path / name), np.full((6, 8, 3), (0, 0, red), np.uint8))
    (path / "notes.txt").write_text("not a picture")
    return path


class TestVideo:
    """Video files through OpenCV."""

    def test_frames(self, video: Path) -> None:
        """Every frame in order, times from 0, colours right, and again on a second pass."""
        with closing(open_source(str(video))) as source:
            for _ in range(2):
                frames = list(source.frames())
                assert [frame.sequence for frame in frames] == list(range(30))
                assert [frame.log_time_ns for frame in frames] == [number * 100_000_000 for number in range(30)]
                assert all(frame.capture_time_ns == frame.log_time_ns for frame in frames)
            (stream,) = source.streams()
        assert (stream.count, stream.rate, stream.width, stream.height) == (30, 10.0, 32, 24)
        red, _, blue = to_rgb(frames[25].image)[12, 16]
        assert red == pytest.approx(200, abs=6)
        assert blue == pytest.approx(10, abs=6)

    def test_span(self, video: Path) -> None:
        """Start and duration in seconds; beyond the end there is nothing, which is an error."""
        times = [frame.log_time_ns // 100_000_000 for frame in read(video, start=1.0, duration=0.5)]
        assert times == [10, 11, 12, 13, 14]
        assert [frame.sequence for frame in read(video, start=1.0, duration=0.5)] == [10, 11, 12, 13, 14]
        with pytest.raises(ConfigError, match="no frame from 60 s on"):
            read(video, start=60.0)

    def test_pixels_are_a_view(self, video: Path) -> None:
        """What OpenCV decoded is not copied again."""
        image = read(video)[0].image
        assert isinstance(image, RawImage)
        assert isinstance(image.data, memoryview)
        assert image.data.nbytes == 24 * 32 * 3

    def test_topics_make_no_sense(self, video: Path) -> None:
        """Only bags have topics."""
        with pytest.raises(SourceError, match="only bags have topics; leave out /front"):
            open_source(str(video), topics=["/front"])

    def test_a_pipe_is_refused(self, tmp_path: Path) -> None:
        """Opening it would wait for a writer, for ever."""
        os.mkfifo(tmp_path / "pipe.mp4")
        with pytest.raises(SourceError, match=r"pipe\.mp4: a pipe or a device"):
            open_source(str(tmp_path / "pipe.mp4"))

    def test_cut_off(self, tmp_path: Path, video: Path) -> None:
        """A video that is cut off within its header is refused, by opening or by reading."""
        path = tmp_path / "cut.avi"
        path.write_bytes(video.read_bytes()[:200])
        with pytest.raises(SourceError, match=r"cut\.avi"):
            read(path)

    @pytest.mark.shared_data
    def test_real_drive(self, shared: Path) -> None:
        """All 221 frames of a real drive, 40 ms apart."""
        with closing(open_source(str(shared / "video" / "solidWhiteRight.mp4"))) as source:
            times = [frame.log_time_ns for frame in source.frames()]
        assert times == [number * 40_000_000 for number in range(221)]


class TestFolder:
    """Folders of pictures, and single ones."""

    def test_natural_order_and_untouched_bytes(self, folder: Path) -> None:
        """Numbers sort as numbers, files come as they are, whatever is no picture is left out."""
        frames = read(folder)
        names = ["frame1.JPG", "frame2.jpeg", "frame9.png", "frame10.png"]
        for frame, name in zip(frames, names, strict=True):
            assert isinstance(frame.image, CompressedImage)
            assert frame.image.data == (folder / name).read_bytes()
            assert frame.capture_time_ns == (folder / name).stat().st_mtime_ns
        assert [frame.log_time_ns for frame in frames] == [0, 100_000_000, 200_000_000, 300_000_000]
        assert to_rgb(frames[3].image)[0, 0].tolist() == [10, 0, 0]

    def test_streams(self, folder: Path) -> None:
        """The folder is one stream with the size of its first picture."""
        with closing(open_source(str(folder))) as source:
            (stream,) = source.streams()
        assert (stream.encoding, stream.width, stream.height, stream.count) == ("jpeg", 8, 6, 4)

    def test_span(self, folder: Path) -> None:
        """Pictures count as a tenth of a second each."""
        part = [(frame.sequence, frame.log_time_ns) for frame in read(folder, start=0.1, duration=0.2)]
        assert part == [(1, 100_000_000), (2, 200_000_000)]
        with closing(open_source(str(folder), start=9.0)) as source:
            assert source.streams()[0].count == 0

    def test_one_picture(self, folder: Path) -> None:
        """A picture is a folder of one."""
        (frame,) = read(folder / "frame9.png")
        assert to_rgb(frame.image)[0, 0].tolist() == [9, 0, 0]

    def test_empty(self, tmp_path: Path) -> None:
        """A folder with nothing usable says what would be."""
        with pytest.raises(SourceError, match=r"neither a bag .* nor a folder of JPEG or PNG"):
            open_source(str(tmp_path))

    def test_picture_that_goes_away(self, folder: Path) -> None:
        """A picture that is gone when its turn comes is named; those before it were yielded."""
        with closing(open_source(str(folder))) as source:
            frames = source.frames()
            next(frames)
            (folder / "frame2.jpeg").unlink()
            with pytest.raises(SourceError, match=r"frame2\.jpeg: No such file"):
                next(frames)


class TestCamera:
    """Live sources; a video played through the same door stands in for a device."""

    @pytest.fixture
    def ticking(self) -> Iterator[int]:
        """Nanoseconds since the epoch, a tenth of a second on at each look."""
        return iter(range(1_700_000_000_000_000_000, 1_800_000_000_000_000_000, 100_000_000))

    def test_stamped_on_arrival(self, video: Path, ticking: Iterator[int]) -> None:
        """Frames carry the time at which they came."""
        with closing(CameraSource(str(video), clock=ticking.__next__)) as source:
            frames = list(islice(source.frames(), 4))
            (stream,) = source.streams()
        assert [frame.sequence for frame in frames] == [0, 1, 2, 3]
        assert frames[1].capture_time_ns == frames[1].log_time_ns == 1_700_000_000_100_000_000
        assert (stream.count, stream.width) == (30, 32)  # of a camera it is None

    def test_camera_that_stops(self, video: Path) -> None:
        """A device that gives no more frames is an error, after those that it gave."""
        with closing(CameraSource(str(video))) as source:
            frames = source.frames()
            for _ in range(30):
                next(frames)
            with pytest.raises(SourceError, match="stopped or stalled after 30 frames"):
                next(frames)

    @pytest.mark.parametrize("spec", ["camera:99", "rtsp://127.0.0.1:1/none"])
    def test_not_there(self, spec: str) -> None:
        """A device or address where nothing is gets named."""
        with pytest.raises(SourceError, match=f"{spec}: can't be opened"):
            open_source(spec)

    def test_camera_that_stalls(self, stalling: Callable[[int], str]) -> None:
        """A stream that stays open and delivers nothing more is an error, long before OpenCV's own 30 s."""
        began = time.monotonic()
        with closing(CameraSource(stalling(20), timeout=0.5)) as source:
            numbers = []
            with pytest.raises(SourceError, match=r"stopped or stalled after \d+ frames"):
                numbers += [frame.sequence for frame in source.frames()]
        assert time.monotonic() - began < 20

    def test_cannot_start_later(self) -> None:
        """A live source has no past to skip."""
        with pytest.raises(ConfigError, match="starts now"):
            open_source("camera:0", start=2.0)


def test_a_number_that_no_camera_has() -> None:
    """It is none, and no overflow in OpenCV."""
    with pytest.raises(SourceError, match="for a camera, use camera:0"):
        open_source("camera:" + "9" * 20)


def test_an_empty_name() -> None:
    """A variable that a shell does not know stands for no folder."""
    with pytest.raises(ConfigError, match="a source without a name"):
        open_source("")

"""Videos with pictures of hundreds of thousands of units, for each of which FFmpeg takes 4 KiB."""

from __future__ import annotations

import resource
import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from mqinfer.bags.extent.packets import MOST_UNITS, has_too_many_units, is_flooded
from mqinfer.bags.videos.source import VideoSource
from mqinfer.protocol.errors import SourceError
from tests.confined import MIB

CODECS = {"h264": "libx264", "hevc": "libx265", "obu": "libsvtav1"}
UNITS = {
    "h264": {"empty": b"\x0c", "delimiter": b"\x09\x10", "message": b"\x06\x05\x01\0\x80", "slice": b"\x41\x10\x20"},
    "hevc": {"delimiter": b"\x46\x01\x50", "message": b"\x4e\x01\x05\x01\0\x80", "slice": b"\x02\x01\x10"},
}
PEAK = "print(next(int(row.split()[1]) // 1024 for row in open('/proc/self/status') if row.startswith('VmHWM')))"
"""Of the process itself: the peak that getrusage tells includes what its parent had when it was started."""
READ = "import sys; from mqinfer.bags.sources import open_source as o; print(len([0 for _ in o(sys.argv[1]).frames()]))"


def encode(path: Path, frames: int = 20) -> bytes:
    """Encode grey pictures, whose units are small."""
    with av.open(str(path), "w") as file:
        stream: Any = file.add_stream(CODECS[path.suffix[1:]], rate=25, options={"x265-params": "log-level=none"})
        stream.width, stream.height, stream.pix_fmt = 96, 64, "yuv420p"
        for _ in range(frames):
            file.mux(stream.encode(av.VideoFrame.from_ndarray(np.zeros((64, 96, 3), np.uint8), format="rgb24")))
        file.mux(stream.encode())
    return path.read_bytes()


def flooded(folder: Path, codec: str, kind: str, *, behind: bool = False) -> Path:
    """Write a raw stream with 600,000 units before its first picture, or behind its last."""
    path = folder / f"flood.{codec}"
    good, flood = encode(path), (b"\0\0\1" + UNITS[codec][kind]) * 600_000
    path.write_bytes(good + flood if behind else flood + good)
    return path


@pytest.mark.parametrize(("codec", "kind"), [(codec, kind) for codec, kinds in UNITS.items() for kind in kinds])
@pytest.mark.parametrize("behind", [False, True])
def test_a_raw_stream_is_refused_before_it_is_opened(tmp_path: Path, codec: str, kind: str, *, behind: bool) -> None:
    """Of each unit that begins no picture, before the first one and behind the last."""
    with pytest.raises(SourceError, match=rf"more than {MOST_UNITS} units; it is damaged$"):
        VideoSource(flooded(tmp_path, codec, kind, behind=behind))


@pytest.mark.parametrize("at", [0, 5])
@pytest.mark.parametrize("suffix", ["mkv", "mp4"])
def test_units_of_av1_take_no_memory(tmp_path: Path, suffix: str, at: int) -> None:
    """FFmpeg's parser would list three million in 450 MiB; the decoder passes over them, and each picture comes."""
    path = _contained(tmp_path, "obu", suffix, b"\x4a\x00" * 3_000_000, at)
    run = subprocess.run(
        [sys.executable, "-c", f"{READ}; {PEAK}", str(path)], capture_output=True, text=True, check=True
    )
    pictures, peak = map(int, run.stdout.split())
    assert pictures == 20
    assert peak < 200


@pytest.mark.parametrize("name", ["film.mp4", "film.ts"])
def test_a_list_of_other_files_is_no_video(tmp_path: Path, name: str) -> None:
    """FFmpeg tells formats by what a file says, and would open what the list names."""
    encode(tmp_path / "secret.h264")
    (tmp_path / name).write_text("ffconcat version 1.0\nfile secret.h264\n")
    with pytest.raises(SourceError, match="it is cut off, damaged, or no video"):
        VideoSource(tmp_path / name)


@pytest.mark.parametrize("codec", UNITS)
def test_many_small_pictures_are_no_flood(tmp_path: Path, codec: str) -> None:
    """As many units in all, of pictures of a few bytes."""
    path = tmp_path / f"good.{codec}"
    good = encode(path)
    path.write_bytes(good * (4 * MOST_UNITS // good.count(b"\0\0\1")))
    assert path.read_bytes().count(b"\0\0\1") > 2 * MOST_UNITS
    assert not is_flooded(path)


def test_units_that_their_lengths_begin() -> None:
    """As in MP4 and Matroska."""
    unit = (2).to_bytes(4) + b"\x09\x10"
    assert has_too_many_units(unit * (MOST_UNITS + 1))
    assert not has_too_many_units(unit * (MOST_UNITS - 1) + (1 << 30).to_bytes(4) + b"\x65" * 100_000)
    assert has_too_many_units(b"\0\0\1\x09\x10" * (MOST_UNITS + 1))


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.parametrize("suffix", ["h264", "mkv", "ts"])
def test_reading_takes_bounded_memory(tmp_path: Path, suffix: str) -> None:
    """Within 1 GiB of address space; in a container the other pictures are read."""
    path = flooded(tmp_path, "h264", "empty")
    if suffix != "h264":
        path = _contained(tmp_path, "h264", suffix, b"\0\0\1\x0c" * 600_000, 5)

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (1024 * MIB, 1024 * MIB))

    run = subprocess.run(
        [sys.executable, "-c", READ, str(path)], capture_output=True, text=True, check=False, preexec_fn=limit
    )
    assert "SourceError" in run.stderr
    assert "MemoryError" not in run.stderr


def _contained(folder: Path, codec: str, suffix: str, units: bytes, at: int) -> Path:
    """Write a film with units before one of its pictures."""
    good, path = folder / f"plain.{codec}", folder / f"film.{suffix}"
    encode(good)
    with av.open(str(good)) as source, av.open(str(path), "w") as target:
        stream: Any = target.add_stream(CODECS[codec], rate=25)
        stream.width, stream.height, stream.pix_fmt = 96, 64, "yuv420p"
        stream.codec_context.extradata = source.streams.video[0].codec_context.extradata
        for number, packet in enumerate(source.demux()):
            if packet.size:
                copy: Any = av.Packet((units if number == at else b"") + bytes(packet))
                copy.pts = copy.dts = number
                copy.time_base, copy.stream, copy.is_keyframe = Fraction(1, 25), stream, packet.is_keyframe
                target.mux(copy)
    return path

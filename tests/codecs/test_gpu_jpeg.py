"""The choice of what decodes JPEGs; no test here has a GPU: what is tried is that its absence costs nothing."""

import logging
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from mqinfer.codecs import codecs_for, decode_tensor, encode_tensor
from mqinfer.codecs.gpu_jpeg import jpeg_reader
from mqinfer.codecs.image import ImageCodec, ImageInfo, read_with_opencv
from mqinfer.errors import BadEncoding, LimitExceeded
from mqinfer.protocol.datatypes import Array
from mqinfer.protocol.limits import Limits
from mqinfer.protocol.types import Buffer


def installed() -> bool:
    """Return whether nvImageCodec is installed."""
    return find_spec("nvidia") is not None and find_spec("nvidia.nvimgcodec") is not None


def test_a_model_on_the_cpu_has_opencv() -> None:
    """Whatever is installed: the GPU is left to those who use it."""
    assert jpeg_reader("cpu") is read_with_opencv


@pytest.mark.skipif(installed(), reason="nvImageCodec is installed")
def test_without_nvimagecodec_opencv_decodes(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker on a GPU works without it, and nobody is bothered by what is only an extra."""
    monkeypatch.delenv("PYNVIMGCODEC_VERBOSITY", raising=False)
    with caplog.at_level(logging.DEBUG, "mqinfer.codecs"):
        codecs = codecs_for("cuda:0")
    assert caplog.messages == []
    assert os.environ["PYNVIMGCODEC_VERBOSITY"] == "0"  # set before it is imported, so that it prints nothing
    tensor = encode_tensor("x", np.full((16, 24, 3), 90, np.uint8), "jpeg:95")
    assert abs(decode_tensor(tensor, codecs=codecs).astype(int) - 90).max() <= 2


@pytest.mark.skipif(not installed(), reason="nvImageCodec is not installed")
def test_with_nvimagecodec_it_decodes_or_says_why_not(caplog: pytest.LogCaptureFixture) -> None:
    """One line says which of the two decodes; the picture comes either way, and so does the word on a broken one."""
    with caplog.at_level(logging.INFO, "mqinfer.codecs"):
        codecs = codecs_for("cuda:0")
    assert len(caplog.messages) == 1
    ramp = np.tile(np.arange(0, 256, 4, dtype=np.uint8), (48, 1))
    for picture in (ramp, np.stack([ramp, ramp.T.repeat(64, 1)[:48, :64], 255 - ramp], axis=2)):
        tensor = encode_tensor("x", picture, "jpeg:98")
        assert abs(decode_tensor(tensor, codecs=codecs).astype(int) - decode_tensor(tensor)).max() <= 8


_IMPORT = """
from mqinfer.codecs.gpu_jpeg import jpeg_reader
jpeg_reader("cuda:0")
"""
_LIBRARY = """
import os
os.write(2, b"Failed to load nvjpeg2k library!\\nNote: If using nvImageCodec's Python distribution, install it\\n")
os.write(2, b"Failed to load nvjpeg library!\\n")
raise ImportError
"""


@pytest.mark.skipif(installed(), reason="nvImageCodec is installed")
def test_lines_about_other_formats_are_left_out(tmp_path: Path) -> None:
    """The library names each other one that it lacks, in lines of its own: the log has the one that JPEGs need."""
    (tmp_path / "nvidia").mkdir()
    (tmp_path / "nvidia" / "nvimgcodec.py").write_text(_LIBRARY)
    paths = os.pathsep.join([str(tmp_path), str(Path(__file__).parents[2])])
    environment = os.environ | {"PYTHONPATH": paths}
    done = subprocess.run([sys.executable, "-c", _IMPORT], capture_output=True, text=True, env=environment, check=True)
    assert done.stderr == "Failed to load nvjpeg library!\n"


def test_headers_are_checked_before_any_reader() -> None:
    """No reader, wherever it runs, sees a picture that is too large, or not what is declared."""
    seen: list[ImageInfo] = []

    def read(_data: Buffer, info: ImageInfo) -> Array | None:
        seen.append(info)
        return None

    codecs = {"jpeg": ImageCodec("jpeg", read)}
    tensor = encode_tensor("x", np.zeros((16, 24, 3), np.uint8), "jpeg")
    with pytest.raises(LimitExceeded, match="24x16 pixels"):
        decode_tensor(tensor, Limits(image_pixels=16 * 24 - 1), codecs)
    assert seen == []
    with pytest.raises(BadEncoding, match="corrupt"):
        decode_tensor(tensor, codecs=codecs)
    assert [(info.width, info.height) for info in seen] == [(24, 16)]

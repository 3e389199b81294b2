from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from mqinfer.codecs import Encoding, available_encodings, decode_tensor, encode_tensor, parse_encoding, registry
from mqinfer.codecs.registry import _CODECS, decode_outputs
from mqinfer.protocol.datatypes import Datatype
from mqinfer.protocol.errors import BadEncoding, MissingExtra
from mqinfer.protocol.limits import DEFAULT_LIMITS, Limits
from mqinfer.protocol.types import EncodedTensor, InferResponse


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        ("raw", Encoding("raw")),
        ("lz4", Encoding("lz4")),
        ("lz4:12", Encoding("lz4", 12)),
        ("shuffle-lz4", Encoding("shuffle-lz4")),
        ("mask", Encoding("mask")),
        ("mask:9", Encoding("mask", 9)),
        ("jpeg:90", Encoding("jpeg", 90)),
        ("png:0", Encoding("png", 0)),
    ],
)
def test_encodings_are_read(text: str, encoding: Encoding) -> None:
    """A codec's name, with its level after a colon."""
    assert parse_encoding(text) == encoding


@pytest.mark.parametrize(
    "text",
    [
        "",
        "zip",
        "RAW",
        "raw:1",
        "mask:0",
        "jpeg:0",
        "jpeg:101",
        "jpeg:",
        "jpeg:x",
        "jpeg:-1",
        "png:10",
        "lz4:²",
        "lz4:1:2",
        ":9",
        "lz4:" + "9" * 5000,
        "h264:100001",
        "h264:-1",
        "h264:x",
        "h264:",
    ],
)
def test_bad_encodings_are_refused(text: str) -> None:
    """The message names what there is."""
    with pytest.raises(
        BadEncoding,
        match=rf"known are {', '.join(available_encodings())}|levels of (h264: 0 to 100000|[^h])",
    ):
        parse_encoding(text)


def test_an_unknown_encoding_of_a_message_is_refused() -> None:
    """A tensor of a later release's codec gets an error that names the known ones."""
    with pytest.raises(BadEncoding, match=r"'x'.*'av1'.*known are raw"):
        decode_tensor(EncodedTensor("x", Datatype.UINT8, (1,), "av1", b"a"))


def test_the_outputs_of_a_reply_take_no_more_together_than_one_may() -> None:
    """Sixty-four of a few bytes each would else take 16 GiB; nothing is decoded before their sizes are known."""
    outputs = [encode_tensor(f"y{number}", np.zeros(600, np.uint8), "lz4") for number in range(2)]
    reply = InferResponse("0" * 32, "m", outputs=tuple(outputs))
    found, problem = decode_outputs(reply, Limits(tensor_bytes=1200))
    assert (len(found), problem) == (2, None)
    found, problem = decode_outputs(reply, Limits(tensor_bytes=1199))
    assert not found
    assert "its 2 outputs take 1200 bytes; at most 1199 are accepted" in str(problem)


def test_a_reply_that_memory_is_lacking_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends as an error, as any reply that can't be decoded."""

    def fail(_tensor: EncodedTensor, _limits: Limits) -> None:
        raise MemoryError

    monkeypatch.setattr(registry, "decode_tensor", fail)
    reply = InferResponse("0" * 32, "m", outputs=(encode_tensor("y", np.zeros(6, np.uint8)),))
    found, problem = decode_outputs(reply, DEFAULT_LIMITS)
    assert not found
    assert "no memory is left" in str(problem)


def test_a_level_does_not_travel() -> None:
    """The wire has the codec's name alone."""
    assert encode_tensor("x", np.zeros(9), "lz4:9").encoding == "lz4"


def test_codecs_do_without_opencv() -> None:
    """Naming the encodings and using lz4 import no OpenCV; where it is missing, pictures say how to install it."""
    script = """
import sys
import numpy as np
from mqinfer.codecs import available_encodings, encode_tensor
assert "jpeg" in available_encodings()
encode_tensor("x", np.zeros(3), "shuffle-lz4")
assert "cv2" not in sys.modules
sys.modules["cv2"] = None
from mqinfer.protocol.errors import MissingExtra
try:
    encode_tensor("x", np.zeros((2, 2), np.uint8), "png")
except MissingExtra as missing:
    print(missing)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert "pip install" in done.stdout
    assert "[edge]" in done.stdout


def test_pictures_are_not_offered_without_opencv(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what works here is named."""
    monkeypatch.setattr("mqinfer.codecs.registry.is_installed", lambda _name: False)
    assert available_encodings() == tuple(name for name, codec in _CODECS.items() if not codec.traits.package)
    assert {"jpeg", "png", "h264"}.isdisjoint(available_encodings())
    assert issubclass(MissingExtra, Exception)

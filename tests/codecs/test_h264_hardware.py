"""H.264 in hardware: which encoder is chosen, and what takes its place; every one here is a real one of FFmpeg.

There is no hardware: those compiled in can't be opened, and x264 stands in for one that works, under its own name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import av
import numpy as np
import pytest

from mqinfer.codecs import h264
from mqinfer.codecs.chain import ChainDecoder
from mqinfer.codecs.registry import traits_of
from mqinfer.logs import Notice, forward_notices
from mqinfer.protocol.datatypes import Datatype
from mqinfer.protocol.header import CHAIN, POSITION
from mqinfer.protocol.types import EncodedTensor
from tests.codecs.test_h264 import HEIGHT, WIDTH, pictures, psnr

ALWAYS, QUALITY, RATE = h264._OPTIONS
ABSENT = ["h264_nvenc", "h264_v4l2m2m"]


@pytest.fixture(autouse=True)
def notices(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Notice]]:
    """Let each test be a process that has tried nothing yet, and collect what it logs."""
    monkeypatch.setattr(h264, "_failed", {})
    found: list[Notice] = []
    forward_notices(found.append)
    yield found
    forward_notices(None)


@pytest.fixture
def hardware(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Set the encoders that are taken for such of hardware."""

    def setup(**encoders: h264._Settings) -> None:
        monkeypatch.setattr(h264, "_HARDWARE", encoders)

    return setup


def chosen(level: int | None = None) -> str:
    """Open the encoder of a stream, and return its name."""
    return h264._open_encoder(HEIGHT, WIDTH, level)._name


@pytest.mark.parametrize(("level", "tried"), [(None, ABSENT[:1]), (2000, ABSENT), (0, [])])
def test_encoders_that_are_compiled_in_and_can_not_be_opened(
    notices: list[Notice], level: int | None, tried: list[str]
) -> None:
    """Software takes their place, one line names each with its reason, and none is tried again."""
    assert set(ABSENT) <= av.codecs_available
    assert chosen(level) == "libx264"
    assert [*h264._failed] == tried
    assert all(0 < len(reason) < 100 for reason in h264._failed.values())
    why = "".join(f"; {name} does not work: {h264._failed[name]}" for name in tried)
    assert [each.text for each in notices] == [f"h264 is encoded in software: libx264{why}"]
    h264._failed.update(dict.fromkeys(h264._failed, "not tried again"))
    assert chosen(level) == "libx264"
    assert set(h264._failed.values()) <= {"not tried again"}


def test_one_that_works(hardware: Any, notices: list[Notice]) -> None:
    """The first that passes its trial is taken, one that is not compiled in passed over; its stream is decoded."""
    hardware(h264_mediacodec=({}, {}, {}), h264_nvenc=({}, {}, {}), libx264=(ALWAYS, QUALITY, RATE))
    encoder, decoder = h264._open_encoder(HEIGHT, WIDTH, 23), h264.H264Decoder(HEIGHT, WIDTH)
    assert (encoder._name, [*h264._failed]) == ("libx264", ["h264_nvenc"])
    assert [each.text for each in notices] == ["h264 is encoded in hardware: libx264"]
    for position, picture in enumerate(pictures(4)):
        data = encoder.encode(picture, key=position == 0)
        tensor = EncodedTensor("x", Datatype.UINT8, picture.shape, "h264", data)
        assert psnr(decoder.decode(tensor), picture) > 27


HELD, INVALID, OTHER = "it holds pictures back, or makes no key frame", "Invalid data", "it makes other pictures"


@pytest.mark.parametrize(
    ("name", "always", "reason"),
    [
        ("libx264", {"preset": "veryfast", "forced-idr": "1"}, HELD),
        ("libx264", {**ALWAYS, "x264-params": "bframes=2"}, HELD),
        ("libx264", {**ALWAYS, "x264-params": "repeat-headers=0:annexb=0"}, INVALID),
        ("libx264", {**ALWAYS, "x264-params": "fullrange=on:colormatrix=GBR"}, OTHER),
        ("mpeg4", {}, INVALID),
    ],
)
def test_one_whose_pictures_no_worker_could_decode(
    hardware: Any, name: str, always: Mapping[str, str], reason: str
) -> None:
    """Lookahead, B frames, other framing, other colours, another codec: it fails its trial."""
    hardware(**{name: (always, {}, {})})
    h264._open_encoder(HEIGHT, WIDTH, 23)
    assert h264._failed[name].startswith(reason)


def test_one_that_fails_in_the_midst_of_a_stream(hardware: Any, notices: list[Notice]) -> None:
    """The picture that it failed at begins a new chain in software, and none is lost or shown broken."""
    hardware(libx264=(ALWAYS, QUALITY, RATE))
    stream = traits_of("h264").stream
    assert stream
    sender, receiver = stream.encoder(23), ChainDecoder(h264.H264Decoder, ahead_s=0)
    places = []
    for number, picture in enumerate(pictures(6)):
        if number == 3:
            assert isinstance(sender._encoder, h264.H264Encoder)
            assert sender._encoder._name == "libx264"
            sender._encoder._context.encode(None)  # it takes no more pictures now
        tensor, worker = sender.encode("image", picture[np.newaxis], {}, whole=False)
        places.append((tensor.parameters[CHAIN], tensor.parameters[POSITION], worker))
        assert psnr(receiver.decode(tensor), picture) > 27
        sender.settled(tensor, "one")
    first = int(str(places[0][0]))
    assert places == [
        *((first, number, "one" if number else "") for number in range(3)),
        *((first + 1, number, "one" if number else "") for number in range(3)),
    ]
    assert "libx264" in h264._failed
    assert [each.text for each in notices][-1].startswith("h264 is encoded in software")

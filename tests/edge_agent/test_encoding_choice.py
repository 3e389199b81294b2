"""`--encoding auto`: played against a link and codecs of known cost, on a virtual clock."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import pytest

from mqinfer.bags.frame import Frame
from mqinfer.edge_agent.preparing.choices import check_alone, choose_encoding
from mqinfer.edge_agent.preparing.encoding import FrameEncoder
from mqinfer.edge_agent.preparing.encoding_choice import EncodingCandidate, EncodingChoice
from mqinfer.edge_agent.preparing.preparer import Preparer
from mqinfer.images.picture import RawImage
from mqinfer.protocol.card import CardParameters, ColourOrder, ImageContract, ModelCard, with_parameters
from mqinfer.protocol.errors import BadEncoding, ConfigError, MissingExtra

RAW = 1_800_000
COSTS = {  # share of the raw bytes, seconds at the edge, seconds in the worker
    "jpeg:90": (0.05, 0.003, 0.003),
    "raw": (1.0, 0.001, 0.0),
    "png": (0.5, 0.045, 0.023),
    "bayer": (0.23, 0.019, 0.011),
    "h264": (0.006, 0.016, 0.003),
}
LOSSY = {"jpeg:90", "h264"}


@dataclass
class World:
    """A camera of 10 frames a second, a link, and a worker that answers at once."""

    choice: EncodingChoice
    bytes_per_s: float
    delay: float = 0.0
    now: float = 0.0
    used: Counter[str] = field(default_factory=Counter)

    def play(self, frames: int, possible: tuple[str, ...] = tuple(COSTS)) -> str:
        """Send frames one after the other; return what most of the last ones travelled in."""
        recent: Counter[str] = Counter()
        for number in range(frames):
            name = self.choice.next(self.now, possible)
            share, edge, worker = COSTS[name]
            size = round(share * RAW)
            transit = self.delay + size / self.bytes_per_s
            self.choice.encoded(name, size, RAW, edge)
            self.now += max(0.1, edge + transit + worker)
            if transit > 2:
                self.choice.lost(size, 2.0)
            else:
                self.choice.answered(name, size, transit, worker)
            self.used[name] += 1
            recent[name] += number > frames // 2
        return recent.most_common(1)[0][0]


def world(bytes_per_s: float, names: tuple[str, ...] = tuple(COSTS), delay: float = 0.0) -> World:
    """Make a world in which these encodings may be chosen."""
    shares = {"jpeg:90": 0.06, "raw": 1.0, "png": 0.5, "bayer": 0.17, "h264": 0.02}
    candidates = [EncodingCandidate(name, name in LOSSY, shares[name]) for name in names]
    return World(EncodingChoice(candidates), bytes_per_s, delay)


@pytest.mark.parametrize(
    ("bytes_per_s", "delay", "best"),
    [
        (1e9, 0.0, "raw"),  # 10 Gbit/s: nothing is gained by encoding
        (1e9, 0.1, "raw"),  # the delay of a link is not its bandwidth
        (12.5e6, 0.0, "jpeg:90"),  # 100 Mbit/s
        (2.5e5, 0.0, "h264"),  # 2 Mbit/s
        (2.5e5, 0.2, "h264"),
    ],
)
def test_the_fastest_is_found(bytes_per_s: float, delay: float, best: str) -> None:
    """What a frame reaches the model soonest in is found by trials, and kept."""
    played = world(bytes_per_s, delay=delay)
    assert played.play(600) == best
    assert played.used[best] > 400


def test_a_thin_link_carries_no_large_frame_for_curiosity() -> None:
    """What is predicted to be far slower is never tried: over 2 Mbit/s a raw frame would take seven seconds."""
    played = world(2.5e5)
    played.play(2000)
    assert played.used["raw"] == played.used["png"] == 0


def test_a_link_that_changes_is_followed() -> None:
    """From a fast link to a thin one and back."""
    played = world(1e9)
    assert played.play(400) == "raw"
    played.bytes_per_s = 2.5e5
    assert played.play(400) in {"h264", "jpeg:90"}
    played.bytes_per_s = 1e9
    assert played.play(4000) == "raw"


def test_nothing_is_changed_for_a_small_gain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two encodings of nearly the same cost do not take turns: outside trials it is always the same one."""
    played = world(12.5e6, ("png", "bayer"))
    played.play(300)
    before = played.choice.current
    monkeypatch.setitem(COSTS, "png", (0.22, 0.019, 0.011))
    played.play(400)
    assert played.choice.current == before == "bayer"


def test_what_does_not_suit_a_frame_is_left_out() -> None:
    """A stream without mosaics never travels as one."""
    played = world(12.5e6, ("bayer", "png"))
    assert played.play(100, ("png",)) == "png"
    assert played.used["bayer"] == 0


ENCODINGS = ("raw", "lz4", "shuffle-lz4", "png", "jpeg", "bayer", "h264")
CARD = ModelCard(name="m", versions=("1",), platform="p", parameters=CardParameters(encodings=ENCODINGS))


def test_what_auto_chooses_among() -> None:
    """What loses nothing, and where the default is JPEG that and video; what the card lacks is left out."""
    assert choose_encoding("auto", CARD) == "auto:jpeg:90,raw,lz4,png,bayer:lz4,bayer,h264"
    spooled = choose_encoding("auto", CARD, alone=True)
    assert spooled == "auto:jpeg:90,raw,lz4,png,bayer:lz4,bayer"
    few = with_parameters(CARD, encodings=("raw", "lz4"))
    assert choose_encoding("auto", few) == "auto:raw,lz4"
    deep = with_parameters(CARD, image=ImageContract("x", colour=ColourOrder.DEPTH))
    assert choose_encoding("auto", deep) == "auto:lz4,raw,shuffle-lz4"
    assert choose_encoding("auto:png,jpeg:50", CARD) == "auto:png,jpeg:50"
    for wish, words in (("auto:png,mask", "can't decode 'mask'"), ("auto:no", "unknown encoding 'no'")):
        with pytest.raises(ConfigError, match=words):
            choose_encoding(wish, CARD)
    with pytest.raises(BadEncoding):
        FrameEncoder("auto:")
    check_alone("auto")
    check_alone("auto:png,jpeg:90")
    with pytest.raises(ConfigError, match="needs the frames before"):
        check_alone("auto:png,h264")


def test_what_is_refused_before_a_frame_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """A level outside the range, a worker that lists no video, depth, frames kept on the disk, no PyAV at the edge."""
    names = ("raw", "lz4", "jpeg", "png", "h264")
    known = CardParameters(encodings=names, image=ImageContract("x", 8, 8))
    card = ModelCard(name="seg", versions=("1",), platform="onnx", parameters=known)
    assert choose_encoding("h264:1500", card) == "h264:1500"
    with pytest.raises(ConfigError, match=r"encoding 'h264:x' has no such level; levels of h264: 0 to 100000"):
        choose_encoding("h264:x", card)
    with pytest.raises(ConfigError, match="can't decode 'h264'"):
        choose_encoding("h264", with_parameters(card, encodings=("raw", "lz4")))
    for unknown in ("h265", "difference", "difference:bayer"):
        with pytest.raises(ConfigError, match=r"unknown encoding '\w+'; known are raw, .*, h264, bayer and auto"):
            choose_encoding(unknown, card)
    with pytest.raises(ConfigError, match="takes depth pictures, which 'h264' can't carry"):
        choose_encoding("h264", with_parameters(card, image=ImageContract("x", 8, 8, colour=ColourOrder.DEPTH)))
    with pytest.raises(ConfigError, match="needs the frames before"):
        choose_encoding("h264", card, alone=True)
    monkeypatch.setattr("mqinfer.codecs.registry.is_installed", lambda name: name != "av")
    with pytest.raises(MissingExtra, match=r"av is not installed; run: .*pip install .*\[edge\]"):
        choose_encoding("h264", card)
    assert "h264" not in choose_encoding("auto", card)


def test_a_stream_uses_what_is_chosen() -> None:
    """The preparer asks for each frame, and a mosaic is one only where it may travel as one."""
    mosaic = RawImage("bayer_rggb8", 8, 12, 12, is_bigendian=False, data=bytes(96))
    colours = RawImage("rgb8", 8, 12, 36, is_bigendian=False, data=bytes(288))
    preparer = Preparer(ImageContract("x", 12, 8), "auto:bayer:lz4,png")
    sent = [
        preparer.prepare(Frame(f"/{number}", 0, 0, 0, "", image), lambda *_: None)
        for number, image in enumerate((mosaic, colours))
    ]
    assert [frame.tensors[0].encoding for frame in sent] == ["lz4", "png"]
    assert [frame.tensors[0].parameters["image_encoding"] for frame in sent] == ["bayer_rggb8", "rgb8"]

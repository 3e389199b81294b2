from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from mqinfer.bags.frame import Frame
from mqinfer.codecs import decode_tensor, encode_tensor
from mqinfer.edge_agent.frames.times import EdgeStage
from mqinfer.edge_agent.preparing.choices import choose_encoding, choose_output_encoding
from mqinfer.edge_agent.preparing.framing import BitDepths
from mqinfer.edge_agent.preparing.preparer import Preparer
from mqinfer.edge_agent.preparing.quality_ladder import QualityStep
from mqinfer.edge_agent.spooling.backlog import _frame_in, _with_pixels
from mqinfer.edge_agent.spooling.spool import Spool, SpooledFrame
from mqinfer.images.decode import as_image, to_rgb
from mqinfer.images.picture import CompressedImage, RawImage
from mqinfer.images.placement import Placement, fit
from mqinfer.protocol.card import CardParameters, ColourOrder, ImageContract, ModelCard, Resize, with_parameters
from mqinfer.protocol.datatypes import Datatype
from mqinfer.protocol.errors import BadImage, ConfigError
from mqinfer.protocol.types import Capture, TensorSpec

CARD = ModelCard(name="m", versions=("1",), platform="p", parameters=CardParameters(encodings=("raw", "lz4", "jpeg")))
PIXELS = np.random.default_rng(1).integers(0, 255, (24, 32, 3), np.uint8)
IMAGE = as_image(PIXELS, "rgb8")


def frame_of(image: RawImage | CompressedImage) -> Frame:
    """Put an image into a frame."""
    return Frame("/camera", 0, 1, 2, "front", image)


def jpeg(pixels: Any) -> bytes:
    """Make a JPEG."""
    return bytes(encode_tensor("x", pixels, "jpeg:90").data)


def ignore(stage: EdgeStage, nanoseconds: int) -> None:
    """Take no notice."""


def test_a_frame_of_the_right_size_travels_as_it_is() -> None:
    """Lossless codecs keep every pixel, and each stage is timed."""
    stages: list[EdgeStage] = []
    preparer = Preparer(ImageContract("input", 32, 24), "lz4")
    prepared = preparer.prepare(frame_of(IMAGE), lambda stage, _: stages.append(stage))
    np.testing.assert_array_equal(decode_tensor(prepared.tensors[0])[0], PIXELS)
    assert prepared.tensors[0].name == "input"
    assert prepared.tensors[0].parameters["image_encoding"] == "rgb8"
    assert stages == [EdgeStage.DEMOSAIC, EdgeStage.RESIZE, EdgeStage.ENCODE]
    assert prepared.bytes_raw == PIXELS.nbytes
    np.testing.assert_array_equal(prepared.picture(), PIXELS)


@pytest.mark.parametrize(
    ("width", "height", "shape"), [(16, 12, (12, 16)), (64, 48, (48, 64)), (None, None, (24, 32)), (16, None, (24, 16))]
)
def test_the_size_is_the_models(width: int | None, height: int | None, shape: tuple[int, int]) -> None:
    """A side that the model leaves open stays as it is; the sinks get the recorded frame all the same."""
    prepared = Preparer(ImageContract("x", width, height), "raw").prepare(frame_of(IMAGE), ignore)
    assert prepared.tensors[0].shape == (1, *shape, 3)
    assert prepared.placement.picture == shape[::-1]
    np.testing.assert_array_equal(prepared.picture(), PIXELS)


def test_a_letterbox_is_made_by_the_sender() -> None:
    """The picture travels between its margins; a smaller step of the quality ladder holds the same."""
    preparer = Preparer(ImageContract("x", 32, 32, resize=Resize.LETTERBOX, fill=9), "raw")
    prepared = preparer.prepare(frame_of(IMAGE), ignore)
    sent = decode_tensor(prepared.tensors[0])[0]
    np.testing.assert_array_equal(sent[4:28], PIXELS)
    assert (sent[:4] == 9).all()
    assert (sent[28:] == 9).all()
    smaller = preparer.prepare(frame_of(IMAGE), ignore, QualityStep(None, 0.5))
    np.testing.assert_array_equal(decode_tensor(smaller.tensors[0])[0], fit(sent, 16, 16))


@pytest.mark.parametrize("encoding", ["bayer_rggb8", "bayer_gbrg16", "mono8", "mono16"])
def test_mosaics_and_grey_are_made_rgb(encoding: str) -> None:
    """What travels is what `to_rgb` makes of the recording."""
    pixels = PIXELS[:, :, 0].astype(np.uint16 if encoding.endswith("16") else np.uint8)
    image = as_image(np.ascontiguousarray(pixels), encoding)
    prepared = Preparer(ImageContract("x", 32, 24), "raw", bit_depths=BitDepths(8)).prepare(frame_of(image), ignore)
    np.testing.assert_array_equal(decode_tensor(prepared.tensors[0])[0], to_rgb(image, bit_depth=8))


def test_a_jpeg_that_fits_passes_untouched() -> None:
    """Its very bytes travel; the picture for the sinks is decoded only when it is wanted."""
    data = jpeg(PIXELS)
    for contract in (ImageContract("x", 32, 24), ImageContract("x")):
        prepared = Preparer(contract, "jpeg:50").prepare(
            frame_of(CompressedImage("rgb8; jpeg compressed bgr8", data)), ignore
        )
        assert prepared.tensors[0].data is data
        assert prepared.tensors[0].shape == (1, 24, 32, 3)
        assert prepared.bytes_raw == PIXELS.nbytes
        assert prepared.picture().shape == PIXELS.shape


@pytest.mark.parametrize(
    ("contract", "encoding", "image"),
    [
        (ImageContract("x", 16, 12), "jpeg", CompressedImage("jpeg", jpeg(PIXELS))),
        (ImageContract("x", 32, 24), "lz4", CompressedImage("jpeg", jpeg(PIXELS))),
        (ImageContract("x", 32, 24), "jpeg", CompressedImage("jpeg", jpeg(PIXELS[:, :, 0]))),
        (ImageContract("x", 32, 24), "jpeg", CompressedImage("bayer_rggb8; jpeg compressed", jpeg(PIXELS[:, :, 0]))),
        (ImageContract("x", 32, 24), "jpeg", CompressedImage("png", bytes(encode_tensor("x", PIXELS, "png").data))),
    ],
)
def test_other_pictures_are_decoded_and_encoded_again(
    contract: ImageContract, encoding: str, image: CompressedImage
) -> None:
    """Another size, codec, colour or format: the bytes are not the recorded ones."""
    prepared = Preparer(contract, encoding).prepare(frame_of(image), ignore)
    assert bytes(prepared.tensors[0].data) != bytes(image.data)
    assert prepared.tensors[0].encoding == encoding
    assert decode_tensor(prepared.tensors[0]).shape == (1, contract.height, contract.width, 3)


@pytest.mark.parametrize(
    "image",
    [
        replace(IMAGE, data=b"short"),
        replace(IMAGE, encoding="no_such"),
        CompressedImage("jpeg", b"\xff\xd8\xff\xe0 ten bytes"),
        CompressedImage("jpeg", b""),
    ],
)
def test_a_broken_frame_is_a_bad_image(image: RawImage | CompressedImage) -> None:
    """The decoder's words come back by class."""
    with pytest.raises(BadImage):
        Preparer(ImageContract("x", 32, 24), "jpeg").prepare(frame_of(image), ignore)


def test_the_encoding_is_chosen_from_what_the_worker_takes() -> None:
    """JPEG where it can be decoded, LZ4 otherwise; a wish is checked."""
    assert choose_encoding(None, CARD) == "jpeg:90"
    assert choose_encoding(None, with_parameters(CARD, encodings=("raw", "lz4"))) == "lz4"
    assert choose_encoding("jpeg:50", CARD) == "jpeg:50"
    with pytest.raises(ConfigError, match=r"'m' can't decode 'png'; choose one of raw, lz4, jpeg"):
        choose_encoding("png", CARD)
    with pytest.raises(ConfigError, match="unknown encoding 'zip'"):
        choose_encoding("zip", CARD)
    with pytest.raises(ConfigError, match="no such level"):
        choose_encoding("jpeg:101", CARD)


def test_the_encoding_of_the_results_suits_the_outputs() -> None:
    """Masks as such where the worker can, the rest in LZ4; a wrong name is found before the first frame."""
    outputs = TensorSpec("mask", Datatype.UINT8, (1, 8, 8)), TensorSpec("score", Datatype.FP32, (1,))
    card = with_parameters(structs.replace(CARD, outputs=outputs), encodings=("raw", "lz4", "mask"))
    assert choose_output_encoding(None, card) == {"mask": "mask", "score": "lz4"}
    assert choose_output_encoding(None, card, "1") == {"mask": "mask", "score": "lz4"}
    assert choose_output_encoding(None, card, "2") == "lz4"
    assert choose_output_encoding(None, structs.replace(card, outputs=outputs[1:])) == "lz4"
    assert choose_output_encoding(None, with_parameters(card, encodings=("raw", "lz4"))) == "lz4"
    assert choose_output_encoding("lz4:9", card) == "lz4:9"
    with pytest.raises(ConfigError, match="unknown encoding"):
        choose_output_encoding("zip", card)


class TestDepth:
    """Distances for a model that takes them."""

    contract = ImageContract("depth", 6, 4, ColourOrder.DEPTH)
    millimetres = np.arange(8 * 12, dtype=np.uint16).reshape(8, 12) * 100

    @pytest.mark.parametrize("encoding", ["raw", "lz4", "png"])
    def test_they_travel_as_recorded(self, encoding: str) -> None:
        """At the card's size and under their own encoding; the sinks see them as grey, at the recorded size."""
        prepared = Preparer(self.contract, encoding).prepare(frame_of(as_image(self.millimetres, "16UC1")), ignore)
        assert prepared.tensors[0].encoding == encoding
        assert dict(prepared.tensors[0].parameters) == {"image_encoding": "16UC1"}
        np.testing.assert_array_equal(decode_tensor(prepared.tensors[0])[0, :, :, 0], self.millimetres[1::2, 1::2])
        assert prepared.bytes_raw == 2 * 4 * 6
        shown = prepared.picture()
        assert (shown.shape, shown.dtype.name) == ((8, 12, 3), "uint8")
        assert (shown.min(), shown.max()) == (0, 255)

    def test_grey_of_16_bits_is_depth_here(self, caplog: pytest.LogCaptureFixture) -> None:
        """Without the hint on dark pictures, and not dark."""
        prepared = Preparer(self.contract, "lz4").prepare(frame_of(as_image(self.millimetres, "mono16")), ignore)
        assert dict(prepared.tensors[0].parameters) == {"image_encoding": "16UC1"}
        assert prepared.picture().max() == 255
        assert not caplog.messages

    def test_colours_and_distances_do_not_mix(self) -> None:
        """Each is refused where the other is taken, with what to do."""
        with pytest.raises(BadImage, match="rgb8 is no depth picture; the model takes 16UC1"):
            Preparer(self.contract, "lz4").prepare(frame_of(IMAGE), ignore)
        with pytest.raises(BadImage, match=r'the model takes colours; .* needs colour = "depth" under \[image\]'):
            Preparer(ImageContract("x", 6, 4), "lz4").prepare(frame_of(as_image(self.millimetres, "16UC1")), ignore)

    @pytest.mark.parametrize("encoding", ["jpeg:90", "lz4", "png"])
    def test_kept_before_the_card_is_known(self, tmp_path: Path, encoding: str) -> None:
        """Without loss; once the card is there they are prepared as if they came from the recording."""
        frame = frame_of(as_image(self.millimetres, "16UC1"))
        early = Preparer(ImageContract(""), encoding).prepare(frame, ignore)
        with closing(Spool(tmp_path)) as spool:
            spool.put(SpooledFrame(Capture("/depth", 0, 1), early.bytes_raw, 1, tensors=early.tensors))
            found = spool.after(0)
        assert found is not None
        late = Preparer(self.contract, "lz4").prepare(_with_pixels(frame, found), ignore)
        np.testing.assert_array_equal(decode_tensor(late.tensors[0])[0, :, :, 0], self.millimetres[1::2, 1::2])
        shown = _frame_in(found, Placement.of((12, 8), (12, 8)))
        assert (shown.shape, shown.max()) == ((8, 12, 3), 255)

    def test_the_encoding_carries_distances(self) -> None:
        """LZ4 by default; a lossy one is refused."""
        card = with_parameters(CARD, image=self.contract)
        assert choose_encoding(None, card) == "lz4"
        with pytest.raises(
            ConfigError, match=r"takes depth pictures, which 'jpeg' can't carry; choose one of raw, lz4"
        ):
            choose_encoding("jpeg", card)


class TestBitDepths:
    """How many bits of 16 a camera uses."""

    @staticmethod
    def twelve(encoding: str = "bayer_rggb16") -> RawImage:
        """Return a picture whose largest sample is 4095."""
        pixels = np.full((4, 6), 100, np.uint16)
        pixels[2, 3] = 4095
        return as_image(pixels, encoding)

    @pytest.mark.parametrize("encoding", ["bayer_rggb16", "mono16"])
    def test_a_dark_stream_gets_one_hint(self, caplog: pytest.LogCaptureFixture, encoding: str) -> None:
        """It names the option with the topic and the bits; models that share the settings do not repeat it."""
        depths = BitDepths()
        for _ in range(2):
            preparer = Preparer(ImageContract("x"), "raw", bit_depths=depths)
            preparer.prepare(frame_of(self.twelve(encoding)), ignore)
        (line,) = caplog.messages
        assert line.startswith("/camera: the samples of its first frame fit in 12 bits")
        assert "--bit-depth /camera=12" in line

    def test_no_hint_where_there_is_nothing_to_say(self, caplog: pytest.LogCaptureFixture) -> None:
        """For 8 bits, samples of 15 bits and more, or where the user chose."""
        bright = as_image(np.full((4, 6), 20_000, np.uint16), "mono16")
        for image in (IMAGE, bright):
            Preparer(ImageContract("x"), "raw").prepare(frame_of(image), ignore)
        chosen = Preparer(ImageContract("x"), "raw", bit_depths=BitDepths.parse(["16"]))
        chosen.prepare(frame_of(self.twelve()), ignore)
        assert not caplog.messages

    def test_each_topic_has_its_own(self) -> None:
        """An entry of a topic goes before the number for all."""
        depths = BitDepths.parse(["12", "/left=10", "/a=b=14"])
        sources = {"/camera": 12, "/left": 10, "/a=b": 14}
        frame = frame_of(self.twelve("mono16"))
        assert {source: depths.of(replace_source(frame, source)) for source in sources} == sources
        light = Preparer(ImageContract("x"), "raw", bit_depths=depths).prepare(frame, ignore)
        assert decode_tensor(light.tensors[0]).max() == 255
        depths.check(["/left", "/a=b"])
        with pytest.raises(ConfigError, match=r"no image topic /a=b; there are /left, /right"):
            depths.check(["/left", "/right"])

    @pytest.mark.parametrize("option", ["", "7", "17", "/left", "/left=", "/left=x", "-8", "²"])
    def test_what_is_no_depth(self, option: str) -> None:
        """The message has what was written, and what is expected."""
        with pytest.raises(ConfigError, match=r"--bit-depth .*expected 8 to 16, such as 12 or /topic=12"):
            BitDepths.parse([option])


def replace_source(frame: Frame, source: str) -> Frame:
    """Return the frame of another topic."""
    return Frame(source, 0, 1, 2, "front", frame.image)

"""Batch axis, image contract and content hash: what a card has beyond the model file."""

import hashlib
from pathlib import Path

import pytest
from msgspec.structs import replace

from mqinfer.errors import ConfigError, LimitExceeded, MqinferError
from mqinfer.models.card import image_contract, image_contracts, max_batch_size, points_contracts
from mqinfer.models.repository.content_hash import model_hash
from mqinfer.protocol.card import ColourOrder, ImageContract, Layout, PointsContract, Resize
from mqinfer.protocol.datatypes import Datatype
from mqinfer.protocol.types import TensorSpec

Shape = tuple[int, ...]


def spec(shape: Shape, datatype: Datatype = Datatype.FP32, name: str = "x") -> TensorSpec:
    """Make a specification."""
    return TensorSpec(name, datatype, shape)


@pytest.mark.parametrize(
    ("inputs", "outputs", "expected"),
    [
        ([(-1, 4)], [(-1, 2)], 8),
        ([(-1, 4), (-1,)], [(-1, 2), (-1,)], 8),
        ([(1, 1, 28, 28)], [(1, 10)], 1),
        ([(1, 4)], [(-1,)], 1),
        ([(-1, 4)], [(10,)], 0),
        ([(-1, 4)], [()], 0),
        ([(-1, 4), (1, 4)], [(-1,)], 0),
        ([(-1, 4), ()], [(-1,)], 0),
        ([(4, 4)], [(4,)], 0),
        ([()], [()], 0),
        ([], [(-1,)], 0),
    ],
)
def test_batch_axis_is_discovered(inputs: list[Shape], outputs: list[Shape], expected: int) -> None:
    """Every first axis open: 8. Every input's fixed at 1: 1. Anything else: none."""
    assert max_batch_size([spec(shape) for shape in inputs], [spec(shape) for shape in outputs]) == expected


def test_stated_batch_size() -> None:
    """The configuration decides, within what the axes allow."""
    assert max_batch_size([spec((-1, 4))], [spec((10,))], 32) == 32
    assert max_batch_size([spec((-1, 4))], [spec((-1,))], 0) == 0
    assert max_batch_size([spec((1, 4))], [spec((1,))], 1) == 1
    for shape in [(1, 4), (4, 4), ()]:
        with pytest.raises(ConfigError, match="max_batch_size = 2"):
            max_batch_size([spec(shape)], [], 2)


def contract(width: int | None, height: int | None, colour: ColourOrder, layout: Layout) -> ImageContract:
    """Make a contract of the input `x`."""
    return ImageContract("x", width, height, colour, layout)


@pytest.mark.parametrize(
    ("shape", "datatype", "expected"),
    [
        ((1, 608, 968, 3), Datatype.UINT8, contract(968, 608, ColourOrder.RGB, Layout.NHWC)),
        ((-1, 3, 224, 320), Datatype.FP32, contract(320, 224, ColourOrder.RGB, Layout.NCHW)),
        ((1, 1, 28, 28), Datatype.FP32, contract(28, 28, ColourOrder.MONO, Layout.NCHW)),
        ((-1, -1, -1, 1), Datatype.UINT8, contract(None, None, ColourOrder.MONO, Layout.NHWC)),
        ((480, 640, 3), Datatype.UINT8, contract(640, 480, ColourOrder.RGB, Layout.NHWC)),
        ((-1, 128, 3), Datatype.FP32, None),
        ((1, 8, 8, 3), Datatype.INT64, None),
        ((1, 8, 8, 4), Datatype.FP32, None),
        ((-1, 3), Datatype.UINT8, None),
        ((), Datatype.UINT8, None),
    ],
)
def test_image_inputs_are_recognised(shape: Shape, datatype: Datatype, expected: ImageContract | None) -> None:
    """By three or one channels, last or second; a sequence of vectors is no picture."""
    assert image_contract([spec(shape, datatype), spec((-1, 9), name="other")], None) == expected


def test_two_pictures_are_ambiguous() -> None:
    """With two candidates nothing is assumed; the configuration may name one."""
    inputs = [spec((1, 8, 8, 3)), spec((1, 4, 4, 3), name="y")]
    assert image_contract(inputs, None) is None
    named = image_contract(inputs, ImageContract("y"))
    assert named is not None
    assert (named.width, named.height) == (4, 4)
    with pytest.raises(ConfigError, match=r"image\.input = ''"):
        image_contract(inputs, ImageContract(""))


def test_several_pictures() -> None:
    """All inputs with the shape of a picture, or those with a table, in their order; one alone is `image`."""
    inputs = [spec((-1, 3, 8, 8)), spec((-1, 1, 4, 6), name="y"), spec((-1, 9), name="z")]
    found = image_contracts(inputs, None)
    assert [(each.input, each.width, each.height, each.colour) for each in found] == [
        ("x", 8, 8, "rgb"),
        ("y", 6, 4, "mono"),
    ]
    assert image_contracts(inputs[1:], None) == ()
    assert image_contracts(inputs, ImageContract("y")) == ()
    configured = ImageContract("y", colour=ColourOrder.DEPTH), ImageContract("x", scale=2.0)
    named = image_contracts(inputs, configured[0], configured)
    assert [(each.input, each.colour, each.layout, each.scale) for each in named] == [
        ("y", "depth", "NCHW", 1.0),
        ("x", "rgb", "NCHW", 2.0),
    ]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("x", "x"), r"each \[\[image\]\] needs an input of its own; the model has x, y, z"),
        (("x", ""), r"each \[\[image\]\] needs an input of its own"),
        (("x", "w"), r"image.input = 'w': expected one of x, y, z"),
        (("x", "z"), "does not fit the input 'z'"),
    ],
)
def test_several_tables_that_contradict_the_model(names: tuple[str, str], message: str) -> None:
    """With what the model has."""
    inputs = [spec((-1, 3, 8, 8)), spec((-1, 1, 4, 6), name="y"), spec((-1, 9), name="z")]
    with pytest.raises(ConfigError, match=message):
        image_contracts(inputs, None, [ImageContract(name) for name in names])


@pytest.mark.parametrize(
    ("shape", "fields", "has_batch", "points", "fields_first"),
    [
        ((1, 100, 4), 4, True, 100, False),
        ((-1, 4, 100), 4, True, 100, True),
        ((1, 100, 4), 4, False, 100, False),
        ((-1, 4), 4, False, None, False),
        ((4, 4), 4, False, 4, False),
        ((-1, -1, -1), 4, True, None, False),
        ((-1, 4, -1), 4, True, None, True),
        ((-1, 100), 1, True, 100, False),
        ((-1, 1, 100), 1, True, 100, True),
        ((100,), 1, False, 100, False),
    ],
)
def test_points_by_the_shape(
    shape: Shape, fields: int, points: int | None, *, has_batch: bool, fields_first: bool
) -> None:
    """How many there are, and which axis has the fields; a mask has the axes of the points."""
    mask = shape[:1] if has_batch or len(shape) == 3 else ()
    inputs = [spec(shape), spec((*mask, points or -1), Datatype.BOOL, "m")]
    configured = PointsContract("x", tuple("abcd"[:fields]), mask="m")
    (found,) = points_contracts(inputs, [configured], has_batch=has_batch)
    assert found == replace(configured, count=points, fields_first=fields_first)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"input": "y"}, ConfigError, r"\[\[points\]\] names 'y': expected each once of x, m, i, wide"),
        ({"mask": "x"}, ConfigError, "names 'x': expected each once"),
        ({"fields": ()}, ConfigError, r"points.fields = \[\]: expected names, each once"),
        ({"fields": ("a", "a", "b", "c")}, ConfigError, "points.fields = .*: expected names, each once"),
        ({"fields": ("a",)}, ConfigError, r"FP32\[-1, 100, 4\], takes no points of 1 fields; expected floating point"),
        ({"input": "i"}, ConfigError, "'i', UINT8.*, takes no points of 4 fields"),
        ({"count": 99}, ConfigError, "points.count = 99: the model takes 100 only"),
        ({"mask": "i"}, ConfigError, r"points.mask: input 'i' has the shape .*; expected \[-1, 100\]"),
        ({"input": "wide", "count": 1 << 24}, LimitExceeded, "16777216 points of 4 fields; at most 8388608 fit"),
    ],
)
def test_points_that_contradict_the_model(changes: dict[str, object], error: type[MqinferError], message: str) -> None:
    """With what the model has."""
    others = [spec((-1, 100), name="m"), spec((-1, 100, 4), Datatype.UINT8, "i"), spec((-1, -1, 4), name="wide")]
    configured = replace(PointsContract("x", ("a", "b", "c", "d")), **changes)
    with pytest.raises(error, match=message):
        points_contracts([spec((-1, 100, 4)), *others], [configured], has_batch=True)


@pytest.mark.parametrize(
    ("configured", "message"),
    [
        (ImageContract("z"), "expected one of x"),
        (ImageContract("x", width=9), "image.width = 9: the model takes 8 only"),
        (ImageContract("x", layout=Layout.NCHW), "layout NCHW with colour rgb does not fit"),
        (ImageContract("x", colour=ColourOrder.MONO), "colour mono does not fit"),
        (ImageContract("x", layout=Layout.NHW), "layout NHW"),
    ],
)
def test_contradicting_image_tables(configured: ImageContract, message: str) -> None:
    """A table that the input can't satisfy is refused."""
    with pytest.raises(ConfigError, match=message):
        image_contract([spec((1, 6, 8, 3))], configured)


@pytest.mark.parametrize(
    ("shape", "layout", "colour", "size"),
    [
        ((1, 3, 6, 8), Layout.NCHW, ColourOrder.RGB, (8, 6)),
        ((-1, 3, -1, -1), Layout.NCHW, ColourOrder.RGB, (None, None)),
        ((1, 1, 6, 8), Layout.NCHW, ColourOrder.MONO, (8, 6)),
        ((1, 6, 8, 1), Layout.NHWC, ColourOrder.MONO, (8, 6)),
        ((1, 6, 8, 3), Layout.NHWC, ColourOrder.RGB, (8, 6)),
        ((-1, -1, -1, -1), Layout.NHWC, ColourOrder.RGB, (None, None)),
    ],
)
def test_a_table_without_layout_and_colour(
    shape: Shape, layout: Layout, colour: ColourOrder, size: tuple[int | None, int | None]
) -> None:
    """They are those of the input's shape, as without a table; the rest of the table stays."""
    found = image_contract([spec(shape)], ImageContract("", scale=1 / 255))
    assert found == ImageContract("x", *size, colour, layout, scale=1 / 255)


def test_a_table_that_fits_nothing_has_the_way_out() -> None:
    """The error lists what the input takes."""
    with pytest.raises(ConfigError, match='expected layout = "NCHW" with colour = "rgb" or layout = "NCHW"'):
        image_contract([spec((1, 3, 6, 8))], ImageContract("x", colour=ColourOrder.MONO))
    with pytest.raises(ConfigError, match="it takes no pictures"):
        image_contract([spec((6,))], ImageContract("x"))


@pytest.mark.parametrize("resize", [Resize.LETTERBOX, Resize.CROP])
def test_a_letterbox_and_a_crop_need_a_size(resize: Resize) -> None:
    """Of the file, or of the table."""
    contract = ImageContract("x", resize=resize)
    with pytest.raises(ConfigError, match=rf"image\.resize = '{resize}'.*set width and height"):
        image_contract([spec((1, 3, -1, -1))], contract)
    assert image_contract([spec((1, 3, 640, 640))], contract)
    assert image_contract([spec((1, 3, -1, -1))], replace(contract, width=640, height=480))


def test_mono_without_a_channel_axis() -> None:
    """NHW is never assumed, but may be configured, as may sizes of open axes."""
    configured = ImageContract("x", colour=ColourOrder.MONO, layout=Layout.NHW)
    completed = image_contract([spec((-1, 6, 8))], configured)
    assert completed is not None
    assert (completed.width, completed.height) == (8, 6)
    open_sizes = image_contract([spec((-1, -1, -1, 3))], ImageContract("", width=20, height=10))
    assert open_sizes == ImageContract("x", width=20, height=10)


def test_hash_of_a_file_is_sha256sum(tmp_path: Path) -> None:
    """A user can compare it with a tool of his own."""
    path = tmp_path / "model.onnx"
    path.write_bytes(b"abc" * 1_000_000)
    assert model_hash(path) == f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"


def test_hash_of_a_folder(tmp_path: Path) -> None:
    """It depends on names and contents alone, not on the order in which files were made."""
    files = {"saved_model.pb": b"1", "variables/index": b"2", "assets/a": b""}
    for folder, names in (("one", list(files)), ("two", list(files)[::-1])):
        for name in names:
            path = tmp_path / folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(files[name])
    first = model_hash(tmp_path / "one")
    assert first == model_hash(tmp_path / "two")
    (tmp_path / "two" / "variables" / "index").write_bytes(b"3")
    assert first != model_hash(tmp_path / "two")
    (tmp_path / "one" / "assets" / "a").rename(tmp_path / "one" / "assets" / "b")
    assert first != model_hash(tmp_path / "one")

"""Points of PointCloud2, LaserScan and Imu: the fields that a plain reader finds, and refusal of what can't be."""

from __future__ import annotations

import math
import struct
import tracemalloc
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rosbags.rosbag2 import StoragePlugin, Writer
from rosbags.typesys import Stores, get_types_from_msg, get_typestore

from mqinfer.bags.info import describe
from mqinfer.bags.points import POINT_TYPES, check_message, read_points
from mqinfer.bags.sources import open_source, open_sources
from mqinfer.bags.writer import BagWriter
from mqinfer.images.picture import RawImage
from mqinfer.protocol.errors import BadImage, SourceError
from tests.bags.point_messages import XYZI, cloud, field, imu, scan

FORMATS = {1: "b", 2: "B", 3: "h", 4: "H", 5: "i", 6: "I", 7: "f", 8: "d"}
"""What `struct` calls the datatypes of PointField."""
DOUBLE = np.dtype(np.float64)
XYZI_FIELDS = [field(name, 4 * number, 7) for number, name in enumerate("xyz")] + [field("intensity", 12, 4)]


@st.composite
def clouds(draw: st.DrawFn) -> Any:
    """Any cloud that can be: fields in any place, also over each other, gaps, padded rows, either order of bytes."""
    fields = [
        field(f"f{number}", draw(st.integers(0, 12)), draw(st.sampled_from(sorted(FORMATS))), draw(st.integers(0, 1)))
        for number in range(draw(st.integers(1, 5)))
    ]
    point = max(each.offset + struct.calcsize(FORMATS[each.datatype]) for each in fields) + draw(st.integers(0, 3))
    width, height = draw(st.integers(0, 4)), draw(st.integers(0, 4))
    row = width * point + draw(st.integers(0, 5))
    data = draw(st.binary(min_size=height * row, max_size=height * row))
    return cloud(fields, (width, height), (point, row), data, is_bigendian=draw(st.booleans()))


def plainly(message: Any, names: list[str]) -> list[tuple[float, ...]]:
    """Read a cloud number by number."""
    fields = {each.name: each for each in message.fields}
    order = ">" if message.is_bigendian else "<"
    data = message.data.tobytes()

    def number(name: str, row: int, column: int) -> float:
        at = row * message.row_step + column * message.point_step + fields[name].offset
        return float(struct.unpack_from(order + FORMATS[fields[name].datatype], data, at)[0])

    return [
        tuple(number(name, row, column) for name in names)
        for row in range(message.height if message.width else 0)
        for column in range(message.width)
    ]


@given(message=clouds(), dice=st.randoms(use_true_random=False))
def test_any_cloud(message: Any, dice: Any) -> None:
    """Each number is that of a reader without NumPy, NaN included, in the order of the names."""
    names = [each.name for each in message.fields]
    dice.shuffle(names)
    found = read_points([message], names, DOUBLE)
    np.testing.assert_array_equal(found, np.array(plainly(message, names)).reshape(-1, len(names)))


@given(
    message=clouds(),
    changes=st.dictionaries(
        st.sampled_from(["width", "height", "point_step", "row_step"]),
        st.sampled_from([0, 1, 7, 65536, 2**31, 2**32 - 1]),
        min_size=1,
    ),
)
def test_a_cloud_that_lies(message: Any, changes: dict[str, int]) -> None:
    """Whatever it states, its numbers are within its bytes, or it is refused; 4 billion points take no memory."""
    for name, value in changes.items():
        setattr(message, name, value)
    tracemalloc.start()
    try:
        found = read_points([message], [message.fields[0].name], DOUBLE)
        np.testing.assert_array_equal(found[:, 0], [number for (number,) in plainly(message, [message.fields[0].name])])
    except BadImage:
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 1 << 20


@pytest.mark.parametrize(
    ("changes", "names", "why"),
    [
        ({}, ["x", "ring"], "no field 'ring'; they have x, y, z, intensity"),
        ({"row_step": 13}, ["x"], "row_step is 13; 3 points of 14 bytes take 42"),
        ({"point_step": 13}, ["intensity"], r"ends behind the 13 bytes of a point \(point_step\)"),
        ({"point_step": 0}, ["x"], "ends behind the 0 bytes"),
        ({"data": np.zeros(83, np.uint8)}, ["x"], "83 bytes; 3x2 points take 84"),
        ({"width": 2**32 - 1, "height": 2**32 - 1}, ["x"], "points take .* bytes; at most 268435456"),
        ({"fields": [field("x", 0, 9)]}, ["x"], "datatype 9 and count 1; expected one number"),
        ({"fields": [field("x", 0, 7, 3)]}, ["x"], "datatype 7 and count 3; expected one number"),
        ({"fields": [field("x", 2**32 - 4, 7)]}, ["x"], "ends behind"),
    ],
)
def test_a_bad_cloud(changes: dict[str, Any], names: list[str], why: str) -> None:
    """It is refused by what is wrong with it."""
    message = cloud(XYZI_FIELDS, (3, 2), (14, 42), bytes(84))
    for name, value in changes.items():
        setattr(message, name, value)
    with pytest.raises(BadImage, match=why):
        read_points([message], names, DOUBLE)


def test_a_scan_and_samples() -> None:
    """Beams have their angles; samples of several messages are the points of one array."""
    found = read_points([scan([1, math.inf, 3], [7, 8, 9])], ["angles", "intensities", "ranges"], DOUBLE)
    assert found.tolist() == [[-1, 7, 1], [-0.75, 8, math.inf], [-0.5, 9, 3]]
    with pytest.raises(BadImage, match="no field 'intensities'; they have ranges, angles"):
        read_points([scan([1, 2], [])], ["intensities"], DOUBLE)
    names = ["linear_acceleration.z", "angular_velocity.x", "orientation.w"]
    assert read_points([imu(2), imu(4)], names, DOUBLE).tolist() == [[0.5, 2.25, 0.25], [0.5, 4.25, 0.5]]
    with pytest.raises(BadImage, match=r"no field 'header'; they have orientation.x, "):
        read_points([imu(2)], ["header"], DOUBLE)


@pytest.mark.filterwarnings("error")
def test_what_a_type_can_not_hold() -> None:
    """It is infinite, as any other number that a model could not use; NaN of any bits and endless angles are NaN."""
    message = cloud([field("t", 0, 8)], (3, 1), (8, 24), struct.pack("<2dQ", 1e300, 0.5, 0x7FF0 << 48 | 1))
    found = read_points([message], ["t"], np.dtype(np.float32))
    np.testing.assert_array_equal(found, [[math.inf], [0.5], [math.nan]])
    beams = scan([1, 2], [])
    beams.angle_increment = math.inf
    np.testing.assert_array_equal(read_points([beams], ["angles"], DOUBLE), [[math.nan], [math.inf]])


@pytest.mark.parametrize("is_cdr", [True, False])
def test_a_message_of_many_fields(*, is_cdr: bool) -> None:
    """They are counted before one is made; an Imu of an impossible size is none, since many are kept."""
    kind, _, small = POINT_TYPES
    frame_id = b"abcde"
    head = (b"\0\1\0\0" if is_cdr else bytes(4)) + bytes(8) + struct.pack("<I", len(frame_id)) + frame_id
    padding = bytes(-len(head) % 4) if is_cdr else b""
    for count in (1000, 1001, 2**32 - 1):
        raw = head + padding + struct.pack("<III", 2, 3, count)
        if count == 1000:
            check_message(kind, raw, is_cdr=is_cdr)
        else:
            with pytest.raises(SourceError, match=f"a PointCloud2 of {count} fields; expected at most 1000"):
                check_message(kind, raw, is_cdr=is_cdr)
    with pytest.raises(SourceError, match="an Imu of 5000 bytes; expected at most 4096"):
        check_message(small, bytes(5000), is_cdr=is_cdr)


@pytest.mark.parametrize("storage", ["bag", "mcap", "sqlite3"])
def test_a_bag_of_each_kind(tmp_path: Path, storage: Any) -> None:
    """`bag info` lists fields and size of a cloud; frames have the messages, where such topics are named."""
    points = np.array([(number, 0.5, -number, 1000 + number) for number in range(6)], XYZI)
    path = tmp_path / ("drive.bag" if storage == "bag" else "drive")
    with BagWriter(path, storage) as bag:
        make = bag.message
        fields = [field(each.name, each.offset, each.datatype, make=make) for each in XYZI_FIELDS]
        messages = [
            cloud(fields, (3, 2), (14, 42), points.tobytes(), 5, make=make),
            scan([1, 2], [3, 4], 6, make),
            imu(8, 7, make),
        ]
        for number, (topic, message) in enumerate(zip(("/lidar", "/scan", "/imu"), messages, strict=True)):
            bag.add(topic, message, number + 1)
        bag.write("/camera", RawImage("mono8", 1, 1, 1, is_bigendian=False, data=b"\0"), 8, 9)
    shown = {each.source: (each.encoding, each.width, each.height) for each in describe(str(path)).streams}
    assert shown["/lidar"] == ("x y z intensity", 3, 2)
    assert shown["/scan"] == ("", 0, 0)
    assert shown["/imu"] == ("", 0, 0)
    with closing(open_source(str(path))) as source:
        assert [each.source for each in source.frames()] == ["/camera"]
    with pytest.raises(SourceError, match=r"no image topic /lidar; its image topics are /camera$"):
        open_source(str(path), topics=["/lidar"])
    with pytest.raises(SourceError, match=r"no image topic /no; .* are /camera, those of points /imu, /lidar, /scan$"):
        open_sources([str(path)], ["/no"], points=True)
    with closing(open_sources([str(path)], ["/lidar", "/scan", "/imu", "/camera"], points=True)) as source:
        assert [each.is_image for each in source.streams()] == [True, False, False, False]
        frames = {each.source: each for each in source.frames()}
    assert [frames[topic].capture_time_ns for topic in ("/lidar", "/scan", "/imu")] == [5, 6, 7]
    assert [frames[topic].image.data for topic in ("/lidar", "/scan", "/imu")] == [b""] * 3
    found = read_points(frames["/lidar"].points, list(XYZI.names or ()), DOUBLE)
    assert found.tolist() == [list(each) for each in points.tolist()]
    assert read_points(frames["/scan"].points, ["ranges"], DOUBLE).tolist() == [[1], [2]]
    assert read_points(frames["/imu"].points, ["angular_velocity.x"], DOUBLE).tolist() == [[8.25]]


def test_a_message_that_is_cut_off(tmp_path: Path) -> None:
    """It ends the frames with an error that names the topic, and the bag's other topics are listed all the same."""
    with BagWriter(tmp_path / "drive", "mcap") as bag:
        bag.write("/camera", RawImage("mono8", 1, 1, 1, is_bigendian=False, data=b"\0"), 8, 9)
        message = cloud(XYZI_FIELDS, (1, 1), (14, 14), bytes(14))
        bag._types.serialize_cdr = lambda *_: bytes(20)  # what no writer does
        bag.add("/lidar", message, 10)
    assert {each.source for each in describe(str(tmp_path / "drive")).streams} == {"/camera", "/lidar"}
    with (
        closing(open_sources([str(tmp_path / "drive")], ["/camera", "/lidar"], points=True)) as source,
        pytest.raises(SourceError, match="/lidar"),
    ):
        list(source.frames())


def test_a_definition_of_its_own(tmp_path: Path) -> None:
    """A bag may define a cloud whose fields have numbers for names: its other topics are listed all the same."""
    store, kind = get_typestore(Stores.EMPTY), "sensor_msgs/msg/PointCloud2"
    definition = "std_msgs/Header header\nuint32 height\nuint32 width\nmy_msgs/Field[] fields\nuint8[] data"
    store.register(get_types_from_msg("int32 name", "my_msgs/msg/Field"))
    store.register(get_types_from_msg("builtin_interfaces/Time stamp\nstring frame_id", "std_msgs/msg/Header"))
    store.register(get_types_from_msg(definition, kind))
    stamp = store.types["builtin_interfaces/msg/Time"](1, 2)
    made = store.types[kind](
        store.types["std_msgs/msg/Header"](stamp, "x"),
        1,
        1,
        [store.types["my_msgs/msg/Field"](5)],
        np.zeros(4, np.uint8),
    )
    with Writer(tmp_path / "drive", version=9, storage_plugin=StoragePlugin.MCAP) as bag:
        bag.write(bag.add_connection("/lidar", kind, typestore=store), 1, store.serialize_cdr(made, kind))
        bag.write(bag.add_connection("/other", kind, typestore=store), 1, store.serialize_cdr(made, kind))
    assert [each.encoding for each in describe(str(tmp_path / "drive")).streams] == ["", ""]


def test_a_topic_of_several_types(tmp_path: Path) -> None:
    """It is refused by name: samples would be gathered from what is none. For its pictures alone it can be read."""
    with BagWriter(tmp_path / "drive", "mcap") as bag:
        image = RawImage("mono8", 1, 1, 1, is_bigendian=False, data=b"\0")
        bag.write("/imu", image, 8, 8)
        del bag._connections["/imu"]  # what no writer of ours does
        bag.add("/imu", imu(1, 9, bag.message), 9)
        del bag._connections["/imu"]
        bag.add("/imu", scan([1], [], 10, bag.message), 10)
    with pytest.raises(SourceError, match="several types of messages on /imu; topics of points have one"):
        open_sources([str(tmp_path / "drive")], ["/imu"], points=True)
    with closing(open_source(str(tmp_path / "drive"), topics=["/imu"])) as source:
        assert [each.capture_time_ns for each in source.frames()] == [8]


def test_no_points() -> None:
    """A message of each type may have none but an Imu's one."""
    messages = cloud(XYZI_FIELDS, (0, 0), (14, 0), b""), scan([], []), imu(0)
    assert tuple(each.__msgtype__ for each in messages) == POINT_TYPES
    named = zip(messages, ("x", "ranges", "orientation.x"), strict=True)
    assert [len(read_points([each], [name], DOUBLE)) for each, name in named] == [0, 0, 1]

from contextlib import closing
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from mqinfer.bags.frame import Frame
from mqinfer.bags.ros2.messages import VISION
from mqinfer.bags.sources import open_source
from mqinfer.bags.writer import BagWriter, Storage
from mqinfer.images.decode import as_image
from mqinfer.lab.comparing.labels import TrueBox, TrueFrame, read_csv
from mqinfer.lab.comparing.truth import open_truth
from mqinfer.protocol.errors import ConfigError

SECOND = 1_000_000_000
FRAMES = 20
ROS1 = {
    "vision_msgs/msg/ObjectHypothesisWithPose": "int64 id\nfloat64 score\ngeometry_msgs/PoseWithCovariance pose",
    "vision_msgs/msg/BoundingBox2D": "geometry_msgs/Pose2D center\nfloat64 size_x\nfloat64 size_y",
    "vision_msgs/msg/Detection2D": "std_msgs/Header header\nvision_msgs/ObjectHypothesisWithPose[] results\n"
    "vision_msgs/BoundingBox2D bbox\nsensor_msgs/Image source_img",
    "vision_msgs/msg/Detection2DArray": "std_msgs/Header header\nvision_msgs/Detection2D[] detections",
}
"""vision_msgs 0.0.1 of ROS Noetic (https://github.com/ros-perception/vision_msgs/tree/noetic-devel)."""


def header(bag: BagWriter, stamp: int, *, ros1: bool) -> Any:
    """Make a header."""
    time = bag.message("builtin_interfaces/msg/Time", stamp // SECOND, stamp % SECOND)
    return bag.message("std_msgs/msg/Header", *((0,) if ros1 else ()), time, "camera")


def pose(bag: BagWriter) -> Any:
    """Make a pose that nobody reads."""
    zero = (
        bag.message("geometry_msgs/msg/Point", 0.0, 0.0, 0.0),
        bag.message("geometry_msgs/msg/Quaternion", 0.0, 0.0, 0.0, 1.0),
    )
    return bag.message(
        "geometry_msgs/msg/PoseWithCovariance", bag.message("geometry_msgs/msg/Pose", *zero), np.zeros(36)
    )


def detection(bag: BagWriter, stamp: int, label: str, x: float, *, ros1: bool) -> Any:
    """Make a box of 10x4 pixels around (x, 8), with a less likely class beside the true one."""
    head = header(bag, stamp, ros1=ros1)
    if ros1:
        made = [
            bag.message("vision_msgs/msg/ObjectHypothesisWithPose", *each, pose(bag))
            for each in ((7, 0.1), (int(label), 0.9))
        ]
        centre = bag.message("geometry_msgs/msg/Pose2D", x, 8.0, 0.0)
        empty = bag.message("sensor_msgs/msg/Image", head, 0, 0, "", 0, 0, np.zeros(0, np.uint8))
        box = bag.message("vision_msgs/msg/BoundingBox2D", centre, 10.0, 4.0)
        return bag.message("vision_msgs/msg/Detection2D", head, made, box, empty)
    made = [
        bag.message(
            "vision_msgs/msg/ObjectHypothesisWithPose",
            bag.message("vision_msgs/msg/ObjectHypothesis", *each),
            pose(bag),
        )
        for each in (("bus", 0.1), (label, 0.9))
    ]
    centre = bag.message("vision_msgs/msg/Pose2D", bag.message("vision_msgs/msg/Point2D", x, 8.0), 0.0)
    box = bag.message("vision_msgs/msg/BoundingBox2D", centre, 10.0, 4.0)
    return bag.message("vision_msgs/msg/Detection2D", head, made, box, "")


def record(path: Path, storage: Storage, label: str) -> Path:
    """Record pictures two a second, and the truth of every second one, logged 0.7 s later."""
    ros1 = storage == "bag"
    with BagWriter(path, storage) as bag:
        bag.register(ROS1 if ros1 else VISION)
        for number in range(FRAMES):
            stamp = (100 + number) * SECOND // 2
            bag.write("/camera", as_image(np.zeros((16, 32, 3), np.uint8), "rgb8"), stamp, stamp)
            if number % 2 == 0:
                found = [detection(bag, stamp, label, 5.0 + number, ros1=ros1)] * (number != 2)
                array = bag.message("vision_msgs/msg/Detection2DArray", header(bag, stamp, ros1=ros1), found)
                bag.add("/truth", array, stamp + 7 * SECOND // 10)
    return path


def frames_of(path: Path) -> list[Frame]:
    """Read the frames of a recording."""
    with closing(open_source(str(path), topics=["/camera"])) as source:
        return list(source.frames())


@pytest.mark.parametrize(
    ("storage", "name", "label"), [("bag", "a.bag", "3"), ("mcap", "b", "car"), ("sqlite3", "c", "car")]
)
def test_detections_of_a_topic(
    tmp_path: Path, storage: Literal["bag", "mcap", "sqlite3"], name: str, label: str
) -> None:
    """Each frame finds those of its stamp, whenever they were logged; an empty list is a truth, too."""
    path = record(tmp_path / name, storage, label)
    with closing(open_truth("/truth", str(path))) as truth:
        found = [truth.of(frame) for frame in frames_of(path)]
    assert found[1::2] == [None] * (FRAMES // 2)
    assert found[2] == TrueFrame(boxes=())
    for number in (0, *range(4, FRAMES, 2)):
        assert found[number] == TrueFrame(boxes=(TrueBox((number, 6.0, number + 10.0, 10.0), label),))


def test_only_what_is_near_is_held(tmp_path: Path) -> None:
    """A long recording's truth is not in memory at once."""
    path = record(tmp_path / "b", "mcap", "car")
    with closing(open_truth("/truth", str(path))) as truth:
        for frame in frames_of(path):
            truth.of(frame)
            assert len(truth._kept) <= 6  # type: ignore[attr-defined]


def test_a_topic_that_holds_no_truth(tmp_path: Path) -> None:
    """The message names its type."""
    with BagWriter(tmp_path / "b", "mcap") as bag:
        bag.write("/camera", as_image(np.zeros((4, 4, 3), np.uint8), "rgb8"), 1, 1)
        bag.add("/stamp", header(bag, 1, ros1=False), 1)
    with pytest.raises(ConfigError, match=r"std_msgs/msg/Header holds no truth; .* it has /camera"):
        open_truth("/stamp", str(tmp_path / "b"))
    (tmp_path / "drive.mp4").touch()
    with pytest.raises(ConfigError, match=r"no such file or folder, and .*drive.mp4 is no bag"):
        open_truth("/stamp", str(tmp_path / "drive.mp4"))


def test_many_rows_of_a_csv_file(tmp_path: Path) -> None:
    """Each box is added where it stands, and classes of one name are one object."""
    path = tmp_path / "truth.csv"
    path.write_text("sequence,class,left,top,right,bottom\n" + "7,a car,1,2,3,4\n" * 100_000)
    (found,) = read_csv(path).frames.values()
    assert len(found.boxes or ()) == 100_000
    assert len({id(each.label) for each in found.boxes or ()}) == 1


def test_rows_of_a_csv_file(tmp_path: Path) -> None:
    """Rows of one frame make its boxes, an empty class none; a source is one stream's."""
    path = tmp_path / "truth.csv"
    path.write_text("source,sequence,class,left,top,right,bottom\n/a,0,car,1,2,3,4\n/a,0,bus,0,0,1,1\n,1,,,,,\n")
    image = as_image(np.zeros((4, 4, 3), np.uint8), "rgb8")
    truth = open_truth(str(path), "drive.bag")
    assert truth.of(Frame("/a", 0, 0, 0, "", image)) == TrueFrame(
        boxes=[TrueBox((1, 2, 3, 4), "car"), TrueBox((0, 0, 1, 1), "bus")]
    )
    assert truth.of(Frame("/b", 0, 0, 0, "", image)) is None
    assert truth.of(Frame("/b", 1, 0, 0, "", image)) == TrueFrame(boxes=[])

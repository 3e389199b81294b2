import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mqinfer.answers.outputs import DetectedBox
from mqinfer.bags.frame import Frame
from mqinfer.images.decode import as_image
from mqinfer.lab.comparing.coco import CocoResults, category_ids
from mqinfer.lab.comparing.labels import TrueBox, TrueFrame, number_of, parse_classes
from mqinfer.lab.comparing.truth import Truth, detected, open_truth
from mqinfer.protocol.card import ClassInfo
from mqinfer.protocol.errors import ConfigError, MqinferError, SourceError

KITTI = (
    "Truck 0.00 0 -1.57 599.41 156.40 629.75 189.25 2.85 2.63 12.34 0.47 1.49 69.44 -1.56\n"
    "Car 0.00 0 1.85 387.63 181.54 423.81 203.12 1.67 1.87 3.69 -16.53 2.39 58.49 1.57\n"
    "DontCare -1 -1 -10 503.89 169.71 590.61 190.13 -1 -1 -1 -1000 -1000 -1000 -10\n"
)
"""Labels of picture 000001 of KITTI's object detection, but for one line."""
COCO: dict[str, Any] = {
    "info": {"year": 2017},
    "images": [
        {"id": 139, "width": 640, "height": 426, "file_name": "000000000139.jpg", "license": 2},
        {"id": 42, "width": 640, "height": 426, "file_name": "000000000042.jpg"},
        {"id": 7, "file_name": "val/000000001000.jpg"},
    ],
    "annotations": [
        {"id": 1, "image_id": 139, "category_id": 18, "bbox": [236.98, 142.5, 24.5, 69], "iscrowd": 0, "area": 1.5},
        {
            "id": 2,
            "image_id": 139,
            "category_id": 1,
            "bbox": [7, 8, 10, 20],
            "iscrowd": 1,
            "segmentation": {"size": []},
        },
        {"id": 3, "image_id": 7, "category_id": 1, "bbox": [0, 0, 1, 1]},
    ],
    "categories": [{"id": 1, "name": "person", "supercategory": "person"}, {"id": 18, "name": "dog"}],
}
DOG = TrueBox((236.98, 142.5, 261.48, 211.5), "dog")
CROWD = TrueBox((7, 8, 17, 28), "person", is_region=True)


def of(truth: Truth, number: int) -> TrueFrame | None:
    """Return what is true of a frame."""
    return truth.of(Frame("/a", number, 0, 0, "", as_image(np.zeros((4, 4, 3), np.uint8), "rgb8")))


def folder_of(path: Path, *names: str) -> Path:
    """Make a recording of pictures that nobody decodes."""
    path.mkdir()
    for name in names:
        (path / name).touch()
    return path


def test_kitti_labels(tmp_path: Path) -> None:
    """A file a picture, by its number in a bag, by its name in a folder; what KITTI doesn't care about is a region."""
    labels = tmp_path / "label_2"
    labels.mkdir()
    (labels / "000001.txt").write_text(KITTI)
    (labels / "000003.txt").write_text("")
    boxes = (
        TrueBox((599.41, 156.4, 629.75, 189.25), "Truck"),
        TrueBox((387.63, 181.54, 423.81, 203.12), "Car"),
        TrueBox((503.89, 169.71, 590.61, 190.13), None, is_region=True),
    )
    truth = open_truth(str(labels), "drive.bag")
    assert [of(truth, n) for n in range(4)] == [None, TrueFrame(boxes=boxes), None, TrueFrame(boxes=())]
    recording = folder_of(tmp_path / "image_2", "000001.png", "000002.png", "000003.png")
    truth = open_truth(str(labels), str(recording))
    assert [of(truth, n) for n in range(3)] == [TrueFrame(boxes=boxes), None, TrueFrame(boxes=())]


def test_coco_annotations(tmp_path: Path) -> None:
    """Pictures in the order of their names, or by them; crowds are regions."""
    path = tmp_path / "instances.json"
    path.write_text(json.dumps(COCO))
    truth = open_truth(str(path), "drive.bag")
    assert truth.categories == {"person": 1, "dog": 18}
    first = TrueFrame(boxes=(DOG, CROWD), size=(640, 426), image_id=139)
    assert of(truth, 0) == TrueFrame(boxes=(), size=(640, 426), image_id=42)
    assert of(truth, 1) == first
    assert of(truth, 2) == TrueFrame(boxes=(TrueBox((0, 0, 1, 1), "person"),), image_id=7)
    recording = folder_of(tmp_path / "val2017", "000000000139.png", "000000000500.png", "000000001000.jpg")
    truth = open_truth(str(path), str(recording))
    assert of(truth, 0) == first
    assert of(truth, 1) is None
    assert (found := of(truth, 2)) is not None
    assert found.image_id == 7


def changed(**lists: Any) -> bytes:
    """Return COCO's file with other entries."""
    return json.dumps({**COCO, **lists}).encode()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'{"images": [],\n"annotations": [}', "line 2: JSON is malformed"),
        (b'{"images": []}', "missing required field `annotations`"),
        (b"[]", "expected the annotations of COCO"),
        (b"\xff\xfe", "line 1"),
        (b"", "truncated"),
        (changed(annotations=[{"image_id": 42, "category_id": 1}]), r"annotations\[0\]: .*`bbox`"),
        (changed(annotations=[{"image_id": 42, "category_id": 1, "bbox": [1, 2, 3]}]), r"annotations\[0\]: .*length 4"),
        (changed(annotations=[{"image_id": 43, "category_id": 1, "bbox": [1, 2, 3, 4]}]), "image_id 43 is none of its"),
        (changed(annotations=[{"image_id": 42, "category_id": 3, "bbox": [1, 2, 3, 4]}]), "category_id 3 is none of"),
        (changed(annotations=[{"image_id": 42, "category_id": 1, "bbox": [1, 2, -3, 4]}]), "ends before it begins"),
        (changed(images=[{"id": "a", "file_name": "b"}]), r"images\[0\]: .*`int`"),
        (changed(categories=[{"id": 1}]), r"categories\[0\]: .*`name`"),
        (b'{"images": ' + b"[" * 100_000, "recursion"),
        (changed(images=[{"id": 1, "file_name": "a"}, {"id": 1, "file_name": "b"}]), "images: two have the same id"),
    ],
)
def test_damaged_annotations(tmp_path: Path, content: bytes, words: str) -> None:
    """The file, the line or the entry, and what is expected."""
    path = tmp_path / "instances.json"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=f"instances.json.*{words}"):
        open_truth(str(path), "drive.bag")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("1.txt", "Car 0 0 0 1 2 3 4\n", "1.txt, line 1: it has 8 words; expected the 15"),
        ("1.txt", KITTI.replace("387.63", "x"), "1.txt, line 2: could not convert"),
        ("1.txt", KITTI.replace("387.63", "nan"), "1.txt, line 2: nan is no place"),
        ("1.txt", f"0 2 {KITTI}", "line 1: a line of KITTI's tracking"),
        ("1.txt", "\ud800", "1.txt: .*expected a text file of KITTI"),
        ("car.txt", KITTI, "car.txt: its name is no number of a frame"),
    ],
)
def test_damaged_kitti_labels(tmp_path: Path, name: str, content: str, words: str) -> None:
    """The file, the line, and what is expected."""
    (tmp_path / name).write_bytes(content.encode(errors="surrogatepass"))
    with pytest.raises(ConfigError, match=words):
        open_truth(str(tmp_path), "drive.bag")


def test_two_pictures_of_one_name(tmp_path: Path) -> None:
    """A frame would silently have the boxes of the other one."""
    recording = folder_of(tmp_path / "drive", "1.jpg", "2.jpg")
    (tmp_path / "a.json").write_bytes(
        changed(images=[{"id": n, "file_name": f"{n}/1.jpg"} for n in range(2)], annotations=[])
    )
    with pytest.raises(ConfigError, match="two have one file_name"):
        open_truth(str(tmp_path / "a.json"), str(recording))


def test_files_of_windows(tmp_path: Path) -> None:
    """The mark that stands before their text is no part of a name."""
    (tmp_path / "a.csv").write_text("sequence,class\n0,car\n", encoding="utf-8-sig")
    assert of(open_truth(str(tmp_path / "a.csv"), "drive.bag"), 0) == TrueFrame(label="car")
    (tmp_path / "label_2").mkdir()
    (tmp_path / "label_2" / "0.txt").write_text(KITTI, encoding="utf-8-sig")
    found = of(open_truth(str(tmp_path / "label_2"), "drive.bag"), 0)
    assert found is not None
    assert [each.label for each in found.boxes or ()] == ["Truck", "Car", None]


@pytest.mark.parametrize("name", ["0.txt", "0.png"])
def test_labels_that_never_end(tmp_path: Path, name: str) -> None:
    """A pipe never answers, a device never ends, and a file of holes is larger than any memory."""
    path = tmp_path / name
    path.symlink_to("/dev/zero")
    with pytest.raises(SourceError, match="a pipe or a device"):
        open_truth(str(tmp_path), "drive.bag")
    path.unlink()
    path.touch()
    os.truncate(path, 1 << 40)
    with pytest.raises(MqinferError, match="it has more than"):
        of(open_truth(str(tmp_path), "drive.bag"), 0)


def test_a_frame_with_two_classes(tmp_path: Path) -> None:
    """Neither is chosen in silence."""
    (tmp_path / "a.csv").write_text("sequence,class\n0,car\n0,van\n")
    with pytest.raises(ConfigError, match="line 3: a second class of frame 0"):
        open_truth(str(tmp_path / "a.csv"), "drive.bag")


def test_labels_of_other_pictures(tmp_path: Path) -> None:
    """A folder with none of the labelled pictures is not scored by their order."""
    path = tmp_path / "instances.json"
    path.write_text(json.dumps(COCO))
    with pytest.raises(ConfigError, match=r"labels 000000000139.jpg and others, of which .* has none, but a.png"):
        open_truth(str(path), str(folder_of(tmp_path / "pictures", "a.png")))


CLASSES = (ClassInfo("Dog", (0, 0, 0)), ClassInfo("pedestrian", (0, 0, 0)))


def test_classes_of_the_truth_under_other_names() -> None:
    """Case does not matter; a class has another name, or is left out; what is not said is refused."""
    renamed = parse_classes(["person=Pedestrian", "van=", "*="])
    assert [number_of(each, CLASSES, renamed) for each in ("dog", "person", "van", "tram", "7")] == [
        0,
        1,
        None,
        None,
        7,
    ]
    assert number_of("tram", CLASSES, {"*": "dog"}) == 0
    with pytest.raises(ConfigError, match=r"--truth-class person=CLASS, or leave it out, --truth-class person="):
        number_of("person", CLASSES, {})
    for text in ("person", "=dog"):
        with pytest.raises(ConfigError, match="expected TRUTH=CLASS"):
            parse_classes([text])
    region = TrueBox((0, 0, 1, 1), None, is_region=True)
    assert detected([DOG, CROWD, region, TrueBox((0, 0, 1, 1), "van")], CLASSES, renamed) == (
        [DetectedBox(DOG.box, 1, 0)],
        [DetectedBox(CROWD.box, 1, 1), DetectedBox((0, 0, 1, 1), 1, None)],
    )


def test_results_in_cocos_format(tmp_path: Path) -> None:
    """What its documents name, with the truth's numbers; a class that it lacks is left out; no frame, no file."""
    path = tmp_path / "a" / "coco.json"
    known = category_ids({"person": 1, "dog": 18, "cat": 17}, CLASSES[:1], {})
    assert known == {0: 18}
    results = CocoResults(path, known)
    assert results.close() == ()
    results.add(42, [])
    results.add(139, [DetectedBox((1.5, 2, 4, 8.25), 0.5, 0), DetectedBox((0, 0, 1, 1), 0.4, 1)])
    results.add(7, [DetectedBox((0, 0, 3, 3), 0.25, 0)])
    assert results.close() == (path,)
    assert json.loads(path.read_text()) == [
        {"image_id": 139, "category_id": 18, "bbox": [1.5, 2, 2.5, 6.25], "score": 0.5},
        {"image_id": 7, "category_id": 18, "bbox": [0, 0, 3, 3], "score": 0.25},
    ]
    assert category_ids({}, CLASSES, {}) is None

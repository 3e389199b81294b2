import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import onnx
import onnxruntime
import pytest
from typer.testing import CliRunner, Result

from mqinfer.bags.sources import open_source
from mqinfer.cli.app import app
from mqinfer.cli.exit_codes import exit_code
from mqinfer.images.decode import to_array
from mqinfer.lab.drives.labels import CLASSES
from mqinfer.lab.drives.recording import IMAGE_TOPIC, TRUTH_TOPIC, write_drive
from mqinfer.protocol.errors import MqinferError
from tests.onnx_files import save_onnx
from tests.segmenter import HEIGHT, WIDTH, write_segmenter

FRAMES = 6


@pytest.fixture(scope="module")
def drive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording with its truth, whose frames are sent as they are."""
    path = tmp_path_factory.mktemp("drive") / "drive"
    return write_drive(path, ros=2, frames=FRAMES, seed=2, width=WIDTH, height=HEIGHT, encoding="rgb8")


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two models, the first in two versions; version 2 of `a` is the same as `b`."""
    folder = tmp_path_factory.mktemp("models")
    for name, version, seed in (("a", 1, 0), ("a", 2, 1), ("b", 1, 1)):
        write_segmenter(folder, name, version, seed)
    return folder


@pytest.fixture
def compare(drive: Path, repository: Path) -> Callable[..., tuple[int, str]]:
    """Run the command in this process; return its exit code and what it printed."""

    def run(*arguments: object, source: object = drive) -> tuple[int, str]:
        command = ["compare", str(source), "--local", "--repository", str(repository), *map(str, arguments)]
        result: Result = CliRunner().invoke(app, command)
        error = result.exception
        if isinstance(error, MqinferError):
            return exit_code(error), str(error)
        assert error is None or isinstance(error, SystemExit)
        return result.exit_code, " ".join((result.output + result.stderr).split())

    return run


def masks(repository: Path, model: str, drive: Path) -> list[np.ndarray]:
    """Return the masks of a model by ONNX Runtime alone."""
    session = onnxruntime.InferenceSession(repository / model / "model.onnx", providers=["CPUExecutionProvider"])
    source = open_source(str(drive), topics=[IMAGE_TOPIC])
    found = [session.run(None, {"input": to_array(frame.image)[None]})[0][0] for frame in source.frames()]
    source.close()
    return found


def truths(drive: Path) -> list[np.ndarray]:
    """Return the true masks."""
    source = open_source(str(drive), topics=[TRUTH_TOPIC])
    found = [to_array(frame.image) for frame in source.frames()]
    source.close()
    return found


def mean_iou(ones: list[np.ndarray], others: list[np.ndarray]) -> float:
    """Return the mean intersection over union, class by class with sets."""
    one, other = np.stack(ones), np.stack(others)
    values = []
    for number in range(len(CLASSES)):
        first, second = one == number, other == number
        if (first | second).any():
            values.append((first & second).sum() / (first | second).sum())
    return float(np.mean(values))


def test_the_figures_are_those_of_the_models_own_masks(
    compare: Callable[..., tuple[int, str]], drive: Path, repository: Path, tmp_path: Path
) -> None:
    """Disagreement and scores, computed a second time from ONNX Runtime's outputs; the worst frames are pictures."""
    out = tmp_path / "out"
    code, printed = compare("--model", "a/1", "--model", "b", "--truth", TRUTH_TOPIC, "--output", out, "--worst", 2)
    assert code == 1
    assert "a/1 and b: disagreement 0." in printed
    report: dict[str, Any] = json.loads((out / "compare.json").read_text())
    ours, theirs, true = masks(repository, "a/1", drive), masks(repository, "b/1", drive), truths(drive)
    shares = [float((one != other).mean()) for one, other in zip(ours, theirs, strict=True)]
    (pair,) = report["pairs"]
    assert pair["frames"] == FRAMES
    assert pair["mean"] == pytest.approx(np.mean(shares))
    assert pair["mean_iou"] == pytest.approx(mean_iou(ours, theirs))
    assert [each["mean_iou"] for each in report["scores"]] == [
        pytest.approx(mean_iou(ours, true)),
        pytest.approx(mean_iou(theirs, true)),
    ]
    by_frame = [json.loads(line) for line in (out / "disagreement.jsonl").read_text().splitlines()]
    assert [line["disagreement"]["b"] for line in by_frame] == pytest.approx(shares)
    worst = sorted(out.glob("worst-b-*.png"))
    order = np.argsort([-share for share in shares], kind="stable")[:2]
    assert [int(path.stem[-6:]) for path in worst] == order.tolist()
    picture = cv2.imread(str(worst[0]))
    assert picture is not None
    assert picture.shape[1] > 3 * WIDTH
    assert {path.parent.name for path in out.rglob("results.jsonl")} == {"1", "b"}


def test_the_same_network_under_two_names_and_versions_agrees(compare: Callable[..., tuple[int, str]]) -> None:
    """Exit code 0, and no file without --output."""
    code, printed = compare("--model", "a/2", "--model", "b", "--model", "a")
    assert code == 0, printed
    assert "wrote" not in printed


def write_means(repository: Path, version: int, factor: float) -> None:
    """Write a version of a model that returns the means of a picture's columns, times a factor."""
    shape = {"means": (onnx.TensorProto.FLOAT, ["N", WIDTH, 3])}
    nodes = [
        onnx.helper.make_node("Cast", ["input"], ["pixels"], to=1),
        onnx.helper.make_node("ReduceMean", ["pixels"], ["mean"], axes=[1], keepdims=0),
        onnx.helper.make_node("Mul", ["mean", "factor"], ["means"]),
    ]
    inputs = {"input": (onnx.TensorProto.UINT8, ["N", HEIGHT, WIDTH, 3])}
    folder = repository / "means"
    save_onnx(folder / str(version) / "model.onnx", nodes, inputs, shape, {"factor": np.array(factor, np.float32)})
    image = f'[image]\ninput = "input"\nwidth = {WIDTH}\nheight = {HEIGHT}\n'
    (folder / "model.toml").write_text(f"version_policy = {{ all = {{}} }}\n{image}", encoding="utf-8")


@pytest.mark.parametrize(
    ("other", "options", "code", "words"),
    [
        (2, [], 0, ""),
        (3, [], 1, "means/1 and means/3: disagreement 1 is above 0.01"),
        (3, ["--rtol", 0.2], 0, ""),
        (2, ["--rtol", 0, "--atol", 0], 1, "disagreement"),
        (2, ["--tolerance", "means=0,0"], 1, "of output means a share of"),
        (3, ["--max-disagreement", 1, "--tolerance", "means=0,1e-6"], 0, ""),
    ],
)
def test_numbers_are_compared_with_a_tolerance(
    compare: Callable[..., tuple[int, str]],
    repository: Path,
    tmp_path: Path,
    *,
    other: int,
    options: list[object],
    code: int,
    words: str,
) -> None:
    """What an engine rounds is no disagreement; the largest and the mean difference are reported all the same."""
    for version, factor in enumerate((1.0, 1.000001, 1.1), 1):
        write_means(repository, version, factor)
    out = tmp_path / "out"
    found = compare(
        "--model", "means/1", "--model", f"means/{other}", "--topic", IMAGE_TOPIC, "--output", out, *options
    )
    assert found[0] == code, found[1]
    assert words in found[1]
    (pair,) = json.loads((out / "compare.json").read_text())["pairs"]
    numbers = pair["outputs"]["means"]
    assert (numbers["frames"], numbers["values"]) == (FRAMES, FRAMES * WIDTH * 3)
    assert 0 < numbers["mean_difference"] < numbers["largest_difference"] < (1e-3 if other == 2 else 26)


BOXES = np.array([[4, 8, 20, 24], [40, 8, 60, 20]], np.float32)


@pytest.fixture
def detector(repository: Path) -> None:
    """Write a model that finds the same two objects in each picture."""
    constants = {"boxes": BOXES, "scores": np.array([0.9, 0.8], np.float32), "classes": np.array([2, 1])}
    nodes = [onnx.helper.make_node("Identity", [f"{name}_0"], [name]) for name in constants]
    floats, whole = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64
    outputs = {"boxes": (floats, [2, 4]), "scores": (floats, [2]), "classes": (whole, [2])}
    inputs = {"input": (onnx.TensorProto.UINT8, [1, HEIGHT, WIDTH, 3])}
    held = {f"{name}_0": array for name, array in constants.items()}
    folder = repository / "detector"
    save_onnx(folder / "1" / "model.onnx", nodes, inputs, outputs, held)
    image = f'[image]\ninput = "input"\nwidth = {WIDTH}\nheight = {HEIGHT}\n'
    classes = "".join(f'[[classes]]\nname = "{each.name}"\n' for each in CLASSES)
    (folder / "model.toml").write_text(f"{image}{classes}", encoding="utf-8")


@pytest.mark.usefixtures("detector")
def test_boxes_against_cocos_annotations(compare: Callable[..., tuple[int, str]], tmp_path: Path) -> None:
    """The score, and each picture's boxes as COCO's results, with the numbers that its annotations have."""
    truth, out = tmp_path / "instances.json", tmp_path / "out"
    images = [{"id": 100 - n, "file_name": f"{n}.jpg", "width": WIDTH, "height": HEIGHT} for n in range(FRAMES - 1)]
    bbox = [4, 8, 16, 16]
    boxes = [{"id": n, "image_id": each["id"], "category_id": 90, "bbox": bbox} for n, each in enumerate(images)]
    content = {"images": images, "annotations": boxes, "categories": [{"id": 90, "name": "thing"}]}
    truth.write_text(json.dumps(content))
    name = CLASSES[2].name
    options = ("--model", "detector", "--truth", truth, "--topic", IMAGE_TOPIC, "--output", out)
    assert "or leave it out, --truth-class thing=" in compare(*options)[1]
    code, printed = compare(*options, "--truth-class", f"thing={name}", "--min-score", 1)
    assert code == 0, printed
    (score,) = json.loads((out / "compare.json").read_text())["scores"]
    assert (score["frames"], score["map_50_95"], score["map_by_class"]) == (FRAMES - 1, 1, {name: 1})
    found = json.loads((out / "detector" / "coco.json").read_text())
    assert [each["image_id"] for each in found] == [each["id"] for each in images]
    assert {(each["category_id"], *each["bbox"]) for each in found} == {(90, *bbox)}
    lines = [json.loads(line) for line in (out / "disagreement.jsonl").read_text().splitlines()]
    assert [line["image_id"] for line in lines] == [*(each["id"] for each in images), None]
    content["images"] = [{**each, "width": 2 * WIDTH} for each in images]
    truth.write_text(json.dumps(content))
    code, printed = compare(*options, "--truth-class", f"thing={name}")
    assert code == 2
    assert f"is {2 * WIDTH}x{HEIGHT} pixels, the frame {WIDTH}x{HEIGHT}" in printed


@pytest.mark.usefixtures("detector")
def test_boxes_without_a_truth(compare: Callable[..., tuple[int, str]], tmp_path: Path) -> None:
    """Frames are numbered as they were read, and classes as on the model's card."""
    out = tmp_path / "out"
    arguments = ("--model", "detector", "--model", "detector/1", "--topic", IMAGE_TOPIC, "--output", out)
    assert compare(*arguments)[0] == 0
    found = json.loads((out / "detector" / "coco.json").read_text())
    assert [each["image_id"] for each in found] == sorted([*range(1, FRAMES + 1)] * 2)
    assert {each["category_id"] for each in found} == {1, 2}


@pytest.mark.parametrize(("least", "code"), [(0, 0), (0.9, 1)])
def test_one_model_against_the_truth(compare: Callable[..., tuple[int, str]], least: float, code: int) -> None:
    """The verdict is by the score."""
    found = compare("--model", "a/1", "--truth", TRUTH_TOPIC, "--min-score", least)
    assert found[0] == code
    assert ("is below 0.9" in found[1]) is bool(code)


def label_folder(folder: Path, drive: Path, *, size: tuple[int, int] | None = None, colours: bool = False) -> Path:
    """Write the true masks of a drive as PNG files."""
    folder.mkdir()
    for number, mask in enumerate(truths(drive)):
        picture = cv2.resize(mask, size, interpolation=cv2.INTER_NEAREST) if size else mask
        cv2.imwrite(str(folder / f"{number}.png"), cv2.merge([picture] * 3) if colours else picture)
    return folder


def test_truth_beside_a_video_or_bag(
    compare: Callable[..., tuple[int, str]], drive: Path, repository: Path, tmp_path: Path
) -> None:
    """A folder of label pictures scores as the bag's topic does."""
    folder = label_folder(tmp_path / "labels", drive)
    out = tmp_path / "out"
    code, printed = compare("--model", "b", "--truth", folder, "--output", out, "--topic", IMAGE_TOPIC)
    assert code == 0, printed
    (score,) = json.loads((out / "compare.json").read_text())["scores"]
    assert score["mean_iou"] == pytest.approx(mean_iou(masks(repository, "b/1", drive), truths(drive)))


def empty(folder: Path, _: Path) -> Path:
    """Make a folder without pictures."""
    folder.mkdir()
    return folder


def other_bag(folder: Path, _: Path) -> str:
    """Name a topic that is not there."""
    del folder
    return "/camera/nothing"


def text(content: str) -> Callable[[Path, Path], Path]:
    """Make a CSV file."""

    def write(path: Path, _: Path) -> Path:
        path.write_text(content)
        return path

    return write


@pytest.mark.parametrize(
    ("truth", "words"),
    [
        (other_bag, "/camera/labels"),
        (empty, "no picture in this folder"),
        (lambda path, drive: label_folder(path, drive, size=(48, 32)), "is 48x32 pixels, the frame 96x64"),
        (lambda path, drive: label_folder(path, drive, colours=True), "is no label picture"),
        (text("frame,what\n1,2\n"), "its columns are frame, what"),
        (text("sequence,class\nx,car\n"), "line 2: invalid literal"),
        (text("sequence,class,left,top,right,bottom\n0,car,nan,0,1,1\n"), "line 2: nan is no place"),
        (text("sequence,class\n900,car\n"), "fits no frame"),
        (text("sequence,class\n0,car\n"), "of another kind than the models' outputs"),
        (text("\xff\x00"), "expected"),
    ],
)
def test_a_truth_of_no_use(
    compare: Callable[..., tuple[int, str]], drive: Path, tmp_path: Path, truth: Callable[..., Any], words: str
) -> None:
    """Exit code 2 and what is wrong."""
    code, printed = compare(
        "--model", "a/1", "--model", "b", "--truth", truth(tmp_path / "truth", drive), "--topic", IMAGE_TOPIC
    )
    assert words in printed
    assert code == 2


def test_a_truth_of_another_size_costs_no_comparison(
    compare: Callable[..., tuple[int, str]], drive: Path, tmp_path: Path
) -> None:
    """The models are compared over all frames all the same, and the report says what was wrong."""
    truth = label_folder(tmp_path / "labels", drive, size=(48, 32))
    out = tmp_path / "out"
    code, _ = compare("--model", "a/2", "--model", "b", "--truth", truth, "--output", out, "--topic", IMAGE_TOPIC)
    assert code == 2
    report = json.loads((out / "compare.json").read_text())
    assert report["pairs"][0]["frames"] == FRAMES
    assert "is 48x32 pixels" in report["truth"]["error"]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--model", "a"], 2, "expected two models or more"),
        (["--model", "a", "--model", "a"], 2, "expected two models or more"),
        (["--model", "a", "--model", "nothing"], 1, "no model nothing"),
        (["--model", "a", "--model", "a/9"], 1, "serves no version 9 of model 'a'"),
        (["--model", "a", "--model", "b", "--min-score", "0.5"], 2, "--truth"),
        (["--model", "a", "--model", "b", "--max-disagreement", "nan"], 2, "--max-disagreement"),
        (["--model", "a", "--truth", "/camera/labels", "--min-score", "nan"], 2, "--min-scor"),
        (["--model", "a", "--model", "b", "--tolerance", "output=1"], 2, "expected OUTPUT=RTOL,ATOL"),
        (["--model", "a", "--model", "b", "--tolerance", "logits=1,0"], 2, "a has no such output; it has output"),
        (["--model", "a", "--model", "b", "--rtol", "inf"], 2, "--rtol"),
    ],
)
def test_wrong_options(compare: Callable[..., tuple[int, str]], arguments: list[str], code: int, words: str) -> None:
    """A clear message, and nothing is sent."""
    found = compare(*arguments)
    assert words in found[1]
    assert found[0] == code

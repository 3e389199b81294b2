"""Every file of ../shared/data through the commands: what its README says that a right program gets from each."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mqinfer import Client
from mqinfer.bags.points import POINT_CLOUD
from mqinfer.client.control import ControlClient
from mqinfer.protocol.datatypes import Datatype
from mqinfer.protocol.header import IMAGE_ENCODING
from mqinfer.protocol.types import EncodedTensor
from tests.commands import command, mqinfer

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.shared_data]

SHARED = Path(__file__).parents[3] / "shared" / "data"
MCAP = "bags/rerun_mcap/rosbag2_2025_09_10-13_03_56_0.mcap"
IMAGES = {
    "bags/spot_raw.bag": {
        "/spot/camera/frontleft/image": ("mono8", "640x480", 1),
        "/spot/camera/hand_color/image": ("rgb8", "640x480", 1),
        "/spot/camera/hand_mono/image": ("mono8", "224x171", 1),
        "/spot/depth/frontleft/image": ("16UC1", "424x240", 1),
    },
    "bags/tiny_svo.bag": {"/camera/image_raw": ("mono8", "752x480", 10)},
    MCAP: {"/image": ("rgb8", "640x480", 1), "/compressed_image": ("jpeg", "640x480", 1)},
    "video/solidWhiteRight.mp4": {"video/solidWhiteRight.mp4": ("bgr8", "960x540", 221)},
    "bayer": {"bayer": ("png", "512x768", 2)},
    "bayer/Lighthouse_CFA_RGGB_u16.png": {"bayer/Lighthouse_CFA_RGGB_u16.png": ("png", "512x768", 1)},
    "bayer/Lighthouse_u16.png": {"bayer/Lighthouse_u16.png": ("png", "512x768", 1)},
}
"""Encoding, size and frames of each image topic of each source."""
DEPTH = "/spot/depth/frontleft/image"
MODELS = {"digits": "tf2onnx_fc-layers.pb", "mnist": "ort_examples_mnist.onnx", "half": "half_plus_two_2_versions"}
WIDTH, HEIGHT = 512, 768
"""Size of the lighthouse."""


@pytest.fixture(scope="module")
def server(broker_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, ...]]:
    """`mqinfer worker` with the three models and three that return pictures; the options that lead to it."""
    if not SHARED.is_dir():
        pytest.skip("the folder ../shared/data is not here")
    repository, root = tmp_path_factory.mktemp("models"), f"shared-{os.getpid()}"
    for model, file in MODELS.items():
        source = SHARED / "models" / file
        target = repository / model if source.is_dir() else repository / model / "1" / f"model{source.suffix}"
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target)
        else:
            shutil.copyfile(source, target)
    (repository / "half").chmod(0o755)  # the folder that was copied may be read-only
    (repository / "half" / "model.toml").write_text("[version_policy.all]\n")
    for model, height, width in (("small", 60, 106), ("lighthouse", HEIGHT, WIDTH)):
        (repository / model / "1").mkdir(parents=True)
        tables = f'[[input]]\nname = "image"\ndatatype = "UINT8"\nshape = [1, {height}, {width}, 3]\n'
        (repository / model / "1" / "model.echo").write_text(tables)
    (repository / "metres" / "1").mkdir(parents=True)
    tables = '[[input]]\nname = "depth"\ndatatype = "FP32"\nshape = [1, 1, 60, 106]\n'
    (repository / "metres" / "1" / "model.echo").write_text(tables)
    (repository / "metres" / "model.toml").write_text('[image]\ncolour = "depth"\n')
    where = "--broker", broker_url, "--root", root
    log = tmp_path_factory.mktemp("log") / "worker.log"
    serve = command("worker", "--repository", repository, "--name", root, *where)
    with log.open("w") as console, subprocess.Popen(serve, stderr=console) as worker:
        try:
            with ControlClient(broker_url, root=root) as control:
                control.wait_for(root, timeout=120)
                for model in (*MODELS, "small", "lighthouse", "metres"):
                    control.load(model)  # returns once all of it serves
            yield where
        finally:
            worker.terminate()
    assert worker.returncode == 0
    assert "Traceback" not in log.read_text()
    assert log.read_text().count(" ready: ") == 7  # both versions of `half`


@pytest.fixture
def client(server: tuple[str, ...]) -> Iterator[Client]:
    """A client of that server."""
    with Client(server[1], root=server[3]) as connected:
        yield connected


@pytest.mark.parametrize("source", IMAGES)
def test_bag_info_lists_every_image_topic(shared_data: Path, source: str) -> None:
    """Encoding, size and count of each; others have none, but PointCloud2 its fields."""
    done = mqinfer("bag", "info", shared_data / source)
    assert (done.returncode, done.stderr) == (0, "")
    rows = [[cell.strip() for cell in line.strip("│").split("│")] for line in done.stdout.splitlines() if "│" in line]
    found = {row[0].removeprefix(f"{shared_data}/"): (row[2], row[3], int(row[5])) for row in rows if row[2]}
    points = {row[0] for row in rows if row[1] == POINT_CLOUD}
    assert {name: row for name, row in found.items() if name not in points} == IMAGES[source]
    assert points <= found.keys()
    if source == MCAP:
        assert len(rows) == 32


@pytest.mark.parametrize("source", IMAGES)
def test_replay_gets_a_result_for_every_frame(
    tmp_path: Path, shared_data: Path, server: tuple[str, ...], source: str
) -> None:
    """Each frame is `ok` and stands once in the results; depth is left out until it is named."""
    expected = sum(count for topic, (_, _, count) in IMAGES[source].items() if topic != DEPTH)
    options = ("--model", "small", *server, "--output", tmp_path, "--summary", tmp_path / "summary.json")
    done = mqinfer("replay", shared_data / source, *options, "--sink", "jsonl")
    assert (done.returncode, "Traceback" in done.stderr) == (0, False)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert (summary["ended"], summary["frames_read"], summary["outcomes"]["ok"]) == ("complete", expected, expected)
    lines = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert len({(line["source"], line["sequence"]) for line in lines}) == len(lines) == expected


def test_depth_is_replayed_where_it_is_named(tmp_path: Path, shared_data: Path, server: tuple[str, ...]) -> None:
    """The one frame of 16UC1, to a model that takes depth; one of colours refuses it, and says what it takes."""
    options = (*server, "--topic", DEPTH, "--summary", tmp_path / "summary.json")
    bag = shared_data / "bags" / "spot_raw.bag"
    assert mqinfer("replay", bag, "--model", "metres", *options).returncode == 0
    assert json.loads((tmp_path / "summary.json").read_text())["outcomes"]["ok"] == 1
    refused = mqinfer("replay", bag, "--model", "small", *options)
    assert refused.returncode == 1
    assert "has depth pictures, and the model takes colours" in " ".join(refused.stderr.split())


def digits(folder: Path) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Read the 1000 digits: pixels of 0 to 255, [1000, 784], and their labels."""
    records = np.fromfile(folder / "models" / "mnist_1000.data", "<f4").reshape(1000, 794)
    return records[:, :784], records[:, 784:].argmax(axis=1)


@pytest.mark.parametrize(
    ("model", "scale", "shape", "right"), [("digits", 1 / 255, (8, 784), 958), ("mnist", 1, (1, 1, 28, 28), 993)]
)
def test_a_thousand_digits(
    shared_data: Path, client: Client, model: str, scale: float, shape: tuple[int, ...], right: int
) -> None:
    """As many as the README says are recognised, in batches of the size that the model takes."""
    pixels, labels = digits(shared_data)
    card = client.card(model)
    assert card.max_batch_size == {"digits": 8, "mnist": 1}[model]
    batches = (pixels * np.float32(scale)).reshape(-1, *shape)
    replies = [client.submit(model, {card.inputs[0].name: batch}) for batch in batches]
    found = np.concatenate([reply.result().outputs[card.outputs[0].name].argmax(axis=-1) for reply in replies])
    assert (found == labels).sum() == right


@pytest.mark.parametrize("version", [None, 123, 124])
def test_infer_half_plus_two(tmp_path: Path, server: tuple[str, ...], version: int | None) -> None:
    """`mqinfer infer` to both versions, the later of which is the default one: x / 2 + 2."""
    np.save(tmp_path / "x.npy", np.array([[1], [2], [5]], np.float32))
    chosen = () if version is None else ("--version", version)
    done = mqinfer("infer", "half", *chosen, "--input", f"x={tmp_path / 'x.npy'}", *server)
    assert (done.returncode, done.stderr) == (0, "")
    printed = json.loads(done.stdout)
    assert (printed["version"], printed["outputs"]["y"]["values"]) == (str(version or 124), [2.5, 3.0, 4.5])


def test_infer_a_picture_of_16_bits(tmp_path: Path, shared_data: Path, server: tuple[str, ...]) -> None:
    """`mqinfer infer` with the lighthouse: the model sees its upper 8 bits."""
    import cv2

    file, output = shared_data / "bayer" / "Lighthouse_u16.png", tmp_path / "seen.npz"
    done = mqinfer("infer", "lighthouse", "--input", f"image={file}", "--output", output, *server)
    assert (done.returncode, done.stderr) == (0, "")
    truth = np.asarray(cv2.imread(str(file), cv2.IMREAD_UNCHANGED))[..., ::-1]
    assert np.abs(np.load(output)["image"][0].astype(float) - truth / 257).max() <= 1


@pytest.mark.parametrize(("pattern", "decibels"), [("rggb", 27.2), ("bggr", 17.0), ("grbg", 20.8), ("gbrg", 20.8)])
def test_the_mosaic(shared_data: Path, client: Client, pattern: str, decibels: float) -> None:
    """The right pattern comes nearest to the truth; a wrong one is as far from it as the README says."""
    import cv2

    folder = shared_data / "bayer"
    mosaic = np.asarray(cv2.imread(str(folder / "Lighthouse_CFA_RGGB_u16.png"), cv2.IMREAD_UNCHANGED))
    truth = np.asarray(cv2.imread(str(folder / "Lighthouse_u16.png"), cv2.IMREAD_UNCHANGED))[..., ::-1]
    name = {IMAGE_ENCODING: f"bayer_{pattern}16"}
    sent = EncodedTensor("image", Datatype.UINT16, mosaic.shape, "raw", mosaic.tobytes(), name)
    seen = client.infer("lighthouse", {"image": sent}).outputs["image"][0]
    inner = np.s_[2:-2, 2:-2]
    error = ((seen[inner].astype(float) - truth[inner] / 257) ** 2).mean()
    assert 10 * np.log10(255**2 / error) == pytest.approx(decibels, abs=0.1)

"""Ids that follow objects: against the truth of rendered drives, in results, over the death of a worker."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from onnx import TensorProto, helper

from mqinfer.answers.outputs import DetectedBox, find_boxes, label
from mqinfer.answers.tracks import Tracks
from mqinfer.bags.writer import BagWriter
from mqinfer.broker import make_link
from mqinfer.broker.mosquitto.server import MosquittoServer
from mqinfer.images.decode import as_image
from mqinfer.lab.drives.car import LENGTH, Car
from mqinfer.lab.drives.synthetic import SyntheticDrive
from mqinfer.protocol.card import ClassInfo
from mqinfer.protocol.datatypes import Array
from mqinfer.protocol.topics import Topics
from tests.dashboard.programs import Programs
from tests.onnx_files import save_onnx
from tests.patience import PATIENCE_S, wait_until

RATE, FRAMES, WIDTH, HEIGHT = 10.0, 300, 640, 400
Boxes = npt.NDArray[np.float64]


@dataclass
class Seen:
    """What a detector finds in one frame, and which car each box is of."""

    boxes: list[list[float]] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    cars: list[Any] = field(default_factory=list)


def drive(seed: int, *, noise: float = 0.0, misses: float = 0.0) -> Iterator[Seen]:
    """Yield the boxes of a rendered drive's cars, of those that are not hidden behind others, and whose they are.

    Args:
        seed: Of the drive.
        noise: Of each side, as a share of the box's own.
        misses: Share of the boxes that are not found; as many have a low score.
    """
    rendered, random = SyntheticDrive(seed, WIDTH, HEIGHT, RATE), np.random.default_rng(seed)
    world: Any = rendered._world
    for index in range(FRAMES):
        position = 40.0 + world.speed * index / RATE
        view = rendered._canvas(index, position).view
        seen, nearer = Seen(), np.zeros((HEIGHT, WIDTH), bool)
        for car in reversed([each for each in world.things(position, index / RATE) if isinstance(each, Car)]):
            box = box_of(car, position, view)
            left, top, right, bottom = (round(side) for side in box)
            area = nearer[top:bottom, left:right]
            is_hidden = area.size < 60 or area.mean() > 0.6
            area[:] = True
            if is_hidden or random.random() < misses:
                continue
            size = np.array([box[2] - box[0], box[3] - box[1]] * 2)
            seen.boxes.append([*(box + random.normal(0, 1, 4) * noise * size)])
            seen.scores.append(0.3 if random.random() < misses else 0.9)
            seen.cars.append(car.colour)  # each has its own shade
        yield seen


def box_of(car: Car, position: float, view: Any) -> Boxes:
    """Return the box of a car in a frame."""
    near = car.reach - position
    corners = [(near + a, car.right + r, u) for a in (0, LENGTH) for r in (-0.9, 0.9) for u in (0, 1.5)]
    places = view.project(np.array(corners))
    sides = np.array([*places.min(axis=0), *places.max(axis=0)], np.float64)
    box: Boxes = np.clip(sides, 0, np.array([WIDTH, HEIGHT, WIDTH, HEIGHT]))
    return box


def switches(frames: Iterator[Seen], tracks: Any) -> tuple[int, int, int]:
    """Return how many boxes have an id, and how often that of a car changes, and how often one id changes its car."""
    own: dict[Any, int] = {}
    cars: dict[int, Any] = {}
    count = changed = taken = 0
    for index, seen in enumerate(frames):
        boxes = np.array(seen.boxes).reshape(-1, 4)
        ids = tracks.follow(index / RATE, boxes, seen.scores, [0] * len(boxes))
        for car, number in zip(seen.cars, ids, strict=True):
            if number > 0:
                count += 1
                changed += own.setdefault(car, number) != number
                taken += cars.setdefault(number, car) != car
                own[car], cars[number] = number, car
    return count, changed, taken


@pytest.mark.parametrize(("noise", "misses", "share"), [(0.0, 0.0, 0.02), (0.04, 0.08, 0.03)])
def test_ids_against_the_truth_of_rendered_drives(noise: float, misses: float, share: float) -> None:
    """Of thousands of boxes few begin an id that is not their car's, also where boxes tremble and some are missed."""
    found = [switches(drive(seed, noise=noise, misses=misses), Tracks()) for seed in range(2)]
    count, changed, taken = (sum(each) for each in zip(*found, strict=True))
    assert count > 2500
    assert changed < share * count
    assert taken < share * count


def follow(tracks: Tracks, now_s: float, *lefts: float, score: float = 0.9, kind: int = 0) -> list[int]:
    """Return the ids of boxes of 10 by 10 pixels."""
    boxes = np.array([[left, 0, left + 10, 10] for left in lefts], np.float64).reshape(-1, 4)
    return tracks.follow(now_s, boxes, [score] * len(lefts), [kind] * len(lefts))


def test_the_page_gives_the_same_ids() -> None:
    """Boxes that tremble, cross, vanish and are doubtful have the ids in tracks.json, which the page's test reads."""
    tracks = Tracks()
    for frame in json.loads(Path(__file__).with_name("tracks.json").read_text()):
        boxes = np.array(frame["boxes"], np.float64).reshape(-1, 4)
        assert tracks.follow(frame["now_s"], boxes, frame["scores"], frame["kinds"]) == frame["ids"]


def test_an_object_keeps_its_id_out_of_sight() -> None:
    """It is expected where it was going, for 30 frames; one of another class is another one."""
    tracks = Tracks()
    assert [follow(tracks, 0.1 * n, 4 * n)[0] for n in range(5)] == [1] * 5
    assert follow(tracks, 0.5) == follow(tracks, 0.6) == []
    assert follow(tracks, 0.7, 28) == [1]
    assert follow(tracks, 0.8, 32, kind=1) == [2]
    for n in range(31):
        follow(tracks, 1 + n / 10)
    assert follow(tracks, 5, 32) == [3]
    assert len(tracks._tracks) == 1


def test_a_doubtful_box_keeps_an_id_and_begins_none() -> None:
    """Only where an object was seen in the frame before."""
    tracks = Tracks()
    assert follow(tracks, 0, 0, score=0.3) == [-1]
    assert follow(tracks, 1, 0) == [1]
    assert follow(tracks, 2, 1, score=0.3) == [1]
    assert follow(tracks, 3) == []
    assert follow(tracks, 4, 1, score=0.3) == [-1]
    assert follow(tracks, 3, 1) == [1], "stamps that go back are no harm"


def test_an_id_stands_in_a_label_and_none_is_none() -> None:
    """As outputs of a model have it, too."""
    outputs: dict[str, Array] = {
        "boxes": np.ones((2, 4)),
        "scores": np.array([0.9, 0.5], np.float32),
        "ids": np.array([7, -1]),
    }
    assert [each.id for each in find_boxes(outputs)] == [7, None]
    assert label(DetectedBox((0, 0, 1, 1), 0.5, 0, id=7), [ClassInfo("car", (1, 2, 3))]) == "car #7 0.50"
    assert label(DetectedBox((0, 0, 1, 1), 0.5), []) == "0.50"


SQUARE = 12
PICTURES = 120
CONFIG = """
[image]
input = "x"
width = 128
height = 48
layout = "NCHW"
"""


def write_model(repository: Path) -> None:
    """Write a network that finds a red and a green square by the middle of their pixels, each of class 0."""
    grid = np.stack(np.meshgrid(np.arange(128) + 0.5, np.arange(48) + 0.5)).astype(np.float32)
    nodes = [
        helper.make_node("Slice", ["x", "zero", "two", "axis"], ["colours"]),
        helper.make_node("Unsqueeze", ["colours", "pair"], ["each"]),
        helper.make_node("Mul", ["each", "grid"], ["weighted"]),
        helper.make_node("ReduceSum", ["weighted", "plane"], ["sums"], keepdims=0),
        helper.make_node("ReduceSum", ["each", "plane"], ["whole"], keepdims=0),
        helper.make_node("Div", ["sums", "whole"], ["middles"]),
        helper.make_node("Sub", ["middles", "half"], ["first"]),
        helper.make_node("Add", ["middles", "half"], ["second"]),
        helper.make_node("Concat", ["first", "second"], ["boxes"], axis=2),
        helper.make_node("Mul", ["whole", "nothing"], ["none"]),
        helper.make_node("Add", ["none", "certain"], ["apiece"]),
        helper.make_node("Squeeze", ["apiece", "pair"], ["scores"]),
    ]
    constants = {
        "zero": np.array([0]), "two": np.array([2]), "axis": np.array([1]), "pair": np.array([2]),
        "plane": np.array([3, 4]), "grid": grid[None, None], "half": np.float32(SQUARE / 2),
        "nothing": np.float32(0), "certain": np.float32(0.9),
    }  # fmt: skip
    ends = {"boxes": (TensorProto.FLOAT, [1, 2, 4]), "scores": (TensorProto.FLOAT, [1, 2])}
    picture = {"x": (TensorProto.FLOAT, [1, 3, 48, 128])}
    save_onnx(repository / "squares" / "1" / "model.onnx", nodes, picture, ends, constants)
    (repository / "squares" / "model.toml").write_text(CONFIG)


def write_bag(path: Path) -> None:
    """Write two squares that go to and fro at different heights, and pass each other."""
    with BagWriter(path, "bag") as writer:
        for number in range(PICTURES):
            pixels = np.zeros((48, 128, 3), np.uint8)
            for channel, top in ((0, 4), (1, 30)):
                across = round(58 + 56 * np.sin(number / 12 + channel * np.pi))
                pixels[top : top + SQUARE, across : across + SQUARE, channel] = 200
            writer.write("/camera", as_image(pixels, "rgb8"), 10**17 * 17 + number * 10**8, number + 1)


@pytest.mark.broker
@pytest.mark.slow
def test_ids_outlive_a_worker(server: MosquittoServer, tmp_path: Path) -> None:
    """Of two workers one is killed in the middle: every frame has both squares under their first ids, in every file."""
    write_model(tmp_path / "models")
    write_bag(tmp_path / "drive.bag")
    out = tmp_path / "out"
    with Programs(tmp_path, server.url) as started:
        workers = [started.start("worker", "--repository", tmp_path / "models", "--name", each) for each in "ab"]
        words = (tmp_path / "drive.bag", "--model", "squares", "--track", "--output", out, "--rate", "1")
        sinks = ["--encoding", "lz4", *(word for kind in ("jsonl", "csv", "mqtt") for word in ("--sink", kind))]
        answers: list[Any] = []
        with closing(make_link(server.url, client_id="listener")) as listener:
            listener.open(PATIENCE_S)
            topic = f"{Topics().root}/answers/#"
            listener.subscribe(topic, lambda message: answers.append(json.loads(bytes(message.payload))))
            wait_until(lambda: all("ready" in each.log() for each in workers))
            replay = started.start("replay", *words, *sinks)
            wait_until(lambda: len(answers) > PICTURES // 4)
            workers[0].kill()
            assert replay.process.wait(PATIENCE_S) == 0, replay.log()
            wait_until(lambda: len(answers) == PICTURES)
    lines = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
    assert [line["outcome"] for line in lines] == ["ok"] * PICTURES
    assert {json.loads(line)["worker"][:1] for line in (out / "times.jsonl").read_text().splitlines()} == {"a", "b"}
    followed = {tuple(sorted((each["box"][1], each["id"]) for each in line["detections"])) for line in lines + answers}
    assert followed in ({((4, 1), (30, 2))}, {((4, 2), (30, 1))})
    with (out / "detections.csv").open() as file:
        assert [(row["sequence"], row["id"]) for row in csv.DictReader(file)] == [
            (str(line["sequence"]), str(each["id"])) for line in lines for each in line["detections"]
        ]

"""A JPEG or PNG as a message, and JSON in words back: Mosquitto's own programs are the whole client."""

from __future__ import annotations

import json
import struct
import subprocess
import zlib
from collections.abc import Callable
from contextlib import closing
from importlib import resources
from pathlib import Path
from typing import Any

import cv2
import jsonschema
import pytest
from onnx import TensorProto, helper

from mqinfer.broker import make_link
from mqinfer.client.connection import random_name
from mqinfer.protocol.topics import Topics
from tests.onnx_files import save_onnx
from tests.system.test_detections import HEIGHT, WIDTH, blob_detector, pictures

pytestmark = pytest.mark.broker
SCHEMA = json.loads(resources.files("mqinfer.answers").joinpath("answer.schema.json").read_text())
SQUARES = [("green", [240, 128, 272, 160]), ("red", [64, 48, 96, 80])]
"""What is in the picture, in its own pixels, which are twice as many each way as the model's."""


class Shell:
    """A shell with Mosquitto's programs, and the name `shell`."""

    def __init__(self, url: str, topics: Topics, folder: Path) -> None:
        self.topics = topics
        self.jpeg, self.png = folder / "squares.jpg", pictures(folder / "in") / "0.png"
        pixels = cv2.imread(str(self.png))
        assert pixels is not None
        cv2.imwrite(str(self.jpeg), pixels, [cv2.IMWRITE_JPEG_QUALITY, 95])
        host, _, port = url.rpartition("/")[2].partition(":")
        self.where = "-h", host, "-p", port, "-q", "1"
        self._folder = folder

    def file(self, name: str, data: bytes) -> Path:
        """Write a file."""
        path = self._folder / name
        path.write_bytes(data)
        return path

    def ask(self, path: Path, *properties: str, version: str = "5", model: str = "blobs", topic: str = "") -> Any:
        """Publish a picture with `mosquitto_pub`, and return what comes where the answer should."""
        wanted = "-t", topic or self.topics.answers(model, "shell", "picture"), "-C", "1", "-W", "20", "-d"
        stated = [*properties, *[f"response-topic {topic}"] * bool(topic)]
        sent = [part for each in stated for part in ("-D", "PUBLISH", *each.split(" "))]
        request = "-t", self.topics.infer(model, "shell"), "-f", str(path), *sent
        heard = ["stdbuf", "-oL", "mosquitto_sub", "-V", version, *self.where, *wanted]
        with subprocess.Popen(heard, stdout=subprocess.PIPE, text=True) as hearing:
            assert hearing.stdout is not None
            while "SUBACK" not in hearing.stdout.readline():
                assert hearing.poll() is None
            subprocess.run(["mosquitto_pub", "-V", version, *self.where, *request], check=True)
            return self.read(next(line for line in hearing.stdout if line.startswith("{")))

    @staticmethod
    def read(text: str) -> dict[str, Any]:
        """Read an answer, by the schema."""
        found: dict[str, Any] = json.loads(text)
        jsonschema.validate(found, SCHEMA)
        return found


@pytest.fixture
def shell(serving: Callable[[Path], Topics], broker_url: str, tmp_path: Path) -> Shell:
    """Serve a detector of squares, and a model that takes no pictures."""
    repository = blob_detector(tmp_path / "models")
    rows = {"x": (TensorProto.FLOAT, [1, 4])}, {"y": (TensorProto.FLOAT, [1, 4])}
    save_onnx(repository / "row" / "1" / "model.onnx", [helper.make_node("Identity", ["x"], ["y"])], *rows, {})
    return Shell(broker_url, serving(repository), tmp_path)


def squares(answer: dict[str, Any]) -> list[tuple[str, list[float]]]:
    """Return the objects of an answer, by class, with their boxes."""
    assert (answer["outcome"], answer["error"]) == ("ok", None)
    assert (answer["width"], answer["height"]) == (2 * WIDTH, 2 * HEIGHT)
    return sorted((each["class"], each["box"]) for each in answer["detections"])


def test_over_mqtt_5(shell: Shell) -> None:
    """With a Content Type or without, and where the sender wants the answer; objects by score and number."""
    for answer in (
        shell.ask(shell.jpeg, topic=shell.topics.answers("blobs", "shell", "r1")),
        shell.ask(shell.png, "content-type IMAGE/png"),
        shell.ask(shell.jpeg, "correlation-data 17", topic=shell.topics.result("blobs", "shell", "r2")),
    ):
        assert squares(answer) == SQUARES
        assert answer["counts"] == {"green": 1, "red": 1}
    assert answer["id"] == b"17".hex()
    assert len(shell.ask(shell.png, "user-property max_detections 1")["detections"]) == 1
    assert shell.ask(shell.png, "user-property min_score 1.5")["counts"] == {}


def test_request_and_reply_in_one_program(shell: Shell) -> None:
    """`mosquitto_rr` with a file is all that it takes, in either version of MQTT."""
    root, where = shell.topics.root, shell.where
    probe = ["mosquitto_rr", *where, "-t", f"{root}/probe", "-e", f"{root}/probe", "-f", str(shell.jpeg), "-W", "20"]
    if not subprocess.run(probe, capture_output=True, check=False).stdout:
        pytest.skip("this mosquitto_rr sends nothing of a file, as that of Mosquitto 2.0.11")
    request = ["-t", shell.topics.infer("blobs", "shell"), "-f", str(shell.jpeg), "-W", "20"]
    for version, stream in (("5", "r1"), ("mqttv311", "picture")):
        answers = shell.topics.answers("blobs", "shell", stream)
        command = ["mosquitto_rr", "-V", version, *where, *request, "-e", answers]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert squares(shell.read(done.stdout)) == SQUARES


@pytest.mark.parametrize("version", ["mqttv311", "5"])
def test_without_any_property(shell: Shell, version: str) -> None:
    """The topic of the answers is known by convention."""
    assert squares(shell.ask(shell.jpeg, version=version)) == SQUARES
    assert squares(shell.ask(shell.png, version=version)) == SQUARES


def test_pictures_that_are_none(shell: Shell) -> None:
    """Broken, huge and wrong ones are answered with the error, by code and in words, and the next one is served."""
    jpeg = shell.jpeg.read_bytes()
    header = b"IHDR" + struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    bomb = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + header + struct.pack(">I", zlib.crc32(header))
    broken = {
        "cut.jpg": jpeg[: len(jpeg) // 2],
        "head.jpg": jpeg[:20],
        "flipped.jpg": jpeg[:300] + bytes(len(jpeg) - 300),
        "bomb.png": bomb + bytes(64),
    }
    for name, data in broken.items():
        found = shell.ask(shell.file(name, data), version="mqttv311")
        assert (found["outcome"], found["error"]["code"]) in {
            ("error", "bad_encoding"),
            ("error", "limit_exceeded"),
            ("error", "bad_image"),
        }, name
        assert found["error"]["message"]
        assert (found["id"], found["model_name"]) == ("picture", "blobs")
    gif = shell.ask(shell.file("moving.gif", b"GIF89a" + bytes(100)), "content-type image/gif")
    assert "expected a JPEG or PNG" in gif["error"]["message"]
    empty = shell.ask(shell.file("empty.jpg", b""), topic=shell.topics.answers("blobs", "shell", "r1"))
    assert empty["error"]["message"].startswith("0 bytes")
    for least in ("high", "nan"):
        wrong = shell.ask(shell.jpeg, f"user-property min_score {least}")
        assert "min_score" in wrong["error"]["message"]
    row = shell.ask(shell.jpeg, model="row")
    assert (row["error"]["code"], "takes no pictures" in row["error"]["message"]) == ("bad_tensor", True)
    assert squares(shell.ask(shell.png, version="mqttv311")) == SQUARES


def test_no_worker_answers_into_anothers_topics(shell: Shell, broker_url: str) -> None:
    """A Response Topic below another's name is refused as that of any request, and the next picture is served."""
    foreign = shell.topics.answers("blobs", "other", "r"), f"{shell.topics.root}/clients/shell/state"
    answered: list[str] = []
    with closing(make_link(broker_url, client_id=random_name())) as link:
        link.open()
        for topic in foreign:
            link.subscribe(topic, lambda message: answered.append(message.topic))
            request = ["-t", shell.topics.infer("blobs", "shell"), "-f", str(shell.jpeg)]
            stated = ["-D", "PUBLISH", "response-topic", topic]
            subprocess.run(["mosquitto_pub", "-V", "5", *shell.where, *request, *stated], check=True)
        assert squares(shell.ask(shell.png)) == SQUARES  # what was sent before is settled then
    assert answered == []

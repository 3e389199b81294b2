import base64
import json
import struct
from collections import Counter
from pathlib import Path

import cv2
import numpy as np
import pytest
import zstandard
from mcap.reader import make_reader
from xxhash import xxh3_128_hexdigest

from mqinfer.answers.outputs import Picture
from mqinfer.bags.frame import Frame
from mqinfer.client.result import InferResult
from mqinfer.edge_agent.frames.view import FrameView
from mqinfer.edge_agent.sinks.drawing.overlay import colour_mask, draw_result
from mqinfer.edge_agent.sinks.drawing.picture_sink import PictureSink
from mqinfer.edge_agent.sinks.drawing.video_sink import VideoSink
from mqinfer.edge_agent.sinks.factory import SINK_KINDS, SinkSet, open_sinks
from mqinfer.edge_agent.sinks.foxglove.mcap_sink import McapSink
from mqinfer.edge_agent.sinks.jsonl_sink import JsonlSink
from mqinfer.edge_agent.sinks.sink import Sink, StreamNames
from mqinfer.images.picture import RawImage
from mqinfer.images.placement import Placement
from mqinfer.protocol.card import CardParameters, ClassInfo, ModelCard
from mqinfer.protocol.errors import ConfigError
from mqinfer.protocol.types import Capture, ErrorInfo, Outcome, Timings
from tests.mcap_files import decoded, messages

CLASSES = (ClassInfo("road", (128, 64, 128)), ClassInfo("sky", (70, 130, 180)))
KNOWN = CardParameters(classes=CLASSES, model_hash="sha256:abc")
CARD = ModelCard(name="road", versions=("3",), platform="onnx_onnxv1", parameters=KNOWN)
HEIGHT, WIDTH = 60, 96
CAPTURE_NS = 1_700_000_000_123_456_789  # not a float64: the last digits tell whether anything rounded
PERIOD_NS = 50_000_000


def frame_of(sequence: int, source: str = "/camera/front") -> Frame:
    """Make a frame whose pixels nobody reads."""
    image = RawImage("rgb8", HEIGHT, WIDTH, WIDTH * 3, is_bigendian=False, data=b"")
    capture = CAPTURE_NS + sequence * PERIOD_NS
    return Frame(source, sequence, capture, capture + 7_000_001, "optical", image)


def picture_of(sequence: int) -> Picture:
    """Make a grey picture that differs from frame to frame."""
    return np.full((HEIGHT, WIDTH, 3), 10 * sequence % 256, np.uint8)


def mask_of(sequence: int) -> np.ndarray:
    """Make a mask whose lower rows are road."""
    mask = np.ones((1, HEIGHT, WIDTH), np.uint8)
    mask[:, sequence:] = 0
    return mask


def result_of(frame: Frame, outcome: Outcome = Outcome.OK, **outputs: np.ndarray) -> InferResult:
    """Make the result of a frame, with an error unless it is ok."""
    answered = outcome is Outcome.OK
    return InferResult(
        id=f"{frame.sequence:032x}",
        outcome=outcome,
        model_name="road",
        model_version="3" if answered else "",
        model_hash="sha256:abc" if answered else "",
        outputs=outputs if answered else {},
        error=None if answered else ErrorInfo(outcome.value, "no answer in 1 s"),
        worker="w-1" if answered else "",
        stage="worker" if answered else "",
        timings=Timings(inference=12_000_000) if answered else Timings(),
        capture=Capture(frame.source, frame.sequence, frame.capture_time_ns, frame.frame_id),
        attempts=1,
    )


def view_of(frame: Frame, result: InferResult, picture: Picture | None = None) -> FrameView:
    """Show a frame that the model sees as it is."""
    size = (WIDTH, HEIGHT)
    pixels = picture_of(frame.sequence) if picture is None else picture
    return FrameView(pixels, Placement.of(size, size), result.outputs, classes=CLASSES)


def write(sink: Sink, frame: Frame, result: InferResult, picture: Picture | None = None) -> None:
    """Write a result, with the picture of its frame unless another one is given."""
    sink.write(frame, view_of(frame, result, picture), result)


def test_mcap_holds_masks_and_notes_under_the_capture_stamps(tmp_path: Path) -> None:
    """Stamps come back to the nanosecond, mask pixels exactly, on the promised topics and schemas."""
    sink = McapSink(tmp_path, CARD)
    for number in range(3):
        frame = frame_of(number)
        write(sink, frame, result_of(frame, output=mask_of(number)))
    path, _ = sink.close()
    found = messages(path)
    schemas = {topic.rsplit("/", 1)[1]: schema.name for topic, schema, _, _ in found}
    assert all(topic.startswith("/camera/front/mqinfer/") for topic, _, _, _ in found)
    assert schemas == {
        "image": "foxglove.CompressedImage",
        "annotations": "foxglove.ImageAnnotations",
        "result": "mqinfer.Result",
        "mask": "foxglove.CompressedImage",
        "classes": "foxglove.RawImage",
        "overlay": "foxglove.CompressedImage",
    }
    for topic, schema, message, body in found:
        frame = frame_of(message.sequence)
        assert message.log_time == frame.log_time_ns
        if schema.name.startswith("foxglove"):
            stamp = body["timestamp"]
            assert stamp["sec"] * 10**9 + stamp["nsec"] == frame.capture_time_ns
        if topic.endswith("/mask"):
            assert np.array_equal(decoded(body["data"]), colour_mask(mask_of(message.sequence)[0], CLASSES))
        if topic.endswith("/classes"):
            pixels = np.frombuffer(base64.b64decode(body["data"]), np.uint8).reshape(body["height"], body["step"])
            assert (body["encoding"], body["width"]) == ("mono8", WIDTH)
            assert np.array_equal(pixels, mask_of(message.sequence)[0])


def test_mcap_says_what_became_of_an_unanswered_frame(tmp_path: Path) -> None:
    """A frame without a result has its picture, its note and its record, and no mask."""
    sink = McapSink(tmp_path, CARD)
    write(sink, frame_of(0), result_of(frame_of(0), Outcome.EXPIRED))
    found = {topic.rsplit("/", 1)[1]: body for topic, _, _, body in messages(sink.close()[0])}
    assert set(found) == {"image", "annotations", "result"}
    assert "error" in found["result"]
    text = found["annotations"]["texts"][0]["text"]
    assert text == "road | frame 0 | 1700000000.123456789 | expired | no answer in 1 s"
    assert {"key": "outcome", "value": "expired"} in found["annotations"]["metadata"]


def test_mcap_of_a_classifier_has_its_values(tmp_path: Path) -> None:
    """A model whose output is no mask gives names, shapes, datatypes and small values."""
    sink = McapSink(tmp_path, CARD)
    write(sink, frame_of(0), result_of(frame_of(0), scores=np.array([[0.25, 0.75]], np.float32)))
    found = {topic.rsplit("/", 1)[1]: body for topic, _, _, body in messages(sink.close()[0])}
    assert set(found) == {"image", "annotations", "result"}
    assert "error" not in found["result"]
    expected = {"shape": [1, 2], "datatype": "FP32", "values": [0.25, 0.75]}
    assert found["result"]["outputs"]["scores"].items() >= expected.items()


def test_mcap_names_the_model(tmp_path: Path) -> None:
    """The file's metadata record tells which model and which file made it."""
    (path,) = McapSink(tmp_path, CARD).close()
    with path.open("rb") as file:
        (record,) = make_reader(file).iter_metadata()
    assert record.metadata == {"model_name": "road", "model_version": "3", "model_hash": "sha256:abc"}


def test_video_opens_and_holds_every_frame(tmp_path: Path) -> None:
    """One file a stream at the log times' rate; unanswered frames and one of another size are there too."""
    sink = VideoSink(tmp_path)
    for number in range(7):
        frame = frame_of(number)
        outcome = Outcome.SUPERSEDED if number == 3 else Outcome.OK
        picture = np.zeros((40, 700, 3), np.uint8) if number == 5 else picture_of(number)
        write(sink, frame, result_of(frame, outcome, output=mask_of(number)), picture)
    rear = frame_of(0, "/camera/rear")
    write(sink, rear, result_of(rear))
    paths = sink.close()
    assert [path.name for path in paths] == ["overlay-camera-front.mp4", "overlay-camera-rear.mp4"]
    assert [frames_in(path) for path in paths] == [7, 1]
    assert cv2.VideoCapture(str(paths[0])).get(cv2.CAP_PROP_FPS) == pytest.approx(20)


def test_frames_that_could_not_be_decoded_are_black_in_the_video(tmp_path: Path) -> None:
    """They never set its size: before the first real picture they are left out, after it they keep their place."""
    sinks = open_sinks(tmp_path, CARD)
    nothing = np.zeros((0, 0, 3), np.uint8)
    for number, picture in enumerate((nothing, picture_of(1), nothing, picture_of(3))):
        outcome = Outcome.OK if picture.size else Outcome.ERROR
        write(sinks, frame_of(number), result_of(frame_of(number), outcome, output=mask_of(number)), picture)
    (path,) = (path for path in sinks.close() if path.suffix == ".mp4")
    assert frames_in(path) == 3
    assert cv2.VideoCapture(str(path)).get(cv2.CAP_PROP_FRAME_HEIGHT) > HEIGHT


def frames_in(path: Path) -> int:
    """Count the frames that really decode."""
    video = cv2.VideoCapture(str(path))
    assert video.isOpened()
    count = 0
    while video.read()[0]:
        count += 1
    video.release()
    return count


def test_a_video_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    """OpenCV would keep silent; the message names the file."""
    sink = VideoSink(tmp_path / "missing")
    write(sink, frame_of(0), result_of(frame_of(0)))
    with pytest.raises(ConfigError, match=r"cannot write .*overlay-camera-front\.mp4"):
        sink.close()


def test_pictures_of_the_first_and_every_nth_answered_frame(tmp_path: Path) -> None:
    """Frames without an answer don't count, and the pixels are those that were drawn."""
    sink = PictureSink(tmp_path, every=2)
    for number in range(6):
        frame = frame_of(number)
        outcome = Outcome.EXPIRED if number == 0 else Outcome.OK
        write(sink, frame, result_of(frame, outcome, output=mask_of(number)))
    paths = sink.close()
    assert [path.name for path in paths] == [f"overlay-camera-front-{number:06d}.png" for number in (1, 3, 5)]
    frame = frame_of(3)
    result = result_of(frame, output=mask_of(3))
    drawn = draw_result(frame, view_of(frame, result), result)
    stored = cv2.imread(str(paths[1]))
    assert stored is not None
    assert np.array_equal(stored[:, :, ::-1], drawn)


def test_json_lines_tell_everything_of_each_frame(tmp_path: Path) -> None:
    """One line a frame, whatever its outcome; stamps are whole nanoseconds."""
    sink = JsonlSink(tmp_path)
    first, second = frame_of(0), frame_of(1)
    write(sink, first, result_of(first, output=mask_of(45)))
    write(sink, second, result_of(second, Outcome.REJECTED))
    answered, refused, timed, failed = (
        json.loads(line) for path in sink.close() for line in path.read_text(encoding="utf-8").splitlines()
    )
    assert answered["capture_time_ns"] == CAPTURE_NS
    assert answered["log_time_ns"] == CAPTURE_NS + 7_000_001
    assert answered["outputs"]["output"] == {
        "shape": [1, HEIGHT, WIDTH],
        "datatype": "UINT8",
        "hash": f"xxh3:{xxh3_128_hexdigest(mask_of(45).tobytes())}",
        "class_shares": {"road": 0.25, "sky": 0.75},
    }
    assert answered["error"] is None
    assert (refused["outcome"], refused["outputs"], refused["error"]) == ("rejected", {}, {"code": "rejected"})
    assert timed["timings"]["inference"] == 12_000_000
    assert (timed["worker"], timed["error"]) == ("w-1", None)
    assert failed["error"] == {"message": "no answer in 1 s"}
    assert set(answered) == set(refused)
    assert set(answered) & set(timed) == {"source", "sequence", "error"}


def test_all_sinks_by_name_write_their_files(tmp_path: Path) -> None:
    """The directory is made, and `close` names a file of every kind."""
    sinks = open_sinks(tmp_path / "new" / "out", CARD)
    for number in range(3):
        write(sinks, frame_of(number), result_of(frame_of(number), output=mask_of(number)))
    paths = sinks.close()
    assert all(path.stat().st_size for path in paths)
    assert Counter(path.suffix for path in paths) == {".jsonl": 2, ".mcap": 1, ".json": 1, ".png": 1, ".mp4": 1}


def test_unknown_kinds_and_intervals_are_refused(tmp_path: Path) -> None:
    """The message lists what there is."""
    kinds = "csv, homeassistant, jsonl, mcap, mqtt, npz, parquet, pictures, ros2, rosbag, video"
    with pytest.raises(ConfigError, match=f"'gif'; expected {kinds}"):
        open_sinks(tmp_path, CARD, ["mcap", "gif"])
    with pytest.raises(ConfigError, match="expected 1 or more"):
        open_sinks(tmp_path, CARD, picture_every=0)


def test_a_directory_that_is_a_file_is_refused(tmp_path: Path) -> None:
    """The message names the path."""
    (tmp_path / "out").write_text("not a folder")
    with pytest.raises(ConfigError, match=r"cannot write .*out: "):
        open_sinks(tmp_path / "out", CARD)


def test_when_one_sink_cannot_open_the_others_are_closed(tmp_path: Path) -> None:
    """A folder in the place of the MCAP file: one clear error, and no file left open (warnings are errors here)."""
    (tmp_path / "results.mcap").mkdir()
    with pytest.raises(ConfigError, match=r"results\.mcap"):
        open_sinks(tmp_path, CARD, SINK_KINDS)
    assert (tmp_path / "results.jsonl").exists()


def test_long_names_of_streams(tmp_path: Path) -> None:
    """A topic may have more characters than the name of a file."""
    sinks = open_sinks(tmp_path, CARD, ["npz", "pictures", "video"])
    for source in ("/" + "a" * 500, "/" + "a" * 501):
        frame = frame_of(0, source)
        write(sinks, frame, result_of(frame), np.zeros((HEIGHT, WIDTH, 3), np.uint8))
    assert len([path for path in sinks.close() if path.exists()]) == 5
    assert sinks.failure is None


def test_streams_never_share_a_file_name() -> None:
    """Names that look the same without their special characters get numbers."""
    names = StreamNames()
    given = ["/camera/front", "/camera-front", "camera front", "/camera/front-2", "..", "/camera/front"]
    found = [names.of(source) for source in given]
    assert found[0] == found[5] == "camera-front"
    assert len(set(found)) == 5
    assert names.of("../../etc/passwd") == "etc-passwd"
    topics = StreamNames(lambda _: f"/{'a' * 58}_b", "_")
    assert [topics.of("1"), topics.of("2")] == [f"/{'a' * 58}_b", f"/{'a' * 58}_2"]


def test_a_video_can_be_read_while_it_grows(tmp_path: Path) -> None:
    """All frames but those of the last second decode; closed, it is one plain MP4, which seeks."""
    sink = VideoSink(tmp_path)
    path = tmp_path / "overlay-camera-front.mp4"
    for number in range(70):
        frame = frame_of(number)
        write(sink, frame, result_of(frame, output=mask_of(number)))
        if number in (39, 59):
            assert number - 20 < frames_in(path) <= number + 1
    assert top_boxes(path).count(b"moof") >= 2
    (closed,) = sink.close()
    assert closed == path
    assert [kind for kind in top_boxes(path) if kind != b"free"] == [b"ftyp", b"mdat", b"moov"]
    video = cv2.VideoCapture(str(path))
    assert video.get(cv2.CAP_PROP_FRAME_COUNT) == 70
    assert video.get(cv2.CAP_PROP_FPS) == pytest.approx(20)
    video.set(cv2.CAP_PROP_POS_FRAMES, 45)
    assert video.read()[0]
    assert video.get(cv2.CAP_PROP_POS_MSEC) == pytest.approx(45 * 50)
    video.release()
    assert frames_in(path) == 70
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


def top_boxes(path: Path) -> list[bytes]:
    """Return the kinds of the boxes of an MP4 file."""
    content, place, kinds = path.read_bytes(), 0, []
    while place < len(content):
        size, kind = struct.unpack_from(">I4s", content, place)
        kinds.append(kind)
        place += struct.unpack_from(">Q", content, place + 8)[0] if size == 1 else size
    assert place == len(content)
    return kinds


def test_a_later_run_overwrites_nothing(tmp_path: Path) -> None:
    """Three runs into one folder: each file of the earlier ones is there under a number."""
    for _ in range(3):
        sinks = open_sinks(tmp_path, CARD)
        for number in range(3):
            write(sinks, frame_of(number), result_of(frame_of(number), output=mask_of(number)))
        assert all(path.exists() for path in sinks.close())
        assert sinks.failure is None
    for name in ("results", "overlay-camera-front"):
        for suffix in ("", ".1", ".2"):
            found = [path for path in tmp_path.glob(f"{name}{suffix}.*") if path.suffix in (".mp4", ".mcap", ".jsonl")]
            assert found
            assert all(path.stat().st_size for path in found)
    assert len(list(tmp_path.glob("overlay-camera-front-000000*.png"))) == 3


class Failing:
    """A sink that fails at one of its calls."""

    def __init__(self, at: int) -> None:
        self.left = at

    def write(self, _frame: Frame, _view: FrameView, _result: InferResult) -> None:
        """Fail when it is time."""
        self._count()

    def close(self) -> tuple[Path, ...]:
        """Fail when it is time."""
        self._count()
        return (Path("whole"),)

    def _count(self) -> None:
        self.left -= 1
        if not self.left:
            raise ConfigError("cannot write it: No space left on device")


def test_a_sink_that_fails_is_left_out() -> None:
    """The others get every result, and only the failure of the last one ends the run."""
    other = Failing(at=8)
    sinks = SinkSet([Failing(at=3), other, Failing(at=5)])
    for number in range(6):
        write(sinks, frame_of(number), result_of(frame_of(number)))
    assert other.left == 2
    assert "kinds of files that are incomplete: 2, by up to 4 results" in str(sinks.failure)
    write(sinks, frame_of(6), result_of(frame_of(6)))
    with pytest.raises(ConfigError, match="No space left"):
        write(sinks, frame_of(7), result_of(frame_of(7)))
    at_the_end = SinkSet([Failing(at=1), Failing(at=9)])
    assert at_the_end.close() == (Path("whole"),)
    assert "incomplete: 1" in str(at_the_end.failure)


class Lacking:
    """A sink that has no memory for one result."""

    def __init__(self) -> None:
        self.written: list[int] = []

    def write(self, frame: Frame, _view: FrameView, _result: InferResult) -> None:
        """Fail at the second frame."""
        if frame.sequence == 1:
            raise MemoryError
        self.written.append(frame.sequence)

    def close(self) -> tuple[Path, ...]:
        """Have no files."""
        return ()


def test_a_sink_that_lacks_memory_for_a_result_gets_the_next(caplog: pytest.LogCaptureFixture) -> None:
    """What one result is too large for costs that result alone; the log names it, and the run says so at its end."""
    sink, other = Lacking(), Failing(at=9)
    sinks = SinkSet([sink, other])
    for number in range(4):
        write(sinks, frame_of(number), result_of(frame_of(number)))
    assert (sink.written, other.left) == ([0, 2, 3], 5)
    assert "/camera/front, frame 1, from the files of a Lacking" in caplog.text
    assert "no memory was left to write some results into some files: 1 in all" in str(sinks.failure)


@pytest.mark.parametrize("raised", [MemoryError(), zstandard.ZstdError("cannot compress: not enough memory")])
def test_an_mcap_file_without_memory_is_left_out(
    tmp_path: Path, raised: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a record may be in it: nothing follows, not even at a second close, and the other kinds go on."""
    other = Failing(at=5)
    sinks = SinkSet([McapSink(tmp_path, CARD), other])
    write(sinks, frame_of(0), result_of(frame_of(0)))

    def fail(*_: object) -> None:
        raise raised

    monkeypatch.setattr("zstandard.compress", fail)
    assert sinks.close() == (Path("whole"),)
    assert sinks.close() == (Path("whole"),)
    assert "cannot write" in str(sinks.failure)
    assert "incomplete: 1" in str(sinks.failure)


@pytest.mark.parametrize("damage", ["cut", "flipped", "at once", "foreign"])
def test_the_file_of_a_killed_run_is_repaired_or_kept(tmp_path: Path, damage: str) -> None:
    """A cut costs what is behind it; a file that is damaged otherwise stays byte by byte for the operator."""
    sink = McapSink(tmp_path, CARD)
    for number in range(0 if damage == "at once" else 60):
        write(sink, frame_of(number), result_of(frame_of(number), output=mask_of(number)))
    path = sink.close()[0]
    content = bytearray(path.read_bytes())
    end = content.rindex(b"mqinfer") if damage == "at once" else len(content) - 40
    if damage == "flipped":
        content[content.index(b"zstd") + 500] ^= 255  # inside a chunk
    path.write_bytes(b"no MCAP" if damage == "foreign" else content[:end])
    before = path.read_bytes()
    McapSink(tmp_path, CARD).close()
    earlier = tmp_path / "results.1.mcap"
    if damage in ("flipped", "foreign"):
        assert earlier.read_bytes() == before
    else:
        assert len(messages(earlier)) == (0 if damage == "at once" else 360)
    assert messages(path) == []
    layouts = [] if damage == "at once" else ["foxglove-layout.1.json"]
    assert sorted(each.name for each in tmp_path.iterdir()) == [*layouts, "results.1.mcap", "results.mcap"]

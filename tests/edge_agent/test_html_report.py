"""The HTML report: bounded, self-contained, and whatever comes from outside is text in it."""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from html.parser import HTMLParser
from io import StringIO
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pytest
from rich.console import Console

from mqinfer.bags.frame import Frame
from mqinfer.client.requester import Requester
from mqinfer.client.result import InferResult
from mqinfer.edge_agent.frames.times import FrameTimes
from mqinfer.edge_agent.frames.view import NO_VIEW, FrameView
from mqinfer.edge_agent.reporting.answers import BEST, NOTHING, OBJECTS, PIXELS, Counted
from mqinfer.edge_agent.reporting.charts import Axis, stacked, top_of
from mqinfer.edge_agent.reporting.page import ReportFile, write_report
from mqinfer.edge_agent.reporting.recorder import OTHER, RunRecorder, Series
from mqinfer.edge_agent.reporting.report import Ending, SessionReport
from mqinfer.edge_agent.reporting.statistics import ReplayStatistics
from mqinfer.edge_agent.reporting.worst import WorstFrames
from mqinfer.edge_agent.session import run_sessions
from mqinfer.edge_agent.settings import ReplayOptions, ReplaySettings
from mqinfer.edge_agent.sinks.sink import Sink
from mqinfer.images.picture import RawImage
from mqinfer.images.placement import Placement
from mqinfer.lab.drives.recording import write_drive
from mqinfer.protocol.card import ClassInfo, ModelCard
from mqinfer.protocol.errors import ConfigError
from mqinfer.protocol.states import ServedModel
from mqinfer.protocol.types import Capture, ErrorInfo, Outcome, Timings
from tests.settings import settings_of

CLASSES = (ClassInfo("car", (255, 0, 0)), ClassInfo("<b>", (0, 255, 0)))
WIDTH, HEIGHT = 64, 48
NASTY = "<script>alert(1)</script>\"'&\x1b[31m\0\u202e" + "x" * 10_000
TAGS = (
    "html head meta title style body header section div span dl dt dd h1 h2 h3 p code a ul li b br img figure "
    "figcaption table thead tbody tr th td svg path g rect"
)


def frame_of(number: int, source: str = "/camera") -> Frame:
    """Make a frame whose recorded pixels nobody reads."""
    image = RawImage("rgb8", HEIGHT, WIDTH, WIDTH * 3, is_bigendian=False, data=b"")
    return Frame(source, number, 1_700_000_000_000_000_000 + number, 0, "", image)


def result_of(milliseconds: float = 20, worker: str = "gpu.0", source: str = "/camera") -> InferResult:
    """Make a result that took so long."""
    timings = Timings(inference=round(milliseconds * 1e6))
    capture = Capture(source, 0, 0, "")
    return InferResult("1", Outcome.OK, "net", "3", "sha256:a", {}, None, worker, "worker", timings, capture, 1)


def failed(
    code: str, outcome: Outcome = Outcome.ERROR, message: str = "broken", source: str = "/camera"
) -> InferResult:
    """Make the outcome of a frame without a result."""
    return InferResult("1", outcome, "net", error=ErrorInfo(code, message), capture=Capture(source, 0, 0, ""))


def view_of(score: float | None = None, precision: str = "fp32") -> FrameView:
    """Show a frame with one box, or with none."""
    boxes = {"boxes": np.array([[8.0, 8, 40, 40]]), "scores": np.array([score or 0.0]), "classes": np.array([1])}
    served = ServedModel("net", "3", precision=precision, backend="onnxruntime 1.31", device="cpu")
    place = Placement.of((WIDTH, HEIGHT), (WIDTH, HEIGHT))
    times = FrameTimes(21_000_000, {"edge_encode": 1_000_000, "inference": 20_000_000})
    pixels = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
    return FrameView(pixels, place, {} if score is None else boxes, times=times, served=served, classes=CLASSES)


class Page(HTMLParser):
    """Tags, attributes and texts of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, str]] = []
        self.texts: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note a tag with its attributes."""
        self.tags[tag] += 1
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_data(self, data: str) -> None:
        """Note a text."""
        self.texts.append(data)


def report(
    path: Path, recorder: RunRecorder, *, model: str = "net", reason: str = "", command: Sequence[str] = ()
) -> Page:
    """Write a report with a run and its counters, and read it back."""
    statistics = ReplayStatistics()
    for source in ("/camera", NASTY):
        statistics.request_sent(source)
        statistics.finished(failed(NASTY, message=NASTY, source=source), bytes_raw=0)
    about, why = (model, "3", "sha256:a", "local", "jpeg:90"), ConfigError(reason)
    run = SessionReport(statistics.snapshot(), *about, ended=Ending.FAILED, broke_off=why)
    write_report(path, {"source": "drive.bag", "topics": NASTY}, [(run, recorder), (run, recorder)], command)
    return Page(path)


def test_everything_from_outside_is_text(tmp_path: Path) -> None:
    """Names of models, streams, workers, classes and errors, and messages: no markup, no control character, cut off."""
    recorder = RunRecorder(CLASSES)
    recorder.write(frame_of(0, NASTY), view_of(0.5, NASTY), result_of(worker=NASTY))
    recorder.write(frame_of(1, NASTY), NO_VIEW, failed(NASTY, message=NASTY))
    page = report(tmp_path / "report.html", recorder, model=NASTY, reason=NASTY)
    assert set(page.tags) <= set(TAGS.split())
    text = "".join(page.texts)
    assert text.count("<script>alert(1)</script>\"'&\\x1b[31m\\x00\\u202e") > 20
    assert text.isprintable() or set(filter(lambda each: not each.isprintable(), text)) == {"\n"}
    assert "x" * 400 not in text
    assert (tmp_path / "report.html").stat().st_size < 200_000


def test_nothing_is_loaded_or_run(tmp_path: Path) -> None:
    """No script, no address but pictures in the page itself; the page's own policy forbids the rest."""
    recorder = RunRecorder(CLASSES)
    recorder.write(frame_of(0), view_of(0.5), result_of())
    page = report(tmp_path / "report.html", recorder)
    assert page.tags["script"] == page.tags["link"] == page.tags["a"] == 0  # without files there is no link
    addresses = [value for name, value in page.attributes if name in {"src", "href", "xlink:href", "srcset", "style"}]
    assert addresses
    assert all(value.startswith("data:image/jpeg;base64,") for value in addresses)
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    assert any("default-src 'none'" in value for name, value in page.attributes if name == "content")
    assert "url(" not in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_the_report_names_who_answered_in_which_precision(tmp_path: Path) -> None:
    """Two workers of one version may differ."""
    recorder = RunRecorder(CLASSES)
    for number, (worker, precision) in enumerate((("gpu.0", "fp32"), ("gpu.1", "int8"), ("gpu.1", "int8"))):
        recorder.write(frame_of(number), view_of(None, precision), result_of(worker=worker))
    assert [(who.worker, who.precision, count) for who, count in recorder.answerers.most_common()] == [
        ("gpu.1", "int8", 2),
        ("gpu.0", "fp32", 1),
    ]
    page = report(tmp_path / "report.html", recorder)
    assert {"gpu.0", "gpu.1", "int8", "fp32", "onnxruntime 1.31"} <= set(page.texts)


HOSTILE = (ClassInfo(NASTY, (1, 2, 3)), ClassInfo("</title></svg><img src=x onerror=alert(1)>", (4, 5, 6)))


def answer_of(known: Sequence[ClassInfo] = CLASSES, /, **outputs: object) -> FrameView:
    """Show a frame with these outputs."""
    return replace(view_of(), outputs={name: np.asarray(each) for name, each in outputs.items()}, classes=known)


def test_the_report_says_what_the_model_answered(tmp_path: Path) -> None:
    """Of masks the share of each class, of boxes their number and scores, of classifiers the best; ends of others."""
    mask = np.zeros((1, HEIGHT, WIDTH), np.uint8)
    mask[:, : HEIGHT // 4] = 1
    boxes = {"boxes": [[0.0, 0, 8, 8]] * 3, "scores": [0.95, 0.9, 0.2], "classes": [0, 0, 1]}
    cases: dict[str, tuple[FrameView, dict[Counted, float], dict[float, int]]] = {
        "mask": (answer_of(mask=mask), {(PIXELS, "car"): 75, (PIXELS, "<b>"): 25}, {}),
        "boxes": (answer_of(**boxes), {(OBJECTS, "car"): 2, (OBJECTS, "<b>"): 1}, {0.95: 1, 0.9: 1, 0.2: 1}),
        "nothing": (answer_of(boxes=np.zeros((0, 4)), scores=np.zeros(0)), {(OBJECTS, NOTHING): 0}, {}),
        "scores": (answer_of(y=[[0.25, 0.75]]), {(BEST, "<b>"): 100}, {0.75: 1}),
        "none": (answer_of(y=[[1.5, np.nan, -2.0]], z=[7]), {}, {}),
    }
    for name, (view, answers, scores) in cases.items():
        recorder = RunRecorder(CLASSES)
        for number in range(2):
            recorder.write(frame_of(number), view, result_of())
        recorder.write(frame_of(2), view_of(), failed("broken"))
        total = recorder.series.total()
        assert {key: count / total.answered for key, count in total.answers.items()} == answers, name
        assert recorder.answers.scores == {score: 2 * count for score, count in scores.items()}
        page = report(tmp_path / f"{name}.html", recorder)
        assert {each for _, each in answers} <= {text.strip() for text in page.texts}
        assert {what for what, _ in answers} <= set(page.texts)
        assert ("how often each score occurred" in page.texts) == bool(scores)
        assert "200" not in page.texts  # shares end at 100
        assert {"1 x 3", "-2", "1.5", "7"} <= set(page.texts) or name != "none"


def test_classes_have_the_colours_of_the_card(tmp_path: Path) -> None:
    """In charts and legends, where the card has one; black, which it has by default, would be that of many."""
    classes = (ClassInfo("plain", (0, 0, 0)), *CLASSES)
    mask = np.arange(HEIGHT * WIDTH, dtype=np.uint8).reshape(1, HEIGHT, WIDTH) % 3
    recorder = RunRecorder(classes)
    recorder.write(frame_of(0), answer_of(classes, mask=mask), result_of())
    report(tmp_path / "report.html", recorder)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    entries = re.findall(r'<path (\S+) d="M0 0h1v1h-1z"/></svg>(\S+) <b>', page)
    drawn = {name: paint for paint, name in entries}
    assert drawn["car"] == 'fill="#ff0000"'
    assert drawn["&lt;b&gt;"] == 'fill="#00ff00"'
    assert drawn["plain"].startswith('class="c')


def test_answers_of_hostile_classes_are_text_and_bounded(tmp_path: Path) -> None:
    """No name of a class is markup, in a legend, a table or a tip; what does not fit is counted together."""
    classes = (*HOSTILE, *(ClassInfo(f"class-{number}", (0, 0, 0)) for number in range(1000)))
    recorder = RunRecorder(classes)
    for number in range(1002):
        scores = np.zeros((1, 1002))
        scores[0, number] = 1e300 if number % 2 else 0.5
        recorder.write(
            frame_of(number), answer_of(classes, y=scores, **{f"{NASTY}{number}": [number] * 2}), result_of()
        )
    page = report(tmp_path / "report.html", recorder)
    assert set(page.tags) <= set(TAGS.split())
    assert page.tags["title"] == 2 + page.tags["rect"] - 1
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    assert any("<script>alert(1)</script>" in text for text in page.texts)
    assert "x" * 400 not in "".join(page.texts)
    assert len(recorder.series.total().answers) <= 257
    assert len(recorder.answers.outputs) <= 32
    assert (tmp_path / "report.html").stat().st_size < 500_000


def test_the_command_line_has_no_secret(tmp_path: Path) -> None:
    """Neither a login nor a query of a URL, nor what an option named for a secret holds."""
    command = [
        *("mqinfer", "replay", "rtsp://cam:pa/ss@host/live?token=hushed1", "--broker=mqtts://car:hushed2@site:8883"),
        *("--password", "hushed3", "--api-token=hushed4", "--password-file", "/etc/pw", "--topic", "/a b", NASTY),
    ]
    page = report(tmp_path / "report.html", RunRecorder(), command=command)
    (line,) = (text for text in page.texts if text.startswith("mqinfer replay"))
    assert "rtsp://host/live?..." in line
    assert "--broker=mqtts://site:8883 --password ... --api-token=... --password-file /etc/pw --topic '/a b'" in line
    whole = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert not [each for each in ("pa/ss", "hushed", "<script") if each in whole]


def test_files_are_links_from_where_the_report_is(tmp_path: Path) -> None:
    """Whatever their names: none of them is an address elsewhere, or markup."""
    names = ["out/overlay video.mp4", "out/#1?.csv", 'javascript:alert("x")', "out/<b>&.json"]
    paths = [tmp_path / name for name in names]
    for path in paths:
        path.parent.mkdir(exist_ok=True)
        path.touch()
    run = SessionReport(ReplayStatistics().snapshot(), "net", "3", "", "local", "raw", files=tuple(paths[:3]))
    write_report(tmp_path / "deep" / "report.html", {}, [(run, None)], written=paths[3:])
    page = Page(tmp_path / "deep" / "report.html")
    links = [value for name, value in page.attributes if name == "href"]
    assert [(tmp_path / "deep" / unquote(each)).resolve() for each in links] == paths
    assert all(each.startswith("../") and not set(each) & set("?#<>\"': ") for each in links)


def test_a_long_run_has_a_short_report(tmp_path: Path) -> None:
    """Each frame is slower than the one before, each error has a code of its own, each worker another name."""
    now = iter(range(10**9))
    recorder = RunRecorder(CLASSES, clock=lambda: next(now) * 0.7)
    for number in range(300):
        recorder.write(frame_of(number), view_of(1 - number / 300), result_of(number, f"w{number}"))
        recorder.write(frame_of(number), view_of(), failed(f"code-{number}", message="x" * 1000))
    page = report(tmp_path / "report.html", recorder)
    assert page.tags["img"] == 2 * 3 * 6
    assert (tmp_path / "report.html").stat().st_size < 500_000
    assert recorder.series.total().outcomes.total() == 600
    assert 60 <= len(recorder.series.spans) <= 120


def test_spans_lose_nothing_when_they_grow() -> None:
    """Counts and times are the same whatever the length of a span; of many codes the last are counted together."""
    series = Series()
    for second in range(0, 4000, 3):
        series.add(second, str(Outcome.OK), {"inference": 7})
    for number in range(20):
        series.add(1, f"code-{number}", {})
    total = series.total()
    assert (total.answered, total.stages["inference"]) == (1334, 1334 * 7)
    assert (len(total.outcomes), total.outcomes[OTHER]) == (13, 9)
    assert series.seconds == 64
    assert [span.answered for span in series.spans[:3]] == [22, 21, 21]


def test_the_worst_frames_are_the_worst() -> None:
    """The slowest and the least sure of all, in that order; of failures the first two of each code."""
    worst = WorstFrames()
    for number in range(100):
        slow, score = (number * 37) % 100, (number * 61 % 100) / 100
        worst.add(frame_of(number), view_of(score), result_of(slow))
        worst.add(frame_of(number), view_of(), failed("ab"[number % 2]))
        worst.add(frame_of(number), view_of(), failed("superseded", Outcome.SUPERSEDED))
    assert [kept.fact for kept in worst.slowest] == [f"{slow}.0 ms" for slow in (99, 98, 97, 96, 95, 94)]
    assert [kept.fact for kept in worst.unsure] == [f"score {score:.3f}" for score in (0, 0.01, 0.02, 0.03, 0.04, 0.05)]
    assert [kept.fact for kept in worst.failed] == ["a: broken", "b: broken", "a: broken", "b: broken"]
    assert all(kept.jpeg.startswith(b"\xff\xd8") for kept in (*worst.slowest, *worst.unsure, *worst.failed))


def test_a_frame_that_was_never_decoded_has_no_picture(tmp_path: Path) -> None:
    """Its place says so."""
    recorder = RunRecorder(CLASSES)
    recorder.write(frame_of(0), NO_VIEW, failed("bad_image"))
    page = report(tmp_path / "report.html", recorder)
    assert "no picture" in page.texts
    assert page.tags["img"] == 0


@pytest.mark.parametrize("columns", [[], [{}], [{"a": 0.0}], [{"a": 1e-9, "b": 1e9}], [{"a": 3.0}, {}, {"b": 1.5}]])
def test_a_chart_of_anything_is_well_formed(columns: list[dict[str, float]]) -> None:
    """Also of nothing; no part is higher than the chart."""
    drawn = stacked(columns, ["a", "b"], Axis(0.25), "ms")
    assert "nan" not in drawn
    assert "inf" not in drawn
    highest = max((sum(column.values()) for column in columns), default=0)
    assert highest <= top_of(highest) <= max(2 * highest, 1)


def test_the_report_of_an_earlier_run_is_kept_and_a_full_disk_is_reported(tmp_path: Path) -> None:
    """A report has its name once it is whole, so the earlier one stays if the new one does not fit."""
    path = tmp_path / "deep" / "report.html"
    report(path, RunRecorder())
    first = path.read_bytes()
    path.with_name("report.html.new").symlink_to("/dev/full")
    with pytest.raises(ConfigError, match=r"report\.html: No space left"):
        report(path, RunRecorder())
    assert [each.name for each in path.parent.iterdir()] == ["report.html"]
    report(path, RunRecorder())
    assert path.with_name("report.1.html").read_bytes() == first


@pytest.mark.parametrize("place", ["folder", "file/report.html", "."])
def test_a_report_that_cannot_be_written_is_refused_before_the_run(
    tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hours of results would have none."""
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    Path("file").touch()
    with pytest.raises(ConfigError, match="cannot write"):
        ReportFile(Path(place))
    assert sorted(each.name for each in tmp_path.iterdir()) == ["file", "folder"]


@pytest.fixture
def requester(edge: Callable[..., Requester], write_echo: Callable[..., Path]) -> Requester:
    """A client of two echo models over an in-memory broker."""
    write_echo("small", ("image", "UINT8", [-1, 16, 24, 3]))
    return edge(write_echo("echo", ("image", "UINT8", [-1, 32, 48, 3])), "echo", "small")


def test_a_run_of_two_models_is_reported_with_their_real_engines(requester: Requester, tmp_path: Path) -> None:
    """No other files are asked for; each model has its section, and each worker the engine of its state."""
    drive = write_drive(tmp_path / "drive.bag", ros=1, frames=6, seed=3, width=96, height=64, truth_topic=False)
    settings = settings_of(drive, ReplayOptions("echo", window=4))
    file = ReportFile(tmp_path / "report.html")
    recorders: dict[str, RunRecorder] = {}

    def observe(own: ReplaySettings, card: ModelCard) -> Sink:
        sink = file.observe(own, card)
        assert isinstance(sink, RunRecorder)
        recorders[own.options.model] = sink
        return sink

    reports = run_sessions(
        settings,
        ["echo", "small"],
        requester,
        broker="memory",
        stop=threading.Event(),
        console=Console(file=StringIO()),
        observe=observe,
    )
    for recorder in recorders.values():
        ((who, count),) = recorder.answerers.items()
        state = requester.registry.workers[who.worker].models[0]
        assert count == 6
        assert (who.precision, who.backend, who.device) == (state.precision, state.backend, state.device)
        assert who.backend
    write_report(file.path, settings.describe(), file.runs(reports), ["mqinfer", "replay"])
    page = Page(tmp_path / "report.html")
    assert {"Model echo", "Model small"} <= set(page.texts)
    assert page.tags["img"] == 12

"""Previews on a real broker: they pair with the results, show what the model got, and come only where asked for."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from mqinfer.bags.sources import open_source
from mqinfer.broker import make_link
from mqinfer.broker.link import Message
from mqinfer.client.announcer import ClientAnnouncer
from mqinfer.client.connection import connect, random_name
from mqinfer.codecs import decode_tensor, encode_tensor
from mqinfer.edge_agent.metrics import EdgeStreams
from mqinfer.edge_agent.model_run import ModelRun
from mqinfer.edge_agent.reporting.report import SessionReport, summary
from mqinfer.edge_agent.session import run_sessions
from mqinfer.edge_agent.settings import ReplayOptions
from mqinfer.images.decode import to_rgb
from mqinfer.images.placement import fit
from mqinfer.lab.drives.recording import write_drive
from mqinfer.lab.drives.synthetic import SyntheticDrive
from mqinfer.protocol.checksum import verify
from mqinfer.protocol.envelope import CONTENT_TYPE, decode_response
from mqinfer.protocol.states import ClientState, ProcessStatus
from mqinfer.protocol.topics import Topics
from mqinfer.protocol.types import InferResponse
from tests.patience import wait_until
from tests.settings import settings_of

pytestmark = pytest.mark.broker
FRAMES = 12
WIDTH, HEIGHT = 640, 400
"""Of the model's pictures; the recorded ones are half as large again."""


@dataclass
class Heard:
    """What a dashboard receives."""

    previews: list[Message] = field(default_factory=list)
    results: list[InferResponse] = field(default_factory=list)
    states: list[ClientState] = field(default_factory=list)


@contextmanager
def dashboard(url: str, topics: Topics) -> Iterator[Heard]:
    """Subscribe to what a dashboard subscribes to."""
    heard = Heard()

    def on_state(message: Message) -> None:
        _, state = ClientState.read(topics, message.topic, message.payload)
        if state is not None:
            heard.states.append(state)

    link = make_link(url, client_id=random_name())
    link.open()
    link.subscribe(topics.previews.filter(), heard.previews.append)
    link.subscribe(
        f"{topics.root}/results/+/+/+", lambda message: heard.results.append(decode_response(message.payload))
    )
    link.subscribe(topics.client_state.filter(), on_state)
    try:
        yield heard
    finally:
        link.close()


def run(url: str, topics: Topics, source: Path, name: str, **settings: Any) -> SessionReport:
    """Replay a source to the model `eye` as an edge does, under a name, with its state."""
    options = settings.pop("options", ReplayOptions("eye", window=4))
    runs: list[ModelRun] = []
    announcer = ClientAnnouncer(name, topics, source.name, "eye", window=4, refresh_s=0.05)
    announcer.streams = EdgeStreams(runs).read
    requester = connect(url, name, topics, announcer=announcer)
    try:
        (report,) = run_sessions(
            settings_of(source, options, **settings),
            ["eye"],
            requester,
            broker=url,
            stop=threading.Event(),
            console=Console(quiet=True),
            on_runs=runs.extend,
        )
    finally:
        announcer.presence.end()
        requester.close()
    return report


@pytest.fixture
def topics(
    broker_url: str, unique: Callable[[str], str], serve: Callable[..., Any], write_echo: Callable[..., Path]
) -> Topics:
    """Serve the model `eye`, which takes pictures of one size, below a root of its own."""
    topics = Topics(unique("test"))
    config = f'[image]\ninput = "image"\nwidth = {WIDTH}\nheight = {HEIGHT}\n'
    repository = write_echo("eye", ("image", "UINT8", [-1, HEIGHT, WIDTH, 3]), config=config)
    serve(broker_url, repository, "eye", topics=topics)
    return topics


@pytest.fixture
def drive(tmp_path: Path) -> Path:
    """Write a recording of a camera."""
    return write_drive(
        tmp_path / "drive.bag",
        ros=1,
        frames=FRAMES,
        seed=1,
        width=WIDTH * 3 // 2,
        height=HEIGHT * 3 // 2,
        truth_topic=False,
    )


@pytest.mark.parametrize("encoding", ["jpeg:90", "lz4", "h264"])
def test_previews_pair_with_results(
    broker_url: str, topics: Topics, drive: Path, unique: Callable[[str], str], encoding: str
) -> None:
    """Each preview is of a frame that was answered, shows what the model got, and is counted; none is retained."""
    name = unique("car")
    with dashboard(broker_url, topics) as heard:
        report = run(broker_url, topics, drive, name, encoding=encoding, preview_rate=10.0)
        counts = report.previews
        assert counts is not None
        wait_until(lambda: len(heard.previews) >= counts.published and len(heard.results) >= FRAMES)
    assert 1 <= counts.published == len(heard.previews) <= FRAMES
    told: Any = summary(report)
    assert told["previews"] == {"published": counts.published, "dropped": {}}
    answered = {(each.capture, each.model_name): each for each in heard.results}
    with closing(open_source(str(drive))) as source:
        recorded = {frame.sequence: to_rgb(frame.image) for frame in source.frames()}
    for message in heard.previews:
        assert topics.previews.parse(message.topic)["client"] == name
        assert (message.retain, message.qos, message.content_type) == (False, 0, CONTENT_TYPE)
        verify(message.payload, message.user_properties)
        assert len(message.payload) < 64 * 1024
        preview = decode_response(message.payload)
        assert answered[preview.capture, "eye"].id == preview.id
        (tensor,) = preview.outputs
        assert (tensor.name, tensor.encoding, tensor.shape) == ("preview", "jpeg", (300, 480, 3))
        size = preview.parameters["picture_width"], preview.parameters["picture_height"]
        assert size == (WIDTH, HEIGHT)
        assert preview.capture.sequence is not None
        shown, seen = decode_tensor(tensor), fit(recorded[preview.capture.sequence], 480, 300)
        assert np.abs(shown.astype(int) - seen).mean() < 4
    with dashboard(broker_url, topics) as later:
        link = make_link(broker_url, client_id=random_name())
        link.open()
        link.publish(Message(topics.preview("last", "one"), b""))
        wait_until(lambda: bool(later.previews))
        link.close()
    assert [message.topic for message in later.previews] == [topics.preview("last", "one")]


def test_no_previews_unless_asked_for(
    broker_url: str, topics: Topics, drive: Path, unique: Callable[[str], str]
) -> None:
    """A replay publishes none by default, and its summary says so."""
    with dashboard(broker_url, topics) as heard:
        report = run(broker_url, topics, drive, unique("car"))
        wait_until(lambda: len(heard.results) >= FRAMES)
    assert heard.previews == []
    assert summary(report)["previews"] is None


def test_a_jpeg_that_passes_untouched_is_shown_too(
    broker_url: str, topics: Topics, tmp_path: Path, unique: Callable[[str], str]
) -> None:
    """It has the model's size, and is decoded for its preview alone."""
    picture = SyntheticDrive(1, WIDTH, HEIGHT).scene(0).picture
    folder = tmp_path / "pictures"
    folder.mkdir()
    (folder / "0.jpg").write_bytes(bytes(encode_tensor("x", picture, "jpeg:95").data))
    with dashboard(broker_url, topics) as heard:
        report = run(broker_url, topics, folder, unique("car"), encoding="jpeg:90", preview_rate=1.0)
        wait_until(lambda: bool(heard.previews))
    assert report.previews is not None
    assert report.previews.published == 1
    (tensor,) = decode_response(heard.previews[0].payload).outputs
    assert np.abs(decode_tensor(tensor).astype(int) - fit(picture, 480, 300)).mean() < 4


def test_an_edge_states_its_streams(broker_url: str, topics: Topics, drive: Path, unique: Callable[[str], str]) -> None:
    """While it runs, with what became of the frames; the state that it leaves behind is none."""
    name = unique("car")
    with dashboard(broker_url, topics) as heard:
        report = run(broker_url, topics, drive, name, rate=1.0, preview_rate=10.0)
        wait_until(lambda: any(state.status is ProcessStatus.STOPPED for state in heard.states))
    stated = [state.streams for state in heard.states if state.status is ProcessStatus.READY and state.streams]
    (last,) = stated[-1]
    (source,) = (stream.source for stream in report.snapshot.streams)
    assert (last.source, last.model) == (source, "eye")
    counts = [sum(streams[0].outcomes.values()) for streams in stated]
    assert counts == sorted(counts)
    assert set(last.outcomes) == {"ok"}
    assert last.window >= 1
    assert last.previews >= 1
    assert heard.states[-1].streams is None


def test_a_summary_of_the_command(
    broker_url: str, topics: Topics, drive: Path, tmp_path: Path, unique: Callable[[str], str]
) -> None:
    """`mqinfer replay --preview` prints and writes the counts, and so does the report; a wrong rate is refused."""
    from typer.testing import CliRunner

    from mqinfer.cli.app import app

    where = ["--broker", broker_url, "--root", topics.root, "--model", "eye", "--name", unique("car")]
    files = ["--summary", str(tmp_path / "s.json"), "--report", str(tmp_path / "r.html")]
    done = CliRunner().invoke(app, ["replay", str(drive), *where, *files, "--preview", "5"])
    assert done.exit_code == 0, done.output
    published = json.loads((tmp_path / "s.json").read_text())["previews"]["published"]
    assert published >= 1
    assert f"previews: {published} published{os.linesep}" in done.output
    assert f"{published} published" in (tmp_path / "r.html").read_text()
    for wrong in ("0.1", "11", "-1"):
        refused = CliRunner().invoke(app, ["replay", str(drive), *where, "--preview", wrong])
        assert "expected 0.2 to 10 previews a second" in str(refused.exception) + refused.output

"""MCAP files at an address: what is needed of one is read, and a server that fails is a recording that is damaged."""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from mqinfer.bags.extent.remote import path_of
from mqinfer.bags.frame import Frame
from mqinfer.bags.sources import is_live, open_source
from mqinfer.lab.drives.recording import write_drive
from mqinfer.protocol.errors import ConfigError, SourceError
from tests.commands import mqinfer, run_main

LOGIN, SECRET = "me:geheim", "X-Signature=abc%2F123"
FRAMES = 80
STATUS = {"absent": 404, "broken": 500}


class Server(ThreadingHTTPServer):
    """A web server of one file, with parts of it, which can be as servers are that fail."""

    daemon_threads = True
    content = b""
    tag = '"1"'
    fault = ""
    after = 0
    """How many requests are served well before the fault."""
    sent = 0
    stopped: threading.Event

    def handle_error(self, *_: Any) -> None:
        """Print nothing of connections that the other side resets."""


class Handler(BaseHTTPRequestHandler):
    """Sends the part that is asked for, or does as the server is told."""

    server: Server
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Send a part, as far as the server is not told otherwise."""
        server, content = self.server, self.server.content
        fault, server.after = server.fault if server.after <= 0 else "", server.after - 1
        begin, end = map(int, re.findall("[0-9]+", self.headers["Range"]))
        if fault == "login" and (not self.headers.get("Authorization") or not self.path.endswith(SECRET)):
            self._head(401, 0)
        elif fault in STATUS:
            self._head(STATUS[fault], 0)
        elif fault == "moved":
            server.fault = "broken"
            self._head(302, 0, Location=f"http://127.0.0.1:{server.server_port}/gone?{SECRET}")
        elif fault == "all":
            self._head(200, len(content))
            self._send(content)
        elif fault == "silent":
            server.stopped.wait()
        else:
            self._part(fault, begin, end)

    def _part(self, fault: str, begin: int, end: int) -> None:
        total = len(self.server.content) + {"longer": 5000, "shorter": -5000}.get(fault, 0)
        part = (self.server.content + bytes(5000))[begin : min(end + 1, total)]
        if fault == "changed":
            self.server.tag = '"2"'
        half = part[: len(part) // 2] if fault in {"cut", "short"} else part
        place = 0 if fault == "other place" else begin
        headers = {"Content-Range": f"bytes {place}-{place + len(part) - 1}/{total}"}
        self._head(206 if part else 416, len(part if fault == "cut" else half), **headers)
        self._send(half)
        self.close_connection = fault == "cut"

    def _head(self, status: int, size: int, **headers: str) -> None:
        self.send_response(status)
        for name, value in ({"Content-Length": str(size), "ETag": self.server.tag} | headers).items():
            self.send_header(name, value)
        self.end_headers()

    def _send(self, data: bytes) -> None:
        for begin in range(0, len(data), 1 << 16):
            with suppress(ConnectionError):
                self.wfile.write(data[begin : begin + (1 << 16)])
                self.server.sent += min(1 << 16, len(data) - begin)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base's name
        """Print nothing."""


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A drive of eight seconds on this machine, 24 MB: pictures and labels in turn, in many chunks."""
    folder = write_drive(
        tmp_path_factory.mktemp("remote") / "drive", ros=2, frames=FRAMES, seed=3, width=484, height=304
    )
    (file,) = folder.glob("*.mcap")
    return file


@pytest.fixture
def server(here: Path) -> Iterator[Server]:
    """A web server that has it."""
    served = Server(("127.0.0.1", 0), Handler)
    served.content, served.stopped = here.read_bytes(), threading.Event()
    thread = threading.Thread(target=served.serve_forever)
    thread.start()
    yield served
    served.stopped.set()
    served.shutdown()
    thread.join()
    served.server_close()


@pytest.fixture
def url(server: Server) -> str:
    """The address of the recording there."""
    return f"http://127.0.0.1:{server.server_port}/site/drive.mcap"


def read(source: Path | str, found: list[Frame] | None = None, **options: Any) -> list[Frame]:
    """Open, read to the end, close; the frames are in the list also where that fails."""
    found = [] if found is None else found
    with closing(open_source(str(source), **options)) as opened:
        found.extend(opened.frames())
    return found


def keys(frames: list[Frame]) -> list[tuple[object, ...]]:
    """Return what tells frames apart."""
    return [
        (each.source, each.sequence, each.log_time_ns, each.capture_time_ns, bytes(each.image.data)) for each in frames
    ]


def test_all_of_it(here: Path, server: Server, url: str) -> None:
    """Frames are those of the file here, also under a name of their own; little is sent twice."""
    found = keys(read(url))
    assert len(found) == 2 * FRAMES
    assert found == keys(read(here))
    assert server.sent < 1.2 * len(server.content)
    assert {each.source for each in read(f"front={url}")} == {"front/camera/image_raw", "front/camera/labels"}


@pytest.mark.parametrize("start", [0.0, 3.0, 7.5])
def test_a_part_of_it(here: Path, server: Server, url: str, start: float) -> None:
    """A part of the time is the same frames with the same numbers, and what lies before and behind it is not sent."""
    options: dict[str, Any] = {"topics": ["/camera/image_raw"], "start": start, "duration": 0.5}
    found = keys(read(url, **options))
    assert len(found) == 5
    assert found[0][1] == start * 10
    assert found == keys(read(here, **options))
    assert server.sent < len(server.content) / 3


def test_info(here: Path, server: Server, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The table is that of the file here, without what is between the first and the last messages."""
    assert run_main("bag", "info", here) == 0
    expected = capsys.readouterr().out.replace(str(here), url)
    assert run_main("bag", "info", url) == 0
    assert capsys.readouterr().out == expected
    assert server.sent < len(server.content) / 3


FAULTS = [
    ("all", 0, r"the server does not send parts of files \(Range\)"),
    ("other place", 0, r"does not send parts of files"),
    ("absent", 0, r"no such file at this address"),
    ("broken", 0, r"from byte 0 on: ClientResponseError: 500"),
    ("moved", 0, r"ClientResponseError: 500, .*/gone'"),
    ("silent", 0, r"the server was silent for 1 s"),
    ("longer", 0, r"End magic|end magic is invalid"),
    ("shorter", 0, r"end magic is invalid.*was not closed, is cut off"),
    ("short", 0, r"drive\.mcap: .*"),
    ("cut", 6, r"from byte [0-9]+ on: ClientPayloadError"),
    ("silent", 6, r"the server was silent for 1 s"),
    ("short", 6, r"Truncated record"),
    ("changed", 6, r"was written to while it was read"),
    ("longer", 6, r"was written to while it was read"),
    ("absent", 6, r"no such file at this address"),
]


@pytest.mark.parametrize(("fault", "after", "expected"), FAULTS, ids=lambda each: str(each)[:20])
def test_servers_that_fail(
    server: Server, url: str, monkeypatch: pytest.MonkeyPatch, fault: str, after: int, expected: str
) -> None:
    """Each is an error of the source that names it, behind the frames that came; nothing of it is the credentials."""
    if fault == "silent":
        monkeypatch.setattr("mqinfer.remote_files._STALL_S", 1.0)
        monkeypatch.setattr("mqinfer.remote_files._LEAST_RATE", 1 << 30)
    server.fault, server.after = fault, after
    found: list[Frame] = []
    with pytest.raises(SourceError, match=expected) as failed:
        read(f"{url}?{SECRET}".replace("://", f"://{LOGIN}@"), found)
    assert bool(found) == (after > 0)
    assert url in str(failed.value)
    assert "geheim" not in str(failed.value)
    assert "abc" not in str(failed.value)
    assert server.sent < 12 << 20


def test_no_server() -> None:
    """A refused connection is an error of the source."""
    with pytest.raises(SourceError, match=r"http://127\.0\.0\.1:1/x\.mcap: can't be read from byte 0 on: Client"):
        read("http://127.0.0.1:1/x.mcap")


def test_what_is_no_such_recording() -> None:
    """Other bags are refused by name; what else a web server has is a camera; stores take no credentials."""
    for name in ("drive.bag", "drive.db3", "drive.mcap.zst", "drive.bag?X=abc"):
        with pytest.raises(SourceError, match=r"only MCAP files \(\.mcap\) are read; download it") as failed:
            open_source(f"https://me:geheim@host/{name}")
        assert "geheim" not in str(failed.value)
        assert "abc" not in str(failed.value)
    with pytest.raises(SourceError, match="s3://bucket/folder: at an address only MCAP files"):
        open_source("s3://bucket/folder")
    with pytest.raises(ConfigError, match="address s3://bucket: it has credentials") as refused:
        open_source("s3://me:geheim@bucket/drive.mcap")
    assert "geheim" not in str(refused.value)
    for name, expected in {"live": 1, "a.mp4": 1, "a.mcap": 0, "a.mcap?b": 0, "a.mcap/live": 1}.items():
        assert is_live(f"https://host/{name}") == expected


def test_files_by_address(here: Path) -> None:
    """`file://` is an address, too."""
    assert keys(read(here.as_uri(), duration=0.2)) == keys(read(here, duration=0.2))
    assert path_of(here.as_uri()).stat().st_size == here.stat().st_size


def test_a_pipe_by_address(tmp_path: Path) -> None:
    """It may never answer, and nobody opens it."""
    os.mkfifo(tmp_path / "drive.mcap")
    with pytest.raises(SourceError, match="not a file"):
        open_source(f"file://{tmp_path}/drive.mcap")


@pytest.mark.usefixtures("s3")
def test_a_store(here: Path) -> None:
    """Frames of a file on S3 are those of the file here; one that changes, or is absent, is an error."""
    files = import_module("fsspec").filesystem("s3")
    files.makedirs("recordings", exist_ok=True)
    files.put(str(here), "recordings/drive.mcap")
    url = "s3://recordings/drive.mcap"
    assert keys(read(url, start=2, duration=1)) == keys(read(here, start=2, duration=1))
    with pytest.raises(SourceError, match=r"s3://recordings/other\.mcap: no such file at this address"):
        read("s3://recordings/other.mcap")
    with closing(open_source(url)) as opened:
        frames = opened.frames()
        next(frames)
        files.pipe("recordings/drive.mcap", here.read_bytes()[:-1] + b"x")
        with pytest.raises(SourceError, match="was written to while it was read"):
            list(frames)


def test_a_replay_that_goes_on(
    server: Server, url: str, write_echo: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A server that cuts off has the exit code of a damaged file; the run goes on, and names no credentials."""
    models = write_echo("echo", ("image", "UINT8", [-1, 38, 61, 3]))
    out = tmp_path / "out"
    words = ["--topic", "/camera/image_raw", "--model", "echo", "--local", "--repository", models, "--output", out]
    signed = f"{url}?{SECRET}".replace("://", f"://{LOGIN}@")
    server.fault, server.after = "login", 0
    assert run_main("replay", url, *words) == 1
    assert "401" in capsys.readouterr().err
    server.fault, server.after = "cut", 14
    assert run_main("replay", signed, *words) == 3
    first = (out / "results.jsonl").read_text().splitlines()
    assert 0 < len(first) < FRAMES
    server.fault = "login"
    resumed = mqinfer("replay", signed.replace("?", "?again&"), *words, "--resume", "--summary", tmp_path / "s.json")
    assert resumed.returncode == 0, resumed.stderr
    lines = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
    assert [line["sequence"] for line in lines] == [*range(FRAMES)]
    assert json.loads((out / "run.json").read_text())["sources"] == [url]
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    for text in (*written, resumed.stderr.encode(), resumed.stdout.encode(), capsys.readouterr().err.encode()):
        assert b"geheim" not in text
        assert b"Signature" not in text

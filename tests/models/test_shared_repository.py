"""Repositories that many machines share: a model is here whole or not at all, whatever the server sends."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from mqinfer.models.repository import Repository
from mqinfer.models.repository.manifest import MANIFEST, MOST_BYTES, read_manifest
from mqinfer.models.repository.publishing import push, withdraw
from mqinfer.models.repository.remote import Remote
from mqinfer.models.repository.shared import SharedRepository, pull
from mqinfer.protocol.errors import ConfigError, ModelNotLoadable, MqinferError
from tests.commands import run_main

CONTENT = bytes(range(256)) * 3000


class Server(ThreadingHTTPServer):
    """A web server of one folder, which can stop in the middle of a file, or send what has no end."""

    cut = 0
    endless: tuple[bytes, bytes, float] | None = None
    """How an answer begins, what is sent again and again behind it, and seconds between two of them."""
    coding = ""
    stopped: threading.Event
    asked: list[str]


class Handler(SimpleHTTPRequestHandler):
    """Sends files, the longer ones only in part while the server is told so."""

    server: Server

    def do_GET(self) -> None:
        """Send a file."""
        self.server.asked.append(self.path)
        if self.server.endless:
            begin, piece, pause = self.server.endless
            self.wfile.write(b"HTTP/1.1 200 OK\r\n" + begin)
            with suppress(ConnectionError):
                while not self.server.stopped.wait(pause):
                    self.wfile.write(piece)
            self.close_connection = True
            return
        super().do_GET()

    def end_headers(self) -> None:
        """End them behind the coding, as of a server that packs what nobody wants packed."""
        assert self.headers["Accept-Encoding"] == "identity"
        if self.server.coding:
            self.send_header("Content-Encoding", self.server.coding)
        super().end_headers()

    def copyfile(self, source: Any, outputfile: Any) -> None:
        """Send the content, or its first bytes before the connection ends."""
        content = source.read()
        if 0 < self.server.cut < len(content):
            content = content[: self.server.cut]
            self.close_connection = True
        outputfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base's name
        """Print nothing."""


@pytest.fixture
def remote(tmp_path: Path) -> Path:
    """The folder of a shared repository with two versions of the model `net`, and `other`."""
    here = tmp_path / "made"
    for name in ("net/1/model.onnx", "net/1/more.bin", "net/2/model.onnx", "other/1/model.onnx"):
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_bytes(CONTENT + name.encode())
    (here / "net/model.toml").write_text("max_batch_size = 4\n")
    (here / "net/traffic.toml").write_text("")
    url = (tmp_path / "remote").as_uri()
    assert len(push(here / "net", url)) == 4
    assert push(here / "other", url) == ["1/model.onnx"]
    return tmp_path / "remote"


@pytest.fixture
def server(remote: Path) -> Iterator[Server]:
    """A web server of that folder."""
    served = Server(("127.0.0.1", 0), lambda *args: Handler(*args, directory=str(remote)))
    served.asked = []
    served.stopped = threading.Event()
    thread = threading.Thread(target=served.serve_forever)
    thread.start()
    yield served
    served.stopped.set()
    served.shutdown()
    thread.join()
    served.server_close()


@pytest.fixture
def url(server: Server) -> str:
    """The address of that server."""
    return f"http://127.0.0.1:{server.server_port}"


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], SharedRepository]]:
    """Open shared repositories with their copies in a cache of this test's own; they look again when they are told."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    every: list[SharedRepository] = []

    def start(url: str) -> SharedRepository:
        every.append(SharedRepository.cached(url))
        every[-1].open(1e6)
        return every[-1]

    yield start
    for each in every:
        each.close()


def versions(shared: SharedRepository) -> list[str]:
    """Return what a worker would serve of the copy."""
    shared.install()
    return [f"{each.name}/{each.version}" for each in Repository(shared.folder).models()]


def again(shared: SharedRepository) -> str:
    """Look once more, and return what did not arrive."""
    return "; ".join(shared.fetch())


def edit(remote: Path, model: str, **files: object) -> None:
    """Replace what the manifest says of a model."""
    manifest = json.loads((remote / MANIFEST).read_bytes())
    manifest["models"][model] = files
    (remote / MANIFEST).write_text(json.dumps(manifest))


def entry(content: bytes) -> dict[str, object]:
    """Return what a manifest says of a file."""
    return {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}


@pytest.mark.parametrize("by", ["file", "http"])
def test_a_copy_has_all_of_it(by: str, remote: Path, url: str, opened: Callable[[str], SharedRepository]) -> None:
    """Every file arrives with its content; only what changes is downloaded later, and what is removed goes."""
    shared = opened(remote.as_uri() if by == "file" else url)
    assert versions(shared) == ["net/2", "other/1"]
    for path in remote.rglob("*/*.*"):
        assert (shared.folder / path.relative_to(remote)).read_bytes() == path.read_bytes()
    assert not (shared.folder / "net/traffic.toml").exists()
    (shared.folder / "net/traffic.toml").write_text("")
    edit(remote, "net", **{"3/model.onnx": entry(CONTENT)})
    (remote / "net/3").mkdir()
    (remote / "net/3/model.onnx").write_bytes(CONTENT)
    assert again(shared) == ""
    assert sorted(path.name for path in (shared.folder / "net").iterdir()) == ["1", "2", "model.toml", "traffic.toml"]
    assert versions(shared) == ["net/3", "other/1"]
    assert sorted(path.name for path in (shared.folder / "net").iterdir()) == ["3", "traffic.toml"]


def test_nothing_half_is_here(
    remote: Path, server: Server, url: str, opened: Callable[[str], SharedRepository]
) -> None:
    """A server that dies in the middle, an object cut short, or one with another byte: the former version stays."""
    shared = opened(url)
    new = CONTENT * 2
    (remote / "net/3").mkdir()
    edit(remote, "net", **{"3/a.bin": entry(b"a"), "3/model.onnx": entry(new)})
    (remote / "net/3/a.bin").write_bytes(b"a")
    (remote / "net/3/model.onnx").write_bytes(new)
    server.cut = len(CONTENT) + 100  # longer files end in their middle
    assert "model net did not arrive, and stays as it was" in again(shared)
    assert versions(shared) == ["net/2", "other/1"]
    server.cut = 0
    for wrong in (new[:-1], new[:-1] + b"x", new + b"x", b""):
        (remote / "net/3/model.onnx").write_bytes(wrong)
        assert "than the manifest says" in again(shared)
        assert versions(shared) == ["net/2", "other/1"]
    (remote / "net/3/model.onnx").write_bytes(new)
    server.asked.clear()
    assert again(shared) == ""
    assert versions(shared) == ["net/3", "other/1"]
    assert "/net/3/a.bin" not in server.asked  # had arrived before


def test_a_server_that_is_away(remote: Path, opened: Callable[[str], SharedRepository]) -> None:
    """What was downloaded before is served, as long as it is undamaged; without any there is an error."""
    shared = opened(remote.as_uri())
    shared.close()
    (shared.folder / "net/1/more.bin").write_bytes(b"damaged")
    remote.rename(remote.with_name("away"))
    assert versions(opened(remote.as_uri())) == ["other/1"]
    with pytest.raises(ConfigError, match="mqinfer models push"):
        opened(remote.with_name("never").as_uri())


def test_two_workers_of_a_machine(remote: Path, opened: Callable[[str], SharedRepository]) -> None:
    """Each has a copy of its own; one that starts later gets that of one that has ended, and downloads nothing."""
    first, second = opened(remote.as_uri()), opened(remote.as_uri())
    assert first.folder != second.folder
    first.close()
    assert opened(remote.as_uri()).folder == first.folder


@pytest.mark.parametrize(
    "name",
    [
        *("../up", "/etc/passwd", "1/../../x", "1//x", "1/./x", "1/a\\b", "1/\x1b[2J", ".hidden", "1/.x", "1/a?b"),
        *("1/%2e%2e/x", "traffic.toml", "./1/x", "1/" + "n" * 300, ""),
    ],
)
def test_hostile_names(name: str, remote: Path, opened: Callable[[str], SharedRepository]) -> None:
    """A name that leads out of the model's folder is refused by its name, before anything is downloaded."""
    edit(remote, "net", **{name: entry(b"")})
    with pytest.raises(ConfigError) as refused:
        opened(remote.as_uri())
    assert str(refused.value).isprintable()
    assert MANIFEST in str(refused.value)


def test_hostile_manifests() -> None:
    """Wrong types, names of models and numbers, and nesting are refused in one line."""
    wrong: list[dict[str, Any]] = [
        {"../up": {}},
        {"": {}},
        {"a": {"x": {"size": -1, "sha256": "0" * 64}}},
        {"a": {"x": {"size": 1 << 60, "sha256": "0" * 64}}},
        {"a": {"x": {"size": 1, "sha256": "../../x"}}},
        {"a": {str(number): entry(b"") for number in range(5000)}},
        {f"m{number}": {} for number in range(2000)},
    ]
    for models in wrong:
        with pytest.raises(ConfigError, match="here/m"):
            read_manifest(json.dumps({"models": models}).encode(), "here/m")
    for content in (b"[" * 100_000, b"\xff", b'{"models": {"a": []}}', b'{"format": 2}', b" " * (MOST_BYTES + 1)):
        with pytest.raises(ConfigError, match="here/m"):
            read_manifest(content, "here/m")


def test_sizes_are_bounded(remote: Path, server: Server, url: str, opened: Callable[[str], SharedRepository]) -> None:
    """More than the disk has room for is not begun; a manifest without an end is refused."""
    shared = opened(url)
    edit(remote, "net", **{"3/model.onnx": {"size": 1 << 40, "sha256": "0" * 64}})
    server.asked.clear()
    assert "bytes to download" in again(shared)
    assert server.asked == [f"/{MANIFEST}"]
    server.endless = b"\r\n", b" " * 65536, 0
    with pytest.raises(ConfigError, match="more than"):
        again(shared)
    assert versions(shared) == ["net/2", "other/1"]


@pytest.mark.parametrize(
    ("endless", "expected"),
    [
        ((b"", b"A: b\r\n" * 100, 0.0), "Too many headers"),
        ((b"A: ", b"b" * 65536, 0.0), "Got more than"),
        ((b"A: ", b"b", 0.1), "bytes a second"),
        ((b"\r\n", b"b", 0.1), "bytes a second"),
        ((b"\r\n", b"", 0.1), "bytes a second"),
        ((b"Transfer-Encoding: chunked\r\n\r\n1;", b"a" * 65536, 0.0), "bytes a second"),
    ],
    ids=["headers", "header", "slow header", "slow", "silent", "chunk"],
)
def test_time_is_bounded(
    endless: tuple[bytes, bytes, float],
    expected: str,
    server: Server,
    url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither a head nor a body without an end holds up who asks, however slowly it goes on."""
    monkeypatch.setattr("mqinfer.remote_files._STALL_S", 1.0)
    monkeypatch.setattr("mqinfer.remote_files._LEAST_RATE", 1 << 30)
    server.endless = endless
    with pytest.raises(ModelNotLoadable, match=expected):
        pull(url, tmp_path / "here")


def test_what_is_packed_stays_so(
    remote: Path, server: Server, url: str, opened: Callable[[str], SharedRepository]
) -> None:
    """Four kilobytes may be four megabytes: nothing is unpacked, whatever coding a server says that it has."""
    packed = gzip.compress(bytes(4 << 20))
    (remote / "net/3").mkdir()
    (remote / "net/3/model.onnx").write_bytes(packed)
    edit(remote, "net", **{"3/model.onnx": entry(packed)})
    server.coding = "gzip"
    shared = opened(url)
    assert versions(shared) == ["net/3", "other/1"]
    assert (shared.folder / "net/3/model.onnx").read_bytes() == packed


def test_names_within_each_other(remote: Path, opened: Callable[[str], SharedRepository]) -> None:
    """A file and a folder of one name, or a name like that of a part, bring no half of a model."""
    shared = opened(remote.as_uri())
    for names in (("3/a", "3/a/b"), ("3/a", "3/a.part")):
        for name in names:
            with suppress(OSError):
                (remote / "net" / name).parent.mkdir(exist_ok=True)
                (remote / "net" / name).write_bytes(b"x")
        edit(remote, "net", **{name: entry(b"x") for name in names})
        problem = again(shared)
        shared.install()
        here = {path.relative_to(shared.folder / "net").as_posix() for path in (shared.folder / "net").rglob("3/*")}
        assert here == (set() if problem else set(names))


def test_push_and_its_refusals(remote: Path, tmp_path: Path) -> None:
    """A version never changes its content; versions of others stay; links and folders without versions are refused."""
    url, made = remote.as_uri(), tmp_path / "made"
    assert push(made / "net", url) == []
    (made / "net/1/model.onnx").write_bytes(b"new")
    with pytest.raises(ConfigError, match="has version 1 of net with another content"):
        push(made / "net", url)
    (made / "net/1").rename(made / "net/7")
    assert push(made / "net", url) == ["7/model.onnx", "7/more.bin"]
    names = json.loads((remote / MANIFEST).read_bytes())["models"]["net"]
    assert {name.partition("/")[0] for name in names} == {"1", "2", "7", "model.toml"}
    (made / "other/1/link").symlink_to("/etc/passwd")
    with pytest.raises(ModelNotLoadable, match="a link"):
        push(made / "other", url)
    with pytest.raises(ConfigError, match="no version"):
        push(made / "net/2", url)


def test_pull_keeps_what_is_here(remote: Path, tmp_path: Path) -> None:
    """A user's folder gets what it lacks; what is only there stays, and what differs is refused by its name."""
    url, mine = remote.as_uri(), tmp_path / "mine"
    for name, content in (("own/1/model.onnx", b"own"), ("net/9/model.onnx", b"nine"), ("other/1/model.onnx", b"mine")):
        (mine / name).parent.mkdir(parents=True)
        (mine / name).write_bytes(content)
    with pytest.raises(ModelNotLoadable, match="other: 1 has another content here"):
        pull(url, mine)
    assert (mine / "other/1/model.onnx").read_bytes() == b"mine"
    pull(url, mine, ["net"])
    assert sorted(path.name for path in (mine / "net").iterdir()) == ["1", "2", "9", "model.toml"]
    assert sorted(path.name for path in mine.iterdir()) == ["net", "other", "own"]
    with pytest.raises(ConfigError, match="no model nothing"):
        pull(url, mine, ["nothing"])


@pytest.mark.parametrize("url", ["ftp://h/x", "s3://key:secret@bucket", "https://h/x?token=secret", "://x"])
def test_wrong_addresses(url: str) -> None:
    """Another scheme, or credentials in the address, which would stand in logs, are refused without showing these."""
    with pytest.raises(MqinferError) as refused:
        Remote(url)
    assert "secret" not in str(refused.value)


def test_a_version_that_is_withdrawn(remote: Path, tmp_path: Path) -> None:
    """It leaves manifest, address and copy, the configuration with the last one; what is not there is refused."""
    shared = SharedRepository(Remote(remote.as_uri()), tmp_path / "copy")
    shared.fetch()
    shared.install()
    withdraw(remote.as_uri(), "net", 1)
    shared.fetch()
    shared.install()
    assert [(each.name, each.version) for each in Repository(tmp_path / "copy").models()] == [("net", 2), ("other", 1)]
    assert not list(remote.glob("net/1/*"))
    for version in (1, 7):
        with pytest.raises(ConfigError, match=f"no version {version} of model 'net' in it; there are: 2"):
            withdraw(remote.as_uri(), "net", version)
    withdraw(remote.as_uri(), "net", 2)
    found = read_manifest((remote / MANIFEST).read_bytes(), "here")
    assert (list(found.models), list(remote.glob("net/*.toml"))) == (["other"], [])
    with pytest.raises(ConfigError, match="no version 2 of model 'net' in it; there are: none"):
        withdraw(remote.as_uri(), "net", 2)


def test_a_manifest_that_is_a_pipe(remote: Path, tmp_path: Path) -> None:
    """It may never answer, and nobody opens it."""
    (remote / MANIFEST).unlink()
    os.mkfifo(remote / MANIFEST)
    with pytest.raises(ModelNotLoadable, match="not a file"):
        pull(f"file://{remote}", tmp_path / "here")


def test_two_pulls_into_one_folder(remote: Path, tmp_path: Path) -> None:
    """The second one waits, and finds all of it."""
    with ThreadPoolExecutor(4) as pool:
        for each in [pool.submit(pull, f"file://{remote}", tmp_path / "here") for _ in range(4)]:
            each.result()
    assert {path.name for path in (tmp_path / "here").iterdir()} == {path.name for path in remote.iterdir()} - {
        MANIFEST
    }


def test_files_that_change_while_they_are_pushed(remote: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The manifest would say what nobody can download, under a number that is taken then."""
    folder, upload = tmp_path / "new", Remote.upload
    (tmp_path / "made" / "net").rename(folder)

    def uploaded(self: Remote, name: str, source: BinaryIO) -> None:
        upload(self, name, source)
        (folder / "1" / "model.onnx").write_bytes(b"changed")

    monkeypatch.setattr(Remote, "upload", uploaded)
    with pytest.raises(ConfigError, match="its files changed while they were pushed"):
        push(folder, f"file://{remote}")
    assert "new" not in Remote(f"file://{remote}").manifest().models
    monkeypatch.undo()
    push(folder, f"file://{remote}")


def test_what_the_system_refuses_is_an_error_in_words(
    remote: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever file it is, and wherever it is met: its name, the reason and the exit code."""
    (tmp_path / "here").touch()
    assert run_main("models", "pull", f"file://{remote}", tmp_path / "here") == 1
    assert f"error: {tmp_path / 'here'}: File exists; check" in capsys.readouterr().err

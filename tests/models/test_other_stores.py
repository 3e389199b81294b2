"""Shared repositories at S3 over TLS, and at Google's and Azure's stores where a server of each is installed."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mqinfer.broker.mosquitto.certificates import Authority
from mqinfer.models.repository.publishing import push, withdraw
from mqinfer.models.repository.shared import pull
from mqinfer.protocol.errors import ModelNotLoadable
from tests.patience import wait_until
from tests.ports import free_port

_ACCOUNT = "devstoreaccount1"
_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Of Azurite, which has them in its documents; they are no secret."""


@pytest.fixture
def gs(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A bucket of a server of Google's interface."""
    gcsfs = pytest.importorskip("gcsfs")
    server = pytest.importorskip("gcp_storage_emulator.server").create_server("127.0.0.1", 0, in_memory=True)
    server.start()
    port = server._api._httpd.server_port  # the one that was free
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{port}")
    gcsfs.GCSFileSystem(token="anon").mkdir("bucket")  # noqa: S106 - a word of gcsfs
    yield "gs://bucket/site"
    server.stop()


@pytest.fixture
def az(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A container of a server of Azure's interface."""
    adlfs = pytest.importorskip("adlfs")
    program = shutil.which("azurite-blob") or pytest.skip("azurite-blob is not installed")
    port = free_port()
    said = f"DefaultEndpointsProtocol=http;AccountName={_ACCOUNT};AccountKey={_KEY};"
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", f"{said}BlobEndpoint=http://127.0.0.1:{port}/{_ACCOUNT};")
    words = [program, "--silent", "--inMemoryPersistence", "--skipApiVersionCheck", "--blobPort", str(port)]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL) as process:
        wait_until(lambda: _listens(port))
        adlfs.AzureBlobFileSystem(connection_string=os.environ["AZURE_STORAGE_CONNECTION_STRING"]).mkdir("bucket")
        yield "az://bucket/site"
        process.kill()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """A bucket of a server of S3 with TLS, whose authority the environment names."""
    s3fs = pytest.importorskip("s3fs")
    moto, serving = pytest.importorskip("moto.server"), pytest.importorskip("werkzeug.serving")
    made = Authority.make()
    pair = Authority(made).broker(["127.0.0.1"], 1)
    files = {"ca.crt": made.certificate, "server.crt": pair.certificate, "server.key": pair.key}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    application = moto.DomainDispatcherApplication(moto.create_backend_app)
    tls = str(tmp_path / "server.crt"), str(tmp_path / "server.key")
    server = serving.make_server("127.0.0.1", 0, application, threaded=True, ssl_context=tls)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"https://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("AWS_CA_BUNDLE", str(tmp_path / "ca.crt"))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    s3fs.S3FileSystem.clear_instance_cache()  # they have the addresses of the server that was there at their start
    s3fs.S3FileSystem().makedirs("tls", exist_ok=True)  # the server of another test keeps its own
    s3fs.S3FileSystem.clear_instance_cache()
    yield "s3://tls/site"
    s3fs.S3FileSystem.clear_instance_cache()
    server.shutdown()
    thread.join()
    server.server_close()


def test_an_authority_that_nobody_named(s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server whose certificate is not trusted gets no request, and the error says why."""
    monkeypatch.delenv("AWS_CA_BUNDLE")
    with pytest.raises(ModelNotLoadable, match="certificate verify failed"):
        pull(s3, tmp_path / "out")


@pytest.mark.parametrize("store", ["s3", "gs", "az"])
def test_a_store(request: pytest.FixtureRequest, tmp_path: Path, store: str, write: Callable[[Path], None]) -> None:
    """What was pushed is pulled, one that was withdrawn is gone, and a changed file is refused."""
    url: str = request.getfixturevalue(store)
    here = tmp_path / "net"
    write(here / "1" / "model.onnx")
    write(here / "model.toml")
    assert push(here, url) == ["1/model.onnx", "model.toml"]
    assert push(here, url) == []
    write(here / "2" / "model.onnx")
    assert push(here, url) == ["2/model.onnx"]
    withdraw(url, "net", 1)
    pull(url, tmp_path / "out")
    found = {path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("*.*")}
    assert found == {"net/2/model.onnx", "net/model.toml"}
    assert (tmp_path / "out/net/2/model.onnx").read_bytes() == (here / "2/model.onnx").read_bytes()
    fsspec = pytest.importorskip("fsspec")
    fsspec.filesystem(store).pipe(f"{url}/net/2/model.onnx", b"another")
    with pytest.raises(ModelNotLoadable, match="than the manifest says"):
        pull(url, tmp_path / "again")


@pytest.fixture
def write() -> Callable[[Path], None]:
    """Write some bytes into a new file."""

    def write(path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.urandom(1 << 20) if path.suffix == ".onnx" else b"max_batch_size = 4\n")

    return write

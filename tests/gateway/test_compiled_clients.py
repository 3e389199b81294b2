"""Triton's clients in C++ and Go, as their project publishes them, built with the system's packages.

`MQINFER_SAMPLES` names a folder with clones of `client` and `common` of triton-inference-server. Debian 12 has what it
takes: g++ protobuf-compiler-grpc libgrpc++-dev libprotobuf-dev libcurl4-openssl-dev rapidjson-dev for C++, golang-go
golang-google-grpc-dev for Go.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.gateway.conftest import Fleet, serve_repository
from tests.gateway.models import build_repository
from tests.gateway.test_process import running, settings_of

pytestmark = [
    pytest.mark.full,
    pytest.mark.timeout(1800),
    pytest.mark.skipif("MQINFER_SAMPLES" not in os.environ, reason="MQINFER_SAMPLES names no clones of the clients"),
]
HTTP = ["http_infer_client", "http_async_infer_client", "http_string_infer_client", "http_health_metadata"]
GRPC = [
    *("grpc_infer_client", "grpc_async_infer_client", "grpc_string_infer_client", "grpc_health_metadata"),
    *("grpc_keepalive_client", "grpc_custom_args_client"),
]
SHARED = ("common", "json_utils", "cencode", "shm_utils")
"""Sources of the C++ library that both of its clients need."""


def run(command: list[str | Path], folder: Path, **environment: str) -> str:
    """Run a program; fail with what it printed."""
    done = subprocess.run(
        command, cwd=folder, env=os.environ | environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    return done.stdout


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """The examples by name: `http_infer_client` and others of C++, and `go`."""
    samples, folder = Path(os.environ["MQINFER_SAMPLES"]), tmp_path_factory.mktemp("clients")
    protobuf, cpp = samples / "common" / "protobuf", samples / "client" / "src" / "c++"
    messages = ["grpc_service.proto", "model_config.proto", "health.proto"]
    run(
        [
            *("protoc", "-I", protobuf, "--cpp_out=.", "--grpc_out=."),
            *("--plugin=protoc-gen-grpc=/usr/bin/grpc_cpp_plugin", *messages),
        ],
        folder,
    )
    # Optimised, as its releases: http_client.cc has libcurl write a `long` into a `uint32_t`, and may crash else.
    compiler: list[str | Path] = [
        *("g++", "-std=c++17", "-O2", "-w", "-DTRITON_ENABLE_ZLIB", "-I", "."),
        *("-I", samples / "common" / "include", "-I", cpp / "library"),
    ]
    generated = [
        folder / f"{name}.cc" for name in ("grpc_service.pb", "grpc_service.grpc.pb", "model_config.pb", "health.pb")
    ]
    for source in (*generated, *(cpp / "library" / f"{name}.cc" for name in (*SHARED, "http_client", "grpc_client"))):
        run([*compiler, "-c", source], folder)
    shared = [f"{name}.o" for name in SHARED]
    of_grpc = ["grpc_client.o", *(f"{source.stem}.o" for source in generated)]
    libraries = run(["pkg-config", "--libs", "grpc++", "protobuf"], folder).split()
    for name in HTTP:
        link = ["http_client.o", *shared, "-lcurl", "-lz", "-lpthread", "-lrt", "-o", name]
        run([*compiler, cpp / "examples" / f"simple_{name}.cc", *link], folder)
    for name in GRPC:
        link = [*of_grpc, *shared, *libraries, "-labsl_synchronization", "-lrt", "-o", name]
        run([*compiler, cpp / "examples" / f"simple_{name}.cc", *link], folder)
    build_go(samples, folder)
    return {name: folder / name for name in (*HTTP, *GRPC, "go")}


def build_go(samples: Path, folder: Path) -> None:
    """Build the example in Go, with the generator of Debian's own version of its packages."""
    package = "github.com/triton-inference-server/client/src/grpc_generated/go/grpc-client"
    paths = {
        "GO111MODULE": "off",
        "GOPATH": f"{folder / 'gopath'}:/usr/share/gocode",
        "GOCACHE": str(folder / "gocache"),
    }
    run(["go", "build", "-o", "protoc-gen-go", "github.com/golang/protobuf/protoc-gen-go"], folder, **paths)
    for source in (samples / "common" / "protobuf").glob("*.proto"):
        (folder / source.name).write_text(f'{source.read_text()}\noption go_package = "{package}";\n')
    (folder / "gopath" / "src").mkdir(parents=True)
    out = ["--plugin=./protoc-gen-go", "--go_out=plugins=grpc:gopath/src"]
    run(["protoc", "-I", ".", *out, "grpc_service.proto", "model_config.proto", "health.proto"], folder)
    example = samples / "client" / "src" / "grpc_generated" / "go" / "grpc_simple_client.go"
    run(["go", "build", "-o", "go", example], folder, **paths)


@pytest.fixture(scope="module")
def served(broker_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Serve the models that the examples ask for."""
    repository = build_repository(tmp_path_factory.mktemp("compiled"))
    with serve_repository(repository, broker_url, "compiled", ["simple", "simple_string"]) as fleet:
        yield fleet


async def test_they_run_unmodified(programs: Mapping[str, Path], served: Fleet, unique: Callable[[str], str]) -> None:
    """Those in C++ check the answers themselves, and fail if one is wrong; that in Go prints sums."""
    async with running(served, settings_of(server_name="triton"), unique("gw")) as gateway:
        for name, program in programs.items():
            address = gateway.http.removeprefix("http://") if name in HTTP else gateway.grpc
            output = await asyncio.to_thread(run, [program, "-u", address], program.parent)
            assert name != "go" or "15 - 1 = 14" in output, output

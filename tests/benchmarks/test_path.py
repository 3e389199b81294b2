import os
import threading
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from benchmarks.path import PathOptions, measure_path
from mqinfer.bench.contestants import SocketFloor
from mqinfer.bench.processor_time import CpuMeter, seconds_of
from mqinfer.bench.workloads import WORKLOADS, Workload, fixed_shape, load_workloads
from mqinfer.broker.mosquitto.server import MosquittoServer
from mqinfer.lab.load import Stopwatch
from mqinfer.lab.machine import describe_interpreter
from mqinfer.lab.zoo import build
from mqinfer.protocol.errors import ConfigError
from mqinfer.protocol.types import Timings

ROLES = {
    "direct": {"client"},
    "bare grpc.aio": {"client", "server"},
    "mqinfer": {"client", "broker", "server"},
    "socket floor": {"client", "broker", "server"},
    "gateway": {"client", "gateway", "server", "broker"},
    "bare grpc.aio, TLS": {"client", "server"},
    "mqinfer, TLS": {"client", "broker", "server"},
}


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the bench's models."""
    folder = tmp_path_factory.mktemp("models")
    build(folder, list(WORKLOADS.values()))
    return folder


def small(repository: Path) -> Workload:
    """Load the one workload."""
    (workload,) = load_workloads(repository, ["small"])
    return workload


@pytest.mark.full
@pytest.mark.broker
@pytest.mark.slow
def test_all_contestants_are_measured(repository: Path) -> None:
    """Two short rounds over real processes, also over TLS: every figure is there."""
    lines: list[str] = []
    options = PathOptions(rounds=2, seconds=0.05, callers=2, warm_up_seconds=0.05, tls=True)
    measurement = measure_path(load_workloads(repository, ["small"]), options, lines.append)
    assert [(each.contestant, len(each.rounds)) for each in measurement.series] == [(name, 2) for name in ROLES]
    for series in measurement.series:
        assert series.rate > 0
        assert series.latency_ms > 0
        assert set(series.rounds[0].cpu_s) == ROLES[series.contestant]
        assert bool(series.rounds[0].stages_ms) == series.contestant.startswith("mqinfer")
    assert measurement.settings["rounds"] == "2"
    assert [each.what for each in measurement.calls] == ["small, one caller", "small, 2 callers"]
    assert any("2. mqinfer: " in line for line in lines)


def test_models_take_and_give_what_the_targets_speak_of(repository: Path) -> None:
    """Types and shapes of every workload; the outputs are neither constant nor overflowing."""
    found = {
        workload.name: (workload.array.dtype.name, workload.array.shape, workload.expected.shape)
        for workload in load_workloads(repository)
    }
    assert found == {
        "small": ("float32", (1, 16), (1, 16)),
        "frame": ("uint8", (1, 608, 968, 3), (1, 608, 968)),
        "classifier": ("float32", (1, 3, 224, 224), (1, 1000)),
        "vae": ("float32", (1, 100, 3), (1, 100, 3)),
    }
    for workload in load_workloads(repository):
        assert 0.01 < float(workload.expected.astype(np.float64).std()) < 1000


@pytest.mark.broker
@pytest.mark.slow
@pytest.mark.parametrize("name", ["small", "frame"])
def test_the_socket_floor_keeps_requests_and_replies_in_order(repository: Path, name: str) -> None:
    """Many requests in flight, with payloads in one piece and in two: the last reply is still that of the model."""
    (workload,) = load_workloads(repository, [name])
    with MosquittoServer() as broker, closing(SocketFloor(workload, broker.port, broker.pid)) as floor:
        drive = floor.drive(4, 1.0)  # a busy machine took 0.33 s for four frames
        (output,) = floor.infer().values()
    assert len(drive.latencies_ns) > 4
    assert np.allclose(output, workload.expected, rtol=1e-4, atol=1e-4)


def test_unknown_or_missing_workloads_are_refused(tmp_path: Path) -> None:
    """The message lists the names, or names the folder."""
    with pytest.raises(ConfigError, match="'huge'; expected one of small, frame, classifier, vae"):
        load_workloads(tmp_path, ["huge"])
    with pytest.raises(ConfigError, match=r"no ONNX model in .*small_16"):
        load_workloads(tmp_path, ["small"])


def test_fixed_shape_puts_one_for_any_size() -> None:
    """Names, None and -1 all mean any size."""
    assert fixed_shape(["n", None, -1, 3]) == (1, 1, 1, 3)


@pytest.mark.parametrize("options", [(0, 1.0, 8), (1, 0.0, 8), (1, 1.0, 1)])
def test_settings_that_measure_nothing_are_refused(options: tuple[int, float, int]) -> None:
    """No rounds, no time, or one caller where many are meant."""
    with pytest.raises(ConfigError, match="measure nothing"):
        PathOptions(*options)


def test_stopwatch_collects_laps() -> None:
    """One latency a lap, and the timings in their order."""
    watch = Stopwatch(seconds=1000)
    assert not watch.is_over()
    watch.lap(watch.started, [Timings(inference=1)])
    watch.lap(watch.started)
    drive = watch.drive()
    assert (len(drive.latencies_ns), drive.timings) == (2, (Timings(inference=1),))
    assert drive.rate > 0


def test_cpu_meter_sees_this_process_work() -> None:
    """A tenth of a second of arithmetic in another thread is counted for both readings of this process."""
    meter = CpuMeter({"same": os.getpid()})
    before = seconds_of(os.getpid())
    thread = threading.Thread(target=_work, name="mqinfer-test-work")
    thread.start()
    thread.join()
    spent = meter.spent()
    assert spent["client"] >= 0.1
    assert spent["same"] == pytest.approx(spent["client"], abs=0.05)
    assert seconds_of(os.getpid()) > before


@pytest.mark.parametrize(
    ("flags", "schemes", "expected"),
    [
        ("'--enable-optimizations' '--with-lto'", ("posix_prefix",), "(optimised by profile)"),
        ("-O3 -fprofile-use", ("posix_prefix",), "(optimised by profile)"),
        ("'--enable-shared'", ("deb_system", "posix_prefix"), "(optimised by profile, as Debian builds it)"),
        ("'--enable-shared'", ("posix_prefix",), "(not optimised by profile)"),
    ],
)
def test_the_interpreter_is_described(
    monkeypatch: pytest.MonkeyPatch, flags: str, schemes: tuple[str, ...], expected: str
) -> None:
    """By what its build recorded, or by being Debian's."""
    monkeypatch.setattr("sysconfig.get_config_var", lambda _: flags)
    monkeypatch.setattr("sysconfig.get_scheme_names", lambda: schemes)
    assert describe_interpreter().endswith(expected)


def test_a_process_that_is_gone_is_named() -> None:
    """A contestant that crashed is one clear message and no traceback of the file system."""
    with pytest.raises(ConfigError, match="process 4194305 can't be read"):  # above Linux's largest number
        seconds_of(4_194_305)


def _work() -> None:
    started = time.thread_time()
    while time.thread_time() - started < 0.1:
        pass

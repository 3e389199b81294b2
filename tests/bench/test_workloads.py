import os
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from mqinfer.bench.processes import CpuMeter, seconds_of
from mqinfer.bench.workloads import WORKLOADS, Workload, load_workloads, record_workload
from mqinfer.lab.drives.recording import write_drive
from mqinfer.lab.machine import describe_interpreter
from mqinfer.lab.zoo import build
from mqinfer.lab.zoo.onnx_graph import OnnxGraph
from mqinfer.protocol.errors import ConfigError, ModelNotLoadable, SourceError


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the bench's models."""
    folder = tmp_path_factory.mktemp("models")
    build(folder, list(WORKLOADS.values()))
    return folder


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


def test_a_saved_workload_is_read_by_another_process(repository: Path, tmp_path: Path) -> None:
    """With its frames, which requests carry in turn."""
    (small,) = load_workloads(repository, ["small"])
    small.save(tmp_path)
    read = Workload.load(tmp_path)
    assert (read.model, read.path, read.input, read.output) == (small.model, small.path, small.input, small.output)
    assert np.array_equal(read.frame(7), small.array)
    assert np.array_equal(read.expected, small.expected)


def test_a_recording_needs_frames_and_a_model_that_takes_them(repository: Path, tmp_path: Path) -> None:
    """The message names what is missing: the model, its pictures, the frames."""
    with pytest.raises(ModelNotLoadable, match=r"huge: there is no such model .*frame_mask"):
        record_workload(str(tmp_path), "huge", repository, 2)
    with pytest.raises(ConfigError, match="'small_16' takes no colour pictures"):
        record_workload(str(tmp_path), "small_16", repository, 2)
    with pytest.raises(SourceError, match=str(tmp_path)):
        record_workload(str(tmp_path), "frame_mask", repository, 2)


def test_frames_are_prepared_as_the_model_takes_them(tmp_path: Path) -> None:
    """A network of one channel in floats gets each frame so, not as a picture in colours."""
    graph, folder = OnnxGraph("float32", (1, 1, 28, 28)), tmp_path / "grey"
    graph.node("Neg", "input", output="negative")
    graph.add_output("negative", "float32", (1, 1, 28, 28))
    (folder / "1").mkdir(parents=True)
    graph.write(folder / "1" / "model.onnx")
    (folder / "model.toml").write_text('[image]\ninput = "input"\nwidth = 28\nheight = 28\ncolour = "mono"\n')
    drive = write_drive(tmp_path / "drive", ros=2, frames=3, seed=2, width=64, height=64)
    found = record_workload(str(drive), "grey", tmp_path, 3)
    assert [(each.dtype.name, each.shape) for each in found.frames] == [("float32", (1, 1, 28, 28))] * 3
    assert np.array_equal(found.expected, np.negative(found.frames[0], dtype=np.float32))
    assert not np.array_equal(found.frames[0], found.frames[2])


def test_unknown_or_missing_workloads_are_refused(tmp_path: Path) -> None:
    """The message lists the names, or names the folder."""
    with pytest.raises(ConfigError, match="'huge'; expected one of small, frame, classifier, vae"):
        load_workloads(tmp_path, ["huge"])
    with pytest.raises(ModelNotLoadable, match="small_16: there is no such model"):
        load_workloads(tmp_path, ["small"])


def test_cpu_meter_sees_this_process_work() -> None:
    """A tenth of a second of arithmetic in another thread is counted, and the memory of the process."""
    meter = CpuMeter({"worker": [os.getpid()]})
    before = seconds_of(os.getpid())
    thread = threading.Thread(target=_work, name="mqinfer-test-work")
    thread.start()
    thread.join()
    spent = meter.spent()
    assert spent["worker"] >= 0.08  # in hundredths of a second
    assert meter.peaks()["worker"] > 1 << 20
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

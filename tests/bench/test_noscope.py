"""Document 004: the queue in simulated time, thresholds from data, rows from known figures, and a small run."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from mqinfer.bench.seeds.experiment import Bench
from mqinfer.bench.seeds.formulas import closed_loop_s
from mqinfer.bench.seeds.noscope import table_1
from mqinfer.bench.seeds.noscope.headline import (
    ALONE,
    EVERY,
    NO_DIFFERENCE,
    Component,
    Setting,
    SettingResult,
    rows_of,
    run_pinned,
    settings_of,
)
from mqinfer.bench.seeds.noscope.preparing import choose_thresholds
from mqinfer.bench.seeds.noscope.scene import read_labels, read_scene
from mqinfer.bench.seeds.rows import read_published
from mqinfer.cli.bench import app
from mqinfer.judging.settings import CascadeSettings, DifferenceDetector, Reference, RunsAt, SmallModel
from mqinfer.lab.cascade.scores import Scores
from mqinfer.lab.cascade.simulation import Pass
from mqinfer.protocol.errors import ConfigError, ModelFailed
from mqinfer.protocol.types import Stage

SMALL = SmallModel("small", 0.9, 0.1, repository=Path("models"))
CASCADE = CascadeSettings(Reference("reference"), "car", DifferenceDetector(1.0), SMALL)
Services = st.lists(st.floats(0, 10), min_size=1, max_size=40)


def drawn_by(seed: int | None) -> Random | None:
    """Return what draws servers; None for the freest one."""
    return None if seed is None else Random(seed)  # noqa: S311 - no secret


@given(Services, st.integers(1, 8), st.integers(1, 8), st.floats(0, 1), st.none() | st.integers(0, 9))
def test_a_closed_loop_takes_no_less_than_its_parts(
    services: list[float], servers: int, window: int, client_s: float, seed: int | None
) -> None:
    """Neither than what the servers share, nor than the longest request, nor than the client; nor more than all."""
    found = closed_loop_s(services, servers, window, client_s=client_s, draw=drawn_by(seed))
    client, served = client_s * len(services), sum(services)
    assert found >= max(served / min(servers, window), *services, client) * (1 - 1e-9)
    assert found <= (served + client) * (1 + 1e-9)
    if window == 1 and not client_s:
        assert found == pytest.approx(served)


def test_two_in_flight_gain_what_was_simulated_for_the_document() -> None:
    """With the server drawn at random 1.48, 1.74 and 1.88; with the freest one 2 from two servers on."""
    services = [1.0] * 20_000
    alone = closed_loop_s(services, 1, 2)
    drawn = [alone / closed_loop_s(services, servers, 2, draw=drawn_by(3)) for servers in (2, 4, 8)]
    assert drawn == pytest.approx([1.48, 1.74, 1.88], abs=0.02)
    assert [alone / closed_loop_s(services, servers, 2) for servers in (1, 2, 8)] == [1, 2, 2]


@pytest.mark.parametrize(("frames", "share"), table_1.SHARES.items())
def test_frames_for_the_reference_are_prescribed(frames: int, share: int) -> None:
    """As many as in Table 1, each a frame of the run, and the same ones in each run."""
    found = table_1.prescribed(frames, share)
    assert len(found) == share
    assert found <= set(range(frames))
    assert found == table_1.prescribed(frames, share)


def test_the_fit_of_the_published_seconds_is_the_published_fit() -> None:
    """A, T_sc and A/N_R of each column, and the two exact solutions that the document prints."""
    published = {row.row: row.published for row in read_published() if row.table == "004.T1"}
    by = table_1.Asker("", False, lambda _: lambda _: table_1.Asked(0, 0.0), "")
    for count in table_1.SHARES:
        seconds = {servers: float(published[f"N_F={count} N_S={servers}"] or 0) for servers in (1, 2, 4, 8)}
        found = {row.row: row.measured for row in table_1.law_rows(count, by, seconds)}
        errors = {"A": 0.6, "T_sc": 0.006, "A/N_R": 0.02, "8 against 1": 0.006}
        errors |= dict.fromkeys(("T_n + T_c.q", "T_s.q + T_s.c"), 1.2)
        for name, error in errors.items():
            known = published.get(f"N_F={count} {name}")
            assert known is None or found[f"N_F={count} {name}"] == pytest.approx(known, abs=error), name


def scores_of(confidences: Sequence[float], reference: Sequence[int], levels: Sequence[int]) -> Scores:
    """Return scores of frames that are one grey each."""
    pictures = np.stack([np.full((50, 50, 3), level, np.uint8) for level in levels])
    return Scores(pictures, np.array(confidences, np.float32), np.array(reference, np.uint8)[:, None])


def test_the_frames_of_which_the_small_model_is_least_sure_go_to_the_reference() -> None:
    """No more than keep the agreement: 5 % where it is always right, and as many as it is wrong about."""
    rng = np.random.default_rng(1)
    reference = rng.integers(0, 2, 400)
    sure = np.where(reference, 0.999, 0.001) + rng.uniform(-0.0009, 0.0009, 400)
    levels = rng.integers(0, 256, 400)
    wrong = sure.copy()
    doubted = rng.choice(400, 50, replace=False)
    wrong[doubted] = np.where(reference[doubted], 0.3, 0.7) + rng.uniform(-0.1, 0.1, 50)
    for confidences, low, high in ((sure, 0.05, 0.06), (wrong, 0.10, 0.15)):
        scores = scores_of(confidences.tolist(), reference.tolist(), levels.tolist())
        chosen = choose_thresholds(scores, 0.98)
        run = Pass(scores, chosen.t_diff)
        assert run.agreement(chosen).mean() >= 0.98
        assert low <= run.shares(chosen)[2] <= high


def test_still_frames_are_skipped_as_far_as_the_agreement_allows() -> None:
    """The detector finds the frames that repeat, and not the ones that change the answer."""
    levels = [10, 10, 10, 200, 200, 200] * 50
    reference = [0, 0, 0, 1, 1, 1] * 50
    chosen = choose_thresholds(scores_of([0.01, 0.01, 0.01, 0.99, 0.99, 0.99] * 50, reference, levels), 0.98)
    assert 0 < chosen.t_diff < 190**2 + 1


def test_labels_of_noscope_are_read(tmp_path: Path) -> None:
    """One line an object: a frame counts once, and other objects do not."""
    path = tmp_path / "jackson.csv"
    path.write_text("frame,object_name,confidence\n0,car,0.9\n0,car,0.8\n1,person,0.7\n7,car,0.6\n")
    assert read_labels(path) == {0, 7}
    assert read_labels(path, "person") == {1}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"number,object_name\n0,car\n", "no column 'frame'"),
        (b"frame,name\n0,car\n", "no column 'object_name'"),
        (b"frame,object_name\nx,car\n", "can't be read as labels"),
        (b"frame,object_name\n\xff,car\n", "can't be read as labels"),
    ],
)
def test_other_files_are_no_labels(tmp_path: Path, content: bytes, message: str) -> None:
    """The file is named, and what is wrong with it."""
    path = tmp_path / "labels.csv"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=message) as caught:
        read_labels(path)
    assert str(path) in str(caught.value)


def test_a_recording_with_too_few_frames_is_refused(tmp_path: Path) -> None:
    """With both numbers."""
    (frame,) = read_scene(None, [0], 96, lambda _: None)
    (tmp_path / "0.jpg").write_bytes(frame.data)
    with pytest.raises(ConfigError, match="no frame 5; the experiment takes 6"):
        read_scene(str(tmp_path), [0, 5], 96, lambda _: None)


def results() -> dict[str, SettingResult]:
    """Return known figures: the reference on each of ten frames, and a cascade that asks it for two."""
    stages = (Stage.EDGE,) * 7 + (Stage.REUSE,) + (Stage.WORKER,) * 2
    answers = (True,) * 5 + (False,) * 5
    worker = Component("reference", 2.0, 700.0)

    def result(setting: Setting, seconds: float) -> SettingResult:
        is_every = setting.name == EVERY
        own = (Stage.WORKER,) * 10 if is_every else stages
        spent = {"edge_compare": 0.1, "edge_small": 0.2, "inference": 10.0 if is_every else 2.0}
        given = (True,) * 4 + (False,) * 6 if setting.name == NO_DIFFERENCE else answers
        return SettingResult(setting, seconds, given, own, spent, (worker,) if setting.references else ())

    seconds = {EVERY: 10.5, ALONE: 3.0}
    return {each.name: result(each, seconds.get(each.name, 1.5)) for each in settings_of(CASCADE, (1, 2))}


def test_what_is_compared_is_one_machine_and_the_reference_on_each_frame() -> None:
    """Servers that were measured give measured rows, the others simulated ones that say so."""
    found = {(row.table, row.row): row for row in rows_of(results(), (1, 2), (1, 2, 4), "as tested")}
    figures = {row: each.measured for (table, row), each in found.items() if table == "004.F4"}
    assert figures["N_R"] == 2
    assert figures["speed-up, N_S=2"] == 2.0
    assert figures["against the reference on each frame, N_S=2"] == 7.0
    assert figures["one machine: reference"] == 2.0
    # The client takes 0.1 s a frame, the two requests are the last frames, and each takes 1 s on a core of its own.
    assert figures["distributed, N_S=4"] == figures["distributed"] == pytest.approx(2.0)
    assert figures["speed-up"] == pytest.approx(1.5)
    assert "simulated" in found["004.F4", "distributed"].comment
    assert "simulated" not in found["004.F4", "speed-up, N_S=2"].comment
    assert "accuracy 0.900" in found["004.F4", NO_DIFFERENCE].comment
    assert found["004.D", "accuracy against the reference"].measured == 100


def test_each_placement_is_measured() -> None:
    """The reference alone is without other stages; the small model is in the cloud once; a stage is left out once."""
    settings = {each.name: each for each in settings_of(CASCADE, (1, 2))}
    assert settings[EVERY].cascade == replace(CASCADE, difference=None, small=None)
    assert settings[NO_DIFFERENCE].cascade.difference is None
    assert {each.window for each in settings.values() if each.name.startswith("distributed")} == {2, 4}
    in_cloud = [each for each in settings.values() if each.smalls]
    assert [each.cascade.small and each.cascade.small.placement for each in in_cloud] == [RunsAt.CLOUD]


def test_a_client_that_fails_is_quoted(tmp_path: Path) -> None:
    """With the end of its messages; one that ends well is measured."""
    with pytest.raises(ModelFailed, match="ended with 3: no such model"):
        run_pinned([sys.executable, "-c", "import sys; print('no such model', file=sys.stderr); sys.exit(3)"], tmp_path)
    took = run_pinned([sys.executable, "-c", "sum(range(10**7))"], tmp_path)
    assert took.name == "client"
    assert took.cpu_s > 0


@pytest.mark.broker
def test_table_1_is_measured_with_servers_that_sleep(
    write_echo: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each way asks each prescribed frame, by as many servers; they take no less than they sleep."""
    monkeypatch.setattr(table_1, "_DELAY_MS", 20.0)
    monkeypatch.setattr(table_1, "_SIDE", 32)
    repository = write_echo("noscope_50_onnx", ("input", "UINT8", [-1, 50, 50, 3]))
    bench = Bench(repository, False, None, frozenset(), lambda _: None, (1, 2), (50,))
    found = {row.row: row for row in table_1.table_1(bench)}
    for suffix in ("", ", as then, jpeg:90", ", mqinfer", ", mqinfer, server at random"):
        for servers in (1, 2):
            row = found[f"N_F=50 N_S={servers}{suffix}"]
            assert row.measured >= 22 * 0.02 / servers
            assert row.samples == 50
            assert "client" in row.comment
        assert f"N_F=50 2 against 1{suffix}" in found
    assert found["N_F=50 share of the reference"].measured == 44


def test_a_number_of_frames_that_table_1_lacks_is_refused(tmp_path: Path) -> None:
    """The others are named."""
    bench = Bench(tmp_path, False, None, frozenset(), lambda _: None, (1,), (51,))
    with pytest.raises(ConfigError, match="no 51 frames; expected some of 50, 500"):
        next(table_1.table_1(bench))


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (["--replicas", "0"], "--replicas '0': expected whole numbers above 0 and up to 64"),
        (["--replicas", "two"], "--replicas 'two'"),
        (["--replicas", "1,65"], "up to 64"),
        (["--frames", "50,"], "--frames '50,'"),
    ],
)
def test_numbers_of_servers_and_frames_are_checked_first(option: list[str], message: str) -> None:
    """Before anything is built or started."""
    found = CliRunner().invoke(app, ["seeds", "004", *option])
    assert isinstance(found.exception, ConfigError)
    assert message in str(found.exception)

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqinfer.codecs import encode_tensor
from mqinfer.judging.detector import Detector, read_picture
from mqinfer.judging.settings import (
    CascadeSettings,
    DifferenceDetector,
    Reference,
    RunsAt,
    SmallModel,
    read_settings,
    write_settings,
)
from mqinfer.protocol.errors import ConfigError

WHOLE = """
target = "car"

[difference]
t_diff = 4
against = "empty.png"
blocks = 5

[small]
model = "is-car"
repository = "models"
placement = "cloud"
c_low = 0.1
c_high = 0.9

[reference]
model = "yolo"
version = "3"
score = 0.4
"""
LEAST = '[reference]\nmodel = "yolo"\n'
SMALL = '[small]\nmodel = "is-car"\nrepository = "m"\nc_high = 0.9\n' + LEAST


def test_a_whole_file(tmp_path: Path) -> None:
    """Paths are relative to the file's folder."""
    path = tmp_path / "cascade.toml"
    path.write_text(WHOLE)
    small = SmallModel("is-car", 0.9, 0.1, tmp_path / "models", None, RunsAt.CLOUD)
    found = read_settings(path)
    assert found == CascadeSettings(
        Reference("yolo", "3", 0.4), "car", DifferenceDetector(4.0, str(tmp_path / "empty.png"), 5), small
    )
    write_settings(tmp_path / "again.toml", found)
    assert read_settings(tmp_path / "again.toml") == found


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the key 'reference' is missing"),
        ("[reference]\n", "reference: the key 'model' is missing"),
        (LEAST + "[differense]\nt_diff = 1", "unknown key 'differense', did you mean 'difference'"),
        (LEAST + "[difference]\nt_dif = 1", "difference: unknown key 't_dif', did you mean 't_diff'"),
        (LEAST + "[difference]\nt_diff = nan", "difference.t_diff = nan: expected a finite number"),
        (LEAST + "[difference]\nt_diff = inf", "difference.t_diff = inf: expected a finite number"),
        (LEAST + "[difference]\nt_diff = -1", "difference: t_diff = -1: expected 0 or more"),
        (LEAST + "[difference]\nt_diff = 1\nblocks = 3", "blocks = 3: expected one of 1, 2, 5, 10, 25, 50"),
        ("target = 1\n" + LEAST, "target = 1: expected a string"),
        ('target = "car"\n' + SMALL.replace("0.9", "nan"), "small.c_high = nan: expected a finite number"),
        ('target = "car"\n' + SMALL.replace("0.9", "1.5"), "small: c_high = 1.5: expected a confidence from 0 to 1"),
        ('target = "car"\n' + SMALL.replace("c_high", "c_low = 0.95\nc_high"), "lower c_low or raise c_high"),
        (SMALL.replace("c_high", "c_low = 0.5\nc_high"), "small.c_low is for a cascade with a target"),
        (SMALL.replace('repository = "m"\n', ""), "placement = \"edge\" needs the key 'repository'"),
        (SMALL + "score = 2", "reference: score = 2: expected a confidence from 0 to 1"),
        (SMALL.replace("c_high", "replicas = 0\nc_high"), "small.replicas = 0: expected a whole number from 1 to 64"),
        (LEAST + "replicas = 2", "reference.replicas = 2: a model in the cloud has as many workers as its servers"),
        (LEAST + "replicas = 1", "start them with: mqinfer worker --instances N, or --autoscale LEAST..MOST"),
        (
            SMALL.replace("c_high", 'placement = "cloud"\nreplicas = 2\nc_high'),
            "small: replicas counts runs at the edge",
        ),
        (SMALL.replace("c_high", 'placement = "moon"\nc_high'), "placement = 'moon': expected one of edge, cloud"),
        ("[reference", "not valid TOML"),
        ("\0", "not valid TOML"),
    ],
)
def test_errors_name_the_key_and_the_fix(tmp_path: Path, text: str, message: str) -> None:
    """And the file."""
    path = tmp_path / "cascade.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_settings(path)
    assert str(caught.value).startswith(str(path))
    assert message in str(caught.value)


@settings(max_examples=40)
@given(
    t_diff=st.floats(0, 1e5, allow_nan=False),
    thresholds=st.tuples(st.floats(0, 1), st.floats(0, 1)).map(sorted),
    target=st.text(min_size=1),
    model=st.text(min_size=1),
    replicas=st.integers(1, 64),
    placement=st.sampled_from(RunsAt),
)
def test_what_is_written_is_read(
    tmp_path: Path,
    t_diff: float,
    thresholds: list[float],
    target: str,
    model: str,
    replicas: int,
    placement: RunsAt,
) -> None:
    """Whatever the values are; runs at a time are of a model at the edge only."""
    small = SmallModel(
        model,
        thresholds[1],
        thresholds[0],
        tmp_path / "models",
        placement=placement,
        replicas=replicas if placement is RunsAt.EDGE else 1,
    )
    given_settings = CascadeSettings(Reference(model), target, DifferenceDetector(t_diff), small)
    try:
        target.encode(), model.encode()
    except UnicodeEncodeError:
        return
    write_settings(tmp_path / "c.toml", given_settings)
    assert read_settings(tmp_path / "c.toml") == given_settings


def grey(level: int) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """Make a thumbnail of one grey."""
    return np.full((50, 50, 3), level, np.uint8)


def leaders(detector: Detector[int], settings: DifferenceDetector, levels: list[int]) -> list[int | None]:
    """Return for each frame the number of the one whose answer it gets."""
    return [detector.leader(settings, grey(level), number, (9, 9)) for number, level in enumerate(levels)]


def test_against_the_last_frame_that_was_not_skipped() -> None:
    """Slow changes add up until a frame differs."""
    assert leaders(Detector(), DifferenceDetector(4.5), [10, 11, 12, 13, 14, 12]) == [None, 0, 0, None, 3, 3]


def test_against_the_first_frame() -> None:
    """Others never become what is compared with."""
    found = leaders(Detector(), DifferenceDetector(4.5, "first"), [10, 11, 20, 20, 12])
    assert found == [None, 0, None, None, 0]


def test_against_a_picture(tmp_path: Path) -> None:
    """The first frame like it gets an answer for all of them."""
    path = tmp_path / "empty.png"
    path.write_bytes(bytes(encode_tensor("x", np.full((60, 80, 3), 100, np.uint8), "png").data))
    settings = DifferenceDetector(4.5, str(path))
    found = leaders(Detector(read_picture(settings)), settings, [50, 100, 101, 50, 100])
    assert found == [None, None, 1, None, 1]


def test_a_frame_that_got_no_answer_is_followed_no_more() -> None:
    """The next one like it becomes the one that others follow."""
    detector: Detector[int] = Detector()
    assert leaders(detector, DifferenceDetector(4.5), [10, 10]) == [None, 0]
    detector.forget(0)
    assert detector.leader(DifferenceDetector(4.5), grey(10), 2, (9, 9)) is None
    assert detector.leader(DifferenceDetector(4.5), grey(10), 3, (9, 9)) == 2
    assert detector.leader(DifferenceDetector(4.5), grey(10), 4, (8, 9)) is None  # of another size


@pytest.mark.parametrize("content", [None, b"", b"no picture", b"\x89PNG\r\n\x1a\n"])
def test_a_picture_that_cannot_be_read(tmp_path: Path, content: bytes | None) -> None:
    """The error names the key, the file and what is expected."""
    path = tmp_path / "empty.png"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"difference\.against = .*empty\.png.*expected 'last', 'first' or the path"):
        read_picture(DifferenceDetector(1.0, str(path)))


def test_a_pipe_or_gigabytes_are_no_picture(tmp_path: Path) -> None:
    """Opening the one would wait for ever, the other would fill the memory."""
    os.mkfifo(tmp_path / "pipe.png")
    with pytest.raises(ConfigError, match="no such file"):
        read_picture(DifferenceDetector(1.0, str(tmp_path / "pipe.png")))
    with (tmp_path / "large.png").open("wb") as file:
        file.truncate(1 << 34)
    with pytest.raises(ConfigError, match="it has more than 67108864 bytes"):
        read_picture(DifferenceDetector(1.0, str(tmp_path / "large.png")))

"""Reading samples: frames of a bag with their masks, pictures of a folder, arrays of a file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mqinfer.cli.samples import read_arrays, read_frames
from mqinfer.lab.drives.recording import write_drive
from mqinfer.lab.drives.synthetic import SyntheticDrive
from mqinfer.protocol.errors import ConfigError

TRUTH = "/camera/labels"


@pytest.fixture(scope="module")
def bag(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Nine frames of 64x64, with masks."""
    path = tmp_path_factory.mktemp("samples") / "drive.bag"
    write_drive(path, ros=1, frames=9, seed=3, width=64, height=64, encoding="rgb8")
    return str(path)


def test_frames_come_with_their_masks(bag: str) -> None:
    """Picture and mask have the same stamp; frames are spread over the whole bag."""
    samples = read_frames(bag, None, TRUTH, 3)
    drive = SyntheticDrive(3, width=64, height=64)
    assert len(samples) == 3
    for sample, index in zip(samples, (0, 3, 6), strict=True):
        scene = drive.scene(index)
        assert sample.truth is not None
        assert sample.picture is not None
        assert np.array_equal(sample.truth, scene.mask)
        assert np.array_equal(sample.picture, scene.picture)


def test_frames_without_truth(bag: str) -> None:
    """Without a truth topic the samples are pictures alone."""
    samples = read_frames(bag, "/camera/image_raw", None, 100)
    assert len(samples) == 9
    assert all(sample.truth is None for sample in samples)


@pytest.mark.parametrize("topic", [None, "/nowhere"])
def test_several_topics_need_a_choice(bag: str, topic: str | None) -> None:
    """The message names the topics."""
    with pytest.raises(
        ConfigError,
        match=r"choose one image topic with --topic; its image topics are /camera/image_raw, /camera/labels",
    ):
        read_frames(bag, topic, None, 4)


def test_arrays_by_input(tmp_path: Path) -> None:
    """Each sample has a batch axis of one, and its truth if known."""
    path = tmp_path / "samples.npz"
    x, truth = np.arange(12.0).reshape(6, 2), np.arange(6)
    np.savez(path, x=x, truth=truth)
    samples = read_arrays(path, 3)
    assert [sample.inputs["x"].tolist() for sample in samples] == [[[0, 1]], [[4, 5]], [[8, 9]]]
    assert [int(sample.truth) for sample in samples if sample.truth is not None] == [0, 2, 4]


def test_files_that_hold_no_samples(tmp_path: Path) -> None:
    """Arrays of unequal length, scalars, empty arrays and files without arrays are refused."""
    path = tmp_path / "samples.npz"
    for arrays in ({"x": np.zeros(3), "y": np.zeros(2)}, {"x": np.float32(1)}, {"x": np.zeros((0, 2))}, {}):
        np.savez(path, allow_pickle=False, **arrays)
        with pytest.raises(ConfigError, match="expected the same number in each"):
            read_arrays(path, 4)
    path.write_bytes(b"PK\x03\x04 no zip")
    with pytest.raises(ConfigError, match="can't be read"):
        read_arrays(path, 4)
    with pytest.raises(ConfigError, match="can't be read"):
        read_arrays(tmp_path / "nothing.npz", 4)

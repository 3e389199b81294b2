from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mqinfer.bags.sources import open_source
from mqinfer.cli.app import app
from mqinfer.cli.exit_codes import ExitCode, exit_code
from mqinfer.judging.detector import Detector
from mqinfer.judging.settings import DifferenceDetector
from mqinfer.judging.thumbnail import thumbnail
from mqinfer.protocol.errors import MqinferError

VIDEO = Path(__file__).parents[4] / "shared" / "data" / "video" / "solidWhiteRight.mp4"


@pytest.mark.shared_data
@pytest.mark.skipif(not VIDEO.exists(), reason=f"{VIDEO} is not there")
def test_no_frame_of_a_real_drive_is_skipped() -> None:
    """The car moves: each of 221 frames differs from the one before by more than a T_diff of 5."""
    detector: Detector[int] = Detector()
    with closing(open_source(str(VIDEO))) as source:
        frames = source.frames()
        found = [
            detector.leader(DifferenceDetector(5.0), thumbnail(each.image), number)
            for number, each in enumerate(frames)
        ]
    assert found == [None] * 221


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        ("", (), "the key 'reference' is missing"),
        (None, (), "can't be read"),
        ('[reference]\nmodel = "m"\n[difference]\nt_diff = nan', (), "t_diff = nan: expected a finite number"),
        ('[reference]\nmodel = "m"', ("--model", "m"), "leave out --model and --version"),
        ('[reference]\nmodel = "m"', ("--output", "out", "--resume"), "--resume goes on between two frames"),
        ('[reference]\nmodel = "unheard"', ("--local",), "no model unheard"),
    ],
)
def test_what_a_replay_refuses(tmp_path: Path, content: str | None, options: tuple[str, ...], message: str) -> None:
    """With a message that says what to do, and before anything is read."""
    (tmp_path / "models").mkdir()
    path = tmp_path / "cascade.toml"
    if content is not None:
        path.write_text(content)
    folder = ("--repository", str(tmp_path / "models"))
    result = CliRunner().invoke(app, ["replay", "drive.mp4", "--cascade", str(path), *folder, *options])
    assert isinstance(result.exception, MqinferError)
    assert message in str(result.exception)
    expected = ExitCode.FAILED if "unheard" in str(content) else ExitCode.USAGE
    assert exit_code(result.exception) == expected

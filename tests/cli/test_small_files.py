"""Small files that a user names: devices, pipes, and TOML that no parser should get."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path
from random import Random

import numpy as np
import pytest

from mqinfer.broker.address import BrokerAddress
from mqinfer.cli.infer import named_inputs, read_input
from mqinfer.cli.samples import read_arrays
from mqinfer.gateway.access import GRANTED
from mqinfer.lab.cascade.scores import read_scores
from mqinfer.lab.comparing.truth import open_truth
from mqinfer.protocol.card import ModelCard
from mqinfer.protocol.datatypes import Datatype
from mqinfer.protocol.errors import ConfigError
from mqinfer.protocol.types import TensorSpec
from mqinfer.toml_files import MAX_FILE_BYTES, parse_toml, read_text
from mqinfer.web.keys import KeyFile
from tests.commands import run_main

ZERO = Path("/dev/zero")
DEEP = [
    "a = " + "[" * 100_000 + "]" * 100_000,
    ".".join(["a"] * 500_000) + " = 1",
    "[" + " . ".join(['"b"'] * 500_000) + "]",
]


def test_what_never_ends_is_not_read(capsys: pytest.CaptureFixture[str]) -> None:
    """A device that gives octets for ever is an error, wherever a small file is named."""
    with pytest.raises(OSError, match="more than 1048576 bytes"):
        read_text(ZERO)
    with pytest.raises(ConfigError, match="more than 16777216 bytes"):
        KeyFile(ZERO, GRANTED)
    with pytest.raises(ConfigError, match="more than 1048576 bytes"):
        BrokerAddress.parse("mqtt://u@h", password_file=ZERO)
    assert run_main("--config", ZERO, "status") == 2
    assert "more than 1048576 bytes" in capsys.readouterr().err


def test_a_pipe_is_read(tmp_path: Path) -> None:
    """A shell's `<(...)` is a pipe."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=("a\r\nb" + " " * (MAX_FILE_BYTES - 4),))
    writer.start()
    assert read_text(pipe).split() == ["a", "b"]
    writer.join()


@pytest.mark.parametrize("text", DEEP, ids=["lists", "parts of a key", "parts of a table"])
def test_deep_toml_is_an_error(tmp_path: Path, text: str) -> None:
    """Its parser would take the square of a key's parts: half an hour."""
    with pytest.raises(ValueError, match="nested more than 100 deep"):
        parse_toml(text)
    (tmp_path / "keys").write_text(text)
    with pytest.raises(ConfigError, match="nested more than 100 deep"):
        KeyFile(tmp_path / "keys", GRANTED)


def test_other_toml_is_read() -> None:
    """Neither many dots in a text nor 100 parts of a key are deep."""
    assert parse_toml(f"a = '{'.' * 10_000}'\n{'b.' * 98}b = 1")["a"] == "." * 10_000


def test_damaged_arrays(tmp_path: Path) -> None:
    """Whatever is wrong with a file of NumPy's, or however much it claims, is an error with its name."""
    packed, single, chance = tmp_path / "a.npz", tmp_path / "a.npy", Random(1)  # noqa: S311 - damage
    np.savez_compressed(packed, costs=np.zeros(3), x=np.arange(200))
    np.save(single, np.arange(200))
    for path in (packed, single):
        whole = path.read_bytes()
        for _ in range(300):
            damaged = bytearray(whole)
            damaged[chance.randrange(len(whole))] = chance.randrange(256)
            path.write_bytes(damaged)
            for read in (lambda: read_arrays(packed, 1), lambda: read_scores(packed), lambda: read_input(str(single))):
                with suppress(ConfigError):
                    read()
    single.write_bytes(whole.replace(b"(200,)", b"(%d,)" % 10**15))
    with pytest.raises(ConfigError, match="Unable to allocate"):
        read_input(str(single))


def test_an_input_that_is_given_twice() -> None:
    """Neither is left out in silence, whether both are named or one goes to the only input."""
    card = ModelCard(name="a", platform="p", inputs=(TensorSpec("x", Datatype.FP32, (1,)),))
    for name in ("x", ""):
        with pytest.raises(ConfigError, match="x is given twice"):
            named_inputs([("x", np.zeros(1)), (name, np.ones(1))], card)


def test_arrays_that_unpack_to_too_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Six megabytes may stand for six gigabytes, and a file of holes for any number: neither is read."""
    np.savez_compressed(tmp_path / "a.npz", costs=np.zeros(3), x=np.zeros(1 << 20))
    monkeypatch.setattr("mqinfer.edge_agent.output_files._MOST_UNPACKED", 1 << 20)
    for read in (lambda path: read_arrays(path, 1), read_scores):
        with pytest.raises(ConfigError, match="bytes when unpacked; expected at most 1048576"):
            read(tmp_path / "a.npz")
    np.save(tmp_path / "a.npy", np.zeros(1))
    os.truncate(tmp_path / "a.npy", 20 << 30)
    with pytest.raises(ConfigError, match=r"it has 21474836480 bytes; a tensor has fewer than"):
        read_input(str(tmp_path / "a.npy"))


def test_a_line_of_csv_without_an_end(tmp_path: Path) -> None:
    """It is not read to its end, and what it says is shown shortened."""
    path = tmp_path / "truth.csv"
    path.write_bytes(bytes(2 << 20))
    with pytest.raises(ConfigError, match="field larger than field limit"):
        open_truth(str(path), "drive.bag")
    path.write_bytes(bytes(1000))
    with pytest.raises(ConfigError, match=r"its columns are (\\x00){200}; expected"):
        open_truth(str(path), "drive.bag")

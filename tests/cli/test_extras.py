"""Extras: the cure is a command that works where it is printed, and comes before the work; a table lists them all."""

from __future__ import annotations

import json
import re
import shlex
import sys
import tomllib
from functools import partial
from pathlib import Path
from types import ModuleType

import pytest

from mqinfer import extras
from mqinfer.cli.app import main
from mqinfer.dashboard.page import read_page
from mqinfer.extras import clone, import_extra, install_command, is_installed, missing_extra
from mqinfer.protocol.errors import ConfigError, MissingExtra

ROOT = Path(__file__).parents[2]


class Installed:
    """The files of an installed package, of which one states where it came from."""

    def __init__(self, text: str | None) -> None:
        self.text = text

    @classmethod
    def of(cls, text: str | None, name: str) -> Installed:
        """Return mqinfer as it is installed."""
        assert name == "mqinfer"
        return cls(text)

    def read_text(self, name: str) -> str | None:
        """Return a file of its folder."""
        assert name == "direct_url.json"
        return self.text


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """A package that lies among other installed ones, away from any clone."""
    monkeypatch.setattr(extras, "_TREE", tmp_path / "site-packages")
    return monkeypatch


def came_from(monkeypatch: pytest.MonkeyPatch, url: str | None, **more: object) -> None:
    """State where it came from; None for an index."""
    text = None if url is None else json.dumps({"url": url, **more})
    monkeypatch.setattr("importlib.metadata.distribution", partial(Installed.of, text))


def place(command: str) -> list[str]:
    """Return the words behind `install`, as a shell reads them."""
    words = shlex.split(command)
    return words[words.index("install") + 1 :]


def test_from_a_clone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its folder by its whole path, so that the command works in every other one; spaces are quoted."""
    assert place(install_command("edge")) == ["-e", f"{ROOT}[edge]"]
    assert clone() == ROOT
    tree = tmp_path / "my clone"
    (tree / "mqinfer").mkdir(parents=True)
    (tree / "pyproject.toml").touch()
    monkeypatch.setattr(extras, "_TREE", tree)
    assert place(str(missing_extra("av", "edge")).partition("run: ")[2]) == ["-e", f"{tree}[edge]"]


def test_from_a_folder_a_wheel_and_an_index(installed: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each by what pip has noted of it; a damaged note counts as none."""
    wheel, tree = tmp_path / "mqinfer 1.whl", tmp_path / "tree"
    wheel.touch()
    (tree / "mqinfer").mkdir(parents=True)
    (tree / "pyproject.toml").touch()
    came_from(installed, wheel.as_uri(), archive_info={})
    assert (place(install_command("edge")), clone()) == ([f"{wheel}[edge]"], None)
    came_from(installed, tree.as_uri(), dir_info={})
    assert (place(install_command("edge")), clone()) == ([f"{tree}[edge]"], tree)
    assert place(install_command()) == [str(tree)]
    came_from(installed, "https://example.org/m.git", vcs_info={"vcs": "git", "commit_id": "0"})
    assert place(install_command("edge")) == ["mqinfer[edge] @ git+https://example.org/m.git"]
    for nothing in (None, "[]", "{"):
        installed.setattr("importlib.metadata.distribution", partial(Installed.of, nothing))
        assert place(install_command("edge")) == ["mqinfer[edge]"]


def test_what_it_came_from_is_gone(installed: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As in an image that was built in steps: a path that is not there is no cure."""
    came_from(installed, (tmp_path / "gone").as_uri(), dir_info={})
    assert place(install_command("edge")) == [".[edge]", "in", "a", "clone", "of", "mqinfer"]


def test_pip_of_another_environment_is_not_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A unit runs `/opt/mqinfer/bin/mqinfer` without that folder on the PATH."""
    monkeypatch.setattr("shutil.which", lambda _: "/usr/bin/pip")
    assert install_command("edge").startswith(f"{sys.executable} -m pip install")
    monkeypatch.setattr("shutil.which", lambda _: str(Path(sys.executable).parent / "pip"))
    assert install_command("edge").startswith("pip install")


def test_the_page_was_not_built(installed: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A clone that runs builds it; a clone that was installed builds it and is installed again; a wheel has it."""
    tree = tmp_path / "tree"
    (tree / "mqinfer").mkdir(parents=True)
    (tree / "pyproject.toml").touch()
    came_from(installed, tree.as_uri(), dir_info={})
    with pytest.raises(ConfigError, match=rf"run: {tree}/scripts/build-page, then: .*pip install .*\[dashboard\]"):
        read_page(tmp_path / "page")
    with pytest.raises(ConfigError, match=rf"run: {tree}/scripts/build-page$"):
        read_page(tree / "mqinfer" / "page")
    came_from(installed, None)
    with pytest.raises(ConfigError, match="a wheel carries it"):
        read_page(tmp_path / "page")


@pytest.mark.parametrize(
    ("command", "missing", "extra"),
    [
        ("cascade train NOTHING --reference seg --local", "tensorflow", "tensorflow"),
        ("cascade train NOTHING --reference seg --local", "tf2onnx", "tensorflow"),
        ("cascade calibrate NOTHING --reference seg --local --plot a.png", "matplotlib", "profile"),
        ("cascade report NOTHING --plot a.png", "matplotlib", "profile"),
        ("bench codecs NOTHING --model seg --plot a.png", "matplotlib", "profile"),
        ("models profile . seg --output out", "matplotlib", "profile"),
        ("replay NOTHING --model seg --local --output out --sink parquet", "pyarrow", "parquet"),
    ],
)
def test_an_extra_is_missed_before_the_work(
    command: str, missing: str, extra: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also before it turns out that there is no such recording and no such model."""
    monkeypatch.setitem(sys.modules, missing, None)
    monkeypatch.setattr(sys, "argv", ["mqinfer", *command.split()])
    with pytest.raises(SystemExit):
        main()
    printed = capsys.readouterr().err
    assert f"is not installed; run: {install_command(extra)}" in printed
    assert missing in printed


def test_optimising_misses_its_packages_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the engines that are asked for, and no others."""
    from mqinfer.lab.optimize.products import plan

    monkeypatch.setitem(sys.modules, "nncf", None)
    assert plan(["openvino"], ["fp32"], early=False, calibrated=True)
    with pytest.raises(MissingExtra, match="nncf is not installed"):
        plan(["openvino"], ["int8"], early=False, calibrated=True)


def test_the_documents_list_each_extra() -> None:
    """In one table, and none that does not exist."""
    text = (ROOT / "docs" / "reference" / "settings.md").read_text(encoding="utf-8")
    table = text.partition("### Extras\n")[2].partition("\n#")[0]
    named = {
        name for row in re.findall(r"^\| (`[^|]*) \|", table, re.MULTILINE) for name in re.findall(r"`(.*?)`", row)
    }
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert named == set(project["optional-dependencies"])


def test_a_module_that_another_thread_imports_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenCV has no spec while it is imported, and a model that was loaded meanwhile failed with a ValueError."""
    half = ModuleType("half_imported")
    assert half.__spec__ is None
    monkeypatch.setitem(sys.modules, "half_imported", half)
    assert is_installed("half_imported")
    monkeypatch.setitem(sys.modules, "half_imported", None)
    assert not is_installed("half_imported")
    assert not is_installed("no_such_package.part")


def test_a_package_that_is_there_and_cannot_be_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error has the reason, such as a library of the system that is missing, which no `pip install` brings."""
    (tmp_path / "lame.py").write_text("raise ImportError('libGL.so.1: cannot open shared object file')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(MissingExtra, match=r"^lame can't be imported: libGL.*; mend what that names, or run"):
        import_extra("lame", "edge")

"""The repository: what is found, what is refused, and that one bad model stops no other."""

from pathlib import Path

import pytest

from mqinfer.errors import ConfigError
from mqinfer.models.repository import Repository


def put(path: Path, content: bytes = b"model") -> Path:
    """Write a file and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def found(repository: Path) -> dict[tuple[str, int], str]:
    """Return the path below the repository by model and version."""
    return {
        (model.name, model.version): model.path.relative_to(repository).as_posix()
        for model in Repository(repository).models()
    }


def reason(repository: Path) -> str:
    """Return the one problem's reason."""
    scan = Repository(repository).scan()
    assert not scan.models
    (problem,) = scan.problems
    return problem.reason


@pytest.mark.parametrize(
    ("file", "path"),
    [
        ("model.onnx", "model.onnx"),
        ("model.graphdef", "model.graphdef"),
        ("model.pb", "model.pb"),
        ("model.echo", "model.echo"),
        ("saved_model.pb", "."),
        ("model.savedmodel/saved_model.pb", "model.savedmodel"),
        ("mobilenet.pb", "mobilenet.pb"),
        ("digits.onnx", "digits.onnx"),
    ],
)
def test_usual_names(repository: Path, file: str, path: str) -> None:
    """Every usual name, and a single other file, is found."""
    put(repository / "m" / "1" / file)
    assert found(repository) == {("m", 1): (Path("m/1") / path).as_posix()}


def test_version_folders_are_numbers(repository: Path) -> None:
    """TensorFlow Serving's zeros in front count for nothing, and other folders are no versions."""
    for folder in ("00000123", "00000124", "old", "1a", "-1"):
        put(repository / "m" / folder / "model.onnx")
    put(repository / "m" / "model.toml", b"version_policy = {all = {}}")
    models = Repository(repository).models()
    assert [(model.version, model.is_default) for model in models] == [(123, False), (124, True)]


def test_default_policy_is_the_latest_version(repository: Path) -> None:
    """Without a policy the highest number is served, compared as a number."""
    for version in (1, 9, 10):
        put(repository / "m" / str(version) / "model.onnx")
    assert list(found(repository)) == [("m", 10)]


def test_named_file(repository: Path) -> None:
    """`default_model_filename` chooses between several files."""
    put(repository / "m" / "1" / "a.onnx")
    put(repository / "m" / "1" / "b.onnx")
    assert "several model files (a.onnx, b.onnx)" in reason(repository)
    put(repository / "m" / "model.toml", b"default_model_filename = 'b.onnx'")
    assert found(repository) == {("m", 1): "m/1/b.onnx"}
    put(repository / "m" / "model.toml", b"default_model_filename = 'c.onnx'")
    assert "does not exist" in reason(repository)


def test_one_bad_model_stops_no_other(repository: Path) -> None:
    """Each folder that can't be served is a problem with its reason; the good one is served."""
    put(repository / "good" / "1" / "model.onnx")
    put(repository / "Bad Name" / "1" / "model.onnx")
    put(repository / "toml" / "1" / "model.onnx")
    put(repository / "toml" / "model.toml", b"max_batch = 1")
    put(repository / "named" / "1" / "model.onnx")
    put(repository / "named" / "model.toml", b"name = 'other'")
    put(repository / "twice" / "1" / "model.onnx")
    put(repository / "twice" / "001" / "model.onnx")
    put(repository / "missing" / "1" / "model.onnx")
    put(repository / "missing" / "model.toml", b"version_policy = {specific = {versions = [2]}}")
    (repository / "empty").mkdir()
    (repository / "empty2" / "1").mkdir(parents=True)
    put(repository / ".hidden" / "1" / "model.onnx")
    put(repository / "README.md")
    scan = Repository(repository).scan()
    assert [model.name for model in scan.models] == ["good"]
    reasons = {problem.model: problem.reason for problem in scan.problems}
    expected = {
        "Bad Name": "expected 1 to 64 letters",
        "toml": "max_batch",
        "named": "expected the folder's name",
        "twice": "there are two folders",
        "missing": "asks for [2], there are [1]",
        "empty": "no version folder",
        "empty2": "no model in it",
    }
    assert reasons.keys() == expected.keys()
    for model, part in expected.items():
        assert part in reasons[model]


def test_a_bad_version_stops_no_other_version(repository: Path) -> None:
    """The default is the highest version that can be served."""
    put(repository / "m" / "model.toml", b"version_policy = {all = {}}")
    put(repository / "m" / "1" / "model.onnx")
    (repository / "m" / "2").mkdir()
    scan = Repository(repository).scan()
    assert [(model.version, model.is_default) for model in scan.models] == [(1, True)]
    assert len(scan.problems) == 1


@pytest.mark.parametrize("where", ["m", "m/1", "m/1/model.onnx", "m/1/model.savedmodel/variables", "m/model.toml"])
def test_links_that_lead_out_are_refused(repository: Path, tmp_path: Path, where: str) -> None:
    """A link at any depth that ends outside the repository makes the model unservable."""
    outside = tmp_path / "outside"
    for folder in ("1", ""):
        put(outside / folder / "model.onnx")
    link = repository / where
    link.parent.mkdir(parents=True, exist_ok=True)
    if where.endswith("variables"):
        put(link.parent / "saved_model.pb")
    if where.endswith("toml"):
        put(repository / "m" / "1" / "model.onnx")
    link.symlink_to(outside / "model.onnx" if link.suffix in {".onnx", ".toml"} else outside)
    assert "leads outside the repository" in reason(repository)


@pytest.mark.parametrize("name", ["../../../outside.onnx", "/etc/hostname"])
def test_a_name_that_leads_out_is_refused(repository: Path, tmp_path: Path, name: str) -> None:
    """Nor may `default_model_filename` climb out."""
    put(tmp_path / "outside.onnx")
    put(repository / "m" / "1" / "model.onnx")
    put(repository / "m" / "model.toml", f"default_model_filename = '{name}'".encode())
    assert "must be the name of a file below this folder" in reason(repository)


def test_links_within_the_repository_are_followed(repository: Path) -> None:
    """`latest -> 3`-like arrangements stay possible."""
    put(repository / "m" / "1" / "model.onnx")
    (repository / "n").symlink_to(repository / "m")
    assert found(repository).keys() == {("m", 1), ("n", 1)}


def test_a_repository_that_is_not_there(tmp_path: Path) -> None:
    """The path is named; an empty one has neither models nor problems."""
    with pytest.raises(ConfigError, match="no such folder"):
        Repository(tmp_path / "nowhere")
    assert Repository(tmp_path).scan().models == ()
    assert Repository(tmp_path).path == tmp_path
    assert Repository(tmp_path).problems() == ()

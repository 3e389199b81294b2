"""Hostile repositories: whatever a name, a link or a file contains, nothing outside the repository is opened.

One process loads every case. It notes what Python opens (an audit hook) and what anything at all opens in the folder
outside (inotify, which sees ONNX Runtime's own code too).
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

WriteOnnx = Callable[..., Path]

HARNESS = r"""
import ctypes, json, os, sys
from pathlib import Path
from mqinfer.models.loading import load_model
from mqinfer.models.repository import Repository

outside = os.path.realpath(sys.argv[1])
targets = (outside, "/etc/hostname", "/etc/passwd", "/proc/self")
opened = []

def hook(event, arguments):
    if event == "open" and isinstance(arguments[0], (str, bytes, os.PathLike)):
        path = os.path.realpath(os.fsdecode(arguments[0]))
        if path.startswith(targets):
            opened.append(path)

libc = ctypes.CDLL(None, use_errno=True)
notify = libc.inotify_init1(os.O_NONBLOCK)
assert notify >= 0 and libc.inotify_add_watch(notify, os.fsencode(outside), 0x20) > 0  # IN_OPEN

def native():
    try:
        return len(os.read(notify, 65536)) > 0
    except BlockingIOError:
        return False

def attempt(repository):
    scan = Repository(repository).scan()
    reasons, loaded = [problem.reason for problem in scan.problems], []
    for model in scan.models:
        try:
            load_model(model, device="cpu").backend.close()
            loaded.append(model.name)
        except Exception as error:
            reasons.append(f"{type(error).__name__}: {error}")
    return {"loaded": loaded, "reasons": reasons, "opened": opened[:], "native": native()}

for warm in (attempt(sys.argv[2]),):  # engines and libraries are read before anything counts
    assert warm["loaded"], warm
sys.addaudithook(hook)
native()
results = {}
for case in sys.argv[2:]:
    opened.clear()
    results[Path(case).name] = attempt(case)
opened.clear()
Path(outside, "weights.bin").read_bytes()
results["detected"] = {"opened": opened[:], "native": native()}
print(json.dumps(results))
"""


@dataclass(frozen=True)
class Place:
    """Where a case is written: its repository, the model's folder in it, and what lies outside."""

    repository: Path
    outside: Path
    write_onnx: WriteOnnx

    @property
    def model(self) -> Path:
        """The model's folder."""
        return self.repository / "m"

    def plain(self, **options: Any) -> Path:
        """Write a model that is well."""
        return self.write_onnx(self.model / "1" / "model.onnx", **options)

    def configure(self, text: str, name: str = "model.toml") -> None:
        """Write the configuration."""
        self.model.mkdir(parents=True, exist_ok=True)
        (self.model / name).write_text(text)


Write = Callable[[Place], None]
CASES: dict[str, tuple[Write, str]] = {}


def case(name: str, message: str) -> Callable[[Write], Write]:
    """Register a writer of a hostile repository, with a part of the reason that it shall be refused for."""

    def register(write: Write) -> Write:
        CASES[name] = write, message
        return write

    return register


def named(kind: str, name: str) -> str:
    """Give a configuration with a name in one of the places that take one."""
    quoted = json.dumps(name)
    if kind == "label":
        return f"[[output]]\nname = 'y'\nlabel_filename = {quoted}\n"
    if kind == "warmup":
        sample = f"x = {{data_type = 'TYPE_FP32', dims = [4], input_data_file = {quoted}}}"
        return f"[[model_warmup]]\n[model_warmup.inputs]\n{sample}\n"
    return f"default_model_filename = {quoted}\n"


HOSTILE_NAMES = {
    "climbing": "../../../outside/{file}",
    "climbing late": "a/b/../../../../../outside/{file}",
    "absolute": "{outside}/{file}",
    "double slash": "//etc/hostname",
    "process": "/proc/self/environ",
    "parent": "..",
    "nul": "{file}\0.onnx",
    "newline": "{file}\n",
    "backslash": "..\\..\\..\\outside\\{file}",
    "long": "a" * 5000,
    "deep": "a/" * 400 + "../" * 404 + "outside/{file}",
    "empty part": "a//../../../outside/{file}",
    "right to left": "\u202e{file}",
}
FILES = {"filename": "model.onnx", "label": "labels.txt", "warmup": "sample.bin"}


def _add_named(kind: str, label: str, name: str) -> None:
    def write(place: Place) -> None:
        place.plain()
        place.configure(named(kind, name.format(outside=place.outside, file=FILES[kind])))

    CASES[f"{kind} {label}"] = write, "must be the name of a file below this folder"


for _kind in FILES:
    for _label, _name in HOSTILE_NAMES.items():
        _add_named(_kind, _label, _name)


def _link_folder(target: Path, link: Path) -> None:
    link.parent.rmdir()
    link.parent.symlink_to(target.parent)


LINKS: dict[str, Callable[[Path, Path], None]] = {
    "symbolic link": lambda target, link: link.symlink_to(target),
    "hard link": lambda target, link: link.hardlink_to(target),
    "linked folder": _link_folder,
    "pipe": lambda _, link: os.mkfifo(link),
}


def _add_linked(kind: str, how: str, place_link: Callable[[Path, Path], None]) -> None:
    def write(place: Place) -> None:
        place.plain()
        place.configure(named(kind, f"sub/{FILES[kind]}"))
        folder = {"label": place.model, "warmup": place.model / "warmup"}[kind] / "sub"
        folder.mkdir(parents=True)
        place_link(place.outside / FILES[kind], folder / FILES[kind])

    CASES[f"{kind} {how}"] = write, " link" if "link" in how else "not a file"


def _add_external(how: str, location: str, place_link: Callable[[Path, Path], None] | None, message: str) -> None:
    def write(place: Place) -> None:
        path = place.plain(external=location.format(outside=place.outside))
        if place_link:
            (path.parent / "sub").mkdir()
            place_link(place.outside / "weights.bin", path.parent / "sub" / "weights.bin")

    CASES[f"external {how}"] = write, message


for _how, _place_link in LINKS.items():
    _told = " link" if "link" in _how else "not a file"
    _add_linked("label", _how, _place_link)
    _add_linked("warmup", _how, _place_link)
    _add_external(_how, "sub/weights.bin", _place_link, _told)
for _how, _location in {
    "climbing": "../../../outside/weights.bin",
    "absolute": "{outside}/weights.bin",
    "url": "file://{outside}/weights.bin",
    "backslash": "..\\..\\..\\outside\\weights.bin",
    "nul": "weights.bin\0",
}.items():
    _add_external(_how, _location, None, "external data = ")
_add_external("address", "*/_ORT_MEM_ADDR_/*", None, "address in memory")
_add_external("percent", "%2e%2e/%2e%2e/%2e%2e/outside/weights.bin", None, "can't be opened")
_add_external("missing", "weights.bin", None, "can't be opened")


def _external_tensor(location: str) -> Any:
    tensor = onnx.numpy_helper.from_array(np.ones(4, np.float32), "w")
    onnx.external_data_helper.set_external_data(tensor, location, length=16)
    tensor.ClearField("raw_data")
    return tensor


def _write_hidden(place: Place, hide: Callable[[Any, Any], None]) -> None:
    path = place.plain()
    model = onnx.load(str(path), load_external_data=False)
    hide(model, _external_tensor("../../../outside/weights.bin"))
    path.write_bytes(model.SerializeToString())


def _in_constant(model: Any, tensor: Any) -> None:
    model.graph.node.add().CopyFrom(helper.make_node("Constant", [], ["c"], value=tensor))


def _in_branch(model: Any, tensor: Any) -> None:
    output = helper.make_tensor_value_info("w", TensorProto.FLOAT, [4])
    branch = helper.make_graph([], "branch", [], [output], [tensor])
    node = helper.make_node("If", ["condition"], ["z"], then_branch=branch, else_branch=branch)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(True), "condition"))
    model.graph.node.add().CopyFrom(node)


def _in_sparse(model: Any, tensor: Any) -> None:
    model.graph.sparse_initializer.add().values.CopyFrom(tensor)


def _in_function(model: Any, tensor: Any) -> None:
    node = helper.make_node("Constant", [], ["c"], value=tensor)
    opsets = [helper.make_opsetid("", 17)]
    model.functions.append(helper.make_function("own", "f", [], ["c"], [node], opsets))


def _in_training(model: Any, tensor: Any) -> None:
    model.training_info.add().algorithm.initializer.append(tensor)


def _two_locations(model: Any, tensor: Any) -> None:
    entry = tensor.external_data.add()
    entry.key, entry.value = "location", "weights.bin"
    model.graph.initializer.append(tensor)


def _add_hidden(hide: Callable[[Any, Any], None]) -> None:
    message = "external data = '../../../outside/weights.bin'"
    CASES[f"external{hide.__name__.replace('_', ' ')}"] = (lambda place: _write_hidden(place, hide)), message


for _hide in (_in_constant, _in_branch, _in_sparse, _in_function, _in_training, _two_locations):
    _add_hidden(_hide)


@case("external in a group", "wire type 3")
def _group(place: Place) -> None:
    path = place.plain(external="../../../outside/weights.bin")
    path.write_bytes(path.read_bytes() + b"\x0b\x0c")


@case("external beside a linked model", "symbolic link to a model with external data")
def _linked_model(place: Place) -> None:
    (place.repository / "store").mkdir()
    place.write_onnx(place.repository / "store" / "net.onnx", external="weights.bin")
    (place.model / "1").mkdir(parents=True)
    (place.model / "1" / "model.onnx").symlink_to(place.repository / "store" / "net.onnx")


for _where in ("m", "m/1", "m/1/model.onnx", "m/1/model.savedmodel/variables", "m/model.toml", "m/config.pbtxt"):

    @case(f"linked {_where}".replace("/", " "), "leads outside the repository")
    def _linked(place: Place, where: str = _where) -> None:
        link = place.repository / where
        if link.parent.parent == place.repository and "." in link.name:
            place.plain()
        link.parent.mkdir(parents=True, exist_ok=True)
        if link.name == "variables":
            (link.parent / "saved_model.pb").write_bytes(b"\x08\x01")
        link.symlink_to(place.outside / link.name if "." in link.name else place.outside)


@case("linked version configuration", "leads outside the repository")
def _version_configuration(place: Place) -> None:
    (place.plain().parent / "model.toml").symlink_to(place.outside / "model.toml")


@case("circle of links", "does not exist")
def _circle(place: Place) -> None:
    place.configure("default_model_filename = 'a'")
    (place.model / "1").mkdir()
    (place.model / "1" / "a").symlink_to("b")
    (place.model / "1" / "b").symlink_to("a")


@case("pipe as configuration", "not a file")
def _pipe_configuration(place: Place) -> None:
    place.plain()
    os.mkfifo(place.model / "config.pbtxt")


@case("pipe as model", "not a file")
def _pipe_model(place: Place) -> None:
    (place.model / "1").mkdir(parents=True)
    os.mkfifo(place.model / "1" / "model.onnx")


for _step in ("../../outside", "/etc", "m/1", "..", "M", "m\0"):

    @case(f"step {_step!r}".replace("/", " "), "step 1")
    def _stepping(place: Place, step: str = _step) -> None:
        (place.model / "1").mkdir(parents=True)
        ends = "input = [{name = 'x'}]\noutput = [{name = 'y'}]\n[[ensemble_scheduling.step]]\n"
        maps = "input_map = {x = 'x'}\noutput_map = {y = 'y'}\n"
        place.configure(f"{ends}model_name = {json.dumps(step)}\n{maps}")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory, write_onnx: WriteOnnx) -> Any:
    """Write all cases and a harmless one; one process loads them."""
    root = tmp_path_factory.mktemp("containment")
    places = {name: root / str(number) / "repository" / name.replace("/", " ") for number, name in enumerate(CASES)}
    outside = root / "outside"
    outside.mkdir()
    for file, content in {
        "labels.txt": b"a\n",
        "sample.bin": b"\0" * 16,
        "model.toml": b"",
        "config.pbtxt": b"",
    }.items():
        (outside / file).write_bytes(content)
    (outside / "weights.bin").write_bytes(np.ones(4, np.float32).tobytes())
    write_onnx(outside / "model.onnx")
    for name, (write, _) in CASES.items():
        places[name].mkdir(parents=True)
        # The hostile names climb from <root>/<number>/… as if outside lay beside the repository.
        (places[name].parent / "outside").symlink_to(outside)
        write(Place(places[name], outside, write_onnx))
    harmless = root / "harmless"
    well = Place(harmless, outside, write_onnx)
    well.plain(external="./weights.bin")
    (well.model / "1" / "weights.bin").write_bytes((outside / "weights.bin").read_bytes())
    (well.model / "labels").mkdir()
    (well.model / "labels" / "l.txt").write_text("a\nb\nc\nd\n")
    well.configure(named("label", "labels/l.txt"))
    command = [sys.executable, "-c", HARNESS, str(outside), str(harmless), *map(str, places.values())]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", CASES)
def test_nothing_outside_is_opened(results: dict[str, Any], name: str) -> None:
    """The model is refused for the right reason, before anything outside the repository was opened."""
    result = results[name.replace("/", " ")]
    assert result["opened"] == []
    assert result["native"] is False
    assert result["loaded"] == []
    assert any(CASES[name][1] in reason for reason in result["reasons"]), result["reasons"]


def test_the_harness_sees_what_is_opened(results: dict[str, Any]) -> None:
    """An open outside is noticed by both, a model that is well loads, and there are enough cases."""
    assert len(CASES) >= 40
    assert [Path(path).name for path in results["detected"]["opened"]] == ["weights.bin"]
    assert results["detected"]["native"] is True
    assert results["harmless"]["loaded"] == ["m"]

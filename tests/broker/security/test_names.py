"""Names that strangers choose: none leaves its level of a topic, or its folder of the repository."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqinfer.models.repository import Repository
from mqinfer.protocol.control import Call, Operation, read_path
from mqinfer.protocol.errors import BadTopic, MqinferError
from mqinfer.protocol.topics import Topics, answer_topic, check_name, may_reply

TOPICS = Topics()
HOSTILE = [
    "..",
    ".",
    "../secret",
    "../../etc/passwd",
    "/etc/passwd",
    "//etc",
    "~",
    "~root",
    "a/../../secret",
    "a/b",
    "a\\b",
    "..\\secret",
    "C:\\",
    "a\0",
    "\0",
    "a\0.onnx",
    "a\n",
    "a\r",
    "a\t",
    " ",
    "",
    " a",
    "a ",
    "+",
    "#",
    "a/#",
    "$share",
    "$SYS",
    "%u",
    "%c",
    "%2e%2e",
    "%2e%2e%2fsecret",
    "．．",  # noqa: RUF001 - full-width full stops
    "..／secret",  # noqa: RUF001 - a full-width solidus
    "a\u202egnp",
    "é",
    "e\u0301",
    "А",  # noqa: RUF001 - a Cyrillic letter
    "\ud800",
    "a" * 65,
    "a" * 5000,
    "-rf",
    "--config",
    "con:",
    "file:///etc/passwd",
    "http://host/model",
    "control",
    "*",
    "?",
    "[a]",
    "$(id)",
    "`id`",
    "a;b",
    "a|b",
]
ANY = st.text(max_size=70) | st.sampled_from(HOSTILE)
_opened: list[str] = []
_watching = False


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if _watching and event in {"open", "os.listdir", "os.scandir"} and isinstance(arguments[0], str | bytes | Path):
        _opened.append(os.fsdecode(arguments[0]))


@contextmanager
def watching() -> Iterator[list[str]]:
    """Note every file and folder that this process opens."""
    global _watching  # noqa: PLW0603 - an audit hook can't be taken back
    if _hook not in _installed:
        sys.addaudithook(_hook)
        _installed.append(_hook)
    _opened.clear()
    _watching = True
    try:
        yield _opened
    finally:
        _watching = False


_installed: list[Callable[..., None]] = []


@given(ANY, ANY, ANY)
def test_no_name_leaves_its_level(model: str, client: str, worker: str) -> None:
    """A topic is refused, or has exactly the levels that it should have, with the names in their places."""
    build: list[tuple[Callable[[], str], list[str]]] = [
        (lambda: TOPICS.infer(model, client), ["models", model, "infer", client]),
        (lambda: TOPICS.infer(model, client, "3"), ["models", model, "versions", "3", "infer", client]),
        (lambda: TOPICS.lane(worker, model, client), ["workers", worker, "infer", model, client]),
        (lambda: TOPICS.cancel(model, client), ["models", model, "cancel", client]),
        (lambda: TOPICS.result(model, client, worker), ["results", model, client, worker]),
        (lambda: TOPICS.control_result(client, worker), ["results", "control", client, worker]),
        (lambda: TOPICS.client_state(client), ["clients", client, "state"]),
        (lambda: TOPICS.control(worker, client, "server"), ["control", worker, client, "server"]),
    ]
    for make, levels in build:
        with suppress(BadTopic):
            assert make().split("/") == ["mqinfer", "v1", *levels]


@given(ANY, st.sampled_from(["car-1", "car", "1"]), st.text(max_size=40))
def test_no_reply_leaves_its_client(topic: str, client: str, tail: str) -> None:
    """A Response Topic is used only where it is one level below the sender's own results."""
    own = f"mqinfer/v1/results/m/{client}/"
    for response in (topic, own + tail, own + topic, f"mqinfer/v1/results/control/{client}/{tail}"):
        if may_reply(TOPICS, response, "m", client):
            assert response.startswith(own)
            assert response.count("/") == own.count("/")
            assert not set("+#\0") & set(response)
        with suppress(BadTopic):
            found = answer_topic(TOPICS.control_result, response, client)
            assert found.rpartition("/")[0] == f"mqinfer/v1/results/control/{client}"


@given(st.lists(ANY, max_size=6))
def test_orders_name_models_by_the_rules(levels: list[str]) -> None:
    """Whatever stands in a control topic, a call that is made of it has a sound model name or none."""
    for path in (levels, ["repository", "models", *levels], ["models", *levels], [*levels, "load"]):
        try:
            call = read_path("/".join(path))
        except BadTopic:
            continue
        assert call.model == "" or check_name("model", call.model)
        assert read_path(call.path) == call


@pytest.fixture
def repository(tmp_path: Path, write_echo: Callable[..., Path]) -> Path:
    """A repository with one model, and beside it a secret that links lead to."""
    path = write_echo("echo")
    secret = tmp_path / "secret" / "1"
    secret.mkdir(parents=True)
    (secret / "model.echo").write_text((path / "echo" / "1" / "model.echo").read_text())
    (path / "link").symlink_to(tmp_path / "secret")
    (path / "inner").mkdir()
    (path / "inner" / "1").symlink_to(secret)
    (path / "file" / "1").mkdir(parents=True)
    (path / "file" / "1" / "model.echo").symlink_to(secret / "model.echo")
    (path / "hard" / "1").mkdir(parents=True)
    os.link(secret / "model.echo", path / "hard" / "1" / "model.echo")
    return path


@pytest.mark.parametrize("name", [*HOSTILE, "link", "inner", "file"], ids=ascii)
def test_no_load_opens_a_file_outside(repository: Path, name: str) -> None:
    """No name of a model that an order may bring opens anything outside the repository."""
    with watching() as opened:
        with suppress(BadTopic):
            read_path(Call(Operation.LOAD, name).path)
        with pytest.raises((MqinferError, ValueError)):
            Repository(repository).find(name)
        scan = Repository(repository).scan()
    assert [version.name for version in scan.models if version.name not in {"echo", "hard"}] == []
    outside = [path for path in opened if not Path(os.path.realpath(path)).is_relative_to(repository.resolve())]
    assert outside == []
    assert opened, "the watch saw nothing at all"


def test_the_watch_sees_a_file_outside(repository: Path) -> None:
    """What the test above looks for is found where it happens."""
    with watching() as opened:
        (repository.parent / "secret" / "1" / "model.echo").read_text()
    assert [path for path in opened if "secret" in path]

"""Who may call what: keys, certificates and restricted calls, without a transport."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from mqinfer.gateway.access import GRANTED, Access, Right, read_restrictions
from mqinfer.gateway.errors import Unauthenticated
from mqinfer.protocol.errors import ConfigError, NotAuthorized
from mqinfer.web.keys import KeyFile
from tests.clock import Clock

ANN, BOB = "key-of-ann-0123456789", "key-of-bob-0123456789"
KEYS = f"""
[ann]
key = "{ANN}"
rights = ["infer", "metadata"]

[bob]
key = "{BOB}"
rights = ["admin"]

[car-1]
rights = ["infer"]
"""


def write(path: Path, text: str) -> Path:
    """Replace a file as an operator's editor does."""
    new = path.with_suffix(".new")
    new.write_text(text, encoding="utf-8")
    os.replace(new, path)  # noqa: PTH105
    return path


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    """A key file with three callers."""
    return write(tmp_path / "keys.toml", KEYS)


def bearer(key: str) -> dict[str, str]:
    """Return the header that a key is sent in."""
    return {"authorization": f"Bearer {key}"}


def test_without_keys_everybody_may_call() -> None:
    """The caller's name is that of its certificate, else its address."""
    access = Access()
    assert {access.admit(right, {}, "1.2.3.4:5") for right in Right} == {"1.2.3.4:5"}
    assert access.admit(Right.INFERENCE, {}, "1.2.3.4:5", certificate="car-1") == "certificate car-1"


def test_rights_of_keys(keys: Path) -> None:
    """Each key may do what its rights name; everybody may ask for the health; names do not depend on the connection."""
    access = Access(KeyFile(keys, GRANTED))
    for right in Right:
        assert access.admit(right, bearer(BOB), "x") == ("x" if right is Right.HEALTH else "key bob")
    assert access.admit(Right.INFERENCE, {"authorization": f"bearer   {ANN} "}, "x") == "key ann"
    assert access.admit(Right.STATISTICS, bearer(ANN), "y") == "key ann"
    for right in (Right.MODEL_REPOSITORY, Right.TRACE, Right.LOGGING, Right.SHARED_MEMORY):
        with pytest.raises(NotAuthorized, match="'ann' has no right to"):
            access.admit(right, bearer(ANN), "x")


@pytest.mark.parametrize(
    "headers",
    [{}, bearer(""), bearer(ANN[:-1]), bearer(ANN + "x"), bearer("é\udcff\0"), {"authorization": f"Basic {ANN}"}],
)
def test_wrong_credentials(keys: Path, headers: dict[str, str]) -> None:
    """None of them is taken for another one, and the key is not repeated."""
    with pytest.raises(Unauthenticated) as caught:
        Access(KeyFile(keys, GRANTED)).admit(Right.INFERENCE, headers, "x")
    assert ANN[:-1] not in str(caught.value)


def test_certificates(keys: Path) -> None:
    """A certificate counts where no key is sent, and only one that the file names."""
    access = Access(KeyFile(keys, GRANTED))
    assert access.admit(Right.INFERENCE, {}, "x", certificate="car-1") == "key car-1"
    assert access.admit(Right.METADATA, bearer(ANN), "x", certificate="car-1") == "key ann"
    with pytest.raises(NotAuthorized):
        access.admit(Right.METADATA, {}, "x", certificate="car-1")
    for certificate in ("car-2", "ann"):  # ann's key is not a certificate
        with pytest.raises(Unauthenticated):
            access.admit(Right.INFERENCE, {}, "x", certificate=certificate)


def test_a_file_that_changes(keys: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is read again a second later; one with a fault, or none, changes nothing."""
    clock = Clock()
    access = Access(KeyFile(keys, GRANTED, clock))

    def admits(key: str) -> bool:
        clock.now += 1.5
        try:
            access.admit(Right.INFERENCE, bearer(key), "x")
        except Unauthenticated:
            return False
        return True

    new = "key-of-ann-9876543210"
    write(keys, KEYS.replace(ANN, new))
    assert [admits(ANN), admits(new)] == [False, True]
    write(keys, "[ann")
    assert admits(new)
    assert "the keys stay as they were" in caplog.text
    keys.unlink()
    assert admits(new)
    os.mkfifo(keys)  # to read it would hold up everybody
    assert admits(new)
    assert "is a pipe now" in caplog.text
    keys.unlink()
    write(keys, KEYS)
    assert [admits(ANN), admits(new)] == [True, False]


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("[ann", "expected a table"),
        ("ann = 1", "expected a table"),
        ('[ann]\nkey = "0123456789abcdef"', "rights"),
        ('[ann]\nkey = "0123456789abcdef"\nrights = ["infer", "all"]', "'all' of 'ann'; expected one of infer"),
        ('[ann]\nkey = "short"\nrights = []', "16 or more"),
        ('[ann]\nkey = "0123456789abcdeé"\nrights = []', "ASCII"),
        ('[ann]\nkeys = "0123456789abcdef"\nrights = []', "keys"),
        (f'[ann]\nkey="{ANN}"\nrights=[]\n[bob]\nkey="{ANN}"\nrights=[]', "the same key"),
    ],
)
def test_faults_of_a_key_file(tmp_path: Path, text: str, match: str) -> None:
    """The message names file, fault and fix, and repeats no key."""
    with pytest.raises(ConfigError, match=match) as caught:
        KeyFile(write(tmp_path / "keys.toml", text), GRANTED)
    assert "keys.toml" in str(caught.value)
    assert ANN not in str(caught.value)


@pytest.mark.parametrize("is_grpc", [False, True])
def test_restricted_calls(is_grpc: bool) -> None:  # noqa: FBT001
    """Calls of a group need its header, which gRPC's clients send under another name; the others need none."""
    access = Access(None, read_restrictions(["model-repository,statistics:Admin-Key=se=cr:et"]))
    header = "triton-grpc-protocol-admin-key" if is_grpc else "admin-key"

    def admit(right: Right, headers: dict[str, str]) -> str:
        return access.admit(right, headers, "x", is_grpc=is_grpc)

    assert admit(Right.INFERENCE, {}) == "x"
    assert admit(Right.STATISTICS, {header: "se=cr:et"}) == "x"
    for headers in ({}, {header: "wrong"}, {header: "é"}, {"other": "se=cr:et"}):
        what = "protocol" if is_grpc else "API"
        with pytest.raises(NotAuthorized, match=f"^This {what} is restricted, expecting header '{header}'$"):
            admit(Right.MODEL_REPOSITORY, headers)


def test_a_restriction_and_keys(keys: Path) -> None:
    """Both must be met."""
    access = Access(KeyFile(keys, GRANTED), read_restrictions(["inference:k=v"]))
    assert access.admit(Right.INFERENCE, {**bearer(ANN), "k": "v"}, "x") == "key ann"
    with pytest.raises(NotAuthorized, match="restricted"):
        access.admit(Right.INFERENCE, bearer(ANN), "x")
    with pytest.raises(Unauthenticated):
        access.admit(Right.INFERENCE, {"k": "v"}, "x")


def test_restrictions_in_either_form() -> None:
    """Triton's `CALLS:KEY=VALUE`, and `CALLS=KEY:VALUE`."""
    expected = {Right.MODEL_REPOSITORY: ("k", "v"), Right.STATISTICS: ("k", "v"), Right.HEALTH: ("h", "w")}
    assert read_restrictions(["model-repository,statistics:k=v", "health:h=w"]) == expected
    assert read_restrictions(["repository,statistics=k:v", "health=h:w"]) == expected


@pytest.mark.parametrize(
    "text", ["", "health", "health:k", "health:k=", "health:=v", "nothing:k=v", "health,health:k=v"]
)
def test_faults_of_a_restriction(text: str) -> None:
    """Each is refused with what is expected."""
    with pytest.raises(ConfigError, match="--restrict"):
        read_restrictions([text])


def test_many_wrong_keys_are_cheap(keys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is not looked at for each of them."""
    looks: list[Path] = []
    real: Callable[[Path], os.stat_result] = Path.stat
    access = Access(KeyFile(keys, GRANTED, Clock()))

    def look(path: Path) -> os.stat_result:
        looks.append(path)
        return real(path)

    monkeypatch.setattr(Path, "stat", look)
    for number in range(1000):
        with pytest.raises(Unauthenticated):
            access.admit(Right.INFERENCE, bearer(f"wrong {number}"), "x")
    assert looks == []

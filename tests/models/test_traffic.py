"""Labels of versions and the canary's share: what an order means, and how it is kept in a model's folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mqinfer.errors import ConfigError, InvalidRequest
from mqinfer.models.repository import Repository
from mqinfer.models.repository.traffic import TRAFFIC_FILE, Shadow, Traffic, read_traffic, write_traffic

WriteEcho = Callable[..., Path]


@pytest.mark.parametrize(
    ("before", "order", "after"),
    [
        (Traffic(), {"canary": 3, "share": 10}, Traffic(2, 3, 10)),
        (Traffic(), {"stable": 1}, Traffic(1, previous=2)),
        (Traffic(2, 3, 10), {"share": 50}, Traffic(2, 3, 50)),
        (Traffic(2, 3, 10), {"share": 0}, Traffic(2, 3, 0)),
        (Traffic(2, 3, 10), {"canary": 4}, Traffic(2, 4, 0)),
        (Traffic(2, 3, 10), {"stable": 3}, Traffic(3, previous=2)),
        (Traffic(2, 3, 10, 1), {"stable": 2}, Traffic(2, 3, 10, 1)),
        (Traffic(2, 3, 10, 1), {"stable": 1}, Traffic(1, 3, 10, 2)),
        (Traffic(3, previous=2), {"canary": 2, "share": 5}, Traffic(3, 2, 5, 2)),
        (Traffic(), {"canary": 3, "share": 10, "watch": True}, Traffic(2, 3, 10, watch=True)),
        (Traffic(2, 3, 10, watch=True), {"share": 50}, Traffic(2, 3, 50, watch=True)),
        (Traffic(2, 3, 10, watch=True), {"watch": False}, Traffic(2, 3, 10)),
        (Traffic(2, 3, 10, watch=True), {"canary": 4}, Traffic(2, 4, 0)),
        (Traffic(2, 3, 10, watch=True), {"stable": 3}, Traffic(3, previous=2)),
    ],
)
def test_what_an_order_means(before: Traffic, order: dict[str, Any], after: Traffic) -> None:
    """What is left out stays; a new canary begins without a share; a canary that becomes stable is none any more."""
    given: dict[str, Any] = {"stable": None, "canary": None, "share": None} | order
    assert before.moved(2, **given) == after


@pytest.mark.parametrize(
    ("order", "why"),
    [
        ({"canary": 2}, "version 2 is the stable one"),
        ({"share": 5}, "there is no canary"),
        ({"canary": 3, "share": 101}, "expected 0 to 100"),
        ({"watch": True}, "there is no canary to watch"),
    ],
)
def test_orders_that_are_refused(order: dict[str, Any], why: str) -> None:
    """The canary differs from the stable version, and a share needs one."""
    given: dict[str, Any] = {"stable": None, "canary": None, "share": None} | order
    with pytest.raises(InvalidRequest, match=why):
        Traffic().moved(2, **given)


@pytest.mark.parametrize(
    ("before", "order", "after"),
    [
        (Traffic(2), (3, 10, None), Shadow(3, 10)),
        (Traffic(2), (3, 10, 0.0), Shadow(3, 10, 0.0)),
        (Traffic(2, shadow=Shadow(3, 10, 0.5)), (None, 20, None), Shadow(3, 20, 0.5)),
        (Traffic(2, shadow=Shadow(3, 10, 0.5)), (3, None, 0.1), Shadow(3, 10, 0.1)),
        (Traffic(2, shadow=Shadow(3, 10, 0.5)), (4, 5, None), Shadow(4, 5)),
        (Traffic(2, shadow=Shadow(3, 10)), (None, 0, None), None),
        (Traffic(2, shadow=Shadow(3, 10)), (None, None, None), Shadow(3, 10)),
    ],
)
def test_what_an_order_for_a_shadow_means(before: Traffic, order: tuple[Any, Any, Any], after: Shadow | None) -> None:
    """What is left out stays, of another version nothing does, and a share of 0 ends it."""
    assert before.shadowed(*order) == replace(before, shadow=after)


@pytest.mark.parametrize(
    ("before", "order", "why"),
    [
        (Traffic(2, 3), (2, 10, None), "version 2 is the stable one or the canary"),
        (Traffic(2, 3), (3, 10, None), "version 3 is the stable one or the canary"),
        (Traffic(2), (3, None, None), "--shadow-share is missing"),
        (Traffic(2), (None, 10, None), "--shadow is missing"),
        (Traffic(2), (None, None, 0.1), "--shadow is missing"),
        (Traffic(2), (3, 101, None), "expected 1 to 100"),
        (Traffic(2), (3, 10, float("nan")), "tolerance = nan: expected"),
    ],
)
def test_orders_for_a_shadow_that_are_refused(before: Traffic, order: tuple[Any, Any, Any], why: str) -> None:
    """It is neither the stable version nor the canary, and needs a version, a share and a tolerance that is one."""
    with pytest.raises(InvalidRequest, match=why):
        before.shadowed(*order)


def test_a_shadow_beside_other_labels(tmp_path: Path) -> None:
    """It stays with a new canary and a rollback of that, ends where it becomes stable, and stands in the file."""
    policy = Traffic(2, 4, 10, shadow=Shadow(3, 5, 0.25))
    assert policy.labels == {"stable": "2", "canary": "4", "shadow": "3"}
    assert policy.rolled_back() == Traffic(2, shadow=Shadow(3, 5, 0.25))
    assert policy.moved(2, stable=3, canary=None, share=None) == Traffic(3, 4, 10, previous=2)
    assert policy.moved(2, stable=None, canary=3, share=1) == Traffic(2, 3, 1)
    assert policy.among([2, 4]).shadow is None
    assert policy.among([2, 3]).shadow == policy.shadow
    assert (policy.shadow_of(2), policy.shadow_of(4)) == (policy.shadow, None)
    write_traffic(tmp_path, policy)
    assert read_traffic(tmp_path) == policy
    for line in ("shadow = { version = 2, share = 5 }", "shadow = { version = 3, share = 0 }", "shadow = 3"):
        (tmp_path / TRAFFIC_FILE).write_text(f"stable = 2\n{line}\n")
        with pytest.raises(ConfigError, match=r"traffic.toml: shadow"):
            read_traffic(tmp_path)


def test_a_rollback_ends_the_canary_first() -> None:
    """Then it goes back to the stable version of before, once."""
    promoted = Traffic(3, 4, 10, previous=2)
    assert promoted.rolled_back() == Traffic(3, previous=2)
    assert promoted.rolled_back().rolled_back() == Traffic(2)
    with pytest.raises(InvalidRequest, match="nothing to roll back"):
        Traffic(2).rolled_back()


def test_any_label(tmp_path: Path) -> None:
    """Further labels stay through orders, rollbacks and the file; a name that is none is refused."""
    others = (("champion", 3), ("last.good-1", 1))
    policy = Traffic(2, 3, 10, others=others, watch=True)
    write_traffic(tmp_path, policy)
    assert read_traffic(tmp_path) == policy
    assert policy.labels == {"stable": "2", "canary": "3", "champion": "3", "last.good-1": "1"}
    assert policy.moved(2, stable=3, canary=None, share=None).others == others
    assert policy.rolled_back().others == others
    assert policy.among([1, 2]).labels == {"stable": "2", "last.good-1": "1"}
    for label in ("7", "a/b", "stable", ""):
        (tmp_path / TRAFFIC_FILE).write_text(f'others = {{ "{label}" = 1 }}\n')
        with pytest.raises(ConfigError, match="labels that begin with a letter"):
            read_traffic(tmp_path)


def test_labelled_versions_are_served(write_echo: WriteEcho) -> None:
    """Also where the version policy selects others; the stable one is the default."""
    for version in (1, 2, 3):
        repository = write_echo("echo", version=version)

    def served() -> list[tuple[int, bool]]:
        return [(each.version, each.is_default) for each in Repository(repository).models()]

    assert served() == [(3, True)]
    write_traffic(repository / "echo", Traffic(2, 3, 10))
    assert served() == [(2, True), (3, False)]
    assert {each.traffic for each in Repository(repository).models()} == {Traffic(2, 3, 10)}
    assert Repository(repository).find("echo").version == 2
    write_traffic(repository / "echo", Traffic(others=(("champion", 1),)))
    assert served() == [(1, False), (3, True)]
    write_traffic(repository / "echo", Traffic(1))
    assert served() == [(1, True), (3, False)]
    write_traffic(repository / "echo", Traffic())
    assert not (repository / "echo" / TRAFFIC_FILE).exists()
    assert served() == [(3, True)]


def test_a_label_without_its_version(write_echo: WriteEcho) -> None:
    """It is a problem of the model; what is there is served, and the canary alone does not become the default."""
    for version in (2, 3):
        repository = write_echo("echo", version=version)
    write_traffic(repository / "echo", Traffic(1, 3, 10))
    scan = Repository(repository).scan()
    assert [(each.version, each.is_default, each.traffic) for each in scan.models] == [(3, True, Traffic(None, 3, 10))]
    (problem,) = scan.problems
    assert problem.reason.endswith(
        f"{TRAFFIC_FILE}: stable = 1: there is no such version; there are [2, 3]; edit or remove the file, or put the "
        "version back"
    )


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("stabel = 2", "stabel.*stable"),
        ("share = 101", "share = 101: expected a whole number from 0 to 100"),
        ("stable = '2'", "stable = '2': expected a whole number"),
        ("stable = 2\ncanary = 2", "canary = 2: expected another version"),
        ("stable", "not valid TOML"),
    ],
)
def test_files_that_are_wrong(tmp_path: Path, text: str, why: str) -> None:
    """File, key and what is expected."""
    (tmp_path / TRAFFIC_FILE).write_text(text)
    with pytest.raises(ConfigError, match=rf"{TRAFFIC_FILE}: .*{why}"):
        read_traffic(tmp_path)


def test_what_was_written_is_read(tmp_path: Path) -> None:
    """Version 0 too; a folder that can't be written is an error."""
    for traffic in (Traffic(0, 1, 100), Traffic(2, previous=0), Traffic(2, 3)):
        write_traffic(tmp_path, traffic)
        assert read_traffic(tmp_path) == traffic
    with pytest.raises(ConfigError, match=r"can't be written: .*; nothing was changed"):
        write_traffic(tmp_path / "absent", Traffic(1))

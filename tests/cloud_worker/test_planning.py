from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqinfer.broker.address import BrokerAddress
from mqinfer.cloud_worker.serving.options import WorkerOptions
from mqinfer.cloud_worker.supervision.planning import is_same, plan, plan_versions, reconcile, resized
from mqinfer.cloud_worker.supervision.process import ProcessSpec
from mqinfer.models.repository import Repository

WriteEcho = Callable[..., Path]
TEMPLATE = ProcessSpec(Path(), "", 0, BrokerAddress("localhost"), WorkerOptions("w"))
ALL = "version_policy = { all = {} }\n"


def spec(version: int, name: str = "w.0") -> ProcessSpec:
    """Make a process of model `m`."""
    return ProcessSpec(Path(), "m", version, BrokerAddress("localhost"), WorkerOptions(name))


def versions(specs: tuple[ProcessSpec, ...] | list[ProcessSpec]) -> list[int]:
    """List their versions in order."""
    return sorted(each.version for each in specs)


numbers = st.lists(st.integers(1, 4), max_size=6)


@given(numbers, numbers, st.sets(st.integers(0, 9).map("w.{}".format)))
def test_reconciling_yields_the_wanted_processes(running: list[int], wanted: list[int], taken: set[str]) -> None:
    """Kept and started processes are the wanted ones, kept and drained ones are the running ones; names are unique."""
    free = [name for number in range(30) if (name := f"w.{number}") not in taken]
    now = [spec(version, name) for version, name in zip(running, free, strict=False)]
    changes = reconcile(now, [spec(version) for version in wanted], "w", taken)
    by_name = {each.options.name: each.version for each in now}
    assert sorted([*versions(changes.start), *(by_name[name] for name in changes.keep)]) == sorted(wanted)
    assert sorted([*changes.keep, *changes.drain]) == sorted(by_name)
    names = [each.options.name for each in changes.start]
    assert len({*names, *by_name, *taken}) == len(names) + len({*by_name, *taken})
    assert not {by_name[name] for name in changes.drain} & set(versions(changes.start))


@given(numbers, st.randoms())
def test_the_same_processes_in_another_order_are_the_same(wanted: list[int], random: Random) -> None:
    """Names and order are ignored; one process more or less is a difference."""
    one = [spec(version, f"w.{number}") for number, version in enumerate(wanted)]
    other = [spec(version) for version in wanted]
    random.shuffle(other)
    assert is_same(one, other)
    assert not is_same(one, [*other, spec(1)])
    assert not is_same([*one, spec(1)], other)


def test_numbers_are_reused() -> None:
    """New processes get the lowest free numbers, so that few retained names stay on the broker."""
    changes = reconcile([spec(1, "w.1")], [spec(2), spec(2)], "w", taken={"w.0", "w.3"})
    assert [each.options.name for each in changes.start] == ["w.2", "w.4"]
    assert changes.drain == ("w.1",)


def test_changes_that_need_another_process(write_echo: WriteEcho) -> None:
    """Other content, another configuration and another default version change a spec; a touched file does not."""
    repository = write_echo("a")
    before = plan(Repository(repository), TEMPLATE)
    file = repository / "a" / "1" / "model.echo"
    file.touch()
    assert is_same(before, plan(Repository(repository), TEMPLATE))
    file.write_text(file.read_text(encoding="utf-8") + "\n", encoding="utf-8")
    changed = plan(Repository(repository), TEMPLATE)
    assert not is_same(before, changed)
    (repository / "a" / "model.toml").write_text(ALL, encoding="utf-8")
    configured = plan(Repository(repository), TEMPLATE)
    assert not is_same(changed, configured)
    write_echo("a", version=2)
    both = plan(Repository(repository), TEMPLATE)
    assert [(each.version, each.found and each.found.is_default, each.versions) for each in both] == [
        (1, False, (1,)),
        (2, True, (1, 2)),
    ]
    handed_over = reconcile(configured, both, "w")
    assert versions(handed_over.start) == [1, 2]  # the old default takes part as an ordinary version


def test_only_the_default_version_depends_on_the_others(write_echo: WriteEcho) -> None:
    """A new version below the default one replaces only the default's process, which publishes the card."""
    write_echo("a", version=1, config=ALL)
    repository = write_echo("a", version=5)
    before = plan(Repository(repository), TEMPLATE)
    write_echo("a", version=3)
    changes = reconcile(before, plan_versions(Repository(repository).models(), TEMPLATE), "w")
    assert (versions(changes.start), changes.keep, changes.drain) == ([3, 5], ("w.0",), ("w.1",))


@pytest.mark.timeout(60)
@pytest.mark.parametrize("file", ["model.onnx", "weights.bin"])
def test_a_file_larger_than_memory_holds_up_nobody(write_echo: WriteEcho, file: str) -> None:
    """It is not read for its hash, which would take hours in which nothing is served; its process reports it."""
    repository = write_echo("good")
    (write_echo("bad") / "bad" / "1" / "model.echo").rename(repository / "bad" / "1" / "model.onnx")
    with (repository / "bad" / "1" / file).open("ab") as large:
        large.truncate(1 << 42)
    planned = {each.model: each.content for each in plan(Repository(repository), TEMPLATE)}
    assert planned["bad"] == ""
    assert planned["good"]


def test_another_number_of_instances(write_echo: WriteEcho) -> None:
    """More of each version start beside those that run, which stay; without any all of them end."""
    write_echo()
    running = plan(Repository(write_echo(version=2, config=ALL)), TEMPLATE)
    changes = reconcile(running, resized(running, TEMPLATE, 3), "w")
    assert (versions(changes.start), changes.keep, changes.drain) == ([1, 1, 2, 2], ("w.0", "w.1"), ())
    fewer = reconcile(resized(running, TEMPLATE, 3), resized(running, TEMPLATE, 1), "w")
    assert (len(fewer.start), len(fewer.keep), len(fewer.drain)) == (0, 2, 4)
    assert resized(running, TEMPLATE, 0) == []

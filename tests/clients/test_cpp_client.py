"""The C++ client: golden and broken messages, and a real Mosquitto with real workers, under sanitizers."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mqinfer.protocol.topics import Topics
from tests.clients.cpp import built, counters
from tests.clients.live import (
    check_first_program,
    finished,
    forger,
    lines_until,
    output,
    output_while_killed,
    results_after_damage,
    running,
    secured_broker,
    worker,
    write_deadly,
    write_models,
)
from tests.golden.test_golden import FOLDER
from tests.ports import free_port

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def programs() -> Path:
    """Folder of the programs, with the sanitizers for memory and undefined behaviour."""
    return built("address,undefined", "golden", "live", "infer")


def test_golden_and_broken_messages(programs: Path) -> None:
    """Each golden message is read, and written again byte by byte; each broken one is refused with its code."""
    said = output(programs / "golden", FOLDER).strip()
    assert re.fullmatch(r"10 golden messages, 1[89]\d broken ones", said)


@pytest.mark.broker
def test_answers_and_errors(
    programs: Path,
    broker_url: str,
    unique: Callable[[str], str],
    write_echo: Callable[..., Path],
    tmp_path: Path,
) -> None:
    """Numbers, words, 64-bit integers, masks, chosen outputs; each fault ends with the code that it should."""
    root = unique("test")
    with worker(broker_url, root, write_models(write_echo), unique("w"), tmp_path / "log"):
        lines = output(programs / "live", "answers", broker_url, root).splitlines()
    found = dict(line.split(": ", 1) for line in lines if ": " in line)
    halved = "y=2.500000,3.000000,4.500000"
    assert found == {
        "half_plus_two": halved,
        "version": halved,
        "words": f"words=<grün:5><:0><{'a' * 8}:5000>",
        "int64": f"big={-(2**63)},{2**53 + 1}",
        "outputs": "b=7,8",
        "lz4": "x=" + ",".join(["2.000000"] * 8),
        "shuffle": "x=" + ",".join(["2.000000"] * 8),
        "mask": "same camera",
        "wrong_tensor": "bad_tensor",
        "wrong_name": "thrown bad_topic",
        "wrong_version": "thrown bad_topic",
        "too_large": "message_too_large",
        "slow": "x=" + ",".join(["0.000000"] * 4),
        "expired": "expired",
        "cancel": "10 cancelled",
        "typed": "bad_tensor",
        "closed": "cancelled",
        "unknown": "no_worker",
        "crowded": "expired expired rejected",
    }
    (numbers,) = [counters(line) for line in lines if line.startswith("submitted=")]
    outcomes = ("ok", "error", "expired", "superseded", "rejected", "cancelled")
    assert sum(numbers[name] for name in outcomes) == numbers["submitted"]
    assert {numbers[name] for name in ("pending", "malformed", "mismatched", "bad_states")} == {0}


@pytest.mark.full
@pytest.mark.parametrize("sanitizers", ["address,undefined", "thread"])
def test_a_thousand_answers_while_worker_and_broker_are_killed(
    sanitizers: str, write_echo: Callable[..., Path], unique: Callable[[str], str], tmp_path: Path
) -> None:
    """Each of 1,000 requests gets its own result, once, while the worker is killed four times and the broker twice."""
    live: list[str | Path] = [built(sanitizers, "live") / "live"]
    if sanitizers == "thread":  # its shadow memory lies where kernels of 2024 and later put libraries at random
        live = ["setarch", "--addr-no-randomize", *live]
    root = unique("test")
    told = output_while_killed(
        write_echo("echo", delay_ms=4), root, tmp_path / "log", lambda url: [*live, "many", url, root, "1000"]
    )
    *_, said, last = told.splitlines()
    assert said == "answered=1000 wrong=0 twice=0"
    numbers = counters(last)
    assert (numbers["submitted"], numbers["ok"], numbers["pending"]) == (1000, 1000, 0)
    assert {numbers[name] for name in ("in_flight", "malformed", "mismatched", "bad_states")} == {0}
    assert numbers["retries"] > 0


@pytest.mark.broker
def test_a_reply_of_another_is_no_result(programs: Path, broker_url: str, unique: Callable[[str], str]) -> None:
    """Damaged, foreign and retained replies are counted; the first that belongs to the request ends it."""
    root, model = unique("test"), "forged"
    with forger(broker_url, root, model, "asker"):
        lines = output(programs / "live", "one", broker_url, root, "asker", model).splitlines()
    assert lines[:2] == ["connected", "ok"]
    numbers = counters(lines[2])
    assert (numbers["ok"], numbers["malformed"], numbers["mismatched"], numbers["late"]) == (1, 1, 3, 1)


@pytest.mark.broker
def test_what_a_callback_and_a_fork_may_not_do(programs: Path, broker_url: str, unique: Callable[[str], str]) -> None:
    """Waiting in a callback, or using another process's client, is an error at once; a callback may end its client."""
    lines = output(programs / "live", "misuse", broker_url, unique("test")).splitlines()
    assert lines == [
        "waiting: config_error config_error",
        "fork: config_error config_error config_error",
        "child: 0",
        "parent: expired",
        "name: thrown bad_envelope",
    ]


@pytest.mark.broker
def test_a_request_that_crashes_two_workers_is_poison(
    programs: Path, broker_url: str, unique: Callable[[str], str], write_echo: Callable[..., Path], tmp_path: Path
) -> None:
    """It ends with the second crash, and is sent to no further worker."""
    root = unique("test")
    with worker(broker_url, root, write_deadly(write_echo), unique("w"), tmp_path / "log"):
        lines = output(programs / "live", "one", broker_url, root, "asker", "deadly").splitlines()
    assert lines[1].startswith("poison: model 'deadly': the workers "), lines
    assert counters(lines[2])["error"] == 1


@pytest.mark.broker
def test_the_results_of_others(
    programs: Path,
    broker_url: str,
    unique: Callable[[str], str],
    write_echo: Callable[..., Path],
    serve: Callable[..., Any],
) -> None:
    """Watches receive what a Python client is answered; a small buffer drops the oldest, damage is counted."""
    root, model = unique("test"), "echo"
    served = serve(broker_url, write_echo(model), topics=Topics(root))
    with running(programs / "live", "watching", broker_url, root, model, "5") as process:
        lines_until(process, "watching")
        results = results_after_damage(broker_url, root, model)
        *seen, first, second = finished(process).splitlines()
    assert seen == [
        f"other {result.id} ok {served.name} x={','.join([f'{number:.6f}'] * 4)}"
        for number, result in enumerate(results)
    ]
    assert counters(first) == {"received": 7, "dropped": 0, "malformed": 2, "retained": 0}
    assert counters(second) == {"received": 7, "dropped": 3, "malformed": 2, "retained": 0}


@pytest.mark.broker
def test_logins_over_tls(programs: Path, write_echo: Callable[..., Path], serve: Callable[..., Any]) -> None:
    """A wrong password ends for good and says what to check; a certificate of an unknown authority is no connection."""
    with secured_broker() as broker:
        serve(broker.address, write_echo("echo"), name="w.0")
        car = broker.car
        login = ["login", broker.url, "mqinfer/v1", "car-1", str(car.password), str(car.ca_file)]
        lines = output(programs / "live", *login).splitlines()
    assert lines[0] == "right: car-1 w.0"
    assert re.fullmatch("wrong: not_authorized .*; check user and password", lines[1])
    assert re.fullmatch("without: not_authorized .*; it wants a user and a password", lines[2])
    assert lines[3].startswith("stranger: broker_unreachable ")
    assert lines[4].startswith("another's name: not_authorized ")


@pytest.mark.broker
def test_the_first_program(programs: Path, broker_url: str, serve: Callable[..., Any], tmp_path: Path) -> None:
    """The example runs as it is printed, over the model's lane and without TLS; without a broker it says so."""
    check_first_program(programs / "infer", broker_url, serve, tmp_path)
    with running(programs / "infer", f"mqtt://127.0.0.1:{free_port()}") as process:
        _, error = process.communicate()
    assert re.fullmatch(r"broker_unreachable: no connection to 127\.0\.0\.1:\d+: Connection refused\n", error)

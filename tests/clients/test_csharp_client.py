"""The C# client under Mono: golden and broken messages, and a real Mosquitto with real workers."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mqinfer.codecs import decode_tensor, encode_tensor
from mqinfer.protocol.checksum import checksum
from mqinfer.protocol.topics import Topics
from tests.clients.cpp import counters
from tests.clients.csharp import CLIENT, built
from tests.clients.live import (
    SecuredBroker,
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

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
_LENGTHS = [*range(300), *range(1000, 1100), 2048, 2049, 4095, 65536, 100_001]


@pytest.fixture(scope="module", params=["sockets", pytest.param("mqttnet", marks=pytest.mark.full)])
def programs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the programs, whose messages their own MQTT carries, or MQTTnet's."""
    folder = tmp_path_factory.mktemp("csharp")
    if request.param == "sockets":
        return built(folder)
    if (library := os.environ.get("MQINFER_MQTTNET")) is None:
        pytest.skip("MQINFER_MQTTNET must name an MQTTnet.dll of 4.3: there is none in Debian")
    return built(folder, Path(library))


def test_golden_and_broken_messages(programs: Path) -> None:
    """Each golden message is read, and written again byte by byte; each broken one is refused with its code."""
    said = output(programs / "tests", "golden", FOLDER).strip()
    assert re.fullmatch(r"10 golden messages, 1[89]\d broken ones", said)


def test_checksums(programs: Path) -> None:
    """Those of Python, for each length at which XXH3 takes another way, wherever in an array the bytes lie."""
    found = output(programs / "tests", "checksums", *map(str, _LENGTHS)).split()
    assert found == [checksum([bytes(place * 131 % 256 for place in range(length))])[1] for length in _LENGTHS]


def test_damage_of_every_kind(programs: Path) -> None:
    """Damaged messages, states and packets end with the errors that are meant for them, and with no other."""
    numbers = counters(output(programs / "tests", "fuzz", FOLDER, "4000"))
    assert sum(numbers.values()) == 3 * 4000
    assert min(numbers[code] for code in ("ok", "bad_envelope", "bad_tensor", "bad_encoding", "malformed_packet")) > 0


@pytest.mark.broker
def test_answers_and_errors(
    programs: Path,
    broker_url: str,
    unique: Callable[[str], str],
    write_echo: Callable[..., Path],
    tmp_path: Path,
) -> None:
    """Numbers, words, 64-bit integers, masks, pictures, chosen outputs; each fault ends with its code."""
    root, jpeg = unique("test"), tmp_path / "a.jpg"
    write_echo("picture", ("picture", "UINT8", [-1, 16, 16, 3]))
    encoded = encode_tensor("picture", np.arange(16 * 16 * 3, dtype=np.uint8).reshape(16, 16, 3), "jpeg:90")
    jpeg.write_bytes(bytes(encoded.data))
    with worker(broker_url, root, write_models(write_echo), unique("w"), tmp_path / "log"):
        lines = output(programs / "tests", "answers", broker_url, root, jpeg).splitlines()
    found = dict(line.split(": ", 1) for line in lines if ": " in line)
    pixels = decode_tensor(encoded).reshape(-1)[:8]
    assert found == {
        "half_plus_two": "y=2.5,3,4.5",
        "version": "y=2.5,3,4.5",
        "words": f"words=<grün:4><:0><{'a' * 8}:5000>",
        "int64": f"big={-(2**63)},{2**53 + 1}",
        "outputs": "b=7,8",
        "lz4": "x=" + ",".join(["2"] * 8),
        "shuffle": "x=" + ",".join(["2"] * 8),
        "mask": "same camera",
        "jpeg": "picture=" + ",".join(map(str, pixels)),
        "wrong_tensor": "bad_tensor",
        "wrong_name": "bad_topic",
        "wrong_version": "bad_topic",
        "wrong_parameter": "bad_envelope",
        "too_large": "limit_exceeded",
        "slow": "x=0,0,0,0",
        "expired": "expired",
        "cancel": "Canceled Canceled",
        "closed": "cancelled",
        "unknown": "no_worker",
        "crowded": "expired expired rejected",
    }
    (numbers,) = [counters(line) for line in lines if line.startswith("submitted=")]
    outcomes = ("ok", "error", "expired", "superseded", "rejected", "cancelled")
    assert sum(numbers[name] for name in outcomes) == numbers["submitted"]
    assert {numbers[name] for name in ("pending", "malformed", "mismatched", "bad_states")} == {0}


@pytest.mark.full
def test_a_thousand_answers_while_worker_and_broker_are_killed(
    programs: Path, write_echo: Callable[..., Path], unique: Callable[[str], str], tmp_path: Path
) -> None:
    """Each of 1,000 requests gets its own result, once, while the worker is killed four times and the broker twice."""
    root = unique("test")
    told = output_while_killed(
        write_echo("echo", delay_ms=4),
        root,
        tmp_path / "log",
        lambda url: [programs / "tests", "many", url, root, "1000"],
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
        lines = output(programs / "tests", "one", broker_url, root, "asker", model).splitlines()
    assert lines[:2] == ["connected", "one: x=1,1,1,1"]
    numbers = counters(lines[2])
    assert (numbers["ok"], numbers["malformed"], numbers["mismatched"], numbers["late"]) == (1, 1, 3, 1)


@pytest.mark.broker
def test_a_request_that_crashes_two_workers_is_poison(
    programs: Path, broker_url: str, unique: Callable[[str], str], write_echo: Callable[..., Path], tmp_path: Path
) -> None:
    """It ends with the second crash, and is sent to no further worker."""
    root = unique("test")
    with worker(broker_url, root, write_deadly(write_echo), unique("w"), tmp_path / "log"):
        lines = output(programs / "tests", "one", broker_url, root, "asker", "deadly").splitlines()
    assert lines[1].startswith("one: poison: "), lines
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
    with running(programs / "tests", "watching", broker_url, root, model, "5") as process:
        lines_until(process, "watching")
        results = results_after_damage(broker_url, root, model)
        *seen, first, second, end = finished(process).splitlines()
    assert seen == [
        f"other {result.id} Ok {served.name} x={','.join([str(number)] * 4)}" for number, result in enumerate(results)
    ]
    assert counters(first) == {"received": 7, "dropped": 0, "malformed": 2, "retained": 0}
    assert counters(second) == {"received": 7, "dropped": 3, "malformed": 2, "retained": 0}
    assert end == "ended True"


@pytest.mark.broker
def test_logins_over_tls(
    programs: Path, write_echo: Callable[..., Path], serve: Callable[..., Any], tmp_path: Path
) -> None:
    """A wrong password ends for good and says what to check; an unknown authority or another host ends it."""
    with secured_broker() as broker:
        serve(broker.address, write_echo("echo"), name="w.0")
        said = output(programs / "tests", *_certificate(broker, broker.driver.ca_file, tmp_path))
        if (programs / "MQTTnet.dll").exists():
            assert "on Mono MQTTnet can't check against CaFile" in said
            return
        assert said == "certificate: car-3 w.0\n"
        lines = output(programs / "tests", *_login(broker, broker.car.ca_file)).splitlines()
    _check_logins(lines)
    assert lines[3].startswith("stranger: broker_unreachable ")


@pytest.mark.broker
def test_the_systems_authorities(
    programs: Path,
    write_echo: Callable[..., Path],
    serve: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without `CaFile` the broker's authority must be one of them: here it is added to those of Mono's user."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    with secured_broker() as broker:
        serve(broker.address, write_echo("echo"), name="w.0")
        certificate = _certificate(broker, "", tmp_path)
        assert output(programs / "tests", *certificate).startswith("certificate: broker_unreachable ")
        name = ["openssl", "x509", "-noout", "-hash", "-in", str(broker.car.ca_file)]
        of_subject = subprocess.run(name, capture_output=True, text=True, check=True).stdout.strip()
        trusted = tmp_path / ".mono" / "new-certs" / "Trust" / f"{of_subject}.0"
        trusted.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(str(broker.car.ca_file), trusted)
        assert output(programs / "tests", *certificate) == "certificate: car-3 w.0\n"
        _check_logins(output(programs / "tests", *_login(broker, "")).splitlines())


def _certificate(broker: SecuredBroker, ca_file: str | Path | None, folder: Path) -> list[str]:
    driver, pkcs12 = broker.driver, folder / "car-3.p12"
    files = ["-in", str(driver.cert_file), "-inkey", str(driver.key_file), "-out", str(pkcs12)]
    # Mono reads no newer forms of such a file.
    form = ["-keypbe", "PBE-SHA1-3DES", "-certpbe", "PBE-SHA1-3DES", "-macalg", "sha1", "-passout", "pass:secret"]
    subprocess.run(["openssl", "pkcs12", "-export", *files, *form], check=True)
    url = f"mqtts://localhost:{broker.address.port}"
    return ["certificate", url, "mqinfer/v1", str(ca_file), str(pkcs12), "secret"]


def _login(broker: SecuredBroker, ca_file: str | Path | None) -> list[str]:
    url = broker.url.replace("127.0.0.1", "localhost")
    return ["login", url, "mqinfer/v1", "car-1", str(broker.car.password), str(ca_file)]


def _check_logins(lines: list[str]) -> None:
    assert lines[0] == "right: car-1 w.0"
    assert re.fullmatch("wrong: not_authorized .*; check user and password", lines[1])
    assert re.fullmatch("without: not_authorized .*; it wants a user and a password", lines[2])
    assert lines[4].startswith("host: broker_unreachable ")
    assert lines[5].startswith("another's name: not_authorized ")


@pytest.mark.broker
def test_the_first_program(programs: Path, broker_url: str, serve: Callable[..., Any], tmp_path: Path) -> None:
    """The example is what the README prints, and runs against the library alone."""
    readme = (CLIENT / "README.md").read_text(encoding="utf-8")
    assert f"```csharp\n{(CLIENT / 'examples' / 'Infer.cs').read_text(encoding='utf-8')}```\n" in readme
    check_first_program(programs / "infer", broker_url, serve, tmp_path)

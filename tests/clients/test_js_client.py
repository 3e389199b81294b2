"""The JavaScript client in node against a real Mosquitto and real workers."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mqinfer.broker.mosquitto.configuration import render
from mqinfer.broker.mosquitto.server import MosquittoServer
from mqinfer.lab import zoo
from mqinfer.protocol.topics import Topics
from tests.clients.live import (
    finished,
    lines_until,
    opened,
    output,
    output_while_killed,
    results_after_damage,
    running,
    secured_broker,
    worker,
    write_half_plus_two,
    write_models,
)
from tests.clients.node import compiled, example, node, program
from tests.clients.pages import ROOT, Pages, chromium_page
from tests.patience import PATIENCE_S, wait_until
from tests.ports import free_port

pytestmark = [pytest.mark.broker, pytest.mark.slow]


@pytest.fixture(scope="module")
def programs() -> Iterator[Path]:
    """Folder of the compiled programs."""
    with compiled() as folder:
        yield folder


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
        found = json.loads(output(*node(programs / "test" / "live" / "answers.js", broker_url, root)))

    assert found["half_plus_two"] == {"y": {"datatype": "FP32", "shape": [3], "data": [2.5, 3.0, 4.5]}}
    assert found["version"] == {"y": {"datatype": "FP32", "shape": [1], "data": [2.5]}}
    assert found["words"]["words"]["data"] == ["grün", "", "a" * 5000]
    assert found["int64"]["big"]["data"] == [str(-(2**63)), str(2**53 + 1)]
    assert found["outputs"] == {"b": {"datatype": "UINT8", "shape": [2], "data": [7, 8]}}
    assert found["lz4"]["x"]["data"] == [2] * 8
    assert found["mask"]["mask"] == {"datatype": "UINT8", "shape": [1, 48, 64], "data": found["same_mask"]}
    assert found["slow"]["x"]["data"] == [0] * 4
    codes = {name: value["code"] for name, value in found.items() if isinstance(value, dict) and "code" in value}
    assert codes == {
        "wrong_tensor": "bad_tensor",
        "wrong_name": "bad_topic",
        "wrong_elements": "bad_tensor",
        "too_large": "message_too_large",
        "expired": "expired",
        "cancelled": "cancelled",
        "aborted": "cancelled",
        "closed": "cancelled",
        "mistyped": "no_worker",
        "without_version": "no_worker",
        "card": "model_not_found",
    }
    served = "models that workers serve here: echo, half_plus_two, integers, mask, slow, two, words"
    assert found["mistyped"]["message"] == (
        "no worker serves model half_plus_tow; start one, or check its name and version "
        f'({served}; did you mean "half_plus_two"?)'
    ), found["mistyped"]
    assert found["without_version"]["message"].endswith(
        "half_plus_two in version 7; start one, or check its name and version (versions of it: 123)"
    )
    assert re.fullmatch(
        r'no worker has published a card of model "half_plus_tow" in 0\.1 s; check its name '
        + re.escape(f'({served}; did you mean "half_plus_two"?)'),
        found["card"]["message"],
    )
    assert found["crowded"] == ["expired", "expired", "rejected"]
    counters = found["counters"]
    assert (counters["pending"], counters["malformed"], counters["mismatched"]) == (0, 0, 0)
    assert sum(counters["outcomes"].values()) == counters["submitted"]


@pytest.mark.full
def test_a_thousand_answers_while_worker_and_broker_are_killed(
    programs: Path, write_echo: Callable[..., Path], unique: Callable[[str], str], tmp_path: Path
) -> None:
    """Each of 1,000 requests gets its own result, once, while the worker is killed four times and the broker twice."""
    root = unique("test")
    said = output_while_killed(
        write_echo("echo", delay_ms=4),
        root,
        tmp_path / "log",
        lambda url: node(programs / "test" / "live" / "many.js", url, root, "1000"),
    )
    counters = json.loads(said.splitlines()[-1])
    assert (counters["answered"], counters["requests"], counters["submitted"]) == (1000, 1000, 1000)
    assert counters["outcomes"] == {
        "ok": 1000,
        "error": 0,
        "expired": 0,
        "superseded": 0,
        "rejected": 0,
        "cancelled": 0,
    }
    assert (counters["pending"], counters["inFlight"], counters["malformed"], counters["mismatched"]) == (0, 0, 0, 0)
    assert counters["retries"] > 0


@pytest.mark.full
def test_a_standby_takes_over_and_gives_back(
    programs: Path, write_echo: Callable[..., Path], unique: Callable[[str], str], tmp_path: Path
) -> None:
    """Over websockets, each of many requests gets its own result: the first of two brokers is killed and returns."""
    root = unique("test")
    with ExitStack() as stack:
        ports = free_port(), free_port()
        first, standby = (
            stack.enter_context(MosquittoServer(configuration=partial(render, websockets_port=port))) for port in ports
        )
        both = f"{first.url},127.0.0.1:{standby.port}"
        stack.enter_context(worker(both, root, write_echo("echo", delay_ms=4), unique("w"), tmp_path / "log"))
        url = f"ws://127.0.0.1:{ports[0]},127.0.0.1:{ports[1]}"
        process = stack.enter_context(running(*node(programs / "test" / "live" / "many.js", url, root, "0")))
        lines_until(process, "100")
        first.kill()
        lines_until(process, "300")
        first.start()
        came_back = threading.Event()
        link = stack.enter_context(opened(first.url, unique("watcher")))
        link.subscribe(f"{root}/+/+/infer/#", lambda _: came_back.set())
        assert came_back.wait(PATIENCE_S)
        counters = json.loads(finished(process).splitlines()[-1])
    assert counters["answered"] == counters["requests"] == counters["outcomes"]["ok"] == counters["submitted"] > 300
    assert (counters["pending"], counters["malformed"], counters["mismatched"]) == (0, 0, 0)


def has_answered(page: Any, count: int) -> bool:
    """Return whether a page has got so many results."""
    return bool(page.evaluate("() => window.answered ?? 0") >= count)


def test_answers_in_a_browser(
    programs: Path, write_echo: Callable[..., Path], unique: Callable[[str], str], tmp_path: Path
) -> None:
    """Each of 100 requests of a page gets its own result, over websockets, while the worker is killed."""
    root, port = unique("test"), free_port()
    with ExitStack() as stack:
        configuration = partial(render, websockets_port=port)
        broker = stack.enter_context(MosquittoServer(configuration=configuration))
        server = stack.enter_context(
            worker(broker.url, root, write_echo("echo", delay_ms=20), unique("w"), tmp_path / "log")
        )
        url = f"ws://127.0.0.1:{port}"
        pages = stack.enter_context(Pages({"/dist/": programs}, {}, connect=url))
        page = stack.enter_context(chromium_page(pages.address))
        call = f"import('/dist/test/live/in_page.js').then((all) => all.many('{url}', '{root}', 100))"
        page.evaluate(f"() => {{ window.run = {call}; }}")
        wait_until(partial(has_answered, page, 20))
        server.kill()  # once: with so few requests the retry budget is no larger than what is lost with a worker
        server.start()
        counters = page.evaluate("() => window.run")
    assert (counters["submitted"], counters["pending"], counters["outcomes"]["ok"]) == (100, 0, 100)
    assert (counters["malformed"], counters["mismatched"]) == (0, 0)


def test_lanes(
    programs: Path,
    broker_url: str,
    unique: Callable[[str], str],
    write_echo: Callable[..., Path],
    serve: Callable[..., Any],
) -> None:
    """The worker that is 20 times as fast gets nearly all; without lanes the broker deals the requests in turn."""
    topics, repository = Topics(unique("test")), write_echo("echo", delay_ms=5)
    serve(broker_url, repository, name="fast", topics=topics, capacity=64)
    model = repository / "echo" / "1" / "model.echo"
    model.write_text(model.read_text(encoding="utf-8").replace("delay_ms = 5", "delay_ms = 100"), encoding="utf-8")
    serve(broker_url, repository, name="slow", topics=topics, capacity=64)
    chosen, dealt = json.loads(
        output(*node(programs / "test" / "live" / "by_worker.js", broker_url, topics.root, "100"))
    )
    assert chosen["fast"] >= 80
    assert dealt == {"fast": 50, "slow": 50}


def test_labels_and_a_canary(
    programs: Path, broker_url: str, unique: Callable[[str], str], write_echo: Callable[..., Path], tmp_path: Path
) -> None:
    """A label stands for the version that has it; of the requests without a version the canary gets about its share."""
    root = unique("test")
    for version in (1, 2):
        repository = write_echo("echo", version=version)
    (repository / "echo" / "traffic.toml").write_text("stable = 1\ncanary = 2\nshare = 30\n", encoding="utf-8")
    with worker(broker_url, root, repository, unique("w"), tmp_path / "log"):
        found = json.loads(output(*node(programs / "test" / "live" / "labelled.js", broker_url, root)))
    assert (found["stable"], found["canary"], found["number"], found["streamed"]) == ("1", "2", "1", ["2"])
    for label in ("next", "toString"):
        words = f'no version labelled "{label}" (labels: canary, stable); expected a number'
        assert found["next" if label == "next" else "unlike"].startswith(f'model_not_found: model "echo" has {words}')
    assert found["wrong"].startswith("bad_topic: version")
    assert found["others"] == ["1", "2"]
    assert 5 <= found["ofCanary"] <= 55


def test_streams(
    programs: Path,
    broker_url: str,
    unique: Callable[[str], str],
    write_echo: Callable[..., Path],
    serve: Callable[..., Any],
) -> None:
    """Each frame has one outcome, in order; with `latest` most are superseded, and the last is answered."""
    topics = Topics(unique("test"))
    serve(broker_url, write_echo("echo", delay_ms=30), topics=topics)
    found = json.loads(output(*node(programs / "test" / "live" / "streaming.js", broker_url, topics.root, "100")))
    latest, everything = found["latest"], found["all"]
    for each in (latest, everything):
        assert [sequence for _, sequence, _ in each["found"]] == list(range(100))
        assert all(back == sequence for outcome, sequence, back in each["found"] if outcome == "ok")
    answered = latest["outcomes"]["ok"]
    assert answered + latest["outcomes"]["superseded"] == 100
    assert 2 <= answered <= 50
    assert latest["found"][-1][0] == "ok"
    assert {back for outcome, _, back in latest["found"] if outcome == "superseded"} == {
        "a newer frame of the stream came first"
    }
    assert everything["outcomes"]["ok"] == 100
    assert found["counters"]["outcomes"]["ok"] == answered + 100


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
    with running(*node(programs / "test" / "live" / "watching.js", broker_url, root, model, "5")) as process:
        lines_until(process, "watching")
        results = results_after_damage(broker_url, root, model)
        *seen, counters = [json.loads(line) for line in finished(process).splitlines()]
    assert [each["request"] for each in seen] == [result.id for result in results]
    assert [each["outputs"] for each in seen] == [[["x", [number] * 4]] for number in range(5)]
    assert {(each["asker"], each["outcome"], each["worker"]) for each in seen} == {("other", "ok", served.name)}
    assert counters["first"] == {"received": 7, "dropped": 0, "malformed": 2, "retained": 0}
    assert counters["second"] == {"received": 7, "dropped": 3, "malformed": 2, "retained": 0}


def test_logins_over_tls(programs: Path, write_echo: Callable[..., Path], serve: Callable[..., Any]) -> None:
    """A wrong password ends for good and asks for a login; a certificate of an unknown authority is no connection."""
    with secured_broker() as broker:
        serve(broker.address, write_echo("echo"), name="w.0")
        for url in (broker.url, broker.websockets_url):
            arguments = [url, "car-1", str(broker.car.password), str(broker.car.ca_file)]
            found = json.loads(output(*node(programs / "test" / "live" / "login.js", *arguments)))
            assert found == {
                "refused": "check user and password",
                "without": "it wants a user and a password",
                "statuses": ["connecting false", "refused true"],
                "stranger": "broker_unreachable",
                "name": "car-1",
                "worker": "w.0",
                "inAnothersName": "not_authorized",
            }


def in_documents() -> list[str]:
    """Return the programs for node in the documents, by their place, without that for pictures."""
    names = ("clients/js/README.md", "docs/reference/clients.md")
    texts = [(ROOT / name).read_text(encoding="utf-8") for name in names]
    found = [block for text in texts for block in re.findall(r"^```js\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)]
    return [block for block in found if "document." not in block and "inferPicture" not in block]


def test_the_examples(
    programs: Path, broker_url: str, write_echo: Callable[..., Path], serve: Callable[..., Any]
) -> None:
    """The examples run as they are printed, those of the documents too."""
    repository = write_echo("unused").parent / "models"
    write_half_plus_two(repository)
    zoo.build(repository, ["small_16"])
    serve(broker_url, repository, "half_plus_two", capacity=64)
    serve(broker_url, repository, "small_16")
    halved = r"Float32Array\(3\) \[ 2\.5, 3, 4\.5 \] \S+\n"
    assert re.fullmatch(halved, output(*node(example(programs, "infer.mjs"), broker_url)))
    shown = [block.replace("mqtt://127.0.0.1:1883", broker_url) for block in in_documents()]
    watching, streaming = ([block for block in shown if call in block] for call in ("watch(", "stream("))
    asking = [block for block in shown if block not in watching + streaming]
    for block in asking:
        assert re.fullmatch(r"Float32Array\(16\) \[[^]]+\] \S+\n", output(*node(program(programs, "shown.mjs", block))))
    fleet = output(*node(example(programs, "fleet.mjs"), broker_url))
    assert fleet.startswith("2675\na wrong name: bad_tensor\ncancelled: cancelled\n")
    with running(*node(example(programs, "watch.mjs"), "half_plus_two", broker_url)) as process:
        lines_until(process, "results of half_plus_two; end with Ctrl+C")
        output(*node(example(programs, "infer.mjs"), broker_url))
        assert process.stdout is not None
        assert " ok " in process.stdout.readline()
    ready = 'const watch = await client.watch("small_16", { buffer: 100 });\n'
    for block in watching:
        shown_ready = program(programs, "shown.mjs", block.replace(ready, f'{ready}console.log("ready");\n'))
        with running(*node(shown_ready)) as process:
            lines_until(process, "ready")
            output(*node(program(programs, "asking.mjs", asking[0])))
            assert process.stdout is not None
            assert process.stdout.readline().endswith(" ok [ [ 1, 16 ] ]\n")
    for block in streaming:
        lines = output(*node(program(programs, "shown.mjs", block))).splitlines()
        assert [line.split()[0] for line in lines if re.match(r"\d+ (ok|superseded) ", line)] == [*map(str, range(30))]
    assert (len(asking), len(watching), len(streaming)) == (2, 1, 1)

"""Debian's Prometheus scrapes all programs, and answers the queries of dashboard and rules."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote
from urllib.request import Request, urlopen

import pytest

from mqinfer.dashboard.page import PAGE
from mqinfer.lab.drives.recording import write_drive
from tests.ports import free_port
from tests.programs import find_program

ROOT = Path(__file__).parents[2]
MONITORING = ROOT / "examples" / "monitoring"
CALLS, WRONG = 7, 3
PATIENCE_S = 120.0


def read(url: str, body: Any = None) -> str:
    """Return what a URL answers; the body of a POST is sent as JSON."""
    request = Request(url, None if body is None else json.dumps(body).encode())  # noqa: S310 - of this machine
    with urlopen(request, timeout=PATIENCE_S) as reply:  # noqa: S310
        return str(reply.read().decode())


def poll(look: Callable[[], Any], what: str) -> Any:
    """Ask again until the answer is true: programs that run elsewhere have no event to wait for."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        with suppress(URLError, ConnectionError):
            if found := look():
                return found
        time.sleep(0.05)
    raise AssertionError(f"in vain: {what}")


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Start programs, which are ended with the test: `start("name", "command", ...)`."""
    with ExitStack() as stack:

        def run(name: str, *command: str) -> subprocess.Popen[bytes]:
            log = stack.enter_context((tmp_path / f"{name}.log").open("w"))
            process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, cwd=tmp_path)
            stack.callback(process.wait)
            stack.callback(process.terminate)
            return process

        yield run


def expressions() -> list[str]:
    """Return the queries of the dashboard, with its variables filled in."""
    board = json.loads((MONITORING / "grafana.json").read_text())
    found = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    return [each.replace("$__rate_interval", "1m").replace("$model", ".*") for each in found]


def models() -> str:
    """Return the selector of the series whose models the dashboard lists."""
    variables = json.loads((MONITORING / "grafana.json").read_text())["templating"]["list"]
    (found,) = (
        re.fullmatch(r"label_values\((.*), model\)", each["query"]) for each in variables if each["name"] == "model"
    )
    assert found
    return found[1]


def alerts() -> dict[str, str]:
    """Return the expression of each alert, by name."""
    text = (MONITORING / "rules.yml").read_text()
    return dict(re.findall(r"- alert: (\w+)\n\s+expr: (.+)", text))


def configure(folder: Path, ports: dict[str, int]) -> Path:
    """Write the example's configuration with these ports, and a scrape every quarter of a second."""
    text = (MONITORING / "prometheus.yml").read_text().replace("_interval: 5s", "_interval: 250ms")
    for job, port in ports.items():
        text = re.sub(rf"(job_name: {job}\b.*\n.*127\.0\.0\.1:)\d+", rf"\g<1>{port}", text)
    (folder / "prometheus.yml").write_text(text)
    shutil.copy(MONITORING / "rules.yml", folder)
    return folder / "prometheus.yml"


def scraped(
    start: Callable[..., object], config: Path, ports: dict[str, int]
) -> tuple[Callable[[str], Any], Callable[[str], list[Any]]]:
    """Start Prometheus; return what asks it for a path below `/api/v1/`, and for the series of an expression."""
    where = f"127.0.0.1:{ports['prometheus']}"
    start(
        "prometheus", find_program("prometheus"), f"--config.file={config}", f"--web.listen-address={where}",
        f"--storage.tsdb.path={config.parent / 'data'}",
    )  # fmt: skip

    def ask(path: str) -> Any:
        return json.loads(read(f"http://{where}/api/v1/{path}"))["data"]

    return ask, lambda expression: list(ask(f"query?query={quote(expression)}")["result"])


@pytest.mark.broker
@pytest.mark.slow  # five programs, one of them Prometheus
def test_prometheus_scrapes_all_programs(
    broker_url: str,
    write_echo: Callable[..., Path],
    unique: Callable[[str], str],
    start: Callable[..., None],
    tmp_path: Path,
) -> None:
    """No figure differs from a count made here; promtool finds nothing to blame; every panel has data."""
    promtool = find_program("promtool")
    repository = write_echo("echo", ("image", "UINT8", [-1, 8, 12, 3]))
    drive = write_drive(tmp_path / "drive.bag", ros=1, frames=8, seed=3, width=48, height=32)
    ports = {job: free_port() for job in ("worker", "gateway", "edge", "lag", "prometheus", "http")}
    common = ("--broker", broker_url, "--root", unique("root"))

    def mqinfer(command: str, *options: str) -> None:
        start(command, sys.executable, "-m", "mqinfer", command, *options, *common)

    metrics = {job: ("--metrics-port", str(ports[job])) for job in ("worker", "gateway", "edge", "lag")}
    mqinfer("worker", "--repository", str(repository), "--name", unique("worker"), *metrics["worker"])
    off = [word for front in ("grpc", "tfs-grpc", "tfs-rest") for word in (f"--{front}-port", "0")]
    mqinfer("gateway", *metrics["gateway"], "--http-port", str(ports["http"]), *off, "--name", unique("gateway"))
    mqinfer("status", *metrics["lag"])
    ask, query = scraped(start, configure(tmp_path, ports), ports)
    http = f"http://127.0.0.1:{ports['http']}/v2/models/echo"
    poll(lambda: read(f"{http}/ready"), "the model is served")
    replay = (str(drive), "--model", "echo", "--loop", "--rate", "1", "--name", unique("edge"))
    mqinfer("replay", *replay, *metrics["edge"])
    image = {"name": "image", "datatype": "UINT8", "shape": [1, 8, 12, 3], "data": [0] * 288}
    for _ in range(CALLS):
        read(f"{http}/infer", {"inputs": [image]})
    for _ in range(WRONG):
        with pytest.raises(HTTPError):
            read(f"{http}/infer", {"inputs": [image | {"name": "picture"}]})

    def up() -> bool:
        targets = ask("targets")["activeTargets"]
        return {each["labels"]["job"] for each in targets if each["health"] == "up"} == set(metrics)

    poll(up, "all programs are scraped")
    calls = 'sum(mqinfer_gateway_requests_total{model="echo",outcome%s"ok"})'
    for sign, count in (("=", CALLS), ("!=", WRONG)):
        poll(lambda s=sign, n=count: (found := query(calls % s)) and float(found[0]["value"][1]) == n, f"{count} calls")  # type: ignore[misc]
    for expression in expressions():
        poll(lambda text=expression: query(text), expression)  # type: ignore[misc]
    stated = 'count(mqinfer_lag_workers{job=~"gateway|lag",model="echo"} == 1) == 2'
    poll(lambda: query(stated), "gateway and lag state the same")
    assert ask(f"label/model/values?match[]={quote(models())}") == ["echo"]
    rules = [rule for group in ask("rules")["groups"] for rule in group["rules"]]
    assert len(rules) == 5
    assert poll(lambda: [each["health"] for each in ask("rules")["groups"][0]["rules"]] == ["ok"] * 5, "rules")
    for job in metrics:
        text = read(f"http://127.0.0.1:{ports[job]}/metrics")
        done = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout + done.stderr) == (0, ""), job
        documented(job, text)
    lag = json.loads(read(f"http://127.0.0.1:{ports['gateway']}/lag"))["echo"]
    assert (lag["workers"], lag["capacity"]) == (1, 64)


def documented(job: str, text: str) -> None:
    """Assert that docs/reference/metrics.md lists every family of a program."""
    names = re.findall(r"^# TYPE (mqinfer_\w+) ", text, re.MULTILINE)
    assert len(names) > (5 if job == "lag" else 10), job
    listed = (ROOT / "docs" / "reference" / "metrics.md").read_text()
    assert [name for name in names if f"`{name}`" not in listed] == [], job


def test_rules_are_sound() -> None:
    """By promtool."""
    subprocess.run(
        [find_program("promtool"), "check", "rules", str(MONITORING / "rules.yml")], check=True, capture_output=True
    )


TESTS = """
rule_files: [rules.yml]
evaluation_interval: 10s
tests:
  - interval: 10s
    input_series:
      - {series: 'mqinfer_lag_oldest_request_seconds{job="lag",model="seg"}', values: '9x30'}
      - {series: 'mqinfer_lag_pending_requests{job="lag",model="seg"}', values: '3x30'}
      - {series: 'mqinfer_lag_workers{job="lag",model="seg"}', values: '0x30'}
    alert_rule_test:
      - {eval_time: 3m, alertname: RequestsWait, exp_alerts: [{exp_labels: {severity: warning, job: lag, model: seg}}]}
      - eval_time: 3m
        alertname: NoWorkerForRequests
        exp_alerts: [{exp_labels: {severity: critical, job: lag, model: seg}}]
      - {eval_time: 3m, alertname: LagUnknown, exp_alerts: []}
  - interval: 10s
    input_series:
      - {series: 'mqinfer_worker_processes{job="worker",model="seg"}', values: '1x30'}
    alert_rule_test:
      - {eval_time: 1m, alertname: LagUnknown, exp_alerts: []}
      - {eval_time: 3m, alertname: LagUnknown, exp_alerts: [{exp_labels: {severity: warning}}]}
  - interval: 10s
    input_series:
      - {series: 'mqinfer_worker_crashes_total{model="seg",version="1"}', values: '0x10 1x30'}
      - {series: 'mqinfer_broker_connected{job="worker",instance="a"}', values: '1x10 0x30'}
    alert_rule_test:
      - {eval_time: 1m, alertname: WorkerCrashes, exp_alerts: []}
      - eval_time: 3m
        alertname: WorkerCrashes
        exp_alerts: [{exp_labels: {severity: warning, model: seg, version: "1"}}]
      - {eval_time: 2m, alertname: NotConnectedToBroker, exp_alerts: []}
      - eval_time: 3m
        alertname: NotConnectedToBroker
        exp_alerts: [{exp_labels: {severity: critical, job: worker, instance: a}}]
"""


def test_alerts(tmp_path: Path) -> None:
    """Each fires on what it is for, and not before; without a program that states the lag, that is said."""
    rules = re.sub(r" +annotations: .*\n", "", (MONITORING / "rules.yml").read_text())
    (tmp_path / "rules.yml").write_text(rules)
    (tmp_path / "tests.yml").write_text(TESTS)
    command = [find_program("promtool"), "test", "rules", str(tmp_path / "tests.yml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.broker
@pytest.mark.slow  # four programs, one of them Prometheus
def test_a_site_without_a_gateway(
    broker_url: str,
    write_echo: Callable[..., Path],
    unique: Callable[[str], str],
    start: Callable[..., subprocess.Popen[bytes]],
    tmp_path: Path,
) -> None:
    """Models are listed; `LagUnknown` holds until a dashboard is scraped, then only gateway panels are empty."""
    if not (PAGE / "index.html").is_file():
        pytest.skip("the dashboard's page is not built (scripts/build-page)")
    repository = write_echo("echo", ("image", "UINT8", [-1, 8, 12, 3]))
    drive = write_drive(tmp_path / "drive.bag", ros=1, frames=8, seed=3, width=48, height=32)
    ports = {job: free_port() for job in ("worker", "gateway", "edge", "lag", "prometheus")}
    common = ("--broker", broker_url, "--root", unique("root"))

    def mqinfer(job: str, command: str, *options: str) -> subprocess.Popen[bytes]:
        metrics = ("--metrics-port", str(ports[job]))
        return start(job, sys.executable, "-m", "mqinfer", command, *options, *metrics, *common)

    worker = mqinfer("worker", "worker", "--repository", str(repository), "--name", unique("worker"))
    ask, query = scraped(start, configure(tmp_path, ports), ports)

    def listed() -> bool:
        return bool(ask(f"label/model/values?match[]={quote(models())}") == ["echo"])

    poll(lambda: query('mqinfer_worker_processes{state="ready"} == 1'), "the worker is ready")
    replay = (str(drive), "--model", "echo", "--loop", "--rate", "1", "--policy", "all", "--name", unique("edge"))
    mqinfer("edge", "replay", *replay)
    poll(listed, "the model is listed")
    assert query(alerts()["LagUnknown"])
    mqinfer("lag", "dashboard", "--port", "0")
    for expression in (each for each in expressions() if "mqinfer_gateway_" not in each):
        poll(lambda text=expression: query(text), expression)  # type: ignore[misc]
    poll(lambda: not query(alerts()["LagUnknown"]), "the lag is known")
    assert not query(alerts()["NoWorkerForRequests"])
    worker.terminate()
    poll(lambda: query(alerts()["NoWorkerForRequests"]), "requests wait and no worker is ready")
    poll(lambda: query(alerts()["RequestsWait"]), "a request has waited for long")

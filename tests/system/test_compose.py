"""deploy/compose.yaml as a whole, from images that are built here: root, podman and podman-compose run it."""

from __future__ import annotations

import json
import os
import re
import shutil
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote
from urllib.request import Request, urlopen

import pytest

from tests.chromium import chromium
from tests.dashboard.chromium import open_page
from tests.patience import wait_until
from tests.ports import free_port

ROOT = Path(__file__).parents[2]
PROJECT = "mqinfer-test"
CONFINED = {"NoNewPrivs": "1", "CapEff": "0000000000000000", "Seccomp": "2"}
COMPILERS = "cc gcc g++ clang make ld pip"
NEEDED = ("podman", "podman-compose")
SUMMARY = "/tmp/{}.json"  # noqa: S108 - in the container
STREAMS = 10
"""Copies of the drive that one replay sends beside each other, 40 frames each."""

pytestmark = [
    pytest.mark.full,
    pytest.mark.broker,
    pytest.mark.timeout(5400),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can run containers with limits of CPU here"),
    pytest.mark.skipif(not all(map(shutil.which, NEEDED)), reason="podman or podman-compose is not installed"),
]


class Site:
    """The services of the file.

    Attributes:
        ports: Of this machine, by the file's variables.
    """

    def __init__(self) -> None:
        self.ports = {f"{name}_PORT": free_port() for name in ("PAGE", "HTTP", "GRPC", "PROMETHEUS", "BROKER")}
        given = {name: str(port) for name, port in self.ports.items()}
        self._environment = {**os.environ, **given, "CONTAINERS_CONF": str(ROOT / "deploy" / "containers.conf")}

    def run(self, *command: str) -> str:
        """Run a command to its end; return what it printed."""
        done = subprocess.run(command, cwd=ROOT, env=self._environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def compose(self, *arguments: str) -> str:
        """Run podman-compose."""
        return self.run("podman-compose", "--project-name", PROJECT, "--file", "deploy/compose.yaml", *arguments)

    def podman(self, command: str, service: str, *arguments: str) -> str:
        """Run a command of podman for the container of a service."""
        return self.run("podman", "--log-level", "fatal", *command.split(), f"{PROJECT}_{service}_1", *arguments)

    def well(self, service: str) -> bool:
        """Return whether the health check of a service succeeds now."""
        name = f"{PROJECT}_{service}_1"
        command = ["podman", "healthcheck", "run", name]
        return subprocess.run(command, env=self._environment, capture_output=True, check=False).returncode == 0

    def asked(self, query: str) -> float:
        """Return the sum of what Prometheus finds."""
        url = f"http://127.0.0.1:{self.ports['PROMETHEUS_PORT']}/api/v1/query?query={quote(query)}"
        with urlopen(url, timeout=30) as reply:
            return sum(float(each["value"][1]) for each in json.load(reply)["data"]["result"])

    def send(self, name: str, *sources: str) -> subprocess.Popen[bytes]:
        """Start to send drives from the vehicle's container under another of its names."""
        drive = (
            "replay",
            *sources,
            "--topic",
            "/camera/image_raw",
            "--model",
            "drive_segmentation_onnx",
            "--policy",
            "all",
        )
        own = ("--name", name, "--metrics-port", "0", "--summary", SUMMARY.format(name))
        command = ["podman", "exec", f"{PROJECT}_car-1_1", "mqinfer", *drive, *own]
        return subprocess.Popen(command, env=self._environment, stdout=subprocess.DEVNULL)

    def outcomes(self, name: str, sending: subprocess.Popen[bytes]) -> dict[str, int]:
        """Return how many frames had each outcome, once all are sent."""
        assert sending.wait() == 0
        summary = json.loads(self.podman("exec", "car-1", "cat", SUMMARY.format(name)))
        return {outcome: count for outcome, count in summary["outcomes"].items() if count}


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    """Build the images and start all services; remove them, and all that they have kept."""
    it = Site()
    it.run("scripts/build-image")
    try:
        it.compose("up", "-d")
        for service in ("broker", "gpu-1", "gpu-2", "gateway", "dashboard", "prometheus", "car-1"):
            wait_until(lambda service=service: it.well(service))  # type: ignore[misc]
        yield it
    finally:
        it.compose("--profile", "more", "down", "--volumes")


def test_the_live_page(site: Site, tmp_path: Path) -> None:
    """With the key that `site` printed, Chromium shows the vehicle's frames."""
    printed = site.podman("logs", "site")
    found = re.search(r"the page: (\S+) with the key (\S+)", printed)
    assert found
    with chromium("--ignore-certificate-errors") as browser, open_page(browser, found[1], wait=False) as watched:
        watched.page.get_by_label("Key").fill(found[2])
        watched.page.keyboard.press("Enter")
        watched.wait_for_tiles(1)
        watched.page.screenshot(path=tmp_path / "page.png")


def test_each_frame_has_its_result(site: Site) -> None:
    """40 of 40."""
    assert site.outcomes("car-1.front", site.send("car-1.front", "drive.bag")) == {"ok": 40}


def test_a_caller_of_the_gateway(site: Site) -> None:
    """Over HTTPS, with the key."""
    key = site.podman("logs", "site").split()[-1]
    url = f"https://localhost:{site.ports['HTTP_PORT']}/v2/models/drive_segmentation_onnx/ready"
    request = Request(url, headers={"Authorization": f"Bearer {key}"})
    with urlopen(request, timeout=60, context=ssl._create_unverified_context()) as reply:  # noqa: S310, S323
        assert reply.status == 200


def limits_of(pid: int) -> dict[str, int]:
    """Return what the control groups of a process allow: memory in bytes, CPU in percent of one, processes."""
    groups: dict[str, str] = {}
    for line in Path(f"/proc/{pid}/cgroup").read_text(encoding="ascii").splitlines():
        _, names, path = line.split(":", 2)
        groups |= dict.fromkeys(names.split(","), path)
    root = Path("/sys/fs/cgroup")
    if "memory" not in groups:  # all of version 2
        here = root / groups[""].lstrip("/")
        quota, period = (here / "cpu.max").read_text(encoding="ascii").split()
        memory, processes = ((here / name).read_text(encoding="ascii") for name in ("memory.max", "pids.max"))
    else:
        here = root / "cpu" / groups["cpu"].lstrip("/")
        quota, period = ((here / f"cpu.cfs_{name}_us").read_text(encoding="ascii") for name in ("quota", "period"))
        memory = (root / "memory" / groups["memory"].lstrip("/") / "memory.limit_in_bytes").read_text(encoding="ascii")
        processes = (root / "pids" / groups["pids"].lstrip("/") / "pids.max").read_text(encoding="ascii")
    return {"memory": int(memory), "cpu": int(quota) * 100 // int(period), "processes": int(processes)}


@pytest.mark.parametrize(
    ("service", "memory", "cpu", "processes"),
    [
        ("gpu-1", 2 << 30, 400, 512),
        ("broker", 3 << 30, 100, 128),
        ("gateway", 2 << 30, 100, 128),
        ("dashboard", 2 << 30, 100, 128),
        ("prometheus", 512 << 20, 50, 128),
        ("car-1", 1 << 30, 100, 128),
    ],
)
def test_limits_are_in_force(site: Site, service: str, memory: int, cpu: int, processes: int) -> None:
    """Those of the file, in the control groups; no process is root or has a capability, and nothing can be written."""
    pid = int(site.podman("inspect --format {{.State.Pid}}", service))
    assert limits_of(pid) == {"memory": memory, "cpu": cpu, "processes": processes}
    status = dict(re.findall(r"^(\w+):\s*(.*)$", Path(f"/proc/{pid}/status").read_text(encoding="ascii"), re.MULTILINE))
    assert {name: status[name] for name in CONFINED} == CONFINED
    assert set(status["Uid"].split()) == {"10001"}
    command = ["podman", "exec", f"{PROJECT}_{service}_1", "sh", "-c", f"command -v {COMPILERS}; touch /x"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout, "Read-only file system" in done.stderr) == ("", True)


def test_a_worker_is_killed_and_one_is_added(site: Site) -> None:
    """Under load no frame fails, and the new worker takes its part."""
    answered = 'sum(mqinfer_inference_request_success_total{instance=~"%s"})'
    drives = [f"{number}=drive.bag" for number in range(STREAMS)]
    before = site.asked(answered % "gpu-.*")
    with site.send("car-1.rear", *drives) as sending:
        wait_until(lambda: site.asked(answered % "gpu-.*") > before + 20)
        assert sending.poll() is None
        site.podman("kill", "gpu-1")
        site.compose("--profile", "more", "up", "-d", "gpu-3")
        assert site.outcomes("car-1.rear", sending) == {"ok": STREAMS * 40}
    wait_until(lambda: site.well("gpu-3"))
    while not site.asked(answered % "gpu-3.*"):
        assert site.outcomes("car-1.left", site.send("car-1.left", *drives)) == {"ok": STREAMS * 40}

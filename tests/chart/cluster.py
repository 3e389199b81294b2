"""Plays a cluster for one site of the chart: its containers are processes, each with an address of its own.

It runs in namespaces of its own for users, mounts and the network, as `unshare -rnm` makes them. Broker first, as a
restart would have it in a cluster; then all others at once. In: the manifests, the files of each secret and claim, and
calls to make through Services. Out: what each probe and call answered, and how each process ended on SIGTERM.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

PATIENCE_S, MOST_STARTS = 120.0, 5
TRUSTING = ssl._create_unverified_context()  # noqa: S323 - a kubelet does not check certificates of probes


class Pod:
    """One pod: its container's command, paths and address in this machine's terms."""

    def __init__(self, workload: Any, address: str, volumes: dict[str, str], place: Path) -> None:
        """Lay out what it mounts, each container in a folder of its own."""
        spec = workload["spec"]["template"]["spec"]
        (self.container,) = spec["containers"]
        self.starts = 0
        self.labels, self.address = workload["spec"]["template"]["metadata"]["labels"], address
        self.name = workload["metadata"]["name"] + ("-0" if workload["kind"] == "StatefulSet" else "-7c9f8b-x2x4z")
        sources = {each["name"]: self._source(each, volumes) for each in spec["volumes"]}
        self.paths = {
            each["mountPath"]: place / self.name / each["mountPath"][1:] for each in self.container["volumeMounts"]
        }
        for each in self.container["volumeMounts"]:
            path, source = self.paths[each["mountPath"]], sources[each["name"]]
            part = each.get("subPath") or self.named(each.get("subPathExpr", ""))
            if source is None:
                path.mkdir(parents=True)
            else:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.symlink_to(Path(source) / part if part else source)

    def _source(self, volume: Any, volumes: dict[str, str]) -> str | None:
        if secret := volume.get("secret"):
            return volumes[secret["secretName"]]
        claim = volume.get("persistentVolumeClaim")
        return volumes[claim["claimName"]] if claim else None

    def named(self, text: str) -> str:
        """Fill in what Kubernetes does."""
        return text.replace("$(POD_NAME)", self.name)

    def placed(self, text: str) -> str:
        """Return an argument with this machine's paths and the pod's address."""
        text = self.named(text).replace("0.0.0.0", self.address)  # noqa: S104 - replaced
        for path, here in self.paths.items():
            text = text.replace(path, str(here))
        return text

    def start(self, secrets: dict[str, str]) -> None:
        """Start its process, with the variables of its container; again where it has ended, as a kubelet does."""
        self.secrets, self.starts = secrets, self.starts + 1
        variables = {}
        for each in self.container["env"]:
            source = each.get("valueFrom", {})
            if key := source.get("secretKeyRef"):
                variables[each["name"]] = (Path(secrets[key["name"]]) / key["key"]).read_text()
            elif "value" in each:
                variables[each["name"]] = self.placed(each["value"])
        clean = {name: value for name, value in os.environ.items() if not name.startswith("MQINFER_")}
        self.log = self.paths["/tmp"].parent / "log"  # noqa: S108 - the container's
        user = ["unshare", "--user", "--map-user=10001", "--map-group=10001"]
        program = [sys.executable, "-m", *self.container["command"]]
        command = [*user, *program, *map(self.placed, self.container["args"])]
        with self.log.open("a") as log:
            self.process = subprocess.Popen(command, env=clean | variables, stdout=log, stderr=log)

    def port(self, name: str) -> int:
        """Return the number of a port that its container names."""
        return int(next(each["containerPort"] for each in self.container["ports"] if each["name"] == name))

    def probe(self, kind: str) -> bool:
        """Ask what a probe asks, until it succeeds or takes too long."""
        probe, end = self.container[kind], time.monotonic() + PATIENCE_S
        while time.monotonic() < end and self.starts <= MOST_STARTS:
            if self.process.poll() is not None:
                self.start(self.secrets)
            try:
                if get := probe.get("httpGet"):
                    url = f"{get.get('scheme', 'HTTP').lower()}://{self.address}:{self.port(get['port'])}{get['path']}"
                    urlopen(url, timeout=10, context=TRUSTING if url.startswith("https") else None).close()  # noqa: S310
                else:
                    socket.create_connection((self.address, self.port(probe["tcpSocket"]["port"])), 10).close()
            except (URLError, OSError):
                time.sleep(0.1)
            else:
                return True
        return False

    def ready(self) -> dict[str, bool]:
        """Return which of its probes succeeded."""
        return {
            kind: self.probe(kind)
            for kind in ("startupProbe", "readinessProbe", "livenessProbe")
            if kind in self.container
        }

    def end(self) -> int | None:
        """Return the exit status on SIGTERM; None where it had to be killed."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return None


def call(url: str, key: str, body: Any, wanted: str) -> str:
    """Return what a caller gets, by POST where there is a body, once it is what is wanted: states are on their way."""
    data, end = None if body is None else json.dumps(body).encode(), time.monotonic() + PATIENCE_S
    request = Request(url, data, {"Authorization": f"Bearer {key}"})  # noqa: S310 - within this namespace
    answer = ""
    while wanted not in answer and time.monotonic() < end:
        try:
            with urlopen(request, timeout=PATIENCE_S, context=TRUSTING if "https" in url else None) as reply:  # noqa: S310
                answer = reply.read().decode()
        except HTTPError as error:
            answer = error.read().decode()
    return answer


def run(manifests: list[Any], volumes: dict[str, str], place: str, calls: list[Any]) -> dict[str, Any]:
    """Start all pods, probe them, make the calls, end them."""
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    workloads = [each for each in manifests if each["kind"] in {"Deployment", "StatefulSet"}]
    pods = [Pod(each, f"127.0.1.{number}", volumes, Path(place)) for number, each in enumerate(workloads, 1)]
    pods.sort(key=lambda pod: pod.container["name"] != "broker")
    hosts = Path(place) / "hosts"
    lines = ["127.0.0.1 localhost"]
    for service in (each for each in manifests if each["kind"] == "Service"):
        pod = next(each for each in pods if service["spec"]["selector"].items() <= each.labels.items())
        name = service["metadata"]["name"]
        lines.append(f"{pod.address} {name} {name}.fleet")
    hosts.write_text("\n".join(lines) + "\n")
    subprocess.run(["mount", "--bind", str(hosts), "/etc/hosts"], check=True)
    found: dict[str, Any] = {}
    started: list[Pod] = []
    try:
        for pod in pods:
            pod.start(volumes)
            started.append(pod)
            if pod is pods[0]:
                found[pod.name] = pod.ready()
        found |= {pod.name: pod.ready() for pod in pods[1:]}
        answers = [call(*each) for each in calls]
    finally:
        ends = {pod.name: pod.end() for pod in reversed(started)}
        logs = {pod.name: pod.log.read_text()[-2000:] for pod in started}
        print(json.dumps({"probes": found, "ends": ends, "logs": logs}), file=sys.stderr)  # noqa: T201
    return {"probes": found, "answers": answers, "ends": ends}


if __name__ == "__main__":
    print(json.dumps(run(**json.load(sys.stdin))))  # noqa: T201 - its answer

"""The Helm chart: sites as it renders them, by the schemas of Kubernetes and KEDA, and by what mqinfer itself takes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import typer

from mqinfer import __version__
from mqinfer.broker.address import BrokerAddress
from mqinfer.broker.mosquitto import BrokerFolder, Role
from mqinfer.broker.mosquitto.configuration import Ports
from mqinfer.cli.app import app
from mqinfer.cloud_worker.supervision.supervisor import Supervisor
from mqinfer.dashboard.page import PAGE as BUILT_PAGE
from mqinfer.gateway.settings import GatewayBounds
from mqinfer.protocol.topics import Topics, check_name

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "mqinfer"
PEERS = Path(os.environ.get("MQINFER_PEERS") or ROOT / ".venv-peers")
KEY = "5b0e7c1f93a84d26b7aa"
IMAGE = {"registry": "registry.example.org/fleet"}
URL = {"url": "s3://models/site"}
SCALE = {"trigger": "metrics-api", "maxReplicas": 8}
BY_PROMETHEUS = {"trigger": "prometheus", "maxReplicas": 8, "pending": 4}
PAGE = {"enabled": True, "tlsSecret": "page", "keysSecret": "keys"}
TLS: dict[str, Any] = {
    "image": IMAGE,
    "broker": {"secret": "broker", "service": {"type": "LoadBalancer", "annotations": {"who": "vehicles"}}},
    "tls": {"secret": "logins"},
    "repository": {"claim": "models", "poll": 0},
    "workers": {"echo": {"models": ["echo"], "autoscaling": BY_PROMETHEUS}},
    "gateway": {"tlsSecret": "page", "keysSecret": "keys", "replicas": 1},
    "dashboard": PAGE | {"hosts": ["fleet.example.org"]},
    "monitoring": {"serviceMonitor": True, "alerts": True, "prometheusUrl": "http://prometheus:9090"},
}
GPU: dict[str, Any] = {
    "image": IMAGE | {"tag": "7", "pullSecrets": ["registry"]},
    "repository": URL | {"credentialsSecret": "s3"},
    "workers": {
        "seg": {
            "models": ["seg.v2", "depth"],
            "gpus": 2,
            "instances": 2,
            "capacity": 16,
            "runtimeClassName": "nvidia",
            "nodeSelector": {"gpu": "l4"},
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
            "resources": {"limits": {"memory": "8Gi"}},
            "autoscaling": SCALE | {"minReplicas": 0, "cooldownSeconds": 600},
        },
        "small": {"replicas": 3},
    },
    "gateway": {"tensorflowServing": False, "resources": {"requests": {"cpu": "1"}}},
    "networkPolicy": {"brokerFrom": [{"ipBlock": {"cidr": "192.0.2.0/24"}}], "gatewayFrom": [{"podSelector": {}}]},
}
OFF: dict[str, Any] = {
    "image": IMAGE,
    "broker": {"engine": "external", "url": "mqtts://a.example.org:8883,b.example.org:8884"},
    "gateway": {"enabled": False},
    "networkPolicy": {"enabled": False},
    "podDisruptionBudget": {"enabled": False},
}
SETS: dict[str, dict[str, Any]] = {
    "minimal": {"image": IMAGE, "repository": URL, "workers": {"seg": None}},
    "tls": TLS,
    "gpu": GPU,
    "nats": {"image": IMAGE, "broker": {"engine": "nats"}, "repository": URL, "workers": {"seg": {}}},
    "off": OFF,
    "external": OFF | {"repository": URL, "workers": {"seg": {}}, "networkPolicy": {"enabled": True}},
}
MINIMAL = SETS["minimal"]
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "an unknown key": (MINIMAL | {"gatway": {}}, "gatway"),
    "no registry": (MINIMAL | {"image": {}}, "/image/registry"),
    "text for a number": (MINIMAL | {"workers": {"seg": {"replicas": "two"}}}, "/workers/seg/replicas"),
    "an unknown key of a group": (MINIMAL | {"workers": {"seg": {"model": ["seg"]}}}, "model"),
    "a group's name": (MINIMAL | {"workers": {"Seg_1": {}}}, "Seg_1"),
    "a group named as another part": (MINIMAL | {"workers": {"gateway": {}}}, "gateway"),
    "replicas beside KEDA": (
        MINIMAL | {"workers": {"seg": {"models": ["seg"], "replicas": 2, "autoscaling": SCALE}}},
        "/workers/seg/replicas",
    ),
    "KEDA without models": (MINIMAL | {"workers": {"seg": {"autoscaling": SCALE}}}, "models"),
    "a model's name": (MINIMAL | {"workers": {"seg": {"models": ["../seg"]}}}, "/workers/seg/models/0"),
    "an unknown trigger": (
        MINIMAL | {"workers": {"seg": {"models": ["seg"], "autoscaling": SCALE | {"trigger": "cpu"}}}},
        "/workers/seg/autoscaling/trigger",
    ),
    "metrics-api without a gateway": (
        MINIMAL | {"gateway": {"enabled": False}, "workers": {"seg": {"models": ["seg"], "autoscaling": SCALE}}},
        "workers.seg.autoscaling.trigger",
    ),
    "prometheus without its address": (
        MINIMAL | {"workers": {"seg": {"models": ["seg"], "autoscaling": BY_PROMETHEUS}}},
        "monitoring.prometheusUrl",
    ),
    "prometheus without a target": (
        MINIMAL | {"workers": {"seg": {"models": ["seg"], "autoscaling": SCALE | {"trigger": "prometheus"}}}},
        "pending",
    ),
    "no models": (MINIMAL | {"repository": {}}, "/repository/url"),
    "an address and a claim": (MINIMAL | {"repository": URL | {"claim": "models"}}, "/repository/url"),
    "an address that is none": (MINIMAL | {"repository": {"url": "ftp://host/models"}}, "/repository/url"),
    "an engine": (MINIMAL | {"broker": {"engine": "kafka"}}, "/broker/engine"),
    "an external broker without its address": (MINIMAL | {"broker": {"engine": "external"}}, "/broker/url"),
    "a login in the broker's address": (OFF | {"broker": OFF["broker"] | {"url": "mqtt://a:b@c:1883"}}, "/broker/url"),
    "logins and an open broker": (MINIMAL | {"tls": {"secret": "logins"}}, "/broker/secret"),
    "a broker with rules and no logins": (MINIMAL | {"broker": {"secret": "broker"}}, "/broker/secret"),
    "a dashboard without TLS": (
        MINIMAL | {"dashboard": {"enabled": True, "keysSecret": "keys"}},
        "/dashboard/tlsSecret",
    ),
    "a dashboard beside NATS": (SETS["nats"] | {"dashboard": PAGE}, "/broker/engine"),
    "a peer that is none": (MINIMAL | {"networkPolicy": {"gatewayFrom": ["all"]}}, "/networkPolicy/gatewayFrom/0"),
}
BROKEN = [
    {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a"}, "spec": {"prots": []}},
    {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "a"}, "spec": {"replicas": "2"}},
    {"apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject", "metadata": {"name": "a"}, "spec": {"triggers": []}},
]


@pytest.fixture(scope="module")
def checked() -> Any:
    """Everything rendered and checked once, in the environment of scripts/peers/chart.txt."""
    python = PEERS / "chart" / "bin" / "python"
    assert python.exists(), f"no environment {python.parent.parent}; scripts/setup makes it"
    wrong = {name: values for name, (values, _) in WRONG.items()}
    asked = json.dumps({"folder": str(CHART), "sets": SETS, "wrong": wrong, "broken": BROKEN})
    command = [str(python), str(Path(__file__).with_name("peer.py"))]
    done = subprocess.run(command, input=asked, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout)


def of_kind(checked: Any, name: str, *kinds: str) -> list[dict[str, Any]]:
    """Return the manifests of these kinds in a set."""
    return [each for each in checked["manifests"][name] if each["kind"] in kinds]


def workloads(checked: Any) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Yield set, specification of the pod and its container, of every Deployment and StatefulSet."""
    for name in SETS:
        for each in of_kind(checked, name, "Deployment", "StatefulSet"):
            pod = each["spec"]["template"]["spec"]
            (container,) = pod["containers"]
            yield name, pod, container


def test_schemas(checked: Any) -> None:
    """All sets pass lint and the strict schemas, those of KEDA and the Prometheus Operator too, which refuse errors."""
    assert checked["problems"] == []
    assert tuple(map(int, checked["kubernetes"].split("."))) >= (1, 37)
    assert all(checked["broken"])


def test_what_each_set_has(checked: Any) -> None:
    """Nothing where all is off; a Deployment a group, a StatefulSet where each pod has a certificate."""
    assert checked["manifests"]["off"] == []
    found = {
        name: {f"{each['kind']} {each['metadata']['name']}" for each in checked["manifests"][name]} for name in SETS
    }
    assert found["minimal"] == {
        "Deployment site-mqinfer-broker", "Service site-mqinfer-broker", "NetworkPolicy site-mqinfer-broker",
        "Deployment site-mqinfer-seg", "PodDisruptionBudget site-mqinfer-seg",
        "Service site-mqinfer-workers", "NetworkPolicy site-mqinfer-worker",
        "Deployment site-mqinfer-gateway", "Service site-mqinfer-gateway", "Service site-mqinfer-gateway-metrics",
        "PodDisruptionBudget site-mqinfer-gateway", "NetworkPolicy site-mqinfer-gateway",
    }  # fmt: skip
    assert found["tls"] > {
        "StatefulSet site-mqinfer-echo", "StatefulSet site-mqinfer-gateway", "Deployment site-mqinfer-dashboard",
        "ScaledObject site-mqinfer-echo", "ServiceMonitor site-mqinfer", "PrometheusRule site-mqinfer",
    }  # fmt: skip
    assert found["gpu"] > {"ScaledObject site-mqinfer-seg", "Deployment site-mqinfer-small"}
    assert "worker:site-mqinfer-echo-N, N from 0 to 7" in checked["notes"]["tls"]


@pytest.mark.parametrize("name", WRONG)
def test_wrong_values(checked: Any, name: str) -> None:
    """A wrong value is refused, and the message names its key."""
    assert WRONG[name][1] in checked["refused"].get(name, "was not refused")


def test_commands(checked: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each container's command line and environment are such as mqinfer's own parsers take."""
    for name in [each for each in os.environ if each.startswith("MQINFER_")]:
        monkeypatch.delenv(name)
    root: Any = typer.main.get_command(app)
    for name, _, container in workloads(checked):
        assert container["command"] == ["mqinfer"]
        subcommand, *options = container["args"]
        command = root.commands[subcommand]
        given = command.make_context(subcommand, list(map(str, options))).params
        known = {variable for each in command.params for variable in each.envvar or ()}
        stated = {each["name"] for each in container["env"]} - {"POD_NAME", "HOME", "XDG_CACHE_HOME"}
        assert stated <= known, name
        if "broker" in given:
            assert BrokerAddress.parse(given["broker"]).transport == ("nats" if name == "nats" else "tcp")


def test_ports_and_probes(checked: Any) -> None:
    """What a container listens on by its command line is what it states; probes, Services and rules name these."""
    for name, _, container in workloads(checked):
        stated = {each["containerPort"] for each in container["ports"]}
        taken = {int(port) for each in container["args"] for port in re.findall(r"^--(?:\S+-)?port=(\d+)$", each)}
        assert stated == taken - {0}, (name, container["name"])
        names = {each["name"] for each in container["ports"]}
        probes = [container[each] for each in container if each.endswith("Probe")]
        assert len(probes) >= 2
        assert {(each.get("httpGet") or each["tcpSocket"])["port"] for each in probes} <= names
    for name in SETS:
        pods = [each["spec"]["template"] for each in of_kind(checked, name, "Deployment", "StatefulSet")]
        for service in of_kind(checked, name, "Service"):
            chosen = selected(pods, service["spec"]["selector"])
            assert chosen, service["metadata"]["name"]
            for pod in chosen:
                names = {each["name"] for each in pod["spec"]["containers"][0]["ports"]}
                assert {each["targetPort"] for each in service["spec"]["ports"]} <= names


def selected(pods: list[dict[str, Any]], labels: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the pods that have these labels."""
    return [each for each in pods if labels.items() <= each["metadata"]["labels"].items()]


def test_what_selects_pods(checked: Any) -> None:
    """Each selector finds pods: of workloads their own alone, of budgets and rules those that they are for."""
    for name in SETS:
        found = of_kind(checked, name, "Deployment", "StatefulSet")
        pods = [each["spec"]["template"] for each in found]
        for each in found:
            assert selected(pods, each["spec"]["selector"]["matchLabels"]) == [each["spec"]["template"]]
        for budget in of_kind(checked, name, "PodDisruptionBudget"):
            assert len(selected(pods, budget["spec"]["selector"]["matchLabels"])) == 1
        for rule in of_kind(checked, name, "NetworkPolicy"):
            chosen = selected(pods, rule["spec"]["podSelector"]["matchLabels"])
            ports = {each["name"] for pod in chosen for each in pod["spec"]["containers"][0]["ports"]}
            assert {port["port"] for entry in rule["spec"]["ingress"] for port in entry["ports"]} == ports
    (monitor,) = of_kind(checked, "tls", "ServiceMonitor")
    services = [{"metadata": each["metadata"]} for each in of_kind(checked, "tls", "Service")]
    names = {each["metadata"]["name"] for each in selected(services, monitor["spec"]["selector"]["matchLabels"])}
    assert names == {"site-mqinfer-workers", "site-mqinfer-gateway-metrics", "site-mqinfer-dashboard-metrics"}


def test_pods_are_confined(checked: Any) -> None:
    """No root, nothing to write but volumes, no token, and no variables of Services, which would set options."""
    for _, pod, container in workloads(checked):
        assert (pod["automountServiceAccountToken"], pod["enableServiceLinks"]) == (False, False)
        assert pod["securityContext"]["runAsNonRoot"]
        assert container["securityContext"]["readOnlyRootFilesystem"]
        volumes = {each["name"] for each in pod["volumes"]}
        assert {each["name"] for each in container["volumeMounts"]} == volumes
        mounted = [each["mountPath"] for each in container["volumeMounts"]]
        files = {each.partition("=")[2] for each in container["args"] if "=/" in each}
        assert [each for each in files if not any(each.startswith(path) for path in mounted)] == []


def test_images(checked: Any) -> None:
    """Each image is a stage of deploy/Containerfile, and runs as the user that the stage has."""
    text = (ROOT / "deploy" / "Containerfile").read_text()
    users = dict(re.findall(r"^FROM \S+ AS (\S+)$(?:(?!^FROM).)*?^USER (\d+:\d+)$", text, re.MULTILINE | re.DOTALL))
    for _, pod, container in workloads(checked):
        stage = container["image"].rpartition("/")[2].partition(":")[0].removeprefix("mqinfer-")
        context = pod["securityContext"]
        assert users[stage] == f"{context['runAsUser']}:{context['runAsGroup']}"


def test_the_end_of_pods(checked: Any) -> None:
    """Each has the time that its program takes to drain, at least."""
    grace = {container["name"]: pod["terminationGracePeriodSeconds"] for _, pod, container in workloads(checked)}
    assert grace["worker"] > 60 > Supervisor(()).stop_timeout
    assert grace["gateway"] > GatewayBounds().drain + 5


def test_gpus(checked: Any) -> None:
    """A group with GPUs asks for them, has the image for them and does not wait for spare ones."""
    seg, small = (
        each for each in of_kind(checked, "gpu", "Deployment") if "mqinfer/group" in each["metadata"]["labels"]
    )
    (container,) = seg["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "registry.example.org/fleet/mqinfer-worker-gpu:7"
    assert container["resources"] == {"limits": {"memory": "8Gi", "nvidia.com/gpu": 2}}
    assert "--device=cuda" in container["args"]
    assert seg["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}
    assert "replicas" not in seg["spec"]  # KEDA's
    assert small["spec"]["replicas"] == 3


def test_scaling(checked: Any) -> None:
    """By the gateway's JSON or by Prometheus, a trigger a model; the target is the workload there is."""
    (by_lag,) = of_kind(checked, "gpu", "ScaledObject")
    (by_prometheus,) = of_kind(checked, "tls", "ScaledObject")
    assert by_lag["spec"]["scaleTargetRef"] == {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "name": "site-mqinfer-seg",
    }
    assert by_lag["spec"]["minReplicaCount"] == 0
    seg, depth = (each["metadata"] for each in by_lag["spec"]["triggers"])
    assert (seg["valueLocation"], depth["valueLocation"]) == (r"seg\.v2.wanted", "depth.wanted")
    assert (seg["targetValue"], depth["targetValue"]) == ("2", "2")  # so many processes a pod
    assert seg["url"] == "http://site-mqinfer-gateway-metrics.fleet:8002/lag"
    assert by_prometheus["spec"]["scaleTargetRef"]["kind"] == "StatefulSet"
    query = by_prometheus["spec"]["triggers"][0]["metadata"]["query"]
    assert by_prometheus["spec"]["triggers"][0]["metadata"]["threshold"] == "4"
    assert query == 'max(mqinfer_lag_pending_requests{model="echo",namespace="fleet"})'


def folder_of_secret(place: Path, files: Mapping[str, Path]) -> str:
    """Lay files out as a volume of a secret: links to a folder, which is replaced at once when the secret changes."""
    (place / "..data").mkdir(parents=True)
    for name, path in files.items():
        (place / "..data" / name).write_bytes(path.read_bytes())
        (place / name).symlink_to(f"..data/{name}")
    return str(place)


@pytest.fixture
def volumes(write_echo: Callable[..., Path], tmp_path: Path) -> dict[str, str]:
    """The secrets of the site with TLS, made as docs/reference/deployment.md has it, and the claim with a model."""
    folder = BrokerFolder(tmp_path / "DIR")
    names = ((Role.WORKER, "site-mqinfer-echo-0"), (Role.GATEWAY, "site-mqinfer-gateway-0"))
    wanted = [*names, (Role.DASHBOARD, "site-mqinfer-dashboard")]
    folder.init(["site-mqinfer-broker"], Ports(certificates=8883), 300, wanted, Topics())
    of_broker = {each.name: each for each in (tmp_path / "DIR").iterdir() if each.is_file() and each.name != "ca.key"}
    logins = {each.name: each for each in (tmp_path / "DIR" / "clients").iterdir()}
    logins |= {name: tmp_path / "DIR" / name for name in ("ca.crt", "group")}
    page = {"tls.crt": tmp_path / "DIR" / "broker.crt", "tls.key": tmp_path / "DIR" / "broker.key"}
    keys = tmp_path / "keys.toml"
    keys.write_text(f'[ann]\nkey = "{KEY}"\nrights = ["infer", "metadata", "watch"]\n')
    parts = {"broker": of_broker, "logins": logins, "page": page, "keys": {"keys.toml": keys}}
    found = {name: folder_of_secret(tmp_path / "secrets" / name, files) for name, files in parts.items()}
    return found | {"models": str(write_echo("echo"))}


@pytest.mark.broker
@pytest.mark.slow  # four programs
def test_a_site_runs(checked: Any, volumes: dict[str, str], tmp_path: Path) -> None:
    """The containers of the site with TLS, as processes: all probes succeed, a call is answered, all end in order."""
    if not (BUILT_PAGE / "index.html").is_file():
        pytest.skip("the dashboard's page is not built (scripts/build-page)")
    alone = ["unshare", "--map-root-user", "--net", "--mount"]
    needed = "ip link set lo up && mount --bind /etc/hosts /etc/hosts && unshare --user --map-user=10001 true"
    if subprocess.run([*alone, "sh", "-c", needed], capture_output=True, check=False).returncode:
        pytest.skip("this machine allows no namespaces of one's own")
    gateway = "https://site-mqinfer-gateway:8000/v2/models/echo/infer"
    inputs = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}
    answer = '"data":[1.0,2.0,3.0,4.0]'
    lag = "http://site-mqinfer-gateway-metrics.fleet:8002/lag"
    asked = {
        "manifests": checked["manifests"]["tls"],
        "volumes": volumes,
        "place": str(tmp_path / "pods"),
        "calls": [[gateway, KEY, inputs, answer], [lag, "", None, '"wanted"']],
    }
    command = [*alone, sys.executable, str(Path(__file__).with_name("cluster.py"))]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, input=json.dumps(asked), capture_output=True, text=True, timeout=500, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr[-6000:]
    found = json.loads(done.stdout)
    assert len(found["probes"]) == 4
    assert all(all(probes.values()) for probes in found["probes"].values()), done.stderr[-6000:]
    assert answer in found["answers"][0]
    assert '"echo"' in found["answers"][1]
    assert set(found["ends"].values()) == {0}, done.stderr[-6000:]


def test_alerts_and_version() -> None:
    """The rules are those of examples/monitoring, and the version is that of mqinfer."""
    assert (CHART / "rules.yml").read_text() == (ROOT / "examples" / "monitoring" / "rules.yml").read_text()
    assert f'appVersion: "{__version__}"' in (CHART / "Chart.yaml").read_text()


def test_names() -> None:
    """The longest names of pods are names on the broker, with the number of a process behind them."""
    release, group = 28, 15  # characters that _helpers.tpl and values.schema.json allow
    check_name("worker", f"{'r' * release}-{'g' * group}-{'h' * 10}-{'p' * 5}.63")
    assert f"trunc {release}" in (CHART / "templates" / "_helpers.tpl").read_text()
    assert f"[a-z0-9-]{{0,{group - 2}}}" in (CHART / "values.schema.json").read_text()

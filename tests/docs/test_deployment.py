"""deploy/: stages of the images, services of compose.yaml, and that what they name is there."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from typing import Any, NamedTuple

import pytest
from ruamel.yaml import YAML

from tests.docs.blocks import ROOT
from tests.docs.test_blocks import unknown

DEPLOY = ROOT / "deploy"
PROGRAMS = ("broker", "worker", "worker-gpu", "gateway", "edge", "prometheus")
COMPILERS = re.compile(r"\b(build-essential|gcc|g\+\+|clang|make|cmake|python3-dev)\b")


class Instruction(NamedTuple):
    """A line of the Containerfile, with those that go on with it."""

    word: str
    rest: str


def read_stages() -> dict[str, list[Instruction]]:
    """Read the Containerfile: the instructions of each stage, by its name."""
    lines = [line for line in (DEPLOY / "Containerfile").read_text(encoding="utf-8").splitlines() if line[:1] != "#"]
    stages: dict[str, list[Instruction]] = {"": []}
    for text in "\n".join(lines).replace("\\\n", " ").splitlines():
        if text.strip():
            word, _, rest = text.partition(" ")
            if word == "FROM":
                stages[rest.split()[-1]] = []
            stages[list(stages)[-1]].append(Instruction(word, rest.strip()))
    return stages


STAGES = read_stages()
COMPOSE: dict[str, Any] = YAML(typ="safe").load(DEPLOY / "compose.yaml")
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]


def of_stage(stage: str, word: str) -> list[str]:
    """Return what stands behind each instruction of a kind."""
    return [each.rest for each in STAGES[stage] if each.word == word]


@pytest.mark.parametrize("stage", PROGRAMS)
def test_an_image(stage: str) -> None:
    """It starts from the base, runs as no root, installs no compiler, and has a health check that is in it."""
    assert of_stage(stage, "FROM") == [f"base AS {stage}"]
    assert of_stage(stage, "USER") == ["10001:10001"]
    assert not COMPILERS.search(" ".join(of_stage(stage, "RUN")))
    copied = of_stage(stage, "COPY")
    assert [each for each in copied if each.startswith("--from=")] == (
        [] if stage == "prometheus" else [f"--from=packages-{stage} /opt/mqinfer /opt/mqinfer"]
    )
    (check,) = of_stage(stage, "HEALTHCHECK")
    assert json.loads(check.partition("CMD ")[2])[0] == "healthy"
    assert any("healthy" in each.split() for each in copied)


def test_files_and_arguments() -> None:
    """What the images copy is there, and scripts/build-image names the stages that there are."""
    script = (ROOT / "scripts" / "build-image").read_text(encoding="utf-8")
    named = {word for stage in PROGRAMS for each in of_stage(stage, "COPY") for word in each.split()[:-1]}
    files = {name for name in named if not name.startswith(("--from", "/"))}
    assert files == {"healthy", "prepare-site", "prometheus.yml", "rules.yml"}
    assert all((DEPLOY / name).is_file() for name in files - {"rules.yml"})
    listed = re.search(r"^# STAGE: (.*?); by default", script, re.MULTILINE)
    assert listed
    assert tuple(re.sub(r" \(.*?\)", "", listed[1]).split(", ")) == PROGRAMS


def test_extras_exist() -> None:
    """Those that the images install."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    text = "\n".join(f"{each.word} {each.rest}" for stage in STAGES.values() for each in stage)
    named = re.findall(r"\[([a-z,-]+)\]\"", text) + re.findall(r"_EXTRAS=(\S+)", text)
    assert len(named) == len(PROGRAMS) - 1
    assert {extra for names in named for extra in names.split(",")} <= set(extras)


@pytest.mark.parametrize("stage", [stage for stage in PROGRAMS if stage != "prometheus"])
def test_the_command_of_an_image_exists(stage: str) -> None:
    """The subcommand and its options."""
    assert json.loads(*of_stage(stage, "ENTRYPOINT")) == ["mqinfer"]
    assert unknown(json.loads(*of_stage(stage, "CMD"))) == []


def stage_of(service: str) -> str:
    """Return the stage of a service's image."""
    found = re.fullmatch(r"localhost/mqinfer-([a-z-]+):\$\{IMAGE_TAG:-latest\}", SERVICES[service]["image"])
    assert found
    return found[1]


def words_of(service: str) -> list[list[str]]:
    """Return the `mqinfer` commands that a service runs, without the program."""
    command = SERVICES[service].get("command") or json.loads(*of_stage(stage_of(service), "CMD"))
    if SERVICES[service].get("entrypoint") == ["sh", "-c"]:
        return [shlex.split(words) for words in re.findall(r"mqinfer ([^;&}]+)", command[0])]
    return [command] if stage_of(service) != "prometheus" and "entrypoint" not in SERVICES[service] else []


@pytest.mark.parametrize("service", SERVICES)
def test_a_service(service: str) -> None:
    """It is confined and bounded, its image and command exist, and it listens on loopback."""
    has = SERVICES[service]
    assert stage_of(service) in PROGRAMS
    assert (has["read_only"], has["tmpfs"], has["cap_drop"]) == (True, ["/tmp"], ["ALL"])  # noqa: S108 - in the container
    assert has["security_opt"] == ["no-new-privileges:true"]
    assert not {"privileged", "user", "network_mode", "cap_add", "devices"} & set(has)
    assert has["cpus"]
    assert has["mem_limit"]
    assert all(str(port).startswith("127.0.0.1:") for port in has.get("ports", ()))
    assert [unknown(words) for words in words_of(service)] == [[] for _ in words_of(service)]
    assert set(has.get("depends_on", ())) <= set(SERVICES)
    assert {volume.split(":")[0] for volume in has.get("volumes", ())} <= set(COMPOSE["volumes"])
    runs_on = has["restart"] == "unless-stopped"
    assert runs_on or has["healthcheck"] == {"disable": True}


def test_a_login_goes_to_its_service_alone() -> None:
    """Each client's folder is made by prepare-site, and mounted for reading by that client alone."""
    script = (DEPLOY / "prepare-site").read_text(encoding="utf-8")
    clients = set(re.findall(r"--client [a-z]+:(\S+)", script))
    mounted = {service: set(has.get("volumes", ())) for service, has in SERVICES.items()}
    made = mounted.pop("site")
    assert made == {"site:/etc/mqinfer/site", *(f"{name}:/etc/mqinfer/clients/{name}" for name in clients)}
    for name in clients:
        assert [service for service, volumes in mounted.items() if f"{name}:/etc/mqinfer:ro" in volumes] == [name]
    assert [service for service, volumes in mounted.items() if "site:/etc/mqinfer/site:ro" in volumes] == ["broker"]
    logins = {volume for volumes in mounted.values() for volume in volumes if ":/etc/mqinfer" in volume}
    assert len(logins) == len(clients) + 1


def test_prometheus_scrapes_services() -> None:
    """Each target is a service, at the port where all images have their metrics."""
    settings = YAML(typ="safe").load(DEPLOY / "prometheus.yml")
    jobs = [each for job in settings["scrape_configs"] for each in job["static_configs"]]
    targets = [target for each in jobs for target in each["targets"]]
    assert targets
    assert all(target.partition(":")[0] in SERVICES and target.endswith(":8002") for target in targets)

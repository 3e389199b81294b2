"""A site at Mosquitto with its workers at NATS, each with its login, as their operators set it up by commands."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import numpy as np
import pytest

from mqinfer.broker.address import BrokerAddress
from mqinfer.broker.connect import make_link
from mqinfer.broker.link import Link, Message, ReasonCode
from mqinfer.broker.presence import make_client_id
from mqinfer.client import Client
from mqinfer.client.control import ControlClient
from mqinfer.protocol.control import Call, Operation
from mqinfer.protocol.errors import NotAuthorized
from mqinfer.protocol.topics import Topics
from tests.broker.heard import Heard, Inbox
from tests.commands import command, mqinfer
from tests.patience import PATIENT

pytestmark = [pytest.mark.broker, pytest.mark.slow]  # processes
X = np.ones((1, 4), np.float32)
TOPICS = Topics()


def init(folder: Path, *clients: str, engine: str) -> dict[str, str]:
    """Set up a broker; return the options that are printed for each client."""
    given = (word for client in clients for word in ("--client", client))
    made = mqinfer("broker", "init", folder, "--bind", "127.0.0.1", "--engine", engine, *given)
    assert made.returncode == 0, made.stderr
    return dict(re.findall(r"^\w+ (\S+) .* connects with\n  (.*)$", made.stdout, re.MULTILINE))


def options(printed: str, url: str) -> list[str]:
    """Return printed options with the address where the broker really is."""
    words = shlex.split(printed)
    return [url if "://" in word else word for word in words]


def login(printed: str, url: str) -> BrokerAddress:
    """Return the same for a client in this process."""
    words = options(printed, url)
    files = {name: words[words.index(f"--{name}") + 1] for name in ("ca-file", "cert-file", "key-file")}
    return BrokerAddress.parse(url, **{name.replace("-", "_"): Path(path) for name, path in files.items()})


@contextmanager
def running(ready: str, *words: object) -> Iterator[str]:
    """Run a command from where it says that it is ready; yields the last word of that line."""
    with subprocess.Popen(command(*words), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        try:
            said = []
            for line in process.stdout:
                said.append(line)
                if ready in line:
                    break
            else:
                raise AssertionError("".join(said))
            yield said[-1].split()[-1]
        finally:
            process.terminate()
            process.communicate()


@contextmanager
def opened(address: BrokerAddress) -> Iterator[Link]:
    """Open a link for the length of a block."""
    with closing(make_link(address, client_id=make_client_id("test"))) as link:
        link.open(60.0)
        yield link


def code_of(link: Link, topic: str) -> int:
    """Publish on a topic, and return the reason code."""
    codes = Heard[int]()
    link.publish(Message(topic, b""), codes)
    return codes.wait_for(1)[0]


def test_a_site_with_logins_on_both_sides(
    open_place: Path, unique: Callable[[str], str], write_echo: Callable[..., Path]
) -> None:
    """A vehicle is answered, a dashboard sees it, an operator's order passes, and nobody does more than its role."""
    plant, cloud = open_place / unique("plant"), open_place / unique("cloud")
    at_site = init(plant, "bridge:br", "vehicle:car-1", "dashboard:dash", "operator:op", engine="mosquitto")
    at_cloud = init(cloud, "worker:gpu", "site:plant", engine="nats")
    with ExitStack() as stack:
        near = stack.enter_context(running("broker ready at", "broker", "--config", plant, "--port", 0))
        run_nats = ("broker", "--config", cloud, "--engine", "nats", "--port", 0)
        far = stack.enter_context(running("broker ready at", *run_nats))
        serve = ("worker", "--repository", write_echo("echo"), *options(at_cloud["gpu"], far))
        stack.enter_context(running(" ready: echo", *serve))
        ends = (*options(at_site["br"], near), *options(at_cloud["plant"], far))
        stack.enter_context(running("bridge of plant ready", "broker", "bridge", *ends, "--site", "plant"))
        links = {name: stack.enter_context(opened(login(at_site[name], near))) for name in ("car-1", "dash", "op")}
        states, results = Inbox(), Inbox()
        links["dash"].subscribe(TOPICS.worker_state.filter(), states)
        links["dash"].subscribe(TOPICS.result.filter(), results)
        states.wait_until(lambda got: any(b'"ready"' in bytes(each.payload) for each in got))
        with Client(login(at_site["car-1"], near), options=PATIENT) as vehicle:
            answer = vehicle.infer("echo", {"x": X})
            assert (answer.worker, answer.outputs["x"].tolist()) == ("gpu.0", X.tolist())
        results.wait_until(lambda got: any("/car-1/" in each.topic for each in got))
        with ControlClient(login(at_site["op"], near)) as control:
            control.wait_for("gpu")
            (reply,) = control.ask(Call(Operation.INDEX), timeout=60)
            assert (reply.server, reply.content[0]["name"]) == ("gpu", "echo")

        cloud_link = stack.enter_context(opened(login(at_cloud["plant"].replace("--far-", "--"), far)))
        for link, topic in (
            (links["car-1"], TOPICS.control("gpu", "car-1", "repository/index")),
            (links["car-1"], TOPICS.infer("echo", "car-2")),
            (links["dash"], TOPICS.infer("echo", "dash")),
            (links["op"], TOPICS.worker_state("gpu.0")),
            (cloud_link, TOPICS.worker_state("gpu.0")),
            (cloud_link, TOPICS.card("echo")),
        ):
            assert code_of(link, topic) == ReasonCode.NOT_AUTHORIZED, topic
        with ControlClient(login(at_site["car-1"], near)) as control, pytest.raises(NotAuthorized, match="car-1"):
            control.ask(Call(Operation.LOAD, "echo"), timeout=60)

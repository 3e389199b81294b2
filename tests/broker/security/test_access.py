"""The table of rules, cell by cell, on a real Mosquitto: who may publish and who may read what.

Once with certificates, and once as browsers do: over websockets, with passwords.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import count
from queue import SimpleQueue
from typing import Any

import pytest

from mqinfer.broker.link import Message
from mqinfer.broker.paho.link import PahoLink
from mqinfer.protocol.control import Operation
from mqinfer.protocol.topics import Topics
from tests.broker.attempts import NOT_AUTHORIZED, PATIENCE, listening, publish, until
from tests.broker.attempts import ROOT as R

pytestmark = pytest.mark.broker

_numbers = count()
Links = Mapping[str, PahoLink]

MARKER = Topics().card("marker")
"""A topic that everybody may read."""
TOPICS = {
    "request": f"{R}/models/m/infer/{{me}}",
    "other's request": f"{R}/models/m/infer/car-2",
    "sub-name's request": f"{R}/models/m/infer/{{me}}.rear",
    "sub-name's version request": f"{R}/models/m/versions/3/infer/{{me}}.rear",
    "process's request": f"{R}/models/m/infer/{{me}}.0",
    "process's way to a lane": f"{R}/workers/w.0/infer/m/{{me}}.0",
    "request of a process too many": f"{R}/models/m/infer/{{me}}.8",
    "request of a sub-name that nobody granted": f"{R}/models/m/infer/{{me}}.roof",
    "request of other's sub-name": f"{R}/models/m/infer/car-2.rear",
    "version request": f"{R}/models/m/versions/3/infer/{{me}}",
    "other's version request": f"{R}/models/m/versions/3/infer/car-2",
    "lane request": f"{R}/workers/w.0/infer/m/{{me}}",
    "sub-name's way to a lane": f"{R}/workers/w.0/infer/m/{{me}}.rear",
    "other's lane request": f"{R}/workers/w.0/infer/m/car-2",
    "other's lane request to v": f"{R}/workers/v.0/infer/m/car-2",
    "cancellation": f"{R}/models/m/cancel/{{me}}",
    "sub-name's cancellation": f"{R}/models/m/cancel/{{me}}.rear",
    "other's cancellation": f"{R}/models/m/cancel/car-2",
    "w.1's request to itself": f"{R}/workers/w.1/infer/m/w.1",
    "w.1's request": f"{R}/models/m/infer/w.1",
    "result": f"{R}/results/m/{{me}}/r",
    "other's result": f"{R}/results/m/car-2/r",
    "sub-name's result": f"{R}/results/m/{{me}}.rear/r",
    "process's result": f"{R}/results/m/{{me}}.0/r",
    "result of other's sub-name": f"{R}/results/m/car-2.rear/r",
    "card": f"{R}/models/m/card",
    "state of w.0": f"{R}/workers/w.0/state",
    "state of w.2": f"{R}/workers/w.2/state",  # beyond the processes that were agreed on
    "state of v.0": f"{R}/workers/v.0/state",
    "client state": f"{R}/clients/{{me}}/state",
    "other's client state": f"{R}/clients/car-2/state",
    "sub-name's client state": f"{R}/clients/{{me}}.rear/state",
    "state of other's sub-name": f"{R}/clients/car-2.rear/state",
    "preview": f"{R}/clients/{{me}}/preview/camera",
    "sub-name's preview": f"{R}/clients/{{me}}.rear/preview/camera",
    "other's preview": f"{R}/clients/car-2/preview/camera",
    "preview of other's sub-name": f"{R}/clients/car-2.rear/preview/camera",
    "answer": f"{R}/answers/m/{{me}}/camera",
    "sub-name's answer": f"{R}/answers/m/{{me}}.rear/camera",
    "other's answer": f"{R}/answers/m/car-2/camera",
    "presence": f"{R}/presence/m/{{me}}/camera/frame/car",
    "sub-name's presence": f"{R}/presence/m/{{me}}.rear/camera/frame/car",
    "other's presence": f"{R}/presence/m/car-2/camera/frame/car",
    "overlay": f"{R}/overlays/m/{{me}}/camera",
    "sub-name's overlay": f"{R}/overlays/m/{{me}}.rear/camera",
    "other's overlay": f"{R}/overlays/m/car-2/camera",
    "an entity in Home Assistant": "homeassistant/sensor/{me}/1/config",
    "below a presence": f"{R}/presence/m/{{me}}/camera/frame/car/more",
    "below an answer": f"{R}/answers/m/{{me}}/camera/more",
    "below a preview": f"{R}/clients/{{me}}/preview/camera/more",
    "index of w": f"{R}/control/w/{{me}}/repository/index",
    "index of all": f"{R}/control/all/{{me}}/repository/index",
    "other's index of w": f"{R}/control/w/car-2/repository/index",
    "statistics of w": f"{R}/control/w/{{me}}/models/stats",
    "statistics of a model": f"{R}/control/all/{{me}}/models/m/stats",
    "statistics of a version": f"{R}/control/all/{{me}}/models/m/versions/3/stats",
    "process's index": f"{R}/control/all/{{me}}.0/repository/index",
    "metadata of a model": f"{R}/control/all/{{me}}/models/m",
    "metadata of a version": f"{R}/control/all/{{me}}/models/m/versions/3",
    "configuration of a version": f"{R}/control/w/{{me}}/models/m/versions/3/config",
    "configuration of a model": f"{R}/control/w/{{me}}/models/m/config",
    "order to w": f"{R}/control/w/{{me}}/repository/models/m/load",
    "order to v": f"{R}/control/v/{{me}}/repository/models/m/load",
    "order to all": f"{R}/control/all/{{me}}/repository/models/m/unload",
    "other's order to w": f"{R}/control/w/op-2/repository/index",
    "state of server w": f"{R}/control/w/state",
    "state of server v": f"{R}/control/v/state",
    "reply to an order": f"{R}/results/control/{{me}}/r",
    "reply to another's order": f"{R}/results/control/op-2/r",
    "another root": "mqinfer/v2/models/m/infer/{me}",
    "anything else": "elsewhere/{me}",
}
ALL_STATES = {"state of w.0", "state of w.2", "state of v.0"}
SERVER_STATES = {"state of server w", "state of server v"}
CLIENT_STATES = {"client state", "other's client state", "sub-name's client state", "state of other's sub-name"}
PREVIEWS = {"preview", "sub-name's preview", "other's preview", "preview of other's sub-name"}
ANSWERS = {"answer", "sub-name's answer", "other's answer"}
PRESENCES = {"presence", "sub-name's presence", "other's presence"}
OVERLAYS = {"overlay", "sub-name's overlay", "other's overlay"}
REPLIES = {name for name in TOPICS if "result" in name or "reply" in name}
REQUESTS = {name for name in TOPICS if "request" in name and "lane" not in name and "itself" not in name}
LANES = {name for name in TOPICS if "to a lane" in name or "lane request" in name} - {"other's lane request to v"}
CANCELLATIONS = {name for name in TOPICS if "cancellation" in name}
STATISTICS = {name for name in TOPICS if name.startswith("statistics")}
QUESTIONS = {"index of w", "index of all", *STATISTICS}
OF_MODELS = {f"{what} of a {which}" for what in ("metadata", "configuration") for which in ("model", "version")}
OF_CONTROL = {name for name, topic in TOPICS.items() if "/control/w/" in topic or "/control/all/" in topic}
OF_ORDERS = {
    name for name, topic in TOPICS.items() if "/control/" in topic and "/results/" not in topic
} - SERVER_STATES
ALL_REQUESTS = {name for name, topic in TOPICS.items() if "/infer/" in topic and "/v1/" in topic}
ASKING = {"request", "version request", "lane request", "cancellation", "client state"}
OF_SUB_NAMES = {f"sub-name's {name}" for name in (*ASKING - {"lane request"}, "way to a lane")}

WRITES = {
    "car-1": {
        "preview",
        "sub-name's preview",
        "answer",
        "sub-name's answer",
        "presence",
        "sub-name's presence",
        "overlay",
        "sub-name's overlay",
        *ASKING,
        *OF_SUB_NAMES,
    },
    "w": {
        "card",
        "state of w.0",
        "state of server w",
        "w.1's request",
        "w.1's request to itself",
        *ANSWERS,
        "process's request",
        "process's way to a lane",
        *REPLIES,
    },
    "dash": set[str](),
    "op": {"order to w", "order to v", "order to all", *OF_MODELS, *QUESTIONS, *ASKING},
    "gw": {"process's request", "process's way to a lane", "process's index", *OF_MODELS, *QUESTIONS, *ASKING},
    "br": {*REPLIES, *ANSWERS, "card", *ALL_STATES, *SERVER_STATES},
    "st": {*ALL_REQUESTS, *CANCELLATIONS, *PREVIEWS, *CLIENT_STATES, *OF_ORDERS},
}
READS = {
    "car-1": {
        "result",
        "sub-name's result",
        "answer",
        "sub-name's answer",
        "reply to an order",
        "card",
        "client state",
        "sub-name's client state",
        *ALL_STATES,
    },
    "w": {
        *REQUESTS,
        *LANES,
        "w.1's request to itself",
        "process's result",
        *CANCELLATIONS,
        "card",
        *ALL_STATES,
        *CLIENT_STATES,
        *OF_CONTROL,
    },
    "dash": {*REPLIES, *PREVIEWS, *ANSWERS, *PRESENCES, *OVERLAYS, "card", *ALL_STATES, *CLIENT_STATES, *SERVER_STATES},
    "op": {"result", "reply to an order", "card", *ALL_STATES, *CLIENT_STATES, *SERVER_STATES},
    "gw": {"result", "process's result", "reply to an order", "card", *ALL_STATES, *CLIENT_STATES, *SERVER_STATES},
    "br": {
        *ALL_REQUESTS,
        *CANCELLATIONS,
        *PREVIEWS,
        *OF_ORDERS,
        "card",
        *ALL_STATES,
        *CLIENT_STATES,
        *SERVER_STATES,
    },
    "st": {*REPLIES, *ANSWERS, "card", *ALL_STATES, *CLIENT_STATES, *SERVER_STATES},
}
CELLS = [(who, what) for who in WRITES for what in TOPICS]


@pytest.fixture(scope="module", params=["certificates", "websockets"])
def links(request: pytest.FixtureRequest, secured: Any) -> Iterator[Links]:
    """One open link a client, by name."""
    where = secured.address if request.param == "certificates" else secured.browser
    opened = {name: PahoLink(where(name), client_id=f"{request.param}-{name}") for name in (*WRITES, "witness")}
    for link in opened.values():
        link.open(PATIENCE)
    yield opened
    for link in opened.values():
        link.close()


def payload() -> bytes:
    """One that no other test sends."""
    return b"%d" % next(_numbers)


def payloads(inbox: SimpleQueue[Message], last: str) -> list[bytes]:
    """What came up to the first message on a topic."""
    return [bytes(message.payload) for message in until(inbox, last)]


@pytest.mark.parametrize(("who", "what"), CELLS)
def test_publishing(links: Links, who: str, what: str) -> None:
    """What is not granted is refused by name (PUBACK 0x87) and reaches nobody."""
    topic, sent, witness = TOPICS[what].format(me=who), payload(), links["witness"]
    with listening(witness, topic, "witness/last") as inbox:
        code = publish(links[who], topic, sent)
        publish(witness, "witness/last")  # the broker takes one message after the other
        got = payloads(inbox, "witness/last")
    allowed = what in WRITES[who]
    assert (code == NOT_AUTHORIZED) != allowed
    assert (sent in got) == allowed


@pytest.mark.parametrize(("who", "what"), CELLS)
def test_reading(links: Links, who: str, what: str) -> None:
    """Mosquitto 2.0 grants each subscription, and hands over what the rules allow and nothing else."""
    topic, sent, witness = TOPICS[what].format(me=who), payload(), links["witness"]
    with listening(links[who], topic, MARKER) as inbox:
        publish(witness, topic, sent)
        publish(witness, MARKER)
        got = payloads(inbox, MARKER)
    assert (sent in got) == (what in READS[who])


@pytest.mark.parametrize("who", ["car-1", "dash", "op"])
def test_subscribing_to_everything(links: Links, who: str) -> None:
    """With `#` a client gets what it may read, and no request of anybody."""
    witness, sent = links["witness"], {what: payload() for what in TOPICS}
    with listening(links[who], "#") as inbox:
        for what, content in sent.items():
            publish(witness, TOPICS[what].format(me=who), content)
        publish(witness, MARKER)
        got = payloads(inbox, MARKER)
    assert {what for what, content in sent.items() if content in got} == READS[who]


@pytest.mark.parametrize("who", ["car-1", "dash", "op"])
def test_nobody_else_joins_the_workers(links: Links, who: str) -> None:
    """A member of the workers' group who is none of them gets no request."""
    witness, requests = links["witness"], f"{R}/models/m/infer/+"
    with listening(links[who], MARKER) as inbox, listening(links[who], requests, share="g") as stolen:
        publish(witness, f"{R}/models/m/infer/car-2")
        publish(witness, MARKER)
        payloads(inbox, MARKER)
    assert stolen.empty()


def test_the_table_covers_all_topics() -> None:
    """Each builder's topic stands in the table: a new kind of topic has to be put there."""
    topics = Topics()
    made = {
        topics.infer("m", "car-1"),
        topics.infer("m", "car-1", "3"),
        topics.lane("w.0", "m", "car-1"),
        topics.cancel("m", "car-1"),
        topics.result("m", "car-1", "r"),
        topics.card("m"),
        topics.worker_state("w.0"),
        topics.client_state("car-1"),
        topics.preview("car-1", "camera"),
        topics.answers("m", "car-1", "camera"),
        topics.presence("m", "car-1", "camera", "frame", "car"),
        topics.overlay("m", "car-1", "camera"),
        topics.control("all", "car-1", Operation.INDEX),
        topics.control("w", "car-1", Operation.ALL_STATS),
        topics.control("w", "car-1", "repository/index"),
        topics.control_result("car-1", "r"),
        topics.control_state("w"),
    }
    assert made <= {topic.format(me="car-1") for topic in TOPICS.values()}

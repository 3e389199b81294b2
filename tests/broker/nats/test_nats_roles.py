"""The table of rules, cell by cell, on a real nats-server, and what its own protocol would allow beside that."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mqinfer.broker.address import BrokerAddress
from mqinfer.broker.link import Message, ReasonCode
from mqinfer.broker.mosquitto import BrokerFolder, Login, Ports, Role
from mqinfer.broker.nats.link import NatsLink
from mqinfer.broker.nats.secured import keep_running, secured
from mqinfer.broker.nats.server import NatsServers
from mqinfer.broker.packets import encode_head
from mqinfer.broker.roles import BROKER
from mqinfer.broker.tls import make_tls_context
from mqinfer.protocol.errors import ConfigError, LinkError, NotAuthorized
from tests.broker.attempts import ROOT as R
from tests.broker.conftest import CLIENTS
from tests.broker.heard import PATIENCE, Heard, Inbox, Told
from tests.broker.security.test_access import READS, TOPICS, WRITES
from tests.patience import until, wait_until

Links = Mapping[str, NatsLink]
CELLS = [(who, what) for who in WRITES for what in TOPICS]


class Site:
    """A folder, its servers, and the logins."""

    def __init__(self, folder: BrokerFolder, servers: NatsServers) -> None:
        self.folder, self.servers, self.logins = folder, servers, dict[str, Login]()

    def address(self, login: Login | str) -> BrokerAddress:
        """Where a client connects to, with its certificate."""
        login = self.logins[login] if isinstance(login, str) else login
        files = {"ca_file": login.ca_file, "cert_file": login.cert_file, "key_file": login.key_file}
        return BrokerAddress.parse(f"tls://127.0.0.1:{self.servers.port}", **files)


def make_folder(path: Path) -> BrokerFolder:
    """A folder whose broker listens on loopback."""
    folder = BrokerFolder(path)
    folder.init(ports=Ports(bind="127.0.0.1"))
    return folder


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """One client of each role, and a witness who may do anything."""
    folder = make_folder(tmp_path_factory.mktemp("site") / "broker")
    logins = {name: folder.add(role, name) for name, role in CLIENTS.items()}
    logins |= {name: folder.add(Role.WORKER, name, processes=2) for name in ("w", "v", "witness")}
    acl = folder.path / "acl"
    acl.write_text(acl.read_text() + "\nuser witness\ntopic readwrite #\n")
    with secured(folder, None) as servers:
        made = Site(folder, servers)
        made.logins = logins
        yield made


@pytest.fixture(scope="module")
def links(site: Site) -> Iterator[Links]:
    """One open link a client, by name."""
    with ExitStack() as stack:
        opened = {
            name: stack.enter_context(closing(NatsLink(site.address(name), client_id=name))) for name in site.logins
        }
        for link in opened.values():
            link.open(PATIENCE)
        yield opened


def publish(link: NatsLink, topic: str, payload: bytes = b"x", *, retain: bool = False) -> int:
    """Publish and wait for the reason code."""
    codes = Heard[int]()
    link.publish(Message(topic, payload, retain=retain), codes)
    return codes.wait_for(1)[0]


@pytest.mark.parametrize(("who", "what"), CELLS)
def test_publishing(links: Links, who: str, what: str) -> None:
    """What is not granted is refused by name, and only states, cards and what is present may be retained."""
    topic = TOPICS[what].format(me=who)
    allowed = what in WRITES[who]
    assert (publish(links[who], topic) == ReasonCode.NOT_AUTHORIZED) != allowed
    may_retain = allowed and (topic.endswith(("/state", "/card")) or "/presence/" in topic)
    assert (publish(links[who], topic, b"", retain=True) == ReasonCode.NOT_AUTHORIZED) != may_retain


@pytest.mark.parametrize(("who", "what"), CELLS)
def test_reading(links: Links, who: str, what: str) -> None:
    """What is not granted can't be subscribed to; what is arrives."""
    topic, inbox = TOPICS[what].format(me=who), Inbox()
    if what not in READS[who]:
        with pytest.raises(NotAuthorized):
            links[who].subscribe(topic, inbox)
        return
    links[who].subscribe(topic, inbox)
    publish(links["witness"], topic, b"seen")
    assert inbox.payloads(1) == [b"seen"]
    links[who].unsubscribe(topic)


def raw(site: Site, login: str, *, work: Callable[[Any, list[str]], Any]) -> Any:
    """Do something with nats-py alone; the list gets what the server refuses."""
    nats = pytest.importorskip("nats")
    refused: list[str] = []

    async def note(error: Exception) -> None:
        if "permissions" in str(error):  # else of TLS, which the server may end first
            refused.append(str(error))

    async def run() -> Any:
        address = site.address(login)
        assert address.tls is not None
        client = await nats.connect(
            f"tls://127.0.0.1:{address.port}",
            tls=make_tls_context(address.tls),
            inbox_prefix=f"answers.{login}",
            error_cb=note,
            allow_reconnect=False,
        )
        try:
            return await work(client, refused)
        finally:
            await client.close()

    return asyncio.run(run())


BODY = {"deliver_policy": "all", "ack_policy": "none", "deliver_subject": "answers.car-1.stolen", "mem_storage": True}
FORBIDDEN = {
    "$JS.API.STREAM.DELETE.mqinfer": {},
    "$JS.API.STREAM.PURGE.mqinfer": {},
    "$JS.API.STREAM.UPDATE.mqinfer": {
        "name": "mqinfer",
        "subjects": ["kept.>"],
        "republish": {"src": ">", "dest": "x.>"},
    },
    "$JS.API.STREAM.CREATE.mine": {"name": "mine", "subjects": ["mqtt.>"]},
    "$JS.API.STREAM.MSG.GET.mqinfer": {"seq": 1},
    "$JS.API.STREAM.MSG.DELETE.mqinfer": {"seq": 1},
    "$JS.API.DIRECT.GET.mqinfer": {"seq": 1},
    "$JS.API.CONSUMER.LIST.mqinfer": {},
    "$JS.API.CONSUMER.CREATE.mqinfer": {"stream_name": "mqinfer", "config": BODY},
    "$JS.API.CONSUMER.CREATE.mqinfer.one": {"stream_name": "mqinfer", "config": {**BODY, "name": "one"}},
    "$JS.API.CONSUMER.DURABLE.CREATE.mqinfer.one": {
        "stream_name": "mqinfer",
        "config": {**BODY, "durable_name": "one"},
    },
    f"$JS.API.CONSUMER.CREATE.mqinfer.one.kept.{R.replace('/', '.')}.>": {"stream_name": "mqinfer", "config": BODY},
    "$JS.API.CONSUMER.CREATE.mqinfer.one.>": {"stream_name": "mqinfer", "config": BODY},
    "$SYS.REQ.SERVER.PING": {},
}
UNHEARD = [
    ">",
    "mqtt.>",
    "kept.>",
    "answers.>",
    "answers.car-2.>",
    "_INBOX.>",
    "$JS.>",
    "$SYS.>",
    f"mqtt.{R.replace('/', '.')}.results.*.*.*.*",
]


@pytest.mark.parametrize("name", FORBIDDEN)
def test_what_jetstream_is_not_asked(site: Site, name: str) -> None:
    """A vehicle can't change the stream, nor read from it but by subjects that its rules name."""

    async def work(client: Any, refused: list[str]) -> None:
        await client.publish(name, json.dumps(FORBIDDEN[name]).encode(), reply="answers.car-1.x")
        await until(lambda: refused)
        assert refused == [f'nats: permissions violation for publish to "{name.lower()}"']

    raw(site, "car-1", work=work)


@pytest.mark.parametrize("name", UNHEARD)
def test_what_is_not_heard(site: Site, name: str) -> None:
    """A vehicle hears nothing of the server, of others' answers and of what is on its way into the stream."""

    async def work(client: Any, refused: list[str]) -> None:
        await client.subscribe(name)
        await until(lambda: refused)
        assert refused == [f'nats: permissions violation for subscription to "{name.lower()}"']

    raw(site, "car-1", work=work)


@pytest.mark.parametrize(
    "changed", [{"filter_subject": "kept.>"}, {"filter_subjects": ["kept.>"]}, {"filter_subject": ""}]
)
def test_a_consumer_of_another_filter(site: Site, changed: dict[str, Any]) -> None:
    """The filter in a consumer's body has to be the one in the subject, which the rules bind."""
    name = f"kept.{R.replace('/', '.')}.models.*.card.*"

    async def work(client: Any, refused: list[str]) -> None:
        for config, is_good in (({"filter_subject": name}, True), (changed, False)):
            asked = {"stream_name": "mqinfer", "config": {**BODY, "name": "one", **config}}
            answer = await client.request(f"$JS.API.CONSUMER.CREATE.mqinfer.one.{name}", json.dumps(asked).encode())
            assert ("error" not in json.loads(answer.data)) == is_good
        assert refused == []

    raw(site, "car-1", work=work)


def test_nobody_has_the_server_speak_for_others(site: Site, links: Links) -> None:
    """A vehicle can name any subject for answers and for a consumer: what comes there is no message of mqinfer's."""
    stem, mine = f"mqtt.{R.replace('/', '.')}", f"kept.{R.replace('/', '.')}.clients.car-1.state"
    topic, inbox = f"{R}/workers/w.0/state", Inbox()
    forged = bytes(encode_head(Message(topic, b"forged", retain=True)).data) + b"forged"
    publish(links["w"], topic, b"true", retain=True)
    links["op"].subscribe(topic, inbox)
    assert inbox.payloads(1) == [b"true"]

    async def work(client: Any, refused: list[str]) -> None:
        for target in (f"{stem}.workers.w.0.state.live", f"{stem}.workers.w.0.state.retained"):
            await client.publish(f"{mine}.retained", forged, reply=target)
            body = {**BODY, "name": "two", "filter_subject": f"{mine}.*", "deliver_subject": target}
            asked = json.dumps({"stream_name": "mqinfer", "config": body}).encode()
            await client.publish(f"$JS.API.CONSUMER.CREATE.mqinfer.two.{mine}.*", asked, reply=target)
        await client.flush()
        assert refused == []

    raw(site, "car-1", work=work)
    publish(links["w"], topic, b"last", retain=True)
    assert inbox.wait_until(lambda items: items[-1].payload == b"last")
    assert inbox.payloads(2) == [b"true", b"last"]
    publish(links["w"], topic, b"", retain=True)
    publish(links["car-1"], f"{R}/clients/car-1/state", b"", retain=True)
    links["op"].unsubscribe(topic)


@pytest.mark.parametrize("who", ["dash", "op"])
def test_who_reads_alone(links: Links, who: str) -> None:
    """A login that only looks on can't take turns with those that a bridge or workers share messages with."""
    topic = f"{R}/workers/+/state"
    with pytest.raises(NotAuthorized):
        links[who].subscribe(topic, Inbox(), share="site")
    links[who].subscribe(topic, Inbox())
    links[who].unsubscribe(topic)
    links["st"].subscribe(topic, Inbox(), share="site")
    links["st"].unsubscribe(topic, share="site")


def test_a_will_is_bound_by_the_rules(site: Site) -> None:
    """A link can't leave a will on a topic on which it may not publish."""
    will = Message(f"{R}/workers/w.0/state", b"lost", retain=True)
    with closing(NatsLink(site.address("car-1"), client_id="forger", will=will)) as link, pytest.raises(LinkError):
        link.open(PATIENCE)


@contextmanager
def kept_running(servers: NatsServers) -> Iterator[None]:
    """Have servers take up changes of their folder for the length of a block."""
    stop = threading.Event()
    keeper = threading.Thread(target=keep_running, args=(servers, stop), kwargs={"every_s": 0.05})
    keeper.start()
    try:
        yield
    finally:
        stop.set()
        keeper.join()


def test_logins_come_and_go(tmp_path: Path) -> None:
    """A login that is added gets in, one that is removed is put out, and its certificate stays outside for good."""
    folder = make_folder(tmp_path / "broker")
    login = folder.add(Role.VEHICLE, "car-1")
    with secured(folder, None) as servers, kept_running(servers):
        site, told = Site(folder, servers), Told()
        late = folder.add(Role.VEHICLE, "car-2")
        wait_until(lambda: enters(site, late))
        old = replace(login, cert_file=tmp_path / "old.crt", key_file=tmp_path / "old.key")
        for one, other in ((login.cert_file, old.cert_file), (login.key_file, old.key_file)):
            assert one
            assert other
            other.write_bytes(one.read_bytes())
        with closing(NatsLink(site.address(old), client_id="car-1", on_connection=told)) as link:
            link.open(PATIENCE)
            folder.remove("car-1")
            told.wait_until(lambda items: False in items)
        assert not enters(site, old)
        new = folder.add(Role.VEHICLE, "car-1")
        wait_until(lambda: enters(site, new))
        assert enters(site, late)
        assert not enters(site, old)


def test_a_rule_that_denies(tmp_path: Path) -> None:
    """What NATS can't keep is refused at the start, and what holds stays where it is written later."""
    folder = make_folder(tmp_path / "broker")
    folder.add(Role.VEHICLE, "car-1")
    acl = folder.path / "acl"
    granted = acl.read_text()
    acl.write_text(f"{granted}\nuser other\ntopic readwrite #\ntopic  deny secret/#\n")
    with pytest.raises(ConfigError, match=r"topic deny.*other"), secured(folder, None):
        pass
    acl.write_text(granted)
    with secured(folder, None) as servers:
        acl.write_text(f"{granted}topic deny secret/#\n")
        with pytest.raises(ConfigError, match=r"topic deny.*car-1"):
            servers.reload()


def test_the_renewed_certificate_of_the_broker(tmp_path: Path) -> None:
    """Servers that run show it to whoever connects from then on, and the rules stay."""
    folder = make_folder(tmp_path / "broker")
    login = folder.add(Role.VEHICLE, "car-1")
    with secured(folder, None) as servers, kept_running(servers):
        address = Site(folder, servers).address(login)

        def shown() -> bytes | None:
            assert address.tls
            with socket.create_connection((address.host, address.port), PATIENCE) as plain:
                with plain.makefile("rb", buffering=0) as lines:
                    lines.readline()  # NATS states first that it speaks TLS
                with make_tls_context(address.tls).wrap_socket(plain, server_hostname=address.host) as sock:
                    return sock.getpeercert(binary_form=True)

        before = shown()
        folder.renew([BROKER], 10)
        wait_until(lambda: shown() != before)
        assert enters(Site(folder, servers), login)


def enters(site: Site, login: Login) -> bool:
    """Whether the broker accepts a login."""
    with closing(NatsLink(site.address(login), client_id="entering")) as link:
        try:
            link.open(PATIENCE)
        except LinkError:
            return False
        return True


def test_other_users_of_the_machine(site: Site) -> None:
    """They can't read the configuration, with whose secret they could join a cluster as one of its servers."""
    for pid in site.servers.pids:
        *_, configuration, _ = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        assert Path(configuration).exists()
        assert Path(configuration).parent.stat().st_mode & 0o077 == 0


def test_without_a_certificate(site: Site) -> None:
    """Nobody gets in without one, nor with one of another authority."""
    login = site.logins["car-1"]
    address = BrokerAddress.parse(f"tls://127.0.0.1:{site.servers.port}", ca_file=login.ca_file)
    for _ in range(5):  # the server's word is lost where it closes before all is read
        with closing(NatsLink(address, client_id="nobody")) as link, pytest.raises(NotAuthorized, match="certificate"):
            link.open(PATIENCE)

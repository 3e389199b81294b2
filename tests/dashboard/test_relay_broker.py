"""The relay in front of a real Mosquitto, with a real client of MQTT over websockets: its logins and rules hold."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from paho.mqtt.enums import MQTTProtocolVersion

from mqinfer.broker import make_link
from mqinfer.broker.address import BrokerAddress
from mqinfer.broker.link import Message
from mqinfer.broker.mosquitto import BrokerFolder, Login, Ports, Role
from mqinfer.broker.mosquitto.server import MosquittoServer
from mqinfer.broker.mosquitto.serving import secured as secured_server
from mqinfer.dashboard.serving import check_anonymous
from mqinfer.dashboard.settings import DashboardSettings
from mqinfer.protocol.errors import BrokerUnreachable, ConfigError
from mqinfer.web.tls import TlsFiles
from tests.dashboard.served import PATIENCE, Browser, served, settings_of, tls_files
from tests.ports import free_port

pytestmark = pytest.mark.broker

RESULT = "mqinfer/v1/results/m/car-1/1"
Unique = Callable[[str], str]


def publish(address: str | BrokerAddress, *messages: Message) -> None:
    """Publish, and wait until the broker has them."""
    link = make_link(address, client_id=f"publisher-{os.urandom(4).hex()}")
    link.open(PATIENCE)
    try:
        for message in messages:
            link.publish(message)
    finally:
        link.close()


def test_browsers_follow_to_a_standby_and_back(unique: Unique) -> None:
    """They are disconnected from a standby when the first broker is back, and the others with them."""
    topic = unique("relay")
    with MosquittoServer() as first, MosquittoServer() as standby:
        both = f"{first.url},{standby.host}:{standby.port}"
        with served(settings_of(both)) as dashboard, Browser(dashboard.url) as browser:
            assert browser.connected.get(timeout=PATIENCE) == "Success"
            first.kill()
            browser.disconnected.get(timeout=PATIENCE)
            assert browser.connected.get(timeout=PATIENCE) == "Success"
            browser.subscribe(topic)
            publish(standby.url, Message(topic, b"there"))
            assert browser.messages.get(timeout=PATIENCE).payload == b"there"
            first.start()
            browser.disconnected.get(timeout=PATIENCE)
            assert browser.connected.get(timeout=PATIENCE) == "Success"
            browser.subscribe(topic)
            publish(first.url, Message(topic, b"back"))
            assert browser.messages.get(timeout=PATIENCE).payload == b"back"


@pytest.mark.parametrize("version", [MQTTProtocolVersion.MQTTv5, MQTTProtocolVersion.MQTTv311])
def test_messages_pass(broker_url: str, unique: Unique, version: MQTTProtocolVersion) -> None:
    """Ten results of 2 MB and many small ones arrive whole, in their order."""
    topic = unique("relay")
    contents = [os.urandom(2_000_000) for _ in range(10)] + [b"%d" % n for n in range(500)]
    with served(settings_of(broker_url)) as dashboard, Browser(dashboard.url, version=version) as browser:
        assert browser.connected.get(timeout=PATIENCE) == "Success"
        browser.subscribe(f"{topic}/+")
        publish(broker_url, *(Message(f"{topic}/x", content, qos=1) for content in contents))
        got = [browser.messages.get(timeout=PATIENCE).payload for _ in contents]
    assert [hashlib.sha256(each).digest() for each in got] == [hashlib.sha256(each).digest() for each in contents]


def test_a_browser_may_publish_what_the_broker_allows(broker_url: str, unique: Unique) -> None:
    """Without a login of the relay, the broker alone decides."""
    topic = unique("relay")
    with served(settings_of(broker_url)) as dashboard, Browser(dashboard.url) as browser:
        browser.subscribe(topic)
        browser.client.publish(topic, b"x" * 700_000, qos=1)
        assert browser.messages.get(timeout=PATIENCE).payload == b"x" * 700_000


def test_the_broker_restarts(unique: Unique) -> None:
    """The browser is disconnected cleanly, and connects again once the broker is back."""
    with (
        MosquittoServer() as broker,
        served(settings_of(broker.url)) as dashboard,
        Browser(dashboard.url) as browser,
    ):
        assert browser.connected.get(timeout=PATIENCE) == "Success"
        broker.kill()
        browser.disconnected.get(timeout=PATIENCE)
        broker.start()
        assert browser.connected.get(timeout=PATIENCE) == "Success"
        assert browser.subscribe(unique("relay")) == ["Granted QoS 0"]


@dataclass(frozen=True, slots=True)
class Guarded:
    """A broker with a login for each client."""

    server: MosquittoServer
    port: int
    wall: Login
    certificate: Login
    witness: BrokerAddress

    def address(self, login: Login | None = None) -> BrokerAddress:
        """Where the relay connects to, with or without a password."""
        user = f"{login.name}:{login.password}@" if login else ""
        return BrokerAddress.parse(f"mqtts://{user}127.0.0.1:{self.port}", ca_file=self.wall.ca_file)

    def by_certificate(self) -> BrokerAddress:
        """Where the relay connects to with a certificate."""
        login = self.certificate
        return BrokerAddress.parse(
            f"mqtts://127.0.0.1:{self.server.port}",
            ca_file=login.ca_file,
            cert_file=login.cert_file,
            key_file=login.key_file,
        )


@pytest.fixture(scope="module")
def guarded() -> Iterator[Guarded]:
    """A dashboard with a password, one with a certificate, and a witness who may do anything."""
    with TemporaryDirectory(prefix="mqinfer-dashboard-") as place:
        Path(place).chmod(0o755)  # Mosquitto takes on another account under root
        folder, port = BrokerFolder(Path(place) / "broker"), free_port()
        folder.init(ports=Ports(1, port, None, "127.0.0.1"))
        wall = folder.add(Role.DASHBOARD, "wall", by_password=True)
        certificate = folder.add(Role.DASHBOARD, "screen")
        witness = folder.add(Role.OPERATOR, "witness")
        with (folder.path / "acl").open("a") as acl:
            acl.write("\nuser witness\ntopic readwrite #\n")
        with secured_server(folder, 0) as server:
            files = {"cert_file": witness.cert_file, "key_file": witness.key_file}
            address = BrokerAddress.parse(f"mqtts://127.0.0.1:{server.port}", ca_file=witness.ca_file, **files)
            yield Guarded(server, port, wall, certificate, address)


def settings(address: BrokerAddress) -> DashboardSettings:
    """Return settings with this address."""
    return replace(settings_of(), address=address)


@pytest.mark.parametrize("login", [None, ("wall", "wrong"), ("nobody", "x")])
def test_a_login_is_refused_as_by_the_broker(guarded: Guarded, login: tuple[str, str] | None) -> None:
    """A browser gets the broker's own words, and nothing more."""
    with served(settings(guarded.address())) as dashboard, Browser(dashboard.url, login) as browser:
        assert browser.connected.get(timeout=PATIENCE) == "Not authorized"


def test_access_rules_hold(guarded: Guarded) -> None:
    """With its own login a browser gets results and no requests, and publishes nothing."""
    login = (guarded.wall.name, guarded.wall.password or "")
    with served(settings(guarded.address())) as dashboard, Browser(dashboard.url, login) as browser:
        assert browser.connected.get(timeout=PATIENCE) == "Success"
        browser.subscribe("mqinfer/v1/results/+/+/+")
        browser.subscribe("mqinfer/v1/models/+/infer/+")
        request = "mqinfer/v1/models/m/infer/car-1"
        browser.client.publish(RESULT, b"forged", qos=1)
        assert browser.published.get(timeout=PATIENCE) == "Not authorized"
        publish(guarded.witness, Message(request, b"secret", qos=1), Message(RESULT, b"result", qos=1))
        assert browser.messages.get(timeout=PATIENCE).payload == b"result"
        assert browser.messages.empty()


@pytest.mark.parametrize("by_certificate", [False, True])
def test_the_relays_own_login(guarded: Guarded, by_certificate: bool) -> None:  # noqa: FBT001
    """Browsers without a login watch as the dashboard that the relay is; who publishes is cut off."""
    address = guarded.by_certificate() if by_certificate else guarded.address(guarded.wall)
    with served(settings(address)) as dashboard:
        for login in (None, ("wall", "wrong")):
            with Browser(dashboard.url, login) as browser:
                assert browser.connected.get(timeout=PATIENCE) == "Success"
                browser.subscribe("mqinfer/v1/results/+/+/+")
                publish(guarded.witness, Message(RESULT, b"result", qos=1))
                assert browser.messages.get(timeout=PATIENCE).payload == b"result"
                browser.client.publish(RESULT, b"forged")
                browser.disconnected.get(timeout=PATIENCE)


def test_a_will_is_refused(guarded: Guarded) -> None:
    """A wall's browser may leave none: the broker would publish it in the relay's name."""
    with served(settings(guarded.address(guarded.wall))) as dashboard:
        browser = Browser(dashboard.url)
        browser.client.will_set(RESULT, b"forged")
        with browser:
            browser.disconnected.get(timeout=PATIENCE)
            assert browser.connected.empty()


def test_over_tls(broker_url: str, unique: Unique, tmp_path: Path) -> None:
    """The same over an encrypted page, with a message of 2 MB."""
    files, trust = tls_files(tmp_path)
    topic = unique("relay")
    with served(replace(settings_of(broker_url), tls=files)) as dashboard:
        url = dashboard.url.replace("127.0.0.1", "localhost")
        with Browser(url, tls=trust) as browser:
            browser.subscribe(topic)
            publish(broker_url, Message(topic, bytes(2_000_000), qos=1))
            assert browser.messages.get(timeout=PATIENCE).payload == bytes(2_000_000)


def open_to_others(address: BrokerAddress) -> DashboardSettings:
    """Return settings of a page that others reach; nothing listens."""
    return replace(settings(address), bind="0.0.0.0", tls=TlsFiles(Path("a"), Path("b")))  # noqa: S104


def test_a_broker_that_lets_everybody_in_is_not_opened(broker_url: str, guarded: Guarded) -> None:
    """Others reach only a broker that asks for logins, or a page that asks for keys."""
    anonymous = open_to_others(BrokerAddress.parse(broker_url))
    with pytest.raises(ConfigError, match="lets everybody in"):
        check_anonymous(anonymous)
    check_anonymous(replace(anonymous, keys=Path("keys.toml")))
    check_anonymous(replace(anonymous, bind="127.0.0.1"))
    check_anonymous(open_to_others(guarded.address()))
    with pytest.raises(BrokerUnreachable):
        check_anonymous(open_to_others(BrokerAddress.parse(f"mqtt://127.0.0.1:{free_port()}")))

"""Broker URLs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqinfer.broker.address import BrokerAddress, TlsOptions
from mqinfer.protocol.errors import ConfigError


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("mqtt://host", BrokerAddress("host")),
        ("mqtt://HOST:1884/", BrokerAddress("host", 1884)),
        ("mqtt://[::1]:1884", BrokerAddress("::1", 1884)),
        ("mqtt://[fe80::1%25eth0]", BrokerAddress("fe80::1%eth0")),
        ("mqtt://user@host", BrokerAddress("host", username="user")),
        ("mqtt://user:p%40ss%3A@host", BrokerAddress("host", 1883, "user", "p@ss:")),
        ("mqtts://host", BrokerAddress("host", 8883, tls=TlsOptions())),
        ("ws://host:9001", BrokerAddress("host", 9001, transport="websockets")),
        ("ws://host/other", BrokerAddress("host", 80, transport="websockets", path="/other")),
        ("wss://host", BrokerAddress("host", 443, transport="websockets", tls=TlsOptions())),
        ("memory://bench", BrokerAddress("bench", 0, transport="memory")),
        ("nats://host", BrokerAddress("host", 4222, transport="nats")),
        ("mqtt://a,b:1884,[::1]", BrokerAddress("a", standbys=(("b", 1884), ("::1", 1883)))),
        ("mqtt://u:p,q@a,b", BrokerAddress("a", 1883, "u", "p,q", standbys=(("b", 1883),))),
        ("ws://a,b:90/x", BrokerAddress("a", 80, transport="websockets", path="/x", standbys=(("b", 90),))),
    ],
)
def test_good_urls(url: str, address: BrokerAddress) -> None:
    """Each scheme with its defaults."""
    assert BrokerAddress.parse(url) == address


@pytest.mark.parametrize(
    ("url", "fault"),
    [
        ("", "scheme"),
        ("host", "scheme"),
        ("host:1883", "scheme"),
        ("http://host", "scheme"),
        ("mqtt://", "host"),
        ("mqtt://:1883", "host"),
        ("mqtt://user:secret@", "host"),
        ("mqtt://a b", "host"),
        ("mqtt://[::1", "malformed"),
        ("mqtt://secret[::1", "malformed"),
        ("mqtt://host:0", "port"),
        ("mqtt://host:65536", "port"),
        ("mqtt://host:secret", "port"),
        ("mqtt://host/path", "path"),
        ("mqtt://host?x=secret", "meaning"),
        ("mqtt://user:secret#1@host", "meaning"),
        ("memory://user:secret@name", "login"),
        ("memory://name:17", "port"),
        ("memory://", "host"),
        ("mqtt://a,", "host"),
        ("mqtt://a,b:secret", "port"),
        ("mqtt://a,mqtt://b", "scheme stands once"),
        ("mqtt://u:secret@a,v:secret@b", "one login"),
        ("mqtt://" + ",".join("abcdefghij"), "10 hosts"),
    ],
)
def test_bad_urls(url: str, fault: str) -> None:
    """The error names the fault and keeps the password to itself."""
    with pytest.raises(ConfigError, match=fault) as caught:
        BrokerAddress.parse(url)
    assert "secret" not in str(caught.value)


def test_certificates() -> None:
    """Files go with the encrypted schemes, and with no other."""
    address = BrokerAddress.parse("mqtts://host", ca_file="ca.pem", cert_file="c.pem", key_file="k.pem")
    assert address.tls == TlsOptions(Path("ca.pem"), Path("c.pem"), Path("k.pem"))
    with pytest.raises(ConfigError, match="not encrypted"):
        BrokerAddress.parse("mqtt://host", ca_file="ca.pem")


def test_each_address_alone() -> None:
    """Standbys have the first one's login, TLS and path, and certificates that are set later are theirs too."""
    address = replace(BrokerAddress.parse("wss://u:p@a,b:90/x"), tls=TlsOptions("ca.pem"))
    first, standby = address.each
    assert (str(first), str(standby)) == ("wss://a:443/x", "wss://b:90/x")
    assert replace(standby, host="a", port=443) == first == replace(address, standbys=())


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), st.text(st.characters(exclude_categories=["Cs"])))
def test_any_login_survives(username: str, password: str) -> None:
    """Percent-encoded names and passwords come back as they were, and no text form shows a password."""
    address = BrokerAddress.parse(f"mqtt://{quote(username, safe='')}:{quote(password, safe='')}@host:1884")
    assert (address.username, address.password) == (username, password)
    assert str(address) == "mqtt://host:1884"
    assert "password" not in repr(address)


@given(st.text())
def test_any_text_is_an_address_or_a_config_error(text: str) -> None:
    """No text makes the parser raise anything else."""
    for url in (text, f"mqtt://{text}", f"ws://{text}"):
        try:
            BrokerAddress.parse(url)
        except ConfigError:
            continue


@pytest.mark.parametrize(
    "url",
    [
        "mqtt://host:1",
        "mqtts://[::1]:2",
        "ws://host:3/p",
        "wss://host:4/p",
        "memory://name",
        "nats://host:5",
        "mqtt://a:1,[::1]:2",
    ],
)
def test_text_form(url: str) -> None:
    """The text form of an address is its URL."""
    assert str(BrokerAddress.parse(url)) == url

"""The dashboard as a server of files: what it sends, what protects the page, and what it refuses."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from mqinfer.broker.address import BrokerAddress, TlsOptions
from mqinfer.dashboard.guard import is_expected_host, is_own_origin, security_headers
from mqinfer.dashboard.page import PageFile, read_page
from mqinfer.dashboard.settings import DashboardSettings, check_settings, is_loopback
from mqinfer.protocol.errors import ConfigError, MqinferError
from mqinfer.web.tls import TlsFiles
from tests.dashboard.served import SCRIPT, Served, page_in, served, settings_of, tls_files

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self'; "
    "font-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
PROTECTION = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
Reply = tuple[int, Mapping[str, str], bytes]
TLS = TlsFiles(Path("x.crt"), Path("x.key"))
PLAIN = settings_of()
OPEN = settings_of(bind="0.0.0.0", tls=TLS)  # noqa: S104 - nothing listens


def ask(url: str, *requests: tuple[str, str, Mapping[str, str]], **options: Any) -> list[Reply]:
    """Send requests over one connection each: method, path, headers."""

    async def main() -> list[Reply]:
        replies: list[Reply] = []
        async with asyncio.timeout(60), aiohttp.ClientSession(auto_decompress=False) as session:
            for method, path, headers in requests:
                async with session.request(
                    method, f"{url}{path}", headers=headers, allow_redirects=False, **options
                ) as reply:
                    replies.append((reply.status, reply.headers, await reply.read()))
        return replies

    return asyncio.run(main())


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, PageFile]:
    """A page as the build makes it."""
    return page_in(tmp_path_factory.mktemp("page") / "page")


@pytest.fixture(scope="module", name="dashboard")
def plain(page: Mapping[str, PageFile]) -> Iterator[Served]:
    """A dashboard that serves it on loopback."""
    with served(PLAIN, page) as found:
        yield found


def test_files(dashboard: Served) -> None:
    """Each has its type; what has a hash in its name is kept for ever, the rest is asked for each time."""
    index, script, style, icon = ask(
        dashboard.url,
        ("GET", "/", {}),
        ("GET", "/assets/index-1a2b.js", {}),
        ("GET", "/assets/index-3c4d.css", {}),
        ("GET", "/icon.svg", {}),
    )
    types = [reply[1]["Content-Type"] for reply in (index, script, style, icon)]
    assert types == [
        "text/html; charset=utf-8",
        "text/javascript; charset=utf-8",
        "text/css; charset=utf-8",
        "image/svg+xml",
    ]
    assert [reply[0] for reply in (index, script, style, icon)] == [200] * 4
    assert index[1]["Cache-Control"] == icon[1]["Cache-Control"] == "no-cache"
    assert script[1]["Cache-Control"] == style[1]["Cache-Control"] == "private, max-age=31536000, immutable"
    assert gzip.decompress(script[2]) == SCRIPT


def test_what_the_browser_has_is_not_sent_again(dashboard: Served) -> None:
    """The ETag comes back, and the reply is 304; another one gets the file."""
    ((_, headers, _),) = ask(dashboard.url, ("GET", "/", {}))
    same, other = ask(
        dashboard.url,
        ("GET", "/", {"If-None-Match": f'"x", {headers["ETag"]}'}),
        ("GET", "/", {"If-None-Match": '"x"'}),
    )
    assert (same[0], same[1]["ETag"], same[2]) == (304, headers["ETag"], b"")
    assert other[0] == 200


def test_compression(dashboard: Served) -> None:
    """A script is compressed for those who say that they take it."""
    zipped, plain = ask(
        dashboard.url,
        ("GET", "/assets/index-1a2b.js", {"Accept-Encoding": "gzip, br"}),
        ("GET", "/assets/index-1a2b.js", {"Accept-Encoding": "identity"}),
    )
    assert zipped[1]["Content-Encoding"] == "gzip"
    assert gzip.decompress(zipped[2]) == plain[2] == SCRIPT
    assert "Content-Encoding" not in plain[1]


@pytest.mark.parametrize(
    "request_of",
    [
        ("GET", "/", {}),
        ("HEAD", "/", {}),
        ("GET", "/config.json", {}),
        ("GET", "/healthz", {}),
        ("GET", "/nothing", {}),
        ("GET", "/", {"Host": "evil.example"}),
        ("POST", "/", {}),
        ("GET", "/mqtt", {}),
    ],
)
def test_each_reply_protects_the_page(dashboard: Served, request_of: Any) -> None:
    """Policy and the other headers are on every reply, errors too."""
    ((_, headers, _),) = ask(dashboard.url, request_of)
    assert {name: headers.get(name) for name in PROTECTION} == PROTECTION
    assert "Strict-Transport-Security" not in headers
    assert "camera=()" in headers["Permissions-Policy"]


def test_configuration_and_health(page: Mapping[str, PageFile]) -> None:
    """The page learns the prefix of topics, where to connect, and who logs in; nothing of it is kept."""
    with served(settings_of(root="site/a"), page) as dashboard:
        config, health = ask(dashboard.url, ("GET", "/config.json", {}), ("GET", "/healthz", {}))
    assert config[2] == b'{"root": "site/a", "mqtt": "./mqtt", "login": "mqtt"}'
    assert config[1]["Cache-Control"] == health[1]["Cache-Control"] == "no-store"
    assert (health[0], health[2]) == (200, b'{"status": "ok"}')


def test_a_broker_that_browsers_reach_themselves(page: Mapping[str, PageFile]) -> None:
    """With --direct the page learns its address, the policy allows it, and there is no relay."""
    direct = "wss://broker.example.org:8443/mqtt"
    with served(settings_of(direct=direct), page) as dashboard:
        own = {"Origin": dashboard.url}
        config, relay = ask(dashboard.url, ("GET", "/config.json", {}), ("GET", "/mqtt", own))
    assert f'"mqtt": "{direct}"'.encode() in config[2]
    assert f"connect-src 'self' {direct};" in config[1]["Content-Security-Policy"]
    assert relay[0] == 404


@pytest.mark.parametrize(
    "path",
    ["/nothing", "/assets/", "/../settings.py", "/%2e%2e/settings.py", "/assets/../../app.py", "//etc/passwd", "/\x00"],
)
def test_there_is_nothing_else(dashboard: Served, path: str) -> None:
    """A path is one of the page's, or there is nothing: none is looked for on the disk."""

    async def get() -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", dashboard.port)
        writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        reply = await reader.read()
        writer.close()
        return reply

    assert asyncio.run(get()).split(b" ")[1] in {b"404", b"400"}


def test_other_methods(dashboard: Served) -> None:
    """What writes is refused: for other pages at once, and for the own one since there is nothing to write to."""
    strange, own = ask(
        dashboard.url,
        ("POST", "/", {"Origin": "http://evil.example"}),
        ("DELETE", "/", {"Origin": dashboard.url}),
    )
    assert (strange[0], own[0]) == (403, 405)


@pytest.mark.parametrize(
    "octets", [b"\x16\x03\x01\x00\xa5\x01", b"GET / HTTP/1.1\r\n\r\n", b"\x10\x0c\x00\x04MQTT\x05\x02\x00\x00\r\n\r\n"]
)
def test_garbage(dashboard: Served, octets: bytes) -> None:
    """What is no HTTP, such as TLS or MQTT, gets an error and its connection's end."""

    async def main() -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", dashboard.port)
        writer.write(octets)
        writer.write_eof()
        reply = b""
        with suppress(ConnectionError):
            reply = await reader.read()
        writer.close()
        return reply

    assert asyncio.run(main())[:12] in {b"HTTP/1.1 400", b"HTTP/1.0 400", b""}
    assert ask(dashboard.url, ("GET", "/", {}))[0][0] == 200


@pytest.mark.parametrize(
    ("settings", "host", "expected"),
    [
        (PLAIN, "127.0.0.1:8080", True),
        (PLAIN, "localhost:9000", True),
        (PLAIN, "LocalHost", True),
        (PLAIN, "[::1]:8080", True),
        (PLAIN, "evil.example:8080", False),
        (PLAIN, "127.0.0.1.evil.example", False),
        (PLAIN, "", False),
        (PLAIN, "evil.example@127.0.0.1", False),
        (PLAIN, "127.0.0.1/x", False),
        (PLAIN, "[::1", False),
        (PLAIN, "localhost:x", False),
        (PLAIN, "a" * 1000, False),
        (OPEN, "fleet.example.org", True),
        (replace(PLAIN, hosts=("fleet.example.org",)), "fleet.example.org", True),
        (replace(PLAIN, hosts=("fleet.example.org",)), "Fleet.Example.org", True),
        (replace(PLAIN, hosts=("fleet.example.org",)), "localhost:8080", True),
        (replace(PLAIN, hosts=("fleet.example.org",)), "fleet.example.org:81", False),
        (replace(OPEN, hosts=("fleet.example.org",)), "evil.example", False),
    ],
)
def test_hosts(settings: DashboardSettings, host: str, expected: bool) -> None:  # noqa: FBT001
    """Listening on loopback it goes by loopback's names and those of --host alone, so no name can be turned to it."""
    assert is_expected_host(settings, host) is expected


@pytest.mark.parametrize(
    ("settings", "host", "origin", "expected"),
    [
        (PLAIN, "127.0.0.1:8080", "http://127.0.0.1:8080", True),
        (PLAIN, "fleet.example.org", "https://fleet.example.org", True),
        (PLAIN, "fleet.example.org:443", "https://fleet.example.org", True),
        (PLAIN, "127.0.0.1:8080", "http://localhost:8080", False),
        (PLAIN, "127.0.0.1:8080", "http://127.0.0.1:8081", False),
        (PLAIN, "127.0.0.1:8080", "http://127.0.0.1", False),
        (PLAIN, "127.0.0.1:8080", "null", False),
        (PLAIN, "127.0.0.1:8080", "", False),
        (PLAIN, "127.0.0.1:8080", None, False),
        (PLAIN, "127.0.0.1:8080", "http://127.0.0.1:8080/x", False),
        (PLAIN, "127.0.0.1:8080", "http://127.0.0.1:8080 http://x", False),
        (PLAIN, "127.0.0.1:8080", "file://127.0.0.1:8080", False),
        (OPEN, "fleet.example.org", "https://fleet.example.org", True),
        (OPEN, "fleet.example.org", "http://fleet.example.org", False),
    ],
)
def test_origins(settings: DashboardSettings, host: str, origin: str | None, expected: bool) -> None:  # noqa: FBT001
    """Only the server's own page: another port, another name for loopback and no origin at all are others."""
    assert is_own_origin(settings, host, origin) is expected


def test_a_host_that_is_not_ours(dashboard: Served) -> None:
    """It gets 421 for everything, also the page."""
    replies = ask(dashboard.url, *(("GET", path, {"Host": "evil.example"}) for path in ("/", "/config.json", "/mqtt")))
    assert [reply[0] for reply in replies] == [421] * 3


WITH_LOGIN = BrokerAddress.parse("mqtt://wall:secret-word@127.0.0.1")
WITH_CERTIFICATE = replace(
    WITH_LOGIN, username=None, password=None, tls=TlsOptions(cert_file="a.crt", key_file="a.key")
)
BAD: Mapping[str, tuple[DashboardSettings, str]] = {
    "memory": (settings_of("memory://x"), "no browser can reach"),
    "websockets": (settings_of("wss://broker.example.org/mqtt"), "--direct wss://broker.example.org:443/mqtt"),
    "open without TLS": (settings_of(bind="0.0.0.0"), "add --tls-cert and --tls-key"),  # noqa: S104
    "open by name": (settings_of(bind="fleet.example.org"), "add --tls-cert and --tls-key"),
    "open wall": (replace(OPEN, address=WITH_LOGIN), "add --keys FILE"),
    "open wall with a certificate": (replace(OPEN, address=WITH_CERTIFICATE), "add --keys FILE"),
    "direct with a login": (replace(PLAIN, address=WITH_LOGIN, direct="wss://x/mqtt"), "is of no use"),
    "direct without TLS": (replace(PLAIN, direct="ws://broker.example.org"), "use wss://"),
    "direct without TLS from a page with TLS": (replace(PLAIN, direct="ws://localhost:1", tls=TLS), "use wss://"),
    "direct in another scheme": (replace(PLAIN, direct="https://x"), "expected wss://"),
    "direct that ends the policy": (replace(PLAIN, direct="wss://x; script-src *"), "expected wss://"),
    "direct with a login in it": (replace(PLAIN, direct="wss://a:b@x/mqtt"), "expected wss://"),
    "a host that is none": (replace(PLAIN, hosts=("http://x",)), "expected a name"),
}


@pytest.mark.parametrize("case", BAD)
def test_settings_that_are_refused(case: str) -> None:
    """What would open something to a network, or can't work, is refused with what to do; no password is in it."""
    settings, message = BAD[case]
    with pytest.raises(ConfigError) as refused:
        check_settings(settings)
    assert message in str(refused.value)
    assert "secret-word" not in str(refused.value)


@pytest.mark.parametrize(
    "settings",
    [
        PLAIN,
        OPEN,
        replace(PLAIN, address=WITH_LOGIN),
        replace(OPEN, address=WITH_LOGIN, keys=Path("keys.toml")),
        replace(PLAIN, direct="wss://broker.example.org/mqtt"),
        replace(PLAIN, direct="ws://127.0.0.1:9001/mqtt"),
        replace(OPEN, hosts=("fleet.example.org:8443", "[2001:db8::1]:8443")),
    ],
)
def test_settings_that_are_accepted(settings: DashboardSettings) -> None:
    """Loopback, and what is encrypted and asks for a login."""
    check_settings(settings)


def test_loopback() -> None:
    """Only this machine reaches it; every address and a name that says nothing are open."""
    own = ["127.0.0.1", "127.8.9.1", "::1", "[::1]", "localhost"]
    others = ["0.0.0.0", "::", "10.0.0.1", "fleet", ""]  # noqa: S104 - nothing listens
    assert [each for each in (*own, *others) if is_loopback(each)] == own


def test_the_page_is_missing(tmp_path: Path) -> None:
    """A source checkout that has not built it learns how to."""
    with pytest.raises(ConfigError, match=r"run: .*scripts/build-page"):
        read_page(tmp_path)


def test_encryption(tmp_path: Path, page: Mapping[str, PageFile]) -> None:
    """Over TLS the page comes, and tells the browser to keep to it."""
    files, trust = tls_files(tmp_path)
    with served(replace(PLAIN, tls=files), page) as dashboard:
        url = dashboard.url.replace("127.0.0.1", "localhost")
        assert url.startswith("https://")
        ((status, headers, _),) = ask(url, ("GET", "/", {}), ssl=trust)
    assert (status, headers["Strict-Transport-Security"]) == (200, "max-age=31536000")


def test_a_wrong_certificate(tmp_path: Path) -> None:
    """A file that is none is named."""
    missing = TlsFiles(tmp_path / "a.crt", tmp_path / "a.key")
    with pytest.raises(ConfigError, match=r"a\.crt"), served(replace(PLAIN, tls=missing)):
        pass


def test_the_port_is_taken() -> None:
    """It says which, and what to do."""
    with (
        served(PLAIN) as dashboard,
        pytest.raises(MqinferError, match=f"can't listen on 127.0.0.1:{dashboard.port}"),
        served(replace(PLAIN, port=dashboard.port)),
    ):
        pass


def test_the_policy_names_what_is_documented() -> None:
    """docs/reference/dashboard.md shows it word by word."""
    text = (Path(__file__).parents[2] / "docs" / "reference" / "dashboard.md").read_text(encoding="utf-8")
    assert security_headers(PLAIN)["Content-Security-Policy"] in " ".join(text.split())

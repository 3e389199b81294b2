"""A dashboard that serves in a thread of its own, with a page of a few bytes, and browsers without a page."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Self

import aiohttp
from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from mqinfer.broker.address import BrokerAddress
from mqinfer.broker.mosquitto.certificates import Authority
from mqinfer.dashboard.page import PageFile, make_file, read_page
from mqinfer.dashboard.serving import serve
from mqinfer.dashboard.settings import DashboardSettings
from mqinfer.web.tls import TlsFiles

__all__ = [
    "PAGE",
    "PATIENCE",
    "Browser",
    "Served",
    "closing",
    "page_in",
    "served",
    "settings_of",
    "tls_files",
    "web_socket",
]

PATIENCE = 60.0
SCRIPT = b"export const text = '" + b"x" * 2000 + b"';\n"


def page_in(folder: Path) -> Mapping[str, PageFile]:
    """Write a page as the build does, and read it."""
    (folder / "assets").mkdir(parents=True)
    (folder / "index.html").write_text("<!doctype html><title>mqinfer</title>")
    (folder / "icon.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg'/>")
    (folder / "assets" / "index-1a2b.js").write_bytes(SCRIPT)
    (folder / "assets" / "index-3c4d.css").write_text("main{}")
    return read_page(folder)


PAGE = {"/": make_file(".html", b"<!doctype html>")}


def settings_of(broker: str = "mqtt://127.0.0.1:1", **options: Any) -> DashboardSettings:
    """Return settings with a free port."""
    return DashboardSettings(BrokerAddress.parse(broker), port=0, **options)


def tls_files(folder: Path) -> tuple[TlsFiles, ssl.SSLContext]:
    """Write a certificate for localhost; return it, and what trusts it."""
    ca = Authority.make()
    own = Authority(ca).broker(["localhost", "127.0.0.1"], 2)
    for name, content in (("ca.crt", ca.certificate), ("own.crt", own.certificate), ("own.key", own.key)):
        (folder / name).write_bytes(content)
    return TlsFiles(folder / "own.crt", folder / "own.key"), ssl.create_default_context(cafile=folder / "ca.crt")


@dataclass(frozen=True, slots=True)
class Served:
    """A dashboard that serves.

    Attributes:
        url: Of its page, without a slash at the end.
        stop: Ends it.
        is_alive: Whether it has not ended.
    """

    url: str
    stop: Callable[[], None]
    is_alive: Callable[[], bool]

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self.url.rpartition(":")[2])


@contextmanager
def served(settings: DashboardSettings, page: Mapping[str, PageFile] | None = None) -> Iterator[Served]:
    """Serve until the end of the context."""
    ready: SimpleQueue[Any] = SimpleQueue()

    async def main() -> None:
        stop, loop = asyncio.Event(), asyncio.get_running_loop()

        def end() -> None:
            loop.call_soon_threadsafe(stop.set)

        await serve(
            settings,
            PAGE if page is None else page,
            stop,
            lambda url: ready.put(Served(url.rstrip("/"), end, thread.is_alive)),
        )

    def run() -> None:
        try:
            asyncio.run(main())
        except BaseException as error:  # noqa: BLE001 - the test raises it
            ready.put(error)

    thread = threading.Thread(target=run, name="dashboard of a test")
    thread.start()
    found = ready.get(timeout=PATIENCE)
    if isinstance(found, BaseException):
        thread.join()
        raise found
    try:
        yield found
    finally:
        if thread.is_alive():
            found.stop()
        thread.join(PATIENCE)
        assert not thread.is_alive()


@asynccontextmanager
async def web_socket(
    url: str, origin: str | None = "own", protocols: tuple[str, ...] = ("mqtt",), **options: Any
) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
    """Open a WebSocket to the relay as a page does."""
    headers = options.pop("headers", {})
    options.setdefault("timeout", aiohttp.ClientWSTimeout(ws_close=1.0))
    if origin is not None:
        headers["Origin"] = url if origin == "own" else origin
    connection: aiohttp.connector.Connection | None = None
    transport: asyncio.Transport | None = None
    try:
        async with (
            asyncio.timeout(PATIENCE),
            aiohttp.ClientSession() as session,
            session.ws_connect(
                f"{url}/mqtt", protocols=protocols, headers=headers, max_msg_size=0, **options
            ) as socket,
        ):
            connection = socket._response.connection
            transport = connection.transport if connection is not None else None
            yield socket
    finally:
        if transport is not None:
            transport.abort()  # what the other side did not read would keep it open
            await asyncio.sleep(0)


async def closing(socket: aiohttp.ClientWebSocketResponse) -> int | None:
    """Wait until the relay closes; return its code.

    That is the code of its frame: aiohttp reports 1006 instead where its own answer came too late to be sent.
    """
    while True:
        message = await socket.receive()
        if message.type is aiohttp.WSMsgType.CLOSE:
            return int(message.data)
        if message.type in {aiohttp.WSMsgType.CLOSED, aiohttp.WSMsgType.ERROR}:
            return socket.close_code


class Browser:
    """A client of MQTT over the relay's websockets, made with paho, as a context manager.

    Args:
        url: Of the page.
        login: User name and password.
        tls: What trusts the page's certificate.
        headers: Of the handshake, beside its own.
        version: Of MQTT.
    """

    def __init__(
        self,
        url: str,
        login: tuple[str, str] | None = None,
        *,
        tls: ssl.SSLContext | None = None,
        headers: Mapping[str, str] | None = None,
        version: MQTTProtocolVersion = MQTTProtocolVersion.MQTTv5,
    ) -> None:
        self.messages: SimpleQueue[MQTTMessage] = SimpleQueue()
        self.connected: SimpleQueue[str] = SimpleQueue()
        self.disconnected: SimpleQueue[str] = SimpleQueue()
        self.subscribed: SimpleQueue[list[str]] = SimpleQueue()
        self.published: SimpleQueue[str] = SimpleQueue()
        self._host, _, port = url.partition("://")[2].partition(":")
        self._port = int(port)
        self.client = Client(CallbackAPIVersion.VERSION2, transport="websockets", protocol=version, client_id="browser")
        self.client.ws_set_options("/mqtt", {"Origin": url, "Host": url.partition("://")[2], **(headers or {})})
        if tls is not None:
            self.client.tls_set_context(tls)
        if login:
            self.client.username_pw_set(*login)
        self.client.on_connect = lambda _c, _u, _f, reason, _p: self.connected.put(str(reason))
        self.client.on_disconnect = lambda _c, _u, _f, reason, _p: self.disconnected.put(str(reason))
        self.client.on_message = lambda _c, _u, message: self.messages.put(message)
        self.client.on_subscribe = lambda _c, _u, _m, codes, _p: self.subscribed.put([str(code) for code in codes])
        self.client.on_publish = lambda _c, _u, _m, reason, _p: self.published.put(str(reason))

    def __enter__(self) -> Self:
        self.client.connect(self._host, self._port)
        self.client.loop_start()
        return self

    def __exit__(self, *_: object) -> None:
        self.client.disconnect()
        self.client.loop_stop()

    def subscribe(self, topic: str) -> list[str]:
        """Subscribe, and return the broker's answer."""
        self.client.subscribe(topic)
        return self.subscribed.get(timeout=PATIENCE)

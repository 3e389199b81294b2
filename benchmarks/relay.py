"""How many large results pass the dashboard's relay, one by one: from a publisher through Mosquitto to a browser."""

from __future__ import annotations

import asyncio
import threading
import time
from statistics import median

import aiohttp

from mqinfer.broker import make_link
from mqinfer.broker.address import BrokerAddress
from mqinfer.broker.link import Link, Message
from mqinfer.broker.mosquitto.server import MosquittoServer
from mqinfer.broker.packets import encode_variable_integer
from mqinfer.dashboard.page import make_file
from mqinfer.dashboard.serving import serve
from mqinfer.dashboard.settings import DashboardSettings

_TOPIC = "bench/relay"
_CONNECT = b"\x10\x0d\x00\x04MQTT\x05\x02\x00\x3c\x00\x00\x00"
_SUBSCRIBE = b"\x82\x11\x00\x01\x00\x00\x0bbench/relay\x00"
_SUBACK = b"\x90\x04\x00\x01\x00\x00"
_HEAD = len(b"\x30" + b"\0\x0b" + b"bench/relay" + b"\0")
"""Bytes of a delivered message beside its payload and the length of the packet."""
_PATIENCE_S = 30.0


def measure_relay(count: int, size: int) -> str:
    """Return in words how many results of a size pass a second."""
    times = time_results(count, size)
    return f"{count} results of {size} bytes: {count / sum(times):.1f} a second, median {1000 * median(times):.1f} ms"


def time_results(count: int, size: int) -> list[float]:
    """Return the seconds that each of so many messages took, each sent once the one before has come."""
    with MosquittoServer() as broker:
        link = make_link(broker.url, client_id="bench-relay")
        link.open()
        try:
            return asyncio.run(_measure(broker.url, link, count, size))
        finally:
            link.close()


async def _measure(broker: str, link: Link, count: int, size: int) -> list[float]:
    stop, ready = asyncio.Event(), asyncio.Event()
    urls: list[str] = []

    def on_ready(url: str) -> None:
        urls.append(url)
        ready.set()

    settings = DashboardSettings(BrokerAddress.parse(broker), port=0)
    serving = asyncio.create_task(serve(settings, {"/": make_file(".html", b"")}, stop, on_ready))
    await ready.wait()
    origin = urls[0].rstrip("/")
    try:
        async with (
            aiohttp.ClientSession() as session,
            session.ws_connect(f"{urls[0]}mqtt", protocols=["mqtt"], origin=origin, max_msg_size=0) as browser,
        ):
            await browser.send_bytes(_CONNECT + _SUBSCRIBE)
            got = b""
            while not got.endswith(_SUBACK):
                got += await browser.receive_bytes()
            return [await _one(browser, link, size) for _ in range(count)]
    finally:
        stop.set()
        await serving


async def _one(browser: aiohttp.ClientWebSocketResponse, link: Link, size: int) -> float:
    """Return the seconds from the publishing of a message to its last byte."""
    acknowledged = threading.Event()
    left = size + _HEAD + len(encode_variable_integer(size + _HEAD - 1))
    begin = time.perf_counter()
    link.publish(Message(_TOPIC, bytes(size), qos=1), lambda _: acknowledged.set())
    async with asyncio.timeout(_PATIENCE_S):
        while left:
            left -= len(await browser.receive_bytes())
    took = time.perf_counter() - begin
    await asyncio.to_thread(acknowledged.wait, _PATIENCE_S)
    return took

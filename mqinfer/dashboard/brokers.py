"""The relay's way to the broker: to the first of its addresses that answers, and back from a standby."""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass, field
from functools import partial

from mqinfer.broker.connect import Identity, Lookout, answers
from mqinfer.broker.presence import make_client_id
from mqinfer.broker.tls import make_tls_context, tls_error
from mqinfer.dashboard.settings import DashboardSettings
from mqinfer.protocol.errors import MqinferError


@dataclass(slots=True)
class BrokerStreams:
    """A connection to a broker.

    Attributes:
        reader: What comes from it.
        writer: Where to write to it.
        place: Of its address among the broker's addresses.
    """

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    place: int


@dataclass(slots=True)
class _Return:
    """The way back from a place: what looks at the addresses before it, and what is set when one of them answers."""

    lookout: Lookout
    found: asyncio.Event = field(default_factory=asyncio.Event)


class Brokers:
    """Connects to a broker or its standbys; used by the loop's thread alone.

    Args:
        settings: Of the dashboard.
        buffer: Half of the bytes that are read ahead.

    Raises:
        ConfigError: A certificate can't be read.
    """

    def __init__(self, settings: DashboardSettings, buffer: int) -> None:
        address = settings.address
        self._tls = make_tls_context(address.tls) if address.tls else None
        client_id = make_client_id("dashboard")
        self._each = [Identity(each, client_id, tls=self._tls) for each in address.each]
        self._patience, self._buffer = settings.broker_patience, buffer
        self._returns: dict[int, _Return] = {}

    async def connect(self) -> BrokerStreams:
        """Connect to the first address that answers; asyncio switches Nagle's algorithm off.

        Raises:
            MqinferError: The broker can't be reached.
        """
        place = 0
        while place < len(self._each) - 1 and not await asyncio.to_thread(answers, self._each[place]):
            place += 1
        address = self._each[place].address
        try:
            async with asyncio.timeout(self._patience):
                reader, writer = await asyncio.open_connection(
                    address.host,
                    address.port,
                    ssl=self._tls,
                    server_hostname=address.host if self._tls else None,
                    limit=self._buffer,
                )
                return BrokerStreams(reader, writer, place)
        except ssl.SSLError as error:
            why: MqinferError = tls_error(address, error)
        except (OSError, TimeoutError) as error:
            why = MqinferError(f"the broker {address} can't be reached: {str(error) or 'it does not answer'}")
        raise why

    async def until_earlier(self, place: int) -> None:
        """Wait until an address before a place answers; without one for ever."""
        if place == 0:
            await asyncio.Event().wait()
        if place not in self._returns:
            tell = partial(asyncio.get_running_loop().call_soon_threadsafe, self._found, place)
            self._returns[place] = _Return(Lookout(self._each[:place], tell))
        await self._returns[place].found.wait()

    def _found(self, place: int) -> None:
        if found := self._returns.pop(place, None):
            found.lookout.close()  # at its end already
            found.found.set()

    async def close(self) -> None:
        """Look no more."""
        for each in self._returns.values():
            await asyncio.to_thread(each.lookout.close)
        self._returns.clear()

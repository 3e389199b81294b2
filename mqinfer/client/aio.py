"""The asyncio client."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import TracebackType
from typing import Self, Unpack

from mqinfer.broker.address import BrokerAddress
from mqinfer.broker.process import Maker
from mqinfer.client.connection import CardShelf, connect, default_name
from mqinfer.client.options import ClientOptions
from mqinfer.client.request import InferOptions, Input, make_request
from mqinfer.client.requester import Requester
from mqinfer.client.result import Counters, InferResult
from mqinfer.protocol.card import ModelCard
from mqinfer.protocol.errors import Expired
from mqinfer.protocol.topics import DEFAULT_ROOT, Topics
from mqinfer.protocol.types import InferRequest

__all__ = ["AsyncClient"]


class AsyncClient:
    """Sends inference requests through a broker, from an asyncio loop.

    Example:
        >>> async with AsyncClient("mqtt://127.0.0.1:1883") as client:  # doctest: +SKIP
        ...     results = await asyncio.gather(*(client.infer("model", {"input": frame}) for frame in frames))
    """

    def __init__(
        self,
        url: str | BrokerAddress,
        *,
        name: str | None = None,
        root: str = DEFAULT_ROOT,
        options: ClientOptions | None = None,
        connect_timeout: float = 10.0,
    ) -> None:
        """Prepare; `async with` or `open` connects. Arguments as for `Client`."""
        self._url = url
        self._name = name or default_name(url)
        self._maker = Maker(f"the client {self._name!r}")
        self._topics = Topics(root)
        self._options = options or ClientOptions()
        self._connect_timeout = connect_timeout
        self._room = asyncio.Semaphore(self._options.max_pending)  # so that `submit` never blocks the loop's thread
        self._requester: Requester | None = None
        self._cards: CardShelf | None = None

    async def open(self) -> None:
        """Connect.

        Raises:
            BrokerUnreachable: No broker answers at the address.
            NotAuthorized: The broker refused the credentials.
        """
        self._maker.check()
        self._requester = await asyncio.to_thread(
            connect, self._url, self._name, self._topics, self._options, timeout=self._connect_timeout
        )
        self._cards = CardShelf(self._requester.link, self._topics)

    async def infer(
        self,
        model: str,
        inputs: Mapping[str, Input],
        *,
        timeout: float = 10.0,  # noqa: ASYNC109  the deadline travels with the request to the worker
        **options: Unpack[InferOptions],
    ) -> InferResult:
        """Send a request and wait for its result; cancelling the task cancels it. As `Client.infer` otherwise."""
        requester = self._opened()
        request = make_request(model, inputs, options)
        deadline = asyncio.get_running_loop().time() + timeout
        try:
            async with asyncio.timeout_at(deadline):
                await self._room.acquire()
        except TimeoutError:
            limit = self._options.max_pending
            raise Expired(f"{limit} requests are pending, and none of them ended within {timeout:.3g} s") from None
        try:
            result = await _ask(requester, request, deadline)
        finally:
            self._room.release()
        result.raise_for_outcome()
        return result

    async def card(self, model: str, timeout: float = 5.0) -> ModelCard:  # noqa: ASYNC109  as for `Client.card`
        """Return a model's card.

        Raises:
            ModelNotFound: No worker has published one in time.
        """
        self._opened()
        if self._cards is None:  # pragma: no cover  set together with the requester
            raise RuntimeError("open the client first")
        return await asyncio.to_thread(self._cards.get, model, timeout)

    def counters(self) -> Counters:
        """Return what became of all requests."""
        return self._opened().counters()

    async def close(self) -> None:
        """Cancel what is pending and disconnect."""
        self._maker.check()
        if self._requester:
            await asyncio.to_thread(self._requester.close)

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None or not self._maker.is_other:  # a fork that ends within the block has nothing to close
            await self.close()

    def _opened(self) -> Requester:
        self._maker.check()
        if self._requester is None:
            raise RuntimeError("the client is not open: use `async with AsyncClient(...)`, or await `open()` first")
        return self._requester


async def _ask(requester: Requester, request: InferRequest, deadline: float) -> InferResult:
    loop = asyncio.get_running_loop()
    future: asyncio.Future[InferResult] = loop.create_future()
    request_id = requester.submit(request, deadline - loop.time(), lambda result: _hand_over(loop, future, result))
    try:
        return await future
    except asyncio.CancelledError:
        requester.cancel(request_id)
        raise


def _hand_over(loop: asyncio.AbstractEventLoop, future: asyncio.Future[InferResult], result: InferResult) -> None:
    loop.call_soon_threadsafe(_settle, future, result)


def _settle(future: asyncio.Future[InferResult], result: InferResult) -> None:
    if not future.done():
        future.set_result(result)

"""The asyncio client."""

from __future__ import annotations

import asyncio
import math
from asyncio import _get_running_loop as running_loop  # None outside of one, and no exception
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Literal, Self, Unpack, overload

from mqinfer.broker.address import BrokerAddress, TlsOptions
from mqinfer.broker.process import Maker
from mqinfer.client.announcer import ClientAnnouncer
from mqinfer.client.closing import AsyncWithBlock
from mqinfer.client.connection import LiveRegistry, address_of, connect, default_name, read_environment
from mqinfer.client.feed import Feeds
from mqinfer.client.options import ClientOptions, check_timeout
from mqinfer.client.request import InferOptions, Input, make_request, names_label, picture_inputs, with_labelled_version
from mqinfer.client.requester import Requester
from mqinfer.client.result import Counters, InferResult, PictureResult
from mqinfer.client.stream import AsyncStream
from mqinfer.client.watching import AsyncWatch, SeenPreview, SeenResult, Watches, WatchOptions
from mqinfer.client.watching.absence import RETAINED_S, Absence
from mqinfer.client.watching.feed import WatchSettings
from mqinfer.client.window import Policy
from mqinfer.images.sending import PictureInput
from mqinfer.protocol.card import ModelCard
from mqinfer.protocol.errors import Expired, ModelNotFound
from mqinfer.protocol.topics import DEFAULT_ROOT, Topics
from mqinfer.protocol.types import InferRequest

_LEAST_S = 1e-6
"""Time left of a request whose room came at its deadline: it expires as others do."""


class AsyncClient(AsyncWithBlock):
    """Sends inference requests through a broker, from an asyncio loop.

    Example:
        >>> async with AsyncClient("mqtt://127.0.0.1:1883") as client:  # doctest: +SKIP
        ...     results = await asyncio.gather(*(client.infer("model", {"input": frame}) for frame in frames))
    """

    def __init__(  # noqa: PLR0913 - what a client is
        self,
        url: str | BrokerAddress,
        *,
        name: str | None = None,
        tls: TlsOptions | None = None,
        root: str = DEFAULT_ROOT,
        options: ClientOptions | None = None,
        connect_timeout: float = 10.0,
        announce: str | None = None,
        in_loop: bool = False,
    ) -> None:
        """Prepare; `async with` or `open` connects. Arguments as for `Client`, but for one.

        With `in_loop` the loop's own thread reads and writes the connection, which takes less of the processor where
        many small requests are on their way. It is for programs that never block their loop: while they do, the client
        is silent to the broker, and takes workers for silent that are not.

        Raises:
            ConfigError: The address is wrong, or the certificate can't be read.
        """
        self._address = address_of(url, tls)
        self._name = name or default_name(self._address)
        self._maker = Maker(f"the client {self._name!r}")
        self._topics = Topics(root)
        self._options = options or ClientOptions()
        self._connect_timeout = connect_timeout
        self._is_in_loop = in_loop
        self.announcer: ClientAnnouncer | None = (
            None if announce is None else ClientAnnouncer(self._name, self._topics, announce)
        )
        """Publishes the client's state; None where it has none."""
        self._connection: AsyncConnection | None = None
        self._watches = Watches(self._address, self._name, self._topics, self._options.limits)

    @classmethod
    def from_env(
        cls, *, root: str = DEFAULT_ROOT, options: ClientOptions | None = None, connect_timeout: float = 10.0
    ) -> Self:
        """Prepare a client of what the environment says, as `Client.from_env`; `async with` or `open` connects.

        Raises:
            ConfigError: `MQINFER_BROKER` is not set, or a variable is wrong.
        """
        address, name = read_environment()
        return cls(address, name=name, root=root, options=options, connect_timeout=connect_timeout)

    async def open(self) -> None:
        """Connect.

        Raises:
            BrokerUnreachable: No broker answers at the address.
            NotAuthorized: The broker refused the credentials.
            NameTaken: It is to publish a state, and another process has its name.
        """
        self._maker.check()
        requester = await asyncio.to_thread(
            connect,
            self._address,
            self._name,
            self._topics,
            self._options,
            timeout=self._connect_timeout,
            announcer=self.announcer,
            host=asyncio.get_running_loop() if self._is_in_loop else None,
        )
        self._connection = AsyncConnection(requester, LiveRegistry(requester, self.announcer), Feeds(requester))

    @property
    def connection(self) -> AsyncConnection:
        """What the client is made of while it is open."""
        self._maker.check()
        if self._connection is None:
            raise RuntimeError("the client is not open: use `async with AsyncClient(...)`, or await `open()` first")
        return self._connection

    async def infer(
        self,
        model: str,
        inputs: Mapping[str, Input],
        *,
        timeout: float | None = None,  # noqa: ASYNC109  the deadline travels with the request to the worker
        **options: Unpack[InferOptions],
    ) -> InferResult:
        """Send a request and wait for its result; cancelling the task cancels it. As `Client.infer` otherwise."""
        return await self.connection.send(make_request(model, inputs, options), timeout)

    async def infer_picture(
        self,
        model: str,
        picture: PictureInput | Sequence[PictureInput],
        *,
        timeout: float | None = None,  # noqa: ASYNC109  the deadline travels with the request to the worker
        **options: Unpack[InferOptions],
    ) -> PictureResult:
        """Send a picture, and return what the model found in it; as `Client.infer_picture`."""
        card = self.connection.registry.known.card(model) or await self.card(model, timeout)
        inputs, placement = await asyncio.to_thread(picture_inputs, card, picture, options)
        return PictureResult(await self.infer(model, inputs, timeout=timeout, **options), placement, card.classes)

    def submit(
        self,
        model: str,
        inputs: Mapping[str, Input],
        *,
        timeout: float | None = None,
        **options: Unpack[InferOptions],
    ) -> asyncio.Task[InferResult]:
        """Send a request and return a task; awaiting it returns or raises what `infer` would. Arguments as there.

        It is sent as soon as the loop runs. While `max_pending` requests are pending it waits for room within its
        timeout. Cancelling it cancels the request. Leave the arrays unchanged until it is done.

        Raises:
            MqinferError: The request can't be made: `BadTensor`, `BadEncoding`, `ConfigError`.
            TypeError: There is no such option.
        """
        connection, request = self.connection, make_request(model, inputs, options)
        if timeout is not None:
            check_timeout(timeout)
        return asyncio.get_running_loop().create_task(connection.send(request, timeout))

    def stream(
        self,
        model: str,
        *,
        policy: Policy | Literal["latest", "all"] = Policy.LATEST,
        window: int = 8,
        timeout: float | None = None,
        **options: Unpack[InferOptions],
    ) -> AsyncStream:
        """Open a stream of frames to a model, as `Client.stream` does; the client must be open.

        Its version is a number: what a label stands for is in the `labels` of `await client.card(model)`.
        """
        return AsyncStream(self.connection.feeds.open(model, policy, window, timeout, options))

    @overload
    def watch(
        self, model: str | None = None, *, with_previews: Literal[False] = False, **options: Unpack[WatchOptions]
    ) -> AsyncWatch[SeenResult]: ...

    @overload
    def watch(
        self, model: str | None, *, with_previews: Literal[True], **options: Unpack[WatchOptions]
    ) -> AsyncWatch[SeenResult | SeenPreview]: ...

    def watch(
        self, model: str | None = None, *, with_previews: bool = False, **options: Unpack[WatchOptions]
    ) -> AsyncWatch[SeenResult] | AsyncWatch[SeenResult | SeenPreview]:
        """Return a watch of the results of other clients, as `Client.watch` does; `async with` connects it.

        The client must be open.
        """
        self.connection.requester.maker.check()
        feed = self._watches.make(WatchSettings(model, with_previews=with_previews, **options))
        return AsyncWatch(feed, self._connect_timeout)

    async def card(self, model: str, timeout: float | None = None) -> ModelCard:  # noqa: ASYNC109  as for `Client.card`
        """Return a model's card. As `Client.card`.

        Raises:
            ModelNotFound: No worker has published one in time; the message says the same as that of `Client.card`.
        """
        connection = self.connection
        try:
            if timeout is not None:
                check_timeout(timeout)
            elif await connection.is_mistyped(model):
                timeout = 0.0
            return await connection.registry.wait_for(model, timeout)
        except ModelNotFound as error:
            limit = math.inf if timeout is None else timeout
            raise await asyncio.to_thread(connection.absence.explained, error, model, limit) from None

    def counters(self) -> Counters:
        """Return what became of all requests."""
        return self.connection.requester.counters()

    async def close(self) -> None:
        """Cancel what is pending, end the streams, and disconnect."""
        self._maker.check()
        if self._connection:
            self._connection.feeds.end()
        await asyncio.to_thread(self._watches.end)
        if self._connection:
            if self.announcer:
                self.announcer.presence.end()
            await asyncio.to_thread(self._connection.requester.close)

    async def _enter(self) -> None:
        await self.open()

    _leave = close


class AsyncConnection:
    """An asyncio client's connection, and the requests over it; many at a time never block the loop's thread.

    Attributes:
        requester: What sends them.
        registry: What the broker keeps of the models and workers.
        feeds: The client's streams.
        absence: Finds out why nobody serves a model; its calls block.
    """

    def __init__(self, requester: Requester, registry: LiveRegistry, feeds: Feeds) -> None:
        self.requester, self.registry, self.feeds = requester, registry, feeds
        self.absence = Absence(requester)
        self._room = asyncio.Semaphore(requester.options.max_pending)
        self._inbox: _Inbox | None = None

    async def is_mistyped(self, model: str) -> bool:
        """Return whether a model's card is not here, and its name nearly that of another, as `Absence.is_mistyped`."""
        with suppress(ModelNotFound):
            await self.registry.wait_for(model, RETAINED_S)
            return False
        return await asyncio.to_thread(self.absence.is_mistyped, model)

    async def send(
        self,
        request: InferRequest,
        timeout: float | None = None,  # noqa: ASYNC109  as for `AsyncClient.infer`
        worker: str = "",
    ) -> InferResult:
        """Send a request that is encoded, as `AsyncClient.infer`; its `id` and `response_topic` are set here.

        With a `worker` it goes there first, as long as that takes requests.
        """
        if request.model_version is not None and names_label(request):
            request = with_labelled_version(request, await self.registry.wait_for(request.model_name))
        if self._room.locked():
            timeout = await self._wait_for_room(timeout)
        else:
            await self._room.acquire()  # at once
        try:
            result = await self._ask(request, timeout, worker)
        finally:
            self._room.release()
        result.raise_for_outcome()
        return result

    async def _ask(
        self,
        request: InferRequest,
        timeout: float | None,  # noqa: ASYNC109  as for `send`
        worker: str,
    ) -> InferResult:
        loop = asyncio.get_running_loop()
        if self._inbox is None or self._inbox.loop is not loop:
            self._inbox = _Inbox(loop)
        future: asyncio.Future[InferResult] = loop.create_future()
        request_id = self.requester.submit(
            request, timeout, partial(self._inbox.put, future), waits=False, worker=worker
        )
        try:
            return await future
        except asyncio.CancelledError:
            self.requester.cancel(request_id)
            raise

    async def _wait_for_room(self, timeout: float | None) -> float:  # noqa: ASYNC109
        """Take a place among the pending requests, and return the time left."""
        timeout = self.requester.options.timeout if timeout is None else check_timeout(timeout)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        try:
            async with asyncio.timeout_at(deadline):
                await self._room.acquire()
        except TimeoutError:
            limit = self.requester.options.max_pending
            raise Expired(f"{limit} requests are pending, and none of them ended within {timeout:.3g} s") from None
        return max(_LEAST_S, deadline - loop.time())


class _Inbox:
    """Hands results over to a loop's thread; many that come together wake it once."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._results: deque[tuple[asyncio.Future[InferResult], InferResult]] = deque()  # bounded by what is pending
        self._is_woken = False

    def put(self, future: asyncio.Future[InferResult], result: InferResult) -> None:
        """Set a future's result in the loop; called on any thread."""
        if running_loop() is self.loop:  # it is this thread's, and need not be woken
            if not future.done():
                future.set_result(result)
            return
        self._results.append((future, result))
        if not self._is_woken:
            self._is_woken = True
            self.loop.call_soon_threadsafe(self._settle)

    def _settle(self) -> None:
        self._is_woken = False  # before the look: what comes behind it wakes the loop again
        while self._results:
            future, result = self._results.popleft()
            if not future.done():
                future.set_result(result)

"""The asyncio control client: many questions at a time, over the connection of an asyncio client."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from mqinfer.broker.link import Message
from mqinfer.client.aio import AsyncClient
from mqinfer.client.control.question import ControlReply, Question, check_replies
from mqinfer.client.options import check_timeout
from mqinfer.client.result import Ignored
from mqinfer.protocol.control import Call, Operation
from mqinfer.protocol.errors import MqinferError

__all__ = ["AsyncControl"]


class AsyncControl:
    """Manages servers over the connection, and under the name, of an asyncio client, which must be open.

    Example:
        >>> async with AsyncClient("mqtt://127.0.0.1:1883") as client:  # doctest: +SKIP
        ...     control = AsyncControl(client)
        ...     index, stats = await asyncio.gather(
        ...         control.ask(Call(Operation.INDEX)), control.ask(Call(Operation.ALL_STATS))
        ...     )
    """

    def __init__(self, client: AsyncClient) -> None:
        """Ask over this client's connection; one `AsyncControl` a client.

        Args:
            client: Open.
        """
        self._requester = client.connection.requester
        self._registry = client.connection.registry
        self._ignored = Ignored("a server's reply")
        self._asked: dict[str, tuple[Question, asyncio.Event]] = {}  # by the last level of the reply's topic

    async def ask(
        self,
        call: Call,
        body: Mapping[str, Any] | None = None,
        *,
        server: str | None = None,
        timeout: float = 10.0,  # noqa: ASYNC109  part of the result: who has not replied in time
    ) -> list[ControlReply]:
        """Send a call to one server, or to all, and wait for the replies. As `ControlClient.ask`."""
        check_timeout(timeout)
        loop = asyncio.get_running_loop()
        await self._registry.wait_until_complete()
        question, changed = Question(server, timeout), asyncio.Event()

        def handle(event: Callable[[], None]) -> None:
            with suppress(RuntimeError):  # the loop is closed: nobody waits
                loop.call_soon_threadsafe(event)

        def on_ack(code: int) -> None:
            question.acked(code)
            changed.set()

        def on_change() -> None:
            handle(changed.set)

        self._requester.on_control = lambda message: handle(lambda: self._on_reply(message))
        self._asked[question.request.hex()] = question, changed
        self._registry.watch(on_change)
        known, name = self._registry.known, self._requester.name
        try:
            message = question.message(self._requester.topics, name, call, body)
            self._requester.link.publish(message, lambda code: handle(lambda: on_ack(code)))
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    while not question.is_complete(known.servers):
                        await changed.wait()
                        changed.clear()
            return question.outcome(known.servers, name)
        finally:
            self._registry.unwatch(on_change)
            del self._asked[question.request.hex()]

    async def load(self, model: str, *, server: str | None = None, timeout: float = 300.0) -> list[ControlReply]:  # noqa: ASYNC109
        """Load a model, or what has changed of it. As `ControlClient.load`."""
        return check_replies(await self.ask(Call(Operation.LOAD, model), server=server, timeout=timeout))

    async def unload(self, model: str, *, server: str | None = None, timeout: float = 60.0) -> list[ControlReply]:  # noqa: ASYNC109
        """Unload a model. As `ControlClient.unload`."""
        return check_replies(await self.ask(Call(Operation.UNLOAD, model), server=server, timeout=timeout))

    def _on_reply(self, message: Message) -> None:
        found = self._asked.get(message.topic.rpartition("/")[2])
        if found is None:  # to a call whose time is over
            return
        question, changed = found
        try:
            if question.replied(message):
                changed.set()
        except MqinferError as error:
            self._ignored.add(message.topic, error)

"""The asyncio control client: many questions at a time, over the connection of an asyncio client."""

from __future__ import annotations

import time
from contextlib import suppress

from mqinfer.broker.link import Message
from mqinfer.client.aio import AsyncClient
from mqinfer.client.control.question import ControlReply, Question, check_replies
from mqinfer.client.options import check_timeout
from mqinfer.client.result import Ignored
from mqinfer.protocol.control import Call, Operation
from mqinfer.protocol.errors import LinkError, MqinferError


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
        """Ask over this client's connection; one `AsyncControl` a client."""
        self._requester = client.connection.requester
        self._registry = client.connection.registry
        self._ignored = Ignored("a server's reply")
        self._asked: dict[str, Question] = {}  # by the last level of the reply's topic
        self._further = client.connection.absence.on_reply
        self._requester.on_control = self._on_reply

    async def ask(
        self,
        call: Call,
        *,
        timeout: float = 10.0,  # noqa: ASYNC109  part of the result: who has not replied in time
        behalf: str = "",
    ) -> list[ControlReply]:
        """Send a call to all servers, and wait for the replies. As `ControlClient.ask`.

        Servers log whom it is made for, `behalf`, beside the client.
        """
        check_timeout(timeout)
        await self._registry.wait_until_complete()
        question, known, name = Question(None, timeout), self._registry.known, self._requester.name
        asked = known.servers

        def on_ack(code: int) -> None:
            question.acked(code, asked)
            self._registry.notify()

        self._asked[question.request.hex()] = question
        try:
            self._requester.link.publish(question.message(self._requester.topics, name, call, None, behalf), on_ack)
            ends_at = time.monotonic() + timeout
            while (left := ends_at - time.monotonic()) > 0:
                if await self._registry.until(lambda: question.is_complete(known.servers), min(left, question.again_s)):
                    break
                for message in question.again(self._requester.topics, name, known.servers):
                    with suppress(LinkError):
                        self._requester.link.publish(message)
            return question.outcome(known.servers, name)
        finally:
            del self._asked[question.request.hex()]

    async def load(self, model: str, *, behalf: str = "") -> list[ControlReply]:
        """Load a model, or what has changed of it, on all servers that have it. As `ControlClient.load`."""
        return check_replies(await self.ask(Call(Operation.LOAD, model), timeout=300.0, behalf=behalf))

    async def unload(self, model: str, *, behalf: str = "") -> list[ControlReply]:
        """Unload a model from all servers. As `ControlClient.unload`."""
        return check_replies(await self.ask(Call(Operation.UNLOAD, model), timeout=60.0, behalf=behalf))

    def _on_reply(self, message: Message) -> None:
        question = self._asked.get(message.topic.rpartition("/")[2])
        if question is None:  # a call whose time is over, or a question of the client itself
            self._further(message)
            return
        try:
            if question.replied(message):
                self._registry.notify()
        except MqinferError as error:
            self._ignored.add(message.topic, error)

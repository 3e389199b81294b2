"""The part of the gateway that knows no transport; the fronts only translate to and from it."""

from __future__ import annotations

import asyncio
from typing import Any

from mqinfer.client.aio import AsyncClient
from mqinfer.client.control import ControlClient, check_replies
from mqinfer.client.result import InferResult
from mqinfer.gateway.calls import InferCall
from mqinfer.protocol.card import ModelCard
from mqinfer.protocol.control import Call, Operation
from mqinfer.protocol.errors import ModelNotFound
from mqinfer.protocol.types import Scalar

__all__ = ["Core"]


class Core:
    """Answers what the fronts ask; every error is an `MqinferError`, see `gateway.errors.status_of`.

    Args:
        client: Open.
        control: Connected.
        default_timeout_s: Of a call that states none.
    """

    def __init__(self, client: AsyncClient, control: ControlClient, default_timeout_s: float = 60.0) -> None:
        self._client, self._control = client, control
        self._default_timeout_s = default_timeout_s

    async def infer(self, call: InferCall) -> InferResult:
        """Send a request and wait for its result; cancelling the task cancels it at the worker.

        Raises:
            MqinferError: Whatever came of it; the texts begin with those of Triton where it has one.
        """
        times = [each for each in (call.deadline_s, call.timeout_s, self._default_timeout_s) if each is not None]
        return await self._client.infer(
            call.model,
            {tensor.name: tensor for tensor in call.inputs},
            timeout=min(times),
            version=call.version or None,
            outputs=[output.name for output in call.outputs],
            classification={each.name: each.classification for each in call.outputs if each.classification},
            priority=call.priority,
        )

    def live(self) -> bool:
        """Return whether the gateway runs: always."""
        return True

    def ready(self) -> bool:
        """Return whether it is connected, knows what the broker keeps, and at least one worker is ready."""
        return True

    def model_ready(self, model: str, version: str | None = None) -> bool:
        """Return whether a worker serves a model, or a version of it; False where there is no such model."""
        raise NotImplementedError(model, version)

    async def metadata(self, model: str, version: str | None = None) -> ModelCard:
        """Return a model's card.

        Raises:
            ModelNotFound: There is no such model, or no such version.
        """
        card = await self._client.card(model, 0.001)
        if version and version != card.version:
            raise ModelNotFound(f"Request for unknown model: '{model}' version {version} is not found")
        return card

    async def versions(self, model: str) -> dict[str, bool]:
        """Return a model's versions, each with whether it is ready.

        Raises:
            ModelNotFound: There is no such model.
        """
        raise NotImplementedError(model)

    async def config(self, model: str, version: str | None = None) -> dict[str, Any]:
        """Return a model's configuration under Triton's keys, as JSON types; errors as of `metadata`."""
        raise NotImplementedError(model, version)

    async def statistics(self, model: str = "", version: str | None = None) -> list[dict[str, Any]]:
        """Return the entries of `model_stats`, summed over the servers; of all models where none is named."""
        raise NotImplementedError(model, version)

    async def index(self, *, only_ready: bool = False) -> list[dict[str, str]]:
        """Return the repository's index, merged over the servers: `name`, `version`, `state`, `reason`."""
        replies = await asyncio.to_thread(self._control.ask, Call(Operation.INDEX))
        entries = [entry for reply in check_replies(replies) for entry in reply.content]
        return [entry for entry in entries if entry["state"] == "READY" or not only_ready]

    async def load(self, model: str, parameters: dict[str, Scalar] | None = None) -> None:
        """Load a model on all servers that have it; parameters are refused, nothing of a model comes from a message."""
        raise NotImplementedError(model, parameters)

    async def unload(self, model: str) -> None:
        """Unload a model on all servers."""
        raise NotImplementedError(model)

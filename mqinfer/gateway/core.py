"""The part of the gateway that knows no transport; the fronts only translate to and from it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from msgspec.structs import replace

from mqinfer.client.aio import AsyncClient
from mqinfer.client.control import AsyncControl, ControlReply, check_replies
from mqinfer.client.control.merging import merge_index, merge_statistics, without_server
from mqinfer.client.result import InferResult
from mqinfer.gateway.calls import InferCall
from mqinfer.gateway.errors import Unavailable
from mqinfer.gateway.inference import Inference
from mqinfer.logs import printable
from mqinfer.protocol.card import ModelCard, card_from_json
from mqinfer.protocol.control import Call, ModelState, Operation
from mqinfer.protocol.decoding import write_json
from mqinfer.protocol.errors import (
    BadTopic,
    InvalidRequest,
    ModelNotFound,
    ModelNotLoadable,
    MqinferError,
    NotAuthorized,
)
from mqinfer.protocol.limits import DEFAULT_LIMITS
from mqinfer.protocol.states import WorkerStatus
from mqinfer.protocol.topics import check_version
from mqinfer.protocol.types import Scalar
from mqinfer.web.arriving import Arriving
from mqinfer.web.unsent import Unsent

_log = logging.getLogger("mqinfer.gateway")

S = TypeVar("S")
T = TypeVar("T")
_SHOWN = 200
"""Characters of a caller's text that an error repeats."""
_SEEN_S = 5.0
"""How long a load or unload waits for the workers' states that follow from it."""


class Core:
    """Answers what the fronts ask; every error is an `MqinferError`, see `gateway.errors.status_of`.

    Args:
        client: Open.
        control: Of this client.
        default_timeout_s: Of a call that states none.
        strict_readiness: Whether every model that has a card must have a worker, before it is ready (Triton's option).
        model_control: Whether callers may load and unload models.
        max_pending: Calls for inference that it accepts at a time.
        max_bytes: Bytes of their inputs.
        max_input_bytes: Bytes of one request, decompressed.

    Attributes:
        client: The client.
        max_bytes: As the argument; the outputs of one call may take as much.
        inference: The calls for inference, with counters of what became of them and those that wait.
        arriving: Requests while they arrive and are worked on, of all fronts.
        unsent: Replies that callers have not taken yet, of all fronts.
        max_input_bytes: As the argument.
        decompressor: Decompresses requests, one at a time, also where their callers leave.
    """

    def __init__(  # noqa: PLR0913 - what an operator sets
        self,
        client: AsyncClient,
        control: AsyncControl,
        default_timeout_s: float = 60.0,
        *,
        strict_readiness: bool = False,
        model_control: bool = True,
        max_pending: int = 1024,
        max_bytes: int = 512 << 20,
        max_input_bytes: int = DEFAULT_LIMITS.payload_bytes,
    ) -> None:
        self.client, self._control, self.max_bytes = client, control, max_bytes
        self.max_input_bytes = max_input_bytes
        self.decompressor = ThreadPoolExecutor(1, "mqinfer-gateway-decompress")
        self._is_strict = strict_readiness
        self._has_control = model_control
        self._is_draining = False
        self._registry = client.connection.registry
        self._known = client.connection.registry.known
        self.inference = Inference(client, self._find, default_timeout_s, max_pending, max_bytes)
        self.arriving = Arriving(_log, max_bytes, default_timeout_s)
        self.unsent = Unsent(_log, max_bytes, default_timeout_s)
        self._answers: dict[str, Any] = {}  # of servers, by the call's path; of one revision of the registry
        self._revision = -1

    async def start(self) -> None:
        """Wait until it is known what the broker keeps, two seconds at most; without it the first calls wait."""
        await self._registry.wait_until_complete()

    def drain(self) -> None:
        """Be no longer ready, so that callers go elsewhere."""
        self._is_draining = True

    async def infer(self, call: InferCall) -> InferResult:
        """Send a request and wait for its result; cancelling the task cancels it at the worker.

        Raises:
            MqinferError: Whatever came of it; the texts begin with those of Triton where it has one.
        """
        return await self.inference.infer(call, lambda send: send(call))

    def ready(self) -> bool:
        """Return whether it is connected, knows what the broker keeps, and at least one worker is ready."""
        if self._is_draining or not self._registry.is_complete:
            return False
        if self._is_strict and not all(map(self._known.models.is_ready, self._known.cards)):
            return False
        return any(state.status is WorkerStatus.READY for state in self._known.workers.values())

    def model_ready(self, model: str, version: str | None = None) -> bool:
        """Return whether a worker serves a model, or a version of it; False where there is no such model.

        Raises:
            InvalidRequest: The version is no number.
        """
        return self._known.models.is_ready(model, self._version_of(model, version)) and self._registry.is_complete

    async def metadata(self, model: str, version: str | None = None) -> ModelCard:
        """Return a model's card; its `versions` are those that are ready, or the one that is asked about.

        Raises:
            ModelNotFound: There is no such model, or no such version.
            InvalidRequest: The version is no number.
            Unavailable: The version is there and not ready.
            LinkError: The broker is away, or does not allow the gateway to ask servers.
        """
        version = await self._find(model, version)
        card = self._known.card(model)
        if card is None or version not in {None, card.version}:
            card = await self._ask_about(Operation.METADATA, model, version, _read_card)
        if version is not None:
            return replace(card, versions=(version,))
        versions = self._known.models.versions(model)
        ready = [each for each, is_ready in versions.items() if is_ready] or list(versions)
        return replace(card, versions=tuple(sorted(ready, key=lambda each: (len(each), each))))

    async def versions(self, model: str) -> dict[str, bool]:
        """Return a model's versions, each with whether it is ready.

        Raises:
            ModelNotFound: There is no such model.
        """
        await self._find(model, None)
        return dict(self._known.models.versions(model))

    async def config(self, model: str, version: str | None = None) -> dict[str, Any]:
        """Return a model's configuration under Triton's keys, as JSON types; errors as of `metadata`."""
        version = await self._find(model, version)
        return dict(await self._ask_about(Operation.CONFIG, model, version, without_server))

    async def statistics(self, model: str = "", version: str | None = None) -> list[dict[str, Any]]:
        """Return the entries of `model_stats`, summed over the servers; of all models where none is named."""
        if not model:
            return _read(merge_statistics, await self._ask(Call(Operation.ALL_STATS)))
        version = await self._find(model, version)
        try:
            return _read(merge_statistics, await self._ask(Call(Operation.STATS, model, version)))
        except ModelNotFound as error:
            raise _not_ready(model, version, error) from error

    async def index(self, *, only_ready: bool = False) -> list[dict[str, str]]:
        """Return the repository's index, merged over the servers: `name`, `version`, `state`, `reason`."""
        entries = _read(merge_index, await self._ask(Call(Operation.INDEX)))
        return [entry.to_record() for entry in entries if entry.state is ModelState.READY or not only_ready]

    async def load(self, model: str, parameters: dict[str, Scalar] | None = None, caller: str = "") -> None:
        """Load a model on all servers that have it; parameters are refused, nothing of a model comes from a message.

        Servers log for whom.

        Raises:
            InvalidRequest: There are parameters, or no model can have this name.
            ModelNotLoadable: No server has it, or it can't be loaded.
            NotAuthorized: Callers may not do this, or the broker does not allow the gateway to.
        """
        self._check_control()
        failed = f"failed to load '{model[:_SHOWN]}'"
        if parameters:
            names = ", ".join(sorted(parameters))[:_SHOWN]
            raise InvalidRequest(
                f"{failed}: parameters are not accepted ({names}); a model and its configuration are never taken from "
                "a message, put them into the repository"
            )
        try:
            replies = await self._control.load(model, behalf=printable(caller))
        except BadTopic:
            raise InvalidRequest(
                f"{failed}, {_why_no_name(model)}: a model's name is 1 to 64 letters, digits, '_', '.' or '-', begins "
                "with none of the last two, and is not reserved"
            ) from None
        except ModelNotFound as error:
            raise ModelNotLoadable(f"{failed}, failed to poll from model repository: no server has it") from error
        except ModelNotLoadable as error:
            raise ModelNotLoadable(f"{failed}, failed to poll from model repository: {error}") from error
        except MqinferError as error:
            raise type(error)(f"{failed}: {error}") from error
        versions = {str(each) for reply in replies for each in _field(reply, "versions")}
        await self._registry.until(lambda: any(self._known.models.is_ready(model, each) for each in versions), _SEEN_S)

    async def unload(self, model: str, caller: str = "") -> None:
        """Unload a model on all servers; do nothing where none has it, as Triton. May raise NotAuthorized as `load`."""
        self._check_control()
        try:
            await self._control.unload(model, behalf=printable(caller))
        except (ModelNotFound, BadTopic):
            return
        except MqinferError as error:
            raise type(error)(f"failed to unload '{model[:_SHOWN]}': {error}") from error
        await self._registry.until(lambda: not any(self._known.models.versions(model).values()), _SEEN_S)

    def _check_control(self) -> None:
        if not self._has_control:
            raise NotAuthorized(
                "explicit model load / unload is not allowed if polling is enabled; the gateway's operator allows it "
                "by --model-control"
            )

    def _version_of(self, model: str, version: str | None) -> str | None:
        """Return a version, or the one that has this label, as servers name it; None where none is stated."""
        card = self._known.card(model) if version else None
        return _checked(card.parameters.labels.get(version, version) if card and version else version)

    async def _find(self, model: str, version: str | None) -> str | None:
        """Return the version as servers name it, once it is known that there may be such a model and version.

        Raises:
            ModelNotFound: There is none.
            InvalidRequest: The version is no number.
        """
        version, known = self._version_of(model, version), self._known
        if known.models.knows(model) and (version is None or version in known.models.versions(model)):
            return version
        if not await self._registry.wait_until_complete():
            return version  # without a connection nobody knows
        if not known.models.knows(model):
            what = "has no available versions" if known.models.was_known(model) else "is not found"
            raise ModelNotFound(f"{_requested(model, None)} {what}")
        if version is not None and version not in known.models.versions(model):
            raise ModelNotFound(f"{_requested(model, version)} is not found")
        return version

    async def _ask(self, call: Call) -> list[ControlReply]:
        return check_replies(await self._control.ask(call))

    async def _ask_about(self, operation: Operation, model: str, version: str | None, read: Callable[[object], T]) -> T:
        """Ask the servers about a model, unless nothing has changed since they were asked; any server's reply will do.

        Raises:
            Unavailable: It is there and not ready.
        """
        call, revision = Call(operation, model, version), self._known.revision
        if revision != self._revision or not self._registry.is_complete:
            self._answers.clear()
            self._revision = revision
        if call.path in self._answers:
            found: T = self._answers[call.path]
            return found
        try:
            replies = await self._ask(call)
        except ModelNotFound as error:
            raise _not_ready(model, version, error) from error
        found = _read(read, replies[0].content)
        if revision == self._revision == self._known.revision:
            self._answers[call.path] = found
        return found


def _why_no_name(model: str) -> str:
    """Return Triton's sentence about what can't be a model's name."""
    if not model.strip():
        return "Model name cannot be empty. Please enter a valid name to deploy."
    is_path = not {"/", "\\"}.isdisjoint(model) or model.strip() == ".."
    return (
        "model name must not contain path traversal characters" if is_path else "failed to poll from model repository"
    )


def _checked(version: str | None) -> str | None:
    """Return a version as servers name it; None where none is stated."""
    if not version:
        return None
    try:
        return check_version(version.lstrip("0") or "0")
    except BadTopic:
        raise InvalidRequest(
            f"failed to get model version from specified version string '{version[:_SHOWN]}', version should be an "
            "integral value > 0"
        ) from None


def _requested(model: str, version: str | None) -> str:
    which = "" if version is None else f" version {version}"
    return f"Request for unknown model: '{model[:_SHOWN]}'{which}"


def _not_ready(model: str, version: str | None, why: MqinferError) -> Unavailable:
    return Unavailable(f"{_requested(model, version)} is not at ready state ({why})")


def _read(read: Callable[[S], T], replies: S) -> T:
    """Read what servers replied; where that can't be read, it is not the caller's fault."""
    try:
        return read(replies)
    except InvalidRequest as error:
        raise MqinferError(f"a server's reply can't be read: {error}") from error


def _field(reply: ControlReply, name: str) -> list[Any]:
    found = reply.content.get(name) if isinstance(reply.content, dict) else None
    return found if isinstance(found, list) else []


def _read_card(content: object) -> ModelCard:
    return card_from_json(write_json(without_server(content), "model card"))

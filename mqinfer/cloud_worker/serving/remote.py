"""Steps of an ensemble that other workers run: asked over the broker, for whoever waits for the ensemble.

A model that is so asked for looks like one that is loaded here, so an ensemble does not know the difference. What is
asked ends with the latest deadline of the requests that it is for, has the highest of their priorities and the first
one's trace, and is cancelled once all of them are.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from contextvars import ContextVar
from typing import TypeVar

from mqinfer.broker.address import BrokerAddress
from mqinfer.client import Client, ClientOptions
from mqinfer.client.request import InferOptions
from mqinfer.client.result import InferResult
from mqinfer.cloud_worker.serving.incoming import IncomingRequest
from mqinfer.models.ensemble.ensemble import REMOTE
from mqinfer.models.loading import LoadedModel
from mqinfer.models.repository.config import ModelConfig
from mqinfer.protocol.card import ModelCard
from mqinfer.protocol.datatypes import Array
from mqinfer.protocol.errors import Cancelled, ConfigError, Expired, ModelFailed

T = TypeVar("T")

_CARD_S = 20.0
"""How long the start waits for a model's card; then the process ends, and its server starts it again."""
_LONGEST_S = 50.0
"""A run that takes longer counts as hung: see `ProcessSpec.run_timeout`."""
_CONCURRENCY = 8
"""Runs of the ensemble at a time: most of them wait for another worker."""
_PATIENCE_S = 30.0
"""How long it waits for a worker of a step, where the deadline leaves as much: one that crashed comes back."""
_REPLY_S = 0.05
"""What is left of the deadline for the error of a step that has come to nothing; of a short one a twentieth."""
_served: ContextVar[Sequence[IncomingRequest]] = ContextVar("served", default=())
"""The requests that this thread runs the ensemble for."""


class RemoteModels:
    """The models that other workers run for the ensemble of this process, over one connection. Thread-safe.

    Args:
        broker: To connect to, once a model is asked for.
        name: The process's.
        root: Root of the site's topics.
        longest_s: How long a step may take at most, in seconds; None for 50.
    """

    def __init__(self, broker: BrokerAddress, name: str, root: str, longest_s: float | None = None) -> None:
        self._broker, self._name, self._root = broker, name, root
        self._longest_s = longest_s or _LONGEST_S
        self._client: Client | None = None
        self._found = 0
        self._lock = threading.Lock()
        self._waited_for: dict[Future[InferResult], set[tuple[str, str]]] = {}

    def find(self, model: str, version: int | None, within: Collection[str]) -> LoadedModel:
        """Return a model that other workers serve.

        Args:
            model: Its name.
            version: Of it; None for the default one.
            within: The ensemble that it is a step of, with those around it and their other steps.

        Raises:
            ModelNotFound: No worker has published its card in time.
            ConfigError: It asks for this ensemble itself, or there is no such version.
            LinkError: The broker can't be reached.
        """
        if self._client is None:
            options = ClientOptions(patience=_PATIENCE_S)
            self._client = Client(self._broker, name=self._name, root=self._root, options=options)
        self._found += 1
        try:
            card = self._client.card(model, _CARD_S)
            _check(card, version, within)
        except BaseException:
            self.release()
            raise
        return LoadedModel(_RemoteModel(self, card, version), card, ModelConfig())

    def serving(self, requests: Sequence[IncomingRequest], run: Callable[[], T]) -> T:
        """Run something for requests: what is asked for meanwhile, by this thread, is for them."""
        token = _served.set(requests)
        try:
            return run()
        finally:
            _served.reset(token)

    def cancel(self, client: str, ids: Iterable[str]) -> None:
        """Cancel what nobody waits for any more, since a client has cancelled these requests."""
        cancelled = {(client, each) for each in ids}
        with self._lock:
            for keys in self._waited_for.values():
                keys.difference_update(cancelled)
            unwanted = [future for future, keys in self._waited_for.items() if not keys]
        for future in unwanted:
            future.cancel()

    def infer(self, model: str, inputs: Mapping[str, Array], options: InferOptions) -> dict[str, Array]:
        """Have another worker run a model.

        Raises:
            MqinferError: As of a client; `Cancelled` where nobody waits any more.
        """
        client, served = self._client, _served.get()
        if client is None:
            raise ModelFailed("the ensemble is closed")
        left = max((each.deadline for each in served), default=math.inf) - time.monotonic()
        if left <= 0:
            raise Expired("the deadline passed before the step was sent")
        options["priority"] = min((each.request.priority for each in served if each.request.priority), default=0)
        if served and (trace := served[0].path.trace):
            options["traceparent"], options["tracestate"] = trace.traceparent, trace.tracestate
        timeout = min(left - min(_REPLY_S, left / 20), self._longest_s)
        future = client.submit(model, inputs, timeout=timeout, **options)
        keys = {each.key for each in served if each.key is not None}
        with self._lock:
            if keys:
                self._waited_for[future] = keys
        try:
            return dict(future.result().outputs)
        except CancelledError:
            raise Cancelled("the client cancelled it") from None
        finally:
            with self._lock:
                self._waited_for.pop(future, None)

    def release(self) -> None:
        """Disconnect once each model that was found is released."""
        self._found -= 1
        if not self._found and self._client is not None:
            self._client.close()
            self._client = None


def _check(card: ModelCard, version: int | None, within: Collection[str]) -> None:
    """Refuse a model that asks for the ensemble that it would be a step of, or a version that nobody serves."""
    circle = sorted({card.name, *card.parameters.remote_steps}.intersection(within))
    if circle:
        raise ConfigError(f"the ensemble asks for itself: {card.name!r} is served with the help of {', '.join(circle)}")
    if version is not None and str(version) not in card.versions:
        there = ", ".join(card.versions)
        raise ConfigError(f"model {card.name!r}: workers serve no version {version} of it; they serve {there}")


class _RemoteModel:
    """A model that other workers run, as a back end."""

    platform = engine = device = REMOTE
    concurrency = _CONCURRENCY

    def __init__(self, models: RemoteModels, card: ModelCard, version: int | None) -> None:
        self._models, self._name, self._version = models, card.name, version
        self.precision = card.parameters.precision
        self.inputs, self.outputs = card.inputs, card.outputs

    def infer(self, inputs: Mapping[str, Array], outputs: Sequence[str] = ()) -> dict[str, Array]:
        """Run it; errors as of a client."""
        return self._models.infer(self._name, inputs, {"version": self._version, "outputs": outputs})

    def close(self) -> None:
        """Ask for nothing more."""
        self._models.release()

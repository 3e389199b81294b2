"""The blocking client."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from queue import SimpleQueue
from types import TracebackType
from typing import Self, Unpack

from mqinfer.broker.address import BrokerAddress
from mqinfer.client.connection import CardShelf, connect, default_name
from mqinfer.client.options import ClientOptions
from mqinfer.client.request import InferOptions, Input, make_request
from mqinfer.client.result import Counters, InferResult
from mqinfer.protocol.card import ModelCard
from mqinfer.protocol.errors import MqinferError
from mqinfer.protocol.topics import DEFAULT_ROOT, Topics

__all__ = ["Client"]


class Client:
    """Sends inference requests through a broker, from any thread of the process that made it.

    Example:
        >>> with Client("mqtt://127.0.0.1:1883") as client:  # doctest: +SKIP
        ...     result = client.infer("half_plus_two", {"x": np.array([[1.0]], np.float32)})
        ...     result.outputs["y"]
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
        """Connect.

        Args:
            url: Such as `mqtt://user:password@host:1883`, `mqtts://host`, `memory://name`.
            name: The client's name in its topics, unique; None for that of its certificate or login, else a random one.
            root: Topic root, one for all parties of a site.
            options: How it sends; None for the defaults.
            connect_timeout: In seconds.

        Raises:
            BrokerUnreachable: No broker answers at the address.
            NotAuthorized: The broker refused the credentials.
            ConfigError: The address is wrong.
            BadTopic: The name or the root breaks the naming rules.
        """
        self._requester = connect(url, name or default_name(url), Topics(root), options, timeout=connect_timeout)
        self._cards = CardShelf(self._requester.link, self._requester.topics)

    @property
    def name(self) -> str:
        """The client's name in its topics."""
        return self._requester.name

    def infer(
        self,
        model: str,
        inputs: Mapping[str, Input],
        *,
        timeout: float = 10.0,
        **options: Unpack[InferOptions],
    ) -> InferResult:
        """Send a request and wait for its result.

        Args:
            model: Name of the model.
            inputs: Arrays by input name, batch axis included, as in the model's card; or encoded tensors. They are sent
                from where they lie: leave them unchanged until this returns.
            timeout: In seconds; the result or the error comes no later.
            **options: `version`, `encoding`, `outputs` and the others of `InferOptions`.

        Raises:
            MqinferError: The class names what happened: `Expired`, `NoWorker`, `BadTensor`, …
            RuntimeError: This process is a fork of the one that made the client.
        """
        results: SimpleQueue[InferResult] = SimpleQueue()
        self._requester.submit(make_request(model, inputs, options), timeout, results.put)
        result = results.get()
        result.raise_for_outcome()
        return result

    def submit(
        self,
        model: str,
        inputs: Mapping[str, Input],
        *,
        timeout: float = 10.0,
        **options: Unpack[InferOptions],
    ) -> Future[InferResult]:
        """Send a request and return a future; its `result()` returns or raises what `infer` would. Arguments as there.

        The future's `cancel()` cancels the request, also at a worker that has it and has not run it yet.

        Leave the arrays unchanged until the future is done: they are sent from where they lie, without a copy, and
        again with each retry.

        Raises:
            MqinferError: The request can't be made: `BadTensor`, `BadEncoding`, `BadTopic`, `ConfigError`, or
                `Cancelled` once the client is closed.
        """
        future: Future[InferResult] = Future()
        request = make_request(model, inputs, options)
        request_id = self._requester.submit(request, timeout, lambda result: _settle(future, result))
        future.add_done_callback(lambda done: done.cancelled() and self._requester.cancel(request_id))
        return future

    def card(self, model: str, timeout: float = 5.0) -> ModelCard:
        """Return a model's card: its inputs and outputs, image contract, classes, hash.

        Raises:
            ModelNotFound: No worker has published one in time; the message lists the models on this broker.
        """
        return self._cards.get(model, timeout)

    def counters(self) -> Counters:
        """Return what became of all requests."""
        return self._requester.counters()

    def close(self) -> None:
        """Cancel what is pending and disconnect."""
        self._requester.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None or not self._requester.maker.is_other:  # a fork that ends within the block has nothing to close
            self.close()


def _settle(future: Future[InferResult], result: InferResult) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result.raise_for_outcome()
    except MqinferError as error:
        future.set_exception(error)
    else:
        future.set_result(result)

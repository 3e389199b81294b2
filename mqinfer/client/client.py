"""The blocking client."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Literal, Self, Unpack, overload

from mqinfer.broker.address import BrokerAddress, TlsOptions
from mqinfer.client.announcer import ClientAnnouncer
from mqinfer.client.callbacks import ReplyFuture, callback, check_may_wait, settle
from mqinfer.client.closing import WithBlock
from mqinfer.client.connection import LiveRegistry, address_of, connect, default_name, read_environment
from mqinfer.client.feed import Feeds
from mqinfer.client.options import ClientOptions, check_timeout
from mqinfer.client.request import InferOptions, Input, make_request, names_label, picture_inputs, with_labelled_version
from mqinfer.client.result import Counters, InferResult, PictureResult
from mqinfer.client.stream import Stream
from mqinfer.client.watching import SeenPreview, SeenResult, Watch, Watches, WatchOptions
from mqinfer.client.watching.absence import RETAINED_S, Absence
from mqinfer.client.watching.feed import WatchSettings
from mqinfer.client.window import Policy
from mqinfer.images.sending import PictureInput
from mqinfer.protocol.card import ModelCard
from mqinfer.protocol.errors import ModelNotFound, NoWorker
from mqinfer.protocol.topics import DEFAULT_ROOT, Topics
from mqinfer.protocol.types import InferRequest


class Client(WithBlock):
    """Sends inference requests through a broker, from any thread of the process that made it.

    Example:
        >>> with Client("mqtt://127.0.0.1:1883") as client:  # doctest: +SKIP
        ...     result = client.infer("half_plus_two", {"x": np.array([[1.0]], np.float32)})
        ...     result.outputs["y"]
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
    ) -> None:
        """Connect.

        Args:
            url: Such as `mqtt://user:password@host:1883`, `mqtts://host`, `memory://name`.
            name: The client's name in its topics, unique; None for that of its certificate or login, else a random one.
            tls: Files with the broker's authority, and with the client's certificate and key, for `mqtts://` and
                `wss://`; None to trust the system's authorities.
            root: Topic root, one for all parties of a site.
            options: How it sends; None for the defaults.
            connect_timeout: In seconds.
            announce: What dashboards show of this client. With it the client publishes its state, and in it what it
                waits for, which `mqinfer status` counts; its name is then its own. None for no state.

        Raises:
            BrokerUnreachable: No broker answers at the address.
            NotAuthorized: The broker refused the credentials.
            NameTaken: It is to publish a state, and another process has its name.
            ConfigError: The address or an option is wrong, or a certificate can't be read.
            BadTopic: The name or the root breaks the naming rules.
        """
        address = address_of(url, tls)
        name, topics = name or default_name(address), Topics(root)
        self._announcer = None if announce is None else ClientAnnouncer(name, topics, announce)
        self._requester = connect(address, name, topics, options, timeout=connect_timeout, announcer=self._announcer)
        self._maker = self._requester.maker
        self._cards = LiveRegistry(self._requester, self._announcer)
        self._absence = Absence(self._requester)
        self._feeds = Feeds(self._requester)
        self._watches = Watches(address, name, topics, self._requester.options.limits)
        self._connect_timeout = connect_timeout

    @classmethod
    def from_env(
        cls, *, root: str = DEFAULT_ROOT, options: ClientOptions | None = None, connect_timeout: float = 10.0
    ) -> Self:
        """Connect to where the environment says, by the variables of the command line.

        `MQINFER_BROKER` is the URL, `MQINFER_NAME` the client's name, and `MQINFER_CA_FILE`, `MQINFER_CERT_FILE` and
        `MQINFER_KEY_FILE` are the files of TLS. All but the first are optional.

        Args:
            root: Topic root.
            options: How it sends; None for the defaults.
            connect_timeout: In seconds.

        Raises:
            ConfigError: `MQINFER_BROKER` is not set, or a variable is wrong.
            LinkError: As for `Client(...)`.
        """
        address, name = read_environment()
        return cls(address, name=name, root=root, options=options, connect_timeout=connect_timeout)

    @property
    def name(self) -> str:
        """The client's name in its topics."""
        return self._requester.name

    def infer(
        self,
        model: str,
        inputs: Mapping[str, Input],
        *,
        timeout: float | None = None,
        **options: Unpack[InferOptions],
    ) -> InferResult:
        """Send a request and wait for its result.

        Args:
            model: Name of the model.
            inputs: Arrays by input name, batch axis included, as in the model's card; or encoded tensors. They are sent
                from where they lie: leave them unchanged until this returns.
            timeout: In seconds; the result or the error comes no later. None for that of the client's options.
            **options: `version`, `encoding`, `outputs` and the others of `InferOptions`.

        Raises:
            MqinferError: The class names what happened: `Expired`, `NoWorker`, `BadTensor`, …
            RuntimeError: This is a callback, or this process is a fork of the one that made the client.
            TypeError: There is no such option.
        """
        if callback.maker:
            check_may_wait("infer()")
        request = make_request(model, inputs, options)
        if options and names_label(request):
            request = self._labelled(request)
        results: SimpleQueue[InferResult] = SimpleQueue()
        self._requester.submit(request, timeout, results.put)
        result = results.get()
        try:
            result.raise_for_outcome()
        except NoWorker as error:
            limit = self._requester.options.timeout if timeout is None else timeout
            raise self._absence.explained(error, model, limit - result.timings.total / 1e9) from None
        return result

    def infer_picture(
        self,
        model: str,
        picture: PictureInput | Sequence[PictureInput],
        *,
        timeout: float | None = None,
        **options: Unpack[InferOptions],
    ) -> PictureResult:
        """Send a picture, and return what the model found in it, in the picture's own pixels.

        Args:
            model: Name of the model; its card says how a picture becomes its input.
            picture: Path of a JPEG or PNG, the bytes of one, or pixels `[height, width, 3]` in RGB order; for a model
                with several `[[image]]` a list of as many in their order, of which the first is the one that counts.
            timeout: Of the request, in seconds, as for `infer`; the first request to a model waits for its card before.
            **options: As for `infer`; `encoding` is that of pixels, files travel as they are.

        Raises:
            ModelNotFound: No worker has published the model's card.
            BadTensor: The model takes no pictures or another number of them, or something is none.
            OSError: A file can't be read.
            MqinferError: As for `infer`.
        """
        card = self._cards.known.card(model) or self.card(model, timeout)
        inputs, placement = picture_inputs(card, picture, options)
        return PictureResult(self.infer(model, inputs, timeout=timeout, **options), placement, card.classes)

    def submit(
        self,
        model: str,
        inputs: Mapping[str, Input],
        *,
        timeout: float | None = None,
        **options: Unpack[InferOptions],
    ) -> Future[InferResult]:
        """Send a request and return a future; its `result()` returns or raises what `infer` would. Arguments as there.

        The future's `cancel()` cancels the request, also at a worker that has it and has not run it yet. Its callbacks
        run on the thread that delivers the replies: they must be short. They may call `submit`; what waits for a reply,
        such as `infer`, raises `RuntimeError` there.

        Leave the arrays unchanged until the future is done: they are sent from where they lie, without a copy, and
        again with each retry.

        Raises:
            MqinferError: The request can't be made: `BadTensor`, `BadEncoding`, `BadTopic`, `ConfigError`, or
                `Cancelled` once the client is closed, `Rejected` in a callback while `max_pending` are pending.
            TypeError: There is no such option.
        """
        future, maker = ReplyFuture(), self._maker
        request = make_request(model, inputs, options)
        if options and names_label(request):
            request = self._labelled(request)
        request_id = self._requester.submit(
            request,
            timeout,
            lambda result: settle(future, maker, result),
            waits=not callback.maker,
        )
        future.add_done_callback(lambda done: done.cancelled() and self._requester.cancel(request_id))
        return future

    def stream(
        self,
        model: str,
        *,
        policy: Policy | Literal["latest", "all"] = Policy.LATEST,
        window: int = 8,
        timeout: float | None = None,
        **options: Unpack[InferOptions],
    ) -> Stream:
        """Open a stream of frames to a model; their results come in the order of the frames.

        Args:
            model: Name of the model.
            policy: What happens to a frame that comes while the window is full. `latest`: it is queued in place of the
                one that was queued before, which ends as `superseded`. `all`: `put` waits for room.
            window: Upper bound of the frames in flight; how many there are follows from the delay of the replies.
            timeout: Of each frame from when it is sent, in seconds; None for that of the client's options.
            **options: As for `infer`; a label stands for the version that has it now.

        Raises:
            ConfigError: The policy is unknown, or a number out of range.
            TypeError: There is no such option.
            Cancelled: The client is closed.
        """
        asked = make_request(model, {}, options)
        if names_label(asked):
            options["version"] = self._labelled(asked).model_version
        return Stream(self._feeds.open(model, policy, window, timeout, options))

    @overload
    def watch(
        self, model: str | None = None, *, with_previews: Literal[False] = False, **options: Unpack[WatchOptions]
    ) -> Watch[SeenResult]: ...

    @overload
    def watch(
        self, model: str | None, *, with_previews: Literal[True], **options: Unpack[WatchOptions]
    ) -> Watch[SeenResult | SeenPreview]: ...

    def watch(
        self, model: str | None = None, *, with_previews: bool = False, **options: Unpack[WatchOptions]
    ) -> Watch[SeenResult] | Watch[SeenResult | SeenPreview]:
        """Receive the results of other clients, as they come, over a connection of its own.

        Results of this client's own requests come too. What nobody takes in time is dropped, the oldest first, and
        counted: `counters()` of the watch. It ends with the client.

        Where Mosquitto's access rules give a login no right to read results, nothing comes; other brokers refuse.

        Args:
            model: Whose results to receive; None for those of all models.
            with_previews: Whether to receive the pictures, too, that edges publish with `--preview`.
            **options: `client`, the one whose results are wanted; `buffer` and `buffer_bytes`, the most that may wait,
                256 messages and 64 MiB.

        Raises:
            NotAuthorized: The broker refuses the subscription.
            BrokerUnreachable: No broker answers.
            BadTopic: The name of the model or of the client breaks the naming rules.
            ConfigError: A bound is below 1.
            Cancelled: The client is closed.
            TypeError: There is no such option.
        """
        check_may_wait("watch()")
        self._maker.check()
        feed = self._watches.make(WatchSettings(model, with_previews=with_previews, **options))
        feed.open(self._connect_timeout)
        return Watch(feed)

    def card(self, model: str, timeout: float | None = None) -> ModelCard:
        """Return a model's card: its inputs and outputs, image contract, classes, hash.

        Args:
            model: Name of the model.
            timeout: How long to wait for it, in seconds; None for 5, or for less than one where the name is nearly that
                of another model, and servers reply that they have none of this name.

        Raises:
            ModelNotFound: No worker has published one in time; the message lists the models on this broker, and says
                why servers could not load this one, which they are given a second to state.
            RuntimeError: This is a callback, or a fork, as for `infer`.
        """
        check_may_wait("card()")
        try:
            if timeout is not None:
                check_timeout(timeout)
            elif self._is_mistyped(model):
                timeout = 0.0
            return self._cards.get(model, timeout)
        except ModelNotFound as error:
            raise self._absence.explained(error, model, math.inf if timeout is None else timeout) from None

    def _is_mistyped(self, model: str) -> bool:
        self._cards.start()
        has_come = self._cards.wait(lambda: self._cards.known.card(model), RETAINED_S, "card()")
        return not has_come and self._absence.is_mistyped(model)

    def counters(self) -> Counters:
        """Return what became of all requests."""
        return self._requester.counters()

    def _labelled(self, request: InferRequest) -> InferRequest:
        card = self._cards.known.card(request.model_name) or self.card(request.model_name)
        return with_labelled_version(request, card)

    def close(self) -> None:
        """Cancel what is pending, end the streams, and disconnect.

        Raises:
            RuntimeError: This is a callback, or a fork, as for `infer`.
        """
        check_may_wait("close()")
        self._maker.check()  # before a lock, which another thread may have held at the fork
        self._feeds.end()
        self._watches.end()
        if self._announcer:
            self._announcer.presence.end()
        self._requester.close()

    _leave = close

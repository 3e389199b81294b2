"""What every client has: a requester that is connected and receives its replies, and the cards of the models."""

from __future__ import annotations

import secrets
import threading

from mqinfer.broker import make_link
from mqinfer.broker.address import BrokerAddress
from mqinfer.broker.link import ConnectionHandler, Link, Message
from mqinfer.broker.presence import Presence, make_client_id
from mqinfer.broker.process import Maker
from mqinfer.client.options import ClientOptions
from mqinfer.client.requester import Requester
from mqinfer.client.result import Ignored
from mqinfer.protocol.card import ModelCard, read_card
from mqinfer.protocol.errors import ModelNotFound, MqinferError
from mqinfer.protocol.topics import Topics, check_name

__all__ = ["CardShelf", "Unconnected", "connect", "random_name"]


def random_name() -> str:
    """Return a client name that no other client has."""
    return f"client-{secrets.token_hex(6)}"


class Unconnected:
    """A client that was not connected yet: `requester` accepts watchers, and `open` connects, which may be tried again.

    Args:
        url: The broker.
        name: The client's name in its topics; must be unique.
        topics: Below the root of the site.
        options: How it sends.
        presence: The client's state on the broker; None for none.

    Raises:
        BadTopic: The name breaks the naming rules.
        ConfigError: The address is wrong.
    """

    def __init__(
        self,
        url: str | BrokerAddress,
        name: str,
        topics: Topics | None = None,
        options: ClientOptions | None = None,
        *,
        presence: Presence | None = None,
    ) -> None:
        check_name("client", name)
        client_id, will = (presence.client_id, presence.will) if presence else (make_client_id(name), None)

        def make(on_connection: ConnectionHandler) -> Link:
            def tell(connected: bool) -> None:  # noqa: FBT001  the link's signature
                if connected and presence:
                    presence.publish()
                on_connection(connected)

            return make_link(url, client_id=client_id, will=will, on_connection=tell)

        self.requester = Requester(make, name, topics or Topics(), options or ClientOptions())
        if presence:
            presence.attach(self.requester.link, self.requester.give_up)
            presence.watch()

    def open(self, timeout: float) -> None:
        """Connect, and receive replies from then on; errors as of `connect`."""
        self.requester.open(timeout)


def connect(  # noqa: PLR0913 - what a client is
    url: str | BrokerAddress,
    name: str,
    topics: Topics | None = None,
    options: ClientOptions | None = None,
    *,
    timeout: float = 10.0,
    presence: Presence | None = None,
) -> Requester:
    """Return a requester that is connected and receives its replies.

    Args:
        url: The broker.
        name: The client's name in its topics; must be unique.
        topics: Below the root of the site.
        options: How it sends.
        timeout: For the connection, in seconds.
        presence: The client's state on the broker; None for none.

    Raises:
        BrokerUnreachable: No broker answers at the address.
        NotAuthorized: The broker refused the credentials.
        BadTopic: The name breaks the naming rules.
    """
    made = Unconnected(url, name, topics, options, presence=presence)
    try:
        made.open(timeout)
    except BaseException:
        made.requester.close(timeout=0.0)
        raise
    return made.requester


class CardShelf:
    """The model cards that workers keep on the broker, retained; collected from the first `get` on."""

    def __init__(self, link: Link, topics: Topics) -> None:
        self._maker = Maker("a client's collection of model cards")
        self._link = link
        self._topics = topics
        self._cards: dict[str, ModelCard] = {}
        self._ignored = Ignored("a model card")
        self._changed = threading.Condition()
        self._subscribing = threading.Lock()
        self._subscribed = False

    def get(self, model: str, timeout: float) -> ModelCard:
        """Wait for a model's card.

        Args:
            model: Its name.
            timeout: In seconds.

        Raises:
            ModelNotFound: There was none in time; the message lists the models on this broker.
        """
        self._maker.check()
        self._subscribe()
        with self._changed:
            if not self._changed.wait_for(lambda: model in self._cards, timeout):
                known = ", ".join(sorted(self._cards)) or "none at all"
                raise ModelNotFound(
                    f"no worker has published a card for model {model!r} (models on this broker: {known}); "
                    f"check the name, or start: mqinfer worker --repository DIR --broker URL"
                )
            return self._cards[model]

    def _subscribe(self) -> None:
        with self._subscribing:
            if not self._subscribed:
                self._link.subscribe(self._topics.cards(), self._on_card)
                self._subscribed = True

    def _on_card(self, message: Message) -> None:
        try:
            model, card = read_card(self._topics, message.topic, message.payload)
        except MqinferError as error:
            self._ignored.add(message.topic, error)
            return
        with self._changed:
            if card:
                self._cards[model] = card
            else:  # an empty retained message takes the card back
                self._cards.pop(model, None)
            self._changed.notify_all()

"""What every client has: a requester that is connected and receives its replies, and the cards of the models."""

from __future__ import annotations

import os
import secrets
import threading
from dataclasses import replace

from mqinfer.broker.address import BrokerAddress, TlsOptions
from mqinfer.broker.connect import make_link, resolve
from mqinfer.broker.environment import Variable
from mqinfer.broker.link import ConnectionHandler, Link, Message
from mqinfer.broker.presence import make_client_id
from mqinfer.broker.process import Maker
from mqinfer.client.announcer import Announcer
from mqinfer.client.options import ClientOptions, check_timeout
from mqinfer.client.requester import Requester
from mqinfer.client.result import Ignored
from mqinfer.protocol.card import ModelCard, read_card
from mqinfer.protocol.errors import ConfigError, ModelNotFound, MqinferError, NameTaken
from mqinfer.protocol.states import ClientStatus
from mqinfer.protocol.topics import Topics, check_name

__all__ = ["CardShelf", "Unconnected", "address_of", "connect", "default_name", "random_name", "read_environment"]

_CARD_TIMEOUT_S = 5.0
_ADVICE = (
    "give this one a name of its own with --name, such as {name}.rear, which the rules of `mqinfer broker add` allow "
    "beside {name}, or end the other one with --take-over"
)


def random_name() -> str:
    """Return a client name that no other client has."""
    return f"client-{secrets.token_hex(6)}"


def address_of(url: str | BrokerAddress, tls: TlsOptions | None) -> BrokerAddress:
    """Return the address of a broker from what a caller states.

    Args:
        url: Such as `mqtts://host:8883`.
        tls: Certificates; None for the system's, and for those of an address.

    Raises:
        ConfigError: The URL has a fault, or is of an unencrypted connection and there are certificates.
    """
    if tls is None:
        return BrokerAddress.parse(url) if isinstance(url, str) else url
    if not isinstance(tls, TlsOptions):  # such as the path of a file
        raise TypeError(f"tls is {tls!r}; expected TlsOptions(ca_file=..., cert_file=..., key_file=...)")
    address = url
    if isinstance(address, str):
        address = BrokerAddress.parse(address, ca_file=tls.ca_file, cert_file=tls.cert_file, key_file=tls.key_file)
        if address.tls is None:
            raise ConfigError(f"broker URL: {address} is not encrypted, and tls is given; use mqtts:// or wss://")
    return replace(address, tls=tls)


def read_environment() -> tuple[BrokerAddress, str | None]:
    """Return the broker's address, and the client's name if there is one, from the environment; see `Variable`.

    Raises:
        ConfigError: There is no address, or it has a fault.
    """
    found = {variable: os.environ.get(variable) or None for variable in Variable}
    url = found[Variable.BROKER]
    if url is None:
        raise ConfigError(f"{Variable.BROKER} is not set; set it to the broker's URL, such as mqtt://host:1883")
    address = BrokerAddress.parse(
        url,
        ca_file=found[Variable.CA_FILE],
        cert_file=found[Variable.CERT_FILE],
        key_file=found[Variable.KEY_FILE],
        password_file=found[Variable.PASSWORD_FILE],
    )
    return address, found[Variable.NAME]


def default_name(address: BrokerAddress) -> str:
    """Return the name of a client that states none: that of its certificate or login, else a random one.

    Raises:
        ConfigError: The certificate can't be read.
    """
    return address.login_name or random_name()


class Unconnected:
    """A client that was not connected yet: `requester` accepts watchers, and `open` connects, which may be tried again.

    Args:
        url: The broker.
        name: The client's name in its topics; must be unique.
        topics: Below the root of the site.
        options: How it sends.
        announcer: Publishes the client's state; None for none.
        take_over: Whether another process that has the name must give it up.

    Raises:
        BadTopic: The name breaks the naming rules.
        ConfigError: The address is wrong, or the certificate can't be read.
    """

    def __init__(  # noqa: PLR0913 - what a client is
        self,
        url: str | BrokerAddress,
        name: str,
        topics: Topics | None = None,
        options: ClientOptions | None = None,
        *,
        announcer: Announcer | None = None,
        take_over: bool = False,
    ) -> None:
        check_name("client", name)
        address = resolve(url)
        presence = announcer.presence if announcer else None
        client_id, will = (presence.client_id, presence.will) if presence else (make_client_id(name), None)

        def make(on_connection: ConnectionHandler) -> Link:
            def tell(connected: bool) -> None:  # noqa: FBT001  the link's signature
                if connected and presence:
                    presence.publish()
                on_connection(connected)

            return make_link(address, client_id=client_id, will=will, on_connection=tell)

        self.requester = Requester(make, name, topics or Topics(), options or ClientOptions())
        if announcer:
            announcer.attach(self.requester)
        self._presence, self._take_over = presence, take_over

    def open(self, timeout: float) -> None:
        """Connect, take the name, and receive replies from then on; errors as of `connect`."""
        check_timeout(timeout)
        self.requester.open(timeout)
        if self._presence:
            self._presence.claim(_ADVICE.format(name=self.requester.name), take_over=self._take_over)
            self._presence.publish(ClientStatus.READY)


def connect(  # noqa: PLR0913 - what a client is
    url: str | BrokerAddress,
    name: str,
    topics: Topics | None = None,
    options: ClientOptions | None = None,
    *,
    timeout: float = 10.0,
    announcer: Announcer | None = None,
    take_over: bool = False,
) -> Requester:
    """Return a requester that is connected and receives its replies.

    Args:
        url: The broker.
        name: The client's name in its topics; must be unique.
        topics: Below the root of the site.
        options: How it sends.
        timeout: For the connection, in seconds.
        announcer: Publishes the client's state; None for none.
        take_over: Whether another process that has the name must give it up.

    Raises:
        BrokerUnreachable: No broker answers at the address.
        NotAuthorized: The broker refused the credentials.
        NameTaken: Another process has the name.
        NotConnected: The connection was lost before it was known who has the name.
        BadTopic: The name breaks the naming rules.
    """
    made = Unconnected(url, name, topics, options, announcer=announcer, take_over=take_over)
    try:
        made.open(timeout)
    except NameTaken:
        made.requester.close()  # cleanly, so that the broker publishes no will under the other's name
        raise
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

    def get(self, model: str, timeout: float | None = None) -> ModelCard:
        """Wait for a model's card.

        Args:
            model: Its name.
            timeout: In seconds; 0 to look once, None for 5.

        Raises:
            ModelNotFound: There was none in time; the message lists the models on this broker.
        """
        self._maker.check()
        timeout = _CARD_TIMEOUT_S if timeout is None else timeout
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

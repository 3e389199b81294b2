"""What every client has: a requester that is connected and receives its replies, and a live registry of the site."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import threading
import time
from dataclasses import replace

from mqinfer.broker.address import BrokerAddress, TlsOptions, Variable
from mqinfer.broker.connect import make_link, resolve
from mqinfer.broker.link import ConnectionHandler, Link, Message
from mqinfer.broker.presence import make_client_id
from mqinfer.broker.process import Maker
from mqinfer.client.announcer import ClientAnnouncer
from mqinfer.client.callbacks import Notifier
from mqinfer.client.options import ClientOptions, check_timeout
from mqinfer.client.requester import Requester
from mqinfer.client.result import Ignored
from mqinfer.protocol.card import ModelCard, read_card
from mqinfer.protocol.errors import ConfigError, LinkError, ModelNotFound, NameTaken, NotAuthorized
from mqinfer.protocol.states import ClientState, ProcessStatus, ServerState, WorkerState
from mqinfer.protocol.topics import Topics, check_name, instead_of

_log = logging.getLogger("mqinfer.client")
_CARD_TIMEOUT_S = 5.0
_QUIET_S = 2.0
"""Without a marker everything counts as known when nothing more has come for this long."""
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

    Arguments as of `connect`.

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
        announcer: ClientAnnouncer | None = None,
        take_over: bool = False,
        host: asyncio.AbstractEventLoop | None = None,
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

            return make_link(address, client_id=client_id, will=will, on_connection=tell, host=host)

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
            self._presence.publish(ProcessStatus.READY)


def connect(  # noqa: PLR0913 - what a client is
    url: str | BrokerAddress,
    name: str,
    topics: Topics | None = None,
    options: ClientOptions | None = None,
    *,
    timeout: float = 10.0,
    announcer: ClientAnnouncer | None = None,
    take_over: bool = False,
    host: asyncio.AbstractEventLoop | None = None,
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
        host: A loop that serves the connection, as of `PahoLink`; None for a thread of its own.

    Raises:
        BrokerUnreachable: No broker answers at the address.
        NotAuthorized: The broker refused the credentials.
        NameTaken: Another process has the name.
        NotConnected: The connection was lost before it was known who has the name.
        BadTopic: The name breaks the naming rules.
    """
    made = Unconnected(url, name, topics, options, announcer=announcer, take_over=take_over, host=host)
    try:
        made.open(timeout)
    except NameTaken:
        made.requester.close()  # cleanly, so that the broker publishes no will under the other's name
        raise
    except BaseException:
        made.requester.close(timeout=0.0)
        raise
    return made.requester


class LiveRegistry(Notifier):
    """Keeps a requester's registry up to date; collects the model cards from the first `get` on.

    Who waits is woken after each change of what is served or known, on the link's thread.

    Args:
        requester: Open.
        announcer: Of the requester; None where it has none.
    """

    def __init__(self, requester: Requester, announcer: ClientAnnouncer | None = None) -> None:
        super().__init__()
        self.known = requester.registry
        """What has come; readable from any thread."""
        self.watches_clients = False
        """Whether `follow` receives the states of clients, too; set it before."""
        self._presence = announcer.presence if announcer else None
        self._requester = requester
        self._maker = Maker("a client's collection of model cards")
        self._link, self._topics = requester.link, requester.topics
        self._bad_cards, self._bad_states = Ignored("a model card"), Ignored("a server's state")
        self._starting = threading.Lock()
        self._is_started = self._is_following = False
        self._marker = b""
        self._is_acked = False
        self._received_at = 0.0

    @property
    def is_complete(self) -> bool:
        """Whether everything is known that the broker keeps, and the link is up; False before `follow`."""
        if not self._link.connected:
            return False
        # Where access rules let no marker through, or a full queue dropped it, a pause stands in for it.
        return self.known.is_complete or (self._is_acked and time.monotonic() - self._received_at > _QUIET_S)

    def get(self, model: str, timeout: float | None = None) -> ModelCard:
        """Wait for a model's card.

        Args:
            model: Its name.
            timeout: In seconds; 0 to look once, None for 5.

        Raises:
            ModelNotFound: There was none in time; the message lists the models on this broker.
        """
        self.start()
        self.wait(lambda: self.known.card(model), _CARD_TIMEOUT_S if timeout is None else timeout, "card()")
        return self._card(model)

    async def wait_for(self, model: str, timeout: float | None = None) -> ModelCard:  # noqa: ASYNC109  as for `get`
        """Wait for a model's card in an asyncio loop; as `get` otherwise."""
        if not self._is_started:
            await asyncio.to_thread(self.start)
        await self.until(lambda: self.known.card(model), _CARD_TIMEOUT_S if timeout is None else timeout)
        return self._card(model)

    async def wait_until_complete(self) -> bool:
        """Wait until everything is known that the broker keeps, two seconds at most; return whether it is."""
        if not self._is_following:
            await asyncio.to_thread(self.follow)
        return self.is_complete or await self.until(lambda: self.is_complete, _QUIET_S + 0.1)

    def start(self) -> None:
        """Receive the cards from now on, if that has not begun.

        Raises:
            LinkError: The link is down, or the broker refuses the subscription.
        """
        self._maker.check()
        with self._starting:
            if not self._is_started:
                self._link.subscribe(self._topics.card.filter(), self._on_card)
                self._is_started = True

    def follow(self) -> None:
        """Receive cards, states of workers and of servers from now on, and find out when all have come.

        A message to the client's own state topic marks the end: of all topics that a client with access rules may
        publish on, it is the one that it may read, too. Nothing is retained there by it.

        Raises:
            LinkError: The link is down, or the broker refuses the cards or the workers' states.
        """
        self.start()
        with self._starting:
            if self._is_following:
                return
            if not self._requester.options.lanes:
                self._link.subscribe(self._topics.worker_state.filter(), self._on_worker)
            try:
                self._link.subscribe(self._topics.control_state.filter(), self._on_server)
                self._follow_clients()
            except NotAuthorized as error:  # the cards and workers are enough to serve
                _log.info("%s; what comes without it is used", error)
            self._is_following = True
        self.known.on_change = self.notify
        self._requester.watch(self._mark)
        self._mark()

    def _follow_clients(self) -> None:
        """Receive what comes on the client's own state topic, and on those of others where they are to be watched."""
        own = self._topics.client_state(self._requester.name)
        if self.watches_clients:
            if self._presence:
                self._link.unsubscribe(own)  # the filter for all covers it
            self._link.subscribe(self._topics.client_state.filter(), self._on_client)
        else:
            self._link.subscribe(own, self._on_client, retained=False)

    def _card(self, model: str) -> ModelCard:
        card = self.known.card(model)
        if card is None:
            known = instead_of(model, self.known.cards)
            raise ModelNotFound(
                f"no worker has published a card for model {model!r} (models on this broker: {known}); "
                f"check the name, or start: mqinfer worker --repository DIR --broker URL"
            )
        return card

    def _mark(self) -> None:
        """Publish a marker behind what the broker sends of itself, at each connection."""
        if not self._link.connected:
            self.notify()
            return
        self._marker, self._is_acked = secrets.token_bytes(16), False
        topic = self._topics.client_state(self._requester.name)
        try:
            self._link.publish(Message(topic, b"", correlation_data=self._marker), self._on_ack)
        except LinkError as error:
            _log.debug("not marked: %s; it is with the next connection", error)

    def _on_ack(self, _code: int) -> None:
        self._is_acked, self._received_at = True, time.monotonic()

    def _on_client(self, message: Message) -> None:
        if not len(message.payload) and message.correlation_data is not None:  # a marker: this client's, or another's
            if message.correlation_data == self._marker:
                self.known.finish()
            return
        if self._presence and message.topic == self._topics.client_state(self._requester.name):
            self._presence.receive(message)
        if found := self._bad_states.read(ClientState.read, self._topics, message):
            self.known.put_client(*found)
            self.notify()

    def _on_card(self, message: Message) -> None:
        self._received_at = time.monotonic()
        if found := self._bad_cards.read(read_card, self._topics, message):
            self.known.put_card(*found)
            self.notify()  # `on_change` is set with `follow` alone

    def _on_server(self, message: Message) -> None:
        if found := self._bad_states.read(ServerState.read, self._topics, message):
            self.known.put_server(*found)
            self.notify()

    def _on_worker(self, message: Message) -> None:
        if found := self._bad_states.read(WorkerState.read, self._topics, message):
            self.known.put_worker(*found)

"""The model cards that workers keep on the broker, retained."""

from __future__ import annotations

import threading

from mqinfer.broker.link import Link, Message
from mqinfer.broker.process import Maker
from mqinfer.client.result import Ignored
from mqinfer.protocol.card import ModelCard, read_card
from mqinfer.protocol.errors import ModelNotFound, MqinferError
from mqinfer.protocol.topics import Topics

__all__ = ["CardShelf"]


class CardShelf:
    """Collects the cards from the first `get` on."""

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

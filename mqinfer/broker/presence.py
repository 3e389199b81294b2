"""Sees to it that a name is one process's alone: of two that share it, the one that started first gives way.

Two workers of one name would both run what comes over its lane, two edges would get each other's results. Both publish
their state on the name's own state topic, each with a boot number, and both listen there: so each hears of the other,
and the smaller number gives way for good. Their connections have different client ids, since under a common one the
broker would throw out whoever is there, and both would come back for ever (Mosquitto 2.0 does not tell the reason).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from mqinfer.broker.link import Link, Message
from mqinfer.protocol.errors import MqinferError, NameTaken, NotAuthorized
from mqinfer.protocol.states import read_incarnation

__all__ = ["NameGuard", "boot_number", "connection_id"]

_log = logging.getLogger("mqinfer.broker")


def boot_number() -> int:
    """Draw the number of a process's start: microseconds since 1970, so that a later start has a larger one."""
    return time.time_ns() // 1000


def connection_id(name: str, boot: int) -> str:
    """Make the MQTT client id of a name's holder, which it keeps: so a reconnect ends its own dead connection."""
    return f"{name}~{boot:x}"


class NameGuard:
    """One holder of a name.

    Args:
        name: The name.
        boot: The number of this process's start.
        announce: Publishes this process's state again; called on the link's thread.
        give_way: Called once on the link's thread when somebody who started later has the name.
    """

    def __init__(
        self,
        name: str,
        boot: int,
        announce: Callable[[], None],
        give_way: Callable[[NameTaken], None] = lambda _: None,
    ) -> None:
        self._name = name
        self._boot = boot
        self._announce = announce
        self._give_way = give_way
        self.failure: NameTaken | None = None

    def watch(self, link: Link, topic: str) -> None:
        """Listen to the name's state topic."""
        try:
            link.subscribe(topic, self.heard)
        except NotAuthorized as error:
            _log.info("%s; a second process that is called %s is not noticed", error, self._name)

    def heard(self, message: Message) -> None:
        """Take in a state that was published under the name; a retained one may be that of a process long gone."""
        if message.retain or self.failure is not None:
            return
        try:
            boot, status = read_incarnation(message.payload)
        except MqinferError as error:
            _log.warning("ignored what %s is said to have published on %s: %s", self._name, message.topic, error)
            return
        if boot == self._boot:
            return
        if boot > self._boot and status == "ready":
            self.failure = NameTaken(
                f"another process that is called {self._name!r} has started; give each its own name (--name)"
            )
            self._give_way(self.failure)
        else:  # the will or the last word of a forerunner, or an elder that will give way when it hears of this one
            self._announce()

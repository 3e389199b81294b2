"""Which of a broker's addresses a link connects to, and the way back from a standby.

The brokers know nothing of each other, and a link keeps nothing in a broker: each connection starts clean, subscribes
again, and `on_connection` has states, cards and open requests published again. So a standby needs no more than the same
logins. What it takes is that the processes of a site meet at one broker:

- Each connection is sought from the first address on, so all that reach the first broker are there.
- A link to a standby looks at the earlier addresses every `LOOK_S`, and leaves when one of them answers. The looks
  start at multiples of `LOOK_S` of the clock, so that processes whose clocks agree leave together.

A process that never reaches the first broker stays at the standby, and logs so.
"""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from mqinfer.broker.address import BrokerAddress
from mqinfer.broker.paho.connecting import ConnectionClosed, Identity
from mqinfer.broker.paho.session import Session
from mqinfer.broker.routes import Routes
from mqinfer.protocol.errors import BrokerUnreachable, LinkError, NotAuthorized

LOOK_S = 2.0
"""Interval of the looks at earlier addresses: about as long the processes of a site may be at different brokers."""
_PATIENCE_S = 2.0  # how long an earlier address may take, for TCP, TLS, websockets and the CONNACK each


class Returning(BrokerUnreachable):
    """The link has left a standby, since an earlier address answers again."""


class Turns:
    """Which address is tried next: pure.

    Args:
        identity: Who connects where.
    """

    def __init__(self, identity: Identity) -> None:
        self._each = [replace(identity, address=address) for address in identity.address.each]
        self._errors: list[LinkError] = []  # of the addresses of this round

    @property
    def current(self) -> Identity:
        """Who connects where, now."""
        return self._each[len(self._errors)]

    @property
    def earlier(self) -> list[Identity]:
        """Those that come before the current one, and did not answer."""
        return self._each[: len(self._errors)]

    @property
    def left(self) -> int:
        """Addresses that this round has left to try, the current one among them."""
        return len(self._each) - len(self._errors)

    @property
    def has_standbys(self) -> bool:
        """Whether there is more than one address."""
        return len(self._each) > 1

    def failed(self, error: LinkError) -> LinkError:
        """Pass on to the next address; after the last one the next round begins.

        Args:
            error: What made the current address fail.

        Returns:
            The error of all addresses that were tried in this round.
        """
        self._errors.append(error)
        errors = list(self._errors)
        if len(errors) == len(self._each):
            self.restart()
        return error if len(errors) == 1 else _joined(errors)

    def restart(self) -> None:
        """Begin with the first address again."""
        self._errors.clear()


def _joined(errors: Sequence[LinkError]) -> LinkError:
    """Return one error for several addresses: a final one only where none of them may fare better next time."""
    kinds = {type(error) for error in errors}
    kind = ConnectionClosed if ConnectionClosed in kinds else BrokerUnreachable
    return (NotAuthorized if kinds == {NotAuthorized} else kind)("; ".join(map(str, errors)))


class Lookout:
    """Looks, on a thread of its own, whether one of some addresses answers, until it does or `close`.

    Attributes:
        found: The address that answers.

    Args:
        identities: Who asks where.
        on_answer: Called once, on the thread.
    """

    def __init__(self, identities: Sequence[Identity], on_answer: Callable[[], object]) -> None:
        self.found: BrokerAddress | None = None
        self._identities, self._on_answer = identities, on_answer
        self._stopping = threading.Event()
        name = f"mqinfer-look-{identities[0].client_id}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the looks; one that has begun goes on for as long as an address may take."""
        self._stopping.set()

    def close(self) -> None:
        """End the looks, and join the thread."""
        self.stop()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(LOOK_S - time.time() % LOOK_S):
            for identity in self._identities:
                if answers(identity) and not self._stopping.is_set():
                    self.found = identity.address
                    self._on_answer()
                    return


def answers(identity: Identity) -> bool:
    """Return whether a broker answers: with MQTT, since a port may be open whose broker has stopped.

    A login that it refuses is an answer too: at the first address a link then gives up, as without a standby.

    Args:
        identity: Who asks where. The client id is the link's own: where two addresses lead to one broker, the link's
            connection ends, and its next one is to the earlier address.
    """
    session = Session(replace(identity, will=None), Routes(), version5=True)
    try:
        session.dial(_PATIENCE_S)
        end = time.monotonic() + _PATIENCE_S
        while session.alive and not session.accepted and (left := end - time.monotonic()) > 0:
            session.write()
            select.select([session], [], [], min(left, 0.1))
            session.client.read()
        if session.accepted:
            session.leave()
            session.write()
    except NotAuthorized:
        return True
    except (LinkError, OSError, ValueError):  # ValueError: from `select`, of a socket that is gone
        return False
    finally:
        session.end()
    return session.accepted or session.version_refused or isinstance(session.error, NotAuthorized)

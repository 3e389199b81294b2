"""`mqinfer worker --autoscale 1..8`: the number of a model's processes follows what waits for it.

Several servers may scale the same model. Each takes the part of what the site needs that it has of the site's processes
now, so that they neither all answer the same need nor wait for each other.
"""

from __future__ import annotations

import logging
import math
import re
import time
from dataclasses import dataclass

from mqinfer.client.registry import Registry
from mqinfer.cloud_worker.supervision.management import Management
from mqinfer.cloud_worker.supervision.planning import is_process_of
from mqinfer.metrics.lag import Lag, lag
from mqinfer.metrics.scaling import SiteScaler
from mqinfer.protocol.errors import ConfigError

log = logging.getLogger("mqinfer.cloud_worker")
_MOST = 1000


@dataclass(frozen=True, slots=True)
class Bounds:
    """How many processes of each version of a model there may be on a server."""

    least: int
    most: int

    @classmethod
    def parse(cls, text: str) -> Bounds:
        """Read `1..8`.

        Raises:
            ConfigError: It is something else, or the second number is 0, above 1,000 or below the first.
        """
        found = re.fullmatch(r"([0-9]{1,4})\.\.([0-9]{1,4})", text)
        least, most = map(int, found.groups()) if found else (1, 0)
        if not 0 < most <= _MOST or least > most:
            raise ConfigError(f"--autoscale {text[:40]!r}: expected two numbers up to {_MOST}, such as 1..8 or 0..8")
        return cls(least, most)

    def share(self, wanted: int, own: int, others: int) -> int:
        """Return how many processes a server has for its part of what the site needs.

        Args:
            wanted: Processes that the site needs.
            own: Those of this server now.
            others: Those of other servers that are ready.
        """
        part = math.ceil(own * wanted / (own + others)) if own else wanted - others
        return max(self.least, min(self.most, part))


class Autoscaler:
    """Scales the models of one server. Not thread-safe: the control thread calls it."""

    def __init__(self, bounds: Bounds, server: str, management: Management, known: Registry) -> None:
        """Begin with nothing known of any load.

        Args:
            bounds: For each model.
            server: Name of the server, which its processes' names begin with.
            management: Of the server.
            known: What the broker keeps, with the states of clients.
        """
        self._bounds, self._server, self._management, self._known = bounds, server, management, known
        self._site = SiteScaler()

    def look(self) -> None:
        """Read what waits for each model, and start or drain processes; nothing without a connection."""
        if not self._known.is_complete:
            return
        now = time.monotonic()
        lags = lag(self._known, now)
        needed = self._site.update(self._known, lags, now)
        for model, count in self._management.counts.items():
            self._scale(model, count, needed.get(model, 0), lags.get(model, Lag()))

    def _scale(self, model: str, count: int, needed: int, waits: Lag) -> None:
        if self._known.card(model) is None:  # it has never served: clients know nothing of it
            needed = max(needed, count)
        wanted = self._bounds.share(needed, count, waits.workers - self._ready(model))
        if wanted != count:
            log.info("%s: %d processes instead of %d; %d requests wait", model, wanted, count, waits.pending)
        self._management.scale(model, wanted)

    def _ready(self, model: str) -> int:
        """Return how many processes of this server, of all versions, are ready for a model."""
        return sum(is_process_of(self._server, state.worker) for state in self._known.models.ready_workers(model))

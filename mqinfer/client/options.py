"""What a user may set about a client; the defaults suit most."""

from __future__ import annotations

from dataclasses import dataclass

from mqinfer.protocol.errors import ConfigError
from mqinfer.protocol.limits import DEFAULT_LIMITS, Limits

LONGEST_TIMEOUT_S = 1e6

NAME_HINT = "where access rules apply, its name (--name) must be that of its certificate or login"


@dataclass(frozen=True, slots=True)
class Silence:
    """When a worker's silence means something. Times in seconds; factors multiply the expected time of a reply.

    Attributes:
        doubt: Least silence after which a worker gets nothing more; the limit is `max(doubt, doubt_factor * expected)`.
        doubt_factor: The same, as a factor.
        attempt: Least silence after which a request is sent to another worker.
        attempt_factor: The same, as a factor.
        attempt_shared: Least silence on a model's channel, where no worker is known to have the request.
        attempt_unknown: The silence where the worker has not reported how long a request takes.
        quarantine: How long a worker that let a request time out gets nothing, and then one request at a time until it
            replies; doubled each time.
        quarantine_most: The longest quarantine.
    """

    doubt: float = 0.05
    doubt_factor: float = 3.0
    attempt: float = 1.0
    attempt_factor: float = 3.0
    attempt_shared: float = 3.0
    attempt_unknown: float = 10.0
    quarantine: float = 1.0
    quarantine_most: float = 30.0


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """How a client sends its requests. Times in seconds.

    Attributes:
        timeout: Of each request, unless the call states another one: the result or the error comes no later.
        window: Requests in flight at a time; more are queued in the client.
        max_pending: Requests without an outcome at a time; `submit` blocks while there are as many.
        patience: How long a request that finds no worker, or only busy ones, is sent again.
        settling: Time after a reconnection during which patience does not end: workers need time to reconnect, too.
        backoff: Pause before such a request is sent again the first time; doubled each time, at most one second.
        lanes: Whether the client chooses the worker of each request; False: it publishes on the model's channel, and
            the broker deals the requests to the workers in turn.
        limits: Bounds of what a reply may contain.
        silence: When a worker's silence means something.
        shed: Whether a request ends at once where the model's own `max_queue_size` is reached at each worker with room
            for it; otherwise it is sent again as to any busy worker.
    """

    timeout: float = 10.0
    window: int = 16
    max_pending: int = 1024
    patience: float = 2.0
    settling: float = 6.0
    backoff: float = 0.02
    lanes: bool = True
    limits: Limits = DEFAULT_LIMITS
    silence: Silence = Silence()
    shed: bool = False

    def __post_init__(self) -> None:
        check_timeout(self.timeout)
        for name, least in (("window", 1), ("max_pending", 1), ("patience", 0), ("settling", 0), ("backoff", 0)):
            if not getattr(self, name) >= least:  # also catches NaN
                raise ConfigError(f"ClientOptions: {name} is {getattr(self, name)}; expected {least} or more")


def check_timeout(timeout: float) -> float:
    """Return a timeout if it is possible.

    Raises:
        ConfigError: It is 0, negative, above 1,000,000 s, or NaN.
    """
    if 0 < timeout <= LONGEST_TIMEOUT_S:
        return timeout
    raise ConfigError(
        f"a timeout of {timeout} s is not possible; expected more than 0 and at most {LONGEST_TIMEOUT_S:.0f} s, or "
        "None for the default"
    )

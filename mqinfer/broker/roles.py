"""Roles: what a client is, and which topics it may publish and read. Each engine writes these rules in its own form.

What is not granted is refused. The rules name each client and each of its processes: patterns for the own name, as
Mosquitto has them, would hold for every client, and a dashboard could then send requests.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from enum import StrEnum

from mqinfer.protocol.control import OF_EDGES, Operation
from mqinfer.protocol.errors import ConfigError
from mqinfer.protocol.topics import CONTROL, ENTITIES, EVERY_SERVER, Topics, check_name, entity_topic, is_name

DEFAULT_PROCESSES = 64
"""Processes that a worker's rules allow for: instances, of all models, counting both versions during a swap."""

DEFAULT_GATEWAY_PROCESSES = 8
"""Processes that a gateway's rules allow for."""

DEFAULT_SUBS = ("front", "rear", "left", "right")
"""Sub-names of a vehicle: beside `car-1` its rules allow `car-1.front` and so on, one for each of its processes.

A wildcard of MQTT stands for a whole level of a topic, so the rules have to list each name.
"""

BROKER = "broker"
"""Stands for the broker's own certificate among those of the clients, so no client may have this name."""

_MOST_PROCESSES = 10_000
_SUB = re.compile(r"[a-z0-9_-]{1,32}")
_NUMBERED = re.compile(r".*\.[0-9]+")


class Role(StrEnum):
    """What a client is."""

    VEHICLE = "vehicle"
    WORKER = "worker"
    DASHBOARD = "dashboard"
    OPERATOR = "operator"
    GATEWAY = "gateway"
    BRIDGE = "bridge"
    """A bridge at the site's broker, where it stands for the far workers."""
    SITE = "site"
    """A bridge at the workers' broker, where it stands for the clients of a site."""


def access_rules(  # noqa: PLR0913 - the choices that a client's owner has
    role: Role,
    name: str,
    topics: Topics,
    processes: int | None = None,
    subs: Sequence[str] = DEFAULT_SUBS,
    *,
    homeassistant: bool = False,
) -> list[str]:
    """List a client's rules, each as `read FILTER`, `write FILTER` or `readwrite FILTER`.

    Those that most messages need come first: Mosquitto goes through them one by one.

    Args:
        role: What the client is.
        name: Its user name, which is its name in topics too; processes of a worker, and several ones of a gateway, are
            called `NAME.0`, `NAME.1`, …
        topics: The site's.
        processes: Of a worker or a gateway; None for as many as usual.
        subs: Sub-names of a vehicle: it may also be called `NAME.SUB` with each of them.
        homeassistant: Whether a vehicle may introduce its streams to Home Assistant.

    Raises:
        BadTopic: The name breaks the rules for names.
        ConfigError: A client of the role can't have this name, or so many processes; a sub-name or the root is wrong.
    """
    _check_name(role, name)
    _check_root(topics.root)
    if role is Role.WORKER:
        own = _processes(role, name, DEFAULT_PROCESSES if processes is None else processes)
        return list(_worker(name, topics.root, own))
    if role is Role.GATEWAY:
        own = _processes(role, name, DEFAULT_GATEWAY_PROCESSES if processes is None else processes)
        return list(_gateway([name, *(own if len(own) > 1 else ())], topics.root))
    if role is Role.VEHICLE:
        wanted = [sub for sub in dict.fromkeys(subs) if sub not in DEFAULT_SUBS or is_name(f"{name}.{sub}")]
        return list(_vehicle(name, topics.root, [_check_sub(name, sub) for sub in wanted], homeassistant))
    return list(_RULES[role](name, topics.root))


def _check_name(role: Role, name: str) -> None:
    check_name("client", name)
    if name == BROKER:
        raise ConfigError(f"client name {name!r} is reserved for the broker's own certificate; choose another one")
    if role is Role.OPERATOR and name == "state":
        raise ConfigError(
            "operator name 'state' is reserved for a server's state in control topics; choose another one"
        )


def _check_root(root: str) -> None:
    if not root.isprintable() or root.startswith(" "):
        raise ConfigError(
            f"topic root {root!r} can't stand in access rules; choose one of printable characters that does not begin "
            "with a space"
        )


def _processes(role: Role, name: str, count: int) -> list[str]:
    """Return the names of the processes of a worker or a gateway."""
    if name == EVERY_SERVER or _NUMBERED.fullmatch(name):
        raise ConfigError(
            f"{role} name {name!r} is reserved; choose one that is not {EVERY_SERVER!r} and has no number "
            "behind its last dot"
        )
    if not 1 <= count <= _MOST_PROCESSES:
        raise ConfigError(f"{count} processes of a {role}; expected 1 to {_MOST_PROCESSES}")
    check_name(role, f"{name}.{count - 1}")
    return [f"{name}.{number}" for number in range(count)]


def _check_sub(name: str, sub: str) -> str:
    if not _SUB.fullmatch(sub):
        raise ConfigError(f"sub-name {sub[:80]!r}: expected 1 to 32 lower-case letters, digits, '_' or '-'")
    return check_name("client", f"{name}.{sub}")


def _vehicle(name: str, root: str, subs: Sequence[str], homeassistant: bool) -> Iterator[str]:  # noqa: FBT001
    yield from _driving(name, root)
    yield f"read {root}/workers/+/state"
    yield f"read {root}/models/+/card"
    for sub in subs:
        yield from _driving(sub, root)
    if homeassistant:
        yield from (f"write {entity_topic(kind, each, '+')}" for each in (name, *subs) for kind in ENTITIES)


def _driving(name: str, root: str) -> Iterator[str]:
    yield from _asking(name, root)
    yield from (f"read {root}/{CONTROL}/{name}/+/{each}" for each in OF_EDGES)
    yield f"write {root}/clients/{name}/{CONTROL}/+"
    yield f"write {root}/clients/{name}/preview/+"
    yield f"readwrite {root}/answers/+/{name}/+"
    yield f"write {root}/presence/+/{name}/+/+/+"
    yield f"write {root}/overlays/+/{name}/+"


def _asking(name: str, root: str) -> Iterator[str]:
    yield f"write {root}/workers/+/infer/+/{name}"
    yield f"write {root}/models/+/infer/{name}"
    yield f"write {root}/models/+/versions/+/infer/{name}"
    yield f"read {root}/results/+/{name}/+"
    yield f"write {root}/models/+/cancel/{name}"
    yield f"readwrite {root}/clients/{name}/state"


def _worker(name: str, root: str, own: Sequence[str]) -> Iterator[str]:
    yield f"write {root}/results/+/+/+"
    yield f"write {root}/answers/+/+/+"
    yield f"read {root}/models/+/infer/+"
    yield f"read {root}/models/+/versions/+/infer/+"
    yield f"read {root}/models/+/cancel/+"
    yield f"readwrite {root}/models/+/card"
    yield from (f"read {root}/workers/{worker}/infer/+/+" for worker in own)
    yield from (f"readwrite {root}/workers/{worker}/state" for worker in own)
    yield f"read {root}/workers/+/state"
    yield f"read {root}/clients/+/state"
    yield f"read {root}/{CONTROL}/{name}/#"
    yield f"read {root}/{CONTROL}/{EVERY_SERVER}/#"
    yield f"write {root}/{CONTROL}/{name}/state"
    for worker in own:  # it asks itself at the start, to see whether it may read requests, and others for an ensemble
        yield from _asking(worker, root)


def _dashboard(_: str, root: str) -> Iterator[str]:
    """List what a dashboard reads; it writes nothing, since its login lies on screens that many people pass by."""
    yield f"read {root}/results/+/+/+"
    yield f"read {root}/clients/+/preview/+"
    yield f"read {root}/answers/+/+/+"
    yield f"read {root}/presence/+/+/+/+/+"
    yield f"read {root}/overlays/+/+/+"
    yield f"read {root}/workers/+/state"
    yield f"read {root}/clients/+/state"
    yield f"read {root}/{CONTROL}/+/state"
    yield f"read {root}/models/+/card"


def _operator(name: str, root: str) -> Iterator[str]:
    yield f"write {root}/{CONTROL}/+/{name}/#"
    yield from _asking(name, root)
    yield f"read {root}/clients/+/{CONTROL}/+"
    yield f"read {root}/{CONTROL}/+/state"
    yield f"read {root}/workers/+/state"
    yield f"read {root}/clients/+/state"
    yield f"read {root}/models/+/card"


def _gateway(names: Sequence[str], root: str) -> Iterator[str]:
    for name in names:
        yield from _asking(name, root)
    yield f"read {root}/{CONTROL}/+/state"
    yield f"read {root}/workers/+/state"
    yield f"read {root}/clients/+/state"
    yield f"read {root}/models/+/card"
    for name in names:
        yield from (f"write {root}/{CONTROL}/+/{name}/{path}" for path in (*_QUESTIONS, *_OF_MODELS))


def _bridge(_: str, root: str) -> Iterator[str]:
    """List what stands for all far workers and servers needs, whose names the rules can't know."""
    yield f"write {root}/results/+/+/+"
    yield f"write {root}/answers/+/+/+"
    yield from (f"read {root}/{each}" for each in _REQUESTS)
    yield f"read {root}/clients/+/preview/+"
    yield f"read {root}/clients/+/{CONTROL}/+"
    yield f"read {root}/{CONTROL}/+/+/+/#"
    yield from (f"write {root}/{CONTROL}/+/+/{each}" for each in OF_EDGES)
    yield f"readwrite {root}/workers/+/state"
    yield f"readwrite {root}/{CONTROL}/+/state"
    yield f"readwrite {root}/models/+/card"
    yield f"read {root}/clients/+/state"


def _site(_: str, root: str) -> Iterator[str]:
    """List what stands for all clients of a site needs, whose names the rules can't know."""
    yield from (f"write {root}/{each}" for each in _REQUESTS)
    yield f"read {root}/results/+/+/+"
    yield f"read {root}/answers/+/+/+"
    yield f"write {root}/clients/+/preview/+"
    yield f"write {root}/clients/+/{CONTROL}/+"
    yield f"write {root}/{CONTROL}/+/+/+/#"
    yield from (f"read {root}/{CONTROL}/+/+/{each}" for each in OF_EDGES)
    yield f"readwrite {root}/clients/+/state"
    yield f"read {root}/workers/+/state"
    yield f"read {root}/{CONTROL}/+/state"
    yield f"read {root}/models/+/card"


_REQUESTS = (
    "workers/+/infer/+/+",
    "models/+/infer/+",
    "models/+/versions/+/infer/+",
    "models/+/cancel/+",
)
_RULES = {Role.DASHBOARD: _dashboard, Role.OPERATOR: _operator, Role.BRIDGE: _bridge, Role.SITE: _site}
_STATS = Operation.STATS.format(model="+")
# What a gateway may ask servers: what they serve, how often and how fast, and what each model and version of it is.
# None of it changes anything.
_QUESTIONS = (Operation.INDEX, Operation.ALL_STATS, _STATS, _STATS.replace("/+/", "/+/versions/+/"))
_OF_MODELS = tuple(
    operation.format(model=model)
    for operation in (Operation.METADATA, Operation.CONFIG)
    for model in ("+", "+/versions/+")
)

"""Mosquitto's access rules: which role may publish and read what, and the file that holds the rules.

The file has one section a client, by user name; there are no rules for others, so what is not granted is refused.
`%u` patterns would be shorter, but they hold for every user: a dashboard could then send requests in its own name.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from mqinfer.protocol.control import Operation
from mqinfer.protocol.errors import ConfigError
from mqinfer.protocol.topics import CONTROL, DEFAULT_ROOT, EVERY_SERVER, Topics, check_name, is_name

GUARD = "GUARD"
"""User name of the guard of `mqinfer broker`; the names of clients have no capitals, so none of them can have it."""

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
_HEAD = """\
# Access rules for Mosquitto (acl_file), written by `mqinfer broker add` and `mqinfer broker remove`.
# A client without a section, and everything that a section does not name, is refused.
"""
# Only what was written is removed: lines added by hand behind a section stay.
_SECTION = re.compile(
    r"^# --- (?P<role>[a-z]+) (?P<name>[^ \n]+) ---\nuser (?P=name)\n(?:topic .*\n)*\n?", re.MULTILINE
)
_NAMES = re.compile(r"^topic readwrite \S.*/clients/(?P<name>[^/\n]+)/state$", re.MULTILINE)
_ROOT = re.compile(r"^topic \w+ (?P<root>\S.*)/models/\+/card$", re.MULTILINE)
_PROCESS = re.compile(r"topic read .*/(?:workers/([^/]+)/infer/\+/\+|results/\+/([^/]+\.[0-9]+)/\+)")
_CONNECTIONS, _BRIDGED = 16, 1024
_SWEPT = (
    "models/+/infer/+",
    "models/+/versions/+/infer/+",
    "workers/+/infer/+/+",
    "models/+/cancel/+",
    "control/+/+/#",
    "results/+/+/+",
    "clients/+/control/+",
    "clients/+/preview/+",
    "answers/+/+/+",
    "overlays/+/+/+",
)
_WATCHED = ("clients/+/state", "workers/+/state", "models/+/card", "presence/+/+/+/+/+")


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


def access_rules(
    role: Role, name: str, topics: Topics, processes: int | None = None, subs: Sequence[str] = DEFAULT_SUBS
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

    Raises:
        BadTopic: The name breaks the rules for names.
        ConfigError: A client of the role can't have this name, or so many processes; or a sub-name is wrong.
    """
    _check_name(role, name)
    if role is Role.WORKER:
        own = _processes(role, name, DEFAULT_PROCESSES if processes is None else processes)
        return list(_worker(name, topics.root, own))
    if role is Role.GATEWAY:
        own = _processes(role, name, DEFAULT_GATEWAY_PROCESSES if processes is None else processes)
        return list(_gateway([name, *(own if len(own) > 1 else ())], topics.root))
    if role is Role.VEHICLE:
        wanted = [sub for sub in dict.fromkeys(subs) if sub not in DEFAULT_SUBS or is_name(f"{name}.{sub}")]
        return list(_vehicle(name, topics.root, [_check_sub(name, sub) for sub in wanted]))
    return list(_RULES[role](name, topics.root))


def _check_name(role: Role, name: str) -> None:
    check_name("client", name)
    if name == BROKER:
        raise ConfigError(f"client name {name!r} is reserved for the broker's own certificate; choose another one")
    if role is Role.OPERATOR and name == "state":
        raise ConfigError(
            "operator name 'state' is reserved for a server's state in control topics; choose another one"
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


def _vehicle(name: str, root: str, subs: Sequence[str]) -> Iterator[str]:
    yield from _driving(name, root)
    yield f"read {root}/workers/+/state"
    yield f"read {root}/models/+/card"
    for sub in subs:
        yield from _driving(sub, root)


def _driving(name: str, root: str) -> Iterator[str]:
    yield from _asking(name, root)
    yield f"read {root}/{CONTROL}/{name}/+/{Operation.CASCADE}"
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
    yield f"write {root}/{CONTROL}/+/+/{Operation.CASCADE}"
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
    yield f"read {root}/{CONTROL}/+/+/{Operation.CASCADE}"
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


def sections(text: str) -> dict[str, str]:
    """Return the role of each client that an access file has a section for."""
    return {found["name"]: found["role"] for found in _SECTION.finditer(text)}


def names_of(text: str) -> dict[str, str]:
    """Return by name the client of an access file that may use it in topics: its own, and a vehicle's sub-names."""
    found = {name: user["name"] for user in _SECTION.finditer(text) for name in _NAMES.findall(user[0])}
    return found | {name: name for name in sections(text)}


def role_of(text: str, name: str) -> str | None:
    """Return the role of one client, or None if the access file has no section for it."""
    return sections(text).get(name)


def put_section(text: str, role: Role, name: str, rules: list[str]) -> str:
    """Return an access file's text with a section for a client, which replaces an older one."""
    lines = "".join(f"topic {rule}\n" for rule in rules)
    return (without_section(text, name) or _HEAD).rstrip("\n") + f"\n\n# --- {role} {name} ---\nuser {name}\n{lines}"


def without_section(text: str, name: str) -> str:
    """Return an access file's text without a client's section."""
    return _SECTION.sub(lambda found: "" if found["name"] == name else found[0], text)


@dataclass(frozen=True, slots=True)
class GuardedFilters:
    """What the guard looks at.

    Attributes:
        swept: Filters under which nothing may be retained, but for servers' states.
        watched: Filters of what may be retained.
    """

    swept: tuple[str, ...]
    watched: tuple[str, ...]


def guarded_filters(text: str) -> GuardedFilters:
    """Return what the guard looks at: the topics below each root that an access file has."""
    roots = sorted({found["root"] for found in _ROOT.finditer(text)}) or [DEFAULT_ROOT]
    return GuardedFilters(
        tuple(f"{root}/{path}" for root in roots for path in _SWEPT),
        tuple(f"{root}/{path}" for root in roots for path in _WATCHED),
    )


def guarded_rules(text: str, suspended: Container[str]) -> str:
    """Return an access file's text with the guard's section, and without the rules of users that are suspended."""
    kept = [line for user, line in _by_user(text) if user not in suspended or not line.startswith("topic")]
    filters = guarded_filters(text)
    own = [f"topic readwrite {each}" for each in (*filters.swept, *filters.watched)]
    return "\n".join([*kept, f"user {GUARD}", *own, ""])


def most_connections(text: str) -> dict[str, int]:
    """Return how many connections and sessions each user of an access file may have: 16, and 2 for each process.

    A bridge has 1040, which is for four with 256 far workers each.
    """
    processes: dict[str, set[str]] = {}
    for user, line in _by_user(text):
        if user is not None:
            found = _PROCESS.fullmatch(line)
            processes.setdefault(user, set()).update(filter(None, found.groups() if found else ()))
    return {user: _CONNECTIONS + (_BRIDGED if "+" in names else 2 * len(names)) for user, names in processes.items()}


def _by_user(text: str) -> Iterator[tuple[str | None, str]]:
    """List the lines of an access file, each with the user that it is about."""
    user = None
    for line in text.splitlines():
        if line.startswith("user "):
            user = line.removeprefix("user ").strip()
        yield user, line

"""The file of access rules, in the form that Mosquitto reads; other engines read it too.

It has one section a client, by user name; there are no rules for others, so what is not granted is refused.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator
from dataclasses import dataclass

from mqinfer.broker.roles import Role
from mqinfer.protocol.topics import DEFAULT_ROOT

GUARD = "GUARD"
"""User name of the guard of `mqinfer broker`; the names of clients have no capitals, so none of them can have it."""

_HEAD = """\
# Access rules for Mosquitto (acl_file), written by `mqinfer broker add` and `mqinfer broker remove`.
# A client without a section, and everything that a section does not name, is refused.
"""
# Only what was written is removed: lines added by hand behind a section stay.
_SECTION = re.compile(
    r"^# --- (?P<role>[a-z]+) (?P<name>[^ \n]+) ---\nuser (?P=name)\n(?:topic .*\n)*\n?", re.MULTILINE
)
_NAMES = re.compile(r"^topic readwrite \S.*/clients/(?P<name>[^/+\n]+)/state$", re.MULTILINE)
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


def rules_of(text: str) -> dict[str, list[str]]:
    """Return the rules of each user of an access file, as `access_rules` lists them, and those written by hand."""
    found: dict[str, list[str]] = {}
    for user, line in _by_user(text):
        if user is not None:
            rules = found.setdefault(user, [])
            kind, *rule = line.split(maxsplit=2) or [""]
            if kind == "topic":
                rules.append(" ".join(rule))
    return found

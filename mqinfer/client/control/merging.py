"""One answer of many servers' replies. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mqinfer.client.control.question import ControlReply
from mqinfer.protocol.control import IndexEntry, ModelState, ModelStatistics
from mqinfer.protocol.decoding import check
from mqinfer.protocol.errors import BadEnvelope

_RANK = (ModelState.READY, ModelState.LOADING, ModelState.UNLOADING, ModelState.UNAVAILABLE)
"""States of a model version, the one that holds first: what one of several servers serves is served."""

_LONGEST = 20
"""Versions have fewer digits; longer ones sort as text."""


def merge_index(replies: Sequence[ControlReply]) -> list[IndexEntry]:
    """Return the index of all servers' repositories, sorted: one entry a model version.

    A folder without a version that could be served is left out where another server has versions of it.

    Raises:
        BadEnvelope: A reply is no index.
    """
    best: dict[tuple[str, str], IndexEntry] = {}
    for reply in replies:
        if not isinstance(reply.content, list):
            raise BadEnvelope(f"index of server {reply.server}: expected an array")
        for record in reply.content:
            entry = check(record, IndexEntry, f"index of server {reply.server}")
            other = best.setdefault((entry.name, entry.version), entry)
            if _RANK.index(entry.state) < _RANK.index(other.state):
                best[entry.name, entry.version] = entry
    named = {name for name, version in best if version}
    return [best[key] for key in sorted(best, key=_order) if key[1] or key[0] not in named]


def merge_statistics(replies: Sequence[ControlReply]) -> list[dict[str, Any]]:
    """Return the entries of `model_stats`, one a model version, summed over the servers.

    Raises:
        BadEnvelope: A reply has no statistics.
    """
    sums: dict[tuple[str, str], ModelStatistics] = {}
    for reply in replies:
        records = reply.content.get("model_stats") if isinstance(reply.content, dict) else None
        if not isinstance(records, list):
            raise BadEnvelope(f"statistics of server {reply.server}: expected an object with 'model_stats'")
        for record in records:
            key, found = ModelStatistics.from_record(record)
            sums[key] = sums[key] + found if key in sums else found
    return [sums[key].to_record(*key) for key in sorted(sums, key=_order)]


def without_server(content: object) -> dict[str, Any]:
    """Return a reply's object without the name of the server that sent it.

    Raises:
        BadEnvelope: It is no object.
    """
    if not isinstance(content, dict):
        raise BadEnvelope("reply of a server: expected an object")
    return {key: value for key, value in content.items() if key != "server"}


def _order(key: tuple[str, str]) -> tuple[str, int, str]:
    name, version = key
    return name, int(version) if version.isdecimal() and len(version) < _LONGEST else -1, version

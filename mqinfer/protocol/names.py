"""The names that may stand in a topic: one with a wildcard, a slash or a NUL never gets through."""

from __future__ import annotations

import re

from mqinfer.protocol.errors import BadTopic

__all__ = ["CONTROL", "EVERY_SERVER", "check_name", "check_request", "check_version", "is_request"]

CONTROL = "control"
"""Stands for the model in the topics of replies to control requests, so no model may be called so."""
EVERY_SERVER = "all"
"""Stands for a server's name where each is meant, so none may be called so."""

_RESERVED = {"model": CONTROL}
_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,63}")
_NAME_RULE = "1 to 64 lower-case letters, digits, '_', '.' or '-', beginning with a letter or digit"
_REQUEST = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_REQUEST_RULE = "1 to 64 letters, digits, '_', '.' or '-'"
_VERSION = re.compile(r"0|[1-9][0-9]{0,18}")
_VERSION_RULE = "a decimal integer of at most 19 digits, such as 3"


def check_name(kind: str, name: str) -> str:
    """Return a model's, client's or worker's name if it follows the rule.

    Args:
        kind: What it names, for the message, such as `model`.
        name: To be checked.

    Raises:
        BadTopic: It does not follow `[a-z0-9][a-z0-9_.-]{0,63}`, or is reserved.
    """
    if _RESERVED.get(kind) == name:
        raise BadTopic(f"{kind} {name!r} can't be: the name stands for something else in topics; take another one")
    return _check(_NAME, _NAME_RULE, kind, name)


def check_version(version: str) -> str:
    """Return a version if it follows the rule.

    Raises:
        BadTopic: It is no decimal integer of at most 19 digits, or has leading zeros.
    """
    return _check(_VERSION, _VERSION_RULE, "version", version)


def check_request(request: str) -> str:
    """Return a request's id if it follows the rule.

    Raises:
        BadTopic: It does not follow `[A-Za-z0-9_.-]{1,64}`.
    """
    return _check(_REQUEST, _REQUEST_RULE, "request id", request)


def is_request(text: str) -> bool:
    """Whether a text may stand as a request's id."""
    return _REQUEST.fullmatch(text) is not None


def _check(pattern: re.Pattern[str], rule: str, kind: str, value: str) -> str:
    if not pattern.fullmatch(value):
        raise BadTopic(f"{kind} {value[:80]!r} can't stand in a topic; it must be {rule}")
    return value

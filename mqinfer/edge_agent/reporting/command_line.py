"""The command line of a run for a report, which may be passed on: without what is secret in it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

_LOGIN = re.compile(r"(?<=://)\S*@")
_QUERY = re.compile(r"(://[^\s?#]*)[?#]\S*")
_SECRET = re.compile(r"--?[\w-]*(password|passwd|secret|token|key)", re.IGNORECASE)
_HIDDEN = "..."


def command_line(arguments: Sequence[str]) -> str:
    """Return a command line as one can type it, with `...` for what is secret."""
    words: list[str] = []
    is_secret = False
    for each in arguments:
        option, equals, _ = each.partition("=")
        if is_secret:
            words.append(_HIDDEN)
        elif equals and _SECRET.fullmatch(option):
            words.append(f"{option}={_HIDDEN}")
        else:
            words.append(without_secrets(each))
        is_secret = not is_secret and bool(_SECRET.fullmatch(each))
    return shlex.join(words)


def without_secrets(text: str) -> str:
    """Return a text with URLs that have neither a login nor a query, in which cameras take passwords and tokens."""
    return _QUERY.sub(rf"\1?{_HIDDEN}", _LOGIN.sub("", text)) if "://" in text else text

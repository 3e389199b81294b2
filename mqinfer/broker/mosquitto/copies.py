"""The files of a secured broker that Mosquitto reads again: copies of them, each taken when its original is whole.

Whoever brings a file to the broker's machine writes it piece by piece, or breaks off. Half of the access rules, of the
passwords or of the list of revoked certificates would refuse everybody, with an error that clients take to be final.
"""

from __future__ import annotations

import logging
import re
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from mqinfer.broker.mosquitto.configuration import FILES
from mqinfer.broker.mosquitto.files import read_file, write_file
from mqinfer.protocol.errors import MqinferError

_log = logging.getLogger("mqinfer.broker")

_QUIET_S = 1.0
"""How long a file that is written in place has to stay as it is. One that replaces another comes as a whole."""
_LOSS_S = 10.0
"""How long if clients are missing in it, as behind the place where a copy broke off between two lines."""
_PAIR = "certfile keyfile"
_LEVEL = r"(?:\+|[^+#/]*)"
_RULE = rf"(?:topic|pattern)\s+(?:(?:read|write|readwrite|deny)\s+|(?!\S+\s+\S))(?:#|{_LEVEL}(?:/{_LEVEL})*(?:/#)?)"
_LINES = {
    "acl_file": re.compile(rf"\s*(?:#.*|user\s+\S.*|{_RULE}|)\s*"),
    "password_file": re.compile(r"\s*(?:#.*|[^:\s][^:]*:\S+|)\s*"),
}
_CLIENT = {
    "acl_file": re.compile(rb"^user\s+(\S.*)$", re.MULTILINE),
    "password_file": re.compile(rb"^([^#:\n]+):", re.MULTILINE),
}

_Stamp = tuple[int, int, int]


class Copies:
    """Copies in a folder of their own; for one thread at a time.

    Args:
        place: The folder.
        clock: In seconds.
    """

    def __init__(self, place: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._place, self._clock = place, clock
        self._copies: dict[tuple[Path, ...], _Copy] = {}

    def adapt(self, configuration: str, instead: Mapping[Path, Path]) -> str:
        """Return a configuration that names the copies, which are made where they are missing.

        At the start nothing is there to be kept, so each file is taken as it is; Mosquitto says what it can't read.

        Args:
            configuration: With the originals.
            instead: What to name in place of the copies of these.
        """
        waiting: dict[str, Path] = {}
        for kind, name in FILES.findall(configuration):
            if kind not in _PAIR:
                self.add(kind, Path(name))
                continue
            waiting[kind] = Path(name)
            if len(waiting) == 2:
                self.add(_PAIR, *(waiting.pop(each) for each in _PAIR.split()))
        copies = self._copies.values()
        names = {path: copy for each in copies for path, copy in zip(each.paths, each.to, strict=True)} | {**instead}
        return FILES.sub(lambda found: f"{found[1]} {names.get(Path(found[2]), found[2])}", configuration)

    def add(self, kind: str, *paths: Path) -> bytes:
        """Copy a file, or a certificate with its key, once; returns what holds of the first, or nothing."""
        if paths not in self._copies:
            to = tuple(self._place / f"{len(self._copies)}-{path.name}" for path in paths)
            made = _Copy(kind, paths, to)
            try:
                made.hold([read_file(path) for path in paths], _stamps(paths))
            except (OSError, MqinferError):
                return b""
            self._copies[paths] = made
        return self._copies[paths].held[0]

    def take(self) -> bool:
        """Take what has changed and is whole; returns whether there was any."""
        now = self._clock()
        return sum(each.take(now) for each in self._copies.values()) > 0


@dataclass(slots=True)
class _Copy:
    """One file, or two that belong together: what holds of them, and what was seen since."""

    kind: str
    paths: tuple[Path, ...]
    to: tuple[Path, ...]
    held: list[bytes] = field(default_factory=list)
    taken: list[_Stamp] = field(default_factory=list)
    seen: list[_Stamp] = field(default_factory=list)
    since: float = 0.0
    has_warned: bool = False

    def take(self, now: float) -> bool:
        """Copy the files if they are new and whole; returns whether they were."""
        try:
            stamps = _stamps(self.paths)
            if stamps == self.taken:
                return False
            if stamps != self.seen:
                self.seen, self.since, self.has_warned = stamps, now, False
            return self._take_seen(now - self.since)
        except (OSError, MqinferError) as error:
            self._warn(str(error), now - self.since)
            return False

    def _take_seen(self, quiet: float) -> bool:
        contents = [read_file(path) for path in self.paths]
        if fault := _fault(self.kind, self.paths, contents) or self._loss(contents, quiet):
            self._warn(fault, quiet)
            return False
        if (quiet < _QUIET_S and self._is_in_place()) or _stamps(self.paths) != self.seen:
            return False
        is_new = contents != self.held
        self.hold(contents, self.seen)
        return is_new

    def _warn(self, fault: str, quiet: float) -> None:
        if quiet >= _QUIET_S and not self.has_warned:
            self.has_warned = True
            _log.warning("%s: %s; until then what it said before holds", self.paths[0], fault)

    def hold(self, contents: list[bytes], stamps: list[_Stamp]) -> None:
        """Copy contents as those that hold."""
        for path, content in zip(self.to, contents, strict=True):
            write_file(path, content, for_broker=True)
        self.held, self.taken = contents, stamps

    def _is_in_place(self) -> bool:
        return any(new != old and new[0] == old[0] for new, old in zip(self.seen, self.taken, strict=True))

    def _loss(self, contents: list[bytes], quiet: float) -> str | None:
        """Return that clients are missing which held, in a file that is written in place."""
        if self.kind not in _CLIENT or not self._is_in_place():
            return None
        old, new = ({*_CLIENT[self.kind].findall(each)} for each in (self.held[0], contents[0]))
        if old <= new or (new and quiet >= _LOSS_S):
            return None
        missing = f"{len(old - new)} clients are missing in it"
        return (
            f"{missing}; it is taken after {_LOSS_S:g} s"
            if new
            else f"{missing}, and nobody is left; bring the whole file"
        )


def _fault(kind: str, paths: tuple[Path, ...], contents: list[bytes]) -> str | None:
    """Return why a file is not whole, or what in it Mosquitto would take to refuse everybody; None for nothing."""
    text = contents[0].decode(errors="surrogateescape")
    if kind in _LINES:
        if "\0" in text or (text and not text.endswith("\n")):
            return "its last line has no end, as in half a copy; bring the whole file, or end the line"
        wrong = [number for number, line in enumerate(text.split("\n"), 1) if not _LINES[kind].fullmatch(line)]
        return f"line {wrong[0]} is none of such a file; mend it" if wrong else None
    return _pem_fault(kind, paths)


def _pem_fault(kind: str, paths: tuple[Path, ...]) -> str | None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        if kind == _PAIR:
            context.load_cert_chain(paths[0], paths[1], lambda: "")  # asks nobody
            return None
        context.load_verify_locations(paths[0])
    except (ssl.SSLError, ValueError) as error:
        return f"it is cut off, damaged or not of its key ({error}); bring the whole file"
    found = context.cert_store_stats()["crl" if kind == "crlfile" else "x509"]
    return None if found else "nothing of its kind is in it; bring the whole file"


def _stamps(paths: tuple[Path, ...]) -> list[_Stamp]:
    """Return what changes with files, their inode first: it is another one where a file was replaced as a whole."""
    return [(found.st_ino, found.st_size, found.st_mtime_ns) for found in map(Path.stat, paths)]

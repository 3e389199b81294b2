"""`mqinfer support-bundle`: one archive of what helpers need to know of a machine and its site, without secrets.

Two things keep secrets out. What is collected is chosen: options, versions, states, the ends of logs. And every text
passes `Redaction`, which knows the secrets of this machine by their values, and others by what stands before them.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import re
import shutil
import subprocess
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import distributions
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import unquote

import typer

from mqinfer._version import __version__
from mqinfer.cli.options import ConnectionOptions, with_connection
from mqinfer.cli.settings import CONFIG_FILE
from mqinfer.cli.watching.overview import observe
from mqinfer.lab.machine import describe_machine
from mqinfer.protocol.errors import ConfigError, MqinferError
from mqinfer.toml_files import parse_toml, read_text

_LOG_BYTES = 4 << 20
"""The end of a log that is taken, at most."""
_SECRET_FILE_BYTES = 64 << 10
_JOURNAL_S = 20.0
_HIDDEN = "***"
_SHORTEST, _USUAL = 4, frozenset({"workers", "true", "false", "none"})
"""Characters of a secret, at least, and words that are none: hiding these would hide harmless text."""
_SECRET_NAME = re.compile(
    "password|passwd|secret|token|key|group|restrict|credential|headers|authorization", re.IGNORECASE
)
"""In the name of what is secret, or leads to it: the value is then a secret, or the path of a file with one."""
_LOGIN = re.compile(r"(?<=://)(?:[^\s/\"']*|[^\s/\"':@]{1,64}:[^\s\"']{0,256})@")
_WORDS = (
    r"(?<![\w-])[\w-]*(?:pass(?:word|wd|phrase)|pwd|secret|token|credentials?|signature|group|authorization|cookie|"
    r"(?:[-_]|api|access|account|private)key(?:[-_]id)?)"
)
_PATTERNS = (
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL), _HIDDEN),
    (_LOGIN, f"{_HIDDEN}@"),
    (re.compile(r"(--(?:group|password|restrict)[= ])\S+"), rf"\g<1>{_HIDDEN}"),
    (re.compile(r"(?i)(\bbearer\s+)[^\s\"']+"), rf"\g<1>{_HIDDEN}"),
    (re.compile(r"(?i)(\b(?:authorization|cookie)\s*[:=]\s*)[^\"'\n]+"), rf"\g<1>{_HIDDEN}"),
    (re.compile(r"(?i)([?&#](?:key|sig|code)=)[^\s&\"']+"), rf"\g<1>{_HIDDEN}"),
    (re.compile(rf"(?i)({_WORDS}\b\\?[\"']?\s*[:=]\s*)(\\?[\"'])[^\"'\n]*?\2"), rf"\1\2{_HIDDEN}\2"),
    (re.compile(rf"(?i)({_WORDS}\s*[:=]\s*)[^\s,\"'}}\]]+"), rf"\1{_HIDDEN}"),
)
"""What gives an unknown secret away, and what takes its place: JSON stays JSON."""


class Redaction:
    """Takes secrets out of texts."""

    def __init__(self) -> None:
        """Know none by its value yet."""
        self._values: set[str] = set()

    def add(self, value: str) -> None:
        """Know a secret; a short or usual word would hide harmless text."""
        for part in (value, value.rpartition("=")[2]):  # `--restrict` and headers state NAME=VALUE
            if len(part) >= _SHORTEST and part not in _USUAL:
                self._values |= {part, json.dumps(part)[1:-1]}

    def add_named(self, name: str, value: object) -> object:
        """Return what may be shown of a value: a secret is hidden, and those in a file that it names are known then."""
        if isinstance(value, Mapping):
            return {str(key): self.add_named(str(key), each) for key, each in value.items()}
        if isinstance(value, list):
            return [self.add_named(name, each) for each in value]
        text = str(value)
        for login in _LOGIN.findall(text):
            password = login[:-1].partition(":")[2]
            self.add(password)
            self.add(unquote(password))
        if not _SECRET_NAME.search(name):
            return value
        with suppress(OSError, ValueError):  # no path
            if Path(text).is_file():
                self._add_file(Path(text))
                return text
        self.add(text)
        return _HIDDEN

    def _add_file(self, path: Path) -> None:
        """Know the secrets of a file: the lines of a key, the texts of a table of keys, or all of a short one."""
        with suppress(OSError, UnicodeDecodeError, ValueError):
            if path.stat().st_size > _SECRET_FILE_BYTES:
                return
            text = read_text(path)
            if "-----BEGIN" in text:
                for line in text.splitlines():
                    self.add("" if line.startswith("-----") else line.strip())
            elif path.suffix == ".toml":
                self.add_named("", parse_toml(text))
            else:
                self.add(text.strip())

    def clean(self, text: str) -> str:
        """Return a text without secrets."""
        for value in sorted(self._values, key=len, reverse=True):
            text = text.replace(value, _HIDDEN)
        for pattern, replacement in _PATTERNS:
            text = pattern.sub(replacement, text)
        return text


@with_connection
def support_bundle(
    context: typer.Context,
    connection: ConnectionOptions,
    file: Annotated[Path, typer.Argument(help="Archive to write, such as support.zip; it must not exist.")],
    log: Annotated[list[Path] | None, typer.Option(help="Log file whose end is taken; may be repeated.")] = None,
    unit: Annotated[str, typer.Option(help="Units of systemd whose journal is taken, by a pattern.")] = "mqinfer-*",
    lines: Annotated[int, typer.Option(help="Last lines of the journal.", min=0, max=100_000)] = 2000,
    timeout: Annotated[float, typer.Option(help="Seconds to wait for the servers' replies.", min=0.001, max=1e6)] = 5,
) -> None:
    """Write an archive for those who are to help: versions, options, states and the ends of logs, without secrets.

    It has names of machines, clients, models and topics; no pictures and results, and no password, key or group of
    workers.
    """
    redaction = Redaction()
    parts: dict[str, Callable[[], str]] = {
        "options.json": lambda: _json(_options(connection, context.params[CONFIG_FILE], redaction)),
        "versions.json": lambda: _json(_versions()),
        "status.json": lambda: _json(asyncio.run(_status(connection, timeout))),
        "journal.log": lambda: _journal(unit, lines),
    }
    parts |= {f"logs/{number}-{path.name}": partial(_end_of, path) for number, path in enumerate(log or ())}
    _write(file, dict(_collected(parts)), redaction)
    typer.echo(f"wrote {file}; look into it before you send it")


def _collected(parts: Mapping[str, Callable[[], str]]) -> Iterator[tuple[str, str]]:
    """Yield each part with its text, or with why there is none: what is broken is why somebody asks for help."""
    for name, collect in parts.items():
        try:
            text = collect()
        except (MqinferError, OSError, ValueError, subprocess.SubprocessError) as error:
            yield f"{name}.error", f"{error}\n"
            continue
        if text:
            yield name, text


def _write(file: Path, parts: Mapping[str, str], redaction: Redaction) -> None:
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise ConfigError(f"{file} can't be written: {error.strerror}; name another file") from error
    with os.fdopen(descriptor, "wb") as opened, zipfile.ZipFile(opened, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in parts.items():
            archive.writestr(name, redaction.clean(text))


def _json(content: object) -> str:
    return json.dumps(content, indent=2, default=str) + "\n"


def _options(connection: ConnectionOptions, file: Path | None, redaction: Redaction) -> dict[str, object]:
    """Return what environment and file set; the secrets of all variables are known from then on."""
    for name, value in os.environ.items():
        redaction.add_named(name, value)
    for part in ("password_file", "key_file"):
        redaction.add_named(part, getattr(connection, part) or "")
    redaction.add_named("broker", connection.broker)
    own = {name: value for name, value in os.environ.items() if name.startswith(("MQINFER_", "OTEL_"))}
    found: dict[str, object] = {"environment": {name: redaction.add_named(name, own[name]) for name in sorted(own)}}
    if file is not None:
        found["file"] = {str(file): redaction.add_named("", parse_toml(read_text(file)))}
    return found | {"broker": connection.broker, "root": connection.root}


def _versions() -> dict[str, object]:
    packages = {each.metadata["Name"]: each.version for each in distributions() if each.metadata["Name"]}
    disk = shutil.disk_usage(Path.cwd())
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "mqinfer": __version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "machine": describe_machine(()),
        "cpus": os.cpu_count(),
        "disk": {"total": disk.total, "free": disk.free},
        "packages": dict(sorted(packages.items(), key=lambda each: each[0].lower())),
    }


async def _status(connection: ConnectionOptions, timeout: float) -> dict[str, Any]:  # noqa: ASYNC109 - the servers' time
    async with observe(connection) as observer:
        before = await observer.ask(timeout)
        return observer.overview("", before, await observer.ask(timeout))


def _journal(unit: str, lines: int) -> str:
    """Return the last lines of units; nothing where there is no journal."""
    program = shutil.which("journalctl")
    if program is None or not lines:
        return ""
    command = [program, "--no-pager", "--output=short-iso", "--quiet", f"--lines={lines}", f"--unit={unit}"]
    done = subprocess.run(command, capture_output=True, timeout=_JOURNAL_S, check=False)  # noqa: S603 - of the system
    return done.stdout[-_LOG_BYTES:].decode(errors="replace")


def _end_of(path: Path) -> str:
    if not path.is_file():  # a pipe would be waited for
        raise ConfigError(f"{path} is no file")
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _LOG_BYTES))
        return file.read(_LOG_BYTES).decode(errors="replace")

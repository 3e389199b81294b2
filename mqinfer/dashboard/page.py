"""The files of the page: read once, with what HTTP has to know about each."""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from aiohttp import web

from mqinfer.extras import clone, install_command
from mqinfer.protocol.errors import ConfigError

PAGE = Path(__file__).with_name("page")
"""Where the build puts the page."""

_INDEX = "index.html"
_HASHED = "assets/"
"""The build puts files there whose names change with their content."""
_REVALIDATE, _FOREVER = "no-cache", "private, max-age=31536000, immutable"
NOT_KEPT = {"Cache-Control": "no-store"}
"""Headers of replies that are no files."""
_LEAST_GZIP = 1024
"""Bytes below which compressing gains nothing."""
_TEXTS = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".json": "application/json",
    ".map": "application/json",
    ".txt": "text/plain; charset=utf-8",
}
_TYPES = {
    **_TEXTS,
    ".wasm": "application/wasm",
    ".woff2": "font/woff2",
    ".png": "image/png",
    ".ico": "image/x-icon",
}


@dataclass(frozen=True, slots=True)
class PageFile:
    """A file as it is served.

    Attributes:
        content: Its bytes.
        zipped: The same as gzip; None where that is not shorter.
        content_type: Its media type.
        etag: Changes with the content; with its quotes.
        caching: Value of Cache-Control.
    """

    content: bytes
    zipped: bytes | None
    content_type: str
    etag: str
    caching: str

    def reply(self, request: web.Request) -> web.Response:
        """Return the reply to a request for it: the file, or that the browser has it already."""
        headers = {"ETag": self.etag, "Cache-Control": self.caching, "Vary": "Accept-Encoding"}
        if self.etag in request.headers.get("If-None-Match", ""):
            return web.Response(status=304, headers=headers)
        headers["Content-Type"] = self.content_type
        if self.zipped is None or "gzip" not in request.headers.get("Accept-Encoding", ""):
            return web.Response(body=self.content, headers=headers)
        return web.Response(body=self.zipped, headers={**headers, "Content-Encoding": "gzip"})


def read_page(folder: Path = PAGE) -> Mapping[str, PageFile]:
    """Return the files of the page by their paths, such as `/assets/index-1a2b.js`; `/` is the page itself.

    Raises:
        ConfigError: The page has not been built.
    """
    if not (folder / _INDEX).is_file():
        raise ConfigError(f"the dashboard's page is missing in {folder}; {_cure(folder)}")
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            name = path.relative_to(folder).as_posix()
            caching = _FOREVER if name.startswith(_HASHED) else _REVALIDATE
            found[f"/{name}"] = make_file(path.suffix, path.read_bytes(), caching)
    found["/"] = found[f"/{_INDEX}"]
    return found


def _cure(folder: Path) -> str:
    """Return what brings the page: a clone has to build it, and a wheel carries it."""
    source = clone()
    if source is None:
        return "a wheel carries it; install one, or from a clone in which scripts/build-page has run"
    then = "" if folder.is_relative_to(source) else f", then: {install_command('dashboard')}"
    return f"run: {source / 'scripts/build-page'}{then}"


def make_file(suffix: str, content: bytes, caching: str = _REVALIDATE) -> PageFile:
    """Return a file with this content, of the type that a suffix such as `.html` stands for."""
    zipped = None
    if suffix in _TEXTS and len(content) >= _LEAST_GZIP:
        zipped = gzip.compress(content, mtime=0)
    etag = f'"{sha256(content).hexdigest()[:32]}"'
    return PageFile(content, zipped, _TYPES.get(suffix, "application/octet-stream"), etag, caching)

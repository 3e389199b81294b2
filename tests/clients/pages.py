"""A server of static files for pages under test, and Chromium to open them in."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

from tests.chromium import at_most, chromium

ROOT = Path(__file__).parents[2]
_TYPES = {".js": "text/javascript", ".json": "application/json"}
_NONCE = "imports"
# No 'wasm-unsafe-eval': the client must do without WebAssembly.
_POLICY = f"default-src 'none'; script-src 'self' 'nonce-{_NONCE}'; connect-src 'self'; img-src 'self'"
_PAGE = f"""<!doctype html><html lang="en"><title>mqinfer-client</title><link rel="icon" href="/favicon.ico">
<script type="importmap" nonce="{_NONCE}">{{"imports": {{"mqtt": "/mqtt.js"}}}}</script></html>"""
_PAGE_S = 300.0
_MQTT = ROOT / "node_modules" / "mqtt" / "dist" / "mqtt.esm.js"


class Pages:
    """Serves folders under their prefixes, files from memory under `/extra/`, and an empty page as `/`."""

    def __init__(self, folders: Mapping[str, Path], extra: Mapping[str, bytes], connect: str = "") -> None:
        """Bind a free port.

        Args:
            folders: By prefix, such as `/dist/`.
            extra: Contents by name.
            connect: A further address that the page may connect to.
        """
        self._folders = folders
        self._extra = extra
        policy = _POLICY.replace("connect-src 'self'", f"connect-src 'self' {connect}".strip())
        pages = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:  # the server's own name for it
                content = pages.find(self.path)
                self.send_response(200 if content is not None else 404)
                kind = (
                    "text/html" if self.path == "/" else _TYPES.get(Path(self.path).suffix, "application/octet-stream")
                )
                self.send_header("Content-Type", kind)
                self.send_header("Content-Security-Policy", policy)
                self.end_headers()
                self.wfile.write(content or b"")

            def log_message(self, *_arguments: object) -> None:
                """Be quiet."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, name="pages")

    @property
    def address(self) -> str:
        """Where the pages are; `localhost` is a secure context."""
        return f"http://localhost:{self._server.server_port}/"

    def find(self, path: str) -> bytes | None:
        """Return the content at a path, or None."""
        if path == "/":
            return _PAGE.encode()
        if path == "/favicon.ico":
            return b""
        if path == "/mqtt.js":
            return _MQTT.read_bytes()
        if path.startswith("/extra/"):
            return self._extra.get(path.removeprefix("/extra/"))
        for prefix, folder in self._folders.items():
            file = folder / path.removeprefix(prefix)
            if path.startswith(prefix) and file.resolve().is_relative_to(folder.resolve()) and file.is_file():
                return file.read_bytes()
        return None

    def __enter__(self) -> Self:
        """Start to serve."""
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        """Stop, and wait for the thread."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@contextmanager
def chromium_page(address: str) -> Iterator[Any]:
    """Open an address in Chromium; errors of the page fail the test that made them, at the latest when it is closed."""
    with chromium() as browser, at_most(_PAGE_S, f"a page of {address}"):
        page = browser.new_page()
        faults: list[str] = []
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("console", lambda message: faults.append(message.text) if message.type == "error" else None)
        page.goto(address)
        yield page
        assert faults == []

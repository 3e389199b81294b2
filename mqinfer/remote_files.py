"""Files at an address, as fsspec reads and writes them: the only place that imports it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from mqinfer.extras import import_extra, missing_extra
from mqinfer.logs import printable, without_logins
from mqinfer.protocol.errors import ConfigError

_EXTRAS = {"s3": "s3", "gs": "gs", "az": "az", "http": "https", "https": "https", "file": "https"}
"""The schemes that an address may have, and the extra that reads each."""
_PACKAGES = {"s3": "s3fs", "gs": "gcsfs", "az": "adlfs"}
_HTTP = {"http", "https"}
_PIECE = 1 << 20
_STALL_S = 60.0
"""A server that sends nothing for so long has failed."""
_LEAST_RATE = 4096
"""Bytes a second that a server has to send on average, after `_STALL_S`; one that only dribbles has failed."""


def open_files(url: str, *, is_signed: bool = False) -> Any:
    """Return fsspec's file system for an address. Credentials come from the environment, as the libraries read them.

    Args:
        url: The address.
        is_signed: Whether one of a server of HTTP may have credentials in it.

    Raises:
        ConfigError: The address is none, or has credentials in it.
        MissingExtra: The package that reads it is not installed.
    """
    parts = urlsplit(url)
    if parts.scheme not in _EXTRAS:
        known = ", ".join(f"{scheme}://" for scheme in _EXTRAS)
        raise ConfigError(f"address {parts.scheme}://…: expected a folder, or one of {known}")
    is_signed = is_signed and parts.scheme in _HTTP
    if not is_signed and any(("@" in parts.netloc, parts.query, parts.fragment)):
        raise ConfigError(
            f"address {parts.scheme}://{parts.hostname}: it has credentials, ? or #; "
            "set credentials in the environment, such as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        )
    extra = _EXTRAS[parts.scheme]
    fsspec = import_extra("fsspec", extra)
    try:
        options = _options(parts.scheme, is_encoded=is_signed and "%" in url)
        return fsspec.filesystem(parts.scheme, use_listings_cache=False, **options)
    except ImportError as error:
        raise missing_extra(_PACKAGES.get(extra, extra), extra) from error
    except Exception as error:  # whatever a library raises for an environment without credentials
        raise ConfigError(f"address {without_logins(url)}: {said(error)}") from error


def _options(scheme: str, *, is_encoded: bool) -> dict[str, Any]:
    if scheme == "file":
        return {"auto_mkdir": True}
    if scheme not in _HTTP:
        return {}
    # What is packed may be a thousand times as much, all at once: sizes and hashes are those of what travels.
    plain = {"auto_decompress": False, "headers": {"Accept-Encoding": "identity"}}
    # 0: it streams; what is encoded is sent as it is, as it was signed
    return {"client_kwargs": {"trust_env": True, **plain}, "block_size": 0, "encoded": is_encoded}


def read_pieces(files: Any, url: str, most: int) -> Iterator[bytes]:
    """Yield a file's content, at most so many bytes; raise what a library raises, or FileNotFoundError."""
    _refuse_pipes(url)
    with files.open(url, "rb", **_limits(url, most)) as file:
        while most > 0 and (piece := file.read(min(_PIECE, most))):
            most -= len(piece)
            yield piece


def read_part(files: Any, url: str, start: int, end: int) -> tuple[bytes, tuple[Any, ...]]:
    """Return a part of a file, and of the whole the size and a tag or time; raise as `read_pieces` does."""
    _refuse_pipes(url)
    if urlsplit(url).scheme not in _HTTP:
        data, found = files.cat_file(url, start=start, end=end), files.info(url)
        return data, (found["size"], found.get("ETag") or found.get("etag") or found.get("mtime"))
    wanted = {"Range": f"bytes={start}-{end - 1}"}
    with files.open(url, "rb", headers=wanted, **_limits(url, end - start)) as file:
        heads = file.r.headers
        if not (stated := re.fullmatch(rf"bytes {start}-\d+/(\d+)", heads.get("Content-Range", ""))):
            raise ValueError("the server does not send parts of files (Range)")
        data = b""
        while len(data) < end - start and (piece := file.read(end - start - len(data))):
            data += piece
        return data, (int(stated[1]), heads.get("ETag") or heads.get("Last-Modified"))


def _refuse_pipes(url: str) -> None:
    """Raise for what is no file in a folder: it may never answer."""
    parts = urlsplit(url)
    if parts.scheme == "file" and (path := Path(parts.path)).exists() and not path.is_file():
        raise OSError("not a file, but a pipe, a device or a folder; put the file itself there")


def open_parts(read: Callable[[int, int], bytes], size: int) -> Any:
    """Return a file of this size, whose bytes a function returns from one place to another; 32 blocks are kept."""
    file = import_extra("fsspec.spec", "https").AbstractBufferedFile(None, "", size=size)
    file.cache = import_extra("fsspec.caching", "https").BlockCache(_PIECE, read, size)
    return file


def _limits(url: str, most: int) -> dict[str, Any]:
    """Return what bounds the time of a download of so many bytes; libraries of stores have limits of their own."""
    if urlsplit(url).scheme not in _HTTP:
        return {}
    timeout = import_extra("aiohttp", "https").ClientTimeout(
        total=_STALL_S + most / _LEAST_RATE, sock_connect=_STALL_S, sock_read=_STALL_S
    )
    return {"timeout": timeout, "size": most}  # a size, for without one it would be asked for, with no limit


def said(error: Exception) -> str:
    """Return an error of a library in one bounded line, without credentials in an address."""
    if isinstance(error, TimeoutError):
        return f"the server was silent for {_STALL_S:.0f} s, or sends less than {_LEAST_RATE} bytes a second; try again"
    text = re.sub(r"(://[^\s?'\"]*)\?[^\s'\"]*", r"\1", without_logins(f"{type(error).__name__}: {error}"))
    return printable(text[:400])

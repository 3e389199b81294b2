"""Replies with files of the page."""

from __future__ import annotations

from aiohttp import web

from mqinfer.dashboard.page import PageFile

__all__ = ["file_reply"]


def file_reply(request: web.Request, file: PageFile) -> web.Response:
    """Return the reply to a request for a file: the file, or that the browser has it already."""
    headers = {"ETag": file.etag, "Cache-Control": file.caching, "Vary": "Accept-Encoding"}
    if file.etag in request.headers.get("If-None-Match", ""):
        return web.Response(status=304, headers=headers)
    body = file.content
    if file.zipped is not None and "gzip" in request.headers.get("Accept-Encoding", ""):
        body = file.zipped
        headers["Content-Encoding"] = "gzip"
    return web.Response(body=body, headers={**headers, "Content-Type": file.content_type})

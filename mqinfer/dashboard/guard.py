"""What protects the page in a browser: headers of each reply, and whom a request claims to be for and from."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

from mqinfer.dashboard.settings import DashboardSettings, is_loopback

_USUAL_PORTS = {"http": 80, "https": 443}
_MOST_HOST = 300
"""Characters of a Host or an Origin header."""


def security_headers(settings: DashboardSettings) -> Mapping[str, str]:
    """Return the headers that each reply has."""
    direct = f" {settings.direct}" if settings.direct else ""
    policy = {
        "default-src": "'none'",
        "script-src": "'self'",
        "style-src": "'self'",
        "img-src": "'self' blob: data:",
        "connect-src": f"'self'{direct}",
        "font-src": "'self'",
        "base-uri": "'none'",
        "form-action": "'self'",
        "frame-ancestors": "'none'",
    }
    return {
        "Content-Security-Policy": "; ".join(f"{name} {value}" for name, value in policy.items()),
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "DENY",
        "Referrer-Policy": "same-origin",  # with no-referrer browsers send the form's own Origin as null
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
        **({"Strict-Transport-Security": "max-age=31536000"} if settings.tls else {}),
    }


def is_expected_host(settings: DashboardSettings, host: str) -> bool:
    """Return whether a Host header names this server.

    Where it listens on loopback, any other name is one that an attacker has made point here (DNS rebinding).
    """
    parts = _split(f"//{host}")
    if parts is None:
        return False
    if settings.hosts:
        return host.lower() in {each.lower() for each in settings.hosts} or is_loopback(parts[0])
    return settings.is_open or is_loopback(parts[0])


def is_own_origin(settings: DashboardSettings, host: str, origin: str | None) -> bool:
    """Return whether a request comes from a page that this server itself has served.

    Args:
        settings: Whether it is encrypted.
        host: Value of the Host header, already checked.
        origin: Value of the Origin header, which each browser sends with a WebSocket; None without one.
    """
    if origin is None:
        return False
    scheme, _, _ = origin.partition("://")
    if scheme not in ({"https"} if settings.tls else _USUAL_PORTS):  # a proxy in front may have encrypted it
        return False
    own, theirs = _split(f"//{host}"), _split(origin)
    usual = _USUAL_PORTS[scheme]
    return own is not None and theirs is not None and (own[0], own[1] or usual) == (theirs[0], theirs[1] or usual)


def _split(url: str) -> tuple[str, int | None] | None:
    """Return host and port of a URL that has nothing else; None for any other text."""
    if len(url) > _MOST_HOST:
        return None
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return None
    if not parts.hostname or parts.path or parts.query or parts.fragment or "@" in parts.netloc:
        return None
    return parts.hostname, port

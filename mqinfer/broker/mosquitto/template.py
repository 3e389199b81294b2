"""The configuration of a private Mosquitto: the packaged `mosquitto.conf` with other ports.

The file is usable as it stands (`mosquitto -c mosquitto.conf`) and explains each of its limits.
"""

from __future__ import annotations

from importlib.resources import files

__all__ = ["render"]

_TCP = "listener 1883 127.0.0.1\n"
_WEBSOCKETS = "listener 9001 127.0.0.1\n"
_BROWSERS = "# --- Browsers"  # the last section: what follows it belongs to the websockets listener


def render(port: int, *, websockets_port: int | None = None, bind: str = "127.0.0.1") -> str:
    """Write the configuration of a Mosquitto.

    Args:
        port: Where it listens for MQTT over TCP.
        websockets_port: Where it listens for browsers, None for nowhere.
        bind: Address of both listeners. Anybody who reaches it may connect.
    """
    text = files("mqinfer.broker.mosquitto").joinpath("mosquitto.conf").read_text(encoding="utf-8")
    head, mark, browsers = text.replace(_TCP, f"listener {port} {bind}\n").partition(_BROWSERS)
    if websockets_port is None:
        return head
    return head + mark + browsers.replace(_WEBSOCKETS, f"listener {websockets_port} {bind}\n")

"""Whether a broker asks for a login, tried before its relay is opened to other machines."""

from __future__ import annotations

import secrets
from dataclasses import replace

from mqinfer.broker.connect import make_link
from mqinfer.dashboard.settings import DashboardSettings
from mqinfer.protocol.errors import ConfigError, NotAuthorized


def check_anonymous(settings: DashboardSettings) -> None:
    """Check that a relay that others can reach opens no broker that lets everybody in.

    The broker may listen on loopback alone for that reason. Nothing is tried where a key or the relay's own login is
    asked for, or browsers connect to the broker themselves.

    Raises:
        BrokerUnreachable: The broker can't be asked now.
        ConfigError: It lets everybody in.
    """
    if not settings.is_open or settings.keys is not None or settings.direct is not None or settings.login == "relay":
        return
    address = replace(settings.address, username=None, password=None)
    link = make_link(address, client_id=f"mqinfer-dashboard-{secrets.token_hex(8)}")
    try:
        link.open(settings.broker_patience)
    except NotAuthorized:
        return
    finally:
        link.close()
    raise ConfigError(
        f"{address} lets everybody in, and --bind {settings.bind} would open it to other machines; add --keys FILE, or "
        "give the broker logins (mqinfer broker init)"
    )

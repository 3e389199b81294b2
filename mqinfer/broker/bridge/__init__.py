"""Carries mqinfer's messages between two brokers: clients at the near one (a site), workers at the far one.

It knows links and topics, and no engine. What goes which way stands in docs/reference/protocol.md, "Bridge".
"""

from mqinfer.broker.bridge.bridge import Bridge

__all__ = ["Bridge"]

"""A broker that lets nobody in unasked: certificates, passwords and access rules in one folder."""

from mqinfer.broker.mosquitto.access import Role, access_rules
from mqinfer.broker.mosquitto.folder import BrokerFolder, Login, Ports

__all__ = ["BrokerFolder", "Login", "Ports", "Role", "access_rules"]

"""A broker that lets nobody in unasked: certificates, passwords and access rules in one folder."""

from mqinfer.broker.mosquitto.folder import BrokerFolder, Login, Ports
from mqinfer.broker.roles import Role, access_rules

__all__ = ["BrokerFolder", "Login", "Ports", "Role", "access_rules"]

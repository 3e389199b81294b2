"""The processes of a gateway: their start, their ports, their end."""

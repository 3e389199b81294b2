"""Where the results of a replay go: one file a kind of sink."""

from mqinfer.edge_agent.sinks.sink import Sink

__all__ = ["Sink"]

"""The ways to a model that are measured against each other."""

from mqinfer.bench.contestants.bare_grpc import BareGrpc
from mqinfer.bench.contestants.contestant import Contestant
from mqinfer.bench.contestants.direct import Direct
from mqinfer.bench.contestants.gateway import Gateway
from mqinfer.bench.contestants.secure import SecureBroker
from mqinfer.bench.contestants.socket_floor import SocketFloor

__all__ = ["BareGrpc", "Contestant", "Direct", "Gateway", "SecureBroker", "SocketFloor"]

"""The ways to a model that are measured against each other."""

from benchmarks.contestants.bare_grpc import BareGrpc
from benchmarks.contestants.contestant import Contestant
from benchmarks.contestants.direct import Direct
from benchmarks.contestants.gateway import Gateway
from benchmarks.contestants.secure import SecureBroker
from benchmarks.contestants.socket_floor import SocketFloor

__all__ = ["BareGrpc", "Contestant", "Direct", "Gateway", "SecureBroker", "SocketFloor"]

"""An operator's side of `{root}/control/...`: lists, loads and unloads models on servers, and reads their status."""

from mqinfer.client.control.aio import AsyncControl
from mqinfer.client.control.blocking import ControlClient, TrafficOrder
from mqinfer.client.control.question import ControlReply, check_replies, read_reply

__all__ = ["AsyncControl", "ControlClient", "ControlReply", "TrafficOrder", "check_replies", "read_reply"]

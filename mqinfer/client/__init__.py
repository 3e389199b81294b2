"""Clients: blocking and asyncio callers, the state machine of their requests, and an operator's side of control."""

from mqinfer.client.aio import AsyncClient
from mqinfer.client.client import Client
from mqinfer.client.options import ClientOptions
from mqinfer.client.result import InferResult

__all__ = ["AsyncClient", "Client", "ClientOptions", "InferResult"]

"""Clients: the pending table, blocking and asyncio callers, and subscription to results."""

from mqinfer.client.aio import AsyncClient
from mqinfer.client.client import Client
from mqinfer.client.result import InferResult

__all__ = ["AsyncClient", "Client", "InferResult"]

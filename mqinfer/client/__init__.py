"""Clients: the pending table, blocking and asyncio callers, and subscription to results."""

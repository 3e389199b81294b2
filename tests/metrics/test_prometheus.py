"""Debian's Prometheus scrapes a worker, a gateway and an edge, and answers the queries of the dashboard and the rules."""

from __future__ import annotations

"""Debian's Prometheus scrapes a worker, a gateway and an edge, and answers what the dashboard and the rules ask."""

from __future__ import annotations

"""The metrics of a client of the broker: of a gateway and of an edge."""

from __future__ import annotations

from mqinfer.client.requester import Requester
from mqinfer.metrics.samples import Samples


def add_client(samples: Samples, requester: Requester) -> None:
    """Add what became of the requests, what waits by model, and the connection."""
    found = requester.counters()
    samples.count("client_requests", "Requests that the client accepted.", found.submitted)
    for outcome, count in found.outcomes.items():
        samples.count("client_outcomes", "Requests by outcome.", count, outcome=outcome)
    samples.count("client_retries", "Publications beyond each request's first.", found.retries)
    samples.count("client_retries_withheld", "Retries that the retry budget delayed.", found.withheld)
    for reason in ("late", "malformed", "mismatched", "retained"):
        count = getattr(found, reason)
        samples.count("client_ignored_replies", "Replies that ended no request.", count, reason=reason)
    samples.count("client_ignored_states", "States of workers that could not be read.", found.bad_states)
    for each in requester.pending():
        samples.gauge("client_queued_requests", "Requests that are not published.", each.queued, model=each.model)
        text = "Requests that are published and not answered."
        samples.gauge("client_in_flight_requests", text, each.in_flight, model=each.model)
        text = "Age of the oldest request without an outcome."
        samples.gauge("client_oldest_request_seconds", text, each.oldest_ms / 1e3, model=each.model)
    add_connection(samples, connected=requester.connected)


def add_connection(samples: Samples, *, connected: bool) -> None:
    """Add whether the program is connected to its broker."""
    samples.gauge("broker_connected", "Whether there is a connection to the broker.", connected)

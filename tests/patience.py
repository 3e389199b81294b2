"""A client whose figures do not depend on how fast the machine is."""

from __future__ import annotations

from mqinfer.client.options import ClientOptions, Silence

__all__ = ["LONG_SILENCE", "PATIENT"]

LONG_SILENCE = Silence(attempt=60.0, attempt_shared=60.0, attempt_unknown=60.0)
"""A request is sent again once its worker or its connection is lost, and not because a busy machine is slow."""
PATIENT = ClientOptions(silence=LONG_SILENCE)

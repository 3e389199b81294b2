"""Eight threads that decode every shape which travels first, and at the same time: run in a process of its own."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from mqinfer.protocol import card, control, decoding, envelope, oip_json, states

_GOLDEN = Path(__file__).parents[1] / "golden"
_TIME = b'{"count": 1, "ns": 2}'
_STAGES = b", ".join(
    b'"%b": %b' % (stage, _TIME)
    for stage in (b"success", b"fail", b"queue", b"compute_input", b"compute_infer", b"compute_output")
)
_RECORD = (
    b'{"name": "m", "version": "1", "last_inference": 1, "inference_count": 1, "execution_count": 1, '
    b'"inference_stats": {%b}, "batch_stats": [{"batch_size": 1, "compute_input": %b, "compute_output": %b}], '
    b'"memory_usage": [{"byte_size": 1}], "response_time": {"count": 1, "p50_ns": 1}}' % (_STAGES, _TIME, _TIME)
)
_PENDING = b'"pending": [{"model": "m", "oldest_ms": 1}], "streams": [{"source": "s", "previews_dropped": 1}]'


def _index(payload: bytes) -> object:
    return decoding.read_json(payload, control.IndexEntry, "entry")


CASES: list[tuple[Callable[[bytes], object], bytes]] = [
    (envelope.decode_request, (_GOLDEN / "request_full.mqi").read_bytes()),
    (envelope.decode_response, (_GOLDEN / "reply_ok.mqi").read_bytes()),
    (lambda payload: oip_json.decode_request(payload, "m"), (_GOLDEN / "request.json").read_bytes()),
    (oip_json.decode_response, (_GOLDEN / "reply_ok.json").read_bytes()),
    (card.card_from_json, (_GOLDEN / "card.json").read_bytes()),
    (
        states.WorkerState.from_json,
        b'{"worker": "w", "status": "ready", "boot": 1, "models": [{"name": "m", "device": "cpu"}], "running": ["r"]}',
    ),
    (states.ServerState.from_json, b'{"server": "s", "status": "ready", "boot": 1, "take_over": true}'),
    (states.ClientState.from_json, b'{"client": "c", "status": "ready", "boot": 1, %b}' % _PENDING),
    (states.read_any_state, b'{"boot": 1, "status": "ready", "take_over": true}'),
    (control.Cancellation.from_json, b'{"ids": ["a"], "outcome": "superseded"}'),
    (control.read_body, b'{"ready": true, "parameters": {"a": 1}}'),
    (lambda payload: control.ModelStatistics.from_record(decoding.parse_json(payload, "record")), _RECORD),
    (_index, b'{"name": "m", "version": "1", "state": "READY", "reason": "r"}'),
]


def main() -> None:
    """Decode each case in all threads at once; what one raises ends the process."""
    sys.setswitchinterval(1e-6)
    start = threading.Barrier(8)

    def decode(_: int) -> None:
        for read, payload in CASES:
            start.wait(60)
            for _ in range(5):
                read(payload)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(decode, range(8)))


if __name__ == "__main__":
    main()

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from mqinfer.protocol.topics import Topics

pytestmark = pytest.mark.broker
Serve = Callable[[Path], Topics]

ECHO = """
[[input]]
name = "x"
datatype = "FP32"
shape = [-1, 1]
"""


def test_mosquitto_pub_and_sub_alone_get_an_inference(tmp_path: Path, serving: Serve, broker_url: str) -> None:
    """A request in Open Inference Protocol JSON gets its reply on its Response Topic."""
    (tmp_path / "echo" / "1").mkdir(parents=True)
    (tmp_path / "echo" / "1" / "model.echo").write_text(ECHO)
    topics = serving(tmp_path)
    host, port = urlsplit(broker_url).hostname or "", str(urlsplit(broker_url).port)
    reply_to = topics.result("echo", "shell", "1")
    listener = subprocess.Popen(
        ["stdbuf", "-oL", "mosquitto_sub", "-d", "-h", host, "-p", port, "-t", reply_to, "-C", "1", "-W", "20"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert listener.stdout is not None
    said = [line for line in iter(listener.stdout.readline, "Subscribed (mid: 1): 0\n") if "SUBACK" in line]
    request = {"id": "1", "inputs": [{"name": "x", "datatype": "FP32", "shape": [3, 1], "data": [1, 2, 5]}]}

    publish = ["mosquitto_pub", "-V", "5", "-h", host, "-p", port, "-q", "1", "-t", topics.infer("echo", "shell")]
    subprocess.run([*publish, "-D", "publish", "response-topic", reply_to, "-m", json.dumps(request)], check=True)
    output, _ = listener.communicate(timeout=30)

    reply = json.loads(next(line for line in output.splitlines() if line.startswith("{")))
    assert said
    assert reply["id"] == "1"
    assert reply["outputs"] == [{"name": "x", "datatype": "FP32", "shape": [3, 1], "data": [1.0, 2.0, 5.0]}]

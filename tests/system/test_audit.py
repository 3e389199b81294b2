"""The line of the log for each control call: who, what, and what came of it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mqinfer.protocol.errors import ModelNotFound

pytestmark = [pytest.mark.broker, pytest.mark.slow]  # real processes


def test_who_did_what(
    write_echo: Callable[..., Path], managed: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Orders, refused ones too, each with caller and outcome; without logins the name is said not to be proven."""
    caplog.set_level(logging.DEBUG, "mqinfer.audit")
    server = managed(write_echo("echo"))
    server.control.load("echo", timeout=120)
    with pytest.raises(ModelNotFound):
        server.control.load("nothing", timeout=120)
    server.control.unload("echo", timeout=120)
    found: dict[str, Any] = {vars(each)["call"]: each for each in caplog.records if each.name == "mqinfer.audit"}
    name = server.control._name
    asked = (("echo", "load", "ok"), ("nothing", "load", ModelNotFound.code), ("echo", "unload", "ok"))
    for model, order, outcome in asked:
        line = found[f"repository/models/{model}/{order}"]
        assert (line.caller, line.outcome, line.proven, line.levelno) == (name, outcome, False, logging.INFO)
        assert f"control call of {name} (name not proven" in line.getMessage()

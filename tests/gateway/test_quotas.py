"""Quotas of callers: what is above one is refused until there is room, and nobody else's calls are."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from mqinfer.gateway.access import GRANTED
from mqinfer.gateway.admission import CallAdmission
from mqinfer.gateway.errors import Overloaded
from mqinfer.protocol.errors import ConfigError
from mqinfer.web.keys import KeyFile
from mqinfer.web.quotas import Quota, Quotas
from tests.clock import Clock
from tests.gateway.test_access import KEYS, write


@pytest.mark.parametrize("rate", [0.25, 1, 3, 1000])
def test_requests_a_second(rate: float) -> None:
    """A second's worth at once, one at least, then so many a second, however often it tries in between."""
    clock = Clock(50.0)
    quotas = Quotas({"ann": Quota(requests=rate)}.get, clock)
    burst = max(1, int(rate))
    assert [quotas.take("ann", 1 << 30) for _ in range(burst)] == burst * [0.0]
    assert quotas.take("ann", 0) == pytest.approx(1 / rate)
    for _ in range(10):
        clock.now += 0.5 / rate
        assert quotas.take("ann", 0) == pytest.approx(0.5 / rate)
        clock.now += 0.5 / rate
        assert quotas.take("ann", 0) == 0
    clock.now += 3600
    assert sum(quotas.take("ann", 0) == 0 for _ in range(2 * burst)) == burst
    assert quotas.take("bob", 0) == 0


def test_bytes_a_second() -> None:
    """A request of more than a second's worth comes through where nothing was sent, and takes the time it costs."""
    clock = Clock()
    quotas = Quotas({"ann": Quota(bytes=100)}.get, clock)
    assert quotas.take("ann", 60) == 0
    assert quotas.take("ann", 60) == pytest.approx(0.2)
    assert quotas.take("ann", 40) == 0
    assert quotas.take("ann", 1000) == pytest.approx(1.0)
    clock.now += 1.0
    assert quotas.take("ann", 1000) == 0
    clock.now += 9.5
    assert quotas.take("ann", 60) == pytest.approx(0.1)
    assert quotas.take("ann", 50) == 0


def test_a_call_above_its_quota() -> None:
    """It is refused with the time to wait, counted for its caller, and takes no room; without a key is no quota."""
    admission = CallAdmission(8, 1000, lambda _: 8)
    admission.quotas = Quotas({"ann": Quota(requests=0.5)}.get, Clock())
    admission.enter("m", "key ann", 1)
    with pytest.raises(Overloaded, match="'ann' has used up its quota") as caught:
        admission.enter("m", "key ann", 1)
    assert caught.value.retry_after_s == pytest.approx(2.0)
    for caller in ("key bob", "192.0.2.7", "certificate ann"):
        admission.enter("m", caller, 1)
    assert (admission.accepted, admission.refused, admission.over_quota) == (4, {"quota": 1}, {"ann": 1})


def test_a_caller_is_held_to_a_priority() -> None:
    """It gets no higher one than its own; the model's default stays, and so does what others ask for."""
    admission = CallAdmission(8, 1000, lambda _: 8)
    assert admission.priority("key ann", 1) == 1
    admission.quotas = Quotas({"ann": Quota(highest_priority=2), "eve": Quota()}.get, Clock())
    assert [admission.priority("key ann", asked) for asked in range(4)] == [0, 2, 2, 3]
    assert [admission.priority(caller, 1) for caller in ("key eve", "key bob", "192.0.2.7")] == [1, 1, 1]


def test_quotas_of_the_file(tmp_path: Path) -> None:
    """They stand beside a caller's rights and follow the file; a number that is no bound is refused by its caller."""
    path, clock = write(tmp_path / "keys.toml", KEYS + "requests_per_second = 2.5\n"), Clock()
    keys = KeyFile(path, GRANTED, clock)
    assert (keys.quota_of("car-1"), keys.quota_of("ann"), keys.quota_of("nobody")) == (Quota(2.5, math.inf), None, None)
    write(path, KEYS + "bytes_per_second = 1_000_000\n")
    clock.now += 2
    assert keys.of_key("x") is None  # a call comes
    assert keys.quota_of("car-1") == Quota(math.inf, 1e6)
    write(path, KEYS + "highest_priority = 2\n")
    clock.now += 2
    assert keys.of_key("x") is None
    assert keys.quota_of("car-1") == Quota(highest_priority=2)
    with pytest.raises(ConfigError, match="'car-1': highest_priority is below 0"):
        KeyFile(write(path, f"{KEYS}highest_priority = -1\n"), GRANTED)
    for wrong in ("requests_per_second = 0", "bytes_per_second = -1", "requests_per_second = nan"):
        with pytest.raises(ConfigError, match=r"'car-1': requests_per_second or bytes_per_second is not above 0"):
            KeyFile(write(path, f"{KEYS}{wrong}\n"), GRANTED)

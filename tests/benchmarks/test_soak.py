"""The soak: a short run of what takes an hour, and its figures."""

from __future__ import annotations

import pytest

from benchmarks.faults import soak
from benchmarks.faults.soak import SoakOptions

SHORT = SoakOptions(minutes=0.1, every=1.0, rate=30.0, seed=0)


@pytest.mark.full
@pytest.mark.broker
@pytest.mark.slow
def test_a_short_soak_has_an_outcome_for_every_request() -> None:
    """Faults are injected under load; the soak itself raises where outcomes don't add up."""
    reported: list[str] = []
    figures = {each.what: each for each in soak.soak(SHORT, reported.append)}
    assert reported
    assert f"faults ({len(reported)})" in figures
    served = figures["ok, each once and with its own numbers"].figure
    assert served.endswith("/180")
    assert int(served.removesuffix("/180")) > 0
    assert figures["open files of the edge"].target == "flat"


@pytest.mark.parametrize(
    ("fault", "calls"),
    [
        ("_kill_a_worker", ["workers.kill(2)"]),
        ("_halt_a_worker", ["workers.halt(2)", "workers.resume(2)"]),
        ("_restart_a_worker", ["workers.drain(2)"]),
        ("_kill_the_broker", ["broker.kill()", "broker.start()"]),
        ("_restart_the_broker", ["broker.stop()", "broker.start()"]),
        ("_cut_the_client", ["proxy.cut(reset=True)"]),
        ("_hang_the_connection", ["proxy.both(swallow=True)", "proxy.cut()", "proxy.both()"]),
        ("_drop_acknowledgements", ["proxy.down(without=frozenset({4}))", "proxy.cut()", "proxy.both()"]),
        ("_slow_the_network_down", ["proxy.both(delay_s=0.2)", "proxy.both()"]),
    ],
)
def test_each_fault_is_over_when_it_returns(monkeypatch: pytest.MonkeyPatch, fault: str, calls: list[str]) -> None:
    """What it breaks it mends, but for what mends itself: a killed worker, a cut connection."""
    done: list[str] = []

    class Part:
        """Records the methods that are called."""

        def __init__(self, name: str) -> None:
            self._name = name

        def __getattr__(self, method: str) -> object:
            def record(*args: object, **options: object) -> None:
                words = [*map(repr, args), *(f"{name}={value!r}" for name, value in options.items())]
                done.append(f"{self._name}.{method}({', '.join(words)})")

            return record

    monkeypatch.setattr("time.sleep", lambda _: None)
    stage = soak._Stage(Part("broker"), Part("workers"), Part("proxy"))  # type: ignore[arg-type] # for the test
    (inject,) = (each for each in soak._FAULTS if each.__name__ == fault)
    inject(stage, 2)
    assert done == calls


def test_all_faults_have_a_case() -> None:
    """Of the test above."""
    assert len(soak._FAULTS) == 9

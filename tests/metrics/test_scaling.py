from __future__ import annotations

from mqinfer.client.registry import Registry
from mqinfer.metrics.lag import Lag
from mqinfer.metrics.scaling import Scaler, ScalingRule, SiteScaler
from mqinfer.protocol.states import ServedModel, WorkerState, WorkerStatus


def worker(answered: int, name: str = "w.0", incarnation: int = 1) -> WorkerState:
    """Return the state of a worker that needs a second for a request."""
    counters = {"ok": answered, "rejected": 99}
    return WorkerState(
        name, WorkerStatus.READY, incarnation, (ServedModel("m"),), service_time_us=1_000_000, counters=counters
    )


def test_what_comes_and_what_waits_call_for_workers() -> None:
    """A worker for each second of work a second, and those that answer what waits within `drain_s`."""
    scaler = Scaler(ScalingRule(drain_s=20, hold_s=0))
    needed = [scaler.update(float(at), Lag(pending=20), [worker(3 * at)]) for at in range(10)]
    assert needed[-1] == 4  # three a second come, and twenty wait


def test_a_claim_that_nothing_proves_starts_one_worker() -> None:
    """Whatever a client claims: a worker that answers nothing shows that nothing comes, and no second one starts."""
    scaler = Scaler()
    assert scaler.update(0.0, Lag(pending=1 << 20), []) == 1
    assert [scaler.update(at, Lag(pending=1 << 20), [worker(0)]) for at in (1.0, 9.0, 60.0)] == [1, 1, 1]


def test_a_claim_beside_true_requests_is_bounded_by_them() -> None:
    """Beside a client that keeps one worker busy the claim of another one starts three more, and no others."""
    scaler = Scaler(ScalingRule(growth=4, hold_s=0))
    needed = [scaler.update(float(at), Lag(pending=1 << 20), [worker(at)]) for at in range(30)]
    assert needed[-1] == 4


def test_a_worker_is_needed_for_a_while_after_it_was_last() -> None:
    """The largest number of the last `hold_s` counts; then there is none where nothing waits."""
    scaler = Scaler(ScalingRule(hold_s=15))
    assert scaler.update(0.0, Lag(pending=1), []) == 1
    needed = [scaler.update(float(at), Lag(), [worker(0)]) for at in range(1, 30)]
    assert needed == [1] * 15 + [0] * 14


def test_a_worker_that_starts_again_counts_from_its_new_start() -> None:
    """A counter that goes back is another process's: nothing is subtracted, and its first count is no burst."""
    scaler = Scaler(ScalingRule(hold_s=0))
    for at in range(10):
        scaler.update(float(at), Lag(), [worker(at)])
    needed = [scaler.update(10.0 + at, Lag(), [worker(at, incarnation=2)]) for at in range(8)]
    assert set(needed) == {1}


def test_whoever_asks_seldom_gets_means_of_the_time_between() -> None:
    """Asked every 15 s, as by Kubernetes, the rule sees the rate since the time before."""
    scaler = Scaler(ScalingRule(hold_s=0))
    assert [scaler.update(15.0 * step, Lag(), [worker(45 * step)]) for step in range(4)] == [0, 3, 3, 3]


def test_each_model_of_a_site_has_its_own_rule() -> None:
    """Workers count for the models that they serve, and a model that is gone is forgotten."""
    known, site = Registry(lambda: 0.0), SiteScaler()
    for at in range(8):
        known.put_worker("w.0", worker(2 * at))
        needed = site.update(known, {"m": Lag(), "k": Lag(pending=1)}, float(at))
    assert needed == {"m": 2, "k": 1}
    assert site.update(known, {"k": Lag(pending=1)}, 8.0) == {"k": 1}

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from mqinfer.bags.frame import Frame
from mqinfer.broker import make_link
from mqinfer.broker.link import Message, ignore_ack
from mqinfer.client.control import ControlClient, check_replies
from mqinfer.protocol.control import Call, Operation
from mqinfer.protocol.errors import ConfigError, MqinferError, NoWorker
from mqinfer.protocol.types import Stage
from tests.edge_agent.cascade.rig import Rig, frame_of
from tests.edge_agent.kept import Kept

EDGE, REUSE, WORKER = Stage.EDGE.value, Stage.REUSE.value, Stage.WORKER.value
CALL = Call(Operation.CASCADE)


@pytest.fixture
def operator(rig: Rig) -> Iterator[ControlClient]:
    """An operator on the same broker."""
    with ControlClient(rig.url, name="operator") as made:
        yield made


def each_after(kept: Kept, levels: list[float], at: Mapping[int, Callable[[], object]]) -> Iterator[Frame]:
    """Yield frames one by one; call something before some of them."""
    for number, level in enumerate(levels):
        kept.wait_for(number)
        at.get(number, lambda: None)()
        yield frame_of(number, level)


def test_thresholds_change_from_the_next_frame_on(rig: Rig, operator: ControlClient) -> None:
    """An operator reads them, changes them, and the next frame is decided by them."""
    rig.start("yolo")
    kept, name = Kept(), rig.requester.name

    def change(**changes: object) -> None:
        (reply,) = check_replies(operator.ask(CALL, {"parameters": changes}, server=name))
        assert reply.content["small"]["c_low"] == changes.get("c_low", 0.0)

    def read() -> None:
        (reply,) = check_replies(operator.ask(CALL, server=name))
        assert reply.content["target"] == "car"
        assert reply.content["difference"] == {"t_diff": 0.0, "against": "last", "blocks": 1}

    at = {1: read, 2: lambda: change(c_low=0.5), 4: lambda: change(c_low=0.0, t_diff=9.0)}
    frames = each_after(kept, [60.0] * 7, at)
    rig.run(frames, rig.settings(t_diff=0.0, small={"c_high": 0.9}), kept=kept)
    assert kept.stages == [WORKER, WORKER, EDGE, EDGE, WORKER, REUSE, REUSE]


def test_the_small_model_moves(rig: Rig, operator: ControlClient) -> None:
    """From the edge to the workers, and back."""
    rig.start("yolo", "is-car")
    kept, name = Kept(), rig.requester.name

    def move(where: str) -> None:
        check_replies(operator.ask(CALL, {"parameters": {"placement": where}}, server=name))

    frames = each_after(kept, [10.0] * 6, {2: lambda: move("cloud"), 4: lambda: move("edge")})
    rig.run(frames, rig.settings(small={"c_low": 0.3}), kept=kept)
    assert kept.stages == [EDGE] * 6
    assert [bool(result.worker) for result in kept.results] == [False, False, True, True, False, False]


@pytest.mark.parametrize(
    ("parameters", "reason"),
    [
        ({"c_low": 0.95}, "c_low = 0.95 is above c_high = 0.9"),
        ({"c_high": 2}, "c_high = 2: expected a confidence"),
        ({"t_diff": -1}, "t_diff = -1: expected 0 or more"),
        ({"t_diff": "4"}, "t_diff = '4': expected a finite number"),
        ({"t_diff": True}, "expected a finite number"),
        ({"t_diff": None}, "expected a finite number"),
        ({"placement": "moon"}, "placement = 'moon': expected one of edge, cloud"),
        ({"reference": "other"}, "'reference' can't be changed while a cascade runs; these can: t_diff"),
        ({"c_low": 0.2, "blocks": 5}, "'blocks' can't be changed"),
    ],
)
def test_bad_values_are_refused_and_change_nothing(
    rig: Rig, operator: ControlClient, parameters: dict[str, object], reason: str
) -> None:
    """The reply has the reason, and the cascade goes on as before."""
    rig.start("yolo")
    kept, name = Kept(), rig.requester.name
    before: list[object] = []

    def refuse() -> None:
        before.append(rig.cascade and rig.cascade.settings)
        with pytest.raises(ConfigError, match=reason.replace("(", r"\(")):
            check_replies(operator.ask(CALL, {"parameters": parameters}, server=name))
        assert rig.cascade
        assert before == [rig.cascade.settings]

    rig.run(
        each_after(kept, [10.0] * 2, {1: refuse}),
        rig.settings(t_diff=1.0, small={"c_low": 0.1, "c_high": 0.9}),
        kept=kept,
    )
    assert before


def test_what_is_no_call_is_ignored(rig: Rig, operator: ControlClient, unique: Callable[[str], str]) -> None:
    """Bytes that are no JSON get an error; a foreign Response Topic, or none, gets nothing."""
    rig.start("yolo")
    kept, name = Kept(), rig.requester.name
    topic = rig.requester.topics.control(name, "operator", "cascade")
    own = rig.requester.topics.edge_reply(name, "1")
    foreign = rig.requester.topics.control_result("operator", "1")

    def send() -> None:
        link = make_link(rig.url, client_id=unique("stranger"))
        link.open(10)
        for payload, response in (
            (b"\xff{", own),
            (b"[1]", own),
            (b"{}", foreign),
            (b"{}", None),
            (b"{", None),
        ):
            link.publish(Message(topic, payload, response_topic=response), ignore_ack)
        link.close()
        with pytest.raises(MqinferError, match="must be a map"):
            check_replies(operator.ask(CALL, {"parameters": [1]}, server=name))  # behind the others
        assert rig.cascade
        assert rig.cascade.settings.difference
        assert rig.cascade.settings.difference.t_diff == 1.0

    rig.run(each_after(kept, [10.0] * 3, {1: send}), rig.settings(t_diff=1.0), kept=kept)


def test_an_edge_that_is_not_there(operator: ControlClient) -> None:
    """The broker says so at once."""
    with pytest.raises(NoWorker):
        operator.ask(CALL, server="nobody", timeout=20.0)


def test_another_version_takes_over_between_two_frames(rig: Rig, operator: ControlClient, tmp_path: Path) -> None:
    """The edge states which it runs, and goes back by one call; versions that fail are refused, and it goes on."""
    rig.start("yolo")
    kept, name = Kept(), rig.requester.name
    rig.models = shutil.copytree(rig.models, tmp_path / "models")
    model = rig.models / "is-car"
    shutil.copytree(model / "1", model / "2")
    shutil.copytree(model / "1", model / "3")
    for path in (model / "3").iterdir():
        path.write_bytes(b"broken")

    def run(version: object) -> None:
        (reply,) = check_replies(operator.ask(CALL, {"parameters": {"version": version}}, server=name, timeout=60))
        assert reply.content["small"]["version"] == reply.content["runs"]["version"] == str(version)

    def refuse() -> None:
        for version, why in ((3, "3"), (9, "no version 9"), ("x", "a version's number"), (-1, "a version's number")):
            with pytest.raises(MqinferError, match=why):
                check_replies(operator.ask(CALL, {"parameters": {"version": version}}, server=name, timeout=60))
        (reply,) = check_replies(operator.ask(CALL, server=name))
        assert reply.content["runs"]["version"] == "2"

    frames = each_after(kept, [10.0] * 8, {2: lambda: run(2), 4: refuse, 6: lambda: run("1")})
    rig.run(frames, rig.settings(small={"c_low": 0.3, "version": "1"}), kept=kept)
    assert kept.stages == [EDGE] * 8
    assert [result.model_version for result in kept.results] == ["1", "1", "2", "2", "2", "2", "1", "1"]

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqinfer.broker.routes import compile_filter
from mqinfer.protocol.control import Call, Operation
from mqinfer.protocol.errors import BadTopic
from mqinfer.protocol.topics import InferAddress, TopicKind, Topics, check_name, may_reply

names = st.from_regex(r"[a-z0-9][a-z0-9_.-]{0,63}", fullmatch=True).filter(lambda name: name != "control")
requests = st.from_regex(r"[A-Za-z0-9_.-]{1,64}", fullmatch=True)
versions = st.integers(0, 10**18).map(str)
RULES = {"version": versions, "request": requests, "stream": requests, "path": st.sampled_from([*Operation, "a/b"])}
topics = Topics()
KINDS = [
    topics.channel,
    topics.version_channel,
    topics.lane,
    topics.cancel,
    topics.result,
    topics.card,
    topics.worker_state,
    topics.client_state,
    topics.previews,
    topics.answers,
    topics.control,
    topics.control_result,
    topics.control_state,
    topics.edge_reply,
]
BAD_NAMES = ["", "A", "-a", "_a", ".a", "a/b", "+", "#", "a+", "a#", "a\0", "a b", "ä", "a" * 65, "$share", "a\n"]


def draw_names(data: st.DataObject, kind: TopicKind) -> dict[str, str]:
    """Draw a name for each of a topic's."""
    found = [level[1:-1] for level in kind.levels if level[0] == "{"]
    return {name: data.draw(RULES.get(name, names)) for name in found}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.template)
@given(data=st.data())
def test_a_topic_gives_its_names_back(kind: TopicKind, data: st.DataObject) -> None:
    """Each kind's, and every filter for some of the names covers it."""
    wanted = draw_names(data, kind)
    topic = kind(*wanted.values())
    assert kind.parse(topic) == wanted
    some = data.draw(st.sets(st.sampled_from(sorted(wanted))))
    assert compile_filter(kind.filter(**{name: wanted[name] for name in some})).fullmatch(topic)


@given(names, names, st.none() | versions, names)
def test_requests_give_their_address_back(model: str, client: str, version: str | None, worker: str) -> None:
    """On a shared channel, on that of a version, and on a lane."""
    topic = topics.infer(model, client, version)
    assert topics.parse_infer(topic) == InferAddress(model, version, client, None)
    assert topics.infer_filter(model, version) == topic.removesuffix(client) + "+"
    assert topics.parse_infer(topics.lane(worker, model, client)) == InferAddress(model, None, client, worker)


@given(names, st.text())
def test_preview_topic_is_parsed_back(client: str, source: str) -> None:
    """Whatever a stream is called, the topic of its previews gives back the client."""
    assert topics.previews.parse(topics.preview(client, source))["client"] == client


@pytest.mark.parametrize(
    ("source", "level"),
    [
        ("/camera/front", "camera_front"),
        ("drive.bag", "drive.bag"),
        ("a+b#c d", "a_b_c_d"),
        ("/ /", "stream"),
        ("", "stream"),
        ("x" * 80, "x" * 64),
    ],
)
def test_levels_of_streams(source: str, level: str) -> None:
    """Readable where the name was, and never a wildcard or a further level."""
    assert topics.preview("c", source) == f"mqinfer/v1/clients/c/preview/{level}"


def test_topics_are_those_of_the_design() -> None:
    """Every topic and filter, letter by letter."""
    made = {
        topics.infer("m", "c"): "models/m/infer/c",
        topics.infer("m", "c", "3"): "models/m/versions/3/infer/c",
        topics.infer_filter("m"): "models/m/infer/+",
        topics.infer_filter("m", "3"): "models/m/versions/3/infer/+",
        topics.lane("w", "m", "c"): "workers/w/infer/m/c",
        topics.lane.filter(worker="w"): "workers/w/infer/+/+",
        topics.cancel("m", "c"): "models/m/cancel/c",
        topics.cancel.filter(model="m"): "models/m/cancel/+",
        topics.result("m", "c", "R"): "results/m/c/R",
        topics.result.filter(client="c"): "results/+/c/+",
        topics.result.filter(model="m"): "results/m/+/+",
        topics.card("m"): "models/m/card",
        topics.card.filter(): "models/+/card",
        topics.worker_state("w"): "workers/w/state",
        topics.worker_state.filter(): "workers/+/state",
        topics.client_state("c"): "clients/c/state",
        topics.client_state.filter(): "clients/+/state",
        topics.preview("c", "s"): "clients/c/preview/s",
        topics.previews.filter(): "clients/+/preview/+",
        topics.answers("m", "c", "s"): "answers/m/c/s",
        topics.answers.filter(): "answers/+/+/+",
        topics.control("s", "c", Call(Operation.LOAD, "m").path): "control/s/c/repository/models/m/load",
        topics.control("all", "c", Call(Operation.INDEX).path): "control/all/c/repository/index",
        topics.control("s", "c", Call(Operation.CONFIG, "m", "3").path): "control/s/c/models/m/versions/3/config",
        topics.control("s", "c", Call(Operation.METADATA, "m", "3").path): "control/s/c/models/m/versions/3",
        topics.control.filter(server="s"): "control/s/+/#",
        topics.control.filter(server="e", path=Operation.CASCADE): "control/e/+/cascade",
        topics.control_state("s"): "control/s/state",
        topics.control_state.filter(): "control/+/state",
        topics.control_result("c", "R"): "results/control/c/R",
        topics.control_result.filter(client="c"): "results/control/c/+",
        topics.edge_reply("e", "R"): "clients/e/control/R",
        topics.edge_reply.filter(client="e"): "clients/e/control/+",
    }
    assert {topic: f"mqinfer/v1/{path}" for topic, path in made.items()} == {topic: topic for topic in made}


@pytest.mark.parametrize("name", BAD_NAMES)
def test_bad_names_are_refused_everywhere(name: str) -> None:
    """A name outside the rule is refused by the check and by every builder, and the message says the rule."""
    with pytest.raises(BadTopic, match=r"client .* expected 1 to 64"):
        check_name("client", name)
    builders: list[Callable[[], str]] = [
        lambda: topics.infer("m", name),
        lambda: topics.lane(name, "m", "c"),
        lambda: topics.result("m", name, "r"),
        lambda: topics.worker_state(name),
        lambda: topics.client_state(name),
        lambda: topics.preview(name, "s"),
    ]
    for build in builders:
        with pytest.raises(BadTopic):
            build()


@pytest.mark.parametrize("name", [name for name in BAD_NAMES if name not in {"A", "_a"}])
def test_bad_names_of_models_are_refused_everywhere(name: str) -> None:
    """So is a model's name, which may have capitals and an underscore in front."""
    with pytest.raises(BadTopic, match=r"model .* expected 1 to 64"):
        check_name("model", name)
    for build in (topics.card, lambda name: topics.infer(name, "c"), lambda name: topics.result(name, "c", "r")):
        with pytest.raises(BadTopic):
            build(name)


@pytest.mark.parametrize("name", ["Inception_V3", "YOLOv5", "_ensemble", "A", "1_B.2-c"])
def test_names_of_existing_triton_repositories(name: str) -> None:
    """Capitals are kept as they are: topics are case sensitive, and so are most file systems."""
    assert topics.parse_infer(topics.infer(name, "c")).model == name
    assert topics.parse_infer(topics.lane("w", name, "c")).model == name
    assert topics.result.parse(topics.result(name, "c", "r"))["model"] == name
    assert topics.card.parse(topics.card(name))["model"] == name
    assert may_reply(topics, topics.result(name, "c", "r"), name, "c")
    assert not may_reply(topics, topics.result(name, "c", "r"), name.swapcase(), "c") or name == name.swapcase()
    with pytest.raises(BadTopic, match="client"):
        topics.infer("m", "Client")


@pytest.mark.parametrize("version", ["", "01", "-1", "+", "1.0", "a", "²", "9" * 20])
def test_bad_versions_are_refused(version: str) -> None:
    """A version is a decimal integer."""
    with pytest.raises(BadTopic, match="version"):
        topics.infer("m", "c", version)


@pytest.mark.parametrize("request_id", ["", "a/b", "+", "#", "a b", "a" * 65, "\0", "ü"])
def test_bad_request_ids_are_refused(request_id: str) -> None:
    """A request id in a topic keeps to its rule."""
    with pytest.raises(BadTopic, match="request id"):
        topics.result("m", "c", request_id)


@pytest.mark.parametrize("root", ["", "/", "a/", "/a", "a//b", "a/+", "#", "a\0", "$SYS", "a\n", "a" * 300])
def test_bad_roots_are_refused(root: str) -> None:
    """A root has no wildcard and no empty level."""
    with pytest.raises(BadTopic, match="root"):
        Topics(root)


def test_another_root_separates_sites() -> None:
    """Topics of one root mean nothing to another."""
    other = Topics("site/b")
    assert other.parse_infer(other.infer("m", "c")).model == "m"
    with pytest.raises(BadTopic, match="site/b"):
        other.parse_infer(topics.infer("m", "c"))


@given(st.text(max_size=60) | st.text("abc/+#$\0", max_size=30).map(lambda rest: f"mqinfer/v1/{rest}"))
def test_parsers_raise_nothing_but_bad_topic(topic: str) -> None:
    """Whatever comes is parsed or refused."""
    for parse in (topics.parse_infer, *(kind.parse for kind in KINDS)):
        with suppress(BadTopic):
            parse(topic)


@pytest.mark.parametrize(
    ("response_topic", "allowed"),
    [
        ("mqinfer/v1/results/m/c/r1", True),
        ("mqinfer/v1/results/m/d/r1", False),
        ("mqinfer/v1/results/n/c/r1", False),
        ("mqinfer/v1/results/m/c", False),
        ("mqinfer/v1/results/m/c/", False),
        ("mqinfer/v1/results/m/c/r1/x", False),
        ("mqinfer/v1/results/m/c/+", False),
        ("mqinfer/v1/results/m/c/../d/r", False),
        ("mqinfer/v1/models/m/infer/c", False),
        ("", False),
    ],
)
def test_a_worker_answers_only_below_the_senders_results(response_topic: str, allowed: bool) -> None:  # noqa: FBT001 -- a column of the table
    """No client can make a worker write into another's results."""
    assert may_reply(topics, response_topic, "m", "c") is allowed

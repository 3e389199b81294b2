from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqinfer.protocol.errors import BadTopic
from mqinfer.protocol.topics import InferAddress, Topics, check_name, may_reply

names = st.from_regex(r"[a-z0-9][a-z0-9_.-]{0,63}", fullmatch=True)
requests = st.from_regex(r"[A-Za-z0-9_.-]{1,64}", fullmatch=True)
versions = st.integers(0, 10**18).map(str)
topics = Topics()
BAD_NAMES = ["", "A", "-a", "_a", ".a", "a/b", "+", "#", "a+", "a#", "a\0", "a b", "ä", "a" * 65, "$share", "a\n"]


@given(names, names, st.none() | versions)
def test_infer_topic_is_parsed_back(model: str, client: str, version: str | None) -> None:
    """A shared channel's topic gives back model, version and client, and the filter covers it."""
    topic = topics.infer(model, client, version)
    assert topics.parse_infer(topic) == InferAddress(model, version, client, None)
    assert topics.infer_filter(model, version) == topic.removesuffix(client) + "+"


@given(names, names, names)
def test_lane_is_parsed_back(worker: str, model: str, client: str) -> None:
    """A lane's topic gives back worker, model and client."""
    topic = topics.lane(worker, model, client)
    assert topics.parse_infer(topic) == InferAddress(model, None, client, worker)
    assert topic.startswith(topics.lane.filter(worker=worker).removesuffix("+/+"))


@given(names, names, requests)
def test_result_topic_is_parsed_back(model: str, client: str, request: str) -> None:
    """A result topic gives back model, client and request."""
    assert topics.result.parse(topics.result(model, client, request)) == {
        "model": model,
        "client": client,
        "request": request,
    }


@given(names, st.text())
def test_preview_topic_is_parsed_back(client: str, source: str) -> None:
    """Whatever a stream is called, the topic of its previews gives back the client, and the filter covers it."""
    topic = topics.preview(client, source)
    assert topics.previews.parse(topic)["client"] == client
    assert topic.count("/") == topics.previews.filter().count("/")


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


@given(names)
def test_card_and_state_topics_are_parsed_back(name: str) -> None:
    """Card and state topics give back their names."""
    assert topics.card.parse(topics.card(name))["model"] == name
    assert topics.worker_state.parse(topics.worker_state(name))["worker"] == name


def test_topics_are_those_of_the_design() -> None:
    """Every topic and filter, letter by letter."""
    found = [
        topics.infer("m", "c"),
        topics.infer("m", "c", "3"),
        topics.infer_filter("m"),
        topics.infer_filter("m", "3"),
        topics.lane("w", "m", "c"),
        topics.lane.filter(worker="w"),
        topics.result("m", "c", "R"),
        topics.result.filter(client="c"),
        topics.result.filter(model="m"),
        topics.card("m"),
        topics.card.filter(),
        topics.worker_state("w"),
        topics.worker_state.filter(),
        topics.client_state("c"),
        topics.client_state.filter(),
        topics.preview("c", "s"),
        topics.previews.filter(),
    ]
    assert found == [
        "mqinfer/v1/models/m/infer/c",
        "mqinfer/v1/models/m/versions/3/infer/c",
        "mqinfer/v1/models/m/infer/+",
        "mqinfer/v1/models/m/versions/3/infer/+",
        "mqinfer/v1/workers/w/infer/m/c",
        "mqinfer/v1/workers/w/infer/+/+",
        "mqinfer/v1/results/m/c/R",
        "mqinfer/v1/results/+/c/+",
        "mqinfer/v1/results/m/+/+",
        "mqinfer/v1/models/m/card",
        "mqinfer/v1/models/+/card",
        "mqinfer/v1/workers/w/state",
        "mqinfer/v1/workers/+/state",
        "mqinfer/v1/clients/c/state",
        "mqinfer/v1/clients/+/state",
        "mqinfer/v1/clients/c/preview/s",
        "mqinfer/v1/clients/+/preview/+",
    ]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_bad_names_are_refused_everywhere(name: str) -> None:
    """A name outside the rule is refused by the check and by every builder, and the message says the rule."""
    with pytest.raises(BadTopic, match=r"client .* expected 1 to 64"):
        check_name("client", name)
    builders: list[Callable[[], str]] = [
        lambda: topics.infer("m", name),
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
    parsers = (
        topics.parse_infer,
        topics.result.parse,
        topics.worker_state.parse,
        topics.card.parse,
        topics.previews.parse,
        topics.control.parse,
    )
    for parse in parsers:
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

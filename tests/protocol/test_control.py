from __future__ import annotations

from contextlib import nullcontext, suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqinfer.protocol.control import Call, Operation, read_path
from mqinfer.protocol.errors import BadTopic
from mqinfer.protocol.topics import Topics, answer_topic, check_name

names = st.from_regex(r"[a-z0-9][a-z0-9_.-]{0,63}", fullmatch=True).filter(lambda name: name != "control")
versions = st.none() | st.integers(0, 10**18).map(str)
versioned = [each for each in Operation if each.startswith("models/{model}")]
plain = [each for each in Operation if "{" not in each]
calls = st.one_of(
    st.builds(Call, st.sampled_from(plain)),
    st.builds(Call, st.sampled_from([Operation.LOAD, Operation.UNLOAD]), names),
    st.builds(lambda each, name: Call(each, worker=name), st.sampled_from([Operation.DRAIN, Operation.UNDRAIN]), names),
    # A model that is called `stats` can be asked about by a version only: `models/stats` means all models.
    st.builds(Call, st.sampled_from(versioned), names.filter(lambda name: name != "stats"), versions),
)
topics = Topics()


@given(calls)
def test_a_call_is_read_back_from_its_path(call: Call) -> None:
    """Operation, model and version come out as they went in."""
    assert read_path(call.path) == call


@pytest.mark.parametrize(
    "path",
    ["", "nonsense", "models", "models/", "models/-A", "models/A+", "models/../load",
     "models/m/x", "models/m/versions", "repository",
     "models/m/versions/01", "models/m/versions/1/load", "repository/models/m", "repository/models/m/load/x",
     "repository/models/../load", "repository/models/control/load", "models/m/ready/x"],
)  # fmt: skip
def test_other_paths_are_refused(path: str) -> None:
    """No operation, no name outside the rules, and no way up in the file system."""
    with pytest.raises(BadTopic):
        read_path(path)


@given(st.lists(st.sampled_from(["repository", "models", "versions", "load", "1", "m", "ready", "", "..", "#"])))
def test_reading_a_path_raises_nothing_else(path: list[str]) -> None:
    """Whatever levels come."""
    with suppress(BadTopic):
        read_path("/".join(path))


@pytest.mark.parametrize(
    ("response_topic", "allowed"),
    [
        ("mqinfer/v1/results/control/c/1", True),
        ("mqinfer/v1/results/control/d/1", False),
        ("mqinfer/v1/results/m/c/1", False),
        ("mqinfer/v1/results/control/c/", False),
        ("mqinfer/v1/results/control/c/1/2", False),
        ("mqinfer/v1/results/control/c/+", False),
        ("mqinfer/v1/control/s/state", False),
        ("", False),
    ],
)
def test_a_server_answers_only_below_the_senders_results(response_topic: str, allowed: bool) -> None:  # noqa: FBT001 -- a column of the table
    """No operator can make a server write elsewhere."""
    with nullcontext() if allowed else pytest.raises(BadTopic, match="results/control/c/"):
        assert answer_topic(topics.control_result, response_topic, "c") == response_topic


def test_no_model_may_be_called_control() -> None:
    """Its results would lie where servers answer."""
    with pytest.raises(BadTopic, match="reserved for topics"):
        check_name("model", "control")
    assert check_name("client", "control") == "control"


@pytest.mark.parametrize(
    "call",
    [Call(Operation.LOAD, name) for name in ("", "a/b#", "+", "good\nevil", "control")]
    + [Call(Operation.DRAIN, worker="a/b"), Call(Operation.MODEL_READY, "a b", "1")],
)
def test_a_wrong_name_is_refused_by_its_rule(call: Call) -> None:
    """The message is about the name, and has no topic that the caller never wrote."""
    with pytest.raises(BadTopic, match=r"^(model|worker) ") as caught:
        _ = call.path
    assert "mqinfer/" not in str(caught.value)
    assert "repository/" not in str(caught.value)

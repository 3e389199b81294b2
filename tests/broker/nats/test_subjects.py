"""Topics as NATS subjects, both ways."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqinfer.broker.nats.subjects import KEPT, RETAINED, pattern, subject, topic
from mqinfer.broker.routes import compile_filter, is_suitable
from mqinfer.protocol.errors import BadTopic

TABLE = [
    ("mqinfer/v1/models/seg/infer/car-7", "mqtt.mqinfer.v1.models.seg.infer.car-7.live"),
    ("site/models/v1.2/infer/a_b", "mqtt.site.models.v1%2E2.infer.a_b.live"),
    ("a b/100%/*/>", "mqtt.a%20b.100%25.%2A.%3E.live"),
    ("/a//", "mqtt.%.a.%.%.live"),
    ("$SYS/grüße", "mqtt.$SYS.grüße.live"),
]
levels = st.text(st.characters(blacklist_characters="/+#", blacklist_categories=("Cs", "Cc")), max_size=6)
topics = st.lists(levels, min_size=1, max_size=5).map("/".join).filter(lambda text: bool(text) and is_suitable(text))


def matches(name: str, wanted: str) -> bool:
    """Whether NATS delivers a subject to a subscription."""
    parts = [{"*": "[^.]+", ">": ".+"}.get(part, re.escape(part)) for part in wanted.split(".")]
    return re.fullmatch(r"\.".join(parts), name) is not None


@pytest.mark.parametrize(("of_mqtt", "of_nats"), TABLE)
def test_the_table(of_mqtt: str, of_nats: str) -> None:
    """Each line of the protocol's table holds in both directions."""
    assert (subject(of_mqtt), topic(of_nats)) == (of_nats, of_mqtt)


@given(topics)
def test_there_and_back(text: str) -> None:
    """Every topic comes back as it was, and its subject is one that NATS accepts."""
    name = subject(text, KEPT, RETAINED)
    assert topic(name) == text
    assert all(name.split("."))
    assert not re.search(r"[*> \t\r\n]", name)


@given(st.data(), topics)
def test_filters_match_alike(data: st.DataObject, text: str) -> None:
    """A filter's pattern matches the subject of a topic exactly where the filter matches the topic."""
    parts = data.draw(st.permutations(text.split("/")))
    parts = [data.draw(st.sampled_from([part, "+"])) for part in parts]
    if data.draw(st.booleans()):
        parts[-1] = "#"
    topic_filter = "/".join(parts)
    if topic_filter and not text.startswith("$"):
        found = matches(subject(text), pattern(topic_filter))
        assert found == (compile_filter(topic_filter).fullmatch(text) is not None)


def test_what_is_too_long() -> None:
    """A subject that would end the connection is refused."""
    with pytest.raises(BadTopic, match="3000 bytes"):
        subject("x" * 3000)
    with pytest.raises(BadTopic, match="3000 bytes"):
        pattern("x" * 3000 + "/#")

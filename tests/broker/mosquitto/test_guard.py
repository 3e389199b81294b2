"""The guard's decisions, without a broker: what a log line reports, what may be retained, who has too much."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqinfer.broker.mosquitto.access import (
    GUARD,
    guarded_filters,
    guarded_rules,
    most_connections,
    put_section,
)
from mqinfer.broker.mosquitto.connection import (
    Connection,
    Door,
    Kept,
    clearing,
    connecting,
    subscribing,
    taking_over,
)
from mqinfer.broker.mosquitto.guard import Offence, offence
from mqinfer.broker.mosquitto.logins import Came, Left, Logins, Refusals, Unreadable, read_line
from mqinfer.broker.roles import Role, access_rules
from mqinfer.broker.routes import compile_filter
from mqinfer.protocol.errors import BadTopic
from mqinfer.protocol.topics import Topics, check_name

STAMP = "2026-11-22T01:38:15: "
HOSTILE = st.one_of(
    st.text(st.characters(exclude_categories=("Cc", "Cs")), min_size=1, max_size=200),
    st.lists(
        st.sampled_from(
            [
                "car-2",
                " (p5, c1, k60, u'car-2').",
                " (p5, c1, k60).",
                "New client connected from 1.2.3.4:5 as ",
                STAMP,
                " closed its connection.",
                " disconnected.",
                " disconnected due to protocol error.",
                "Client ",
                "'",
                ")",
                " as ",
            ]
        ),
        min_size=1,
        max_size=8,
    ).map("".join),
)


def cut(line: str) -> str:
    """A line as Mosquitto logs it and its reader decodes it."""
    return line.encode()[:999].decode(errors="backslashreplace") + "\n"


@given(HOSTILE, st.sampled_from(["client", "bridge"]), st.sampled_from([0, 1]))
def test_a_client_id_forges_no_login(client_id: str, kind: str, clean: int) -> None:
    """Whatever an id holds, the login is the one that Mosquitto put behind it, and the id is whole."""
    line = f"{STAMP}New {kind} connected from 10.0.0.1:5 as {client_id} (p5, c{clean}, k60, u'car-1').\n"
    assert read_line(line) == Came(client_id, "car-1")
    anonymous = f"{STAMP}New {kind} connected from 10.0.0.1:5 as {client_id} (p5, c{clean}, k60).\n"
    assert read_line(anonymous) == Came(client_id, None)


@given(HOSTILE, st.integers(900, 1100), st.sampled_from(["é", "x", "\U0001f697"]))
def test_a_line_that_was_cut_names_nobody(tail: str, length: int, letter: str) -> None:
    """An id that is as long as the line, and ends in what looks like a login, is not believed."""
    start = f"{STAMP}New client connected from 10.0.0.1:5 as "
    room = length - len(start.encode()) - len(tail.encode())
    client_id = letter * (room // len(letter.encode())) + tail
    line = f"{start}{client_id} (p5, c1, k60, u'car-1')."
    found = read_line(cut(line))
    assert found == (Came(client_id, "car-1") if len(line.encode()) < 999 else Unreadable("10.0.0.1:5"))


def test_a_login_that_was_forged_by_the_cut() -> None:
    """The id ends exactly where the line does."""
    start, end = f"{STAMP}New client connected from 10.0.0.1:5 as victim", " (p5, c1, k60, u'car-2')."
    forged = start + "x" * (999 - len(start) - len(end)) + end
    assert len(forged) == 999
    assert read_line(cut(forged + " (p5, c1, k60, u'car-1').")) == Unreadable("10.0.0.1:5")


@given(HOSTILE)
def test_other_lines(client_id: str) -> None:
    """An id in another line never makes a connection of it, and an end is that of the whole id."""
    for words in ("already connected, closing old connection.", "negotiated TLSv1.3 cipher TLS_AES_256_GCM_SHA384"):
        assert not isinstance(read_line(f"{STAMP}Client {client_id} {words}\n"), Came)
    ends = (
        "disconnected.",
        "closed its connection.",
        "has exceeded timeout, disconnecting.",
        "disconnected due to out of memory.",
        "disconnected: Connection reset by peer.",
    )
    for words in ends:
        assert read_line(f"{STAMP}Client {client_id} {words}\n") == Left(client_id)
    assert read_line(f"{STAMP}mosquitto version 2.0.11 running\n") is None
    assert read_line("") is None


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.sampled_from(["u", "v", ""]))), st.integers(0, 4))
def test_logins_against_a_plain_model(events: list[tuple[str, str]], limit: int) -> None:
    """Ids belong to the login that came last; what is too many is counted a login, and ended in a fixed order."""
    logins, owner = Logins(), dict[str, str]()
    for client_id, user in events:
        if user:
            logins.came(client_id, user)
            owner[client_id] = user
        else:
            logins.left(client_id)
    for user in "uv":
        held = {client_id for client_id, each in owner.items() if each == user}
        assert set(logins.ids(user)) == held
        ended = [client_id for each, client_id in logins.surplus(lambda _: limit) if each == user]
        assert len(ended) == max(0, len(held) - limit)
        assert set(ended) <= held
        for client_id in ended:
            logins.forget(client_id)
        assert len(logins.ids(user)) == min(limit, len(held))


def test_refused_logins_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    """By reason, with the address that was the last to connect, at the 1st, 2nd, 4th, … time; no id forges one."""
    refusals = Refusals()
    for _ in range(5):
        refusals.observe(f"{STAMP}New connection from 10.0.0.7:5 on port 8884.\n")
        refusals.observe(f"{STAMP}Client <unknown> disconnected, not authorised.\n")
    refusals.observe(f"{STAMP}OpenSSL Error[0]: error:0A000086:SSL routines::certificate verify failed\n")
    refusals.observe(f"{STAMP}Client x Client <unknown> disconnected, not authorised.\n")
    assert [record.getMessage() for record in caplog.records] == [
        *(
            f"refused a login (unknown name or wrong password: {number}); the last to connect came from 10.0.0.7"
            for number in (1, 2, 4)
        ),
        "refused a login (certificate verify failed: 1); the last to connect came from 10.0.0.7",
    ]


def test_who_came_first_stays() -> None:
    """Sessions without a connection go first, then the connections that came last."""
    logins = Logins()
    for client_id in ("first", "gone", "second", "third"):
        logins.came(client_id, "u")
    logins.left("gone")
    assert [client_id for _, client_id in logins.surplus(lambda _: 1)] == ["gone", "third", "second"]


def test_ids_that_have_gone_are_bounded() -> None:
    """A login that comes and goes without end takes no more memory than a thousand ids."""
    logins = Logins()
    for number in range(3000):
        logins.came(str(number), "u")
        logins.left(str(number))
    assert len(logins.ids("u")) == 1000


@pytest.mark.parametrize(
    ("path", "size", "retained", "expected"),
    [
        ("models/m/infer/car-1", 1, True, "car-1"),
        ("models/m/infer/car-1", 1, False, None),
        ("models/m/infer/car-1", 0, True, None),
        ("models/m/versions/3/infer/car-1", 1, True, "car-1"),
        ("models/\u00fc b/versions/x y/infer/car-1", 1, True, "car-1"),
        ("models/state/infer/card", 1, True, "card"),
        ("workers/w.0/infer/m/car-1", 1, True, "car-1"),
        ("workers/state/infer/state/state", 1, True, "state"),
        ("models/m/cancel/car-1", 1, True, "car-1"),
        ("control/w/ann/repository/index", 1, True, "ann"),
        ("control/w/ann", 1, True, "ann"),
        ("control/w/state", 65536, True, None),
        ("control/w/state", 65537, True, "w"),
        ("clients/car-1/state", 65536, True, None),
        ("clients/car-1/state", 65537, False, "car-1"),
        ("workers/w.0/state", 65537, True, "w.0"),
        ("models/m/card", 1 << 20, True, None),
        ("models/m/card", (1 << 20) + 1, True, ""),
        ("results/m/car-1/r", 1, True, ""),
        ("results/m/car-1/r", 1, False, None),
    ],
)
def test_what_may_be_retained(path: str, size: int, *, retained: bool, expected: str | None) -> None:
    """States and cards within their limits, and nothing else; results and cards name no sender to rely on."""
    found = offence(path, Kept(f"mqinfer/v1/{path}", size, retained))
    assert found == (None if expected is None else Offence(expected or None, found.what if found else ""))


@pytest.mark.parametrize("role", list(Role))
def test_all_that_a_role_may_retain_is_looked_at(role: Role) -> None:
    """Each filter that a client may write to is one that the guard looks at, below every root that is in use."""
    for root in ("mqinfer/v1", "other/site"):
        rules = access_rules(role, "me", Topics(root), 2)
        text = put_section(
            put_section("", Role.VEHICLE, "car-9", access_rules(Role.VEHICLE, "car-9", Topics())), role, "me", rules
        )
        filters = guarded_filters(text)
        looked_at = [compile_filter(each).fullmatch for each in (*filters.swept, *filters.watched)]
        for rule in rules:
            right, _, topic_filter = rule.partition(" ")
            topic = topic_filter.replace("+", "x").replace("#", "y")
            if right != "read":
                assert any(matches(topic) for matches in looked_at), topic
        for each in (*filters.swept, *filters.watched):
            assert f"topic readwrite {each}\n" in guarded_rules(text, ())


def test_who_may_have_how_many_connections() -> None:
    """16 for everybody that the rules name, also by hand, and two more for each process of a worker."""
    text = put_section("", Role.VEHICLE, "car-1", access_rules(Role.VEHICLE, "car-1", Topics()))
    text = put_section(text, Role.WORKER, "w", access_rules(Role.WORKER, "w", Topics(), 64))
    text += "\nuser by-hand\n# mine\ntopic readwrite #\n"
    assert most_connections(text) == {"car-1": 16, "w": 16 + 128, "by-hand": 16}
    assert GUARD not in most_connections(text)


def test_suspending_takes_the_rules_and_leaves_the_others() -> None:
    """A suspended client has no rule left; every other line stays, comments and lines by hand too."""
    text = put_section("", Role.VEHICLE, "car-1", access_rules(Role.VEHICLE, "car-1", Topics()))
    text = put_section(text, Role.VEHICLE, "car-11", access_rules(Role.VEHICLE, "car-11", Topics()))
    text += "\nuser by-hand\n# mine\ntopic readwrite #\n"
    all_of, without = (guarded_rules(text, names).splitlines() for names in ((), {"car-1"}))
    start = all_of.index("user car-1") + 1
    rules = [f"topic {rule}" for rule in access_rules(Role.VEHICLE, "car-1", Topics())]
    assert all_of[start : start + len(rules)] == rules
    assert without == all_of[:start] + all_of[start + len(rules) :]


def test_the_guards_name_is_nobodys() -> None:
    """No client can have it."""
    with pytest.raises(BadTopic):
        check_name("client", GUARD)


@pytest.mark.parametrize("answer", [b"\x20\x02\x00\x05", b"\x20"])
def test_a_refused_connection_is_closed(answer: bytes) -> None:
    """At once, also while the error is kept: not when something collects it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def refuse() -> bytes:
            peer, _ = listener.accept()
            with peer:
                peer.settimeout(60)
                peer.recv(100)
                peer.sendall(answer)
                peer.shutdown(socket.SHUT_WR)
                return peer.recv(100)

        with ThreadPoolExecutor(1, "refuse") as pool:
            ended = pool.submit(refuse)
            with pytest.raises(ConnectionError) as refused:
                Connection(Door("127.0.0.1", listener.getsockname()[1]), "guard")
            assert ended.result(60) == b""
        assert "the guard's connection" in str(refused.value)


def test_packets() -> None:
    """Byte by byte, after MQTT 3.1.1; lengths from 128 take two bytes."""
    assert connecting("ab").hex() == "100e" + "00044d51545404" + "02" + "000f" + "00026162"
    assert subscribing(["a/+"]).hex() == "8208" + "0001" + "0003612f2b" + "01"
    assert taking_over("ab").hex() == "100f" + "00044d51545405" + "00" + "000f" + "00" + "00026162"
    assert clearing("a").hex() == "3103" + "000161"
    assert clearing("x" * 200)[:4].hex() == "31ca01" + "00"

"""The folder of a secured broker: what it holds, who may read it, and what names do to it."""

from __future__ import annotations

import errno
import re
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from cryptography import x509
from hypothesis import given, settings
from hypothesis import strategies as st

from mqinfer.broker.mosquitto import BrokerFolder, Ports, Role, access_rules
from mqinfer.broker.mosquitto.access import put_section, sections, without_section
from mqinfer.broker.mosquitto.certificates import Authority, Pair, check_host
from mqinfer.broker.mosquitto.configuration import ports_of, render, render_secure, with_place, with_port
from mqinfer.broker.mosquitto.files import hash_password, put_password, without_password, write_file
from mqinfer.broker.roles import DEFAULT_SUBS
from mqinfer.broker.routes import compile_filter
from mqinfer.cli.exit_codes import ExitCode, exit_code
from mqinfer.protocol.errors import BadTopic, ConfigError, MqinferError
from mqinfer.protocol.topics import Topics
from tests.broker.attempts import options

NAMES = st.from_regex(r"[a-z0-9][a-z0-9_.-]{0,40}", fullmatch=True)


@pytest.fixture
def folder(tmp_path: Path) -> BrokerFolder:
    """One that was just begun."""
    made = BrokerFolder(tmp_path / "broker")
    made.init(["broker.example.org", "10.0.0.5"], Ports(18883, 18884, 19001, "127.0.0.1"))
    return made


def test_files_and_who_may_read_them(folder: BrokerFolder) -> None:
    """Keys, passwords and rules are their owner's alone; certificates are everybody's."""
    folder.add(Role.VEHICLE, "car-1")
    files = {str(path.relative_to(folder.path)) for path in folder.path.rglob("*") if path.is_file()}
    secret = {"ca.key", "broker.key", "acl", "passwords", "certificates", "group", "clients/car-1.key"}
    assert files == {"mosquitto.conf", "ca.crt", "broker.crt", "revoked.pem", "clients/car-1.crt", *secret}
    for name in files:
        assert stat.S_IMODE((folder.path / name).stat().st_mode) == (0o600 if name in secret else 0o644), name


def test_every_limit_of_the_open_broker_is_there(folder: BrokerFolder) -> None:
    """The configuration is the packaged one, but for who may come in and where."""
    text = options(folder.configuration())
    open_ones = [line for line in options(render(1)) if not line.startswith(("listener", "allow_anonymous"))]
    assert [line for line in open_ones if line not in text] == []
    assert "allow_anonymous false" in text
    assert "allow_anonymous true" not in text
    assert text.count("require_certificate true") == text.count("use_identity_as_username true") == 1
    assert text.count("certfile broker.crt") == 3
    assert folder.ports() == Ports(18883, 18884, 19001, "127.0.0.1")
    assert ports_of(with_port(folder.configuration(), 5)) == Ports(5, 18884, 19001, "127.0.0.1")
    with pytest.raises(ConfigError, match="no line such as: listener 8883"):
        ports_of("# listener 1883\n")


def test_beginning_again_renews_the_brokers_certificate_alone(folder: BrokerFolder) -> None:
    """The authority, the rules, the passwords and a configuration that was changed by hand stay."""
    folder.add(Role.DASHBOARD, "dash", by_password=True)
    folder.configuration_file.write_text(folder.configuration() + "# mine\n")
    before = {path: path.read_bytes() for path in folder.path.rglob("*") if path.is_file()}
    folder.init(["other.example.org"])
    changed = {path.name for path, content in before.items() if path.read_bytes() != content}
    assert changed == {"broker.crt", "broker.key"}


def test_certificates(folder: BrokerFolder) -> None:
    """Names, purposes and lifetimes."""
    login = folder.add(Role.VEHICLE, "car-1", days=30)
    assert login.cert_file
    authority, broker, client = (
        x509.load_pem_x509_certificate(path.read_bytes())
        for path in (login.ca_file, folder.path / "broker.crt", login.cert_file)
    )
    names = broker.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert {"localhost", "broker.example.org"} <= set(names.get_values_for_type(x509.DNSName))
    assert {"127.0.0.1", "::1", "10.0.0.5"} == {str(each) for each in names.get_values_for_type(x509.IPAddress)}
    assert authority.extensions.get_extension_for_class(x509.BasicConstraints).value == x509.BasicConstraints(True, 0)
    for leaf in (broker, client):
        leaf.verify_directly_issued_by(authority)
        assert not leaf.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert client.subject.rfc4514_string() == "CN=car-1"
    left = [each.not_valid_after_utc - datetime.now(UTC) for each in (authority, broker, client)]
    assert [round(each / timedelta(days=1)) for each in left] == [3650, 825, 30]


def test_adding_again_renews(folder: BrokerFolder) -> None:
    """A new certificate or password for the same role; another role is refused, and nothing changes."""
    first = folder.add(Role.WORKER, "w", processes=2)
    assert first.key_file
    key, rules = first.key_file.read_bytes(), (folder.path / "acl").read_text()
    folder.add(Role.WORKER, "w", processes=2)
    assert first.key_file.read_bytes() != key
    assert (folder.path / "acl").read_text() == rules
    with pytest.raises(ConfigError, match="'w' is a worker already"):
        folder.add(Role.OPERATOR, "w")
    assert folder.clients() == {"w": "worker"}
    one, two = (folder.add(Role.DASHBOARD, "dash", by_password=True).password for _ in range(2))
    assert one != two
    assert (folder.path / "passwords").read_text().count("dash:") == 1


def test_removing(folder: BrokerFolder) -> None:
    """Rights and password go, those of others stay."""
    for name in ("a", "ab", "b"):
        folder.add(Role.DASHBOARD, name, by_password=True)
    folder.remove("a")
    assert folder.clients() == {"ab": "dashboard", "b": "dashboard"}
    assert [line.split(":")[0] for line in (folder.path / "passwords").read_text().splitlines()] == ["ab", "b"]
    with pytest.raises(ConfigError, match="no client 'a'; there are: ab, b"):
        folder.remove("a")


def test_what_was_written_by_hand_stays(folder: BrokerFolder) -> None:
    """Sections that somebody has put behind others outlive those."""
    by_hand = "user mine\ntopic readwrite #\n"
    folder.add(Role.DASHBOARD, "a")
    with (folder.path / "acl").open("a") as file:
        file.write(by_hand)
    folder.add(Role.VEHICLE, "b")
    folder.add(Role.DASHBOARD, "a")
    folder.remove("a")
    text = (folder.path / "acl").read_text()
    assert by_hand in text
    assert folder.clients() == {"b": "vehicle"}
    assert "user a\n" not in text


def test_what_cannot_be_added(folder: BrokerFolder, tmp_path: Path) -> None:
    """Names of workers that others' processes have or that stand for all, and folders that were not begun."""
    for name in ("all", "w.3"):
        with pytest.raises(ConfigError, match="worker"):
            folder.add(Role.WORKER, name)
    with pytest.raises(ConfigError, match="operator"):
        folder.add(Role.OPERATOR, "state")
    with pytest.raises(ConfigError, match="processes"):
        folder.add(Role.WORKER, "w", processes=0)
    with pytest.raises(ConfigError, match="mqinfer broker init"):
        BrokerFolder(tmp_path / "none").add(Role.VEHICLE, "car-1")
    only_certificates = BrokerFolder(tmp_path / "other")
    only_certificates.init()
    with pytest.raises(ConfigError, match="--password-port"):
        only_certificates.add(Role.VEHICLE, "car-1", by_password=True)


@settings(max_examples=30)
@given(st.text(max_size=70) | st.sampled_from(["..", "../x", "/etc/x", "a/b", "a\0b", "a\nuser op", "+", "#", "%u"]))
def test_no_name_escapes_the_folder(name: str) -> None:
    """Whatever is given as a name, nothing is written beside the folder, and no rule that its owner did not ask for."""
    with TemporaryDirectory() as place:
        folder = BrokerFolder(Path(place, "in", "broker"))
        folder.init()
        before = set(Path(place).rglob("*"))
        for by_role in Role:
            try:
                folder.add(by_role, name)
            except MqinferError:
                continue
        new = set(Path(place).rglob("*")) - before
        clients = folder.path / "clients"
        assert new <= {clients, clients / f"{name}.crt", clients / f"{name}.key"}
        assert set(folder.clients()) <= {name}


@pytest.mark.parametrize("host", ["", "a b", "a/b", "a,DNS:b", "-a", "ä.example", "a\n", "x" * 254, "1.2.3.4.5:1", "*"])
def test_hosts_that_are_none(host: str) -> None:
    """They are refused before anything is signed."""
    with pytest.raises(ConfigError, match="neither a name nor an address"):
        check_host(host)


def test_paths_that_cannot_stand_in_a_configuration(tmp_path: Path) -> None:
    """A line break in a path would be a line of the configuration."""
    with pytest.raises(ConfigError, match="control characters"):
        with_place(render_secure(Ports()), tmp_path / "a\nallow_anonymous true")


def test_an_authority_that_is_none() -> None:
    """A broken file, and a key that is another's, are named."""
    one, two = Authority.make(), Authority.make()
    with pytest.raises(ConfigError, match="does not belong"):
        Authority(Pair(one.certificate, two.key))
    with pytest.raises(ConfigError, match="can't be read"):
        Authority(Pair(b"no certificate", one.key))


@given(st.lists(st.tuples(st.sampled_from(list(Role)), NAMES), max_size=6), st.data())
def test_sections_come_and_go(clients: list[tuple[Role, str]], data: st.DataObject) -> None:
    """After any additions and removals the file holds the clients that are left, each once, and others' sections."""
    text, wanted = "", dict[str, str]()
    for role, name in clients:
        text = put_section(text, role, name, [f"read {name}/{role}"])
        wanted[name] = role
        if data.draw(st.booleans()):
            text = without_section(text, name)
            del wanted[name]
    assert sections(text) == wanted
    assert sorted(re.findall(r"^user (.*)$", text, re.MULTILINE)) == sorted(wanted)
    assert sorted(re.findall(r"^topic read (.*)$", text, re.MULTILINE)) == sorted(f"{n}/{r}" for n, r in wanted.items())


@given(NAMES, NAMES, st.sampled_from([role for role in Role if role not in {Role.BRIDGE, Role.SITE}]))
def test_rules_are_the_clients_own(name: str, other: str, role: Role) -> None:
    """None but a worker and a bridge may write what is under another's name, and no rule reaches beyond the root."""
    if name == other:
        return
    topics = Topics()
    try:
        rules = [rule.split(" ", 1) for rule in access_rules(role, name, topics, 2)]
    except (ConfigError, BadTopic):
        return
    assert all(topic_filter.startswith("mqinfer/v1/") for _, topic_filter in rules)
    writes = [compile_filter(topic_filter) for access, topic_filter in rules if "write" in access]
    foreign = [
        topics.infer("m", other),
        topics.infer("m", other, "1"),
        topics.lane("somebody", "m", other),
        topics.cancel("m", other),
        topics.client_state(other),
        topics.control("somebody", other, "server"),
        topics.worker_state(other),
        topics.control_state(other),
    ]
    own = {f"{name}.0", f"{name}.1", *(f"{name}.{sub}" for sub in DEFAULT_SUBS)}
    assert other in own or not [topic for topic in foreign for matches in writes if matches.fullmatch(topic)]


def test_who_may_introduce_entities_to_home_assistant() -> None:
    """A vehicle that is told so, under its own names alone: sensors and images, and nothing that acts."""
    without = access_rules(Role.VEHICLE, "car-1", Topics(), subs=("rear",))
    rules = access_rules(Role.VEHICLE, "car-1", Topics(), subs=("rear",), homeassistant=True)
    assert rules[: len(without)] == without
    assert rules[len(without) :] == [
        f"write homeassistant/{kind}/{name}/+/config"
        for name in ("car-1", "car-1Drear")
        for kind in ("sensor", "binary_sensor", "image")
    ]
    text = put_section("", Role.VEHICLE, "car-1", rules)
    assert "homeassistant" not in without_section(text, "car-1")


def test_another_root() -> None:
    """Rules go by the site's root."""
    rules = access_rules(Role.VEHICLE, "car-1", Topics("plant 7/mq"))
    assert "write plant 7/mq/models/+/infer/car-1" in rules
    for root in (" x", "a\u2028b", "a\x85b"):  # Mosquitto and what reads the file here would take another one
        with pytest.raises(ConfigError, match="topic root"):
            access_rules(Role.VEHICLE, "car-1", Topics(root))


def test_several_bridges(folder: BrokerFolder) -> None:
    """Those of several sites at one broker, which state all clients of theirs."""
    for name in ("plant-1", "plant-2"):
        folder.add(Role.SITE, name)
        folder.add(Role.BRIDGE, f"{name}-far")
    assert list(folder.clients().values()) == ["site", "bridge"] * 2


def test_password_lines() -> None:
    """Each hash has a salt of its own, and a user has one line."""
    assert hash_password("x") != hash_password("x")
    assert re.fullmatch(r"\$7\$1000\$[A-Za-z0-9+/]{16}\$[A-Za-z0-9+/]{86}==", hash_password("x"))
    text = put_password(put_password(put_password("", "a", "1"), "ab", "2"), "a", "3")
    assert [line.split(":")[0] for line in text.splitlines()] == ["ab", "a"]
    assert without_password(text, "a").startswith("ab:")
    assert without_password("", "a") == ""


def test_cryptography_is_absent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The error names the extra that brings it."""
    monkeypatch.setitem(__import__("sys").modules, "cryptography", None)
    with pytest.raises(MqinferError, match=r"install .*\[security\]"):
        BrokerFolder(tmp_path).init()


def test_a_full_disk_is_no_fault_of_the_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another try may succeed, so a command ends with 1 and not with 2; the file stays as it was."""
    path = tmp_path / "acl"
    write_file(path, b"before")

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fchmod", fail)
    with pytest.raises(MqinferError, match="acl can't be written: No space left") as failed:
        write_file(path, b"after")
    assert exit_code(failed.value) == ExitCode.FAILED
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]

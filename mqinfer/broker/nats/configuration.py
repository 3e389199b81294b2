"""The configuration of a private nats-server: open on loopback, or with TLS and the access rules of a broker's folder.

A login is a certificate, as on Mosquitto: its name is the user's, whose rules become permissions to publish and to
subscribe. They hold for subjects alone, so what is asked of JetStream has its filter in the subject too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mqinfer.broker.nats.jetstream import STREAM
from mqinfer.broker.nats.subjects import ANSWERS, HEARD, KEPT, LIVE, pattern, token

MAX_PAYLOAD = 64 << 20
"""Largest message in bytes; NATS allows no more."""
_MAX_PENDING = 256 << 20
_MAX_MEMORY = 1 << 30
_RETAINED = re.compile(r".*/(?:state|card|presence(?:/[^/]+){5})")
"""Finds the topics on which messages are retained; nobody retains anything else, not even by mistake."""

_NO_GROUP = ', deny: "> >"'


@dataclass(frozen=True, slots=True)
class Node:
    """Where one server of a cluster listens, and where it lies.

    Attributes:
        name: Its name within the cluster.
        bind: Its address.
        port: For clients.
        store: Its folder.
        cluster_port: For the other servers, on loopback; None where there are none.
    """

    name: str
    bind: str
    port: int
    store: Path
    cluster_port: int | None = None


@dataclass(frozen=True, slots=True)
class Security:
    """Who may connect, and what they may do.

    Attributes:
        certificate: File with the broker's certificate.
        fingerprint: Of that: a server reads its files again when its configuration has changed.
        key: File with its key.
        authority: File with the certificates of those that sign clients' ones.
        pinned: Hashes of the keys (SHA-256 of SubjectPublicKeyInfo) whose certificates are good.
        rules: Of each user, as of `mqinfer.broker.roles.access_rules`.
        alone: Users who may join no group: a member takes messages away from the others.
        guard: The user who may do anything.
    """

    certificate: Path
    fingerprint: str
    key: Path
    authority: Path
    pinned: Sequence[str]
    rules: Mapping[str, Sequence[str]]
    alone: Container[str]
    guard: str


def render(node: Node, cluster: Sequence[Node] = (), secret: str = "", security: Security | None = None) -> str:
    """Return the configuration of one server.

    Args:
        node: The server.
        cluster: All servers of its cluster.
        secret: With which they join.
        security: Who may do what; None for everybody everything.
    """
    return "".join(
        (
            f"server_name: {_quoted(node.name)}\n",
            f"listen: {_quoted(f'{_host(node.bind)}:{node.port}')}\n",
            f"max_payload: {MAX_PAYLOAD}\nmax_pending: {_MAX_PENDING}\n",
            # A connection without answers to two pings is lost, in the time in which Mosquitto finds that.
            'ping_interval: "5s"\nping_max: 2\n',
            f"jetstream {{ store_dir: {_quoted(str(node.store))}, max_mem: {_MAX_MEMORY}, max_file: {_MAX_MEMORY} }}\n",
            _cluster(node, cluster, secret) if cluster else "",
            _security(security) if security else "",
        )
    )


def _cluster(node: Node, cluster: Iterable[Node], secret: str) -> str:
    routes = ", ".join(
        _quoted(f"nats://node:{secret}@127.0.0.1:{each.cluster_port}") for each in cluster if each != node
    )
    login = f"authorization {{ user: node, password: {_quoted(secret)} }}"
    return f'cluster {{ name: mqinfer, listen: "127.0.0.1:{node.cluster_port}", {login}\n  routes: [{routes}] }}\n'


def _security(security: Security) -> str:
    files = {"cert_file": security.certificate, "key_file": security.key, "ca_file": security.authority}
    tls = "".join(f"  {name}: {_quoted(str(path))}\n" for name, path in files.items())
    pinned = ", ".join(map(_quoted, security.pinned))
    users = "".join(_user(name, rules, is_alone=name in security.alone) for name, rules in security.rules.items())
    return (
        f"# {security.fingerprint}\ntls {{\n{tls}  verify_and_map: true\n  pinned_certs: [{pinned}]\n}}\n"
        f"authorization {{ users: [\n  {{ user: {_quoted(_common_name(security.guard))} }}\n{users}] }}\n"
    )


def _user(name: str, rules: Sequence[str], *, is_alone: bool) -> str:
    publish, subscribe = sorted({*_publishes(name, rules)}), sorted({*_subscribes(name, rules)})
    lists = ", ".join(
        f"{what}: {{ allow: {json.dumps(subjects, ensure_ascii=False)}{denied} }}"
        for what, subjects, denied in (("publish", publish, ""), ("subscribe", subscribe, _NO_GROUP * is_alone))
    )
    return f"  {{ user: {_quoted(_common_name(name))}, permissions: {{ {lists} }} }}\n"


def _publishes(name: str, rules: Iterable[str]) -> Iterator[str]:
    yield f"{ANSWERS}.{token(name)}.>"  # the mark behind what was published, which has to come back
    yield f"$JS.API.STREAM.INFO.{STREAM}"
    for rule in rules:
        right, _, topic_filter = rule.partition(" ")
        if "read" in right:
            yield f"$JS.API.CONSUMER.CREATE.{STREAM}.*.{pattern(topic_filter, KEPT)}"
        if "write" in right:
            yield pattern(topic_filter, HEARD, LIVE)
            if _RETAINED.fullmatch(topic_filter):
                yield pattern(topic_filter, KEPT)


def _subscribes(name: str, rules: Iterable[str]) -> Iterator[str]:
    yield f"{ANSWERS}.{token(name)}.>"
    yield from (pattern(rule.partition(" ")[2]) for rule in rules if rule.startswith("read"))


def _common_name(name: str) -> str:
    return f"CN={name}"


def _host(bind: str) -> str:
    return f"[{bind}]" if ":" in bind else bind


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)

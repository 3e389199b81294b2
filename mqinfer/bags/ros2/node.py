"""A part of a ROS 2 system: its domain by ROS 2's own variables, what is on the air, readers and writers."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from xml.sax.saxutils import quoteattr

from mqinfer.bags.ros2.messages import carrier, dds_topic, dds_type, is_topic, ros_topic, ros_type, serialize, type_hash
from mqinfer.extras import import_extra
from mqinfer.protocol.errors import ConfigError, SourceError

_LARGEST = 256
"""MiB of a message; those that peers claim to be larger are not put together."""
_RECEIVED = 16
"""MB that the system is asked to hold of what was not read yet; it grants up to `net.core.rmem_max`."""
_MOST_ENDPOINTS = 4096
_HIGHEST_DOMAIN = 232
"""Beyond it the ports of DDS are above 65535."""
_ALL_PARTICIPANTS = 32
"""Participants of a machine that are found without multicast, as ROS 2 has it."""


@dataclass(frozen=True, slots=True)
class Offer:
    """What the publishers of a topic offer.

    Attributes:
        kinds: Types of their messages; mostly one.
        publishers: How many there are.
        is_latched: Whether each keeps its last messages for those that come later.
        quality: Their qualities of service in words, each once.
    """

    kinds: tuple[str, ...]
    publishers: int
    is_latched: bool
    quality: str


def check_topic(topic: str) -> str:
    """Return the full name of a topic.

    Raises:
        ConfigError: No topic of ROS 2 can have it.
    """
    full = f"/{topic.lstrip('/')}"
    if not is_topic(full):
        raise ConfigError(f"ros2:{topic}: no name of a topic; expected one such as /camera/image_raw")
    return full


def domain_id(environment: Mapping[str, str] = os.environ) -> int:
    """Return the number of the domain: `ROS_DOMAIN_ID`, or 0.

    Raises:
        ConfigError: It is none.
    """
    stated = environment.get("ROS_DOMAIN_ID", "").strip() or "0"
    if not stated.isdecimal() or int(stated) > _HIGHEST_DOMAIN:
        raise ConfigError(f"ROS_DOMAIN_ID is {stated!r}; expected 0 to {_HIGHEST_DOMAIN}")
    return int(stated)


def dds_settings(environment: Mapping[str, str] = os.environ) -> str:
    """Return the settings of Cyclone DDS: what ROS 2's variables say, then `CYCLONEDDS_URI`, which comes before them.

    `ROS_LOCALHOST_ONLY`, `ROS_AUTOMATIC_DISCOVERY_RANGE` and `ROS_STATIC_PEERS` mean what they do to ROS 2 with
    rmw_cyclonedds.

    Raises:
        ConfigError: The range is none.
    """
    reach = environment.get("ROS_AUTOMATIC_DISCOVERY_RANGE", "").strip().upper() or "SUBNET"
    if reach not in {"SUBNET", "LOCALHOST", "OFF", "SYSTEM_DEFAULT"}:
        raise ConfigError(
            f"ROS_AUTOMATIC_DISCOVERY_RANGE is {reach!r}; expected SUBNET, LOCALHOST, OFF or SYSTEM_DEFAULT"
        )
    if environment.get("ROS_LOCALHOST_ONLY", "").strip() not in {"", "0"}:
        general, discovery = '<Interfaces><NetworkInterface address="127.0.0.1"/></Interfaces>', _peers(["localhost"])
    else:
        named = [each.strip() for each in environment.get("ROS_STATIC_PEERS", "").split(";") if each.strip()]
        general, discovery = _reaching(reach, named)
    own = (
        f"<CycloneDDS><Domain><General>{general}</General><Discovery>{discovery}</Discovery><Internal>"
        f'<MaxSampleSize>{_LARGEST}MB</MaxSampleSize><SocketReceiveBufferSize min="default" max="{_RECEIVED}MB"/>'
        "</Internal></Domain></CycloneDDS>"
    )
    return f"{own},{environment.get('CYCLONEDDS_URI', '')}"


def _reaching(reach: str, named: list[str]) -> tuple[str, str]:
    """Return the general settings and those of discovery for a range, and for peers that are named."""
    alone = "<AllowMulticast>false</AllowMulticast>"
    if reach == "OFF":
        return alone, f"<ParticipantIndex>none</ParticipantIndex><Tag>ros_discovery_off_{os.getpid()}</Tag>"
    if reach == "LOCALHOST":
        return alone, _peers(["localhost", *named])
    return "", _peers(named) if named and reach == "SUBNET" else ""


def _peers(named: list[str]) -> str:
    return (
        f"<ParticipantIndex>auto</ParticipantIndex><MaxAutoParticipantIndex>{_ALL_PARTICIPANTS}</MaxAutoParticipantIndex>"
        f"<Peers>{''.join(f'<Peer address={quoteattr(each)}/>' for each in named)}</Peers>"
    )


@contextmanager
def dds_errors(what: str) -> Iterator[None]:
    """Raise `SourceError` for what DDS refuses.

    Args:
        what: Which was to be done.
    """
    failures = import_extra("cyclonedds.core", "ros2").DDSException
    try:
        yield
    except failures as failed:
        raise SourceError(f"{what}: DDS: {failed}; look at ROS_DOMAIN_ID, CYCLONEDDS_URI and the network") from failed


class _Domain:
    """The domain of this process, which all its nodes are in: Cyclone DDS has its settings once a process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._made: tuple[Any, Any] | None = None
        self.number = 0

    def enter(self) -> Any:
        """Return the participant, which is made for the first one that asks."""
        with self._lock:
            if self._made is None:
                domains = import_extra("cyclonedds.domain", "ros2")
                number, settings = domain_id(), dds_settings()
                with dds_errors(f"domain {number} of ROS 2 can't be joined"):
                    domain = domains.Domain(number, settings)
                    self._made = domain, domains.DomainParticipant(number)
                self.number = number
            self._users += 1
            return self._made[1]

    def leave(self) -> None:
        """Leave the domain with the last one."""
        with self._lock:
            self._users -= 1
            if not self._users:
                self._made = None


_DOMAIN = _Domain()


class RosNode:
    """A part of this process in the ROS 2 system: it reads and publishes topics.

    Raises:
        SourceError: The domain can't be joined.
        ConfigError: A variable of ROS 2 is wrong.
        MissingExtra: cyclonedds or rosbags is not installed.
    """

    def __init__(self) -> None:
        self._dds = import_extra("cyclonedds.core", "ros2")
        self._qos = import_extra("cyclonedds.qos", "ros2")
        self._builtin = import_extra("cyclonedds.builtin", "ros2")
        self._participant = _DOMAIN.enter()
        with dds_errors("no node of ROS 2"):
            self._publications = self._builtin.BuiltinDataReader(
                self._participant, self._builtin.BuiltinTopicDcpsPublication
            )

    @property
    def domain(self) -> int:
        """The number of its domain."""
        return _DOMAIN.number

    def offers(self) -> dict[str, Offer]:
        """Return what is published now, by topic, as far as it was found yet."""
        policy, alive = self._qos.Policy, self._dds.InstanceState.Alive
        found: dict[str, list[Any]] = {}
        for each in self._publications.read(_MOST_ENDPOINTS):
            # Those that are gone have no name any more.
            topic = ros_topic(each.topic_name) if each.sample_info.instance_state == alive else None
            if topic is not None:
                found.setdefault(topic, []).append(each)
        return {
            topic: Offer(
                tuple(sorted({ros_type(each.type_name) for each in published})),
                len(published),
                all(each.qos[policy.Durability] != policy.Durability.Volatile for each in published),
                "; ".join(sorted({self._quality(each.qos) for each in published})),
            )
            for topic, published in found.items()
        }

    def _quality(self, qos: Any) -> str:
        policy = self._qos.Policy
        reliability = "best effort" if qos[policy.Reliability] == policy.Reliability.BestEffort else "reliable"
        durability = "volatile" if qos[policy.Durability] == policy.Durability.Volatile else "transient local"
        return f"{reliability}, {durability}"

    def reader(self, topic: str, kind: str, depth: int, *, latched: bool = False) -> Any:
        """Return a reader of cyclonedds whose samples have `cdr`, the bytes of a message.

        It asks for what every publisher offers: best effort, so that it never holds one up; reliable for the last
        messages of those that keep them.

        Args:
            topic: Its full name.
            kind: Type of the messages.
            depth: How many samples it keeps. Further ones are counted as rejected, or take the place of latched ones.
            latched: Whether the publishers keep messages for those that come later.
        """
        policy = self._qos.Policy
        kept: tuple[Any, ...]
        if latched:
            kept = (policy.Reliability.Reliable(0), policy.Durability.TransientLocal, policy.History.KeepLast(depth))
        else:
            limits = policy.ResourceLimits(max_samples=depth, max_instances=1, max_samples_per_instance=depth)
            kept = (policy.Reliability.BestEffort, policy.Durability.Volatile, policy.History.KeepAll, limits)
        coercion = policy.TypeConsistency.AllowTypeCoercion(ignore_member_names=True)
        sub = import_extra("cyclonedds.sub", "ros2")
        with dds_errors(f"ros2:{topic} can't be read"):
            asked = self._qos.Qos(*kept, coercion, *self._announced(kind))
            return sub.DataReader(self._participant, self._topic(topic, kind), asked)

    def writer(self, topic: str, kind: str, depth: int, *, latched: bool = False) -> Any:
        """Return a writer of cyclonedds of messages, for `publish`.

        It is reliable, since a reader that asks for that gets nothing from another, and waits for none.

        Args:
            topic: Its full name.
            kind: Type of the messages.
            depth: How many messages it keeps for readers that lost some.
            latched: Whether readers that come later get them, too.
        """
        policy = self._qos.Policy
        durability = policy.Durability.TransientLocal if latched else policy.Durability.Volatile
        pub = import_extra("cyclonedds.pub", "ros2")
        with dds_errors(f"ros2:{topic} can't be published"):
            kept = policy.Reliability.Reliable(0), durability, policy.History.KeepLast(depth)
            offered = self._qos.Qos(*kept, *self._announced(kind))
            return pub.DataWriter(self._participant, self._topic(topic, kind), offered)

    def waiter(self, *readers: Any) -> Callable[[float], bool]:
        """Return what waits up to so many seconds for samples that were not read, and returns whether there are some.

        Args:
            readers: Of the samples; without any, for what is new on the air.
        """
        dds = self._dds
        waiting = dds.WaitSet(self._participant)
        for reader in readers or [self._publications]:
            unread = dds.ViewState.Any | dds.SampleState.NotRead | dds.InstanceState.Any
            waiting.attach(dds.ReadCondition(reader, unread))
        return lambda seconds: bool(waiting.wait(round(seconds * 1e9)))

    def close(self) -> None:
        """Leave the domain, with the last node of the process; its readers and writers end with their last use."""
        if self._participant is not None:
            self._publications = self._participant = None
            _DOMAIN.leave()

    def _topic(self, topic: str, kind: str) -> Any:
        return import_extra("cyclonedds.topic", "ros2").Topic(
            self._participant, dds_topic(topic), carrier(dds_type(kind))
        )

    def _announced(self, kind: str) -> list[Any]:
        """Return the user data by which ROS 2 Iron and later know a type."""
        found = type_hash(kind)
        return [self._qos.Policy.Userdata(f"typehash={found};".encode())] if found else []


def publish(writer: Any, message: Any) -> bool:
    """Publish a message of rosbags; return False where readers that lag behind leave no room for it.

    Args:
        writer: From `Node.writer`.
        message: Of the writer's type.

    Raises:
        SourceError: DDS failed.
    """
    failures = import_extra("cyclonedds.core", "ros2").DDSException
    try:
        writer.write(carrier(dds_type(message.__msgtype__))(serialize(message)))
    except failures as failed:
        if failed.code != failures.DDS_RETCODE_TIMEOUT:
            raise SourceError(f"{message.__msgtype__} can't be published: DDS: {failed}") from failed
        return False
    return True

"""Names, topics built from names, and names parsed from topics.

A name with a wildcard, a slash or a NUL never gets into a topic.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from typing import Annotated

from msgspec import Meta

from mqinfer.protocol.errors import BadTopic

_MOST_COMPARED, _MOST_LISTED = 256, 24
"""Names that a wrong one is compared with, and that a message lists: a broker may have thousands."""
DEFAULT_ROOT = "mqinfer/v1"
_ROOT = re.compile(r"[^/+#\x00-\x1f\x7f$][^/+#\x00-\x1f\x7f]*(/[^/+#\x00-\x1f\x7f]+)*")

CONTROL = "control"
"""Takes the place of the model in the topics of replies to control requests, so no model may have this name."""
EVERY_SERVER = "all"
"""Takes the place of a server's name to address every server, so no server may have this name."""

HOME_ASSISTANT, ENTITIES = "homeassistant", ("sensor", "binary_sensor", "image")
"""Where Home Assistant looks for entities, unless it is told otherwise, and their kinds."""

_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,63}")
Name = Annotated[str, Meta(pattern=rf"^{_NAME.pattern}\Z")]
"""A name within a message, checked where the message is decoded: it may get into a topic."""
_NAME_RULE = "1 to 64 lower-case letters, digits, '_', '.' or '-', beginning with a letter or digit"
# Capitals, and '_' in front, as in existing Triton repositories. Topics are case sensitive: `Seg` is not `seg`.
_MODEL_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
ModelName = Annotated[str, Meta(pattern=rf"^{_MODEL_NAME.pattern}\Z")]
"""The name of a model within a message, checked likewise."""
_MODEL_RULE = "1 to 64 letters, digits, '_', '.' or '-', beginning with a letter, a digit or '_'"
_REQUEST = re.compile(r"[A-Za-z0-9_.-]{1,64}")
RequestId = Annotated[str, Meta(pattern=rf"^{_REQUEST.pattern}\Z")]
"""The id of a request within a message, checked likewise."""
_REQUEST_RULE = "1 to 64 letters, digits, '_', '.' or '-'"
_OUTSIDE_LEVEL = re.compile(r"[^A-Za-z0-9_.-]")
_VERSION = re.compile(r"0|[1-9][0-9]{0,18}")
_VERSION_RULE = "a decimal integer of at most 19 digits, such as 3"


def check_name(kind: str, name: str) -> str:
    """Return the name of a model, client, worker or server if it follows the rule.

    Args:
        kind: What it names, such as `model`; for the message.
        name: The name.

    Raises:
        BadTopic: It does not follow `[a-z0-9][a-z0-9_.-]{0,63}`; a model's name, `[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}`,
            or it is reserved.
    """
    if kind != "model":
        return _check(_NAME, _NAME_RULE, kind, name)
    if name == CONTROL:
        raise BadTopic(f"model name {name!r} is reserved for topics; rename the model's folder")
    return _check(_MODEL_NAME, _MODEL_RULE, kind, name)


def instead_of(name: str, known: Iterable[str]) -> str:
    """Return the known name that is nearest to a wrong one, and a bounded list of all that there are, for a message."""
    return _instead_of(name, tuple(sorted(known)))


@lru_cache(maxsize=32)
def _instead_of(name: str, names: tuple[str, ...]) -> str:
    """Do so for sorted names; kept, since requests fail in thousands, and to compare 256 names takes 4 ms."""
    close = nearest(name, names)
    listed = ", ".join(names[:_MOST_LISTED]) or "none"
    more = f" and {len(names) - _MOST_LISTED} more" if len(names) > _MOST_LISTED else ""
    return f"{listed}{more}" + (f"; did you mean {close!r}?" if close else "")


def nearest(name: str, names: Sequence[str]) -> str:
    """Return the first of some names that is nearly a wrong one; empty where none is."""
    return next(iter(get_close_matches(name, names[:_MOST_COMPARED], 1)), "")


def is_name(text: str) -> bool:
    """Return whether a text follows the rule for names of clients, workers and servers."""
    return _NAME.fullmatch(text) is not None


def check_version(version: str) -> str:
    """Return a version if it follows the rule.

    Raises:
        BadTopic: It is not a decimal integer of at most 19 digits, or has leading zeros.
    """
    return _check(_VERSION, _VERSION_RULE, "version", version)


def check_same(kind: str, in_topic: str, in_payload: str) -> str:
    """Return the name that a message's topic and payload agree on: access rules bind the topic alone.

    Raises:
        BadTopic: They don't agree.
    """
    if in_topic != in_payload:
        raise BadTopic(f"the topic is that of {kind} {in_topic!r}, and the message names {in_payload[:80]!r}")
    return in_topic


def is_request(text: str) -> bool:
    """Return whether a text follows the rule for the id of a request."""
    return _REQUEST.fullmatch(text) is not None


def _check(pattern: re.Pattern[str], rule: str, kind: str, value: str) -> str:
    if not pattern.fullmatch(value):
        raise BadTopic(f"{kind} {value[:80]!r} can't be used in a topic; expected {rule}")
    return value


@dataclass(frozen=True, slots=True)
class InferAddress:
    """The names in the topic of a request.

    Attributes:
        model: The model.
        version: The version, or None.
        client: The sender.
        worker: The worker whose lane it is, or None on a shared channel.
    """

    model: str
    version: str | None
    client: str
    worker: str | None


_ONE_LEVEL = "model", "version", "client", "worker", "server", "request", "stream", "place", "what"
_ANY = dict.fromkeys((f"{{{name}}}" for name in _ONE_LEVEL), "+")
_ANY["{path}"] = "#"
"""The wildcard for a name in braces; a path has one level or more."""


@dataclass(frozen=True, slots=True)
class TopicKind:
    """The topics of one kind below one root: called with its names, in the order of its levels, it returns a topic.

    Attributes:
        root: Of the site.
        what: What is published there, for errors.
        levels: Those below the root; what stands in braces is a name.
    """

    root: str
    what: str
    levels: tuple[str, ...]

    @property
    def template(self) -> str:
        """The topic with its names in braces, such as `mqinfer/v1/workers/{worker}/state`."""
        return "/".join((self.root, *self.levels))

    def __call__(self, *names: str) -> str:
        """Return the topic with these names.

        Raises:
            BadTopic: A name breaks the rules.
        """
        return self.filter(**dict(zip((level[1:-1] for level in self.levels if level[0] == "{"), names, strict=True)))

    def filter(self, **names: str) -> str:
        """Return the filter for the topics that have these names; each of the others may be any.

        Raises:
            BadTopic: A name breaks the rules.
        """
        wanted = {f"{{{name}}}": _check_level(name, text) for name, text in names.items()}
        return "/".join((self.root, *(wanted.get(level, _ANY.get(level, level)) for level in self.levels)))

    def parse(self, topic: str) -> dict[str, str]:
        """Return the names in a topic.

        Raises:
            BadTopic: It is of another kind or below another root, or a name breaks the rules.
        """
        last = len(self.levels) - 1
        found = topic[len(self.root) + 1 :].split("/", last if self.levels[last] == "{path}" else 8)
        pairs = list(zip(self.levels, found, strict=False))
        is_own = topic.startswith(f"{self.root}/") and len(found) == last + 1
        if not is_own or any(own != text for own, text in pairs if own[0] != "{"):
            raise BadTopic(f"{topic[:200]!r} is not a {self.what} topic below {self.root!r}")
        return {own[1:-1]: _check_level(own[1:-1], text) for own, text in pairs if own[0] == "{"}


class _Kind:
    """Makes an attribute of `Topics` the `TopicKind` of its root."""

    def __init__(self, what: str, path: str) -> None:
        self._what, self._levels = what, tuple(path.split("/"))

    def __get__(self, topics: Topics, _: type[Topics]) -> TopicKind:
        return TopicKind(topics.root, self._what, self._levels)


@dataclass(frozen=True, slots=True)
class Topics:
    """All topics below one root, by kind. Builders and parsers raise BadTopic for names that break the rules.

    Attributes:
        root: One level or more, without wildcards; all parties of a site share it.
    """

    root: str = DEFAULT_ROOT

    channel = _Kind("request", "models/{model}/infer/{client}")
    """Requests to a model, from one sender; workers share them."""
    version_channel = _Kind("request", "models/{model}/versions/{version}/infer/{client}")
    """Those to one version of it."""
    lane = _Kind("request", "workers/{worker}/infer/{model}/{client}")
    """Requests to one worker."""
    cancel = _Kind("cancellation", "models/{model}/cancel/{client}")
    """A client's cancellations to a model: not shared, since any worker of the model may have a request."""
    result = _Kind("result", "results/{model}/{client}/{request}")
    """Replies of workers."""
    card = _Kind("model card", "models/{model}/card")
    """Cards (retained)."""
    worker_state = _Kind("worker state", "workers/{worker}/state")
    """States of workers (retained, and their wills)."""
    client_state = _Kind("client state", "clients/{client}/state")
    """States of clients (retained, and their wills)."""
    previews = _Kind("preview", "clients/{client}/preview/{stream}")
    """Previews; receivers read the stream's whole name from the message."""
    answers = _Kind("answer", "answers/{model}/{client}/{stream}")
    """Answers of a client's frames in words, JSON (the last one retained where its edge is told so)."""
    presence = _Kind("presence", "presence/{model}/{client}/{stream}/{place}/{what}")
    """What is there in a stream: a class in a place, or the count of a line's crossings (retained)."""
    overlay = _Kind("overlay", "overlays/{model}/{client}/{stream}")
    """Frames as JPEG with what was found in them, for Home Assistant."""
    control = _Kind("control", f"{CONTROL}/{{server}}/{{client}}/{{path}}")
    """Calls to a server, or to `all`, whose path is that of a `mqinfer.protocol.control.Call`; the filter for those to
    one server covers its state too."""
    control_result = _Kind("control result", f"results/{CONTROL}/{{client}}/{{request}}")
    """Replies of servers."""
    control_state = _Kind("server state", f"{CONTROL}/{{server}}/state")
    """States of servers (retained, and their wills)."""
    edge_reply = _Kind("edge reply", f"clients/{{client}}/{CONTROL}/{{request}}")
    """Replies of an edge to operators: below its own name, where only it may publish."""

    def __post_init__(self) -> None:
        if not _ROOT.fullmatch(self.root) or len(self.root.encode(errors="replace")) > 256:
            raise BadTopic(
                f"topic root {self.root[:80]!r} is wrong; it must be levels joined by '/', none empty, without '+', '#'"
                f" or control characters, not beginning with '$', at most 256 bytes, such as {DEFAULT_ROOT}"
            )

    def infer(self, model: str, client: str, version: str | None = None) -> str:
        """Return the shared channel of a model, or of one version of it, for one sender."""
        return _infer(self.root, model, client, version)

    def infer_filter(self, model: str, version: str | None = None) -> str:
        """Return the filter for the same from every sender."""
        if version is None:
            return self.channel.filter(model=model)
        return self.version_channel.filter(model=model, version=version)

    def preview(self, client: str, source: str) -> str:
        """Return the topic of a client's previews of one stream."""
        return self.previews(client, stream_level(source))

    def parse_infer(self, topic: str) -> InferAddress:
        """Return the names in the topic of a request: a model's channel, a version's channel or a worker's lane."""
        return _parse_infer(self.root, topic)


def stream_level(source: str) -> str:
    """Return the level of a topic that stands for a stream (`/camera/image_raw`): two may share one."""
    return _OUTSIDE_LEVEL.sub("_", source).lstrip("_")[:64] or "stream"


def entity_topic(kind: str, client: str, entity: str) -> str:
    """Return where Home Assistant reads of an entity: its nodes have no '.', and names of clients no capitals."""
    return f"{HOME_ASSISTANT}/{kind}/{client.replace('.', 'D')}/{entity}/config"


def may_reply(topics: Topics, response_topic: str, model: str, client: str) -> bool:
    """Return whether a worker may reply there: only below `{root}/results/{model}/{client}/`.

    Args:
        topics: The topics of the site.
        response_topic: The Response Topic of the request; any text.
        model: From the topic of the request.
        client: From the topic of the request, where the broker's access rules have checked it.
    """
    try:
        own = _results(topics.root, model, client)
    except BadTopic:
        return False
    return response_topic.startswith(own) and is_request(response_topic[len(own) :])


def answer_topic(replies: TopicKind, stated: object, client: str) -> str:
    """Return where a call is answered.

    Args:
        replies: `Topics.control_result` for a server, `Topics.edge_reply` for an edge.
        stated: The Response Topic of the call; anything.
        client: The only name below which it may be: for a server the sender's, for an edge its own.

    Raises:
        BadTopic: It is missing, or not below that name.
    """
    with suppress(BadTopic):
        if isinstance(stated, str) and replies.parse(stated)["client"] == client:
            return stated
    own = replies(client, "ID")
    raise BadTopic(f"Response Topic {str(stated)[:200]!r} is not allowed; expected one like {own!r}")


def request_kind(topics: Topics, topic: str) -> TopicKind:
    """Return the kind of a request's topic.

    Raises:
        BadTopic: It is none.
    """
    address = topics.parse_infer(topic)
    if address.worker is not None:
        return topics.lane
    return topics.channel if address.version is None else topics.version_channel


def _check_level(kind: str, text: str) -> str:
    """Return what stands in a topic in place of a name in braces, if it follows the rule for it."""
    match kind:
        case "version":
            return check_version(text)
        case "request" | "stream" | "place" | "what":
            return _check(_REQUEST, _REQUEST_RULE, f"{kind} id", text)
        case "path":  # of a call, which has checked the names in it
            return text
    return check_name(kind, text)


# Every request needs these three, with the same few names; only names that follow the rules are cached.
@lru_cache(maxsize=1024)
def _infer(root: str, model: str, client: str, version: str | None) -> str:
    topics = Topics(root)
    return topics.channel(model, client) if version is None else topics.version_channel(model, version, client)


@lru_cache(maxsize=1024)
def _results(root: str, model: str, client: str) -> str:
    return Topics(root).result(model, client, "_")[:-1]


@lru_cache(maxsize=1024)
def _parse_infer(root: str, topic: str) -> InferAddress:
    topics = Topics(root)
    match topic.removeprefix(root).split("/", 4):
        case ["", "workers", *_]:
            names = topics.lane.parse(topic)
        case ["", "models", _, "versions", *_]:
            names = topics.version_channel.parse(topic)
        case _:
            names = topics.channel.parse(topic)
    return InferAddress(names["model"], names.get("version"), names["client"], names.get("worker"))


def without_id(topic: str) -> str:
    """Return the topic of a reply without its last level: that is another one for each request."""
    return topic.rpartition("/")[0]

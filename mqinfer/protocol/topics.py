"""Names, topics built from names, and names parsed from topics.

A name with a wildcard, a slash or a NUL never gets into a topic.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated

from msgspec import Meta

from mqinfer.protocol.errors import BadTopic

__all__ = [
    "CONTROL",
    "DEFAULT_ROOT",
    "EVERY_SERVER",
    "ControlAddress",
    "InferAddress",
    "ModelName",
    "Name",
    "RequestId",
    "ResultAddress",
    "Topics",
    "check_name",
    "check_request",
    "check_same",
    "check_version",
    "is_name",
    "is_request",
    "may_answer",
    "may_answer_as_edge",
    "may_reply",
    "request_template",
    "result_template",
    "without_id",
]

DEFAULT_ROOT = "mqinfer/v1"
_ROOT = re.compile(r"[^/+#\x00-\x1f\x7f$][^/+#\x00-\x1f\x7f]*(/[^/+#\x00-\x1f\x7f]+)*")

CONTROL = "control"
"""Takes the place of the model in the topics of replies to control requests, so no model may have this name."""
EVERY_SERVER = "all"
"""Takes the place of a server's name to address every server, so no server may have this name."""

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


def is_name(text: str) -> bool:
    """Return whether a text follows the rule for names of clients, workers and servers."""
    return _NAME.fullmatch(text) is not None


def check_version(version: str) -> str:
    """Return a version if it follows the rule.

    Raises:
        BadTopic: It is not a decimal integer of at most 19 digits, or has leading zeros.
    """
    return _check(_VERSION, _VERSION_RULE, "version", version)


def check_request(request: str) -> str:
    """Return the id of a request if it follows the rule.

    Raises:
        BadTopic: It does not follow `[A-Za-z0-9_.-]{1,64}`.
    """
    return _check(_REQUEST, _REQUEST_RULE, "request id", request)


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


@dataclass(frozen=True, slots=True)
class ResultAddress:
    """The names in the topic of a result."""

    model: str
    client: str
    request: str


@dataclass(frozen=True, slots=True)
class ControlAddress:
    """The names in a control topic.

    Attributes:
        server: The server, or `all`.
        client: The sender.
        path: Levels of the call; `mqinfer.protocol.control.read_path` reads them.
    """

    server: str
    client: str
    path: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Topics:
    """All topics below one root. Builders and parsers raise BadTopic for names that break the rules.

    Attributes:
        root: One level or more, without wildcards; all parties of a site share it.
    """

    root: str = DEFAULT_ROOT

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
        """Return the filter for the same from every sender; workers share it."""
        return f"{_channel(self.root, model, version)}/+"

    def lane(self, worker: str, model: str, client: str) -> str:
        """Return the lane of a worker for one model and sender."""
        path = f"{check_name('worker', worker)}/infer/{check_name('model', model)}/{check_name('client', client)}"
        return f"{self.root}/workers/{path}"

    def lane_filter(self, worker: str) -> str:
        """Return the filter for all requests to one worker."""
        return f"{self.root}/workers/{check_name('worker', worker)}/infer/+/+"

    def cancel(self, model: str, client: str) -> str:
        """Return the topic of a client's cancellations to a model; every worker of the model subscribes to it."""
        return f"{_model(self.root, model)}/cancel/{check_name('client', client)}"

    def cancel_filter(self, model: str) -> str:
        """Return the filter for the same from every sender; not shared, since any worker may have a request."""
        return f"{_model(self.root, model)}/cancel/+"

    def result(self, model: str, client: str, request: str) -> str:
        """Return the topic of one reply."""
        return _results(self.root, model, client) + check_request(request)

    def results_of_client(self, client: str) -> str:
        """Return the filter for all replies to one client."""
        return f"{self.root}/results/+/{check_name('client', client)}/+"

    def results_of_model(self, model: str) -> str:
        """Return the filter for all replies of one model: what dashboards and recorders subscribe to."""
        return f"{self.root}/results/{check_name('model', model)}/+/+"

    def card(self, model: str) -> str:
        """Return the topic of a model's card (retained)."""
        return f"{_model(self.root, model)}/card"

    def cards(self) -> str:
        """Return the filter for all model cards."""
        return f"{self.root}/models/+/card"

    def worker_state(self, worker: str) -> str:
        """Return the topic of a worker's state (retained, and its will)."""
        return f"{self.root}/workers/{check_name('worker', worker)}/state"

    def worker_states(self) -> str:
        """Return the filter for all workers' states."""
        return f"{self.root}/workers/+/state"

    def client_state(self, client: str) -> str:
        """Return the topic of a client's state (retained, and its will)."""
        return f"{self.root}/clients/{check_name('client', client)}/state"

    def client_states(self) -> str:
        """Return the filter for all clients' states."""
        return f"{self.root}/clients/+/state"

    def preview(self, client: str, source: str) -> str:
        """Return the topic of a client's previews of one stream; receivers read the stream's name from the message."""
        level = _OUTSIDE_LEVEL.sub("_", source).lstrip("_")[:64] or "stream"
        return f"{self.root}/clients/{check_name('client', client)}/preview/{level}"

    def previews(self) -> str:
        """Return the filter for all previews of all clients."""
        return f"{self.root}/clients/+/preview/+"

    def control(self, server: str, client: str, path: str) -> str:
        """Return the topic of a call to a server, or to `all`; `path` is that of a `mqinfer.protocol.control.Call`."""
        return f"{_control(self.root, server)}/{check_name('client', client)}/{path}"

    def control_filter(self, server: str) -> str:
        """Return the filter for all calls to a server; it covers the server's state too."""
        return f"{_control(self.root, server)}/+/#"

    def control_call_filter(self, client: str, path: str) -> str:
        """Return the filter for one call to an edge, from every operator."""
        return f"{_control(self.root, client)}/+/{path}"

    def edge_reply(self, edge: str, request: str) -> str:
        """Return the topic of an edge's reply to an operator: below the edge's own name, where only it may publish."""
        return f"{self.root}/clients/{check_name('client', edge)}/{CONTROL}/{check_request(request)}"

    def edge_replies(self, edge: str) -> str:
        """Return the filter for all replies of an edge."""
        return f"{self.root}/clients/{check_name('client', edge)}/{CONTROL}/+"

    def control_result(self, client: str, request: str) -> str:
        """Return the topic of a server's reply."""
        return f"{self.root}/results/{CONTROL}/{check_name('client', client)}/{check_request(request)}"

    def control_results(self, client: str) -> str:
        """Return the filter for all servers' replies to one client."""
        return f"{self.root}/results/{CONTROL}/{check_name('client', client)}/+"

    def control_state(self, server: str) -> str:
        """Return the topic of a server's state (retained, and its will)."""
        return f"{_control(self.root, server)}/state"

    def control_states(self) -> str:
        """Return the filter for all servers' states."""
        return f"{self.root}/{CONTROL}/+/state"

    def parse_control(self, topic: str) -> ControlAddress:
        """Return the names in a control topic."""
        match _levels(self.root, topic):
            case ["control", server, client, first, *rest]:
                return ControlAddress(check_name("server", server), check_name("client", client), (first, *rest))
        raise _foreign(self.root, topic, "control")

    def parse_control_state(self, topic: str) -> str:
        """Return the server of a state topic."""
        match _levels(self.root, topic):
            case ["control", server, "state"]:
                return check_name("server", server)
        raise _foreign(self.root, topic, "server state")

    def parse_infer(self, topic: str) -> InferAddress:
        """Return the names in the topic of a request: a model's channel, a version's channel or a worker's lane."""
        return _parse_infer(self.root, topic)

    def parse_result(self, topic: str) -> ResultAddress:
        """Return the names in the topic of a result."""
        match _levels(self.root, topic):
            case ["results", model, client, request]:
                return ResultAddress(check_name("model", model), check_name("client", client), check_request(request))
        raise _foreign(self.root, topic, "result")

    def parse_cancel(self, topic: str) -> str:
        """Return the client that publishes cancellations on a topic."""
        match _levels(self.root, topic):
            case ["models", model, "cancel", client]:
                check_name("model", model)
                return check_name("client", client)
        raise _foreign(self.root, topic, "cancellation")

    def parse_worker_state(self, topic: str) -> str:
        """Return the worker of a state topic."""
        match _levels(self.root, topic):
            case ["workers", worker, "state"]:
                return check_name("worker", worker)
        raise _foreign(self.root, topic, "worker state")

    def parse_client_state(self, topic: str) -> str:
        """Return the client of a state topic."""
        match _levels(self.root, topic):
            case ["clients", client, "state"]:
                return check_name("client", client)
        raise _foreign(self.root, topic, "client state")

    def parse_preview(self, topic: str) -> str:
        """Return the client of a preview's topic."""
        match _levels(self.root, topic):
            case ["clients", client, "preview", stream] if is_request(stream):  # the same characters
                return check_name("client", client)
        raise _foreign(self.root, topic, "preview")

    def parse_card(self, topic: str) -> str:
        """Return the model of a card topic."""
        match _levels(self.root, topic):
            case ["models", model, "card"]:
                return check_name("model", model)
        raise _foreign(self.root, topic, "model card")


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


def may_answer(topics: Topics, response_topic: str, client: str) -> bool:
    """Return whether a server may reply there: only below `{root}/results/control/{client}/`; else as `may_reply`."""
    own = topics.control_results(client).removesuffix("+")
    return response_topic.startswith(own) and is_request(response_topic[len(own) :])


def may_answer_as_edge(topics: Topics, response_topic: str, edge: str) -> bool:
    """Return whether an edge may reply there: only below `{root}/clients/{edge}/control/`; else as `may_reply`."""
    own = topics.edge_replies(edge).removesuffix("+")
    return response_topic.startswith(own) and is_request(response_topic[len(own) :])


def request_template(topics: Topics, topic: str) -> str:
    """Return the topic of a request with names in braces, as `{root}/models/{model}/infer/{client}`.

    Raises:
        BadTopic: It is none.
    """
    address = topics.parse_infer(topic)
    if address.worker is not None:
        return f"{topics.root}/workers/{{worker}}/infer/{{model}}/{{client}}"
    versions = "" if address.version is None else "/versions/{version}"
    return f"{topics.root}/models/{{model}}{versions}/infer/{{client}}"


def result_template(topics: Topics) -> str:
    """Return the topic of a reply with names in braces."""
    return f"{topics.root}/results/{{model}}/{{client}}/{{request}}"


def _model(root: str, model: str) -> str:
    return f"{root}/models/{check_name('model', model)}"


def _control(root: str, server: str) -> str:
    return f"{root}/{CONTROL}/{check_name('server', server)}"


def _channel(root: str, model: str, version: str | None) -> str:
    return f"{_model(root, model)}{'' if version is None else f'/versions/{check_version(version)}'}/infer"


def _levels(root: str, topic: str) -> list[str]:
    return topic[len(root) + 1 :].split("/", 8) if topic.startswith(f"{root}/") else []


def _foreign(root: str, topic: str, kind: str) -> BadTopic:
    return BadTopic(f"{topic[:200]!r} is not a {kind} topic below {root!r}")


# Every request needs these three, with the same few names; only names that follow the rules are cached.
@lru_cache(maxsize=1024)
def _infer(root: str, model: str, client: str, version: str | None) -> str:
    return f"{_channel(root, model, version)}/{check_name('client', client)}"


@lru_cache(maxsize=1024)
def _results(root: str, model: str, client: str) -> str:
    return f"{root}/results/{check_name('model', model)}/{check_name('client', client)}/"


@lru_cache(maxsize=1024)
def _parse_infer(root: str, topic: str) -> InferAddress:
    match _levels(root, topic):
        case ["models", model, "infer", client]:
            return InferAddress(check_name("model", model), None, check_name("client", client), None)
        case ["models", model, "versions", version, "infer", client]:
            checked = check_version(version)
            return InferAddress(check_name("model", model), checked, check_name("client", client), None)
        case ["workers", worker, "infer", model, client]:
            name = check_name("worker", worker)
            return InferAddress(check_name("model", model), None, check_name("client", client), name)
    raise _foreign(root, topic, "request")


def without_id(topic: str) -> str:
    """Return the topic of a reply without its last level: that is another one for each request."""
    return topic.rpartition("/")[0]

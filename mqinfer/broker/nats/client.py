"""nats-py's client, but safe from strangers: who by default can end connections, or have them go without TLS.

Imported where a connection is made, since nats-py is an extra.
"""

from __future__ import annotations

import re

from nats.aio.client import Client
from nats.errors import Error
from nats.protocol import parser

# The server ends subjects at these characters alone. To nats-py others are white space too, and an unknown protocol.
_SUBJECT, _GAP = rb"([^ \t\r\n]+)", rb"[ \t]+"
_START = rb"MSG" + _GAP + _SUBJECT + _GAP + rb"(\d+)" + _GAP + rb"(" + _SUBJECT + _GAP + rb")?"
parser.MSG_RE = re.compile(rb"\A" + _START + rb"(\d+)\r\n")
parser.HMSG_RE = re.compile(rb"\AH" + _START + rb"(\d+)" + _GAP + rb"(\d+)\r\n")


class SafeClient(Client):
    """A client that passes on a message whose subject is no text or whose headers can't be read, without these.

    With TLS options it logs in over TLS alone: nats-py leaves that to the server, or to whoever answers in its place.

    Attributes:
        is_reading: Whether it reads headers now: an error that it reports meanwhile is theirs.
    """

    is_reading = False

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        await super()._process_msg(sid, _as_text(subject), _as_text(reply), data, headers)

    async def _process_headers(self, headers: bytes) -> dict[str, str] | None:
        self.is_reading = True
        try:
            return await super()._process_headers(headers)
        except Exception:  # noqa: BLE001 - whatever a stranger has sent
            return None
        finally:
            self.is_reading = False

    def _connect_command(self) -> bytes:
        if "tls" in self.options and not self._server_info.get("tls_required"):
            raise Error("the server offers no TLS; nats:// is for one without")
        command: bytes = super()._connect_command()
        return command


def _as_text(name: bytes) -> bytes:
    """Return a name as nats-py can decode it; one that was no text is then that of no topic."""
    return bytes(name).decode(errors="replace").encode()

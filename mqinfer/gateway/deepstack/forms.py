"""The forms of the calls: a picture and a few short fields, by `multipart/form-data`; fields alone also urlencoded.

A whole body is cut at its boundaries here: aiohttp's reader of streams remembers each malformed header that it warns
of, and searches 8 KiB at a time. No name of a file and no content type of a part has any effect.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qsl

from mqinfer.protocol.errors import BadEnvelope
from mqinfer.protocol.types import Buffer

PICTURE = "image"
"""The field that is a picture."""
_MOST_PARTS, _MOST_HEADER, _MOST_FIELD = 16, 2048, 512
"""Parts of a body, bytes of the headers of one, and bytes of a field."""
_BOUNDARY = re.compile(r'(?i)multipart/form-data\s*;.*?\bboundary=(?:"([^"]{1,70})"|([^\s";,]{1,70}))', re.ASCII)
_NAME = re.compile(rb'(?im)^content-disposition:(?:[^\r\n"]|"[^\r\n"]*")*?;[ \t]*name=(?:"([^"\r\n]*)"|([^\s";]+))')


@dataclass(frozen=True, slots=True)
class Form:
    """What a form holds.

    Attributes:
        fields: Short fields by name; of a name that stands twice the first, as for DeepStack.
        pictures: The parts that are called `image`.
    """

    fields: Mapping[str, str] = field(default_factory=dict)
    pictures: tuple[bytes, ...] = ()


def read_form(content_type: str, body: Buffer) -> Form:
    """Return the form of a body; an empty one is an empty form.

    Raises:
        BadEnvelope: It is none, is cut off, or has too many parts or too long ones.
    """
    if not body:
        return Form()
    if content_type.lower().startswith("application/x-www-form-urlencoded"):
        try:
            pairs = parse_qsl(bytes(body).decode(errors="replace"), keep_blank_values=True, max_num_fields=_MOST_PARTS)
        except ValueError as error:
            raise BadEnvelope(f"the fields of the body can't be read: {error}") from error
        return Form(dict(reversed(pairs)))
    boundary = _BOUNDARY.match(content_type)
    if not boundary:
        raise BadEnvelope("expected a body of multipart/form-data, with its boundary in the header Content-Type")
    fields, pictures = dict[str, str](), list[bytes]()
    whole = body if isinstance(body, bytes | bytearray) else bytes(body)
    for name, start, end in _parts(whole, (boundary[1] or boundary[2]).encode()):
        content = bytes(memoryview(whole)[start:end])
        if name == PICTURE:
            pictures.append(content)
        elif len(content) > _MOST_FIELD:
            raise BadEnvelope(f"a field of the form has {len(content)} bytes; at most {_MOST_FIELD} are accepted")
        else:
            fields.setdefault(name, content.decode(errors="replace"))
    return Form(fields, tuple(pictures))


def _parts(body: bytes | bytearray, boundary: bytes) -> Iterator[tuple[str, int, int]]:
    """Yield name, start and end of each part."""
    delimiter = b"\r\n--" + boundary
    first = -2 if body.startswith(delimiter[2:]) else body.find(delimiter)
    if first == -1:
        raise BadEnvelope("the form has not the boundary that its header Content-Type states")
    start = first + len(delimiter)
    for _ in range(_MOST_PARTS + 1):
        if body[start : start + 2] == b"--":
            return
        end = body.find(delimiter, start)
        if end < 0:
            raise BadEnvelope("the form ends before its last boundary")
        head = body[start : min(end, start + _MOST_HEADER)].partition(b"\r\n\r\n")
        name = _NAME.search(head[0] + b"\r\n") if head[1] else None
        if name is None:
            raise BadEnvelope(f"a part has no Content-Disposition with a name in its first {_MOST_HEADER} bytes")
        yield (name[1] or name[2] or b"").decode(errors="replace"), start + len(head[0]) + 4, end
        start = end + len(delimiter)
    raise BadEnvelope(f"the form has more than {_MOST_PARTS} parts")

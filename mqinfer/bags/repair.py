"""Make a whole bag of one that was never closed, is still being written, or is damaged in places."""

from __future__ import annotations

import shutil
import sqlite3
import struct
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from mqinfer.bags.extent.unpacking import MADE, chunk_records, unpack
from mqinfer.bags.rosbag import refuse_pipes, sqlite_size
from mqinfer.extras import missing_extra
from mqinfer.protocol.errors import SourceError

if TYPE_CHECKING:
    from rosbags.rosbag1.reader import Header

_MCAP_MAGIC = b"\x89MCAP0\r\n"
_ROS1_MAGIC = b"#ROSBAG V2.0\n"
_SQLITE_MAGIC = b"SQLite format"
_NAME_END = bytes.fromhex("d9d505f920a163d7")
"""A journal that ends so has the name of a further file."""
_DAMAGE = sqlite3.Error, UnicodeDecodeError
"""What SQLite raises; the latter where its message has bytes of the file that are no text."""
_MESSAGE, _CHUNK, _CONNECTION = 2, 5, 7
_UP = "SELECT * FROM messages WHERE id > ? ORDER BY id"
_DOWN = "SELECT * FROM messages WHERE id < ? ORDER BY id DESC"
_LARGEST_STEP = 1 << 32
"""Numbers of messages that are passed over for one that can be read, at most."""


@dataclass(slots=True)
class Repaired:
    """What a repair found.

    Attributes:
        messages: Number of messages that were copied.
        damaged_chunks: Number of chunks, or of places in an SQLite file, that were left out as unreadable.
        stopped_at: Offset in the source from which nothing could be read; None if that is its end.
    """

    messages: int = 0
    damaged_chunks: int = 0
    stopped_at: int | None = None


def is_unfinished(path: Path) -> bool:
    """Return whether an MCAP file has no end.

    Raises:
        OSError: It cannot be read.
    """
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - len(_MCAP_MAGIC)))
        return size <= len(_MCAP_MAGIC) or file.read() != _MCAP_MAGIC


def repair(source: Path, target: Path) -> Repaired:
    """Copy every message that can be read into a new bag with an index.

    Args:
        source: A ROS 1 bag or an MCAP file, which may still grow, or an SQLite file, which may not; it stays as it is.
        target: New file.

    Raises:
        SourceError: The source is neither, or the target cannot be written.
        MissingExtra: A package for this kind of bag is not installed.
    """
    found = Repaired()
    try:
        if target.exists() or target.is_symlink():
            raise SourceError(f"{target} exists already; choose a new path")
        refuse_pipes(source)
        with source.open("rb") as file:
            begin = file.read(len(_ROS1_MAGIC))
            if begin == _ROS1_MAGIC:
                _repair_ros1(file, target, found)
            elif begin.startswith(_MCAP_MAGIC):
                file.seek(len(_MCAP_MAGIC))
                _repair_mcap(file, target, found)
            elif begin == _SQLITE_MAGIC or source.suffix == ".db3":
                _repair_sqlite(source, target, found)
            else:
                raise SourceError(
                    f"{source}: not a ROS 1 bag, an MCAP file or a .db3 file; only these can be repaired; unpack a "
                    "compressed one first: zstd -dc FILE > PART"
                )
    except OSError as error:
        reason = error.strerror or error
        raise SourceError(
            f"can't repair {source} into {target}: {reason}; choose a path on a disk with space"
        ) from error
    return found


class _McapCopy:
    """Adds records of a damaged MCAP file to a new one."""

    def __init__(self, writer: Any, found: Repaired) -> None:
        self._writer = writer
        self._found = found
        self._schemas = {0: 0}
        self._channels: dict[int, int] = {}

    def add(self, record: Any) -> None:
        """Add a record by its kind; raise KeyError for one whose schema or channel was in a damaged chunk."""
        kind, writer = type(record).__name__, self._writer
        if kind == "Schema" and record.id not in self._schemas:
            self._schemas[record.id] = writer.register_schema(record.name, record.encoding, record.data)
        elif kind == "Channel" and record.id not in self._channels:
            schema = self._schemas[record.schema_id]
            self._channels[record.id] = writer.register_channel(
                record.topic, record.message_encoding, schema, record.metadata
            )
        elif kind == "Message":
            channel = self._channels[record.channel_id]
            writer.add_message(channel, record.log_time, record.data, record.publish_time, record.sequence)
            self._found.messages += 1
        elif kind == "Metadata":
            writer.add_metadata(record.name, record.metadata)


def _repair_mcap(file: BinaryIO, target: Path, found: Repaired) -> None:
    try:
        from mcap.records import Chunk, DataEnd, Header
        from mcap.stream_reader import StreamReader
        from mcap.writer import Writer
    except ImportError as error:
        raise missing_extra("mcap", "edge") from error
    with target.open("wb") as out:
        writer: Any = Writer(out)
        copy = _McapCopy(writer, found)
        for record in _until_damage(StreamReader(file, skip_magic=True, emit_chunks=True).records, file, found):
            parts = [record]
            if isinstance(record, Header):
                writer.start(record.profile, record.library)
            elif isinstance(record, DataEnd):  # the index that follows is made anew
                break
            elif isinstance(record, Chunk):
                try:
                    parts = chunk_records(record)
                except Exception:  # noqa: BLE001 - what decompressors and parsers raise on damage
                    found.damaged_chunks += 1
                    continue
            for part in parts:
                with suppress(KeyError):
                    copy.add(part)
        writer.finish()


def _repair_sqlite(source: Path, target: Path, found: Repaired) -> None:
    """Copy an SQLite file with its journal, and let SQLite roll the copy back to its last commit."""
    beside = [source.with_name(source.name + suffix) for suffix in ("-journal", "-wal")]
    journals = [each for each in beside if each.exists()]
    for part in (source, *journals):
        shutil.copyfile(part, target.with_name(target.name + part.name.removeprefix(source.name)))
    try:
        _cut_name(target.with_name(f"{target.name}-journal"))
        try:
            found.messages = _roll_back(target)
        except _DAMAGE:
            if any(each.stat().st_size for each in journals):
                raise
            _read_around(target, found)
        target.with_name(f"{target.name}-journal").unlink(missing_ok=True)  # one without a head was not for SQLite
    except _DAMAGE as error:
        for suffix in ("", "-journal", "-wal", "-shm"):
            target.with_name(target.name + suffix).unlink(missing_ok=True)
        raise SourceError(
            f"{source}: {error}; it is damaged or still being recorded; stop the recorder, then try again"
        ) from error


def _cut_name(journal: Path) -> None:
    """Cut the name of a further file off the end of a journal: SQLite deletes that file, whatever it is.

    No recorder writes one, which is for transactions in several databases. Source:
    https://www.sqlite.org/fileformat.html, section 3
    """
    with suppress(FileNotFoundError), journal.open("r+b") as file:
        end = file.seek(0, 2)
        while end >= len(_NAME_END):
            end = file.seek(end - len(_NAME_END))
            if file.read() != _NAME_END:
                break
            file.truncate(end)


def _roll_back(file: Path) -> int:
    """Return the number of messages of a file as of its last commit; raise sqlite3.Error if it is damaged."""
    with closing(sqlite3.connect(file)) as database:
        (state,) = database.execute("PRAGMA integrity_check(1)").fetchone()
        if state != "ok":
            raise sqlite3.DatabaseError(state)
        _check_messages(database)
        (messages,) = database.execute("SELECT count(*) FROM messages").fetchone()
        database.execute("PRAGMA journal_mode = DELETE")
    return int(messages)


def _read_around(file: Path, found: Repaired) -> None:
    """Replace a damaged file by one of the rows that can be read."""
    damaged = file.rename(file.with_name(f"{file.name}.damaged"))
    try:
        if (missing := sqlite_size(damaged) - damaged.stat().st_size) > 0:
            with damaged.open("ab") as opened:  # SQLite reads nothing of a file that is shorter than it states
                opened.truncate(opened.tell() + missing)
        with closing(sqlite3.connect(damaged)) as old, closing(sqlite3.connect(file)) as new:
            _check_messages(old)
            _copy_tables(old, new)
            _copy_messages(old, new, found)
            new.commit()
    finally:
        damaged.unlink()


def _check_messages(database: sqlite3.Connection) -> None:
    """Raise sqlite3.Error where messages are no table, or anything is made while it is read."""
    found = database.execute("SELECT type FROM sqlite_master WHERE name = 'messages' COLLATE NOCASE").fetchone()
    if found != ("table",) or database.execute(MADE).fetchone():
        raise sqlite3.DatabaseError("it has no table of messages, or what is no plain table")


def _copy_tables(old: sqlite3.Connection, new: sqlite3.Connection) -> None:
    """Make all tables, and copy what is read of others than messages up to damage."""
    for name, statement in old.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'").fetchall():
        with suppress(*_DAMAGE):
            new.execute(statement)
            quoted = '"' + name.replace('"', '""') + '"'
            for row in () if name == "messages" else old.execute(f"SELECT * FROM {quoted}"):  # noqa: S608 - its own name
                new.execute(f"INSERT INTO {quoted} VALUES ({_places(row)})", row)  # noqa: S608 - as above


def _copy_messages(old: sqlite3.Connection, new: sqlite3.Connection, found: Repaired) -> None:
    """Copy messages in the order of their numbers, up from 1 and down from 0, past those that can't be read."""
    for query, begin, way in ((_UP, 0, 1), (_DOWN, 1, -1)):
        last, step = begin, 0
        while step < _LARGEST_STEP:
            try:
                for row in old.execute(query, (last + way * step,)):
                    new.execute(f"INSERT INTO messages VALUES ({_places(row)})", row)  # noqa: S608 - question marks
                    last, step = row[0], 0
                    found.messages += 1
            except _DAMAGE:
                found.damaged_chunks += step == 0
                step = 2 * step + 1
            else:
                break


def _places(row: tuple[object, ...]) -> str:
    return ", ".join("?" * len(row))


def _repair_ros1(file: BinaryIO, target: Path, found: Repaired) -> None:
    try:
        from rosbags.rosbag1 import Writer
    except ImportError as error:
        raise missing_extra("rosbags", "edge") from error
    from rosbags.rosbag1.reader import ReaderError

    connections: dict[int, Any] = {}
    known: dict[tuple[str, ...], Any] = {}  # two publishers of a topic may say the same of it
    with ExitStack() as open_files:
        target.parent.mkdir(parents=True, exist_ok=True)
        writer = open_files.enter_context(Writer(target))
        for fields, data in _ros1_messages(file, found):
            with suppress(KeyError, ValueError, ReaderError):  # a damaged record of a chunk that is not compressed
                number = fields.get_uint32("conn")
                if fields.get_uint8("op") == _MESSAGE:
                    writer.write(connections[number], fields.get_time("time"), data)
                    found.messages += 1
                elif number not in connections:
                    key = _ros1_connection(fields, data)
                    if key not in known:
                        known[key] = writer.add_connection(key[0], key[1], msgdef=key[2], md5sum=key[3])
                    connections[number] = known[key]


def _ros1_connection(fields: Header, data: bytes) -> tuple[str, str, str, str]:
    """Return topic, type, definition and its hash."""
    from rosbags.rosbag1.reader import Header

    head = Header.read(BytesIO(struct.pack("<I", len(data)) + data))
    package, _, name = head.get_string("type").rpartition("/")
    definition, md5sum = (head.get_string(each) for each in ("message_definition", "md5sum"))
    return fields.get_string("topic"), f"{package}/msg/{name}", definition, md5sum


def _ros1_messages(file: BinaryIO, found: Repaired) -> Iterator[tuple[Header, bytes]]:
    """Yield the records of connections and messages, those of chunks and those of a chunk that was not closed."""
    for fields, data in _until_damage(_ros1_records(file), file, found):
        inside: list[tuple[Header, bytes]] = [(fields, data)]
        if fields.get_uint8("op") == _CHUNK:
            try:
                chunk = BytesIO(unpack(fields.get_string("compression"), data, is_cut=True))
            except Exception:  # noqa: BLE001 - what decompressors raise on damage
                found.damaged_chunks += 1
                continue
            inside = list(_until_damage(_ros1_records(chunk), chunk, Repaired()))
        yield from (each for each in inside if each[0].get_uint8("op") in {_MESSAGE, _CONNECTION})


def _ros1_records(file: BinaryIO) -> Iterator[tuple[Header, bytes]]:
    """Yield header and data of each record, and what there is of a chunk that is cut off.

    Raises:
        ReaderError: A record is cut off or damaged.
    """
    from rosbags.rosbag1.reader import Header, ReaderError, read_uint32

    while True:
        fields = Header.read(file)
        kind, size = fields.get_uint8("op"), read_uint32(file)
        data = file.read(size)
        if len(data) == size or kind == _CHUNK:
            yield fields, data
        if len(data) != size:
            raise ReaderError(f"{size} bytes expected, {len(data)} left")


def _until_damage(records: Iterator[Any], file: BinaryIO, found: Repaired) -> Iterator[Any]:
    """Yield records up to the present end or the first that can't be read, and note its place."""
    place = file.tell()
    end = file.seek(0, 2)  # of a file that grows no more than that is read, or it might never end
    file.seek(place)
    while (place := file.tell()) < end:
        try:
            record = next(records, None)
        except OSError:
            raise
        except Exception:  # noqa: BLE001 - whatever parsers raise on damage
            found.stopped_at = place
            return
        if record is None:
            return
        yield record

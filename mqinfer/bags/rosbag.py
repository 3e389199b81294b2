"""Read topics and raw messages of a bag with the rosbags package; no ROS installation is needed."""

from __future__ import annotations

import errno
import logging
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from itertools import accumulate
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, TypeVar

from mqinfer.bags.calibration import calibration
from mqinfer.bags.extent.advice import ZSTD_MAGIC, advise
from mqinfer.bags.extent.unpacking import METADATA, bound_rosbags, is_foreign, unpack, zstd
from mqinfer.bags.points import POINT_TYPES, check_message
from mqinfer.bags.videos.packets import DEFINITIONS, FOXGLOVE, FOXGLOVE_ENCODINGS, VIDEO_TYPES, codec_of, read_foxglove
from mqinfer.extras import missing_extra
from mqinfer.images.picture import CameraInfo, CompressedImage, RawImage
from mqinfer.logs import reason
from mqinfer.protocol.errors import MqinferError, SourceError

if TYPE_CHECKING:
    from rosbags.highlevel import AnyReader
    from rosbags.interfaces import Connection

log = logging.getLogger("mqinfer.bags")
_RAW = "sensor_msgs/msg/Image"
_COMPRESSED = "sensor_msgs/msg/CompressedImage"
IMAGE_TYPES = (_RAW, _COMPRESSED)
PICTURE_TYPES = (*IMAGE_TYPES, *VIDEO_TYPES)
"""Types of the topics that frames are made of."""
T = TypeVar("T", int, str)
_FOREVER = 1_000_000_000 << 31
"""Nanoseconds that a time in ROS can't have, whose seconds have 32 bits."""
_SQLITE_HEAD = 100  # bytes
_LONGEST = 256
"""Characters of an encoding that are kept, of which errors name it."""
_LARGEST_TOGETHER = 1 << 30
"""Bytes of chunks that are unpacked at one time."""
_LEFT = 1 << 28
"""Bytes of a disk that stay free when a recording is unpacked there."""
_PIECE = 1 << 24
"""Bytes of it that are unpacked at a time."""
_MOST_OPEN = 16
"""Files of a bag that are open together; of a ROS 2 bag of more, each is open while it is read."""
_ALONE = 2
"""Owners of connections that one file has."""


def message_type(connection: Connection) -> str:
    """Return the type of a connection in three parts: early recorders of ROS 2 wrote `sensor_msgs/Image`."""
    package, slash, name = connection.msgtype.partition("/")
    return f"{package}/msg/{name}" if slash and "/" not in name else connection.msgtype


@dataclass(frozen=True, slots=True, eq=False)
class StampedImage:
    """An image with the stamp of its header, in nanoseconds since the epoch, and its coordinate frame.

    Of points the image is empty, and there is the message.
    """

    capture_time_ns: int
    frame_id: str
    image: RawImage | CompressedImage
    points: tuple[Any, ...] = ()


class Rosbag:
    """A ROS 1 `.bag`, a ROS 2 folder with `metadata.yaml`, or bare `.mcap` and `.db3` files, also zstd-compressed.

    Opening reads the index only. A compressed bare file is unpacked into a temporary folder that `close` removes.

    Args:
        path: The bag.
        more: Further files of the same recording, of the same kind.

    Raises:
        SourceError: It is damaged, cut off, or not a bag.
        MissingExtra: rosbags is not installed.
    """

    def __init__(self, path: Path, *more: Path) -> None:
        self.path = path
        self.name = f"{path} and {len(more)} more" if more else str(path)
        self._resources = ExitStack()
        with ExitStack() as rollback:
            rollback.callback(self._resources.close)
            self._states: dict[Path, tuple[int, int]] = {}
            files: list[tuple[Path, Path]] = []
            for each in (path, *more):
                with foreign_errors(each):
                    self._states |= _sqlite_states(each)
                    files += _files_to_read(each, self._resources)
            self._reader = _open(path, [file for _, file in files], self._resources)
            rollback.pop_all()
        readers: Sequence[Any] = self._reader.readers
        self._places = {
            id(owner): place
            for reader, (place, _) in zip(readers, files, strict=True)
            for owner in (reader, getattr(reader, "storage", reader))  # either may own connections
        }

    @property
    def kind(self) -> str:
        """Its format in words."""
        if not self._reader.is2:
            return "ROS 1 bag"
        if self.connections and not any(_encoding(each) == "cdr" for each in self.connections):
            return "MCAP file"
        storage = _storage_of(self.path)
        return f"ROS 2 bag, {storage}" if storage else "ROS 2 bag"

    @property
    def connections(self) -> Sequence[Connection]:
        """Publishers with their topics and types; one topic may have several."""
        return self._reader.connections

    @property
    def message_count(self) -> int:
        """Number of messages on all topics."""
        return self._reader.message_count

    def times(self) -> tuple[int, int] | None:
        """Return the log times of the first and the last message, in nanoseconds, or None for an empty bag."""
        with foreign_errors(self.path):
            return (self._reader.start_time, self._reader.end_time - 1) if self.message_count else None

    def first(self, connections: Sequence[Connection]) -> tuple[Connection, int, bytes] | None:
        """Return the earliest message of some connections."""
        return next(self.messages(connections), None) if connections else None

    def last(
        self,
        connections: Sequence[Connection],
        stop: int | None = None,
        accepts: Callable[[Connection, bytes], bool] = lambda *_: True,
    ) -> tuple[Connection, int, bytes] | None:
        """Search the last message before a log time backwards, in growing steps, so that a long bag is not read."""
        if not (connections and self.message_count):
            return None
        begin, end = self._reader.start_time, self._reader.end_time
        for start, before in growing_spans(begin, end if stop is None else min(stop, end)):
            found = None
            for message in self.messages(connections, start, before):
                if accepts(message[0], message[2]):
                    found = message
            if found:
                return found
        return None

    def messages(
        self, connections: Sequence[Connection], start: int | None = None, stop: int | None = None
    ) -> Iterator[tuple[Connection, int, bytes]]:
        """Yield connection, log time in nanoseconds and raw message, by log time, from `start` to before `stop`.

        Raises:
            SourceError: The bag is damaged further on; what came before it has been yielded.
        """
        with foreign_errors(self.path):
            readers: Sequence[Any] = () if self._reader.is2 else self._reader.readers
            for reader in readers:  # after a chunk that could not be unpacked, rosbags holds a closed one
                if reader.current_chunk[1].closed:
                    reader.current_chunk = (-1, BytesIO())
            messages = self._messages(connections, start, stop)
        while True:
            with foreign_errors(self.path):
                message = next(messages, None)
                if message is None:
                    return
                if any(_state(file) != state for file, state in self._states.items()):  # its pages don't fit together
                    raise SourceError(f"{self.path} was written to while it was read; stop its recorder first")
                connection, log_time_ns, raw = message
                if self._reader.is2 and bytes(raw[:4]) == ZSTD_MAGIC:  # a file without the folder's metadata.yaml
                    raw = unpack("zstd", raw)
                log_time_ns = int(log_time_ns)  # a damaged SQLite file may hold anything in any column
            yield connection, log_time_ns, raw

    def _messages(
        self, connections: Sequence[Connection], start: int | None, stop: int | None
    ) -> Iterator[tuple[Connection, int, bytes]]:
        """Yield messages by log time; files whose times do not overlap are read one behind the other.

        Raises:
            SourceError: A file that is read alone is damaged; the error names it.
        """
        together: list[list[Any]] = []
        end = -1
        readers: Sequence[Any] = self._reader.readers
        for reader in sorted(readers, key=lambda each: each.start_time):
            if reader.start_time >= end - 1:  # of messages with one log time, those of the file before come first
                together.append([])
            end = max(end, reader.end_time)
            together[-1] += [reader, getattr(reader, "storage", reader)]  # either may own connections
        for owners in together:
            if chosen := [each for each in connections if each.owner in owners]:
                try:
                    with foreign_errors(self._place(chosen[0]) if len(owners) == _ALONE else self.path):
                        yield from self._reader.messages(chosen, start=start, stop=stop)
                finally:
                    for reader in owners if not self._reader.is2 and len(readers) > 1 else ():
                        reader.current_chunk = (-1, BytesIO())  # no more is unpacked than of one file

    def _place(self, connection: Connection) -> Path:
        """Return the file, or the folder with its metadata, that a connection is of."""
        return self._places.get(id(connection.owner), self.path)

    def count_before(self, connections: Sequence[Connection], stop: int) -> Counter[str]:
        """Count the messages before a log time by topic: by a bag's index, else by reading over them.

        Raises:
            SourceError: The bag is damaged before that time.
        """
        counts: Counter[str] = Counter()
        if self._reader.is2:
            for owner in {id(each.owner): each.owner for each in connections}.values():
                own = [each for each in connections if each.owner is owner]
                begin = _count_chunks(owner, own, stop, counts)
                counts.update(connection.topic for connection, _, _ in self.messages(own, begin, stop))
            return counts
        for connection in connections:
            indexes: Any = connection.owner
            counts[connection.topic] += sum(entry.time < stop for entry in indexes.indexes[connection.id])
        return counts

    def decode(self, connection: Connection, raw: bytes) -> Any:
        """Decode a message of any type that the bag defines.

        Raises:
            SourceError: The bytes are not such a message, or the type is not known.
        """
        with foreign_errors(self._place(connection), connection.topic):
            return self._reader.deserialize(raw, message_type(connection))

    def image(self, connection: Connection, raw: bytes) -> StampedImage:
        """Decode the message of an image, of points, or of a packet of a video, whose format is then the codec.

        Raises:
            SourceError: The bytes are not such a message, or the codec is not known.
        """
        kind = message_type(connection)
        with foreign_errors(self._place(connection), connection.topic):
            if kind in POINT_TYPES:
                check_message(kind, raw, is_cdr=self._reader.is2)
            message: Any = (
                read_foxglove(raw, _encoding(connection)) if kind == FOXGLOVE else self._reader.deserialize(raw, kind)
            )
            header = getattr(message, "header", message)
            stamp = header.timestamp if header is message else header.stamp
            capture_time_ns = _of(int, stamp.sec) * 1_000_000_000 + _of(int, stamp.nanosec)
            if not -_FOREVER <= capture_time_ns < _FOREVER:
                raise ValueError(f"its stamp is {capture_time_ns} ns; expected less than {_FOREVER}")
            frame_id = _of(str, header.frame_id)
            if kind in IMAGE_TYPES:
                return StampedImage(capture_time_ns, frame_id, image_of(message))
            if kind in POINT_TYPES:
                no_image = RawImage(kind, 0, 0, 0, is_bigendian=False, data=b"")
                return StampedImage(capture_time_ns, frame_id, no_image, (message,))
            name, data = _of(str, message.format if header is message else message.encoding), message.data.data
        try:
            return StampedImage(capture_time_ns, frame_id, CompressedImage(codec_of(name), data))
        except SourceError as error:
            raise SourceError(f"{self._place(connection)}: {connection.topic}: {error}") from None

    def camera(self, connection: Connection, raw: bytes) -> CameraInfo | None:
        """Decode the message of a calibration; None, with a warning, if the bytes are no such message."""
        try:
            with foreign_errors(self._place(connection), connection.topic):
                return calibration(self._reader.deserialize(raw, message_type(connection)))
        except SourceError as error:  # the pictures beside it are whole
            log.warning("a calibration is passed over: %s", error)
            return None

    def close(self) -> None:
        """Close the bag; messages that were read stay valid."""
        self._resources.close()


def _count_chunks(owner: Any, own: Sequence[Connection], stop: int, counts: Counter[str]) -> int | None:
    """Count by its index what an MCAP file's first chunks have, and return the time from which on others are read."""
    begin = stop if (chunks := getattr(owner, "chunks", ())) else None
    for chunk in sorted(chunks, key=lambda each: -each.message_end_time):
        if begin is not None and chunk.message_end_time >= begin:
            begin = min(begin, chunk.message_start_time)
            continue
        for each in own:
            counts[each.topic] += chunk.channel_count.get(each.id, 0)
    return begin


def growing_spans(begin: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield ever longer spans of time that have this end, in nanoseconds; the last one has this beginning."""
    length, start = 1_000_000_000, end
    while start > begin:
        start = max(begin, end - length)
        yield start, end
        length *= 8


def image_of(message: Any) -> RawImage | CompressedImage:
    """Return the picture of a message of one of `IMAGE_TYPES`."""
    # `.data.data` is a view of the reader's bytes, not a copy.
    if message.__msgtype__ == _COMPRESSED:
        return CompressedImage(_of(str, message.format)[:_LONGEST], message.data.data)
    return RawImage(
        encoding=_of(str, message.encoding)[:_LONGEST],
        height=_of(int, message.height),
        width=_of(int, message.width),
        step=_of(int, message.step),
        is_bigendian=bool(message.is_bigendian),
        data=message.data.data,
    )


def _of(kind: type[T], value: Any) -> T:
    """Return a field of a message; its type is what the recording itself defines.

    Raises:
        TypeError: It is not that of ROS.
    """
    if type(value) is not kind:
        raise TypeError(f"a field of it is {type(value).__name__}; expected {kind.__name__}")
    return value


def _open(path: Path, files: Sequence[Path], resources: ExitStack) -> AnyReader:
    try:
        from rosbags.highlevel import AnyReader
        from rosbags.typesys import Stores, get_types_from_msg, get_typestore
    except ImportError as missing:
        raise missing_extra("rosbags", "edge") from missing
    with foreign_errors(path):
        bound_rosbags()
        # Recordings of ROS 2 Humble and earlier contain no message definitions.
        store = get_typestore(Stores.ROS2_HUMBLE)
        for name, definition in DEFINITIONS.items():
            store.register(get_types_from_msg(definition, name))
        reader = AnyReader(files, default_typestore=store)
        if max(len(files), len(_contents(path))) > _MOST_OPEN:
            _open_late(reader)
        resources.enter_context(reader)
        _check_readable(path, files, reader)
        _check_overlap(path, reader)
        return reader


class _LateStorage:
    """A file of a bag that is open only while it is read; rosbags keeps each one open.

    Args:
        plugin: Makes what reads such a file.
        path: The file.
    """

    def __init__(self, plugin: Any, path: Path) -> None:
        self._make = partial(plugin, path)
        self.metadata: Any = None
        self.connections: list[Connection] = []
        self.chunks: list[Any] = []

    def open(self) -> None:
        """Read what is in the file."""
        with self._opened() as storage:
            self.connections = [each._replace(owner=self) for each in storage.connections]
            self.metadata, self.chunks = storage.metadata, [*getattr(storage, "chunks", ())]

    def messages(
        self, connections: Sequence[Connection], start: int | None = None, stop: int | None = None
    ) -> Iterator[tuple[Connection, int, bytes]]:
        """Yield messages, as rosbags does."""
        begin, end = self.metadata.start_time, self.metadata.end_time
        if (start is None or start < end) and (stop is None or begin < stop):
            with self._opened() as storage:
                yield from storage.messages(connections, start, stop)

    def close(self) -> None:
        """Do nothing: it is closed."""

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        storage = self._make()
        storage.open()
        try:
            yield storage
        finally:
            storage.close()


def _open_late(reader: AnyReader) -> None:
    """Have each file of a bag opened when it is read, whether a folder's metadata lists them or nothing does."""
    readers: Sequence[Any] = reader.readers if reader.is2 else ()
    for each in readers:
        storage = each.storage
        if plugins := getattr(storage, "STORAGE_PLUGINS", None):
            storage.STORAGE_PLUGINS = {name: partial(_LateStorage, plugin) for name, plugin in plugins.items()}
        else:
            each.storage = _LateStorage(type(storage), storage.path)


def _encoding(connection: Connection) -> str:
    """Return the encoding of its messages: `cdr`, `ros1`, or another one in an MCAP file."""
    return str(getattr(connection.ext, "serialization_format", "ros1"))


def _check_readable(path: Path, files: Sequence[Path], reader: AnyReader) -> None:
    """Raise for MCAP files of which no topic can be read."""
    for each in reader.connections:  # SQLite may hold anything in any column
        _of(str, each.topic)
        _of(str, each.msgtype)
    recordings = [each for each in files if each.suffix == ".mcap" and each.is_file()]  # a folder may be named so
    if not any(map(_is_readable, reader.connections)) and (reader.connections or any(map(is_foreign, recordings))):
        raise SourceError(f"{path}: {advise(path)}")


def _is_readable(connection: Connection) -> bool:
    encoding = _encoding(connection)
    own = FOXGLOVE_ENCODINGS if message_type(connection) == FOXGLOVE else ("cdr", "ros1")
    return encoding in own


def _check_overlap(path: Path, reader: AnyReader) -> None:
    """Raise for chunks of an MCAP file that are too large together: rosbags unpacks those of one time at once."""
    for each in reader.readers if reader.is2 else ():
        storage: Any = getattr(each, "storage", each)
        for file in getattr(storage, "storages", [storage]):
            edges: list[tuple[int, int]] = []
            for chunk in getattr(file, "chunks", ()):
                edges.append((chunk.message_start_time, chunk.uncompressed_size))
                edges.append((chunk.message_end_time + 1, -chunk.uncompressed_size))
            together = max(accumulate(size for _, size in sorted(edges)), default=0)
            if together > _LARGEST_TOGETHER:
                raise SourceError(
                    f"{path}: chunks of {together >> 20} MiB together hold messages of one time; expected at most "
                    f"{_LARGEST_TOGETHER >> 20} MiB; sort it first: mcap sort FILE -o NEW"
                )


@contextmanager
def foreign_errors(path: Path, where: str = "") -> Iterator[None]:
    """Raise `SourceError` for whatever rosbags raises on a damaged or foreign file.

    Its parsers raise errors of many libraries (struct, assert, KeyError, lz4, bz2, zstd, SQLite, Unicode, ...), so the
    mapping is by place and not by class.
    """
    try:
        yield
    except MqinferError:
        raise
    except Exception as failed:
        place = f"{path}: {where}: " if where else f"{path}: "
        is_access = isinstance(failed, OSError) and failed.errno not in {None, errno.EINVAL}  # a place that no file has
        advice = "check its permissions" if is_access else advise(path, is_message=bool(where))
        if isinstance(failed, MemoryError):  # of a file that may be whole
            advice = "no memory is free: end other programs, or raise this one's limit"
        if os.strerror(errno.EMFILE) in str(failed):
            advice = "close others, or raise the limit: ulimit -n 4096"
        raise SourceError(f"{place}{reason(failed).rstrip('.')}; {advice}") from failed


def _sqlite_states(path: Path) -> dict[Path, tuple[int, int]]:
    """Return the state of each SQLite file of a bag: rosbags reads them without locks, so nobody may write there.

    Raises:
        SourceError: A file has a journal: it is being written, or its recorder crashed.
    """
    files = [each for each in (path, *_contents(path)) if each.suffix == ".db3"]
    for journal in (each.with_name(each.name + suffix) for each in files for suffix in ("-journal", "-wal")):
        if journal.exists() and journal.stat().st_size:
            raise SourceError(
                f"{path} is being written, or its recorder crashed: there is {journal.name}; "
                "stop the recorder, then run: mqinfer bag repair FILE NEW"
            )
    for file in files:
        size, expected = file.stat().st_size, sqlite_size(file)
        if size < expected:
            raise SourceError(
                f"{path}: {file.name} has {size} of {expected} bytes: its recorder still writes, or {advise(path)}"
            )
    return {each: _state(each) for each in files}


def sqlite_size(file: Path) -> int:
    """Return how long a SQLite file's header says that it is, 0 where it does not: newer SQLites read less in silence.

    Source: https://www.sqlite.org/fileformat.html, section 1.3
    """
    with file.open("rb") as opened:
        head = opened.read(_SQLITE_HEAD)
    page, changed, pages, valid_for = (
        int.from_bytes(head[at:end]) for at, end in ((16, 18), (24, 28), (28, 32), (92, 96))
    )
    is_known = len(head) == _SQLITE_HEAD and changed == valid_for
    return pages * (65536 if page == 1 else page) if is_known else 0


def _state(file: Path) -> tuple[int, int]:
    """Return time of the last change and size."""
    found = file.stat()
    return found.st_mtime_ns, found.st_size


_STORAGES = {".mcap": "mcap", ".db3": "sqlite3"}
_ZIPPED = (".zst", ".zstd")


def is_bag(path: Path) -> bool:
    """Return whether a path is a bag by its suffix, or a folder with metadata or storage files.

    Raises:
        SourceError: It does not exist, or access is denied.
    """
    try:
        if not path.exists():
            raise SourceError(f"{path}: no such file or folder (for a camera, use camera:0 or its URL)")
        refuse_pipes(path)
        if path.is_dir():
            return (path / "metadata.yaml").exists() or bool(_storage_files(path))
    except OSError as failed:
        raise SourceError(f"{path}: {failed.strerror}") from failed
    return path.suffix == ".bag" or path.suffix in _STORAGES or _is_zipped(path)


def refuse_pipes(path: Path) -> None:
    """Raise for a recording that is no file, or has one in its folder: pipes may never answer, and devices never end.

    Raises:
        OSError: It can't be read.
        SourceError: It is so.
    """
    places = [path]
    if path.is_dir():
        with os.scandir(path) as entries:
            places = [Path(each.path) for each in entries if not each.is_file()]
    for each in places:
        if each.exists() and not (each.is_file() or each.is_dir()):
            raise SourceError(f"{each}: a pipe or a device; a recording is a file, or a folder of files")


def _storage_of(path: Path) -> str:
    """Return the storage of a ROS 2 bag by the suffix of its files: `mcap`, `sqlite3`, or empty if unknown."""
    suffixes = (suffix for each in (path, *_contents(path)) for suffix in each.suffixes)
    return next((_STORAGES[suffix] for suffix in suffixes if suffix in _STORAGES), "")


def _files_to_read(path: Path, resources: ExitStack) -> list[tuple[Path, Path]]:
    """Return what errors name, and the paths for rosbags' reader: a folder with metadata, or storage files.

    Args:
        path: The bag.
        resources: Removes unpacked files when it closes.
    """
    if path.is_dir():
        metadata = path / "metadata.yaml"
        if not metadata.exists():
            for left in path.glob("*.bag.active"):
                log.warning("%s is not read: it was not closed; mqinfer bag repair makes a whole bag of it", left)
            return [(each, each) for each in _storage_files(path)]
        if (size := metadata.stat().st_size) > METADATA:
            raise SourceError(f"{metadata} has {size} bytes; expected at most {METADATA}; name single files of the bag")
        return [(path, path)]
    return [(path, _unpack(path, resources) if _is_zipped(path) else path)]


def _storage_files(folder: Path) -> list[Path]:
    files = _contents(folder)
    of_ros2 = [each for each in files if each.suffix in _STORAGES]
    return of_ros2 or [each for each in files if each.suffix == ".bag"]


def _contents(path: Path) -> list[Path]:
    return sorted(path.iterdir()) if path.is_dir() else []


def _is_zipped(path: Path) -> bool:
    return path.suffix in _ZIPPED and Path(path.stem).suffix in _STORAGES


def _unpack(path: Path, resources: ExitStack) -> Path:
    folder = resources.enter_context(TemporaryDirectory(prefix="mqinfer-"))
    target = Path(folder, path.stem)
    with zstd().open(path, "rb") as packed, target.open("wb") as unpacked:
        while piece := packed.read(_PIECE):
            if shutil.disk_usage(folder).free < _LEFT + len(piece):
                raise SourceError(
                    f"{path}: unpacked, it does not fit into {Path(folder).parent}; set TMPDIR to a folder with room"
                )
            unpacked.write(piece)
    return target

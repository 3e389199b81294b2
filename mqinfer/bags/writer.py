"""Write image bags for ROS 1 and ROS 2 with the rosbags package; no ROS installation is needed."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np

from mqinfer.images.picture import CompressedImage, RawImage
from mqinfer.protocol.errors import ConfigError, MissingExtra, SourceError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["BagWriter", "Storage"]

Storage = Literal["bag", "mcap", "sqlite3"]

_NS = 1_000_000_000


@contextmanager
def _mapped(path: Path) -> Iterator[None]:
    """Raise `SourceError` for what the file system and rosbags' writers raise."""
    from rosbags.rosbag1 import WriterError as Ros1Error
    from rosbags.rosbag2 import WriterError as Ros2Error

    try:
        yield
    except FileExistsError as error:
        raise SourceError(f"{path} exists already; choose a new path") from error
    except (OSError, Ros1Error, Ros2Error) as error:
        raise SourceError(f"can't write the bag {path}: {error}; choose a new path on a disk with space") from error


class BagWriter:
    """Writes images of any encoding on any topic; a context manager, and the bag is complete once it is left.

    Args:
        path: A new file whose name ends in `.bag` for `bag`, otherwise a new directory whose name does not.
        storage: `bag` for ROS 1; `mcap` or `sqlite3` for ROS 2.
        compression: None, or for ROS 1 `lz4` or `bz2` (of chunks), for ROS 2 `zstd` (of the whole file for sqlite3,
            of chunks for mcap).

    Raises:
        ConfigError: The storage is unknown or can't compress so, or the path has the suffix of the other kind.
        SourceError: The path exists already or cannot be written.
        MissingExtra: rosbags is not installed.
    """

    def __init__(self, path: Path | str, storage: Storage, compression: str | None = None) -> None:
        try:
            from rosbags import typesys
        except ImportError as error:
            raise MissingExtra.of("rosbags", "edge") from error
        self._path = Path(path)
        self._ros1 = storage == "bag"
        store = typesys.Stores.ROS1_NOETIC if self._ros1 else typesys.Stores.ROS2_HUMBLE
        self._types: Any = typesys.get_typestore(store)
        if self._ros1 != (self._path.suffix == ".bag"):  # readers tell the two apart by it
            raise ConfigError(
                f"{self._path}: a ROS 1 bag needs a name that ends in .bag, and a ROS 2 folder one that does not"
            )
        with _mapped(self._path):
            if self._path.exists():
                raise FileExistsError(self._path)
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._writer: Any = (
                _ros1(self._path, compression) if self._ros1 else _ros2(self._path, storage, compression)
            )
            self._writer.open()
        self._connections: dict[str, Any] = {}
        self._counts: dict[str, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def write(
        self,
        topic: str,
        image: RawImage | CompressedImage,
        capture_time_ns: int,
        log_time_ns: int,
        frame_id: str = "camera",
    ) -> None:
        """Append one message.

        Args:
            topic: All messages of a topic must have one type.
            image: Not checked, so that a test can write broken ones.
            capture_time_ns: The header's stamp.
            log_time_ns: The time of recording.
            frame_id: The header's frame.

        Raises:
            SourceError: The disk is full, or the topic already has the other type.
        """
        kind = "sensor_msgs/msg/Image" if isinstance(image, RawImage) else "sensor_msgs/msg/CompressedImage"
        header = self._header(topic, capture_time_ns, frame_id)
        with _mapped(self._path):
            connection = self._connection(topic, kind)
            message = self._message(kind, header, image)
            serialize = self._types.serialize_ros1 if self._ros1 else self._types.serialize_cdr
            self._writer.write(connection, log_time_ns, serialize(message, kind))

    def close(self) -> None:
        """Write the index and close the file."""
        with _mapped(self._path):
            self._writer.close()

    def _connection(self, topic: str, kind: str) -> Any:
        known = self._connections.get(topic)
        if known is None:
            known = self._connections[topic] = self._writer.add_connection(topic, kind, typestore=self._types)
        elif known.msgtype != kind:
            raise SourceError(f"topic {topic} of {self._path} holds {known.msgtype}; write {kind} on another topic")
        return known

    def _header(self, topic: str, stamp_ns: int, frame_id: str) -> Any:
        types = self._types.types
        stamp = types["builtin_interfaces/msg/Time"](stamp_ns // _NS, stamp_ns % _NS)
        sequence = self._counts[topic] = self._counts.get(topic, -1) + 1
        first = (sequence,) if self._ros1 else ()  # ROS 2 dropped the header's `seq`
        return types["std_msgs/msg/Header"](*first, stamp, frame_id)

    def _message(self, kind: str, header: Any, image: RawImage | CompressedImage) -> Any:
        data = np.frombuffer(image.data, np.uint8)
        make = self._types.types[kind]
        if isinstance(image, CompressedImage):
            return make(header, image.format, data)
        return make(header, image.height, image.width, image.encoding, int(image.is_bigendian), image.step, data)


def _ros1(path: Path, compression: str | None) -> Any:
    from rosbags.rosbag1 import Writer

    writer = Writer(path)
    if compression is not None:
        writer.set_compression(_chosen(Writer.CompressionFormat, compression, "ROS 1"))
    return writer


def _ros2(path: Path, storage: str, compression: str | None) -> Any:
    from rosbags.rosbag2 import CompressionFormat, CompressionMode, StoragePlugin, Writer

    plugin = _chosen(StoragePlugin, storage, "this writer")
    writer = Writer(path, version=9, storage_plugin=plugin)
    if compression is not None:
        mode = CompressionMode.STORAGE if plugin is StoragePlugin.MCAP else CompressionMode.FILE
        writer.set_compression(mode, _chosen(CompressionFormat, compression, "ROS 2"))
    return writer


def _chosen(names: Any, name: str, who: str) -> Any:
    try:
        return names[name.upper()]
    except KeyError:
        known = ", ".join(each.name.lower() for each in names)
        raise ConfigError(f"{who} does not write {name!r}; choose one of {known}") from None

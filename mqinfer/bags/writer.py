"""Write bags for ROS 1 and ROS 2 with the rosbags package; no ROS installation is needed."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np

from mqinfer.bags.calibration import CAMERA_INFO
from mqinfer.codecs import encode_tensor
from mqinfer.extras import missing_extra
from mqinfer.images.decode import to_rgb
from mqinfer.images.picture import CameraInfo, CompressedImage, RawImage
from mqinfer.protocol.errors import ConfigError, SourceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from mqinfer.bags.frame import Frame, FrameSource

Storage = Literal["bag", "mcap", "sqlite3"]

PICTURE_TOPIC = "/camera/image_raw/compressed"
"""Where `write_frames` puts pictures."""
START_NS = 1_700_000_000_000_000_000
"""First stamp of what has no clock of its own; a fixed one, so that the same recording makes the same bag."""

_NS = 1_000_000_000
_ENCODING = "jpeg:95"


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
    """Writes images of any encoding, and other messages; a context manager, and the bag is complete once it is left.

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
            raise missing_extra("rosbags", "edge") from error
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
        self._is_broken = False

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
        self.add(topic, self._message(kind, header, image), log_time_ns)

    def write_camera(  # noqa: PLR0913 - the fields of the message
        self,
        topic: str,
        camera: CameraInfo,
        capture_time_ns: int,
        log_time_ns: int,
        frame_id: str = "camera",
        *,
        binning: tuple[int, int] = (0, 0),
        roi: tuple[int, int, int, int] = (0, 0, 0, 0),
    ) -> None:
        """Append the calibration of a camera, before the pictures that it holds for.

        Args:
            topic: `camera_info` in the namespace of the pictures' topic.
            camera: Calibration at the sensor's full resolution; not checked.
            capture_time_ns: The header's stamp.
            log_time_ns: The time of recording.
            frame_id: The header's frame.
            binning: Pixels that the camera joins, across and down.
            roi: The part of the sensor that it sends: left, top, width and height, all 0 for all of it.

        Raises:
            SourceError: The disk is full, or the topic already has another type.
        """
        header = self._header(topic, capture_time_ns, frame_id)
        left, top, width, height = roi
        part = self._types.types["sensor_msgs/msg/RegionOfInterest"](left, top, height, width, do_rectify=False)
        numbers = [
            np.array(each, np.float64)
            for each in (camera.distortion, camera.intrinsic, camera.rectification, camera.projection)
        ]
        message = self._types.types[CAMERA_INFO](
            header, camera.height, camera.width, camera.distortion_model, *numbers, *binning, part
        )
        self.add(topic, message, log_time_ns)

    def register(self, definitions: Mapping[str, str]) -> None:
        """Learn further message types; a bag holds the definitions of the types that it uses.

        Args:
            definitions: By type, such as `vision_msgs/msg/Detection2D`, in the format of .msg files.
        """
        from rosbags.typesys import get_types_from_msg

        for kind, text in definitions.items():
            self._types.register(get_types_from_msg(text, kind))

    def message(self, kind: str, *fields: Any) -> Any:
        """Make a message of a type, such as `std_msgs/msg/Header`, of its fields in their order."""
        return self._types.types[kind](*fields)

    def add(self, topic: str, message: Any, log_time_ns: int, *, latched: bool = False) -> None:
        """Append a message that `message` made.

        Args:
            topic: All messages of a topic must have one type.
            message: The message.
            log_time_ns: The time of recording.
            latched: Whether a player of a ROS 2 bag publishes it for those too that subscribe later.

        Raises:
            SourceError: The disk is full, or the topic already has the other type.
        """
        kind = message.__msgtype__
        with self._failing():
            connection = self._connection(topic, kind, latched=latched)
            serialize = self._types.serialize_ros1 if self._ros1 else self._types.serialize_cdr
            self._writer.write(connection, log_time_ns, serialize(message, kind))

    def flush(self) -> None:
        """End the chunk of an MCAP bag, so that a process that is killed loses nothing that was written before.

        Raises:
            SourceError: The disk is full.
        """
        with self._failing():
            self._writer.storage.close_chunk()
            self._writer.storage.bio.flush()

    def close(self) -> None:
        """Write the index and close the file; after a failure close it as it is: an index behind half a chunk is wrong.

        Raises:
            SourceError: The disk is full.
        """
        if self._is_broken:
            with suppress(Exception):  # what is left in buffers can't be written either
                self._writer.abort()
            return
        with self._failing():
            self._writer.close()

    @contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            with _mapped(self._path):
                yield
        except SourceError:
            self._is_broken = True
            raise

    def _connection(self, topic: str, kind: str, *, latched: bool) -> Any:
        known = self._connections.get(topic)
        if known is None:
            quality = {"offered_qos_profiles": [_latched()]} if latched and not self._ros1 else {}
            known = self._writer.add_connection(topic, kind, typestore=self._types, **quality)
            self._connections[topic] = known
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


def write_frames(source: FrameSource, path: Path, report: Callable[[int], None] = lambda _: None) -> tuple[int, str]:
    """Write the frames of a video or a folder of pictures as a new bag, one after another.

    Files of pictures stay as they are; other frames become JPEGs.

    Args:
        source: Its stamps count from `START_NS` in the bag.
        path: A new `.bag` file for ROS 1, a new folder for ROS 2.
        report: Called with the number of frames after each.

    Returns:
        The number of frames, and what is missing behind them; empty if nothing is.

    Raises:
        SourceError: The path exists or can't be written, or there is no frame; then there is no bag either.
        ConfigError: The path's name is wrong.
        MissingExtra: rosbags or OpenCV is not installed.
    """
    missing: list[str] = []
    pictures = ((START_NS + frame.log_time_ns, _compressed(frame.image)) for frame in _readable(source, missing))
    first = next(pictures, None)
    if first is None:
        raise SourceError(missing[0] if missing else f"{source.streams()[0].source}: there is no frame in it")
    count = 0
    with BagWriter(path, "bag" if path.suffix == ".bag" else "mcap") as writer:
        for count, (stamp, picture) in enumerate(chain([first], pictures), 1):
            writer.write(PICTURE_TOPIC, picture, stamp, stamp)
            report(count)
    return count, "; ".join(missing)


def _readable(source: FrameSource, missing: list[str]) -> Iterator[Frame]:
    """Yield the frames that can be read; what is missing behind them is added to a list."""
    try:
        yield from source.frames()
    except SourceError as error:
        missing.append(str(error))


def _compressed(image: RawImage | CompressedImage) -> CompressedImage:
    if isinstance(image, CompressedImage):
        return image
    return CompressedImage("jpeg", encode_tensor("picture", to_rgb(image), _ENCODING).data)


def _ros1(path: Path, compression: str | None) -> Any:
    from rosbags.rosbag1 import Writer

    writer = Writer(path)
    if compression is not None:
        writer.set_compression(_chosen(Writer.CompressionFormat, compression, "ROS 1"))
    return writer


def _ros2(path: Path, storage: str, compression: str | None) -> Any:
    from rosbags.rosbag2 import CompressionFormat, CompressionMode, StoragePlugin, Writer

    plugin = _chosen(StoragePlugin, storage, "this writer")
    writer = Writer(path, version=8, storage_plugin=plugin)  # ROS 2 Humble can't read the qualities of service of 9
    if compression is not None:
        mode = CompressionMode.STORAGE if plugin is StoragePlugin.MCAP else CompressionMode.FILE
        writer.set_compression(mode, _chosen(CompressionFormat, compression, "ROS 2"))
    return writer


def _latched() -> Any:
    """Return the quality of service of a topic whose last message is kept for later subscribers."""
    from rosbags.interfaces import Qos, QosDurability, QosHistory, QosLiveliness, QosReliability, QosTime

    unspecified = QosTime(0, 0)
    return Qos(
        QosHistory.KEEP_LAST,
        1,
        QosReliability.RELIABLE,
        QosDurability.TRANSIENT_LOCAL,
        deadline=unspecified,
        lifespan=unspecified,
        liveliness=QosLiveliness.AUTOMATIC,
        liveliness_lease_duration=unspecified,
        avoid_ros_namespace_conventions=False,
    )


def _chosen(names: Any, name: str, who: str) -> Any:
    try:
        return names[name.upper()]
    except KeyError:
        known = ", ".join(each.name.lower() for each in names)
        raise ConfigError(f"{who} does not write {name!r}; choose one of {known}") from None

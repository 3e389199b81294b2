"""Write results as a ROS 2 bag that plays beside the recording."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mqinfer.bags.frame import Frame
from mqinfer.bags.ros2.messages import VISION
from mqinfer.bags.writer import BagWriter
from mqinfer.client.result import InferResult
from mqinfer.edge_agent.frames.view import FrameView
from mqinfer.edge_agent.output_files import set_aside, writing
from mqinfer.edge_agent.sinks.ros.messages import ResultMessages
from mqinfer.edge_agent.sinks.sink import repair_earlier
from mqinfer.protocol.card import ModelCard
from mqinfer.protocol.errors import ConfigError, SourceError

_CHUNK_S = 1.0


class RosbagSink:
    """Writes `results-ros2/`, a ROS 2 bag with MCAP storage; messages have the frames' header stamps and log times.

    The topics are those of `ResultMessages`. A chunk ends after a second or a megabyte, so a process that is killed
    loses at most the last second; `mqinfer bag repair` or the next run into the same folder makes a whole MCAP file of
    it.

    Args:
        directory: For the folder of the bag.
        card: The model's card: its classes.

    Raises:
        ConfigError: The bag cannot be created.
        MissingExtra: rosbags is not installed.
    """

    def __init__(self, directory: Path, card: ModelCard) -> None:
        self._path = directory / "results-ros2"
        self._flushed = time.monotonic()
        with writing(self._path):
            if earlier := set_aside(self._path, is_there=Path.is_dir):
                for file in earlier.glob("*.mcap"):
                    repair_earlier(file)
        with _writing():
            self._bag = BagWriter(self._path, "mcap", compression="zstd")
            self._bag.register(VISION)
        self._messages = ResultMessages(card.classes, str(self._path))

    def write(self, frame: Frame, view: FrameView, result: InferResult) -> None:
        """Append the messages of a result.

        Raises:
            ConfigError: The bag cannot be written.
        """
        with _writing():
            for each in self._messages.of(frame, view, result):
                self._bag.add(each.topic, each.make(), frame.log_time_ns, latched=each.latched)
            if time.monotonic() - self._flushed >= _CHUNK_S:
                self._bag.flush()
                self._flushed = time.monotonic()

    def close(self) -> tuple[Path, ...]:
        """Finish the bag, and return its path.

        Raises:
            ConfigError: The bag cannot be written.
        """
        with _writing():
            self._bag.close()
        return (self._path,)


@contextmanager
def _writing() -> Iterator[None]:
    """Raise the sinks' error for a bag that can't be written."""
    try:
        yield
    except SourceError as error:
        raise ConfigError(str(error)) from error

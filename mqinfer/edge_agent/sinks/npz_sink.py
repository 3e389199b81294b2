"""Write all outputs of each result as NumPy files, one a frame."""

from __future__ import annotations

from pathlib import Path

from xxhash import xxh3_64_hexdigest

from mqinfer.bags.frame import Frame
from mqinfer.client.result import InferResult
from mqinfer.edge_agent.frames.view import FrameView
from mqinfer.edge_agent.output_files import set_aside, write_npz, writing
from mqinfer.edge_agent.sinks.sink import file_name
from mqinfer.protocol.types import Outcome


class NpzSink:
    """Writes `outputs/STREAM/SEQUENCE.npz` for each frame that was answered: its outputs as the model returned them.

    A file is complete once it has its name. Of a stream the name depends on it alone, so that a run that goes on knows
    its folder.

    Args:
        directory: For the folder.
        goes_on: Whether the files that are there belong to this run; else their folder is set aside.

    Raises:
        ConfigError: The folder cannot be set aside or created.
    """

    def __init__(self, directory: Path, *, goes_on: bool = False) -> None:
        self._directory = directory / "outputs"
        self._folders: dict[str, Path] = {}
        with writing(self._directory):
            if not goes_on:
                set_aside(self._directory, is_there=Path.is_dir)
            self._directory.mkdir(exist_ok=True)

    def write(self, frame: Frame, view: FrameView, result: InferResult) -> None:
        """Write the file of a frame; none for one that failed.

        Raises:
            ConfigError: The file cannot be written.
        """
        if result.outcome is not Outcome.OK:
            return
        if frame.source not in self._folders:
            folder = self._directory / _folder_name(frame.source)
            with writing(folder):
                folder.mkdir(exist_ok=True)
            self._folders[frame.source] = folder
        write_npz(self._folders[frame.source] / f"{frame.sequence:06d}.npz", view.outputs)

    def close(self) -> tuple[Path, ...]:
        """Return the path of the folder."""
        return (self._directory,)


def _folder_name(source: str) -> str:
    """Return `camera-image_raw` for `/camera/image_raw`; a source that could share that name gets a hash behind it."""
    plain = file_name(source)
    is_alone = source in {f"/{plain.replace('-', '/')}", plain.replace("-", "")}
    return plain if is_alone else f"{plain}~{xxh3_64_hexdigest(source.encode(errors='surrogateescape'))}"

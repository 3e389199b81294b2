"""Decode a video file packet by packet: go on behind damage, and count the frames that are lost."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mqinfer.bags.extent.behind import find_behind
from mqinfer.bags.extent.containers import AsfExtent, AviTimes, TransportBreaks
from mqinfer.bags.extent.packets import PictureUnits, ShownPackets, check_flood, has_too_many_units, is_whole_jpeg
from mqinfer.codecs.image import lfs_pointer
from mqinfer.extras import missing_extra
from mqinfer.protocol.errors import SourceError

if TYPE_CHECKING:
    from av import Packet, VideoFrame
    from av.container import InputContainer
    from av.video.codeccontext import VideoCodecContext
    from av.video.reformatter import VideoReformatter

Picture = tuple[int, int, NDArray[np.uint8]]
"""Index in the recording, time since its start in nanoseconds, and pixels `[H, W, 3]` BGR."""

_NOMINAL_RATE = 25.0
"""Frames a second of a file that states no rate."""
_MOST_FAILURES = 100
"""Reads that may fail one after the other before a file is given up."""
_INDEXED = ("mov", "avi")
"""Formats that state how many frames there are: the first by its index, the second in its header."""
_TIMED = ("matroska", "flv")
"""Formats whose header states when the last stream ends, and whose packets lie close behind each other."""
_OF_UNITS = ("h264", "hevc", "mpegts")
"""Formats in which the units of a picture begin with a code, and which state no frames."""
_FORMATS = "avi,asf,flv,h264,hevc,m4v,matroska,mjpeg,mov,mpeg,mpegts,mpegvideo,mpjpeg,ogg,yuv4mpegpipe"
"""What FFmpeg may take a file for, whatever its name: no playlists, which open other files, and no lists of units."""
_HEADERS = {"fflags": "noparse+nofillin", "probesize": "32", "analyzeduration": "0"}
"""Look at no more than the container's headers."""
_UNPARSED = {"fflags": "noparse+nofillin"}
"""For codecs whose parser in FFmpeg lists the units of a picture, in 160 bytes each: the container has times enough."""
_LISTED = frozenset({"av1", "vvc"})
_SLACK_S = 0.1
"""A file with sound, or of a varying rate, may end so much earlier than its header states, or two frames."""
_EXPLODE, _EXACT = {"err_detect": "explode"}, {"err_detect": "bitstream+buffer"}
DETECTION = {
    "mjpeg": _EXPLODE,
    "hevc": {"err_detect": "explode+crccheck"},  # hashes of pictures, where the encoder wrote them
    "wmv1": _EXACT,
    "wmv2": _EXACT,
    "msmpeg4": _EXACT,
    "msmpeg4v2": _EXACT,
}
"""FFmpeg's options for codecs whose damaged pictures it passes in silence otherwise."""
_STRICT = {"vp9": "libvpx-vp9"}
"""A second decoder, which looks whether a picture's bytes are used up as they must be; FFmpeg's own does not."""
_STRICT_BITS = 8
"""Bits of a sample that it takes, however it was built."""
_HOLE_BYTES = 128
"""Bytes between two packets that belong to none, and are more than what containers put there."""

_SYNC = b"G"
"""First byte of each packet of an MPEG transport stream, of 188 bytes, or of 192 with a time before it (`.m2ts`)."""
_REORDERED = 17
"""Pictures are stored at most so many places before or behind where they are shown."""


class VideoFileDecoder:
    """One pass over the first video stream of a file.

    Args:
        path: The file.
        is_careful: Decode one picture after the other. Otherwise several threads do, and the pictures that they still
            hold are lost if the end of the file is damaged; `is_tail_lost` reports that.

    Raises:
        SourceError: It cannot be opened, or has no video that can be decoded.
        MissingExtra: PyAV is not installed.
    """

    def __init__(self, path: Path, *, is_careful: bool = False) -> None:
        try:
            import av
        except ImportError as missing:
            raise missing_extra("av", "edge") from missing
        from av.video.reformatter import VideoReformatter

        check_flood(path)
        self._path = path
        self._error: type[Exception] = av.FFmpegError
        self._converter = VideoReformatter()
        try:
            self._container = _open(path)
        except av.FFmpegError as failed:
            with path.open("rb") as file:
                pointer = lfs_pointer(file.read(32), "the video")
            what = f"it is {pointer}" if pointer else "it is cut off, damaged, or no video"
            raise SourceError(f"{path}: this video can't be opened; {what}") from failed
        streams = self._container.streams.video
        if not streams or streams[0].codec_context is None:
            self._container.close()
            raise SourceError(f"{path}: there is no video that can be decoded; it is damaged, or its codec is unknown")
        self._stream = streams[0]
        self._stream.thread_type = "SLICE" if is_careful else "AUTO"
        self._stream.codec_context.options = DETECTION.get(self._stream.codec_context.name, {})
        self._format = self._container.format.name
        self._period_ns = round(1e9 / (self.rate or _NOMINAL_RATE))
        self._stated = self._count_index()
        self._found = 0
        self._first: int | None = None
        self._decoded = 0
        self._failures = 0
        self._is_begun = self._stated is not None
        self._end_ns = 0
        self._shown = ShownPackets(self._stream, is_stated=self._stated is not None)
        self._is_of_units = self._stream.codec_context.name in {"h264", "hevc", "vvc"}
        self._units = _units(self._format, self._stream.codec_context.name)
        self._strict = _strict_decoder(self._stream.codec_context)
        self._breaks = _breaks(self._format, path, self._period_ns / 1e9)
        self._asf = AsfExtent.read(path) if self._format == "asf" else None
        self._end_byte = self._asf.begin if self._asf else 0
        self._avi = AviTimes(self._format, self._stream.codec_context.name)
        self._times = array("q")
        self._holes: list[int] = []
        self.is_tail_lost = False
        """Whether the decoder failed at the end, with pictures still in it."""

    @property
    def size(self) -> tuple[int, int]:
        """Width and height in pixels, turned as the file asks; decodes the first picture."""
        first = next(self._frames(0), None)
        width, height = self._stream.width, self._stream.height
        return (height, width) if first is not None and round(first.rotation / 90) % 2 else (width, height)

    @property
    def rate(self) -> float | None:
        """Frames a second, as the file states."""
        return float(self._stream.average_rate) if self._stream.average_rate else None

    @property
    def count(self) -> int | None:
        """Number of frames, as the file states, or by its duration and rate."""
        if self._stated or not (self._container.duration and self.rate):
            return self._stated
        return round(self._container.duration / 1e6 * self.rate)

    def close(self) -> None:
        """Close the file."""
        # The decoder's threads take the interpreter's lock to free packets that `ShownPackets` has numbered, and PyAV
        # frees a decoder with that lock held: both wait for ever unless the threads have ended their work before.
        self._stream.codec_context.flush_buffers()
        self._container.close()

    def pictures(self, begin: int) -> Iterator[Picture]:
        """Yield the pictures from a time on; what comes before its key frame is read over without decoding."""
        time_ns: int | None = None
        for frame in self._frames(begin):
            if (picture := self._pixels(frame)) is None:
                continue
            stamp = self._time(frame.pts) if frame.pts is not None else 0
            # Some containers have no times; the log time must grow all the same.
            time_ns = stamp if time_ns is None or stamp > time_ns else time_ns + self._period_ns
            index = (self._first or 0) + self._decoded
            if time_ns >= begin and frame.is_corrupt:  # what came before may refer to frames that were read over
                self._fail()
            self._decoded += 1
            if time_ns >= begin:
                yield index, time_ns, picture

    @property
    def is_damaged(self) -> bool:
        """Whether something could not be read so far."""
        return self._failures > 0 or (self._breaks is not None and self._breaks.is_open)

    def lost(self) -> tuple[int, int]:
        """Return how many frames are missing at the end of a pass, of how many; (0, …) if nothing is known to be."""
        expected = self._stated or self._found + self._count_missing() + self._count_cut()
        lost = max(expected - (self._first or 0) - self._decoded, 0)
        is_short = expected > self._found or (self._stated and self._is_mov)
        return (lost if self.is_damaged or is_short else self._shown.count_silent()), expected

    @property
    def is_cut(self) -> bool:
        """Whether the size of a file that does not state its frames shows, after a pass, that its end is missing."""
        if self._format not in {"mpegts", "yuv4mpegpipe", "asf"}:
            return False
        size = self._path.stat().st_size
        if self._format == "yuv4mpegpipe":
            return 0 < self._end_byte < size
        if self._asf:
            return self._asf.is_cut(size, self._end_byte)
        with self._path.open("rb") as file:
            head = file.read(5)
        return size % (188 if head.startswith(_SYNC) else 192) > 0 and _SYNC in {head[:1], head[4:5]}

    def behind(self) -> tuple[int, bool] | None:
        """Return, after a pass, where bytes begin that are not read, and whether they are another video."""
        return find_behind(self._path, self._format, self._asf.size if self._asf else 0)

    @property
    def _hole_bytes(self) -> int:
        """Most bytes between two packets that belong to none; 0 where the container does not show what is left out."""
        if self._asf:  # a packet that is no longer filled goes on to its end
            return self._asf.packet
        return _HOLE_BYTES if self._format.startswith(_TIMED) else 0

    def _count_cut(self) -> int:
        """Count the frames between the last one and the end that the header states."""
        container, period = self._container, self._period_ns
        if not (self._format.startswith(_TIMED) and container.duration):
            return 0
        end_ns = container.duration * 1000
        steps = (later - earlier for earlier, later in pairwise(sorted(self._times)))
        if len(container.streams) == 1 and all(abs(step - period) < period / 2 for step in steps):
            return max(round((end_ns - (container.start_time or 0) * 1000) / period) - self._found, 0)
        short = end_ns - self._end_ns
        return short // period if short > max(2 * period, _SLACK_S * 1e9) else 0

    @property
    def _is_mov(self) -> bool:
        return self._format.startswith("mov")

    def _count_index(self) -> int | None:
        if self._is_mov:  # frames that its edit list leaves out are not in the index, or marked
            shown = sum(not entry.is_discard for entry in self._stream.index_entries)
            if self._stream.time_base == 1:  # FFmpeg's where the file states 0: its edit list then means nothing
                shown = max(shown, self._stream.frames)
            return shown or self._stream.frames or None
        return self._stream.frames or None if self._format.startswith(_INDEXED) else None

    def _time(self, pts: int) -> int:
        base = self._stream.time_base
        start = self._avi.origin or self._stream.start_time or 0
        return round((pts - start) * 1e9 * base.numerator / base.denominator) if base else 0

    def _frames(self, begin: int) -> Iterator[VideoFrame]:
        stamps: list[int] = []
        for packets in self._sequences(begin, stamps):
            for packet in packets:
                for frame in self._decode(packet):
                    if self._first is None:
                        pts = frame.pts
                        self._first = sum(stamp < pts for stamp in stamps) if stamps and pts is not None else 0
                    yield frame
        failures = self._failures
        yield from self._decode(None)
        self.is_tail_lost = self._failures > failures

    def _sequences(self, begin: int, stamps: list[int]) -> Iterator[Sequence[Packet[Any]]]:
        """Yield packets to decode, from the key frame before `begin` on; add the times of all until then."""
        packets = self._packets()
        if begin > 0:
            held = self._until(begin, packets, stamps)
            if not held:
                self._first = self._found
                return
            yield held
        for packet in packets:
            if self._first is None and packet.pts is not None and stamps:
                stamps.append(packet.pts)
            yield (packet,)

    def _until(self, begin: int, packets: Iterable[Packet[Any]], stamps: list[int]) -> list[Packet[Any]]:
        """Return packets from the key frame before `begin` to the first one at `begin`; none where all are earlier."""
        held: list[Packet[Any]] = []
        for packet in packets:
            is_reached = packet.pts is None or self._time(packet.pts) >= begin
            if packet.is_keyframe and not is_reached:
                held.clear()
            held.append(packet)
            if packet.pts is not None:
                stamps.append(packet.pts)
            if is_reached:
                return held
        return []

    def _packets(self) -> Iterator[Packet[Any]]:
        """Yield the packets of the stream, also those behind places that cannot be read."""
        failures = 0
        while failures < _MOST_FAILURES:
            try:
                for packet in self._container.demux():
                    failures = 0
                    if packet.size:  # an empty one would end the decoder
                        yield from self._noted(packet)
            except self._error:
                failures += 1
                self._fail()
            except IndexError:  # PyAV at the end of a file in which streams appeared late
                return
            else:
                return

    def _noted(self, packet: Packet[Any]) -> Iterator[Packet[Any]]:
        """Count a packet, and what is missing before it; yield it if it belongs to the stream."""
        if packet.pts is not None and packet.time_base:
            end = (packet.pts + (packet.duration or 0)) * packet.time_base
            self._end_ns = max(self._end_ns, round(end * 1_000_000_000))
        is_own = packet.stream_index == self._stream.index
        if self._hole_bytes:
            self._note_hole(packet, is_own=is_own)
        else:
            self._end_byte = (packet.pos or 0) + packet.size
        if is_own:
            self._avi.note(packet)
            self._found += not packet.is_discard
            self._is_begun |= packet.is_keyframe
            self._failures += self._is_begun and self._is_incomplete(packet)
            yield self._breaks.cleaned(packet) if self._breaks else packet

    def _is_incomplete(self, packet: Packet[Any]) -> bool:
        if self._failures:  # nothing more is looked for
            return False
        if self._breaks.is_broken(packet) if self._breaks else packet.is_corrupt:
            return True
        if self._units is not None:
            return self._units.is_damaged(bytes(packet))
        return self._format == "mjpeg" and not is_whole_jpeg(bytes(packet))

    def _note_hole(self, packet: Packet[Any], *, is_own: bool) -> None:
        """Keep the packet's time, and where bytes are left out: the container's reader skips what it can't read."""
        place = packet.pos or 0
        if 0 < self._end_byte < place - self._hole_bytes:
            self._holes.append(len(self._times))
        if self._asf and (self._holes or not self._asf.has_at(place)):
            self._fail()
        if self._asf:  # it begins anywhere in the container's packet at that place, and goes on in others behind heads
            self._end_byte = max(self._end_byte, place) + packet.size + packet.size // 64
        else:
            self._end_byte = max(self._end_byte, place + packet.size)
        if is_own and packet.pts is not None:
            self._times.append(self._time(packet.pts))

    def _count_missing(self) -> int:
        """Count the frames that are left out in time near places where bytes are left out."""
        gaps: set[tuple[int, int]] = set()
        for hole in self._holes if len(self._times) > 1 else ():
            near = self._times[max(hole - _REORDERED, 0) : hole + _REORDERED]
            times = sorted(time for time in self._times if min(near) <= time <= max(near))
            gaps.update(pairwise(times))
        return sum(max(round((later - earlier) / self._period_ns) - 1, 0) for earlier, later in gaps)

    def _fail(self) -> None:
        """Count a failure; a capture that states no extent may begin between two key frames."""
        if self._decoded or self._stated or self._hole_bytes or self._shown.is_closed:
            self._failures += 1

    def _decode(self, packet: Packet[Any] | None) -> Sequence[VideoFrame]:
        if packet is not None:
            if self._is_of_units and has_too_many_units(bytes(packet)):
                self._failures += 1
                return ()
            self._shown.note(packet)
            self._avi.decode(packet)
            if self._strict and not self.is_damaged and not self._is_sound(packet):
                self._fail()
        try:
            frames = self._stream.decode(packet)
        except self._error:
            self._fail()
            return ()
        for frame in frames:
            self._shown.see(frame)
            self._avi.show(frame)
        return frames

    def _is_sound(self, packet: Packet[Any]) -> bool:
        try:
            self._strict.decode(packet)
        except self._error:
            return False
        return True

    def _pixels(self, frame: VideoFrame) -> NDArray[np.uint8] | None:
        try:
            picture = to_bgr(self._converter, frame)
        except (self._error, ValueError):  # a damaged header asks for a size that can't be
            self._fail()
            return None
        return np.rot90(picture, round(frame.rotation / 90)) if frame.rotation else picture


def to_bgr(converter: VideoReformatter, frame: VideoFrame) -> NDArray[np.uint8]:
    """Return the pixels of a picture, `[H, W, 3]` BGR; raise FFmpegError or ValueError where that can't be."""
    converted = converter.reformat(frame, format="bgr24", interpolation="BICUBIC", threads=1)
    return np.asarray(converted.to_ndarray(), np.uint8)


def _open(path: Path) -> InputContainer:
    import av

    options = {"format_whitelist": _FORMATS}
    with av.open(str(path), options=options | _HEADERS, metadata_errors="replace") as container:
        contexts: list[VideoCodecContext | None] = [stream.codec_context for stream in container.streams.video]
    if any(context is not None and context.codec.canonical_name in _LISTED for context in contexts):
        options |= _UNPARSED
    return av.open(str(path), options=options, metadata_errors="replace")


def _breaks(container: str, path: Path, period_s: float) -> TransportBreaks | None:
    return TransportBreaks(path, period_s) if container == "mpegts" else None


def _strict_decoder(context: VideoCodecContext) -> Any:
    """Return a decoder that is stricter than FFmpeg's own; None if there is none, or not for such samples."""
    import av

    name = _STRICT.get(context.name)
    if name is None or context.format is None or context.format.components[0].bits > _STRICT_BITS:
        return None
    try:
        return av.CodecContext.create(name, "r")
    except ValueError:  # this FFmpeg was built without it
        return None


def _units(container: str, codec: str) -> PictureUnits | None:
    return PictureUnits(codec) if container in _OF_UNITS and codec in {"h264", "hevc"} else None

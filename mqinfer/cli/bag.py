"""`mqinfer bag`."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from mqinfer.cli.exit_codes import ExitCode, print_error
from mqinfer.cli.options import plain_console, table_console
from mqinfer.images.lens import Distortion
from mqinfer.logs import printable
from mqinfer.protocol.errors import ConfigError, SourceError

app = typer.Typer(no_args_is_help=True)


@app.command()
def info(
    file: Annotated[
        list[str],
        typer.Argument(
            help="A bag, or the files of one that was split; a video, folder or camera; ros2: or ros2:TOPIC for a "
            "running ROS 2."
        ),
    ],
    duration: Annotated[float, typer.Option(help="How long to watch a ROS 2 system, in seconds.", min=0.1)] = 3,
) -> None:
    """List the topics of a recording or a running ROS 2 with their encodings, sizes, counts and rates."""
    from mqinfer.bags.info import describe, headline, table
    from mqinfer.bags.sources import Recording, recordings

    console = table_console()
    for each in recordings(file) if len(file) > 1 else [Recording("", file)]:
        found = describe(each.files[0], duration, each.files[1:])
        console.print(printable(headline(found)), soft_wrap=True)
        console.print(table(found))


@app.command()
def repair(
    file: Annotated[Path, typer.Argument(help="ROS 1 bag, MCAP or .db3 file; it is not changed.")],
    new: Annotated[Path, typer.Argument(help="New file.")],
) -> None:
    """Copy what can be read of a bag that was not closed, is still being written, or is damaged."""
    from mqinfer.bags.info import describe
    from mqinfer.bags.repair import repair as repair_bag
    from mqinfer.bags.rosbag import is_bag

    found = repair_bag(file, new)
    damage = f", {found.damaged_chunks} damaged places left out" if found.damaged_chunks else ""
    end = "" if found.stopped_at is None else f"; nothing after byte {found.stopped_at} could be read"
    whole = "" if damage or end else "; no record was damaged"
    typer.echo(f"wrote {new}: {found.messages} messages{damage}{end}{whole}")
    try:
        if is_bag(new):  # by its name
            describe(str(new))
    except SourceError as error:  # a repair of results is one all the same
        typer.echo(f"no frames can be read of it: {error}", err=True)


@app.command()
def make(
    video: Annotated[str, typer.Argument(help="Video or folder of pictures.")],
    out: Annotated[Path, typer.Argument(help="New file whose name ends in .bag (ROS 1), or new folder (ROS 2).")],
) -> None:
    """Make a bag of a video (JPEGs on /camera/image_raw/compressed) or of a folder of pictures (as they are)."""
    from rich.progress import Progress

    from mqinfer.bags.rosbag import is_bag
    from mqinfer.bags.sources import is_live, open_source
    from mqinfer.bags.writer import write_frames

    if is_live(video) or is_bag(Path(video)):
        kind = "a camera, which has no end" if is_live(video) else "a bag already"
        raise ConfigError(f"{video} is {kind}; expected a video or a folder of pictures")
    console = plain_console(stderr=True)
    display = Progress(console=console, transient=True, disable=not console.is_terminal)
    with closing(open_source(video)) as source, display:
        task = display.add_task("writing", total=source.streams()[0].count)
        count, missing = write_frames(source, out, lambda done: display.update(task, completed=done))
    typer.echo(printable(f"wrote {out}: {count} frames"))
    if missing:
        print_error(SourceError(missing))
        raise typer.Exit(ExitCode.INCOMPLETE)


@app.command()
def synth(
    out: Annotated[Path, typer.Argument(help="New file (ROS 1) or folder (ROS 2).")],
    ros: Annotated[int, typer.Option(help="ROS version of the bag.", min=1, max=2)] = 2,
    frames: Annotated[int, typer.Option(help="Number of frames.", min=1)] = 50,
    seed: Annotated[int, typer.Option(help="Seed of the scene; the same seed makes the same drive.")] = 0,
    rate: Annotated[float, typer.Option(help="Frames a second.", min=0.1)] = 10,
    width: Annotated[int, typer.Option(help="Width in pixels.", min=64)] = 968,
    height: Annotated[int, typer.Option(help="Height in pixels.", min=64)] = 608,
    encoding: Annotated[
        str, typer.Option(help="ROS encoding of the frames: any Bayer pattern with 8 or 16 bits, or rgb8.")
    ] = "bayer_rggb8",
    bits: Annotated[int, typer.Option(help="Significant bits of 16-bit mosaics.", min=8, max=16)] = 16,
    lens: Annotated[
        Distortion | None,
        typer.Option(help="Distort the frames by a lens of this kind, with its CameraInfo on /camera/camera_info."),
    ] = None,
) -> None:
    """Render a synthetic drive on /camera/image_raw, with its true classes on /camera/labels."""
    from rich.progress import Progress

    from mqinfer.lab.drives.recording import write_drive

    console = plain_console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as display:
        task = display.add_task("rendering", total=frames)
        path = write_drive(
            out,
            ros=1 if ros == 1 else 2,
            frames=frames,
            seed=seed,
            rate=rate,
            width=width,
            height=height,
            encoding=encoding,
            bits=bits,
            lens=lens,
            progress=lambda done, _: display.update(task, completed=done),
        )
    typer.echo(f"wrote {path}")

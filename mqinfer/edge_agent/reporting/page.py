"""Write the report of a run as one HTML file, which needs no network and no scripts.

Everything in it that comes from files and messages is text: escaped, on one line, and cut to a bound.
"""

from __future__ import annotations

import base64
import errno
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from html import escape
from importlib.resources import files
from pathlib import Path
from urllib.parse import quote

from mqinfer._version import __version__
from mqinfer.edge_agent.frames.times import EdgeStage, LinkStage
from mqinfer.edge_agent.output_files import replacing, set_aside, writing
from mqinfer.edge_agent.reporting.answers import OutputRange
from mqinfer.edge_agent.reporting.charts import Axis, paint, stacked
from mqinfer.edge_agent.reporting.command_line import command_line, without_secrets
from mqinfer.edge_agent.reporting.recorder import RunRecorder, Series, TimeBin
from mqinfer.edge_agent.reporting.report import (
    Ending,
    SessionReport,
    milliseconds,
    missed_lines,
    outcome_words,
    published_words,
    ratio_words,
)
from mqinfer.edge_agent.reporting.statistics import Snapshot
from mqinfer.edge_agent.reporting.worst import KeptFrame
from mqinfer.edge_agent.settings import ReplaySettings
from mqinfer.edge_agent.sinks.drawing.overlay import stamp
from mqinfer.edge_agent.sinks.sink import Sink
from mqinfer.logs import printable
from mqinfer.protocol.card import ModelCard
from mqinfer.protocol.types import Outcome

_LONGEST, _LONGEST_COMMAND = 300, 4000
"""Characters of a text from outside that are shown."""
_MOST_PARTS, _OTHERS = 12, "all others"
"""Classes with a colour of their own, and the name of the rest."""
_COLUMNS, _HALF_STEP = 20, 1e-6
"""Columns of scores, and what keeps a score at the edge of one out of that below."""
Runs = Sequence[tuple[SessionReport, RunRecorder | None]]
"""The models' runs, each with what its recorder collected; None where it never began."""
_Groups = Mapping[str, Sequence[str]]
_REQUEST: _Groups = {
    "queue of the client": ("client_queue",),
    "network": ("transmission", LinkStage.UP, LinkStage.DOWN),
    "queue of the worker": ("server_queue",),
    "decode, preprocess": ("decode", "preprocess"),
    "inference": ("inference",),
    "postprocess, encode": ("postprocess", "encode", LinkStage.SERVER_OTHER),
    "decode the result": (LinkStage.SETTLE,),
}
_EDGE: _Groups = {
    "queue": (EdgeStage.QUEUE,),
    "demosaic": (EdgeStage.DEMOSAIC,),
    "resize": (EdgeStage.RESIZE,),
    "encode": (EdgeStage.ENCODE,),
    "other": (EdgeStage.OTHER,),
    "spool": (EdgeStage.SPOOL,),
}
"""Stages by what a chart calls them; those of reading are left out: a source waits until a frame is due."""


class ReportFile:
    """The report of one session, on its models.

    Args:
        path: The file.

    Raises:
        ConfigError: There can be no such file.

    Attributes:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._recorders: dict[tuple[str, str], RunRecorder] = {}
        with writing(path):  # before a run of hours rather than after it
            if path.is_dir():
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            path.parent.mkdir(parents=True, exist_ok=True)
            trial = path.with_name(f"{path.name}.new")
            trial.touch()
            trial.unlink()

    def observe(self, settings: ReplaySettings, card: ModelCard) -> Sink:
        """Return the recorder of a model's run, a sink that receives its results."""
        options = settings.options
        return self._recorders.setdefault((options.model, options.version or card.version), RunRecorder(card.classes))

    def runs(self, reports: Sequence[SessionReport]) -> Runs:
        """Return the models' runs for `write_report`, once the session has ended."""
        return [(each, self._recorders.get((each.model, each.version))) for each in reports]


def write_report(
    path: Path, settings: Mapping[str, object], runs: Runs, command: Sequence[str] = (), written: Sequence[Path] = ()
) -> None:
    """Write a report; the file of an earlier run is kept under a number.

    Args:
        path: The file.
        settings: Of the run, by name.
        runs: One a model, with what was collected of it.
        command: The command line that made it, secrets included.
        written: Files of the run beside those of its models.

    Raises:
        ConfigError: The file cannot be written.
    """
    with replacing(path) as unfinished:
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished.write_text(_page(settings, runs, command, written, path.parent), encoding="utf-8")
        set_aside(path)


def _page(
    settings: Mapping[str, object], runs: Runs, command: Sequence[str], written: Sequence[Path], folder: Path
) -> str:
    style = files(__package__).joinpath("report.css").read_text(encoding="utf-8")
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
    title = ", ".join(run.model for run, _ in runs)
    now = datetime.now().astimezone().isoformat(" ", "seconds")
    body = "".join(_run(run, recorder or RunRecorder(), folder) for run, recorder in runs)
    typed = f"<p><code>{_text(command_line(command), _LONGEST_COMMAND)}</code></p>" if command else ""
    about = f"<h2>Settings</h2>{_pairs(settings)}{_section('Summary', _links(written, folder))}"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{_text(title)}: replay</title><style>{style}</style></head><body>"
        f"<header><h1>Replay of {_text(settings.get('source', ''))}</h1>"
        f"<p>{_text(now)}, mqinfer {_text(__version__)}</p>{typed}</header>"
        f"{body}<section>{about}</section></body></html>\n"
    )


def _run(run: SessionReport, recorder: RunRecorder, folder: Path) -> str:
    snapshot, worst = run.snapshot, recorder.worst
    about = {"version": run.version, "hash": run.model_hash, "encoding": run.encoding, "broker": run.broker}
    about |= published_words(run)
    return "".join(
        [
            f"<section><h2>Model {_text(run.model)}</h2>{_ending(run)}{_tiles(snapshot)}{_pairs(about)}</section>",
            _section("Answers", *_answers(recorder.series, recorder.answers.colours), _scores(recorder.answers.scores)),
            _section("Numbers of the outputs", _outputs(recorder.answers.outputs)),
            _section(
                "Times by stage",
                _latency(recorder.series, _REQUEST, "latency: from submission to result, mean, ms"),
                _latency(recorder.series, _EDGE, "before: from reading to submission, mean, ms"),
                _stages(snapshot),
            ),
            _section("Outcomes", _outcomes(recorder.series), _failures(snapshot)),
            _section("Frames that were left out", _list(missed_lines(run))),
            _section("Streams", _streams(snapshot)),
            _section("Workers", _workers(recorder)),
            _section("Slowest results", _frames(worst.slowest)),
            _section("Frames without a result", _frames(worst.failed)),
            _section("Results with the lowest scores", _frames(worst.unsure)),
            _section("Files", _links(run.files, folder)),
        ]
    )


def _ending(run: SessionReport) -> str:
    if run.ended is Ending.COMPLETE:
        return ""
    return f'<p class="bad">{_text(run.ended)}{_text(": " + run.reason if run.reason else "")}</p>'


def _tiles(snapshot: Snapshot) -> str:
    latency = snapshot.latency
    facts = {
        "frames": f"{snapshot.frames_read}",
        "outcomes": outcome_words(snapshot),
        "frames/s": f"{snapshot.frame_rate:.1f}",
        "latency, p50": f"{milliseconds(latency.p50)} ms",
        "latency, p99": f"{milliseconds(latency.p99)} ms",
        "sent": f"{snapshot.bytes_sent / 1e6:.1f} MB, {ratio_words(snapshot)}:1",
    }
    tiles = "".join(f"<div><dt>{_text(name)}</dt><dd>{_text(value)}</dd></div>" for name, value in facts.items())
    return f'<dl class="tiles">{tiles}</dl>'


def _latency(series: Series, groups: _Groups, unit: str) -> str:
    """Draw the mean times of the frames with a result, by group of stages."""
    total = series.total()
    if not total.answered:
        return ""
    columns = [{name: nanoseconds / 1e6 for name, nanoseconds in _means(span, groups).items()} for span in series.spans]
    legend = {name: f"{milliseconds(mean)} ms" for name, mean in _means(total, groups).items()}
    return stacked(columns, list(groups), Axis(series.seconds), unit) + _legend(legend)


def _means(span: TimeBin, groups: _Groups) -> dict[str, int]:
    if not span.answered:
        return {}
    return {name: sum(span.stages[stage] for stage in stages) // span.answered for name, stages in groups.items()}


def _answers(series: Series, colours: Mapping[str, str]) -> Iterator[str]:
    """Draw what the results count of each class over time, the most frequent classes apart."""
    total = series.total()
    for what in dict.fromkeys(kind for kind, _ in total.answers):
        counts = Counter({name: count for (kind, name), count in total.answers.items() if kind == what})
        names = [name for name, count in counts.most_common(_MOST_PARTS) if count] or list(counts)
        columns = [_parts_of(span, what, names) for span in series.spans]
        means = _parts_of(total, what, names)
        legend = _legend({name: f"{mean:.3g}" for name, mean in means.items()}, colours)
        yield stacked(columns, list(means), Axis(series.seconds), what, colours) + legend


def _parts_of(span: TimeBin, what: str, names: Sequence[str]) -> dict[str, float]:
    """Return the mean of a result for each of these classes, and for all others together."""
    if not span.answered:
        return {}
    found = {name: span.answers.get((what, name), 0.0) / span.answered for name in names}
    others = sum(count for (kind, name), count in span.answers.items() if kind == what and name not in found)
    return found | ({_OTHERS: others / span.answered} if others > 0 else {})


def _scores(scores: Counter[float]) -> str:
    """Draw how often each score occurred: from 0 to 1 where all are within, else between the least and greatest."""
    if not scores:
        return ""
    least, greatest = min(*scores, 0.0, 1.0), max(*scores, 0.0, 1.0)
    width = (greatest - least) / _COLUMNS
    columns: list[Counter[str]] = [Counter() for _ in range(_COLUMNS)]
    for score, count in scores.items():
        columns[min(int((score - least) / width + _HALF_STEP), _COLUMNS - 1)]["results"] += count
    return stacked(columns, ["results"], Axis(width, "", least), "how often each score occurred")


def _outputs(outputs: Mapping[str, OutputRange]) -> str:
    rows = [
        (name, " x ".join(map(str, each.shape)), each.results, f"{each.least:.4g}", f"{each.greatest:.4g}")
        for name, each in outputs.items()
    ]
    return _table(("output", "shape of the first", "results", "least", "greatest"), rows)


def _links(paths: Iterable[Path], folder: Path) -> str:
    """Return links to files, which hold as long as the report stays where it is to them."""
    items = [f'<li><a href="{escape(quote(os.path.relpath(path, folder)))}">{_text(path)}</a></li>' for path in paths]
    return f"<ul>{''.join(items)}</ul>" if items else ""


def _outcomes(series: Series) -> str:
    counts = series.total().outcomes
    names = [str(Outcome.OK), *sorted(name for name in counts if name != Outcome.OK)]
    columns = [{name: span.outcomes[name] / series.seconds for name in names} for span in series.spans]
    legend = {name: f"{counts[name]}" for name in names}
    if not columns:
        return ""
    return stacked(columns, names, Axis(series.seconds), "frames that ended, per second") + _legend(legend)


def _legend(entries: Mapping[str, str], colours: Mapping[str, str] | None = None) -> str:
    items = "".join(
        f'<li><svg viewBox="0 0 1 1"><path {paint(number, name, colours or {})} d="M0 0h1v1h-1z"/></svg>{_text(name)} '
        f"<b>{_text(value)}</b></li>"
        for number, (name, value) in enumerate(entries.items())
    )
    return f'<ul class="legend">{items}</ul>'


def _stages(snapshot: Snapshot) -> str:
    rows = [
        (stage.replace("_", " "), milliseconds(each.p50), milliseconds(each.p99))
        for stage, each in snapshot.stages.items()
    ]
    return _table(("stage", "p50, ms", "p99, ms"), rows)


def _failures(snapshot: Snapshot) -> str:
    return _table(
        ("error", "frames", "first message"), [(each.code, each.count, each.message) for each in snapshot.failures]
    )


def _streams(snapshot: Snapshot) -> str:
    heads = ("stream", "read", "ok", "other", "frames/s", "p50, ms", "p99, ms", "sent, MB")
    rows = [
        (
            each.source,
            each.frames_read,
            each.outcomes[Outcome.OK],
            each.done - each.outcomes[Outcome.OK],
            f"{each.frame_rate:.1f}",
            milliseconds(each.latency.p50),
            milliseconds(each.latency.p99),
            f"{each.bytes_sent / 1e6:.1f}",
        )
        for each in snapshot.streams
    ]
    return _table(heads, rows)


def _workers(recorder: RunRecorder) -> str:
    rows = [
        (
            who.worker or f"edge ({who.stage})",
            count,
            who.version,
            who.precision or "not stated",
            who.backend or "not stated",
            who.device or "not stated",
            who.model_hash,
        )
        for who, count in recorder.answerers.most_common()
    ]
    return _table(("worker", "results", "version", "precision", "back end", "device", "model hash"), rows)


def _frames(frames: Sequence[KeptFrame]) -> str:
    if not frames:
        return ""
    return f'<div class="frames">{"".join(_frame(each) for each in frames)}</div>'


def _frame(kept: KeptFrame) -> str:
    picture = (
        f'<img alt="" src="data:image/jpeg;base64,{base64.b64encode(kept.jpeg).decode()}">'
        if kept.jpeg
        else '<div class="none">no picture</div>'
    )
    where = f"{kept.source}, frame {kept.sequence}, {stamp(kept.stamp_ns)}"
    worker = f"<br>{_text(kept.worker)}" if kept.worker else ""
    return f"<figure>{picture}<figcaption><b>{_text(kept.fact)}</b><br>{_text(where)}{worker}</figcaption></figure>"


def _section(title: str, *parts: str) -> str:
    return f"<section><h3>{_text(title)}</h3>{''.join(parts)}</section>" if any(parts) else ""


def _table(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    if not rows:
        return ""
    kinds = ["n" if all(_is_number(cell) for cell in column) else "t" for column in zip(*rows, strict=True)]
    head, *body = [
        "".join(f'<{tag} class="{kind}">{_text(cell)}</{tag}>' for kind, cell in zip(kinds, row, strict=True))
        for tag, row in (("th", heads), *(("td", row) for row in rows))
    ]
    lines = "".join(f"<tr>{row}</tr>" for row in body)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table></div>'


def _is_number(cell: object) -> bool:
    return isinstance(cell, int) or (isinstance(cell, str) and (cell == "-" or cell.replace(".", "", 1).isdecimal()))


def _pairs(values: Mapping[str, object]) -> str:
    items = "".join(f"<dt>{_text(name)}</dt><dd>{_text(value)}</dd>" for name, value in values.items() if value != "")
    return f'<dl class="pairs">{items}</dl>'


def _list(items: Iterable[str]) -> str:
    entries = "".join(f"<li>{_text(each)}</li>" for each in items)
    return f"<ul>{entries}</ul>" if entries else ""


def _text(value: object, longest: int = _LONGEST) -> str:
    """Return a value as text that is no markup and has no secret of a URL: on one line, and cut to a bound."""
    plain = without_secrets(str(value))
    plain = plain if len(plain) <= longest else plain[:longest] + "…"
    return escape(printable(plain))

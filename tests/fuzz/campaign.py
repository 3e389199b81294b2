"""Runs targets under atheris (libFuzzer), one after the other, each in a process of its own."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, suppress
from dataclasses import asdict, dataclass
from io import StringIO
from pathlib import Path
from random import Random

import atheris

with redirect_stderr(StringIO()), atheris.instrument_imports(include=["mqinfer"], enable_loader_override=False):
    from tests.fuzz.model_files import scratch
    from tests.fuzz.targets import TARGETS, Target

from tests.fuzz.guard import Guard, bound_address_space
from tests.fuzz.mutation import Mutator

__all__ = ["Figures", "run_all"]

_CRASHES = Path(__file__).parent / "crashes"
_HANG_S = 20
"""libFuzzer ends the process then; a second of CPU time is a finding already (`Guard`)."""
_DONE = re.compile(rb"#(\d+)\s+DONE\s+cov: (\d+) ft: (\d+) corp: (\d+)")


@dataclass(frozen=True, slots=True)
class Figures:
    """What a run over one target gave: inputs, edges and features of the code reached, inputs kept, and findings."""

    target: str
    inputs: int
    edges: int
    features: int
    kept: int
    seconds: float
    findings: int

    def __str__(self) -> str:
        rate = self.inputs / max(self.seconds, 0.001)
        return (
            f"{self.target:12} {self.inputs:9} inputs {self.seconds:7.1f} s {rate:8.0f}/s "
            f"{self.edges:5} edges {self.features:6} features {self.kept:5} kept {self.findings:3} findings"
        )


def run_all(names: Sequence[str], *, runs: int, seconds: int, seed: int, work: Path) -> int:
    """Run targets and say what came of each.

    Args:
        names: Of the targets; all where there are none.
        runs: Inputs in all, divided by the targets' shares; 0 for no bound.
        seconds: Time in all, likewise.
        seed: Of all chance.
        work: Folder for each target's corpus and findings, and for `figures.json`.

    Returns:
        An exit status: 1 where anything was found.
    """
    if unknown := set(names) - TARGETS.keys():
        sys.exit(f"no such target: {', '.join(sorted(unknown))}; there are: {', '.join(TARGETS)}")
    names = names or list(TARGETS)
    shares = sum(TARGETS[name].share for name in names)
    found = []
    for name in names:
        part = TARGETS[name].share / shares
        flags = [f"-seed={seed}"]
        flags += [f"-runs={max(1, round(runs * part))}"] if runs else []
        flags += [f"-max_total_time={max(1, round(seconds * part))}"] if seconds else []
        found.append(_run_apart(name, work / name, flags))
        sys.stdout.write(f"{found[-1]}\n")
        sys.stdout.flush()
    findings = sum(figures.findings for figures in found)
    sys.stdout.write(f"{sum(figures.inputs for figures in found)} inputs, {findings} findings, in {work}\n")
    (work / "figures.json").write_text(json.dumps([asdict(figures) for figures in found], indent=1))
    return int(findings > 0)


def _run_apart(name: str, folder: Path, flags: list[str]) -> Figures:
    """Fork: the code is instrumented once, and a target that dies takes nothing with it."""
    shutil.rmtree(folder / "findings", ignore_errors=True)
    (folder / "corpus").mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    child = os.fork()
    if not child:
        known = [path.read_bytes() for path in sorted(_CRASHES.glob(f"{name}-*"))]
        _fuzz(TARGETS[name], known, folder, flags)
    _, status = os.waitpid(child, 0)
    shutil.rmtree(scratch(child), ignore_errors=True)
    seconds, text = time.monotonic() - started, (folder / "log").read_bytes()
    kept = len(list((folder / "findings").glob("*.txt")))
    done = _DONE.search(text)
    if status or not done:
        sys.stderr.write(f"{name} ended with status {status}:\n{text[-3000:].decode(errors='replace')}\n")
        return Figures(name, 0, 0, 0, 0, seconds, kept + 1)
    inputs, edges, features, corpus_size = map(int, done.groups())
    return Figures(name, inputs, edges, features, corpus_size, seconds, kept)


def _fuzz(target: Target, known: list[bytes], folder: Path, flags: list[str]) -> None:
    """Try what once was found, then fuzz until libFuzzer ends the process."""
    corpus, log = folder / "corpus", folder / "log"
    for number, seed in enumerate([*target.seeds(), *known]):
        (corpus / f"seed-{number:03}").write_bytes(seed)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", r".*invalid (octal )?escape", DeprecationWarning)  # of Python, by protobuf
    options = [
        f"-max_len={target.longest}",
        f"-timeout={_HANG_S}",
        "-rss_limit_mb=0",
        f"-artifact_prefix={folder}/died-",
    ]
    options += ["-close_fd_mask=3", str(corpus)]  # decoders of pictures write to the terminal
    for seed in target.seeds():  # unguarded: what is imported at first use is not an input's memory
        with suppress(Exception):  # the fuzzer begins with the seeds, and keeps what they raise
            target.run(seed)
    guard = Guard(target.run, target.memory, folder / "findings")
    for data in known:
        guard(data)
    if target.mutate is None:
        atheris.Setup(["fuzz", *flags, *options], guard)
    else:
        atheris.Setup(["fuzz", *flags, *options], guard, custom_mutator=_mutator(target.mutate))
    bound_address_space()
    atheris.Fuzz()


def _mutator(change: Mutator) -> Callable[[bytes, int, int], bytes]:
    def mutate(data: bytes, most: int, seed: int) -> bytes:
        def bytewise(part: bytes) -> bytes:
            return bytes(atheris.Mutate(part, max(most, 1)))

        return change(bytes(data), Random(seed), bytewise)[:most]  # noqa: S311  chance, not secrets

    return mutate

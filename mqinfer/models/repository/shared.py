"""A model repository that many machines share: an address of fsspec, with a copy on this machine that is served.

A thread downloads what the manifest has and this machine lacks, and checks every hash. Nothing of it is served before
all of a model has arrived: only then `install`, which its caller calls before it reads the copy, renames it into place.
So everything else sees a local folder. What the copy has stays there while the address can't be reached.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import shutil
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from pathlib import Path

from mqinfer.models.repository.manifest import MANIFEST, Files, Manifest, describe, read_manifest, unit_of
from mqinfer.models.repository.remote import Remote
from mqinfer.models.repository.traffic import TRAFFIC_FILE
from mqinfer.protocol.errors import ConfigError, ModelNotLoadable, MqinferError

_log = logging.getLogger("mqinfer.models")
_CLOSE_S = 5.0
_LOOK_S = 30.0
"""Unless the repository is polled, it is looked at so often: `mqinfer models load` then finds what is new here."""
_MOST_COPIES = 64
_NEW, _OLD = ".new", ".old"


class SharedRepository:
    """A shared repository and its copy in a folder. `install` may be called by another thread than the rest.

    Args:
        remote: The files at its address.
        folder: Of the copy; it is created.
        keeps: Whether the folder is a user's own: what is only here stays, and what differs is an error.
    """

    def __init__(self, remote: Remote, folder: Path, *, keeps: bool = False) -> None:
        self._keeps = keeps
        self.folder = folder
        self._remote = remote
        self._arrived: tuple[Manifest, set[str]] | None = None  # what is to be here, and which models `fetch` changed
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        self._resources = ExitStack()
        self._reported = ""
        folder.mkdir(parents=True, exist_ok=True)

    def open(self, period: float) -> None:
        """Bring what is there, and look for more from now on.

        Args:
            period: Seconds between two looks.

        Raises:
            MqinferError: The address can't be read, and nothing of it is on this machine.
        """
        self._discard_damaged()
        try:
            self.fetch()
        except MqinferError as error:
            if not any(_models(self.folder)):
                raise
            self._report(f"{error}; what was downloaded before is served")
        self.install()
        self._thread = threading.Thread(target=self._run, args=(period,), name="mqinfer-repository", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread, and leave the copy to the next worker."""
        self._closed.set()
        if self._thread:
            self._thread.join(_CLOSE_S)
        self._resources.close()

    def fetch(self, models: Collection[str] = ()) -> list[str]:
        """Download every model that is not here as the manifest says; `install` puts them into their place.

        A model of which a file does not arrive stays as it is, and the others arrive.

        Args:
            models: Their names; empty for all.

        Returns:
            What did not arrive, and why.

        Raises:
            MqinferError: There is no manifest, or a wrong one.
        """
        try:
            found = self._remote.manifest().models
        except FileNotFoundError as error:
            raise ConfigError(
                f"{self._remote.url}: no {MANIFEST} in it; write one by `mqinfer models push MODEL_FOLDER URL`"
            ) from error
        if missing := set(models) - found.keys():
            raise ConfigError(f"{self._remote.url}: no model {', '.join(sorted(missing))} in it")
        if not found:
            raise ConfigError(f"{self._remote.url}: it has no model; those that are here stay")
        whole: dict[str, Files] = {}
        changed: set[str] = set()
        problems: list[str] = []
        for model in models or found:
            whole[model] = found[model]
            try:
                if self._bring(model, found[model]):
                    changed.add(model)
            except (MqinferError, OSError) as error:
                problems.append(f"model {model} did not arrive, and stays as it was: {error}")
                whole[model] = _described(self.folder / model)
        self._report("; ".join(problems))
        self._arrived = Manifest(whole), changed
        return problems

    def install(self) -> None:
        """Put what has arrived into its place, by renaming; what the manifest does not have goes."""
        arrived, self._arrived = self._arrived, None
        if arrived is None:
            return
        manifest, changed = arrived
        for model in changed:
            self._place(model, {unit_of(name) for name in manifest.models[model]})
        if self._keeps:
            return
        for model in _models(self.folder):
            if model not in manifest.models:
                self._put_away(self.folder / model)
        whole = self.folder / f".{MANIFEST}"
        whole.with_suffix(".part").write_bytes(manifest.to_json())
        whole.with_suffix(".part").rename(whole)

    def _place(self, model: str, units: set[str]) -> None:
        """Rename versions and configuration files of a model; its own `traffic.toml` stays."""
        staged, place = self.folder / _NEW / model, self.folder / model
        place.mkdir(exist_ok=True)
        for unit in units:
            if (staged / unit).exists():
                self._put_away(place / unit)
                (staged / unit).rename(place / unit)
        for path in list(place.iterdir()) if not self._keeps else ():
            if path.name not in {*units, TRAFFIC_FILE}:
                self._put_away(path)

    def _put_away(self, path: Path) -> None:
        """Move what is replaced out of sight; `_clean` removes it, which may take long."""
        if path.exists():
            old = self.folder / _OLD
            old.mkdir(exist_ok=True)
            path.rename(next(each for number in count() if not (each := old / str(number)).exists()))

    def _run(self, period: float) -> None:
        while not self._closed.wait(period):
            if self._arrived is not None:  # the files on the way to their place are not touched
                continue
            shutil.rmtree(self.folder / _OLD, ignore_errors=True)
            try:
                self.fetch()
            except (MqinferError, OSError) as error:
                self._report(f"{error}; what was downloaded before is served")
            except Exception:  # noqa: BLE001 - a defect; it looks again
                _log.exception("the look at %s failed", self._remote.url)

    def _report(self, problem: str) -> None:
        if problem and problem != self._reported and not self._closed.is_set():
            _log.warning("%s", problem)
        self._reported = problem

    def _bring(self, model: str, files: Files) -> bool:
        """Download the versions and configuration files of a model that are not here or of which a file differs.

        Returns:
            Whether there were any, or something is here that the model does not have.
        """
        here = _described(self.folder / model)
        units = {unit_of(name) for name in here.keys() | files.keys() if here.get(name) != files.get(name)}
        wanted = {name: file for name, file in files.items() if unit_of(name) in units}
        taken = {unit_of(name) for name in here} & {unit_of(name) for name in wanted}
        if self._keeps and taken:
            what = ", ".join(sorted(taken))
            raise ModelNotLoadable(f"{self.folder / model}: {what} has another content here; move it away")
        self._download(model, wanted)
        return bool(units)

    def _download(self, model: str, wanted: Files) -> None:
        """Download files of a model to where `install` finds them, but those that have arrived at an earlier try."""
        staged = self.folder / _NEW / model
        before = _described(staged)
        if not before or not before.items() <= wanted.items():
            shutil.rmtree(staged, ignore_errors=True)
            before = {}
        lacking = {name: file for name, file in wanted.items() if name not in before}
        size, free = sum(file.size for file in lacking.values()), shutil.disk_usage(self.folder).free
        if size > free:
            raise ModelNotLoadable(f"{size} bytes to download, and {free} are free in {self.folder}; make room there")
        part = self.folder / _NEW / ".part"
        for name, file in lacking.items():
            part.parent.mkdir(exist_ok=True)
            self._remote.download(f"{model}/{name}", file, part, staged / name, self._closed)

    def _discard_damaged(self) -> None:
        """Remove from the copy what is not as it arrived: a disk that was full, a machine that lost power."""
        known: dict[str, Files] = {}
        path = self.folder / f".{MANIFEST}"
        with suppress(OSError, MqinferError):
            known = read_manifest(path.read_bytes(), str(path)).models
        for model in _models(self.folder):
            files = _described(self.folder / model)
            if not files or files != known.get(model):
                self._put_away(self.folder / model)
        shutil.rmtree(self.folder / _OLD, ignore_errors=True)

    @classmethod
    def cached(cls, url: str) -> SharedRepository:
        """Return a shared repository with its copy in the user's cache; each worker of a machine has its own.

        Args:
            url: Its address.

        Raises:
            ConfigError: It is no address, or the machine has too many copies of it.
        """
        remote = Remote(url)
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mqinfer" / "repositories"
        key = hashlib.sha256(remote.url.encode()).hexdigest()[:16]
        for number in range(_MOST_COPIES):
            folder = cache / f"{key}-{number}"
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with ExitStack() as stack, suppress(BlockingIOError):
                lock = stack.enter_context((folder / ".lock").open("w"))
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # held until it is closed
                shared = cls(remote, folder)
                shared._resources = stack.pop_all()
                return shared
        raise ConfigError(f"{cache}: {_MOST_COPIES} workers of this machine have a copy of {remote.url}; stop one")


@contextmanager
def local_copy(repository: str, poll: float | None) -> Iterator[tuple[Path, Callable[[], None]]]:
    """Yield the folder of a repository, and what is called before that is read.

    Args:
        repository: A folder, or an address, of which there is a copy for the time of this context.
        poll: Seconds between two looks at the address; None for what is usual.

    Raises:
        ConfigError: It is no address.
        MqinferError: The address can't be read, and nothing of it is on this machine.
    """
    if "://" not in repository:
        yield Path(repository), lambda: None
        return
    shared = SharedRepository.cached(repository)
    try:
        shared.open(poll or _LOOK_S)
        yield shared.folder, shared.install
    finally:
        shared.close()


def pull(url: str, folder: Path, models: Collection[str] = ()) -> None:
    """Download models of a shared repository into a folder; what is only in the folder stays.

    Args:
        url: Address of the repository.
        folder: The folder for the models, which is a repository then.
        models: Their names; empty for all.

    Raises:
        ModelNotLoadable: Some did not arrive; the others are there.
        MqinferError: The address can't be read.
    """
    shared = SharedRepository(Remote(url), folder, keeps=True)
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)  # what another one downloads here is not touched
        problems = shared.fetch(models)
        shared.install()
        shutil.rmtree(folder / _NEW, ignore_errors=True)
    finally:
        os.close(handle)
    if problems:
        raise ModelNotLoadable("; ".join(problems))


def _models(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")]


def _described(folder: Path) -> Files:
    """Return what a folder of the copy has, nothing if it is not as `fetch` would make it."""
    try:
        return describe(folder)
    except (OSError, MqinferError):
        return {}

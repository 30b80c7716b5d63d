"""Where fewfed writes: room on the disk and whether it may; and which data sets are there."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from fewfed.data.sources import available, cache_folder
from fewfed.doctor.finding import Finding, State, size_of
from fewfed.runs.naming import DEFAULT_OUT

_LITTLE = 1 << 30
_LITTLE_SHARED = 256 << 20
_SHARED = Path("/dev/shm")


def look() -> Iterator[Finding]:
    """The folders of runs and of the cache, the one for temporary files, and the memory that workers share."""
    yield _folder("runs", DEFAULT_OUT, "give another folder with --out", "broken")
    try:
        cache = cache_folder()
    except RuntimeError:  # A user without a home.
        yield Finding("folders", "cache", "limited", "this user has no home folder", "let XDG_CACHE_HOME name a folder")
    else:
        yield _folder("cache", cache, "let XDG_CACHE_HOME name another folder", "limited")
    try:
        yield _folder("temporary", Path(tempfile.gettempdir()), "let TMPDIR name another folder", "broken")
    except OSError as error:  # It looks for one it can write to.
        yield Finding("folders", "temporary", "broken", error.strerror or str(error), "let TMPDIR name another folder")
    yield _shared(_SHARED)


def _folder(topic: str, folder: Path, advice: str, without: State) -> Finding:
    """`without`: what it means where nothing can be written."""
    there = _nearest(folder.absolute())
    try:
        free = shutil.disk_usage(there).free
        with tempfile.TemporaryFile(dir=there) as file:  # The only question whose answer counts.
            file.write(b"x")
            file.flush()
    except OSError as error:
        says = f"{folder.absolute()} cannot be written: {error.strerror or error}"
        return Finding("folders", topic, without, says, advice)
    says = f"{folder.absolute()}: {size_of(free)} free"
    if free < _LITTLE:
        return Finding("folders", topic, "limited", says, advice)
    return Finding("folders", topic, "fine", says)


def _nearest(folder: Path) -> Path:
    """The folder, or the first above it that is there."""
    return next((each for each in (folder, *folder.parents) if os.path.lexists(each)), folder)


def _shared(place: Path) -> Finding:
    try:
        space = os.statvfs(place)
    except OSError as error:
        says = f"{place}: {error.strerror or error}; worker processes share {tempfile.gettempdir()} instead"
        return Finding("folders", "shared memory", "limited", says)
    free = space.f_bavail * space.f_frsize
    says = f"{place}: {size_of(free)} free"
    if free < _LITTLE_SHARED:
        return Finding(
            "folders", "shared memory", "limited",
            f"{says}; what does not fit goes through {tempfile.gettempdir()}, which is slower",
            "docker run --shm-size 1g, where this is a container",
        )  # fmt: skip
    return Finding("folders", "shared memory", "fine", says)


def data_sets() -> Finding:
    """Data sets that are there, and how many more could be."""
    found = available()
    here, missing = [each.name for each in found if each.present], [each.name for each in found if not each.present]
    advice = f"'fewfed data' says how to get {', '.join(missing)}" if missing else ""
    return Finding("data", "data sets", "fine", ", ".join(here), advice)

"""Where data is looked for and where fewfed keeps its own copies."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """`$XDG_CACHE_HOME/fewfed`, or `~/.cache/fewfed`."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "fewfed"


def search_path() -> list[Path]:
    """The folders of `FEWFED_DATA` in order, then the cache folder."""
    listed = os.environ.get("FEWFED_DATA", "").split(os.pathsep)
    folders = [Path(entry).expanduser() for entry in listed if entry.strip()]
    return [*folders, cache_folder()]

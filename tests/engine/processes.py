"""The processes and files this test process holds, as the kernel sees them."""

from __future__ import annotations

import os
from pathlib import Path


def children(of: int | None = None) -> set[int]:
    """Processes started by this one, or by another, that are still running or not yet waited for."""
    parent = os.getpid() if of is None else of
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            fields = _fields(int(entry.name))
            if fields and int(fields[1]) == parent:
                found.add(int(entry.name))
    return found


def descendants(of: int) -> set[int]:
    """The processes started by another one, and by those in turn."""
    own = children(of)
    return own.union(*(descendants(child) for child in own))


def is_gone(pid: int) -> bool:
    """Whether a process has ended, even if nobody has waited for it."""
    fields = _fields(pid)
    return not fields or fields[0] in "ZX"


def is_stopped(pid: int) -> bool:
    return _fields(pid)[:1] == ["T"]


def _fields(pid: int) -> list[str]:
    """State, parent and so on of a process; nothing if there is none."""
    try:
        # The command name may itself hold spaces and brackets; the fields begin after its last bracket.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def open_files() -> dict[int, str]:
    """What every open file descriptor of this process refers to."""
    found = {}
    for entry in Path("/proc/self/fd").iterdir():
        try:
            found[int(entry.name)] = os.readlink(entry)
        except OSError:
            continue
    return found

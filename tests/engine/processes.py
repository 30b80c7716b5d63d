"""The processes and files this test process holds, as the kernel sees them."""

from __future__ import annotations

import os
from pathlib import Path


def children() -> set[int]:
    """Processes started by this one that are still running or not yet waited for."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                # The command name may itself hold spaces and brackets; the fields begin after its last bracket.
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == os.getpid():
                found.add(int(entry.name))
    return found


def open_files() -> dict[int, str]:
    """What every open file descriptor of this process refers to."""
    found = {}
    for entry in Path("/proc/self/fd").iterdir():
        try:
            found[int(entry.name)] = os.readlink(entry)
        except OSError:
            continue
    return found

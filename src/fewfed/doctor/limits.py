"""What of a machine's cores and memory this process may really use: affinity and the limits of control groups."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

from fewfed.doctor.finding import Finding, size_of
from fewfed.engine.executors.workers.executor import cores
from fewfed.runs.machine import processor
from fewfed.runs.packing import HostMemory

_GROUPS = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")
_LITTLE_MEMORY = 2 << 30


def look() -> Iterator[Finding]:
    """Cores and memory."""
    yield _cores(cores(), os.cpu_count() or 1, most_cores(_GROUPS, _OWN))
    yield _memory(HostMemory().free(), memory_left(_GROUPS, _OWN))


def _cores(usable: int, there: int, quota: float) -> Finding:
    says = f"{usable} of {there} cores may be used ({processor()})" if usable < there else f"{there} ({processor()})"
    if quota >= usable:
        return Finding("machine", "cores", "fine", says)
    count = max(1, round(quota))
    return Finding(
        "machine", "cores", "limited", f"{says}, but a limit on this container allows the time of {quota:g}",
        f"--set workers.processes={count} (compare: --jobs {count}), or raise the limit",
    )  # fmt: skip


def _memory(free: int | None, left: float) -> Finding:
    if free is None and left == math.inf:
        return Finding("machine", "memory", "fine", "this system does not say how much is free")
    usable = min(math.inf if free is None else free, left)
    says = f"{size_of(usable)} free"
    if free is not None and left < free:
        says += f" within a limit on this container; the machine has {size_of(free)}"
    if usable < _LITTLE_MEMORY:
        return Finding("machine", "memory", "limited", says, "run fewer at once: compare --jobs 1")
    return Finding("machine", "memory", "fine", says)


def most_cores(groups: Path, own: Path) -> float:
    """How many cores' time the groups of this process may take; infinity where nothing limits it."""
    found = [math.inf]
    for folder in _folders(groups, own, "cpu"):
        quota, _, period = _text(folder / "cpu.max").partition(" ")
        if not quota:
            quota, period = _text(folder / "cpu.cfs_quota_us"), _text(folder / "cpu.cfs_period_us")
        if quota.isdigit() and period.isdigit() and int(period):
            found.append(int(quota) / int(period))
    return min(found)


def memory_left(groups: Path, own: Path) -> float:
    """Bytes that the groups of this process may still take; infinity where nothing limits it."""
    found = [math.inf]
    for folder in _folders(groups, own, "memory"):
        limit = _text(folder / "memory.max") or _text(folder / "memory.limit_in_bytes")
        if not limit.isdigit():
            continue
        used = _text(folder / "memory.current") or _text(folder / "memory.usage_in_bytes")
        # Copies of files that the system keeps in memory are given back when it is needed.
        cached = dict(line.split() for line in _text(folder / "memory.stat").splitlines() if len(line.split()) == 2)
        taken = (int(used) if used.isdigit() else 0) - int(cached.get("inactive_file", 0))
        found.append(max(0, int(limit) - max(0, taken)))
    return min(found)


def _folders(groups: Path, own: Path, controller: str) -> Iterator[Path]:
    """The folders of this process's groups, from its own up to the root: of version 2, and of version 1 if in use."""
    for line in _text(own).splitlines():
        _, _, rest = line.partition(":")
        names, _, place = rest.partition(":")
        if names and controller not in names.split(","):
            continue
        root = groups / controller if names else groups
        folder = root / place.lstrip("/")
        # Inside a container the place is often named as it is outside.
        while folder != root and folder.is_relative_to(root):
            if folder.is_dir():
                yield folder
            folder = folder.parent
        yield root


def _text(file: Path) -> str:
    try:
        return file.read_text().strip()
    except (OSError, ValueError):
        return ""
